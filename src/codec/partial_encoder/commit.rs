//! What becomes of the stored shard: it is erased, written to, or written anew.
//!
//! The protocol, and what it promises, is in `docs/updates.md`.

use zarrs::array::codec::ShardingIndexLocation;
use zarrs_codec::{ArrayToBytesCodecTraits, CodecError, CodecOptions};

use super::comparison::StoredIndex;
use super::reads::{Fetched, Reads};
use super::target::Target;
use super::turns::Mode;
use super::update::{Changes, Update, not_read};
use crate::WriteStrategy;
use crate::codec::shard::{dense, encode_index};
use crate::layout::placement::{self, Commit, Rule, Stored};
use crate::layout::{Extent, RECORD_LEN, Record, Space, fingerprint};

/// What becomes of the stored shard.
pub(super) enum Outcome {
    /// It is erased, since every subchunk is empty.
    Erase,
    /// It is written to.
    Write(Placed),
    /// It is erased and written anew, since too much of it would be unused.
    Compact { size: usize, extents: Vec<Extent> },
}

/// Where the changes go.
pub(super) struct Placed {
    pub(super) commit: Commit,
    pub(super) extents: Vec<Extent>,
    pub(super) size: usize,
    /// How many bytes of the shard nothing uses then, if they are more than is wanted.
    pub(super) dead: Option<usize>,
    /// The encoded index, unless it stays as it is.
    pub(super) index: Option<Vec<u8>>,
    pub(super) record: Record,
    /// Whether there was no shard before.
    pub(super) creates: bool,
}

impl Outcome {
    /// Whether others may write at the same time.
    pub(super) fn mode(&self) -> Mode {
        match self {
            Self::Write(placed) if placed.commit == Commit::DataOnly => Mode::Shared,
            _ => Mode::Alone,
        }
    }
}

/// Where subchunks go.
///
/// # Errors
/// A [`CodecError`] for slots of a chain that names no bound.
pub(super) fn rule(target: &Target, store_writes_ranges: bool) -> Result<Rule, CodecError> {
    let encoded = || {
        target.codec.inner_codecs.encoded_representation(
            &target.codec.subchunk_shape,
            &target.data_type,
            &target.fill_value,
        )
    };
    Ok(match target.codec.options.write_strategy() {
        WriteStrategy::Append => Rule::Append,
        WriteStrategy::InPlace => Rule::InPlace,
        WriteStrategy::Auto => {
            if target.has_subchunks_of_one_size()? || !store_writes_ranges {
                Rule::InPlace
            } else {
                Rule::Reuse
            }
        }
        WriteStrategy::Slots => {
            let size = encoded()?.size().ok_or_else(|| {
                CodecError::Other(
                    "WriteStrategy::Slots needs inner codecs that say how large a subchunk can become, and these do not: use WriteStrategy::Auto or Append".to_string(),
                )
            })?;
            let size = usize::try_from(size).map_err(|_| too_large())?;
            Rule::Slots { size }
        }
    })
}

/// The turn that `changes` will probably need, before it is known where they go.
pub(super) fn likely_mode(rule: Rule, before: &StoredIndex, changes: &Changes) -> Mode {
    let same_size = changes.subchunks.iter().all(|(number, new)| {
        let old = before.extents.get(*number).and_then(Option::as_ref);
        old.is_some_and(|old| new.as_ref().is_some_and(|new| new.len() == old.len()))
    });
    match rule {
        Rule::InPlace | Rule::Slots { .. } if same_size => Mode::Shared,
        _ => Mode::Alone,
    }
}

/// Find places for `changes` in the shard `before`, an object of `size` bytes.
///
/// # Errors
/// A [`CodecError`] if the shard would be larger than this machine can address, or the index cannot
/// be encoded.
pub(super) fn decide(
    update: &Update<'_>,
    rule: Rule,
    before: Option<&StoredIndex>,
    size: usize,
    changes: &Changes,
    options: &CodecOptions,
) -> Result<Outcome, CodecError> {
    let target = update.target;
    let (none, no_space);
    let (extents, space) = if let Some(before) = before {
        (&before.extents, &before.space)
    } else {
        none = vec![None; update.grid.num_subchunks()];
        no_space = Space::of(&[]);
        (&none, &no_space)
    };
    let mut stays_empty = changes.subchunks.iter().all(|(_, new)| new.is_none());
    if stays_empty {
        let mut after = extents.clone();
        for (number, _) in &changes.subchunks {
            after[*number] = None;
        }
        stays_empty = after.iter().all(Option::is_none);
    }
    if stays_empty {
        return Ok(Outcome::Erase);
    }
    let stored = Stored {
        extents,
        space,
        size,
        index_len: target.index_len,
        index_at_end: target.codec.index_location == ShardingIndexLocation::End,
    };
    let sizes: Vec<placement::Change> = changes
        .subchunks
        .iter()
        .map(|(number, new)| placement::Change {
            number: *number,
            len: new.as_ref().map(ExactSizeIterator::len),
            may_overwrite: changes.fragile.binary_search(number).is_err(),
        })
        .collect();
    let placement = placement::place(&stored, &sizes, rule).map_err(|_| too_large())?;
    let dead = match rule {
        Rule::Slots { .. } => None,
        _ => too_dead(target, &stored, &placement, changes),
    };
    if dead.is_some() && target.codec.options.allow_unsafe_compaction() {
        return Ok(Outcome::Compact {
            size,
            extents: placement.extents,
        });
    }
    let index = match placement.commit {
        Commit::DataOnly => None,
        _ => Some(encode_index(
            &target.codec,
            &update.grid,
            target.index_len,
            &placement.extents,
            options,
        )?),
    };
    Ok(Outcome::Write(Placed {
        record: Record {
            offset: match placement.commit {
                Commit::Grow { record, .. } | Commit::Rewrite { record, .. } => record as u64,
                Commit::DataOnly => 0,
            },
            old_end: size as u64,
            old_index: before.map_or(0, |before| before.fingerprint),
            index_len: target.index_len as u64,
            new_end: placement.size as u64,
            new_index: index.as_deref().map_or(0, fingerprint),
        },
        creates: size == 0,
        commit: placement.commit,
        extents: placement.extents,
        size: placement.size,
        dead,
        index,
    }))
}

/// How many bytes nothing will use, if they are more than is wanted.
#[allow(
    clippy::cast_precision_loss,
    reason = "a fraction that need not be exact"
)]
fn too_dead(
    target: &Target,
    stored: &Stored<'_>,
    after: &placement::Placement,
    changes: &Changes,
) -> Option<usize> {
    if stored.space.overlaps() {
        // What is shared cannot be compacted.
        return None;
    }
    let used = changes.used_after(stored.space.used() + target.index_len, stored.extents);
    let dead = after.size.saturating_sub(used);
    // What one update takes for itself would come back with the next one.
    let reserve = 2 * RECORD_LEN + target.index_len;
    let most = target.codec.options.max_dead_fraction() * after.size as f64;
    (dead > reserve && dead as f64 > most).then_some(dead)
}

/// The other subchunks of a shard that is written anew.
pub(super) fn reads_of_rest(
    before: Option<&StoredIndex>,
    after: &[Extent],
    changes: &Changes,
) -> Reads {
    let Some(before) = before else {
        return Reads::default();
    };
    let changed = |number: usize| {
        let by_number = |(changed, _): &(usize, Extent)| *changed;
        changes
            .subchunks
            .binary_search_by_key(&number, by_number)
            .is_ok()
    };
    let rest = before.extents.iter().zip(after).enumerate();
    Reads::of(
        rest.filter(|(number, (_, after))| after.is_some() && !changed(*number))
            .filter_map(|(_, (extent, _))| extent.as_ref()),
    )
}

/// The shard `before`, an object of `size` bytes, with `changes`, densely.
///
/// # Errors
/// A [`CodecError`] if the index cannot be encoded, or `rest` is not what was asked for.
pub(super) fn compacted(
    update: &Update<'_>,
    (before, size): (Option<&StoredIndex>, usize),
    changes: &Changes,
    rest: &Fetched<'_>,
    options: &CodecOptions,
) -> Result<Vec<u8>, CodecError> {
    let target = update.target;
    let old = |number: usize| match before.and_then(|before| before.extents[number].as_ref()) {
        Some(old) => rest.get(old).map(Some).ok_or_else(not_read),
        None => Ok(None),
    };
    let subchunks = changes.over(update.grid.num_subchunks(), old)?;
    let most = size + changes.bytes.len() + target.index_len;
    dense(
        &target.codec,
        &update.grid,
        target.index_len,
        &subchunks,
        most,
        options,
    )
}

fn too_large() -> CodecError {
    CodecError::Other(
        "a partial write would make its shard larger than this machine can address".to_string(),
    )
}

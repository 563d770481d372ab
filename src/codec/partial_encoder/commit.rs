//! The outcome of an update for the stored shard: the shard is erased, or written to.
//!
//! ```text
//! decide
//!     every subchunk is empty: erase the shard
//!     place the changed subchunks by the rule of the options
//!     count the bytes that nothing uses, and ask for compaction if they are too many
//!     the index stays as it is: write only data
//!     otherwise: encode the new index, and make a record of the old and the new one
//! ```
//!
//! `docs/reference/updates.md` has the protocol and its promises.

use zarrs_codec::{CodecError, CodecOptions};

use super::comparison::StoredIndex;
use super::update::{Changes, Update};
use crate::options::WriteStrategy;
use crate::shard::sharding::Sharding;
use crate::store::codec_queue::Mode;
use zarrs_cuda_engine::layout::placement;
use zarrs_cuda_engine::layout::placement::{Commit, PlacementRule, ShardBeforeUpdate};
use zarrs_cuda_engine::layout::{Extent, RECORD_LEN, Record, Space, fingerprint};

/// The outcome of an update for the stored shard.
pub(super) enum Outcome {
    /// The shard is erased, because every subchunk is empty.
    Erase,
    /// The changes are written to the shard.
    Write(Placed),
}

/// The places of the changes in the shard, and the writes that the places need.
pub(super) struct Placed {
    pub(super) commit: Commit,
    /// The extents of the changed subchunks after the update.
    pub(super) extents: Vec<Extent>,
    pub(super) size: usize,
    /// The number of bytes that no subchunk uses after the update, if they are more than the options allow.
    pub(super) dead: Option<usize>,
    /// The new encoded index, or `None` if the index does not change.
    pub(super) index: Option<Vec<u8>>,
    pub(super) record: Record,
    /// Whether the shard did not exist before the update.
    pub(super) creates: bool,
}

impl Outcome {
    /// Returns the kind of turn that the outcome needs: shared if other encoders may write at the same time.
    pub(super) fn mode(&self) -> Mode {
        match self {
            Self::Write(placed) if placed.commit == Commit::DataOnly => Mode::Shared,
            _ => Mode::Alone,
        }
    }
}

/// Returns the rule by which changed subchunks get their places in a shard.
///
/// # Errors
/// A [`CodecError`] for [`WriteStrategy::Slots`] if the inner codecs name no bound for the size of a
/// subchunk.
pub(super) fn rule(
    target: &Sharding,
    store_writes_ranges: bool,
) -> Result<PlacementRule, CodecError> {
    Ok(match target.codec.options.write_strategy() {
        WriteStrategy::Append => PlacementRule::Append,
        WriteStrategy::InPlace => PlacementRule::InPlace,
        WriteStrategy::Auto => {
            if target.has_subchunks_of_one_size()? || !store_writes_ranges {
                PlacementRule::InPlace
            } else {
                PlacementRule::Reuse
            }
        }
        WriteStrategy::Slots => {
            let size = target.subchunk_representation()?.size().ok_or_else(|| {
                CodecError::Other(
                    "WriteStrategy::Slots needs inner codecs that say how large a subchunk can become, and these do not: use WriteStrategy::Auto or Append".to_string(),
                )
            })?;
            let size = usize::try_from(size).map_err(|_| too_large())?;
            PlacementRule::Slots { size }
        }
    })
}

/// Returns the kind of turn that `changes` will probably need, before their places are known.
pub(super) fn likely_mode(rule: PlacementRule, before: &StoredIndex, changes: &Changes) -> Mode {
    let same_size = changes.subchunks.iter().all(|(number, new)| {
        let old = before.entries.get(*number);
        old.is_some_and(|old| new.as_ref().is_some_and(|new| new.len() == old.len()))
    });
    match rule {
        PlacementRule::InPlace | PlacementRule::Slots { .. } if same_size => Mode::Shared,
        _ => Mode::Alone,
    }
}

/// Finds places for `changes` in the shard `before`, an object of `size` bytes.
///
/// # Errors
/// A [`CodecError`] if the shard would be larger than this machine can address, or the index cannot
/// be encoded.
pub(super) fn decide(
    update: &Update<'_>,
    rule: PlacementRule,
    before: Option<&StoredIndex>,
    size: usize,
    changes: &Changes,
    options: &CodecOptions,
) -> Result<Outcome, CodecError> {
    let target = update.target;
    let no_space = Space::default();
    let space = before.map_or(&no_space, |before| &before.space);
    let old = |number| before.and_then(|before| before.entries.get(number));
    if changes.erase(space, old) {
        return Ok(Outcome::Erase);
    }
    let stored = ShardBeforeUpdate {
        num_subchunks: target.index.num_subchunks(),
        space,
        size,
        index_len: target.index.len(),
        index_at_end: target.index.is_at_end(),
    };
    let sizes: Vec<placement::ChangedSubchunk> = changes
        .subchunks
        .iter()
        .map(|(number, new)| placement::ChangedSubchunk {
            number: *number,
            old: old(*number),
            len: new.as_ref().map(ExactSizeIterator::len),
            may_overwrite: changes.fragile.binary_search(number).is_err(),
        })
        .collect();
    let placement = placement::place(&stored, &sizes, rule).map_err(|_| too_large())?;
    let dead = match rule {
        PlacementRule::Slots { .. } => None,
        _ => too_dead(
            target,
            &stored,
            &placement,
            changes.used_after(space.used(), old),
        ),
    };
    let index = if placement.commit == Commit::DataOnly {
        None
    } else {
        let numbers = changes.subchunks.iter().map(|(number, _)| *number);
        let moved = numbers.zip(placement.extents.iter().cloned());
        let index = &target.index;
        Some(match before {
            Some(before) => index.encode_changed(&before.entries, moved, options)?,
            None => index.encode_changed(&index.empty(), moved, options)?,
        })
    };
    // An update that does not change the index writes no record.
    let recorded = before.filter(|_| index.is_some());
    Ok(Outcome::Write(Placed {
        record: Record {
            offset: match placement.commit {
                Commit::Grow { record, .. } | Commit::Rewrite { record, .. } => record as u64,
                Commit::DataOnly => 0,
            },
            old_end: size as u64,
            old_index: recorded.map_or(0, StoredIndex::fingerprint),
            index_len: target.index.len() as u64,
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

/// Returns the number of bytes that no subchunk will use, if they are more than the options allow.
#[allow(
    clippy::cast_precision_loss,
    reason = "a fraction that need not be exact"
)]
fn too_dead(
    target: &Sharding,
    stored: &ShardBeforeUpdate<'_>,
    after: &placement::Placement,
    used: usize,
) -> Option<usize> {
    if stored.space.overlaps() {
        // Subchunks that share bytes cannot be compacted.
        return None;
    }
    let dead = after.size.saturating_sub(used + target.index.len());
    // The next update would reuse these bytes for two records and an index.
    let reserve = 2 * RECORD_LEN + target.index.len();
    let most = target.codec.options.max_dead_fraction() * after.size as f64;
    (dead > reserve && dead as f64 > most).then_some(dead)
}

fn too_large() -> CodecError {
    CodecError::Other(
        "a partial write would make its shard larger than this machine can address".to_string(),
    )
}

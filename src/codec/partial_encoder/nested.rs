//! Subchunks that are shards: what changes in them is decoded, and nothing else.

use std::borrow::Cow;

use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};
use zarrs::array::{ArrayBytes, Indexer};
use zarrs_codec::{CodecError, CodecOptions};

use super::reads::Fetched;
use super::update::{Changes, Touched, Update, not_read};
use crate::codec::other;
use crate::codec::selection::Selection;
use crate::codec::sharding::Sharding;
use crate::layout::{Entries, Extent, Part, Space};

/// Encode what `update` changes, whose subchunks are the shards `target`.
///
/// # Errors
/// A [`CodecError`] if one cannot be decoded or encoded.
pub(super) fn encode(
    update: &Update<'_>,
    target: &Sharding,
    elements: &[u8],
    fetched: &Fetched<'_>,
    options: &CodecOptions,
) -> Result<Changes, CodecError> {
    // A backend that cannot encode whole shards of these is refused for parts of them, too.
    update.target.choose_engine().map_err(other)?;
    let one = |touched: &Touched| {
        let old = match &touched.extent {
            Some(extent) if !touched.whole => Some(fetched.get(extent).ok_or_else(not_read)?),
            _ => None,
        };
        let (indexer, part) = share(update, touched.number, elements)?;
        updated(target, old, &*indexer, &ArrayBytes::new_flen(part), options)
    };
    let encoded: Vec<Option<Inner>> = if options.concurrent_target() == 1 {
        update.touched.iter().map(one).collect::<Result<_, _>>()?
    } else {
        update
            .touched
            .par_iter()
            .with_max_len(1)
            .map(one)
            .collect::<Result<_, _>>()?
    };
    let mut changes = Changes::new();
    for (touched, encoded) in update.touched.iter().zip(&encoded) {
        changes.push(
            touched.number,
            encoded.as_ref().map(|inner| inner.shard.as_slice()),
        );
        if !touched.whole && encoded.as_ref().is_some_and(|inner| inner.fragile) {
            changes.fragile.push(touched.number);
        }
    }
    Ok(changes)
}

/// An inner shard as it will be.
struct Inner {
    shard: Vec<u8>,
    /// Whether overwriting the old one could lose more than what is written.
    fragile: bool,
}

/// What is written to subchunk `number`: where in it, and the elements.
fn share(
    update: &Update<'_>,
    number: usize,
    elements: &[u8],
) -> Result<(Box<dyn Indexer>, Vec<u8>), CodecError> {
    let mut share = Vec::new();
    match &update.selection {
        Selection::Window { start, shape } => {
            let part = Part::new(&update.grid, number, start, shape);
            share.reserve_exact(part.len());
            for (_, from) in part.rows(shape) {
                share.extend_from_slice(&elements[from..from + part.row_len()]);
            }
        }
        Selection::Points(points) => {
            let size = update.grid.element_size();
            for point in points.get(&number).into_iter().flatten() {
                let from = point.position * size;
                share.extend_from_slice(&elements[from..from + size]);
            }
        }
    }
    Ok((update.selection.within(&update.grid, number)?, share))
}

/// The shard `old` with `elements` written to `indexer`; `None` if it is empty then.
///
/// # Errors
/// A [`CodecError`] if `old` is broken, or a subchunk cannot be decoded or encoded.
fn updated(
    target: &Sharding,
    old: Option<&[u8]>,
    indexer: &dyn Indexer,
    elements: &ArrayBytes<'_>,
    options: &CodecOptions,
) -> Result<Option<Inner>, CodecError> {
    let index = &target.index;
    let (old, entries) = match old {
        None => (&[][..], index.empty()),
        Some(bytes) => {
            let encoded = Cow::Borrowed(index.of(bytes)?);
            (bytes, index.decode(encoded, bytes.len() as u64, options)?)
        }
    };
    let update = Update::new(target, Some(&entries), indexer, elements)?;
    update.reads()?;
    let changes = update.encode(&Fetched::all(old), options)?;
    splice(target, (old, &entries), &changes, options)
}

/// The shard `old` with `changes`: where they are, if they fit; else all of it anew, densely. It is
/// in memory, so nothing can be torn.
fn splice(
    target: &Sharding,
    (old, entries): (&[u8], &Entries<'_>),
    changes: &Changes,
    options: &CodecOptions,
) -> Result<Option<Inner>, CodecError> {
    let index = &target.index;
    let space = Space::of(entries.iter());
    let at = |number: usize| entries.get(number);
    if changes.erase(&space, at) {
        return Ok(None);
    }
    let place = index.range_in(old.len());
    let place = place.filter(|place| !space.overlaps() && space.is_free(place, None));
    let used = changes.used_after(space.used(), at) + index.len();
    // Where each change goes, if all of them fit.
    let extents: Option<Vec<(usize, Extent)>> = changes
        .subchunks
        .iter()
        .map(|(number, new)| match (at(*number), new) {
            (_, None) => Some((*number, None)),
            (Some(old), Some(new)) if new.len() <= old.len() => {
                Some((*number, Some(old.start..old.start + new.len())))
            }
            (_, Some(_)) => None,
        })
        .collect();
    #[allow(
        clippy::cast_precision_loss,
        reason = "a fraction that need not be exact"
    )]
    let dead_fraction = old.len().saturating_sub(used) as f64 / old.len() as f64;
    let fits = dead_fraction <= target.codec.options.max_dead_fraction();
    if let (Some(place), Some(extents), true) = (place, extents, fits) {
        let mut shard = old.to_vec();
        for ((_, new), (_, extent)) in changes.subchunks.iter().zip(&extents) {
            if let (Some(extent), Some(new)) = (extent, new) {
                shard[extent.clone()].copy_from_slice(changes.encoded(new));
            }
        }
        let moves = extents.iter().any(|(number, new)| *new != at(*number));
        shard[place].copy_from_slice(&index.encode_changed(entries, extents, options)?);
        // An inner index that is cut off in the middle would be the end of all that it leads to.
        let fragile = moves || !changes.fragile.is_empty();
        return Ok(Some(Inner { shard, fragile }));
    }
    let subchunks = changes.over(entries.len(), |number| {
        Ok(at(number).and_then(|extent| old.get(extent)))
    })?;
    let most = old.len() + changes.bytes.len() + index.len();
    let shard = target.pack(&subchunks, most, options)?;
    // The subchunks lie elsewhere now.
    Ok(Some(Inner {
        shard,
        fragile: true,
    }))
}

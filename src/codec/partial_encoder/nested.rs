//! Subchunks that are shards, with some of their own subchunks changed. They are in memory, so that nothing
//! can be torn.

use zarrs::array::Indexer;
use zarrs_codec::{CodecError, CodecOptions};

use super::update::{Changes, Update};
use crate::shard::selection::Selection;
use crate::shard::sharding::Sharding;
use zarrs_cuda_engine::layout::{Entries, Extent, Space, SubchunkPart};

/// An inner shard as it will be.
pub(super) struct Inner {
    pub(super) shard: Vec<u8>,
    /// Whether overwriting the old one could lose more than what is written.
    pub(super) fragile: bool,
}

/// Returns the places in subchunk `number` that are written to, and the elements for them.
pub(super) fn share(
    update: &Update<'_>,
    number: usize,
    elements: &[u8],
) -> Result<(Box<dyn Indexer>, Vec<u8>), CodecError> {
    let mut share = Vec::new();
    match &update.selection {
        Selection::Window { start, shape } => {
            let part = SubchunkPart::new(update.grid, number, start, shape);
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
    Ok((update.selection.within(update.grid, number)?, share))
}

/// Returns the shard `old` with `changes`: where they are, if they fit; else all of it anew, densely.
///
/// # Errors
/// A [`CodecError`] if the index cannot be encoded.
pub(super) fn splice(
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

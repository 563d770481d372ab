//! Updates subchunks that are themselves shards, by changing some of their subchunks. The inner shards are in
//! memory, so no interruption can tear them.

use zarrs::array::Indexer;
use zarrs_codec::{CodecError, CodecOptions};

use super::update::{Changes, Update};
use crate::shard::selection::Selection;
use crate::shard::sharding::Sharding;
use zarrs_cuda_engine::layout::{Entries, Extent, Space, SubchunkPart};

/// An inner shard with its changes.
pub(super) struct Inner {
    pub(super) shard: Vec<u8>,
    /// Whether an interrupted overwrite of the stored inner shard could lose elements that are not written.
    pub(super) fragile: bool,
}

/// Returns the elements that are written to subchunk `number`, and their places in it.
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

/// Returns the shard `old` with `changes`. They are written into its bytes if all of them fit; otherwise the
/// whole shard is packed anew, densely. Returns `None` if every subchunk is then empty.
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
    // The extent of each changed subchunk in the old bytes, or `None` if a change does not fit.
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
        // If a write stopped in the middle of an inner index, all subchunks of the inner shard would be lost.
        let fragile = moves || !changes.fragile.is_empty();
        return Ok(Some(Inner { shard, fragile }));
    }
    let subchunks = changes.over(entries.len(), |number| {
        Ok(at(number).and_then(|extent| old.get(extent)))
    })?;
    let most = old.len() + changes.bytes.len() + index.len();
    let shard = target.pack(&subchunks, most, options)?;
    // The subchunks have moved, so the old bytes of the inner shard are no longer valid.
    Ok(Some(Inner {
        shard,
        fragile: true,
    }))
}

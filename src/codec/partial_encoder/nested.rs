//! Subchunks that are shards: what changes in them is decoded, and nothing else.

use std::sync::Arc;

use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};
use zarrs::array::codec::ShardingIndexLocation;
use zarrs::array::{ArrayBytes, Indexer};
use zarrs_codec::{CodecError, CodecOptions};

use super::reads::Fetched;
use super::target::Target;
use super::update::{Changes, Touched, Update, not_read};
use crate::codec::selection::Selection;
use crate::codec::shard::{decode_index_of, dense, encode_index};
use crate::codec::{CudaShardingCodec, other};
use crate::layout::{Extent, Part, Space, SubchunkGrid};

/// Encode what `update` changes, whose subchunks are shards of `inner`.
///
/// # Errors
/// A [`CodecError`] if one cannot be decoded or encoded.
pub(super) fn encode(
    update: &Update<'_>,
    inner: &Arc<CudaShardingCodec>,
    elements: &[u8],
    fetched: &Fetched<'_>,
    options: &CodecOptions,
) -> Result<Changes, CodecError> {
    let outer = update.target;
    let target = Target::new(
        inner.clone(),
        &outer.codec.subchunk_shape,
        &outer.data_type,
        &outer.fill_value,
    )?;
    // A backend that cannot encode whole shards of these is refused for parts of them, too.
    outer.shard()?.choose_engine().map_err(other)?;
    let one = |touched: &Touched| {
        let old = match &touched.extent {
            Some(extent) if !touched.whole => Some(fetched.get(extent).ok_or_else(not_read)?),
            _ => None,
        };
        let (indexer, part) = share(update, touched.number, elements)?;
        updated(
            &target,
            old,
            &*indexer,
            &ArrayBytes::new_flen(part),
            options,
        )
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
    target: &Target,
    old: Option<&[u8]>,
    indexer: &dyn Indexer,
    elements: &ArrayBytes<'_>,
    options: &CodecOptions,
) -> Result<Option<Inner>, CodecError> {
    let codec = &*target.codec;
    let grid = target.grid()?;
    let old = match old {
        None => None,
        Some(bytes) => {
            let extents = decode_index_of(codec, &grid, target.index_len, bytes, options)?;
            Some((bytes, extents))
        }
    };
    let extents = old.as_ref().map(|(_, extents)| extents.as_slice());
    let update = Update::new(target, extents, indexer, elements)?;
    update.reads()?;
    let fetched = old
        .as_ref()
        .map_or_else(Fetched::default, |(bytes, _)| Fetched::all(bytes));
    let changes = update.encode(&fetched, options)?;
    splice(target, &grid, old, &changes, options)
}

/// The shard `old` with `changes`: where they are, if they fit; else all of it anew, densely. It is
/// in memory, so nothing can be torn.
fn splice(
    target: &Target,
    grid: &SubchunkGrid,
    old: Option<(&[u8], Vec<Extent>)>,
    changes: &Changes,
    options: &CodecOptions,
) -> Result<Option<Inner>, CodecError> {
    let codec = &*target.codec;
    let index_len = target.index_len;
    let (old, old_extents) = old.unwrap_or_else(|| (&[], vec![None; grid.num_subchunks()]));
    let space = Space::of(&old_extents);
    let index_at = match codec.index_location {
        ShardingIndexLocation::Start => 0,
        ShardingIndexLocation::End => old.len().saturating_sub(index_len),
    };
    let index = index_at..index_at + index_len;
    let mut extents = old_extents.clone();
    let mut fits = !space.overlaps() && space.is_free(&index, usize::MAX);
    let used = changes.used_after(space.used() + index_len, &old_extents);
    for (number, new) in &changes.subchunks {
        let old = &old_extents[*number];
        extents[*number] = match (old, new) {
            (_, None) => None,
            (Some(old), Some(new)) if new.len() <= old.len() => {
                Some(old.start..old.start + new.len())
            }
            (_, Some(new)) => {
                fits = false;
                Some(new.clone())
            }
        };
    }
    if extents.iter().all(Option::is_none) {
        return Ok(None);
    }
    #[allow(
        clippy::cast_precision_loss,
        reason = "a fraction that need not be exact"
    )]
    let dead_fraction = old.len().saturating_sub(used) as f64 / old.len() as f64;
    let shard = if fits && dead_fraction <= codec.options.max_dead_fraction() {
        let mut shard = old.to_vec();
        for (number, new) in &changes.subchunks {
            if let (Some(extent), Some(new)) = (&extents[*number], new) {
                shard[extent.clone()].copy_from_slice(changes.encoded(new));
            }
        }
        shard[index].copy_from_slice(&encode_index(codec, grid, index_len, &extents, options)?);
        shard
    } else {
        let subchunks = changes.over(old_extents.len(), |number| {
            Ok(old_extents[number]
                .clone()
                .and_then(|extent| old.get(extent)))
        })?;
        let most = old.len() + changes.bytes.len() + index_len;
        // They lie elsewhere now.
        extents.clear();
        dense(codec, grid, index_len, &subchunks, most, options)?
    };
    // An inner index that is cut off in the middle would be the end of all that it leads to.
    let fragile = extents != old_extents || !changes.fragile.is_empty();
    Ok(Some(Inner { shard, fragile }))
}

//! Which shards have elements of the wanted boxes.

use std::collections::BTreeMap;

use zarrs::array::{Array, ArraySubset};

use super::ReaderError;

/// A box of the array, and where its first element goes.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) subset: ArraySubset,
    /// In bytes, from the start of the output.
    pub(super) offset: usize,
}

/// A shard that has some of the wanted elements.
#[derive(Debug)]
pub(super) struct WantedShard {
    /// Its position in the grid of shards.
    pub(super) indices: Vec<u64>,
    pub(super) parts: Vec<WantedPart>,
}

/// A box of a shard, and where its first element goes.
#[derive(Debug)]
pub(super) struct WantedPart {
    /// In elements of the shard.
    pub(super) start: Vec<usize>,
    pub(super) shape: Vec<usize>,
    /// In bytes, from the start of the output.
    pub(super) offset: usize,
}

/// Checks that `subset` is inside `array`.
pub(super) fn check<TStorage: ?Sized>(
    array: &Array<TStorage>,
    subset: &ArraySubset,
) -> Result<(), ReaderError> {
    if subset.inbounds_shape(array.shape()) {
        return Ok(());
    }
    Err(ReaderError::OutOfBounds {
        subset: subset.clone(),
        shape: array.shape().to_vec(),
    })
}

/// The shards that have elements of `boxes`, which are inside `array`, in C order. In the output, the axes have `strides`, in
/// bytes.
pub(super) fn shards<TStorage: ?Sized>(
    array: &Array<TStorage>,
    boxes: &[Wanted],
    strides: &[usize],
) -> Result<Vec<WantedShard>, ReaderError> {
    let mut shards: BTreeMap<Vec<u64>, Vec<WantedPart>> = BTreeMap::new();
    for wanted in boxes {
        if wanted.subset.is_empty() {
            continue;
        }
        let unsupported = || ReaderError::Unsupported {
            reason: format!("its chunk grid has no chunks for the box {}", wanted.subset),
        };
        let met = array.chunks_in_array_subset(&wanted.subset);
        let met = met.ok().flatten().ok_or_else(unsupported)?;
        for indices in &met.indices() {
            let shard = array.chunk_subset(&indices)?;
            let overlap = shard.overlap(&wanted.subset).map_err(|_| unsupported())?;
            let to_usize = |from: u64| usize::try_from(from).map_err(|_| unsupported());
            let mut part = WantedPart {
                start: Vec::with_capacity(strides.len()),
                shape: Vec::with_capacity(strides.len()),
                offset: wanted.offset,
            };
            for (axis, stride) in strides.iter().enumerate() {
                let (start, extent) = (overlap.start()[axis], overlap.shape()[axis]);
                part.start.push(to_usize(start - shard.start()[axis])?);
                part.shape.push(to_usize(extent)?);
                part.offset += to_usize(start - wanted.subset.start()[axis])? * stride;
            }
            shards.entry(indices.to_vec()).or_default().push(part);
        }
    }
    Ok(shards
        .into_iter()
        .map(|(indices, parts)| WantedShard { indices, parts })
        .collect())
}

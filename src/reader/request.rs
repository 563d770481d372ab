//! Finds the shards that have elements of the wanted boxes.

use std::collections::BTreeMap;

use zarrs::array::{Array, ArraySubset};

use super::ReaderError;

/// A wanted box of the array, and the place of its first element.
#[derive(Clone, Debug)]
pub(crate) struct WantedBox {
    pub(crate) subset: ArraySubset,
    /// The place of the first element, in bytes from the start of the output.
    pub(crate) offset: usize,
}

impl WantedBox {
    /// Returns the boxes `subsets`, whose first elements are `step` bytes apart in the output.
    pub(crate) fn in_steps(subsets: Vec<ArraySubset>, step: usize) -> Vec<Self> {
        let boxes = subsets.into_iter().enumerate();
        let boxes = boxes.map(|(number, subset)| Self {
            subset,
            offset: number.saturating_mul(step),
        });
        boxes.collect()
    }
}

/// A shard that has some of the wanted elements.
#[derive(Debug)]
pub(crate) struct WantedShard {
    /// The coordinates of the shard in the grid of shards.
    pub(crate) indices: Vec<u64>,
    pub(crate) parts: Vec<WantedPart>,
}

impl WantedShard {
    /// Returns the number of wanted elements. It is a `usize`, because the output has room for them.
    pub(crate) fn elements(&self) -> usize {
        let parts = self.parts.iter();
        parts.map(|part| part.shape.iter().product::<usize>()).sum()
    }
}

/// The wanted box of a shard, and the place of its first element.
#[derive(Debug)]
pub(crate) struct WantedPart {
    /// The start of the box, in elements of the shard.
    pub(crate) start: Vec<usize>,
    pub(crate) shape: Vec<usize>,
    /// The place of the first element, in bytes from the start of the output.
    pub(crate) offset: usize,
}

/// Checks that the box of `extents` at `start` is inside `array`. `number` is the number of the box, in a
/// call for several boxes.
pub(crate) fn check_inside<TStorage: ?Sized>(
    array: &Array<TStorage>,
    number: Option<usize>,
    start: &[u64],
    extents: &[u64],
) -> Result<(), ReaderError> {
    let shape = array.shape();
    // zarrs' own check adds without testing for overflows.
    let ends = std::iter::zip(start, extents).map(|(start, extent)| start.checked_add(*extent));
    let is_inside = start.len() == shape.len()
        && extents.len() == shape.len()
        && std::iter::zip(ends, shape).all(|(end, most)| end.is_some_and(|end| end <= *most));
    if is_inside {
        return Ok(());
    }
    Err(ReaderError::OutOfBounds {
        number,
        start: start.to_vec(),
        extents: extents.to_vec(),
        shape: shape.to_vec(),
    })
}

/// Returns the shards that have elements of `boxes`, in C order. The boxes are inside `array`. `strides` are
/// the strides of the output's axes, in bytes.
pub(crate) fn shards<TStorage: ?Sized>(
    array: &Array<TStorage>,
    boxes: &[WantedBox],
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
            // `chunk_subset` would fail, because the end of the last shard may exceed the largest `u64`.
            let origin = array.chunk_origin(&indices)?;
            let extents = array.chunk_shape(&indices)?;
            let to_usize = |from: u64| usize::try_from(from).map_err(|_| unsupported());
            let mut part = WantedPart {
                start: Vec::with_capacity(strides.len()),
                shape: Vec::with_capacity(strides.len()),
                offset: wanted.offset,
            };
            for (axis, stride) in strides.iter().enumerate() {
                let of_box = wanted.subset.start()[axis];
                let of_shard = origin[axis];
                let start = of_shard.max(of_box);
                let end = of_shard.saturating_add(extents[axis].get());
                let end = end.min(of_box + wanted.subset.shape()[axis]);
                part.start.push(to_usize(start - of_shard)?);
                part.shape.push(to_usize(end.saturating_sub(start))?);
                part.offset += to_usize(start - of_box)? * stride;
            }
            shards.entry(indices.to_vec()).or_default().push(part);
        }
    }
    Ok(shards
        .into_iter()
        .map(|(indices, parts)| WantedShard { indices, parts })
        .collect())
}

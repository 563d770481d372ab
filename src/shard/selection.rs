//! The elements of a shard that an indexer names, grouped by subchunk.

use std::collections::BTreeMap;

use zarrs::array::{ArrayIndices, ArraySubset, Indexer, IndexerError};
use zarrs_codec::CodecError;

use zarrs_cuda_engine::layout::{ByteRows, SubchunkGrid, SubchunkPart, strides};

/// The selected elements of a shard.
pub(crate) enum Selection {
    /// A box of the shard, in C order.
    Window {
        start: Vec<usize>,
        shape: Vec<usize>,
    },
    /// Single elements in any order, grouped by the number of their subchunk.
    Points(BTreeMap<usize, Vec<Point>>),
}

/// One selected element.
pub(crate) struct Point {
    /// The coordinates of the element in the subchunk.
    pub(crate) within: Vec<u64>,
    /// The offset of the element in the decoded subchunk, in bytes.
    pub(crate) offset: usize,
    /// The position of the element among all selected elements.
    pub(crate) position: usize,
}

impl Selection {
    /// Returns the elements that `indexer` names in a shard of `grid`.
    ///
    /// # Errors
    /// A [`CodecError`] if `indexer` has a wrong number of dimensions, or leaves the shard.
    pub(crate) fn new(grid: &SubchunkGrid, indexer: &dyn Indexer) -> Result<Self, CodecError> {
        let dimensions = grid.shard().len();
        if indexer.dimensionality() != dimensions {
            let got = indexer.dimensionality();
            return Err(IndexerError::new_incompatible_dimensionality(got, dimensions).into());
        }
        match indexer.as_array_subset() {
            Some(subset) => window(grid, &subset.start(), &subset.shape()),
            None => points(grid, indexer),
        }
    }

    /// Returns an indexer for the selected elements of subchunk `number`, by their coordinates in the
    /// subchunk.
    ///
    /// # Errors
    /// A [`CodecError`] if zarrs refuses the box of the elements.
    pub(crate) fn within(
        &self,
        grid: &SubchunkGrid,
        number: usize,
    ) -> Result<Box<dyn Indexer>, CodecError> {
        match self {
            Self::Window { start, shape } => {
                let part = SubchunkPart::new(grid, number, start, shape);
                let to_u64 = |v: &[usize]| v.iter().map(|&n| n as u64).collect::<Vec<_>>();
                let (start, shape) = (to_u64(part.start_in_subchunk()), to_u64(part.shape()));
                let subset = ArraySubset::new_with_start_shape(start, shape)?;
                Ok(Box::new(subset))
            }
            Self::Points(points) => {
                let points = points.get(&number).map(Vec::as_slice).unwrap_or_default();
                let within: Vec<ArrayIndices> =
                    points.iter().map(|point| point.within.clone()).collect();
                Ok(Box::new(within))
            }
        }
    }

    /// Returns the bytes of the selected elements of subchunk `number`, in the order of the elements. The subchunk
    /// is stored in C order.
    pub(crate) fn rows(&self, grid: &SubchunkGrid, number: usize) -> Vec<ByteRows> {
        let size = grid.element_size();
        match self {
            Self::Window { start, shape } => {
                let part = SubchunkPart::new(grid, number, start, shape);
                vec![part.byte_rows(&strides(grid.subchunk(), size))]
            }
            Self::Points(points) => {
                let points = points.get(&number).map(Vec::as_slice).unwrap_or_default();
                let rows = points
                    .iter()
                    .map(|point| ByteRows::new(point.offset, &[], &[], size));
                rows.collect()
            }
        }
    }

    /// Returns the numbers of the subchunks that have selected elements, in C order.
    pub(crate) fn touched(&self, grid: &SubchunkGrid) -> Vec<usize> {
        match self {
            Self::Window { start, shape } => grid.numbers_in(start, shape),
            Self::Points(points) => points.keys().copied().collect(),
        }
    }
}

/// Selects the box of the shard from `start`, of shape `shape`.
fn window(grid: &SubchunkGrid, start: &[u64], shape: &[u64]) -> Result<Selection, CodecError> {
    let mut window = (Vec::new(), Vec::new());
    for ((&start, &extent), &shard) in start.iter().zip(shape).zip(grid.shard()) {
        let end = start.checked_add(extent).filter(|&end| end <= shard as u64);
        if end.is_none() && !shape.contains(&0) {
            return Err(out_of_bounds(grid, &[start.saturating_add(extent)]));
        }
        // Both numbers are at most the shard's extent, or the box is empty.
        window
            .0
            .push(usize::try_from(start).unwrap_or(0).min(shard));
        window.1.push(usize::try_from(extent).unwrap_or(0));
    }
    Ok(Selection::Window {
        start: window.0,
        shape: window.1,
    })
}

/// Selects the single elements that `indexer` names, grouped by subchunk.
fn points(grid: &SubchunkGrid, indexer: &dyn Indexer) -> Result<Selection, CodecError> {
    let mut points: BTreeMap<usize, Vec<Point>> = BTreeMap::new();
    for (position, indices) in indexer.iter_indices().enumerate() {
        let inside = indices.len() == grid.shard().len()
            && std::iter::zip(&indices, grid.shard()).all(|(&i, &extent)| i < extent as u64);
        if !inside {
            return Err(out_of_bounds(grid, &indices));
        }
        let mut within = Vec::with_capacity(indices.len());
        let mut coordinates = Vec::with_capacity(indices.len());
        let mut element = 0;
        for (&index, &extent) in indices.iter().zip(grid.subchunk()) {
            // The conversion succeeds, because the index is less than the shard's extent.
            let index = usize::try_from(index).unwrap_or(0);
            coordinates.push(index / extent);
            within.push((index % extent) as u64);
            element = element * extent + index % extent;
        }
        points
            .entry(grid.number(coordinates))
            .or_default()
            .push(Point {
                within,
                offset: element * grid.element_size(),
                position,
            });
    }
    Ok(Selection::Points(points))
}

fn out_of_bounds(grid: &SubchunkGrid, indices: &[u64]) -> CodecError {
    let shape = grid.shard().iter().map(|&d| d as u64).collect();
    IndexerError::new_oob(indices.to_vec(), shape).into()
}

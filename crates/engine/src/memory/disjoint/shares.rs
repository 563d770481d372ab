//! The shares of subchunks in a window of a shard.

use super::copy::{Row, Strided};
use super::{Claims, check_order};
use crate::contract::EngineError;
use crate::layout::{
    ByteRows, Slab, SubchunkGrid, SubchunkPart, boxes, c_order, strides, strides_in,
};

/// A window of a shard, and the share of it that each subchunk has. Each share can be claimed once. The
/// shares of different subchunks do not overlap, because lifting maps an element to exactly one subchunk.
#[derive(Debug)]
pub struct Shares<'a> {
    grid: &'a SubchunkGrid,
    /// The stride in bytes of each axis of a decoded subchunk.
    stored: Vec<usize>,
    /// The coordinates in the shard of the window's first element.
    start: Vec<usize>,
    shape: Vec<usize>,
    /// The subchunks that meet the window: the coordinates of the first one, and their number along each
    /// axis.
    met: (Vec<usize>, Vec<usize>),
    claims: Claims,
}

impl<'a> Shares<'a> {
    /// Returns the window of the shard of `grid` from `start`, of shape `shape`, both in elements. Decoded
    /// subchunks have their axes in `order`.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the window leaves the shard, or `order` is no permutation.
    pub fn new(
        grid: &'a SubchunkGrid,
        order: &[usize],
        start: Vec<usize>,
        shape: Vec<usize>,
    ) -> Result<Self, EngineError> {
        let inside = start.len() == grid.shard().len()
            && shape.len() == start.len()
            && std::iter::zip(&start, &shape)
                .zip(grid.shard())
                .all(|((start, extent), shard)| {
                    start.checked_add(*extent).is_some_and(|end| end <= *shard)
                });
        if !inside {
            return Err(EngineError::Internal("a window leaves the shard"));
        }
        check_order(order, grid)?;
        let (mut first, mut counts) = (Vec::new(), Vec::new());
        for ((start, extent), subchunk) in std::iter::zip(&start, &shape).zip(grid.subchunk()) {
            first.push(start / subchunk);
            counts.push((start + extent).div_ceil(*subchunk) - start / subchunk);
        }
        Ok(Self {
            grid,
            stored: strides_in(order, grid.subchunk(), grid.element_size()),
            start,
            shape,
            claims: Claims::new(counts.iter().product()),
            met: (first, counts),
        })
    }

    /// Returns the position of subchunk `number` among those that meet the window; `None` if it does not meet
    /// it.
    fn position(&self, number: usize) -> Option<usize> {
        if number >= self.grid.num_subchunks() {
            return None;
        }
        let coordinates = c_order::coordinates(number, self.grid.counts());
        let mut position = 0;
        for ((at, first), count) in coordinates.iter().zip(&self.met.0).zip(&self.met.1) {
            let within = at.checked_sub(*first).filter(|within| within < count)?;
            position = position * count + within;
        }
        Some(position)
    }

    /// Returns the grid of subchunks in the shard.
    pub fn grid(&self) -> &'a SubchunkGrid {
        self.grid
    }

    /// Returns the extents of the window, in elements.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the size of the window, in bytes.
    pub(crate) fn len(&self) -> usize {
        // This product cannot overflow: the window lies in the shard, whose size is addressable.
        self.shape.iter().product::<usize>() * self.grid.element_size()
    }

    /// Returns the share of subchunk `number`.
    pub(super) fn part(&self, number: usize) -> SubchunkPart {
        SubchunkPart::new(self.grid, number, &self.start, &self.shape)
    }

    /// Returns the bytes of the share of subchunk `number` in the subchunk, with its axes as they are stored.
    pub(super) fn rows(&self, number: usize) -> ByteRows {
        self.part(number).byte_rows(&self.stored)
    }

    /// Returns the stride in bytes of each axis of a decoded subchunk.
    pub(super) fn stored(&self) -> &[usize] {
        &self.stored
    }

    /// Returns the number of neighbours, at least 1 and at most `count`, from subchunk `first` on, whose rows
    /// add up to about `bytes`.
    pub fn row_len(&self, first: usize, count: usize, bytes: usize) -> usize {
        let worthwhile = (bytes / self.part(first).row_len().max(1)).clamp(1, Row::MOST);
        count
            .min(self.grid.neighbours(first))
            .min(worthwhile)
            .max(1)
    }

    /// Claims the shares of the `count` neighbours from subchunk `first` on for this call alone. Returns the
    /// box of the window that the shares form.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if a share was claimed before, a subchunk does not meet the window, or the
    /// subchunks are not neighbours.
    pub fn claim(&self, first: usize, count: usize) -> Result<Slab, EngineError> {
        if count == 0 || count > self.grid.neighbours(first) {
            return Err(EngineError::Internal("subchunks are no neighbours"));
        }
        for number in first..first + count {
            let outside = EngineError::Internal("a subchunk is not in the window");
            self.claims.claim(self.position(number).ok_or(outside)?)?;
        }
        let part = self.part(first);
        let (start, mut shape) = (part.start_in_window().to_vec(), part.shape().to_vec());
        if count > 1
            && let (Some(extent), Some(start)) = (shape.last_mut(), start.last())
        {
            let last = self.part(first + count - 1);
            let end = last.start_in_window().last().zip(last.shape().last());
            *extent = end.map_or(0, |(start, extent)| start + extent) - start;
        }
        Ok(Slab { start, shape })
    }

    /// Divides the box `row` of the window into boxes of about `bytes` bytes, in C order.
    pub fn slabs(&self, row: &Slab, bytes: usize) -> impl Iterator<Item = Slab> {
        let unit = vec![1; row.shape.len()];
        let most = (bytes / self.grid.element_size()).max(1);
        boxes(&row.shape, &unit, most)
            .into_iter()
            .filter(|slab| slab.len() > 0)
            .map(|mut slab| {
                std::iter::zip(&mut slab.start, &row.start).for_each(|(slab, row)| *slab += row);
                slab
            })
    }

    /// Returns whether the stored elements of subchunk `number` are exactly its share, in C order.
    pub fn is_dense(&self, number: usize) -> bool {
        self.part(number).is_whole()
            && self.stored == strides(self.grid.subchunk(), self.grid.element_size())
    }

    /// Copies elements of the neighbours from subchunk `first` on, which are `sources`, to the C-order array
    /// `to`. `slab` is the box of the window whose elements are copied, and has the shape of `to`.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if a source or `to` has a wrong length, or an element is missing.
    pub fn gather(
        &self,
        first: usize,
        sources: &[&[u8]],
        slab: &Slab,
        to: &mut [u8],
    ) -> Result<(), EngineError> {
        let strides = strides(&slab.shape, self.grid.element_size());
        // SAFETY: `to` is borrowed for this call alone.
        let memory = unsafe { Strided::new(to.as_mut_ptr(), to.len(), &strides) };
        let mut copied = 0;
        for (number, source) in (first..).zip(sources) {
            // SAFETY: `to` is borrowed for this call alone.
            copied += unsafe { self.write(number, source, slab, memory)? };
        }
        if copied != to.len() {
            return Err(EngineError::Internal("a part of a shard is missing"));
        }
        Ok(())
    }

    /// Writes the elements of subchunk `number` that lie in `slab`, a box of the window, to `memory`, whose
    /// first element is that of the slab. `source` has the elements of the subchunk. Returns the number of
    /// bytes that were written.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if `source` has a wrong length, or the slab does not fit.
    ///
    /// # Safety
    /// Nothing else uses the places of the elements in `memory`, and `source` does not overlap them.
    pub(super) unsafe fn write(
        &self,
        number: usize,
        source: &[u8],
        slab: &Slab,
        memory: Strided<'_>,
    ) -> Result<usize, EngineError> {
        if source.len() != self.grid.subchunk_bytes() {
            return Err(EngineError::Internal(
                "a decoded subchunk has a wrong length",
            ));
        }
        let start: Vec<usize> = std::iter::zip(&self.start, &slab.start)
            .map(|(window, slab)| window + slab)
            .collect();
        let part = SubchunkPart::new(self.grid, number, &start, &slab.shape);
        let from = source.get(part.offset_in_subchunk(&self.stored)..);
        // SAFETY: the caller keeps the contract of this function.
        unsafe { memory.write(&part, from.unwrap_or(&[]), &self.stored) }
    }
}

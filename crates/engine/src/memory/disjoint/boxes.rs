//! A C-order array that many threads write, one subchunk at a time.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::copy::{Row, unscatter_pieces};
use super::{Claims, check_order};
use crate::contract::{EngineError, NeighbourSink};
use crate::layout::{StridedBox, SubchunkGrid};
use crate::memory::allocate;

/// A C-order array to which each subchunk is written once.
#[derive(Debug)]
pub(crate) struct Boxes<'a> {
    vec: Vec<u8>,
    start: *mut u8,
    grid: &'a SubchunkGrid,
    boxed: StridedBox,
    claims: Claims,
    written: AtomicUsize,
}

// SAFETY: `start` points into `vec`'s allocation, and is only used to derive boxes that were
// claimed, which do not overlap. Nothing touches `vec` itself before `finish` takes `self`.
unsafe impl Sync for Boxes<'_> {}

impl<'a> Boxes<'a> {
    /// Returns an array of `grid` in the memory of `vec`, which is empty and has enough capacity. Subchunks
    /// will have their axes in `order`.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the capacity is too small, or `order` is no permutation.
    pub(crate) fn new(
        mut vec: Vec<u8>,
        grid: &'a SubchunkGrid,
        order: &[usize],
    ) -> Result<Self, EngineError> {
        vec.clear();
        if vec.capacity() < grid.shard_bytes() {
            return Err(EngineError::Internal("the output does not fit the shard"));
        }
        // Because `order` is a permutation, the boxes of different subchunks do not overlap.
        check_order(order, grid)?;
        let boxed = StridedBox::new(grid, order);
        Ok(Self {
            start: vec.as_mut_ptr(),
            vec,
            grid,
            boxed,
            claims: Claims::new(grid.num_subchunks()),
            written: AtomicUsize::new(0),
        })
    }

    /// Gives the box of subchunk `number` to this call alone, and returns a pointer to its first byte.
    fn claim(&self, number: usize) -> Result<*mut u8, EngineError> {
        self.claims.claim(number)?;
        let offset = self.boxed.offset(number);
        if offset + self.boxed.span() > self.grid.shard_bytes() {
            return Err(EngineError::Internal("a subchunk leaves the shard"));
        }
        // SAFETY: `offset` is within the capacity, by the checks here and in `new`.
        Ok(unsafe { self.start.add(offset) })
    }

    /// Returns the complete array.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if a subchunk was not written.
    pub(crate) fn finish(self) -> Result<Vec<u8>, EngineError> {
        if self.written.into_inner() != self.grid.num_subchunks() {
            return Err(EngineError::Internal("a subchunk was not decoded"));
        }
        // SAFETY: every subchunk was written once, and all subchunks together are the array.
        Ok(unsafe { allocate::assume_filled(self.vec, self.grid.shard_bytes()) })
    }

    /// Writes `element` into every element of subchunk `number`.
    fn fill(&self, number: usize, element: &[u8]) -> Result<(), EngineError> {
        let run = self.boxed.run();
        if element.len() != self.grid.element_size() || element.is_empty() {
            return Err(EngineError::Internal("the fill value has a wrong length"));
        }
        let start = self.claim(number)?;
        let uniform = element.iter().all(|b| *b == element[0]);
        self.boxed.all_pieces(|offset| {
            // SAFETY: each piece is `run` bytes inside the claimed box, and `run` is a multiple of
            // the length of an element.
            unsafe {
                let piece = start.add(offset);
                if uniform {
                    piece.write_bytes(element[0], run);
                } else {
                    for at in (0..run).step_by(element.len()) {
                        piece
                            .add(at)
                            .copy_from_nonoverlapping(element.as_ptr(), element.len());
                    }
                }
            }
            true
        });
        self.written.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

impl NeighbourSink for Boxes<'_> {
    fn row_len(&self, first: usize, count: usize) -> usize {
        Row::len(self.grid, &self.boxed, first, count)
    }

    fn write_neighbours(
        &self,
        first: usize,
        sources: &[&[u8]],
        _buffer: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        if sources
            .iter()
            .any(|source| source.len() != self.boxed.len())
        {
            return Err(EngineError::Internal(
                "a decoded subchunk has a wrong length",
            ));
        }
        let row = Row::new(self.grid, &self.boxed, first, sources.len())
            .ok_or(EngineError::Internal("subchunks are no neighbours"))?;
        for i in 1..sources.len() {
            self.claim(first + i)?;
        }
        let to = self.claim(first)?;
        let mut buffers = [std::ptr::null(); Row::MOST];
        for (buffer, source) in buffers.iter_mut().zip(sources) {
            *buffer = source.as_ptr();
        }
        // SAFETY: every source has the length of the box, and `claim` gave the boxes to this call
        // alone; the box of neighbour `i` starts `i` steps after the first.
        unsafe { unscatter_pieces(&row, &buffers[..sources.len()], to) };
        self.written.fetch_add(sources.len(), Ordering::Release);
        Ok(())
    }

    fn fill_neighbours(
        &self,
        first: usize,
        count: usize,
        element: &[u8],
    ) -> Result<(), EngineError> {
        (first..first + count).try_for_each(|number| self.fill(number, element))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_written_once_each() {
        let buffer = &mut Vec::new();
        let grid = SubchunkGrid::new(&[2, 4], &[2, 2], 1).expect("divides");
        let boxes = Boxes::new(Vec::with_capacity(8), &grid, &[0, 1]).expect("fits");
        boxes
            .write_neighbours(0, &[&[1, 2, 3, 4]], buffer)
            .expect("free");
        assert!(
            boxes.write_neighbours(0, &[&[1; 4]], buffer).is_err(),
            "written before"
        );
        assert!(
            boxes.write_neighbours(1, &[&[1; 3]], buffer).is_err(),
            "too short"
        );
        assert!(
            boxes.write_neighbours(2, &[&[1; 4]], buffer).is_err(),
            "no such subchunk"
        );
        boxes.fill(1, &[9]).expect("free");
        assert_eq!(boxes.finish().expect("complete"), [1, 2, 9, 9, 3, 4, 9, 9]);

        let boxes = Boxes::new(Vec::with_capacity(8), &grid, &[0, 1]).expect("fits");
        boxes.fill(1, &[9]).expect("free");
        assert!(boxes.finish().is_err(), "subchunk 0 is missing");
        assert!(Boxes::new(Vec::with_capacity(7), &grid, &[0, 1]).is_err());
        assert!(Boxes::new(Vec::with_capacity(8), &grid, &[0, 0]).is_err());
    }
}

//! Part of a shard, written subchunk by subchunk from many threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Claims;
use super::copy::{TwoStrides, copy_digits};
use crate::engine::EngineError;
use crate::engine::memory;
use crate::layout::{Part, SubchunkGrid};

/// A C-order array that is the part of a shard from `start`, of shape `shape`, both in elements.
///
/// Each subchunk that meets the window can write its share of it once. The shares of different
/// subchunks do not overlap, because lifting an element gives exactly one subchunk.
#[derive(Debug)]
pub(crate) struct Window<'a> {
    vec: Vec<u8>,
    data: *mut u8,
    grid: &'a SubchunkGrid,
    start: Vec<usize>,
    shape: Vec<usize>,
    claims: Claims,
    written: AtomicUsize,
    len: usize,
}

// SAFETY: `data` points into `vec`'s allocation, and is only used to derive shares that were
// claimed, which do not overlap. Nothing touches `vec` itself before `finish` takes `self`.
unsafe impl Sync for Window<'_> {}
// SAFETY: as above; the pointer owns nothing and is tied to no thread.
unsafe impl Send for Window<'_> {}

impl<'a> Window<'a> {
    /// New memory for the window, which lies inside the shard.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`]; [`EngineError::Internal`] if the window leaves the shard.
    pub(crate) fn new(
        grid: &'a SubchunkGrid,
        start: Vec<usize>,
        shape: Vec<usize>,
        huge_pages: bool,
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
        // Cannot overflow: the window lies in the shard, whose size is addressable.
        let len = shape.iter().product::<usize>() * grid.element_size();
        let mut vec = memory::with_capacity(len, "a part of a decoded shard", huge_pages)?;
        Ok(Self {
            data: vec.as_mut_ptr(),
            vec,
            grid,
            start,
            shape,
            claims: Claims::new(grid.num_subchunks()),
            written: AtomicUsize::new(0),
            len,
        })
    }

    /// The share of subchunk `number`.
    pub(crate) fn part(&self, number: usize) -> Part {
        Part::new(self.grid, number, &self.start, &self.shape)
    }

    /// Give the share of subchunk `number` to this call alone.
    fn claim(&self, number: usize) -> Result<Part, EngineError> {
        self.claims.claim(number)?;
        Ok(self.part(number))
    }

    /// Write the share of subchunk `number`, whose decoded elements are `elements`.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if it was written before, or `elements` has a wrong length.
    pub(crate) fn write(&self, number: usize, elements: &[u8]) -> Result<(), EngineError> {
        if elements.len() != self.grid.subchunk_bytes() {
            return Err(EngineError::Internal(
                "a decoded subchunk has a wrong length",
            ));
        }
        let part = self.claim(number)?;
        let from = elements.get(part.offset_in_subchunk()..).unwrap_or(&[]);
        self.copy(&part, from, &part.subchunk_strides())
    }

    /// Write the share of subchunk `number`: just its elements, in C order.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if it was written before, or `elements` has a wrong length.
    pub(crate) fn write_part(&self, number: usize, elements: &[u8]) -> Result<(), EngineError> {
        let part = self.claim(number)?;
        if elements.len() != part.len() {
            return Err(EngineError::Internal("a decoded part has a wrong length"));
        }
        self.copy(&part, elements, &part.dense_strides())
    }

    /// Write `element` into the share of subchunk `number`.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if it was written before, or `element` has a wrong length.
    pub(crate) fn fill(&self, number: usize, element: &[u8]) -> Result<(), EngineError> {
        if element.len() != self.grid.element_size() {
            return Err(EngineError::Internal("the fill value has a wrong length"));
        }
        let part = self.claim(number)?;
        // All strides zero: every element comes from the same place.
        self.copy(&part, element, &vec![0; self.shape.len()])
    }

    fn copy(&self, part: &Part, from: &[u8], strides: &[usize]) -> Result<(), EngineError> {
        if part.len() > 0 {
            let digits = TwoStrides::new(
                part.shape(),
                strides,
                &part.window_strides(&self.shape),
                self.grid.element_size(),
            );
            let to = part.offset_in_window(&self.shape);
            if digits.span_from() > from.len() || to + digits.span_to() > self.len {
                return Err(EngineError::Internal("a subchunk leaves the window"));
            }
            // SAFETY: both spans were checked; the share is this call's alone, by `claim`.
            unsafe { copy_digits(&digits, from.as_ptr(), self.data.add(to)) };
        }
        self.written.fetch_add(part.len(), Ordering::Release);
        Ok(())
    }

    /// Returns the complete array.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if a share was not written.
    pub(crate) fn finish(self) -> Result<Vec<u8>, EngineError> {
        if self.written.into_inner() != self.len {
            return Err(EngineError::Internal("a subchunk was not decoded"));
        }
        // SAFETY: as many bytes were written as the window has, none of them twice.
        Ok(unsafe { memory::assume_filled(self.vec, self.len) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_its_shares() {
        let grid = SubchunkGrid::new(&[4, 6], &[2, 3], 2).expect("divides");
        // Element (i, j) is [i, j].
        let element = |i: usize, j: usize| [i as u8, j as u8];
        let subchunk = |number: usize| -> Vec<u8> {
            let (i0, j0) = (number / 2 * 2, number % 2 * 3);
            (i0..i0 + 2)
                .flat_map(|i| (j0..j0 + 3).flat_map(move |j| element(i, j)))
                .collect()
        };
        let window = Window::new(&grid, vec![1, 2], vec![3, 3], false).expect("inside");
        window.write(0, &subchunk(0)).expect("free");
        assert!(window.write(0, &subchunk(0)).is_err(), "written before");
        window.write(1, &subchunk(1)).expect("free");
        window.fill(2, &[9, 9]).expect("free");
        assert_eq!(window.part(3).len(), 2 * 2 * 2);
        window
            .write_part(3, &[2, 3, 2, 4, 3, 3, 3, 4])
            .expect("free");
        assert_eq!(
            window.finish().expect("complete"),
            [1, 2, 1, 3, 1, 4, 9, 9, 2, 3, 2, 4, 9, 9, 3, 3, 3, 4]
        );
    }

    #[test]
    fn windows_are_checked() {
        let grid = SubchunkGrid::new(&[4, 6], &[2, 3], 2).expect("divides");
        assert!(Window::new(&grid, vec![2, 0], vec![3, 6], false).is_err());
        assert!(Window::new(&grid, vec![2], vec![1], false).is_err());
        let window = Window::new(&grid, vec![0, 0], vec![4, 3], false).expect("inside");
        window.fill(0, &[0, 0]).expect("free");
        assert!(window.finish().is_err(), "subchunk 2 is missing");
        let empty = Window::new(&grid, vec![0, 0], vec![0, 3], false).expect("inside");
        assert!(empty.finish().expect("nothing is missing").is_empty());
    }
}

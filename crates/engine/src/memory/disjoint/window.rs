//! A window: a box of the decoded elements of a shard. Many threads write it at the same time, each the
//! elements of another subchunk.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::copy::Strided;
use super::shares::Shares;
use crate::contract::{EngineError, NeighbourSink};
use crate::layout::{ByteRows, SubchunkGrid, SubchunkPart, strides, strides_in};
use crate::memory::allocate;

/// A C-order array with the elements of a shard from `start` on, of shape `shape`. Each subchunk that meets
/// the window writes its share of the window once.
#[derive(Debug)]
pub struct Window<'a> {
    /// The memory of the window; empty if the memory belongs to the caller.
    vec: Vec<u8>,
    data: *mut u8,
    len: usize,
    strides: Vec<usize>,
    shares: Shares<'a>,
    /// The number of bytes that all threads have written so far.
    written: AtomicUsize,
}

// SAFETY: `data` points into the allocation of `vec`, or to memory that this window may use by the contract
// of `over`. The pointer is only used to derive shares that were claimed, which do not overlap. Nothing
// touches `vec` itself before `finish` takes `self`.
unsafe impl Sync for Window<'_> {}
// SAFETY: as for `Sync`; the pointer owns nothing and is tied to no thread.
unsafe impl Send for Window<'_> {}

impl<'a> Window<'a> {
    /// Returns a window in new memory. Decoded subchunks will have their axes in `order`.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`]; [`EngineError::Internal`] if the window leaves the shard.
    pub fn new(
        grid: &'a SubchunkGrid,
        order: &[usize],
        start: Vec<usize>,
        shape: Vec<usize>,
        huge_pages: bool,
    ) -> Result<Self, EngineError> {
        let shares = Shares::new(grid, order, start, shape)?;
        let len = shares.len();
        let mut vec = allocate::with_capacity(len, "a part of a decoded shard", huge_pages)?;
        Ok(Self {
            data: vec.as_mut_ptr(),
            vec,
            len,
            strides: strides(shares.shape(), grid.element_size()),
            shares,
            written: AtomicUsize::new(0),
        })
    }

    /// Returns the window in memory of the caller: `len` bytes from `data` on, in which the axes
    /// have `strides`, in bytes.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the window leaves the shard.
    ///
    /// # Safety
    /// The memory is valid while the window is used. Nothing else uses the elements of the window during this
    /// time, and no two elements share a byte.
    pub unsafe fn over(
        grid: &'a SubchunkGrid,
        order: &[usize],
        (start, shape): (Vec<usize>, Vec<usize>),
        (data, len): (*mut u8, usize),
        strides: Vec<usize>,
    ) -> Result<Self, EngineError> {
        let shares = Shares::new(grid, order, start, shape)?;
        if strides.len() != shares.shape().len() {
            return Err(EngineError::Internal("an output of another shape"));
        }
        Ok(Self {
            vec: Vec::new(),
            data,
            len,
            strides,
            shares,
            written: AtomicUsize::new(0),
        })
    }

    /// Returns whether every element was written.
    pub fn is_complete(&self) -> bool {
        self.written.load(Ordering::Acquire) == self.shares.len()
    }

    /// Writes the share of subchunk `number`. `elements` are only the elements of the share, in C order.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the share was written before, or `elements` has a wrong length.
    pub fn write_part(&self, number: usize, elements: &[u8]) -> Result<(), EngineError> {
        let part = self.shares.part(number);
        if elements.len() != part.len() {
            return Err(EngineError::Internal("a decoded part has a wrong length"));
        }
        let dense = strides(part.shape(), part.element_size());
        self.write_share(number, &part, elements, &dense)
    }

    /// Writes `part`, the share of subchunk `number`. `from` has its elements, the first one first, with the
    /// strides `from_strides` in bytes.
    fn write_share(
        &self,
        number: usize,
        part: &SubchunkPart,
        from: &[u8],
        from_strides: &[usize],
    ) -> Result<(), EngineError> {
        self.shares.claim(number, 1)?;
        // SAFETY: `claim` gave the share to this call alone.
        let written = unsafe { self.memory().write(part, from, from_strides)? };
        self.written.fetch_add(written, Ordering::Release);
        Ok(())
    }

    /// Returns the size of the share of subchunk `number`, in bytes.
    pub fn share_len(&self, number: usize) -> usize {
        self.shares.part(number).len()
    }

    /// Returns the bytes of the share of subchunk `number` in the subchunk, with its axes as they are stored.
    pub fn rows(&self, number: usize) -> ByteRows {
        self.shares.rows(number)
    }

    /// Writes the share of subchunk `number`. `bytes` are bytes of the subchunk from its byte `first` on.
    /// Only the bytes in its [`rows`](Self::rows) are read.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the share was written before, or an element is not in `bytes`.
    pub fn write_rows(&self, number: usize, bytes: &[u8], first: usize) -> Result<(), EngineError> {
        let (part, stored) = (self.shares.part(number), self.shares.stored());
        let start = part.offset_in_subchunk(stored);
        let from = start.checked_sub(first).and_then(|at| bytes.get(at..));
        let from = from.ok_or(EngineError::Internal("part of a subchunk is missing"))?;
        self.write_share(number, &part, from, stored)
    }

    /// Writes the share of subchunk `number`. `bytes` are its [`rows`](Self::rows), one after the other.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the share was written before, or `bytes` has a wrong length.
    pub fn write_dense_rows(&self, number: usize, bytes: &[u8]) -> Result<(), EngineError> {
        let part = self.shares.part(number);
        if bytes.len() != part.len() {
            return Err(EngineError::Internal(
                "rows of a subchunk have a wrong length",
            ));
        }
        let mut axes: Vec<usize> = (0..part.shape().len()).collect();
        axes.sort_by_key(|axis| std::cmp::Reverse(self.shares.stored()[*axis]));
        let dense = strides_in(&axes, part.shape(), part.element_size());
        self.write_share(number, &part, bytes, &dense)
    }

    /// Returns the complete array.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if a share was not written.
    pub fn finish(self) -> Result<Vec<u8>, EngineError> {
        if !self.is_complete() || self.vec.capacity() < self.len {
            return Err(EngineError::Internal("a subchunk was not decoded"));
        }
        // SAFETY: the number of written bytes is the size of the window, and no byte was written twice.
        Ok(unsafe { allocate::assume_filled(self.vec, self.len) })
    }

    fn memory(&self) -> Strided<'_> {
        // SAFETY: the memory belongs to the vector, or was given to `over`.
        unsafe { Strided::new(self.data, self.len, &self.strides) }
    }
}

impl NeighbourSink for Window<'_> {
    fn row_len(&self, first: usize, count: usize) -> usize {
        /// The number of bytes that the rows of neighbours add up to, about.
        const BYTES: usize = 1024;
        self.shares.row_len(first, count, BYTES)
    }

    fn write_neighbours(
        &self,
        first: usize,
        sources: &[&[u8]],
        _buffer: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        /// The number of bytes that neighbours write in turns, so that pages and cache lines that they share
        /// are still in the cache.
        const TURN: usize = 64 << 10;
        let row = self.shares.claim(first, sources.len())?;
        for slab in self.shares.slabs(&row, TURN) {
            let memory = self.memory().from(&slab.start)?;
            for (number, source) in (first..).zip(sources) {
                // SAFETY: `claim` gave the shares to this call alone.
                let written = unsafe { self.shares.write(number, source, &slab, memory)? };
                self.written.fetch_add(written, Ordering::Release);
            }
        }
        Ok(())
    }

    fn fill_neighbours(
        &self,
        first: usize,
        count: usize,
        element: &[u8],
    ) -> Result<(), EngineError> {
        for number in first..first + count {
            let part = self.shares.part(number);
            if element.len() != part.element_size() {
                return Err(EngineError::Internal("the fill value has a wrong length"));
            }
            let zeros = vec![0; part.shape().len()];
            self.write_share(number, &part, element, &zeros)?;
        }
        Ok(())
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
        let buffer = &mut Vec::new();
        let window = |order: &[usize]| {
            Window::new(&grid, order, vec![1, 2], vec![3, 3], false).expect("inside")
        };
        let expected = [1, 2, 1, 3, 1, 4, 9, 9, 2, 3, 2, 4, 9, 9, 3, 3, 3, 4];
        let rows = window(&[0, 1]);
        let (left, right) = (subchunk(0), subchunk(1));
        rows.write_neighbours(0, &[&left, &right], buffer)
            .expect("free");
        assert!(
            rows.write_neighbours(0, &[&left], buffer).is_err(),
            "written before"
        );
        assert!(
            rows.write_neighbours(2, &[&left[1..]], buffer).is_err(),
            "too short"
        );
        let rows = window(&[0, 1]);
        rows.write_neighbours(0, &[&left, &right], buffer)
            .expect("free");
        assert!(
            rows.write_neighbours(1, &[&left, &right], buffer).is_err(),
            "no row"
        );
        rows.fill_neighbours(2, 1, &[9, 9]).expect("free");
        rows.write_part(3, &[2, 3, 2, 4, 3, 3, 3, 4]).expect("free");
        assert_eq!(rows.finish().expect("complete"), expected);

        // The same subchunks, stored with the last axis slowest.
        let transposed = |subchunk: &[u8]| -> Vec<u8> {
            let element = |j: usize, i: usize| &subchunk[(i * 3 + j) * 2..][..2];
            (0..3)
                .flat_map(|j| (0..2).flat_map(move |i| element(j, i)))
                .copied()
                .collect()
        };
        let columns = window(&[1, 0]);
        let (left, right) = (transposed(&left), transposed(&right));
        columns
            .write_neighbours(0, &[&left, &right], buffer)
            .expect("free");
        columns.fill_neighbours(2, 1, &[9, 9]).expect("free");
        columns
            .write_part(3, &[2, 3, 2, 4, 3, 3, 3, 4])
            .expect("free");
        assert_eq!(columns.finish().expect("complete"), expected);
    }

    #[test]
    fn a_share_is_written_from_its_rows() {
        let grid = SubchunkGrid::new(&[4, 6], &[2, 6], 2).expect("divides");
        let stored: Vec<u8> = (0..24).collect();
        // Columns 1 and 2 of rows 1 and 2: with 12 bytes to a row, or 4 bytes to a column.
        for (order, rows, expected) in [
            (
                [0, 1],
                [vec![14..18], vec![2..6]],
                [14, 15, 16, 17, 2, 3, 4, 5],
            ),
            (
                [1, 0],
                [vec![6..8, 10..12], vec![4..6, 8..10]],
                [6, 7, 10, 11, 4, 5, 8, 9],
            ),
        ] {
            let window = Window::new(&grid, &order, vec![1, 1], vec![2, 2], false).expect("inside");
            for (number, rows) in rows.into_iter().enumerate() {
                assert_eq!(window.rows(number).iter().collect::<Vec<_>>(), rows);
                let (first, end) = (rows[0].start - 1, rows[rows.len() - 1].end);
                let bytes = &stored[first..end];
                window.write_rows(number, bytes, first).expect("free");
                assert!(window.write_rows(number, &stored, 0).is_err(), "twice");
            }
            assert_eq!(window.finish().expect("complete"), expected);

            let window = Window::new(&grid, &order, vec![1, 1], vec![2, 2], false).expect("inside");
            for number in 0..2 {
                let rows = window.rows(number);
                let dense: Vec<u8> = rows.iter().flatten().map(|at| stored[at]).collect();
                assert!(window.write_dense_rows(number, &dense[1..]).is_err());
                window.write_dense_rows(number, &dense).expect("free");
            }
            assert_eq!(window.finish().expect("complete"), expected);
        }
        let window = || Window::new(&grid, &[0, 1], vec![1, 1], vec![1, 2], false).expect("inside");
        assert!(window().write_rows(0, &stored, 15).is_err(), "too late");
        assert!(
            window().write_rows(0, &stored[..17], 0).is_err(),
            "too short"
        );
        let empty = Window::new(&grid, &[0, 1], vec![1, 1], vec![0, 2], false).expect("inside");
        assert_eq!(empty.rows(0).count(), 0);
        // One element without axes.
        let grid = SubchunkGrid::new(&[], &[], 2).expect("divides");
        let window = Window::new(&grid, &[], vec![], vec![], false).expect("inside");
        assert_eq!(window.rows(0).iter().collect::<Vec<_>>(), [0..2]);
    }

    #[test]
    fn windows_are_checked() {
        let grid = SubchunkGrid::new(&[4, 6], &[2, 3], 2).expect("divides");
        let new = |start: &[usize], shape: &[usize], order: &[usize]| {
            Window::new(&grid, order, start.to_vec(), shape.to_vec(), false)
        };
        assert!(new(&[2, 0], &[3, 6], &[0, 1]).is_err());
        assert!(new(&[2], &[1], &[0, 1]).is_err());
        assert!(new(&[0, 0], &[4, 3], &[0, 0]).is_err());
        let window = new(&[0, 0], &[4, 3], &[0, 1]).expect("inside");
        assert!(
            window.fill_neighbours(0, 1, &[0]).is_err(),
            "half an element"
        );
        let window = new(&[0, 0], &[4, 3], &[0, 1]).expect("inside");
        window.fill_neighbours(0, 1, &[0, 0]).expect("free");
        assert!(window.finish().is_err(), "subchunk 2 is missing");
        let empty = new(&[0, 0], &[0, 3], &[0, 1]).expect("inside");
        assert!(empty.finish().expect("nothing is missing").is_empty());
    }
}

//! A buffer whose bytes are given to writers from front to back.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::copy::{Row, scatter_pieces};
use crate::contract::EngineError;
use crate::memory::allocate;

/// A buffer that is divided into segments, from front to back, while it is written.
#[derive(Debug)]
pub(crate) struct Segments {
    vec: Vec<u8>,
    start: *mut u8,
    reserved: AtomicUsize,
    written: AtomicUsize,
}

// SAFETY: `start` points into the allocation of `vec`, and is only used to derive segments, which do not
// overlap. Nothing touches `vec` itself before `finish` takes `self`.
unsafe impl Sync for Segments {}

impl Segments {
    /// Returns a buffer that gives out the capacity of `vec`, whose contents are removed.
    pub(crate) fn new(mut vec: Vec<u8>) -> Self {
        vec.clear();
        Self {
            start: vec.as_mut_ptr(),
            vec,
            reserved: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
        }
    }

    /// Returns the next `len` bytes of the buffer as a segment.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the capacity has fewer bytes left.
    pub(crate) fn reserve(&self, len: usize) -> Result<Segment<'_>, EngineError> {
        let offset = self
            .reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
                reserved
                    .checked_add(len)
                    .filter(|&end| end <= self.vec.capacity())
            })
            .map_err(|_| EngineError::Internal("encoded subchunks exceed their bound"))?;
        Ok(Segment {
            // SAFETY: `offset` is within the capacity, by the check above.
            start: unsafe { self.start.add(offset) },
            offset,
            len,
            filled: 0,
            written: &self.written,
            buffer: PhantomData,
        })
    }

    /// Returns the buffer with all reserved bytes.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if a segment was not filled.
    pub(crate) fn finish(self) -> Result<Vec<u8>, EngineError> {
        let reserved = self.reserved.into_inner();
        if self.written.into_inner() != reserved {
            return Err(EngineError::Internal(
                "a segment of the output was not filled",
            ));
        }
        // SAFETY: segments cover `0..reserved` without overlap, and as many bytes were written.
        Ok(unsafe { allocate::assume_filled(self.vec, reserved) })
    }
}

/// A segment of [`Segments`], which its owner fills from front to back.
#[derive(Debug)]
pub(crate) struct Segment<'a> {
    start: *mut u8,
    offset: usize,
    len: usize,
    filled: usize,
    written: &'a AtomicUsize,
    buffer: PhantomData<&'a mut [MaybeUninit<u8>]>,
}

// SAFETY: the bytes of a segment can only be reached through it.
unsafe impl Send for Segment<'_> {}

impl Segment<'_> {
    /// Returns the position of the segment in the buffer.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if `bytes` do not fit.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), EngineError> {
        let to = self.advance(bytes.len())?;
        // SAFETY: `advance` checked the length; the segment is the only way to these bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Appends the boxes of `row` in `array`, each with a trailer of `trailer` zeros. Then calls `finish` on
    /// each box with its trailer, so that `finish` may change both.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if a box leaves the array, or the boxes do not fit the segment.
    pub(crate) fn append_row(
        &mut self,
        array: &[u8],
        row: Row<'_>,
        trailer: usize,
        mut finish: impl FnMut(&mut [u8]),
    ) -> Result<(), EngineError> {
        let from = row.start_in(array)?;
        let len = row.boxed.len();
        let to = self.advance((len + trailer) * row.count)?;
        let mut buffers = [to; Row::MOST];
        for (i, buffer) in buffers[..row.count].iter_mut().enumerate() {
            // SAFETY: `advance` checked that the row fits, trailers included.
            *buffer = unsafe { to.add(i * (len + trailer)) };
        }
        // SAFETY: `start_in` checked the source, `advance` the destinations, which lie in another
        // allocation and do not overlap.
        unsafe { scatter_pieces(&row, from, &buffers[..row.count]) };
        for buffer in &buffers[..row.count] {
            // SAFETY: the trailer is within the row, by `advance`. All of it is initialised before any other
            // code runs, because it already counts as filled.
            unsafe { buffer.add(len).write_bytes(0, trailer) };
        }
        for buffer in &buffers[..row.count] {
            // SAFETY: the box and its trailer were filled above, and are only reachable through
            // `self`.
            finish(unsafe { std::slice::from_raw_parts_mut(*buffer, len + trailer) });
        }
        Ok(())
    }

    /// Counts the next `len` bytes as filled, and returns a pointer to them. The caller has to fill them.
    fn advance(&mut self, len: usize) -> Result<*mut u8, EngineError> {
        if len > self.len - self.filled {
            return Err(EngineError::Internal(
                "a segment of the output is too short",
            ));
        }
        // SAFETY: `self.filled` is within the segment, by the check above.
        let to = unsafe { self.start.add(self.filled) };
        self.filled += len;
        Ok(to)
    }
}

impl Drop for Segment<'_> {
    fn drop(&mut self) {
        self.written.fetch_add(self.filled, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_dense_and_must_be_filled() {
        let segments = Segments::new(Vec::with_capacity(10));
        let mut a = segments.reserve(4).expect("fits");
        let mut b = segments.reserve(6).expect("fits");
        assert!(segments.reserve(1).is_err());
        assert_eq!((a.offset(), b.offset()), (0, 4));
        b.append(&[5; 6]).expect("fits");
        assert!(b.append(&[5]).is_err());
        a.append(&[1, 2, 3, 4]).expect("fits");
        drop((a, b));
        let vec = segments.finish().expect("filled");
        assert_eq!(vec, [1, 2, 3, 4, 5, 5, 5, 5, 5, 5]);

        let segments = Segments::new(Vec::with_capacity(10));
        segments
            .reserve(4)
            .expect("fits")
            .append(&[1])
            .expect("fits");
        assert!(segments.finish().is_err(), "three bytes are missing");
    }
}

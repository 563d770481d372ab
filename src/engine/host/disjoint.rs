//! Many threads that write into one buffer, each into bytes that no other writes.
//!
//! Two shapes of "no other", each with a safe interface that checks it:
//!
//! - [`Segments`]: the buffer is handed out from front to back, so segments cannot overlap;
//! - [`Boxes`]: each subchunk's box of a C-order array can be claimed once, and the boxes of
//!   different subchunks do not overlap, because lifting an element gives exactly one subchunk.
//!
//! The buffers start uninitialised. Both count what was written, and give up their vector only
//! when that is everything.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::claims::Claims;
use super::memory;
use crate::engine::EngineError;
use crate::layout::{Digit, StridedBox, SubchunkGrid};

/// A buffer that is handed out in segments, front to back.
#[derive(Debug)]
pub(super) struct Segments {
    vec: Vec<u8>,
    start: *mut u8,
    reserved: AtomicUsize,
    written: AtomicUsize,
}

// SAFETY: `start` points into `vec`'s allocation, and is only used to derive segments, which do
// not overlap. Nothing touches `vec` itself before `finish` takes `self`.
unsafe impl Sync for Segments {}
// SAFETY: as above; the pointer owns nothing and is tied to no thread.
unsafe impl Send for Segments {}

impl Segments {
    /// Hand out the capacity of `vec`, which is empty.
    pub(super) fn new(mut vec: Vec<u8>) -> Self {
        vec.clear();
        Self {
            start: vec.as_mut_ptr(),
            vec,
            reserved: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
        }
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the capacity does not have them.
    pub(super) fn reserve(&self, len: usize) -> Result<Segment<'_>, EngineError> {
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

    /// The buffer, as long as what was reserved.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if a segment was not filled.
    pub(super) fn finish(self) -> Result<Vec<u8>, EngineError> {
        let reserved = self.reserved.into_inner();
        if self.written.into_inner() != reserved {
            return Err(EngineError::Internal(
                "a segment of the output was not filled",
            ));
        }
        // SAFETY: segments cover `0..reserved` without overlap, and as many bytes were written.
        Ok(unsafe { memory::assume_filled(self.vec, reserved) })
    }
}

/// Some bytes of a [`Segments`], filled from front to back.
#[derive(Debug)]
pub(super) struct Segment<'a> {
    start: *mut u8,
    offset: usize,
    len: usize,
    filled: usize,
    written: &'a AtomicUsize,
    buffer: PhantomData<&'a mut [MaybeUninit<u8>]>,
}

// SAFETY: a segment is the only way to its bytes.
unsafe impl Send for Segment<'_> {}

impl Segment<'_> {
    /// Where the segment starts in the buffer.
    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    /// Append `bytes`.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if they do not fit.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), EngineError> {
        let to = self.advance(bytes.len())?;
        // SAFETY: `advance` checked the length; the segment is the only way to these bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Append `row`, boxes of `array`, each followed by `trailer` zeros; then let `finish` change
    /// each of them, with its trailer.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if a box leaves the array, or they do not fit.
    pub(super) fn append_row(
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
        unsafe { gather_pieces(&row, from, &buffers[..row.count]) };
        for buffer in &buffers[..row.count] {
            // SAFETY: the box was filled above, and its trailer is now; both are only reachable
            // through `self`.
            finish(unsafe {
                buffer.add(len).write_bytes(0, trailer);
                std::slice::from_raw_parts_mut(*buffer, len + trailer)
            });
        }
        Ok(())
    }

    /// Claim the next `len` bytes: the caller fills them.
    fn advance(&mut self, len: usize) -> Result<*mut u8, EngineError> {
        if len > self.len - self.filled {
            return Err(EngineError::Internal(
                "a segment of the output is too short",
            ));
        }
        // SAFETY: within the segment, by the check above.
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

/// A C-order array that is written subchunk by subchunk.
#[derive(Debug)]
pub(super) struct Boxes<'a> {
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
    /// Write the array of `grid` into `vec`, which is empty and has capacity for it, from
    /// subchunks whose axes are in `order`.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the capacity is too small, or `order` is no permutation.
    pub(super) fn new(
        mut vec: Vec<u8>,
        grid: &'a SubchunkGrid,
        order: &[usize],
    ) -> Result<Self, EngineError> {
        vec.clear();
        if vec.capacity() < grid.shard_bytes() {
            return Err(EngineError::Internal("the output does not fit the shard"));
        }
        // What makes the boxes of different subchunks disjoint.
        let mut axes = order.to_vec();
        axes.sort_unstable();
        if !axes.iter().copied().eq(0..grid.shard().len()) {
            return Err(EngineError::Internal("the order of axes is no permutation"));
        }
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

    /// The first byte of the box of subchunk `number`, which nobody else can get any more.
    fn claim(&self, number: usize) -> Result<*mut u8, EngineError> {
        self.claims.claim(number)?;
        let offset = self.boxed.offset(number);
        if offset + self.boxed.span() > self.grid.shard_bytes() {
            return Err(EngineError::Internal("a subchunk leaves the shard"));
        }
        // SAFETY: within the capacity, by the checks here and in `new`.
        Ok(unsafe { self.start.add(offset) })
    }

    /// Write the subchunks from `first` on, which are neighbours along the last axis, from
    /// `sources`: at most [`Row::MOST`].
    ///
    /// # Errors
    /// [`EngineError::Internal`] if one was written before, they are not neighbours, or a source
    /// has another length.
    pub(super) fn write_row(&self, first: usize, sources: &[&[u8]]) -> Result<(), EngineError> {
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
        // alone; that of neighbour `i` starts `i` steps after the first.
        unsafe { scatter_pieces(&row, &buffers[..sources.len()], to) };
        self.written.fetch_add(sources.len(), Ordering::Release);
        Ok(())
    }

    /// How many subchunks from `first` on, at most `count`, can be written in one row.
    pub(super) fn row_len(&self, first: usize, count: usize) -> usize {
        Row::len(self.grid, &self.boxed, first, count)
    }

    /// Write `element` into every element of subchunk `number`.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if it was written before, or `element` has a wrong length.
    pub(super) fn fill(&self, number: usize, element: &[u8]) -> Result<(), EngineError> {
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

    /// The array.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if a subchunk was not written.
    pub(super) fn finish(self) -> Result<Vec<u8>, EngineError> {
        if self.written.into_inner() != self.grid.num_subchunks() {
            return Err(EngineError::Internal("a subchunk was not decoded"));
        }
        // SAFETY: every subchunk was written once, and together they are the array.
        Ok(unsafe { memory::assume_filled(self.vec, self.grid.shard_bytes()) })
    }
}

/// Subchunks that are neighbours along the last axis, copied side by side: a piece of each, then
/// the next piece of each. Short pieces of one subchunk lie far apart in the array, and the
/// processor is slow to fetch them; the pieces of neighbours are one long one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    boxed: &'a StridedBox,
    /// The offset in the array of the first box.
    start: usize,
    /// Bytes from one box to the next.
    step: usize,
    count: usize,
}

impl<'a> Row<'a> {
    /// The most neighbours in a row.
    pub(super) const MOST: usize = 16;

    /// Pieces side by side add up to about this many bytes.
    const BYTES: usize = 1024;

    /// How many subchunks from `first` on, at most `count`, are worth copying side by side.
    pub(super) fn len(
        grid: &SubchunkGrid,
        boxed: &StridedBox,
        first: usize,
        count: usize,
    ) -> usize {
        let along_last_axis = grid.counts().last().copied().unwrap_or(1).max(1);
        let worthwhile = (Self::BYTES / boxed.run().max(1)).clamp(1, Self::MOST);
        count
            .min(along_last_axis - first % along_last_axis)
            .min(worthwhile)
    }

    /// The boxes of `count` subchunks from `first` on; `None` if they are not neighbours.
    pub(super) fn new(
        grid: &SubchunkGrid,
        boxed: &'a StridedBox,
        first: usize,
        count: usize,
    ) -> Option<Self> {
        let along_last_axis = grid.counts().last().copied().unwrap_or(1).max(1);
        let neighbours = (1..=Self::MOST).contains(&count)
            && first + count <= grid.num_subchunks()
            && first % along_last_axis + count <= along_last_axis;
        neighbours.then(|| Self {
            boxed,
            start: boxed.offset(first),
            step: grid.subchunk().last().copied().unwrap_or(1) * grid.element_size(),
            count,
        })
    }

    /// The first byte of the first box, if all of them lie in `array`.
    fn start_in(&self, array: &[u8]) -> Result<*const u8, EngineError> {
        box_in(array, self.start + (self.count - 1) * self.step, self.boxed)?;
        box_in(array, self.start, self.boxed)
    }
}

/// Copy the boxes of `row`, piece after piece, into `buffer`: one after the other.
///
/// # Errors
/// [`EngineError::Internal`] if a box leaves the array, or `buffer` has another length.
pub(super) fn gather(array: &[u8], row: Row<'_>, buffer: &mut [u8]) -> Result<(), EngineError> {
    let from = row.start_in(array)?;
    let len = row.boxed.len();
    if buffer.len() != len * row.count {
        return Err(EngineError::Internal("a gather buffer has a wrong length"));
    }
    let mut buffers = [std::ptr::null_mut(); Row::MOST];
    if len > 0 {
        for (pointer, buffer) in buffers.iter_mut().zip(buffer.chunks_exact_mut(len)) {
            *pointer = buffer.as_mut_ptr();
        }
        // SAFETY: `start_in` checked the sources; the destinations are chunks of `buffer`, as long
        // as a box.
        unsafe { gather_pieces(&row, from, &buffers[..row.count]) };
    }
    Ok(())
}

/// Copy `buffer`, piece after piece, into the box of a subchunk-sized C-order `array`.
///
/// # Errors
/// [`EngineError::Internal`] if the box is not as long as both.
pub(super) fn scatter(
    buffer: &[u8],
    boxed: &StridedBox,
    array: &mut [u8],
) -> Result<(), EngineError> {
    box_in(array, 0, boxed)?;
    if buffer.len() != boxed.len() {
        return Err(EngineError::Internal("a scatter buffer has a wrong length"));
    }
    let row = Row {
        boxed,
        start: 0,
        step: 0,
        count: 1,
    };
    // SAFETY: `box_in` checked the destination, and the length of the source was checked here.
    unsafe { scatter_pieces(&row, &[buffer.as_ptr()], array.as_mut_ptr()) };
    Ok(())
}

/// The first byte of the box at `offset`, if all of it lies in `array`.
fn box_in(array: &[u8], offset: usize, boxed: &StridedBox) -> Result<*const u8, EngineError> {
    match offset.checked_add(boxed.span()) {
        // SAFETY: `offset` is within `array`, by the check.
        Some(end) if end <= array.len() => Ok(unsafe { array.as_ptr().add(offset) }),
        _ => Err(EngineError::Internal("a subchunk leaves the shard")),
    }
}

/// # Safety
/// The boxes of `row`, the first at `array`, are readable, and as many bytes as a box has are
/// writable at each of `buffers`, one per box, elsewhere.
unsafe fn gather_pieces(row: &Row<'_>, array: *const u8, buffers: &[*mut u8]) {
    let run = row.boxed.run();
    rows(row.boxed, |offset, at, digit| {
        // SAFETY: `rows` gives offsets inside the box, and inside a buffer of its length.
        unsafe {
            match run {
                16 => gather_row::<16>(array.add(offset), row.step, buffers, at, digit),
                32 => gather_row::<32>(array.add(offset), row.step, buffers, at, digit),
                64 => gather_row::<64>(array.add(offset), row.step, buffers, at, digit),
                128 => gather_row::<128>(array.add(offset), row.step, buffers, at, digit),
                256 => gather_row::<256>(array.add(offset), row.step, buffers, at, digit),
                _ => {
                    for (i, buffer) in buffers.iter().enumerate() {
                        let from = (array.add(offset + i * row.step), digit.stride);
                        copy_rows(from, (buffer.add(at), run), digit.extent, run);
                    }
                }
            }
        }
    });
}

/// # Safety
/// As [`gather_pieces`], for one row of pieces of `N` bytes.
unsafe fn gather_row<const N: usize>(
    array: *const u8,
    step: usize,
    buffers: &[*mut u8],
    at: usize,
    digit: Digit,
) {
    for i in 0..digit.extent {
        for (neighbour, buffer) in buffers.iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe {
                let from = array.add(i * digit.stride + neighbour * step);
                std::ptr::copy_nonoverlapping(from, buffer.add(at + i * N), N);
            }
        }
    }
}

/// # Safety
/// As many bytes as a box has are readable at each of `buffers`, and the boxes of `row`, the first
/// at `array`, are writable, elsewhere.
unsafe fn scatter_pieces(row: &Row<'_>, buffers: &[*const u8], array: *mut u8) {
    let run = row.boxed.run();
    rows(row.boxed, |offset, at, digit| {
        // SAFETY: `rows` gives offsets inside the box, and inside a buffer of its length.
        unsafe {
            match run {
                16 => scatter_row::<16>(buffers, at, array.add(offset), row.step, digit),
                32 => scatter_row::<32>(buffers, at, array.add(offset), row.step, digit),
                64 => scatter_row::<64>(buffers, at, array.add(offset), row.step, digit),
                128 => scatter_row::<128>(buffers, at, array.add(offset), row.step, digit),
                256 => scatter_row::<256>(buffers, at, array.add(offset), row.step, digit),
                _ => {
                    for (i, buffer) in buffers.iter().enumerate() {
                        let to = (array.add(offset + i * row.step), digit.stride);
                        copy_rows((buffer.add(at), run), to, digit.extent, run);
                    }
                }
            }
        }
    });
}

/// # Safety
/// As [`scatter_pieces`], for one row of pieces of `N` bytes.
unsafe fn scatter_row<const N: usize>(
    buffers: &[*const u8],
    at: usize,
    array: *mut u8,
    step: usize,
    digit: Digit,
) {
    for i in 0..digit.extent {
        for (neighbour, buffer) in buffers.iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe {
                let to = array.add(i * digit.stride + neighbour * step);
                std::ptr::copy_nonoverlapping(buffer.add(at + i * N), to, N);
            }
        }
    }
}

/// Call `f` for each row of pieces (the fastest digit): its offset in the box, its offset in the
/// buffer, and the digit.
fn rows(boxed: &StridedBox, mut f: impl FnMut(usize, usize, Digit)) {
    let one = Digit {
        extent: 1,
        stride: 0,
    };
    let (slower, fastest) = match boxed.digits() {
        [] => (&[][..], one),
        [slower @ .., fastest] => (slower, *fastest),
    };
    match slower {
        [] => f(0, 0, fastest),
        [plane] => {
            for i in 0..plane.extent {
                f(i * plane.stride, i * fastest.extent * boxed.run(), fastest);
            }
        }
        _ => {
            let mut counter = vec![0; slower.len()];
            let (mut row, mut at) = (0, 0);
            loop {
                f(row, at, fastest);
                at += fastest.extent * boxed.run();
                let mut d = slower.len();
                loop {
                    if d == 0 {
                        return;
                    }
                    d -= 1;
                    counter[d] += 1;
                    row += slower[d].stride;
                    if counter[d] < slower[d].extent {
                        break;
                    }
                    counter[d] = 0;
                    row -= slower[d].extent * slower[d].stride;
                }
            }
        }
    }
}

/// Copy `count` pieces of `len` bytes from one stride to another.
///
/// # Safety
/// Each piece is readable at the source and writable at the destination, and they do not overlap.
unsafe fn copy_rows(from: (*const u8, usize), to: (*mut u8, usize), count: usize, len: usize) {
    // A length known to the compiler is a few moves instead of a call.
    // SAFETY: the caller's contract, with `len` as the constant.
    unsafe {
        match len {
            1 => copy_rows_of::<1>(from, to, count),
            2 => copy_rows_of::<2>(from, to, count),
            4 => copy_rows_of::<4>(from, to, count),
            8 => copy_rows_of::<8>(from, to, count),
            16 => copy_rows_of::<16>(from, to, count),
            32 => copy_rows_of::<32>(from, to, count),
            64 => copy_rows_of::<64>(from, to, count),
            128 => copy_rows_of::<128>(from, to, count),
            256 => copy_rows_of::<256>(from, to, count),
            _ => {
                for i in 0..count {
                    std::ptr::copy_nonoverlapping(from.0.add(i * from.1), to.0.add(i * to.1), len);
                }
            }
        }
    }
}

/// # Safety
/// As [`copy_rows`], with `N` for `len`.
unsafe fn copy_rows_of<const N: usize>(
    from: (*const u8, usize),
    to: (*mut u8, usize),
    count: usize,
) {
    for i in 0..count {
        // SAFETY: the caller's contract.
        unsafe {
            std::ptr::copy_nonoverlapping(from.0.add(i * from.1), to.0.add(i * to.1), N);
        }
    }
}

/// A box that is read with one set of strides and written with another: its digits, slowest first,
/// over contiguous runs.
#[derive(Debug)]
pub(super) struct TwoStrides {
    /// Extent, and the strides of both sides in bytes.
    digits: Vec<(usize, usize, usize)>,
    run: usize,
}

impl TwoStrides {
    /// A box of shape `shape`, in elements of `element_size` bytes; strides in bytes.
    pub(super) fn new(shape: &[usize], from: &[usize], to: &[usize], element_size: usize) -> Self {
        let mut run = element_size;
        let mut dimensions = shape.len();
        // Fast axes that both sides step through without a gap are part of the run.
        while dimensions > 0 {
            let d = dimensions - 1;
            if shape[d] != 1 && (from[d] != run || to[d] != run) {
                break;
            }
            run *= shape[d];
            dimensions = d;
        }
        let digits = (0..dimensions)
            .map(|d| (shape[d], from[d], to[d]))
            .collect();
        Self { digits, run }
    }

    /// Bytes from the first that is read to the last, inclusive.
    pub(super) fn span_from(&self) -> usize {
        let steps = self
            .digits
            .iter()
            .map(|(extent, from, _)| (extent - 1) * from);
        self.run + steps.sum::<usize>()
    }

    /// Bytes from the first that is written to the last, inclusive.
    pub(super) fn span_to(&self) -> usize {
        let steps = self.digits.iter().map(|(extent, _, to)| (extent - 1) * to);
        self.run + steps.sum::<usize>()
    }
}

/// Copy a box.
///
/// # Safety
/// No extent is zero, `span_from` bytes at `from` are readable, `span_to` bytes at `to` are
/// writable, and they do not overlap.
pub(super) unsafe fn copy_digits(digits: &TwoStrides, from: *const u8, to: *mut u8) {
    // SAFETY: every offset below is at most that of the last run, which ends at the spans.
    unsafe {
        match digits.digits.as_slice() {
            [] => copy_rows((from, 0), (to, 0), 1, digits.run),
            [slower @ .., (extent, from_stride, to_stride)] => {
                let mut counter = vec![0; slower.len()];
                let (mut read, mut write) = (0, 0);
                loop {
                    copy_rows(
                        (from.add(read), *from_stride),
                        (to.add(write), *to_stride),
                        *extent,
                        digits.run,
                    );
                    let mut d = slower.len();
                    loop {
                        if d == 0 {
                            return;
                        }
                        d -= 1;
                        let (extent, from_stride, to_stride) = slower[d];
                        counter[d] += 1;
                        read += from_stride;
                        write += to_stride;
                        if counter[d] < extent {
                            break;
                        }
                        counter[d] = 0;
                        read -= extent * from_stride;
                        write -= extent * to_stride;
                    }
                }
            }
        }
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

    #[test]
    fn boxes_are_written_once_each() {
        let grid = SubchunkGrid::new(&[2, 4], &[2, 2], 1).expect("divides");
        let boxes = Boxes::new(Vec::with_capacity(8), &grid, &[0, 1]).expect("fits");
        boxes.write_row(0, &[&[1, 2, 3, 4]]).expect("free");
        assert!(boxes.write_row(0, &[&[1; 4]]).is_err(), "written before");
        assert!(boxes.write_row(1, &[&[1; 3]]).is_err(), "too short");
        assert!(boxes.write_row(2, &[&[1; 4]]).is_err(), "no such subchunk");
        boxes.fill(1, &[9]).expect("free");
        assert_eq!(boxes.finish().expect("complete"), [1, 2, 9, 9, 3, 4, 9, 9]);

        let boxes = Boxes::new(Vec::with_capacity(8), &grid, &[0, 1]).expect("fits");
        boxes.fill(1, &[9]).expect("free");
        assert!(boxes.finish().is_err(), "subchunk 0 is missing");
        assert!(Boxes::new(Vec::with_capacity(7), &grid, &[0, 1]).is_err());
        assert!(Boxes::new(Vec::with_capacity(8), &grid, &[0, 0]).is_err());
    }

    #[test]
    fn gather_and_scatter_are_inverse_in_every_order() {
        let shard: Vec<u8> = (0..2 * 3 * 5 * 4).collect();
        let grid = SubchunkGrid::new(&[2, 3, 5, 1], &[2, 3, 5, 1], 4).expect("divides");
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 2, 0, 3], [2, 0, 3, 1]] {
            let boxed = StridedBox::new(&grid, &order);
            let mut buffer = vec![0; boxed.len()];
            let row = Row::new(&grid, &boxed, 0, 1).expect("one");
            gather(&shard, row, &mut buffer).expect("fits");
            let mut back = vec![0; shard.len()];
            scatter(&buffer, &boxed, &mut back).expect("fits");
            assert_eq!(shard, back, "{order:?}");
        }
    }

    #[test]
    fn neighbours_side_by_side_are_the_same_as_one_by_one() {
        for run in [1, 4, 16, 32, 48, 64, 128, 256] {
            let shard: Vec<u8> = (0..3 * 5 * run * 7).map(|i| (i * 31 % 251) as u8).collect();
            let grid = SubchunkGrid::new(&[3, 5, 7 * run as u64], &[3, 5, run as u64], 1)
                .expect("divides");
            let boxed = StridedBox::in_c_order(&grid);
            let mut one_by_one = Vec::new();
            for number in 0..7 {
                let mut buffer = vec![0; boxed.len()];
                let row = Row::new(&grid, &boxed, number, 1).expect("one");
                gather(&shard, row, &mut buffer).expect("fits");
                one_by_one.extend(buffer);
            }
            let mut side_by_side = vec![0; boxed.len() * 7];
            let row = Row::new(&grid, &boxed, 0, 7).expect("neighbours");
            gather(&shard, row, &mut side_by_side).expect("fits");
            assert_eq!(one_by_one, side_by_side, "{run}");

            let boxes =
                Boxes::new(Vec::with_capacity(shard.len()), &grid, &[0, 1, 2]).expect("fits");
            let sources: Vec<&[u8]> = side_by_side.chunks(boxed.len()).collect();
            boxes.write_row(0, &sources[..4]).expect("free");
            boxes.write_row(4, &sources[4..]).expect("free");
            assert_eq!(boxes.finish().expect("complete"), shard, "{run}");
            assert!(Row::new(&grid, &boxed, 3, 5).is_none(), "beyond the row");
        }
    }
}

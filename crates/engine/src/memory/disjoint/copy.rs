//! Copies boxes of an array to contiguous bytes, and back.

use crate::contract::EngineError;
use crate::layout::{Digit, StridedBox, SubchunkGrid, SubchunkPart};

/// Neighbouring subchunks along the last axis, which are copied side by side: the first piece of each
/// subchunk, then the second piece of each, and so on. The short pieces of one subchunk lie far apart in the
/// array, so that the processor is slow to fetch them. The pieces of neighbours lie together, like one long
/// piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    pub(super) boxed: &'a StridedBox,
    /// The offset in the array of the first box, in bytes.
    start: usize,
    /// The number of bytes from one box to the next.
    step: usize,
    pub(super) count: usize,
}

impl<'a> Row<'a> {
    /// The most subchunks in a row.
    pub(crate) const MOST: usize = 16;

    /// The number of bytes that pieces side by side add up to, about.
    const BYTES: usize = 1024;

    /// Returns the number of subchunks from `first` on, at most `count`, that are worth copying side by side.
    pub(crate) fn len(
        grid: &SubchunkGrid,
        boxed: &StridedBox,
        first: usize,
        count: usize,
    ) -> usize {
        // The pieces of neighbours lie together only if the last axis has no gaps.
        let dense = grid.subchunk().last().copied().unwrap_or(1) * grid.element_size();
        if boxed.step() != dense {
            return count.min(1);
        }
        let worthwhile = (Self::BYTES / boxed.run().max(1)).clamp(1, Self::MOST);
        count.min(grid.neighbours(first)).min(worthwhile)
    }

    /// Returns the boxes of `count` subchunks from `first` on; `None` if they are not neighbours.
    pub(crate) fn new(
        grid: &SubchunkGrid,
        boxed: &'a StridedBox,
        first: usize,
        count: usize,
    ) -> Option<Self> {
        let neighbours = (1..=Self::MOST).contains(&count)
            && first + count <= grid.num_subchunks()
            && count <= grid.neighbours(first);
        neighbours.then(|| Self {
            boxed,
            start: boxed.offset(first),
            step: boxed.step(),
            count,
        })
    }

    /// Returns a pointer to the first byte of the first box. Checks that all boxes lie in `array`.
    pub(super) fn start_in(&self, array: &[u8]) -> Result<*const u8, EngineError> {
        box_in(array, self.start + (self.count - 1) * self.step, self.boxed)?;
        box_in(array, self.start, self.boxed)
    }
}

/// Copies the boxes of `row` into `buffer`, one box after the other.
///
/// # Errors
/// [`EngineError::Internal`] if a box leaves the array, or `buffer` has another length.
pub(crate) fn scatter(array: &[u8], row: Row<'_>, buffer: &mut [u8]) -> Result<(), EngineError> {
    let from = row.start_in(array)?;
    let len = row.boxed.len();
    if buffer.len() != len * row.count {
        return Err(EngineError::Internal("a scatter buffer has a wrong length"));
    }
    let mut buffers = [std::ptr::null_mut(); Row::MOST];
    if len > 0 {
        for (pointer, buffer) in buffers.iter_mut().zip(buffer.chunks_exact_mut(len)) {
            *pointer = buffer.as_mut_ptr();
        }
        // SAFETY: `start_in` checked the sources. The destinations are parts of `buffer`, each as long as a
        // box.
        unsafe { scatter_pieces(&row, from, &buffers[..row.count]) };
    }
    Ok(())
}

/// Copies `buffer` into the box `boxed` of the C-order `array`, which has the size of a subchunk.
///
/// # Errors
/// [`EngineError::Internal`] if `buffer` or `array` has another length than the box.
pub(crate) fn unscatter(
    buffer: &[u8],
    boxed: &StridedBox,
    array: &mut [u8],
) -> Result<(), EngineError> {
    box_in(array, 0, boxed)?;
    if buffer.len() != boxed.len() {
        return Err(EngineError::Internal(
            "an unscatter buffer has a wrong length",
        ));
    }
    let row = Row {
        boxed,
        start: 0,
        step: 0,
        count: 1,
    };
    // SAFETY: `box_in` checked the destination, and the length of the source was checked here.
    unsafe { unscatter_pieces(&row, &[buffer.as_ptr()], array.as_mut_ptr()) };
    Ok(())
}

/// Returns a pointer to the first byte of the box at `offset`. Checks that the whole box lies in `array`.
fn box_in(array: &[u8], offset: usize, boxed: &StridedBox) -> Result<*const u8, EngineError> {
    match offset.checked_add(boxed.span()) {
        // SAFETY: `offset` is within `array`, by the check.
        Some(end) if end <= array.len() => Ok(unsafe { array.as_ptr().add(offset) }),
        _ => Err(EngineError::Internal("a subchunk leaves the shard")),
    }
}

/// Copies each box of `row` to its buffer.
///
/// # Safety
/// The boxes of `row` are readable, the first of them at `array`. Each of `buffers` has as many writable
/// bytes as a box. No buffer overlaps a box.
pub(super) unsafe fn scatter_pieces(row: &Row<'_>, array: *const u8, buffers: &[*mut u8]) {
    let run = row.boxed.run();
    rows(row.boxed, |offset, at, digit| {
        // SAFETY: `rows` gives offsets inside the box, and inside a buffer of its length.
        unsafe {
            match run {
                16 => scatter_row::<16>(array.add(offset), row.step, buffers, at, digit),
                32 => scatter_row::<32>(array.add(offset), row.step, buffers, at, digit),
                64 => scatter_row::<64>(array.add(offset), row.step, buffers, at, digit),
                128 => scatter_row::<128>(array.add(offset), row.step, buffers, at, digit),
                256 => scatter_row::<256>(array.add(offset), row.step, buffers, at, digit),
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

/// Copies one row of pieces of `N` bytes for each neighbour to its buffer, from byte `at` on. The boxes of
/// neighbours are `step` bytes apart in the array.
///
/// # Safety
/// Every piece is readable in the array, and writable in its buffer, which does not overlap the
/// array.
pub(super) unsafe fn scatter_row<const N: usize>(
    array: *const u8,
    step: usize,
    buffers: &[*mut u8],
    at: usize,
    digit: Digit,
) {
    for i in 0..digit.extent {
        for (neighbour, buffer) in buffers.iter().enumerate() {
            let piece = array.wrapping_add(i * digit.stride + neighbour * step);
            prefetch::<N>(piece.wrapping_add(AHEAD * digit.stride));
            // SAFETY: the caller keeps the contract of this function.
            unsafe { std::ptr::copy_nonoverlapping(piece, buffer.add(at + i * N), N) };
        }
    }
}

/// The number of pieces by which prefetching is ahead: the processor cannot guess the next piece, because
/// pieces lie far apart. In a measurement, copies of slices of 2 KiB to slots became 1.2 times as fast with
/// pieces of 128 bytes, and 1.4 times with pieces of 64 bytes. Prefetching 2 or 8 pieces ahead was about as
/// fast.
const AHEAD: usize = 4;

/// Tells the processor that the `N` bytes at `address` will probably be read soon. The address may be
/// invalid.
#[inline]
fn prefetch<const N: usize>(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..N).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: this is a hint: it reads nothing, and does not fault for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Copies each buffer to its box of `row`.
///
/// # Safety
/// Each of `buffers` has as many readable bytes as a box. The boxes of `row` are writable, the first of them
/// at `array`. No buffer overlaps a box.
pub(super) unsafe fn unscatter_pieces(row: &Row<'_>, buffers: &[*const u8], array: *mut u8) {
    let run = row.boxed.run();
    rows(row.boxed, |offset, at, digit| {
        // SAFETY: `rows` gives offsets inside the box, and inside a buffer of its length.
        unsafe {
            match run {
                16 => unscatter_row::<16>(buffers, at, array.add(offset), row.step, digit),
                32 => unscatter_row::<32>(buffers, at, array.add(offset), row.step, digit),
                64 => unscatter_row::<64>(buffers, at, array.add(offset), row.step, digit),
                128 => unscatter_row::<128>(buffers, at, array.add(offset), row.step, digit),
                256 => unscatter_row::<256>(buffers, at, array.add(offset), row.step, digit),
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

/// Copies one row of pieces of `N` bytes from each buffer to its box.
///
/// # Safety
/// The requirements of [`unscatter_pieces`], for this row of pieces.
unsafe fn unscatter_row<const N: usize>(
    buffers: &[*const u8],
    at: usize,
    array: *mut u8,
    step: usize,
    digit: Digit,
) {
    for i in 0..digit.extent {
        for (neighbour, buffer) in buffers.iter().enumerate() {
            // SAFETY: the caller keeps the contract of this function.
            unsafe {
                let to = array.add(i * digit.stride + neighbour * step);
                std::ptr::copy_nonoverlapping(buffer.add(at + i * N), to, N);
            }
        }
    }
}

/// Calls `f` for each row of pieces along the fastest digit, with the offset of the row in the box, its
/// offset in the buffer, and the digit. The rows come in any order.
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
            let slower = in_good_order(slower, fastest, boxed.run());
            let mut counter = vec![0; slower.len()];
            let (mut row, mut at) = (0, 0);
            loop {
                f(row, at, fastest);
                let mut d = slower.len();
                loop {
                    if d == 0 {
                        return;
                    }
                    d -= 1;
                    let (digit, step) = slower[d];
                    counter[d] += 1;
                    row += digit.stride;
                    at += step;
                    if counter[d] < digit.extent {
                        break;
                    }
                    counter[d] = 0;
                    row -= digit.extent * digit.stride;
                    at -= digit.extent * step;
                }
            }
        }
    }
}

/// Returns the digits `slower`, each with its step in the buffer in bytes, in a good order to copy rows. If the
/// pieces of a row lie farther apart in the array than the rows do, then neighbours in the array follow one
/// another: they share cache lines and pages.
fn in_good_order(slower: &[Digit], fastest: Digit, run: usize) -> Vec<(Digit, usize)> {
    let mut step = run * fastest.extent;
    let mut digits: Vec<(Digit, usize)> = Vec::with_capacity(slower.len());
    for digit in slower.iter().rev() {
        digits.push((*digit, step));
        step *= digit.extent;
    }
    digits.reverse();
    if slower.iter().any(|digit| digit.stride < fastest.stride) {
        digits.sort_by_key(|(digit, _)| std::cmp::Reverse(digit.stride));
    }
    digits
}

/// Copies `count` pieces of `len` bytes. `from` and `to` are the first pieces and the strides in bytes.
///
/// # Safety
/// Each piece is readable at the source and writable at the destination, and they do not overlap.
pub(super) unsafe fn copy_rows(
    from: (*const u8, usize),
    to: (*mut u8, usize),
    count: usize,
    len: usize,
) {
    // With a length that the compiler knows, a copy becomes a few moves instead of a call.
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

/// Copies pieces of `N` bytes like [`copy_rows`].
///
/// # Safety
/// The requirements of [`copy_rows`], with `N` for `len`.
unsafe fn copy_rows_of<const N: usize>(
    from: (*const u8, usize),
    to: (*mut u8, usize),
    count: usize,
) {
    for i in 0..count {
        // SAFETY: the caller keeps the contract of this function.
        unsafe {
            std::ptr::copy_nonoverlapping(from.0.add(i * from.1), to.0.add(i * to.1), N);
        }
    }
}

/// A box that is read with one set of strides and written with another: digits, slowest first, that count
/// contiguous runs.
#[derive(Debug)]
struct TwoStrides {
    /// For each digit, its extent, and its strides in bytes in the source and in the destination.
    digits: Vec<(usize, usize, usize)>,
    run: usize,
}

impl TwoStrides {
    /// Returns the box of shape `shape`, in elements of `element_size` bytes. `from` and `to` are strides in
    /// bytes.
    fn new(shape: &[usize], from: &[usize], to: &[usize], element_size: usize) -> Self {
        let mut run = element_size;
        let mut dimensions = shape.len();
        // Fast axes without gaps on both sides become part of the run.
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

    /// Returns the number of bytes from the first byte that is read to the last one, inclusive.
    fn span_from(&self) -> usize {
        let steps = self
            .digits
            .iter()
            .map(|(extent, from, _)| (extent - 1) * from);
        self.run + steps.sum::<usize>()
    }

    /// Returns the number of bytes from the first byte that is written to the last one, inclusive.
    fn span_to(&self) -> usize {
        let steps = self.digits.iter().map(|(extent, _, to)| (extent - 1) * to);
        self.run + steps.sum::<usize>()
    }
}

/// Copies the box `digits` from `from` to `to`.
///
/// # Safety
/// No extent is zero, `span_from` bytes at `from` are readable, `span_to` bytes at `to` are
/// writable, and they do not overlap.
unsafe fn copy_digits(digits: &TwoStrides, from: *const u8, to: *mut u8) {
    // SAFETY: every offset below is at most the offset of the last run, which ends within both spans.
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

/// The memory of an array: `len` bytes from `start` on, in which the axes have these strides in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strided<'m> {
    start: *mut u8,
    len: usize,
    strides: &'m [usize],
}

impl<'m> Strided<'m> {
    /// # Safety
    /// `len` bytes at `start` stay allocated while this value is used.
    pub(super) unsafe fn new(start: *mut u8, len: usize, strides: &'m [usize]) -> Self {
        Self {
            start,
            len,
            strides,
        }
    }

    /// Returns the part of the array from the element at `origin` on.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the element is not in the memory.
    pub(super) fn from(self, origin: &[usize]) -> Result<Self, EngineError> {
        let offset = std::iter::zip(origin, self.strides).map(|(at, stride)| at * stride);
        let offset = offset.sum::<usize>();
        if offset > self.len {
            return Err(EngineError::Internal("a subchunk leaves the window"));
        }
        Ok(Self {
            // SAFETY: `offset` is within the allocation, by the check.
            start: unsafe { self.start.add(offset) },
            len: self.len - offset,
            ..self
        })
    }

    /// Writes `part`. Its place in this array is its place in the window. `from` has its elements, the first
    /// one first, with the strides `from_strides` in bytes; zero strides repeat one element. Returns the
    /// number of bytes that were written.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if an element is not in `from`, or the place of an element is outside of the
    /// memory.
    ///
    /// # Safety
    /// Nothing else uses the places of the elements, and `from` does not overlap them.
    pub(super) unsafe fn write(
        self,
        part: &SubchunkPart,
        from: &[u8],
        from_strides: &[usize],
    ) -> Result<usize, EngineError> {
        if part.len() > 0 {
            let element_size = part.element_size();
            let digits = TwoStrides::new(part.shape(), from_strides, self.strides, element_size);
            let to = part.offset_in_window(self.strides);
            if digits.span_from() > from.len() || to + digits.span_to() > self.len {
                return Err(EngineError::Internal("a subchunk leaves the window"));
            }
            // SAFETY: both spans were checked. The caller guarantees that nothing else uses these places, and
            // that `from` does not overlap them.
            unsafe { copy_digits(&digits, from.as_ptr(), self.start.add(to)) };
        }
        Ok(part.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Boxes;
    use super::*;
    use crate::contract::NeighbourSink;

    #[test]
    fn scatter_and_unscatter_are_inverse_in_every_order() {
        let shard: Vec<u8> = (0..2 * 3 * 5 * 4).collect();
        let grid = SubchunkGrid::new(&[2, 3, 5, 1], &[2, 3, 5, 1], 4).expect("divides");
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 2, 0, 3], [2, 0, 3, 1]] {
            let boxed = StridedBox::new(&grid, &order);
            let mut buffer = vec![0; boxed.len()];
            let row = Row::new(&grid, &boxed, 0, 1).expect("one");
            scatter(&shard, row, &mut buffer).expect("fits");
            let mut back = vec![0; shard.len()];
            unscatter(&buffer, &boxed, &mut back).expect("fits");
            assert_eq!(shard, back, "{order:?}");
        }
    }

    #[test]
    fn neighbours_side_by_side_are_the_same_as_one_by_one() {
        for run in [1, 4, 16, 32, 48, 64, 128, 256] {
            let shard: Vec<u8> = (0..3 * 5 * run * 7).map(|i| (i * 31 % 251) as u8).collect();
            let grid = SubchunkGrid::new(&[3, 5, 7 * run as u64], &[3, 5, run as u64], 1)
                .expect("divides");
            let boxed = StridedBox::new(&grid, &[0, 1, 2]);
            let mut one_by_one = Vec::new();
            for number in 0..7 {
                let mut buffer = vec![0; boxed.len()];
                let row = Row::new(&grid, &boxed, number, 1).expect("one");
                scatter(&shard, row, &mut buffer).expect("fits");
                one_by_one.extend(buffer);
            }
            let mut side_by_side = vec![0; boxed.len() * 7];
            let row = Row::new(&grid, &boxed, 0, 7).expect("neighbours");
            scatter(&shard, row, &mut side_by_side).expect("fits");
            assert_eq!(one_by_one, side_by_side, "{run}");

            let boxes =
                Boxes::new(Vec::with_capacity(shard.len()), &grid, &[0, 1, 2]).expect("fits");
            let sources: Vec<&[u8]> = side_by_side.chunks(boxed.len()).collect();
            let buffer = &mut Vec::new();
            boxes
                .write_neighbours(0, &sources[..4], buffer)
                .expect("free");
            boxes
                .write_neighbours(4, &sources[4..], buffer)
                .expect("free");
            assert_eq!(boxes.finish().expect("complete"), shard, "{run}");
            assert!(Row::new(&grid, &boxed, 3, 5).is_none(), "beyond the row");
        }
    }
}

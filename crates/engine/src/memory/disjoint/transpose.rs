//! Copies boxes whose elements lie in memory in another order than in their buffer. A block of elements at a
//! time goes through a small square: each cache line of the array is read once, and each line of the buffer
//! is written once.

use crate::layout::{Digit, StridedBox};

/// A box of elements of at most 16 bytes whose fastest digit steps far through the array, while a slower digit
/// steps through neighbours.
#[derive(Debug)]
pub(super) struct Transposed {
    /// The other digits, slowest first, each with its step in the buffer in bytes.
    others: Vec<(Digit, usize)>,
    /// The digit that steps through neighbours in the array, and its step in the buffer in bytes.
    near: (Digit, usize),
    /// The digit that steps through neighbours in the buffer.
    fastest: Digit,
    run: usize,
}

/// The number of elements along each side of a block.
const SIDE: usize = 16;

impl Transposed {
    /// Returns the box if copying in blocks is worth it.
    pub(super) fn new(boxed: &StridedBox) -> Option<Self> {
        /// The size of a cache line, in bytes.
        const LINE: usize = 64;
        /// The least extent of both digits.
        const LEAST: usize = 4;
        let ([slower @ .., fastest], run @ (1 | 2 | 4 | 8 | 16)) = (boxed.digits(), boxed.run())
        else {
            return None;
        };
        let (number, near) = slower
            .iter()
            .enumerate()
            .min_by_key(|(_, digit)| digit.stride)?;
        if near.stride > LINE / 2
            || near.stride >= fastest.stride
            || near.extent.min(fastest.extent) < LEAST
        {
            return None;
        }
        let mut step = run * fastest.extent;
        let mut others: Vec<(Digit, usize)> = Vec::with_capacity(slower.len());
        for digit in slower.iter().rev() {
            others.push((*digit, step));
            step *= digit.extent;
        }
        others.reverse();
        let near = others.remove(number);
        Some(Self {
            others,
            near,
            fastest: *fastest,
            run,
        })
    }

    /// Copies the box at `array` to `buffer`.
    ///
    /// # Safety
    /// The box is readable at `array`. `buffer` has as many writable bytes as the box, which do not overlap it.
    pub(super) unsafe fn copy(&self, array: *const u8, buffer: *mut u8) {
        let mut counter = vec![0; self.others.len()];
        let (mut read, mut write) = (0, 0);
        loop {
            // SAFETY: the counter gives offsets inside of the box, and inside of its buffer.
            unsafe {
                let (from, to) = (array.add(read), buffer.add(write));
                match self.run {
                    1 => self.copy_plane::<1>(from, to),
                    2 => self.copy_plane::<2>(from, to),
                    4 => self.copy_plane::<4>(from, to),
                    8 => self.copy_plane::<8>(from, to),
                    _ => self.copy_plane::<16>(from, to),
                }
            }
            let mut d = self.others.len();
            loop {
                if d == 0 {
                    return;
                }
                d -= 1;
                let (digit, step) = self.others[d];
                counter[d] += 1;
                read += digit.stride;
                write += step;
                if counter[d] < digit.extent {
                    break;
                }
                counter[d] = 0;
                read -= digit.extent * digit.stride;
                write -= digit.extent * step;
            }
        }
    }

    /// Copies the elements that differ in two digits, block by block.
    ///
    /// # Safety
    /// The requirements of [`copy`](Self::copy), for these elements. `N` is the size of an element.
    unsafe fn copy_plane<const N: usize>(&self, from: *const u8, to: *mut u8) {
        let ((near, near_step), fastest) = (self.near, self.fastest);
        for j in (0..fastest.extent).step_by(SIDE) {
            let width = SIDE.min(fastest.extent - j);
            // The next block has the other halves of the cache lines that this block cuts.
            for i in (0..near.extent).step_by(SIDE) {
                let height = SIDE.min(near.extent - i);
                // SAFETY: the block is a part of the plane.
                unsafe {
                    let from = from.add(i * near.stride + j * fastest.stride);
                    let strides = (near.stride, fastest.stride);
                    let to = to.add(i * near_step + j * N);
                    if (height, width, near.stride) == (SIDE, SIDE, N) {
                        let strides = (N, fastest.stride);
                        copy_block::<N>((from, strides), (to, near_step), SIDE, SIDE);
                    } else {
                        copy_block::<N>((from, strides), (to, near_step), height, width);
                    }
                }
            }
        }
    }
}

/// Copies a block of `height` × `width` elements of `N` bytes, both at most [`SIDE`].
///
/// # Safety
/// The elements are readable at the source, which has strides along the height and the width. The destination
/// has `height` writable rows of `width` elements, which do not overlap the source; the rows are the second
/// number of bytes apart.
#[inline(always)]
#[allow(
    clippy::inline_always,
    reason = "the loops of a full block are unrolled"
)]
unsafe fn copy_block<const N: usize>(
    (from, (down, across)): (*const u8, (usize, usize)),
    (to, row): (*mut u8, usize),
    height: usize,
    width: usize,
) {
    let mut block = [[[0_u8; N]; SIDE]; SIDE];
    for (j, column) in block.iter_mut().enumerate().take(width) {
        for (i, element) in column.iter_mut().enumerate().take(height) {
            // SAFETY: the element is a part of the source.
            *element = unsafe { from.add(i * down + j * across).cast::<[u8; N]>().read() };
        }
    }
    for i in 0..height {
        for (j, column) in block.iter().enumerate().take(width) {
            // SAFETY: the element is a part of the destination. An array of bytes needs no alignment.
            unsafe { to.add(i * row + j * N).cast::<[u8; N]>().write(column[i]) };
        }
    }
}

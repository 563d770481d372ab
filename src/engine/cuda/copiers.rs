//! Threads that copy between the caller's memory and pinned memory. They are a crew of the engine's
//! own, since nothing may run on rayon while a lane is held.

use std::marker::PhantomData;
use std::num::NonZeroUsize;

use crate::crew::Crew;
use crate::engine::fill::fill;

/// A thread takes about this many bytes at once.
const SHARE: usize = 256 << 10;

/// One axis over which the rows of a copy repeat.
#[derive(Clone, Copy, Debug)]
struct Axis {
    extent: usize,
    /// Bytes from one row to the next, in the source and in the destination.
    from: usize,
    to: usize,
}

/// Rows of bytes to copy.
#[derive(Clone, Debug)]
pub struct Copy<'a> {
    from: *const u8,
    to: *mut u8,
    row: usize,
    /// Slowest first.
    axes: Vec<Axis>,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: the code that made the copy promised that, until it is done, any thread may use both
// sides and nothing else does.
unsafe impl Send for Copy<'_> {}
// SAFETY: as above. Threads that share a copy take different rows.
unsafe impl Sync for Copy<'_> {}

impl Copy<'_> {
    /// Copy `len` bytes.
    ///
    /// # Safety
    /// During `'a`, the bytes at `from` can be read, nothing else writes the bytes at `to`, and the
    /// two do not overlap.
    pub unsafe fn bytes(from: *const u8, to: *mut u8, len: usize) -> Self {
        Self {
            from,
            to,
            row: len,
            axes: Vec::new(),
            memory: PhantomData,
        }
    }

    /// Copies a box of `shape`, in elements of `element_size` bytes, between C-order arrays.
    /// `from_strides` and `to_strides` are the strides of the arrays in bytes. Rows are contiguous
    /// on both sides.
    ///
    /// # Safety
    /// As for [`bytes`](Self::bytes), for every row of the box.
    pub unsafe fn strided(
        (from, from_strides): (*const u8, &[usize]),
        (to, to_strides): (*mut u8, &[usize]),
        shape: &[usize],
        element_size: usize,
    ) -> Self {
        let mut row = element_size;
        let mut axes: Vec<Axis> = Vec::new();
        for ((&extent, &from), &to) in shape.iter().zip(from_strides).zip(to_strides).rev() {
            if extent == 1 {
                continue;
            }
            if axes.is_empty() && from == row && to == row {
                row *= extent;
            } else {
                axes.push(Axis { extent, from, to });
            }
        }
        axes.reverse();
        Self {
            from,
            to,
            row,
            axes,
            memory: PhantomData,
        }
    }

    fn rows(&self) -> usize {
        self.axes.iter().map(|axis| axis.extent).product()
    }

    /// The pieces of a row that are copied at once: `(pieces per row, bytes per piece)`.
    fn pieces_of_row(&self) -> (usize, usize) {
        let pieces = self.row.div_ceil(SHARE).max(1);
        (pieces, self.row.div_ceil(pieces).max(1))
    }

    /// How many shares there are, and how many pieces each has.
    fn shares(&self) -> (usize, usize) {
        let (pieces, bytes) = self.pieces_of_row();
        let per_share = (SHARE / bytes).max(1);
        ((self.rows() * pieces).div_ceil(per_share), per_share)
    }

    /// Copy share `number`.
    fn run(&self, number: usize) {
        let (pieces, bytes) = self.pieces_of_row();
        let (_, per_share) = self.shares();
        let all = self.rows() * pieces;
        let first = number * per_share;
        for piece in first..all.min(first + per_share) {
            let (mut row, piece) = (piece / pieces, piece % pieces);
            let at = piece * bytes;
            let (mut from, mut to) = (at, at);
            for axis in self.axes.iter().rev() {
                from += row % axis.extent * axis.from;
                to += row % axis.extent * axis.to;
                row /= axis.extent;
            }
            let len = bytes.min(self.row.saturating_sub(at));
            // SAFETY: within a row of the box, for which the code that made the copy vouches; no
            // two pieces overlap, and each is copied by the one thread that took its share.
            unsafe {
                std::ptr::copy_nonoverlapping(self.from.add(from), self.to.add(to), len);
            }
        }
    }
}

/// The copying threads.
#[derive(Debug)]
pub struct Copiers {
    crew: Crew,
    /// Whether bytes are copied at all: not in some measurements.
    copies: bool,
}

impl Default for Copiers {
    fn default() -> Self {
        Self {
            crew: Crew::new("zarrs_cuda copier"),
            copies: true,
        }
    }
}

impl Copiers {
    /// Copiers with `helpers` threads that deal out all copies and perform none, to measure
    /// everything else.
    ///
    /// # Safety
    /// Nothing reads the bytes that a copy should have written.
    #[cfg(feature = "internals")]
    pub unsafe fn that_copy_nothing(helpers: usize) -> Self {
        Self {
            crew: Crew::of("zarrs_cuda copier", helpers),
            copies: false,
        }
    }

    /// Performs all of `copies`, on at most `threads` threads, including the calling thread. Blocks
    /// until they are done.
    pub fn run(&self, copies: &[Copy<'_>], threads: NonZeroUsize) {
        self.run_while(copies, threads, || ());
    }

    /// As [`run`](Self::run), but the calling thread does `work` first, and helps when `work` is
    /// done. Returns the result of `work`.
    pub(super) fn run_while<T>(
        &self,
        copies: &[Copy<'_>],
        threads: NonZeroUsize,
        work: impl FnOnce() -> T,
    ) -> T {
        // The number of shares in all copies up to and including each.
        let mut total = 0;
        let ends: Vec<usize> = copies
            .iter()
            .map(|copy| {
                total += copy.shares().0;
                total
            })
            .collect();
        let share = |share: usize| {
            let copy = ends.partition_point(|&end| end <= share);
            let before = if copy == 0 { 0 } else { ends[copy - 1] };
            if self.copies {
                copies[copy].run(share - before);
            }
        };
        self.crew.run_while(total, threads, &share, work)
    }

    /// Repeats `element` in `bytes`, on at most `threads` threads, including the calling thread.
    pub fn fill(&self, bytes: &mut [u8], element: &[u8], threads: NonZeroUsize) {
        fill([bytes], element, &self.crew, threads);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(n: usize) -> NonZeroUsize {
        NonZeroUsize::new(n).expect("positive")
    }

    fn copiers(most: usize) -> Copiers {
        Copiers {
            crew: Crew::of("test", most),
            copies: true,
        }
    }

    /// Many callers ask for many copies of a few shares, so that threads come, help and leave all
    /// the time: every byte is where it should be when `run` returns, and none is touched after.
    #[test]
    fn many_callers_and_small_copies() {
        const CALLERS: usize = 8;
        let rounds = if cfg!(debug_assertions) { 150 } else { 1500 };
        let copiers = copiers(5);
        std::thread::scope(|scope| {
            for caller in 0..CALLERS {
                let copiers = &copiers;
                scope.spawn(move || {
                    let mut from = vec![0; 5 * SHARE / 2];
                    let mut to = vec![0; from.len()];
                    for round in 0..rounds {
                        // Other bytes each time, so that the bytes of an earlier round are not
                        // enough.
                        let tag = (round * CALLERS + caller) as u8;
                        let len = [1, 13, SHARE + 1, from.len()][(round + caller) % 4];
                        from[..len].fill(tag);
                        from[len / 2] = !tag;
                        let (first, second) = to[..len].split_at_mut(len / 3);
                        // SAFETY: both sides lie in this thread's vectors, which nothing else uses
                        // before `run` returns.
                        let copies = unsafe {
                            [
                                Copy::bytes(from.as_ptr(), first.as_mut_ptr(), first.len()),
                                Copy::bytes(
                                    from[first.len()..].as_ptr(),
                                    second.as_mut_ptr(),
                                    second.len(),
                                ),
                            ]
                        };
                        copiers.run(&copies, threads(1 + (round + caller) % 7));
                        assert!(to[..len] == from[..len], "caller {caller}, round {round}");
                        // A thread that copied late would undo this.
                        to[..len].fill(tag ^ 0x55);
                        if round % 16 == 0 {
                            std::thread::yield_now();
                        }
                        assert!(to[..len].iter().all(|&byte| byte == tag ^ 0x55));
                    }
                });
            }
        });
    }

    #[test]
    fn boxes_are_copied_from_any_number_of_callers() {
        let copiers = copiers(3);
        // A box of 5 × 300 × 400 of an array of 6 × 310 × 410, elements of 3 bytes.
        let (outer, inner, size) = ([6, 310, 410], [5, 300, 400], 3);
        let array: Vec<u8> = (0..outer.iter().product::<usize>() * size)
            .map(|i| ((i * 31) >> 3) as u8)
            .collect();
        let from_strides = [310 * 410 * size, 410 * size, size];
        let to_strides = [300 * 400 * size, 400 * size, size];
        std::thread::scope(|scope| {
            for n in 1..6 {
                let (array, copiers) = (&array, &copiers);
                scope.spawn(move || {
                    let mut to = vec![0; inner.iter().product::<usize>() * size];
                    let mut all = vec![0; array.len()];
                    // SAFETY: the box lies within both, and both outlive `run`.
                    let copies = unsafe {
                        [
                            Copy::strided(
                                (array.as_ptr(), &from_strides),
                                (to.as_mut_ptr(), &to_strides),
                                &inner,
                                size,
                            ),
                            Copy::bytes(array.as_ptr(), all.as_mut_ptr(), array.len()),
                            Copy::bytes(array.as_ptr(), all.as_mut_ptr(), 0),
                        ]
                    };
                    copiers.run(&copies, threads(n));
                    assert!(&all == array);
                    for (i, element) in to.chunks(size).enumerate() {
                        let (z, y, x) = (i / (300 * 400), i / 400 % 300, i % 400);
                        let at = z * from_strides[0] + y * from_strides[1] + x * size;
                        assert_eq!(element, &array[at..at + size]);
                    }
                });
            }
        });
    }
}

//! Threads that copy between the caller's memory and pinned memory. The engine has its own crew of them,
//! since nothing may run on rayon while a lane is held.

use std::marker::PhantomData;
use std::num::NonZeroUsize;

use crate::memory::fill::fill;
use crate::memory::fresh::{Fresh, Pages};
use crate::process::crew::Crew;

/// The name of the threads.
const NAME: &str = "zarrs_cuda copier";

/// The least number of bytes that a thread copies at once, about.
const SHARE: usize = 256 << 10;

/// The number of bytes that a thread copies at once if the copies are long enough for all threads. The C
/// library copies so many bytes without `rep movsb`, which is slow where source and destination are aligned
/// differently.
const LONG_SHARE: usize = 1 << 20;

/// The most bytes that a thread copies at once. Above the size of the processor's cache, the C library copies
/// in another way, which was 1.2 to 1.6 times as fast where this was measured.
const LONGEST_SHARE: usize = 4 << 20;

/// The number of shares of the largest size that each thread takes, so that all threads finish at about the
/// same time.
const SHARES_EACH: usize = 4;

/// One axis over which the rows of a copy repeat.
#[derive(Clone, Copy, Debug)]
struct Axis {
    extent: usize,
    /// The number of bytes from one row to the next, in the source and in the destination.
    from: usize,
    to: usize,
}

/// A copy of rows of bytes.
#[derive(Clone, Debug)]
pub struct Copy<'a> {
    from: *const u8,
    to: *mut u8,
    row: usize,
    /// The axes over which the rows repeat, the slowest first.
    axes: Vec<Axis>,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: the code that made the copy promised that, until the copy is done, any thread may use the source
// and the destination, and nothing else uses them.
unsafe impl Send for Copy<'_> {}
// SAFETY: as for `Send`. Threads that share a copy take different rows.
unsafe impl Sync for Copy<'_> {}

impl Copy<'_> {
    /// Describes a copy of `len` bytes.
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

    /// Describes a copy of a box of `shape` between C-order arrays whose elements have `element_size` bytes.
    /// `from_strides` and `to_strides` are the strides of the arrays in bytes. Rows are contiguous on both
    /// sides.
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

    /// Returns the number of bytes in the destination from the first byte that is written to the end of the
    /// last.
    fn reach(&self) -> usize {
        if self.rows() == 0 || self.row == 0 {
            return 0;
        }
        let steps = self.axes.iter().map(|axis| (axis.extent - 1) * axis.to);
        steps.sum::<usize>() + self.row
    }

    fn rows(&self) -> usize {
        self.axes.iter().map(|axis| axis.extent).product()
    }

    /// Returns `(pieces per row, bytes per piece)`. A piece is copied at once, and has at most `share` bytes.
    fn pieces_of_row(&self, share: usize) -> (usize, usize) {
        let pieces = self.row.div_ceil(share).max(1);
        (pieces, self.row.div_ceil(pieces).max(1))
    }

    /// Returns the number of shares of about `share` bytes in this copy, and the number of pieces in each
    /// share.
    fn shares(&self, share: usize) -> (usize, usize) {
        let (pieces, bytes) = self.pieces_of_row(share);
        let per_share = (share / bytes).max(1);
        ((self.rows() * pieces).div_ceil(per_share), per_share)
    }

    /// Copies the share with index `number`, where the copy is divided into shares of about `share` bytes.
    fn run(&self, number: usize, share: usize) {
        let (pieces, bytes) = self.pieces_of_row(share);
        let (_, per_share) = self.shares(share);
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
            // SAFETY: the piece lies within a row of the box, for which the code that made the copy vouches.
            // No two pieces overlap, and only the thread that took the share copies its pieces.
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
    /// Whether copies are performed: some measurements leave them out.
    copies: bool,
}

impl Default for Copiers {
    fn default() -> Self {
        Self {
            crew: Crew::new(NAME).spinning(),
            copies: true,
        }
    }
}

impl Copiers {
    /// Returns copiers with `processors` threads, the caller among them: at least two, and at most
    /// the limit of a [`Crew`]. Each thread but the caller calls `start` first.
    pub(super) fn for_processors(
        processors: usize,
        start: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        // Two threads: the caller may run on a processor of another node.
        let crew = Crew::for_processors(NAME, processors.max(2));
        Self {
            crew: crew.spinning().starting(start),
            copies: true,
        }
    }

    /// Returns copiers with `helpers` threads that distribute all copies and perform none. Benchmarks measure
    /// everything else with them.
    ///
    /// # Safety
    /// Nothing reads the bytes that a copy should have written.
    #[cfg(feature = "fakes")]
    pub unsafe fn that_copy_nothing(helpers: usize) -> Self {
        Self {
            crew: Crew::of(NAME, helpers).spinning(),
            copies: false,
        }
    }

    /// Performs all of `copies`, on at most `threads` threads, including the calling thread. Blocks until all
    /// copies are done.
    pub fn run(&self, copies: &[Copy<'_>], threads: NonZeroUsize) {
        self.run_with(copies, None, threads, || ());
    }

    /// Performs `copies` like [`run`](Self::run), where some copies write to `fresh`. First lets the system
    /// make the pages of `fresh` that these copies need. Meanwhile lets it make about `soon` bytes of the
    /// pages that the next copies probably need. No copy will write from offset `end` on. The calling thread
    /// does `work` first, and helps when `work` is done. Returns the result of `work`.
    ///
    /// # Safety
    /// The memory of `fresh` is allocated. Only copies of this function have written to it, and nothing else
    /// writes to it before the copies are done.
    pub unsafe fn run_into<T>(
        &self,
        fresh: &mut Fresh,
        copies: &[Copy<'_>],
        (soon, end): (usize, usize),
        threads: NonZeroUsize,
        work: impl FnOnce() -> T,
    ) -> T {
        let written = copies
            .iter()
            .filter_map(|copy| fresh.place(copy.to, copy.reach()))
            .map(|place| place.end)
            .max();
        // SAFETY: the caller's promise. No byte was written after the pages that were made.
        let missing = unsafe { fresh.before(written.unwrap_or(0), threads) };
        if missing.shares() > 0 {
            self.run_with(&[], Some(missing), threads, || ());
        }
        // SAFETY: as in the call before. The copies write only to pages that are made by now.
        let ahead = unsafe { fresh.ahead(soon, end, threads) };
        self.run_with(copies, Some(ahead), threads, work)
    }

    /// Performs `copies`, and makes `pages`. The calling thread does `work` first.
    fn run_with<T>(
        &self,
        copies: &[Copy<'_>],
        pages: Option<Pages<'_>>,
        threads: NonZeroUsize,
        work: impl FnOnce() -> T,
    ) -> T {
        let bytes: usize = copies.iter().map(|copy| copy.rows() * copy.row).sum();
        let each = bytes / threads.get();
        let share = (each / SHARES_EACH).clamp(each.clamp(SHARE, LONG_SHARE), LONGEST_SHARE);
        // Pages come first: a page takes longer than a share of a copy.
        let pages_to_make = pages.map_or(0, |pages| pages.shares());
        // The number of shares in the pages, and in all copies up to and including each copy.
        let mut total = pages_to_make;
        let ends: Vec<usize> = copies
            .iter()
            .map(|copy| {
                total += copy.shares(share).0;
                total
            })
            .collect();
        let run = |number: usize| {
            if !self.copies {
                return;
            }
            if let Some(pages) = pages
                && number < pages_to_make
            {
                return pages.make(number);
            }
            let copy = ends.partition_point(|&end| end <= number);
            let before = copy.checked_sub(1).map_or(pages_to_make, |last| ends[last]);
            copies[copy].run(number - before, share);
        };
        self.crew.run_while(total, threads, &run, work)
    }

    /// Fills `bytes` with copies of `element`, on at most `threads` threads, including the calling thread.
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

    /// Copies into fresh memory, in any order and with gaps: all arrive, and pages are made before
    /// them, but not from the end on.
    #[test]
    fn copies_into_fresh_memory() {
        const LEN: usize = 12 << 20;
        let copiers = copiers(3);
        let from: Vec<u8> = (0..LEN).map(|i| ((i * 31) >> 7) as u8).collect();
        for n in 1..5 {
            let mut to: Vec<u8> = Vec::with_capacity(LEN);
            to.push(from[0]);
            let mut fresh = Fresh::of(&mut to);
            let elsewhere = &mut vec![0; 700];
            let start = to.as_mut_ptr();
            let mut written = 1;
            for (i, part) in [1, 3 << 20, 100, (4 << 20) + 77, SHARE - 1, LEN]
                .into_iter()
                .enumerate()
            {
                let part = part.min(LEN - written);
                let middle = written + part / 3;
                let end = written + part;
                // SAFETY: within the capacity, and within `from`; nothing overlaps.
                let copies = unsafe {
                    let copy = |range: std::ops::Range<usize>| {
                        Copy::bytes(
                            from[range.clone()].as_ptr(),
                            start.add(range.start),
                            range.len(),
                        )
                    };
                    [
                        copy(middle..end),
                        copy(written..middle),
                        copy(end..end),
                        Copy::bytes(from.as_ptr(), elsewhere.as_mut_ptr(), elsewhere.len()),
                    ]
                };
                let soon = [0, 1 << 20, usize::MAX][i % 3];
                // SAFETY: only these copies write to the memory behind the first byte.
                unsafe {
                    copiers.run_into(&mut fresh, &copies, (soon, end + 50), threads(n), || ());
                };
                assert!(fresh.made() >= end, "{part}");
                assert!(fresh.made() <= (end + 50).min(to.capacity()), "{part}");
                assert!(elsewhere[..] == from[..elsewhere.len()]);
                elsewhere.fill(0);
                written = end;
            }
            // SAFETY: all was written.
            unsafe { to.set_len(written) };
            assert!(to == from);
        }
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

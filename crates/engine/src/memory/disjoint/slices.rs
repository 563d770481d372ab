//! Copies slices of an array, while they arrive, into the slots of their subchunks.
//!
//! ```text
//! for each row of the bytes that came (along the last axis)
//!     (first subchunk of the row, place in it) = lift its coordinates
//!     for each subchunk that the row crosses
//!         copy a piece to the same place in the subchunk's slot
//! ```
//!
//! Rows that cross the same subchunks form a *run*, and are copied together. Some neighbours are copied side
//! by side, so that short pieces are read like long ones. Threads share the runs. Bytes of different runs go
//! to different places, because lifting maps an element to exactly one place.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use super::copy::{copy_rows, scatter_row};
use crate::contract::EngineError;
use crate::contract::stream::OnRead;
use crate::layout::{BatchGrid, Digit, StreamGrid};
use crate::process::crew::Crew;

/// The number of bytes that pieces side by side add up to, about.
const SIDE_BY_SIDE: usize = 1024;

/// The most pieces that are copied side by side.
const MOST_SIDE_BY_SIDE: usize = 16;

/// The number of bytes that a thread takes at once, about.
const SHARE: usize = 256 << 10;

/// The destinations of the bytes of a batch's slices.
#[derive(Debug)]
pub(crate) struct BatchSlices {
    /// The number of elements of the batch along each axis.
    shape: Vec<usize>,
    subchunk: Vec<usize>,
    /// The number of subchunks along each axis.
    counts: Vec<usize>,
    element: usize,
    /// The position in bytes of the slot of each subchunk, in C order of the subchunks.
    slots: Vec<usize>,
    /// The least length of a buffer, in bytes.
    end: usize,
}

/// The first byte of a buffer to which several threads write, each to different places.
#[derive(Clone, Copy)]
struct Start(*mut u8);

// SAFETY: each thread writes to places that no other thread uses: see `BatchSlices::write`.
unsafe impl Send for Start {}
// SAFETY: as for `Send`.
unsafe impl Sync for Start {}

impl BatchSlices {
    /// Returns the destinations for `batch`. `slot(place, part)` is the position of a slot. Each slot has the
    /// bytes of a subchunk, and no two slots overlap.
    pub(crate) fn new(
        grid: &StreamGrid,
        batch: &BatchGrid,
        slot: impl Fn(usize, usize) -> usize,
    ) -> Self {
        let subchunk = grid.shard().subchunk().to_vec();
        let slots: Vec<usize> = batch
            .places(grid)
            .into_iter()
            .map(|(place, part)| slot(place, part))
            .collect();
        let mut shape = vec![batch.epochs() * subchunk[0]];
        shape.extend(grid.inner());
        let mut counts = vec![batch.epochs()];
        counts.extend(grid.subchunks());
        Self {
            shape,
            counts,
            element: grid.shard().element_size(),
            end: slots
                .iter()
                .max()
                .map_or(0, |last| last + grid.shard().subchunk_bytes()),
            slots,
            subchunk,
        }
    }

    /// Returns the positions of the slots of subchunks that cross the edge of the array.
    pub(crate) fn cut_slots(&self) -> impl Iterator<Item = usize> {
        (0..self.slots.len()).filter_map(|number| {
            let mut rest = number;
            let cut = (0..self.counts.len()).rev().any(|axis| {
                let at = rest % self.counts[axis];
                rest /= self.counts[axis];
                (at + 1) * self.subchunk[axis] > self.shape[axis]
            });
            cut.then(|| self.slots[number])
        })
    }

    fn last(&self) -> usize {
        self.shape.len() - 1
    }

    /// Returns the number of bytes of a row.
    fn row(&self) -> usize {
        self.shape[self.last()] * self.element
    }

    /// Returns the number of bytes of a row of a subchunk.
    fn piece(&self) -> usize {
        self.subchunk[self.last()] * self.element
    }

    /// Returns the number of the first subchunk that the row `row` crosses, and the position in bytes of the
    /// row in that subchunk.
    fn lift(&self, mut row: usize) -> (usize, usize) {
        let (mut number, mut within) = (0, 0);
        let (mut number_stride, mut within_stride) = (self.counts[self.last()], self.piece());
        for axis in (0..self.last()).rev() {
            let at = row % self.shape[axis];
            row /= self.shape[axis];
            number += at / self.subchunk[axis] * number_stride;
            within += at % self.subchunk[axis] * within_stride;
            number_stride *= self.counts[axis];
            within_stride *= self.subchunk[axis];
        }
        (number, within)
    }

    /// Returns the pieces of `len` bytes from byte `at` on, which lie in one row. A piece has its position
    /// among these bytes, its position in the buffer, and its length.
    fn pieces(&self, at: usize, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let (row, mut in_row) = (at / self.row(), at % self.row());
        let (number, within) = self.lift(row);
        let end = in_row + len;
        let first = in_row;
        std::iter::from_fn(move || {
            if in_row >= end {
                return None;
            }
            let from = in_row;
            let in_piece = from % self.piece();
            let len = (self.piece() - in_piece).min(end - from);
            in_row += len;
            let to = self.slots[number + from / self.piece()] + within + in_piece;
            Some((from - first, to, len))
        })
    }

    fn check(&self, at: usize, len: usize, buffer: usize) -> Result<(), EngineError> {
        let all = self.shape.iter().product::<usize>() * self.element;
        match at.checked_add(len) {
            Some(end) if end <= all && buffer >= self.end => Ok(()),
            _ => Err(EngineError::Internal("slices leave their batch")),
        }
    }

    /// Divides `len` bytes from byte `at` on at the borders of rows. Returns the number of bytes before the
    /// first whole row, and the number of whole rows.
    fn rows(&self, at: usize, len: usize) -> (usize, usize) {
        let row = self.row();
        let before = (at.next_multiple_of(row) - at).min(len);
        (before, (len - before) / row)
    }

    /// Copies `bytes` of the slices, from byte `at` of the batch on, to their places in `buffer`, on at most
    /// `threads` threads of a crew. A thread that has copied a share of the bytes calls `read` with the range
    /// of the share. Some bytes may be in no such range.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the bytes do not lie within the batch, or the buffer is too short.
    pub(crate) fn write(
        &self,
        buffer: &mut [u8],
        at: usize,
        bytes: &[u8],
        (crew, threads): (&Crew, NonZeroUsize),
        read: &OnRead<'_>,
    ) -> Result<(), EngineError> {
        self.check(at, bytes.len(), buffer.len())?;
        let (before, rows) = self.rows(at, bytes.len());
        let after = before + rows * self.row();
        for range in [0..before, after..bytes.len()] {
            let (at, bytes) = (at + range.start, &bytes[range]);
            for (from, to, len) in self.pieces(at, bytes.len()) {
                buffer[to..to + len].copy_from_slice(&bytes[from..from + len]);
            }
        }
        if rows == 0 {
            return Ok(());
        }
        let bytes = &bytes[before..after];
        let first = (at + before) / self.row();
        let runs = self.run_of(first)..self.run_of(first + rows - 1) + 1;
        let per_share = (SHARE / (bytes.len() / runs.len()).max(1)).max(1);
        let start = Start(buffer.as_mut_ptr());
        crew.run(runs.len().div_ceil(per_share), threads, &|share| {
            let from = runs.start + share * per_share;
            for run in from..runs.end.min(from + per_share) {
                let of_run = self.rows_of(run);
                let of_run = of_run.start.max(first)..of_run.end.min(first + rows);
                let bytes = &bytes[(of_run.start - first) * self.row()..];
                let bytes = &bytes[..of_run.len() * self.row()];
                // SAFETY: `check` ensured that the slots lie in the buffer, which is borrowed for
                // as long as the crew works. Runs have different rows, whose places differ.
                unsafe { self.write_run(start, of_run.start, bytes) };
            }
            let end = runs.end.min(from + per_share);
            let rows =
                self.rows_of(from).start.max(first)..self.rows_of(end - 1).end.min(first + rows);
            let bytes = (rows.start - first) * self.row()..(rows.end - first) * self.row();
            read(&(before + bytes.start..before + bytes.end));
        });
        Ok(())
    }

    /// Copies the bytes of the slices from byte `at` of the batch on out of `buffer`, to `bytes`.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if the bytes do not lie within the batch, or the buffer is too short.
    pub(crate) fn read(
        &self,
        buffer: &[u8],
        at: usize,
        bytes: &mut [u8],
        crew: &Crew,
        threads: NonZeroUsize,
    ) -> Result<(), EngineError> {
        self.check(at, bytes.len(), buffer.len())?;
        let shares: Vec<_> = bytes.chunks_mut(SHARE).map(Mutex::new).collect();
        crew.run(shares.len(), threads, &|number| {
            let mut share = shares[number]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.read_share(buffer, at + number * SHARE, &mut share);
        });
        Ok(())
    }

    fn read_share(&self, buffer: &[u8], at: usize, bytes: &mut [u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = at + done;
            let of_row = (self.row() - at % self.row()).min(bytes.len() - done);
            for (to, from, len) in self.pieces(at, of_row) {
                let to = done + to;
                bytes[to..to + len].copy_from_slice(&buffer[from..from + len]);
            }
            done += of_row;
        }
    }

    /// Returns the axis along which rows form a run; `None` if an array has one axis.
    fn run_axis(&self) -> Option<usize> {
        self.last().checked_sub(1)
    }

    /// Returns the number of the run of row `row`.
    fn run_of(&self, row: usize) -> usize {
        self.run_axis().map_or(row, |axis| {
            let (outer, at) = (row / self.shape[axis], row % self.shape[axis]);
            outer * self.counts[axis] + at / self.subchunk[axis]
        })
    }

    /// Returns the rows of run `run`.
    fn rows_of(&self, run: usize) -> std::ops::Range<usize> {
        self.run_axis().map_or(run..run + 1, |axis| {
            let (outer, at) = (run / self.counts[axis], run % self.counts[axis]);
            let start = at * self.subchunk[axis];
            let end = (start + self.subchunk[axis]).min(self.shape[axis]);
            outer * self.shape[axis] + start..outer * self.shape[axis] + end
        })
    }

    /// Copies `bytes`, which are whole rows of one run from `row` on, to their slots.
    ///
    /// # Safety
    /// `start` is the start of a buffer of at least `end` bytes, and nothing else uses the places
    /// of these rows.
    unsafe fn write_run(&self, start: Start, row: usize, bytes: &[u8]) {
        let (number, within) = self.lift(row);
        let (row, piece) = (self.row(), self.piece());
        let rows = bytes.len() / row;
        let slot = |at: usize| {
            // SAFETY: the place is within the buffer, by the caller's contract and the way slots are made.
            unsafe { start.0.add(self.slots[number + at] + within) }
        };
        if row == piece {
            // SAFETY: the rows of the run lie one after the other in one slot.
            unsafe { slot(0).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            return;
        }
        let whole = row / piece;
        let together = (SIDE_BY_SIDE / piece).clamp(1, MOST_SIDE_BY_SIDE);
        let mut to = [std::ptr::null_mut(); MOST_SIDE_BY_SIDE];
        for first in (0..whole).step_by(together) {
            let count = together.min(whole - first);
            for (i, to) in to[..count].iter_mut().enumerate() {
                *to = slot(first + i);
            }
            // SAFETY: `first + count` pieces lie in a row, and `rows` rows in `bytes`; each slot
            // has the rows of the run one after the other.
            unsafe {
                let from = bytes.as_ptr().add(first * piece);
                let digit = Digit {
                    extent: rows,
                    stride: row,
                };
                match piece {
                    16 => scatter_row::<16>(from, piece, &to[..count], 0, digit),
                    32 => scatter_row::<32>(from, piece, &to[..count], 0, digit),
                    64 => scatter_row::<64>(from, piece, &to[..count], 0, digit),
                    128 => scatter_row::<128>(from, piece, &to[..count], 0, digit),
                    256 => scatter_row::<256>(from, piece, &to[..count], 0, digit),
                    _ => {
                        for (i, to) in to[..count].iter().enumerate() {
                            copy_rows((from.add(i * piece), row), (*to, piece), rows, piece);
                        }
                    }
                }
            }
        }
        let rest = row - whole * piece;
        if rest > 0 {
            // SAFETY: this is the last subchunk of the row, which the edge of the array cuts, and `rest` are
            // its bytes.
            unsafe {
                let from = (bytes.as_ptr().add(whole * piece), row);
                copy_rows(from, (slot(whole), piece), rows, rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::layout::SubchunkGrid;

    fn grid(axes: &[(u64, u64, u64)], element: usize) -> StreamGrid {
        let shard: Vec<u64> = axes.iter().map(|(_, sub, per)| sub * per).collect();
        let subchunk: Vec<u64> = axes.iter().map(|(_, sub, _)| *sub).collect();
        let inner: Vec<u64> = axes[1..].iter().map(|(extent, ..)| *extent).collect();
        let shard = SubchunkGrid::new(&shard, &subchunk, element).expect("divides");
        StreamGrid::new(shard, &inner).expect("fits")
    }

    /// Element by element.
    fn naive(grid: &StreamGrid, batch: &BatchGrid, slot: usize, bytes: &[u8], fill: u8) -> Vec<u8> {
        let places = batch.places(grid);
        let subchunk = grid.shard().subchunk();
        let element = grid.shard().element_size();
        let mut shape = vec![batch.epochs() * subchunk[0]];
        shape.extend(grid.inner());
        let mut counts = vec![batch.epochs()];
        counts.extend(grid.subchunks());
        let mut buffer = vec![fill; batch.subchunks() * slot];
        for (index, value) in bytes.chunks(element).enumerate() {
            let mut rest = index;
            let mut at = vec![0; shape.len()];
            for axis in (0..shape.len()).rev() {
                at[axis] = rest % shape[axis];
                rest /= shape[axis];
            }
            let (mut number, mut within) = (0, 0);
            for axis in 0..shape.len() {
                number = number * counts[axis] + at[axis] / subchunk[axis];
                within = within * subchunk[axis] + at[axis] % subchunk[axis];
            }
            let to = places[number].0 * slot + within * element;
            buffer[to..to + element].copy_from_slice(value);
        }
        buffer
    }

    proptest! {
        #![proptest_config(zarrs_cuda_testing::effort::config(128))]

        #[test]
        fn slices_in_pieces_are_where_the_naive_way_puts_them(
            axes in prop_oneof![
                prop::collection::vec((1_u64..40, 1_u64..9, 1_u64..4), 1..4),
                prop::collection::vec((1_u64..12, 1_u64..9, 1_u64..4), 4),
            ],
            element in prop::sample::select(vec![1_usize, 2, 3, 8, 16]),
            epochs in 1_usize..4,
            room in 0_usize..5,
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
            threads in 1_usize..4,
        ) {
            let grid = grid(&axes, element);
            let epochs = epochs.min(grid.epochs_per_shard());
            let batch = grid.batch(epochs).expect("fits");
            let slot = grid.shard().subchunk_bytes() + room;
            let slices = BatchSlices::new(&grid, &batch, |place, _| place * slot);
            let len = epochs * grid.epoch_bytes();
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(len)).collect();
            cuts.extend([0, len]);
            cuts.sort_unstable();
            let crew = Crew::of("test", 2);
            let mut buffer = vec![0xEE; batch.subchunks() * slot];
            let mut pieces: Vec<(usize, usize)> = cuts.windows(2).map(|w| (w[0], w[1])).collect();
            // In any order.
            pieces.rotate_left(cuts.len() / 3);
            for (start, end) in pieces {
                let threads = NonZeroUsize::new(threads).expect("positive");
                let told = Mutex::new(Vec::new());
                let read = |range: &std::ops::Range<usize>| told.lock().expect("no panic").push(range.clone());
                let part = &bytes[start..end];
                slices.write(&mut buffer, start, part, (&crew, threads), &read).expect("fits");
                // Whole rows, each once.
                let mut told = told.into_inner().expect("no panic");
                told.sort_unstable_by_key(|range| range.start);
                let (before, rows) = slices.rows(start, part.len());
                let end = told.iter().fold(before, |end, range| {
                    assert_eq!(range.start, end);
                    range.end
                });
                prop_assert_eq!(end, before + rows * slices.row());
            }
            prop_assert_eq!(&buffer, &naive(&grid, &batch, slot, &bytes, 0xEE));
            // Every slot that the edge does not cut is full.
            let cut: Vec<usize> = slices.cut_slots().collect();
            let other = naive(&grid, &batch, slot, &bytes, 0x11);
            for start in (0..batch.subchunks()).map(|place| place * slot) {
                let full = buffer[start..start + slot - room]
                    .iter()
                    .zip(other[start..].iter())
                    .all(|(a, b)| a == b);
                prop_assert_eq!(!full, cut.contains(&start));
            }
            let mut back = vec![0; len];
            for pair in cuts.windows(2) {
                let part = &mut back[pair[0]..pair[1]];
                let threads = NonZeroUsize::new(threads).expect("positive");
                slices.read(&buffer, pair[0], part, &crew, threads).expect("fits");
            }
            prop_assert_eq!(&back, &bytes);
            let outside = slices.write(&mut buffer, 1, &bytes, (&crew, NonZeroUsize::MIN), &|_| ());
            prop_assert!(outside.is_err());
        }
    }

    /// Several threads read shares that begin and end within rows.
    #[test]
    fn many_bytes_are_read_back() {
        let grid = grid(&[(0, 4, 1), (1000, 96, 3), (77, 10, 4)], 3);
        let batch = grid.batch(1).expect("fits");
        let slot = grid.shard().subchunk_bytes();
        let slices = BatchSlices::new(&grid, &batch, |place, _| place * slot);
        let bytes: Vec<u8> = (0..grid.epoch_bytes()).map(|n| (n % 251) as u8).collect();
        assert!(bytes.len() > 3 * SHARE);
        let (crew, two) = (Crew::of("test", 1), NonZeroUsize::MIN.saturating_add(1));
        let mut buffer = vec![0; batch.subchunks() * slot];
        (slices.write(&mut buffer, 0, &bytes, (&crew, two), &|_| ())).expect("fits");
        let mut back = vec![0; bytes.len() - 5];
        (slices.read(&buffer, 5, &mut back, &crew, two)).expect("fits");
        assert!(back == bytes[5..]);
        assert!((slices.read(&buffer, 6, &mut back, &crew, two)).is_err());
    }
}

//! Chooses which bytes of a value are read: whole parts, or the wanted rows of them.
//!
//! The choice compares times. A request for several ranges takes the time of its bytes, and for each range a
//! time that depends on the kind of the store. [`RangeCost`] is the latter, as a number of bytes.

use std::ops::Range;

use zarrs_storage::byte_range::ByteRange;

use super::ranges::Merged;
use zarrs_cuda_engine::layout::ByteRows;

/// The time that one more range of a request takes, as the number of bytes that are read in this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RangeCost(pub(crate) u64);

impl RangeCost {
    /// Memory, and files in the cache of the system. Measured with `pread` on two cores: 0.55 µs for a range, and
    /// 0.105 ns for each byte, 5.2 KiB. In memory behind zarrs' store, a range takes less.
    pub(crate) const CACHED: Self = Self(4 << 10);
    /// A disk. Measured with random reads of a file of 512 MiB that was not in the cache, on a virtual disk: 65 µs
    /// for a range, and 1.3 ns for each byte, 49 KiB.
    pub(crate) const DISK: Self = Self(48 << 10);
    /// A store whose requests take long, or whose kind is not known. One connection to an object store reads some
    /// MiB during the latency of a request, but ranges are requested side by side, and bytes cost, too. `object_store`
    /// itself merges ranges that are up to 1 MiB apart.
    #[cfg_attr(
        not(feature = "async"),
        allow(dead_code, reason = "of a store that is awaited")
    )]
    pub(crate) const REMOTE: Self = Self(64 << 10);

    /// Merges `ranges` with the bytes between two of them, where these cost less than a range.
    pub(crate) fn merge(self, ranges: impl IntoIterator<Item = Range<u64>>) -> Merged {
        Merged::near(self.0, ranges)
    }
}

/// A part of a value that is to be read: all of its bytes, or rows of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartToRead {
    /// The range of the part in the value.
    extent: Range<usize>,
    /// The ranges to read, counted from the first byte of the part; `None` to read all bytes.
    rows: Option<Merged>,
}

impl PartToRead {
    /// Returns the part at `extent`, all of whose bytes are read.
    pub(crate) fn whole(extent: Range<usize>) -> Self {
        Self { extent, rows: None }
    }

    /// Returns the part at `extent`, of which `rows` are wanted. The rows count from the first byte of the part.
    /// All bytes are read if reading the rows saves less than an eighth of the time.
    pub(crate) fn cheapest(
        extent: Range<usize>,
        rows: impl IntoIterator<Item = ByteRows>,
        cost: RangeCost,
    ) -> Self {
        let rows: Vec<_> = rows.into_iter().map(|rows| rows.joined(cost.0)).collect();
        let of_row = |rows: &ByteRows| (rows.row_len() as u64).saturating_add(cost.0);
        let of_rows = rows.iter().fold(0, |sum: u64, rows| {
            sum.saturating_add(of_row(rows).saturating_mul(rows.count() as u64))
        });
        let of_part = (extent.len() as u64).saturating_add(cost.0);
        if of_rows == 0 || of_rows > of_part - of_part / 8 {
            return Self::whole(extent);
        }
        let rows = rows.iter().flat_map(ByteRows::iter);
        let rows = cost.merge(rows.map(|row| row.start as u64..row.end as u64));
        Self {
            extent,
            rows: Some(rows),
        }
    }

    pub(crate) fn extent(&self) -> &Range<usize> {
        &self.extent
    }

    /// Returns the ranges to read, counted from the first byte of the part; `None` if all bytes are read.
    pub(crate) fn rows(&self) -> Option<&Merged> {
        self.rows.as_ref()
    }

    /// Returns the ranges of the value to read.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let start = self.extent.start as u64;
        let whole = self.rows.is_none().then_some(start..self.extent.end as u64);
        let rows = self.rows.iter().flat_map(Merged::iter);
        rows.map(move |row| start + row.start..start + row.end)
            .chain(whole)
    }

    /// Returns the number of bytes to read.
    pub(crate) fn len(&self) -> usize {
        self.rows.as_ref().map_or(self.extent.len(), |rows| {
            usize::try_from(rows.total()).unwrap_or(usize::MAX)
        })
    }
}

/// The ranges of a request for several parts.
#[derive(Clone, Debug)]
pub(crate) struct PartsToRead(Merged);

impl PartsToRead {
    /// Merges the ranges of `parts`.
    pub(crate) fn new<'p>(
        parts: impl IntoIterator<Item = &'p PartToRead>,
        cost: RangeCost,
    ) -> Self {
        Self(cost.merge(parts.into_iter().flat_map(PartToRead::ranges)))
    }

    pub(crate) fn merged(&self) -> &Merged {
        &self.0
    }

    pub(crate) fn byte_ranges(&self) -> Vec<ByteRange> {
        self.0.byte_ranges()
    }

    /// Returns the bytes of `range` of the value from the bytes that were `read` for
    /// [`byte_ranges`](Self::byte_ranges); `None` if the store returned others. `range` is inside of a range to
    /// read.
    pub(crate) fn bytes_of<'b, B: AsRef<[u8]>>(
        &self,
        read: &'b [B],
        range: &Range<u64>,
    ) -> Option<&'b [u8]> {
        if range.is_empty() {
            return Some(&[]);
        }
        let (at, place) = self.0.place(read, range)?;
        read.get(at)?.as_ref().get(place)
    }

    /// Returns where the bytes of `range`, which is not empty, lie in what was `read`: see
    /// [`bytes_of`](Self::bytes_of). The answer is the index of the buffer, and the place in the buffer.
    pub(crate) fn place_of(
        &self,
        read: &[impl AsRef<[u8]>],
        range: &Range<u64>,
    ) -> Option<(usize, Range<usize>)> {
        self.0.place(read, range)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A plane across the first axis of 32³ elements of 2 bytes, and one across the last axis.
    #[test]
    fn few_long_rows_are_read_apart_and_many_short_ones_with_their_part() {
        let extent = 100..100 + 65536;
        let plane = |shape: [usize; 3]| ByteRows::new(4, &shape, &[2048, 64, 2], 2);
        let read = |shape, cost| PartToRead::cheapest(extent.clone(), [plane(shape)], cost);
        let first = read([1, 32, 32], RangeCost::CACHED);
        assert_eq!(first.ranges().collect::<Vec<_>>(), [104..2152]);
        assert_eq!(first.len(), 2048);
        assert_eq!(read([1, 32, 32], RangeCost::DISK), first);
        for shape in [[32, 1, 32], [32, 32, 1], [32, 32, 32], [0, 32, 32]] {
            let whole = PartToRead::whole(extent.clone());
            assert_eq!(read(shape, RangeCost::CACHED), whole, "{shape:?}");
        }
    }

    proptest! {
        /// Compares the choice with all bytes, and with the rows merged over each gap.
        #[test]
        fn little_is_saved_by_another_choice(
            axes in prop::collection::vec((1_usize..5, 0_usize..60), 0..3),
            (row, start, behind) in (1_usize..30, 0_usize..9, 0_usize..200),
            cost in 0_u64..60,
        ) {
            let cost = RangeCost(cost);
            // The larger box has `gap` more bytes along each axis.
            let (mut end, mut span) = (row, row);
            let (mut extents, mut strides) = (vec![row], vec![1]);
            for (extent, gap) in axes {
                extents.push(extent);
                strides.push(span + gap);
                end += (extent - 1) * (span + gap);
                span = extent * (span + gap);
            }
            let rows = ByteRows::new(0, &extents, &strides, 1);
            let extent = start..start + end + behind;
            let part = PartToRead::cheapest(extent.clone(), [rows.clone()], cost);
            let rows: Vec<_> = rows.iter().collect();
            let cost_of = |ranges: &Merged| ranges.total() + cost.0 * ranges.iter().len() as u64;
            let chosen = cost_of(&Merged::of(part.ranges()));
            prop_assert!(chosen <= extent.len() as u64 + cost.0);
            for gap in 0..100 {
                let ranges = rows.iter().map(|row| row.start as u64..row.end as u64);
                let other = cost_of(&Merged::near(gap, ranges));
                prop_assert!(chosen - chosen / 8 <= other, "{} and {}", chosen, other);
            }
            // All rows are read, and their bytes are found.
            let value: Vec<u8> = (0..extent.end).map(|n| n as u8).collect();
            let parts = PartsToRead::new([&part], cost);
            let read: Vec<&[u8]> = parts
                .merged()
                .iter()
                .map(|range| &value[range.start as usize..range.end as usize])
                .collect();
            for row in &rows {
                let range = (start + row.start) as u64..(start + row.end) as u64;
                let expected = &value[range.start as usize..range.end as usize];
                prop_assert_eq!(parts.bytes_of(&read, &range), Some(expected));
            }
            let last = parts.merged().iter().next_back().cloned().unwrap_or_default();
            prop_assert_eq!(parts.bytes_of(&read[..read.len() - 1], &last), None);
        }
    }
}

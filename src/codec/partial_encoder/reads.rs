//! The encoded subchunks that an update needs, in one request.

use std::borrow::Cow;
use std::ops::Range;

use zarrs::array::ArrayBytesRaw;
use zarrs_codec::CodecError;
use zarrs_storage::byte_range::ByteRange;

use super::refusal::changed;

/// Ranges that lie closer together than this are read as one.
const NEAR: usize = 4 << 10;

/// What to read: one range for subchunks that are neighbours.
#[derive(Debug, Default)]
pub(super) struct Reads {
    ranges: Vec<Range<usize>>,
}

impl Reads {
    pub(super) fn of(extents: impl IntoIterator<Item = Range<usize>>) -> Self {
        let mut wanted: Vec<_> = extents
            .into_iter()
            .filter(|extent| !extent.is_empty())
            .collect();
        wanted.sort_unstable_by_key(|extent| extent.start);
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for extent in wanted {
            match ranges.last_mut() {
                Some(last) if extent.start <= last.end.saturating_add(NEAR) => {
                    last.end = last.end.max(extent.end);
                }
                _ => ranges.push(extent),
            }
        }
        Self { ranges }
    }

    pub(super) fn byte_ranges(&self) -> Vec<ByteRange> {
        byte_ranges(&self.ranges)
    }

    /// With what a store answered.
    ///
    /// # Errors
    /// A [`CodecError`] if that is not what was asked for.
    pub(super) fn answered(
        self,
        bytes: Option<Vec<ArrayBytesRaw<'_>>>,
    ) -> Result<Fetched<'_>, CodecError> {
        let bytes = bytes.unwrap_or_default();
        let lens = bytes.iter().map(|bytes| bytes.len());
        if lens.eq(self.ranges.iter().map(Range::len)) {
            let ranges = self.ranges;
            return Ok(Fetched { ranges, bytes });
        }
        Err(CodecError::Other(format!(
            "a partial write asked for {} ranges of its shard, and the store returned others: the shard was replaced meanwhile, or is truncated",
            self.ranges.len()
        )))
    }
}

fn byte_ranges(ranges: &[Range<usize>]) -> Vec<ByteRange> {
    ranges
        .iter()
        .map(|range| ByteRange::FromStart(range.start as u64, Some(range.len() as u64)))
        .collect()
}

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Fetched<'a> {
    ranges: Vec<Range<usize>>,
    bytes: Vec<Cow<'a, [u8]>>,
}

impl<'a> Fetched<'a> {
    /// All of a shard that is in memory.
    pub(super) fn all(shard: &'a [u8]) -> Self {
        Self {
            ranges: vec![0..shard.len()],
            bytes: vec![Cow::Borrowed(shard)],
        }
    }

    /// What was read.
    pub(super) fn byte_ranges(&self) -> Vec<ByteRange> {
        byte_ranges(&self.ranges)
    }

    /// That `again` are the same bytes, read once more.
    ///
    /// # Errors
    /// A [refusal](super::refusal) if they have changed.
    pub(super) fn compare(&self, again: &[ArrayBytesRaw<'_>]) -> Result<(), CodecError> {
        if again == self.bytes {
            Ok(())
        } else {
            Err(changed())
        }
    }

    /// The bytes at `extent`, if they were read.
    pub(super) fn get(&self, extent: &Range<usize>) -> Option<&[u8]> {
        if extent.is_empty() {
            return Some(&[]);
        }
        let at = self
            .ranges
            .partition_point(|range| range.start <= extent.start)
            .checked_sub(1)?;
        let start = extent.start - self.ranges[at].start;
        self.bytes[at].get(start..start + extent.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_read_together() {
        let extents = [20_000..20_010, 0..10, 10..30, 50..50, 4_000..4_010, 5..25];
        let reads = Reads::of(extents.clone());
        assert_eq!(reads.ranges, [0..4_010, 20_000..20_010]);
        let shard: Vec<u8> = (0..30_000_u32).map(|i| (i % 251) as u8).collect();
        let answer = reads
            .ranges
            .iter()
            .map(|r| Cow::Borrowed(&shard[r.clone()]));
        let answer = Some(answer.collect());
        let fetched = reads.answered(answer).expect("as asked");
        for extent in extents {
            assert_eq!(fetched.get(&extent), Some(&shard[extent]));
        }
        assert_eq!(fetched.get(&(4_005..4_011)), None);
        assert_eq!(fetched.get(&(19_999..20_001)), None);
    }

    #[test]
    fn another_answer_is_an_error() {
        let reads = || Reads::of([0..10]);
        assert!(reads().answered(None).is_err());
        assert!(
            reads()
                .answered(Some(vec![Cow::Borrowed(&[0; 9])]))
                .is_err()
        );
        assert!(Reads::default().answered(None).is_ok());
    }
}

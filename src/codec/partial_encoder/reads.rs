//! Reads the encoded subchunks that an update needs, in one request.

use std::borrow::Cow;
use std::ops::Range;

use zarrs::array::ArrayBytesRaw;
use zarrs_codec::CodecError;
use zarrs_storage::byte_range::ByteRange;

use super::refusal::changed;
use crate::store::ranges::Merged;

/// Two ranges with fewer bytes than this between them are read as one range.
const NEAR: u64 = 4 << 10;

/// Returns the ranges of a shard to read for the subchunks at `extents`: one range for subchunks that are
/// near each other.
pub(super) fn reads(extents: impl IntoIterator<Item = Range<usize>>) -> Merged {
    Merged::near(NEAR, extents.into_iter().map(range))
}

fn range(extent: Range<usize>) -> Range<u64> {
    extent.start as u64..extent.end as u64
}

/// Ranges of a shard, and the bytes that were read from them.
#[derive(Debug, Default)]
pub(super) struct FetchedRanges<'a> {
    ranges: Merged,
    bytes: Vec<Cow<'a, [u8]>>,
}

impl<'a> FetchedRanges<'a> {
    /// Returns one range with all bytes of `shard`, which is in memory.
    pub(super) fn all(shard: &'a [u8]) -> Self {
        Self {
            ranges: Merged::of([range(0..shard.len())]),
            bytes: vec![Cow::Borrowed(shard)],
        }
    }

    /// Returns `ranges` with the `bytes` that a store returned for them.
    ///
    /// # Errors
    /// A [`CodecError`] if the store returned other numbers of ranges or bytes.
    pub(super) fn answered(
        ranges: Merged,
        bytes: Option<Vec<ArrayBytesRaw<'a>>>,
    ) -> Result<Self, CodecError> {
        let bytes = bytes.unwrap_or_default();
        if ranges.fits(&bytes) {
            return Ok(Self { ranges, bytes });
        }
        Err(CodecError::Other(format!(
            "a partial write asked for {} ranges of its shard, and the store returned others: the shard was replaced meanwhile, or is truncated",
            ranges.iter().len()
        )))
    }

    /// Returns the ranges that were read.
    pub(super) fn byte_ranges(&self) -> Vec<ByteRange> {
        self.ranges.byte_ranges()
    }

    /// Checks that `again`, a second read of the same ranges, has the same bytes.
    ///
    /// # Errors
    /// A [refusal](super::refusal) if the bytes have changed.
    pub(super) fn compare(&self, again: &[ArrayBytesRaw<'_>]) -> Result<(), CodecError> {
        if again == self.bytes {
            Ok(())
        } else {
            Err(changed())
        }
    }

    /// Returns the bytes at `extent`, if they were read.
    pub(super) fn get(&self, extent: &Range<usize>) -> Option<&[u8]> {
        if extent.is_empty() {
            return Some(&[]);
        }
        let (at, place) = self.ranges.place(&self.bytes, &range(extent.clone()))?;
        self.bytes[at].get(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_read_together() {
        let extents = [20_000..20_010, 0..10, 10..30, 50..50, 4_000..4_010, 5..25];
        let reads = reads(extents.clone());
        assert!(reads.iter().eq([&(0..4_010), &(20_000..20_010)]));
        let shard: Vec<u8> = (0..30_000_u32).map(|i| (i % 251) as u8).collect();
        let answer = reads
            .iter()
            .map(|r| Cow::Borrowed(&shard[r.start as usize..r.end as usize]));
        let answer = Some(answer.collect());
        let fetched = FetchedRanges::answered(reads, answer).expect("as asked");
        for extent in extents {
            assert_eq!(fetched.get(&extent), Some(&shard[extent]));
        }
        assert_eq!(fetched.get(&(4_005..4_011)), None);
        assert_eq!(fetched.get(&(19_999..20_001)), None);
    }

    #[test]
    fn another_answer_is_an_error() {
        let ten = || reads([0..10]);
        assert!(FetchedRanges::answered(ten(), None).is_err());
        let nine = vec![Cow::Borrowed(&[0; 9][..])];
        assert!(FetchedRanges::answered(ten(), Some(nine)).is_err());
        assert!(FetchedRanges::answered(Merged::default(), None).is_ok());
    }
}

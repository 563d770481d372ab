//! The bytes of one subchunk, shown as if the shard had no other bytes.
//!
//! zarrs has such a decoder, too. This decoder refuses ranges that leave the subchunk; zarrs' decoder reads
//! bytes of the next subchunk, or overflows.

use std::ops::Range;
use std::sync::Arc;

use zarrs::array::ArrayBytesRaw;
#[cfg(feature = "async")]
use zarrs_codec::AsyncBytesPartialDecoderTraits;
use zarrs_codec::{BytesPartialDecoderTraits, CodecError, CodecOptions};
use zarrs_storage::StorageError;
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator, InvalidByteRangeError};

use crate::store::ranges::bytes_of;

/// Shows `len` bytes of `input`, from the byte `start`.
pub(super) struct Interval<I: ?Sized> {
    input: Arc<I>,
    start: u64,
    len: u64,
}

impl<I: ?Sized> Interval<I> {
    pub(super) fn new(input: Arc<I>, extent: &Range<usize>) -> Self {
        Self {
            input,
            start: extent.start as u64,
            len: extent.len() as u64,
        }
    }

    /// Returns the ranges in `input` for `ranges`, which count from the start of the interval.
    fn resolve(&self, ranges: ByteRangeIterator<'_>) -> Result<Vec<ByteRange>, CodecError> {
        ranges
            .map(|range| {
                let bytes = bytes_of(range, self.len)
                    .ok_or_else(|| InvalidByteRangeError::new(range, self.len))?;
                let len = bytes.end - bytes.start;
                Ok(ByteRange::FromStart(self.start + bytes.start, Some(len)))
            })
            .collect()
    }
}

impl BytesPartialDecoderTraits for Interval<dyn BytesPartialDecoderTraits> {
    fn exists(&self) -> Result<bool, StorageError> {
        self.input.exists()
    }

    fn size_held(&self) -> usize {
        self.input.size_held()
    }

    fn partial_decode_many(
        &self,
        ranges: ByteRangeIterator<'_>,
        options: &CodecOptions,
    ) -> Result<Option<Vec<ArrayBytesRaw<'_>>>, CodecError> {
        let ranges = self.resolve(ranges)?;
        self.input
            .partial_decode_many(Box::new(ranges.into_iter()), options)
    }

    fn supports_partial_decode(&self) -> bool {
        self.input.supports_partial_decode()
    }
}

#[cfg(feature = "async")]
#[async_trait::async_trait]
impl AsyncBytesPartialDecoderTraits for Interval<dyn AsyncBytesPartialDecoderTraits> {
    async fn exists(&self) -> Result<bool, StorageError> {
        self.input.exists().await
    }

    fn size_held(&self) -> usize {
        self.input.size_held()
    }

    async fn partial_decode_many<'a>(
        &'a self,
        ranges: ByteRangeIterator<'a>,
        options: &CodecOptions,
    ) -> Result<Option<Vec<ArrayBytesRaw<'a>>>, CodecError> {
        let ranges = self.resolve(ranges)?;
        self.input
            .partial_decode_many(Box::new(ranges.into_iter()), options)
            .await
    }

    fn supports_partial_decode(&self) -> bool {
        self.input.supports_partial_decode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_stay_in_the_interval() {
        let input: Arc<dyn BytesPartialDecoderTraits> = Arc::new((0..10_u8).collect::<Vec<u8>>());
        let interval = Interval::new(input, &(3..7));
        let options = CodecOptions::default();
        let read = |range| {
            interval
                .partial_decode(range, &options)
                .map(|bytes| bytes.expect("exists").into_owned())
        };
        assert_eq!(
            read(ByteRange::FromStart(0, None)).ok(),
            Some(vec![3, 4, 5, 6])
        );
        assert_eq!(
            read(ByteRange::FromStart(1, Some(2))).ok(),
            Some(vec![4, 5])
        );
        assert_eq!(read(ByteRange::Suffix(1)).ok(), Some(vec![6]));
        for outside in [
            ByteRange::FromStart(5, None),
            ByteRange::FromStart(1, Some(4)),
            ByteRange::FromStart(u64::MAX, Some(2)),
            ByteRange::Suffix(5),
        ] {
            assert!(read(outside).is_err(), "{outside:?}");
        }
    }
}

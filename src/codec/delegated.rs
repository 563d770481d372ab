//! zarrs' own partial decoder, for the data types that zarrs' codec handles: what it panics on is
//! an error.

use std::sync::Arc;

use zarrs::array::{ArrayBytes, ArrayBytesRaw, DataType, Indexer};
use zarrs_codec::{ArrayPartialDecoderTraits, BytesPartialDecoderTraits, CodecError, CodecOptions};
#[cfg(feature = "async")]
use zarrs_codec::{AsyncArrayPartialDecoderTraits, AsyncBytesPartialDecoderTraits};
use zarrs_storage::StorageError;
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator};

use super::partial_decoder::check_long;
#[cfg(feature = "async")]
use crate::store::{AwaitedHandle, async_no_panic};
use crate::store::{BlockingHandle, no_panic, now};

/// A partial decoder of zarrs that may be given hostile bytes.
pub(super) struct Delegated<D: ?Sized>(pub(super) Arc<D>);

impl ArrayPartialDecoderTraits for Delegated<dyn ArrayPartialDecoderTraits> {
    fn data_type(&self) -> &DataType {
        self.0.data_type()
    }

    fn exists(&self) -> Result<bool, StorageError> {
        self.0.exists()
    }

    fn size_held(&self) -> usize {
        self.0.size_held()
    }

    fn partial_decode(
        &self,
        indexer: &dyn Indexer,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'_>, CodecError> {
        no_panic(|| self.0.partial_decode(indexer, options))
    }

    fn supports_partial_decode(&self) -> bool {
        self.0.supports_partial_decode()
    }
}

#[cfg(feature = "async")]
#[async_trait::async_trait]
impl AsyncArrayPartialDecoderTraits for Delegated<dyn AsyncArrayPartialDecoderTraits> {
    fn data_type(&self) -> &DataType {
        self.0.data_type()
    }

    async fn exists(&self) -> Result<bool, StorageError> {
        self.0.exists().await
    }

    fn size_held(&self) -> usize {
        self.0.size_held()
    }

    async fn partial_decode<'a>(
        &'a self,
        indexer: &dyn Indexer,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError> {
        async_no_panic(self.0.partial_decode(indexer, options)).await
    }

    fn supports_partial_decode(&self) -> bool {
        self.0.supports_partial_decode()
    }
}

/// Reads bytes for a decoder that believes the shard index: a long range is looked for before it is
/// read, since stores allocate what they are asked for.
pub(super) struct Guarded<I: ?Sized>(pub(super) Arc<I>);

impl BytesPartialDecoderTraits for Guarded<dyn BytesPartialDecoderTraits> {
    fn exists(&self) -> Result<bool, StorageError> {
        self.0.exists()
    }

    fn size_held(&self) -> usize {
        self.0.size_held()
    }

    fn partial_decode_many(
        &self,
        ranges: ByteRangeIterator<'_>,
        options: &CodecOptions,
    ) -> Result<Option<Vec<ArrayBytesRaw<'_>>>, CodecError> {
        let ranges: Vec<ByteRange> = ranges.collect();
        now(check_long::<BlockingHandle>(&*self.0, &ranges, options))?;
        self.0
            .partial_decode_many(Box::new(ranges.into_iter()), options)
    }

    fn supports_partial_decode(&self) -> bool {
        self.0.supports_partial_decode()
    }
}

#[cfg(feature = "async")]
#[async_trait::async_trait]
impl AsyncBytesPartialDecoderTraits for Guarded<dyn AsyncBytesPartialDecoderTraits> {
    async fn exists(&self) -> Result<bool, StorageError> {
        self.0.exists().await
    }

    fn size_held(&self) -> usize {
        self.0.size_held()
    }

    async fn partial_decode_many<'a>(
        &'a self,
        ranges: ByteRangeIterator<'a>,
        options: &CodecOptions,
    ) -> Result<Option<Vec<ArrayBytesRaw<'a>>>, CodecError> {
        let ranges: Vec<ByteRange> = ranges.collect();
        check_long::<AwaitedHandle>(&*self.0, &ranges, options).await?;
        self.0
            .partial_decode_many(Box::new(ranges.into_iter()), options)
            .await
    }

    fn supports_partial_decode(&self) -> bool {
        self.0.supports_partial_decode()
    }
}

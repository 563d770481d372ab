//! Shards whose elements zarrs' own codec encodes and decodes, because the elements have no fixed size, may
//! be missing, or have no bytes. Panics of zarrs' codec on hostile shards become errors here.

use std::borrow::Cow;
use std::sync::Arc;

use zarrs::array::{ArrayBytes, ArrayBytesRaw, DataType, Indexer};
use zarrs_codec::{
    ArrayBytesDecodeIntoTarget, ArrayPartialDecoderTraits, ArrayToBytesCodecTraits,
    BytesPartialDecoderTraits, CodecError, CodecOptions,
};
#[cfg(feature = "async")]
use zarrs_codec::{AsyncArrayPartialDecoderTraits, AsyncBytesPartialDecoderTraits};
use zarrs_storage::StorageError;
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator};

use super::partial_decoder::{check_long, read_index};
use super::partial_encoder;
use super::shard_codec::ShardCodec;
use crate::error::Error;
use crate::metrics::counters;
#[cfg(feature = "async")]
use crate::panics::async_no_panic;
use crate::panics::no_panic;
use crate::plan::{self, Explanation};
use crate::shard::error::other;
use crate::shard::index::ShardIndex;
use crate::shard::sharding::Sharding;
#[cfg(feature = "async")]
use crate::store::AwaitedHandle;
use crate::store::{BlockingHandle, now};
use zarrs_cuda_engine::layout::Entries;

/// Encodes and decodes shards by zarrs' own codec.
pub(super) struct Delegated;

#[cfg_attr(feature = "async", async_trait::async_trait)]
impl ShardCodec for Delegated {
    fn check(&self, shards: &Sharding) -> Result<(), CodecError> {
        let why = shards.delegated().unwrap_or_default();
        let codec = &shards.codec;
        let checked = codec.engines.check_delegated(&codec.options, why);
        checked.map_err(other)
    }

    fn encode<'a>(
        &self,
        shards: &Arc<Sharding>,
        elements: ArrayBytes<'a>,
        options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        self.check(shards)?;
        counters::host_coding();
        let data_type = &shards.data_type;
        if data_type.is_optional() || data_type.fixed_size().is_some() {
            let stock = &shards.codec.stock;
            let (shape, fill_value) = (&shards.shape, &shards.fill_value);
            return stock.encode(elements, shape, data_type, fill_value, options);
        }
        // zarrs' codec would leave out subchunks whose elements compare equal to the fill value but have
        // other bytes.
        partial_encoder::encode_delegated(shards, &elements, options).map(Cow::Owned)
    }

    fn decode<'a>(
        &self,
        shards: &Sharding,
        shard: ArrayBytesRaw<'a>,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError> {
        self.check(shards)?;
        check_stored(shards, &shard, options)?;
        counters::host_coding();
        no_panic(|| {
            shards.codec.stock.decode(
                shard,
                &shards.shape,
                &shards.data_type,
                &shards.fill_value,
                options,
            )
        })
    }

    fn decode_into(
        &self,
        shards: &Sharding,
        shard: ArrayBytesRaw<'_>,
        target: ArrayBytesDecodeIntoTarget<'_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        self.check(shards)?;
        check_stored(shards, &shard, options)?;
        counters::host_coding();
        no_panic(|| {
            shards.codec.stock.decode_into(
                shard,
                &shards.shape,
                &shards.data_type,
                &shards.fill_value,
                target,
                options,
            )
        })
    }

    fn partial_decoder(
        &self,
        shards: Arc<Sharding>,
        input: Arc<dyn BytesPartialDecoderTraits>,
        options: &CodecOptions,
    ) -> Result<Arc<dyn ArrayPartialDecoderTraits>, CodecError> {
        shards.codec.check_backend()?;
        let entries = now(read_index::<BlockingHandle>(&shards, &*input, options));
        check_entries(&shards, entries?)?;
        let decoder = Arc::new(shards.codec.stock.clone()).partial_decoder(
            Arc::new(Guarded(input)),
            &shards.shape,
            &shards.data_type,
            &shards.fill_value,
            options,
        )?;
        Ok(Arc::new(NoPanic(decoder)))
    }

    #[cfg(feature = "async")]
    async fn async_partial_decoder(
        &self,
        shards: Arc<Sharding>,
        input: Arc<dyn AsyncBytesPartialDecoderTraits>,
        options: &CodecOptions,
    ) -> Result<Arc<dyn AsyncArrayPartialDecoderTraits>, CodecError> {
        shards.codec.check_backend()?;
        let entries = read_index::<AwaitedHandle>(&shards, &*input, options);
        check_entries(&shards, entries.await?)?;
        let decoder = Arc::new(shards.codec.stock.clone()).async_partial_decoder(
            Arc::new(Guarded(input)),
            &shards.shape,
            &shards.data_type,
            &shards.fill_value,
            options,
        );
        Ok(Arc::new(NoPanic(decoder.await?)))
    }

    fn explain(&self, shards: &Sharding) -> Result<Explanation, Error> {
        let why = shards.delegated().unwrap_or_default();
        let codec = &shards.codec;
        let settings = (&codec.engines, &codec.options);
        plan::explain_delegated(&shards.grid, why.to_string(), settings)
    }
}

/// Checks the index of the encoded shard `bytes`, because zarrs' codec does not check it.
fn check_stored(shards: &Sharding, bytes: &[u8], options: &CodecOptions) -> Result<(), CodecError> {
    check_entries(shards, Some(shards.index.decode_in(bytes, options)?))
}

fn check_entries(shards: &Sharding, entries: Option<Entries<'_>>) -> Result<(), CodecError> {
    entries.map_or(Ok(()), |entries| {
        ShardIndex::check_overlaps(&entries, &shards.codec.options)
    })
}

/// A partial decoder of zarrs that may be given hostile bytes. Its panics become errors.
struct NoPanic<D: ?Sized>(Arc<D>);

impl ArrayPartialDecoderTraits for NoPanic<dyn ArrayPartialDecoderTraits> {
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
impl AsyncArrayPartialDecoderTraits for NoPanic<dyn AsyncArrayPartialDecoderTraits> {
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

/// Reads bytes for a decoder that trusts the shard index. Before a long range is read, its last byte is read
/// alone to see that the range exists, because stores allocate as many bytes as they are asked for.
struct Guarded<I: ?Sized>(Arc<I>);

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

//! The partial decoder of a store that is awaited: it reads groups of subchunks one after the other, and all
//! subchunks of a group at once.

use std::sync::Arc;

use futures_util::future::try_join_all;
use zarrs::array::{ArrayBytes, ArrayBytesRaw, DataType, Indexer};
use zarrs_codec::{
    ArrayBytesDecodeIntoTarget, ArrayToBytesCodecTraits, AsyncArrayPartialDecoderTraits,
    CodecError, CodecOptions,
};
use zarrs_storage::StorageError;

use super::interval::Interval;
use super::request::{InnerReads, PartialReadOutput, PartialReadRequest};
use super::{PartialDecoder, ReadsParts};
use crate::panics::async_no_panic;
use crate::store::AwaitedHandle;
use crate::store::parts::RangeCost;

impl ReadsParts for AwaitedHandle {
    const RANGE_COST: RangeCost = RangeCost::REMOTE;

    async fn read_groups(
        decoder: &PartialDecoder<Self>,
        request: &PartialReadRequest<'_>,
        output: &PartialReadOutput<'_, '_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        /// The number of bytes that a group takes to read: many, because a request takes long, but not all
        /// bytes of a large shard.
        const GROUP: usize = 64 << 20;
        for group in request.groups(GROUP) {
            decoder.read_group(request, group, output, options).await?;
        }
        Ok(())
    }

    async fn read_inner(
        decoder: &PartialDecoder<Self>,
        reads: Vec<InnerReads<'_>>,
        options: &CodecOptions,
    ) -> Result<Vec<ArrayBytesRaw<'static>>, CodecError> {
        let shards = &decoder.shards;
        let read = async |InnerReads { extent, indexer }: InnerReads<'_>| {
            let interval = Interval::new(decoder.input.clone(), extent);
            async_no_panic(async {
                let inner = shards.codec.inner_codecs.clone().async_partial_decoder(
                    Arc::new(interval),
                    &shards.codec.subchunk_shape,
                    &shards.data_type,
                    &shards.fill_value,
                    options,
                );
                let inner = inner.await?;
                let elements = inner.partial_decode(&*indexer, options).await?;
                Ok(elements.into_owned().into_fixed()?)
            })
            .await
        };
        try_join_all(reads.into_iter().map(read)).await
    }
}

#[async_trait::async_trait]
impl AsyncArrayPartialDecoderTraits for PartialDecoder<AwaitedHandle> {
    fn data_type(&self) -> &DataType {
        &self.shards.data_type
    }

    async fn exists(&self) -> Result<bool, StorageError> {
        self.input.exists().await
    }

    fn size_held(&self) -> usize {
        self.input.size_held() + self.size_of_index()
    }

    async fn partial_decode<'a>(
        &'a self,
        indexer: &dyn Indexer,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError> {
        self.decode(indexer, options).await
    }

    async fn partial_decode_into(
        &self,
        indexer: &dyn Indexer,
        output_target: ArrayBytesDecodeIntoTarget<'_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        self.decode_into(indexer, output_target, options).await
    }

    fn supports_partial_decode(&self) -> bool {
        self.input.supports_partial_decode()
    }
}

//! The partial encoder of a store that is awaited.

use std::sync::Arc;

use zarrs::array::{ArrayBytes, DataType, Indexer};
use zarrs_codec::{
    AsyncArrayPartialDecoderTraits, AsyncArrayPartialEncoderTraits, CodecError, CodecOptions,
};
use zarrs_storage::StorageError;

use super::PartialEncoder;
use crate::store::AwaitedHandle;

#[async_trait::async_trait]
impl AsyncArrayPartialDecoderTraits for PartialEncoder<AwaitedHandle> {
    fn data_type(&self) -> &DataType {
        &self.target.data_type
    }

    async fn exists(&self) -> Result<bool, StorageError> {
        self.handle.exists().await
    }

    fn size_held(&self) -> usize {
        self.handle.size_held()
    }

    async fn partial_decode<'a>(
        &'a self,
        indexer: &dyn Indexer,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError> {
        // Each call reads the index again, because every write changes it.
        let (target, handle) = (self.target.clone(), self.handle.clone().into_dyn_decoder());
        let codec = target.shard_codec();
        let decoder = codec.async_partial_decoder(target, handle, options).await?;
        Ok(decoder.partial_decode(indexer, options).await?.into_owned())
    }

    fn supports_partial_decode(&self) -> bool {
        self.handle.supports_partial_decode()
    }
}

#[async_trait::async_trait]
impl AsyncArrayPartialEncoderTraits for PartialEncoder<AwaitedHandle> {
    fn into_dyn_decoder(self: Arc<Self>) -> Arc<dyn AsyncArrayPartialDecoderTraits> {
        self
    }

    async fn erase(&self) -> Result<(), CodecError> {
        self.handle.erase().await
    }

    async fn partial_encode(
        &self,
        indexer: &dyn Indexer,
        bytes: &ArrayBytes<'_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        self.store(indexer, bytes, options).await
    }

    fn supports_partial_encode(&self) -> bool {
        true
    }
}

//! The partial encoder of a store that blocks.

use std::sync::Arc;

use zarrs::array::{ArrayBytes, DataType, Indexer};
use zarrs_codec::{ArrayPartialDecoderTraits, ArrayPartialEncoderTraits, CodecError, CodecOptions};
use zarrs_storage::StorageError;

use super::PartialEncoder;
use crate::store::{BlockingHandle, now};

impl ArrayPartialDecoderTraits for PartialEncoder<BlockingHandle> {
    fn data_type(&self) -> &DataType {
        &self.target.data_type
    }

    fn exists(&self) -> Result<bool, StorageError> {
        self.handle.exists()
    }

    fn size_held(&self) -> usize {
        self.handle.size_held()
    }

    fn partial_decode(
        &self,
        indexer: &dyn Indexer,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'_>, CodecError> {
        // Each call reads the index again, because every write changes it.
        let (target, handle) = (self.target.clone(), self.handle.clone().into_dyn_decoder());
        let codec = target.shard_codec();
        let decoder = codec.partial_decoder(target, handle, options)?;
        Ok(decoder.partial_decode(indexer, options)?.into_owned())
    }

    fn supports_partial_decode(&self) -> bool {
        self.handle.supports_partial_decode()
    }
}

impl ArrayPartialEncoderTraits for PartialEncoder<BlockingHandle> {
    fn into_dyn_decoder(self: Arc<Self>) -> Arc<dyn ArrayPartialDecoderTraits> {
        self
    }

    fn erase(&self) -> Result<(), CodecError> {
        self.handle.erase()
    }

    fn partial_encode(
        &self,
        indexer: &dyn Indexer,
        bytes: &ArrayBytes<'_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        now(self.store(indexer, bytes, options))
    }

    /// Returns `true` for each handle: one that cannot write ranges rewrites the whole object for each write.
    fn supports_partial_encode(&self) -> bool {
        true
    }
}

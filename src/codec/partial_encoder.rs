//! Part of a shard, replaced: decode the shard, update it, and encode it again.
//!
//! zarrs does not come here by itself, since the codec does not claim to encode partially: then
//! `Array::store_chunk_subset` stores the new shard with one `set`. An application that asks for a
//! partial encoder gets this one. All it can do to a stored value is to overwrite bytes, so a new
//! shard that is shorter than the old one is made as long: unused bytes between subchunks and index
//! are allowed, and bytes after an index at the end would hide it. Nothing is erased before the
//! new shard is complete.

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::sync::Arc;

use zarrs::array::codec::ShardingIndexLocation;
use zarrs::array::{
    ArrayBytes, ArrayBytesRaw, ChunkShape, DataType, FillValue, Indexer, update_array_bytes,
};
use zarrs_codec::{
    ArrayPartialDecoderTraits, ArrayPartialEncoderTraits, ArrayToBytesCodecTraits,
    BytesPartialEncoderTraits, CodecError, CodecOptions,
};
#[cfg(feature = "async")]
use zarrs_codec::{
    AsyncArrayPartialDecoderTraits, AsyncArrayPartialEncoderTraits, AsyncBytesPartialEncoderTraits,
};
use zarrs_storage::StorageError;

use super::CudaShardingCodec;
use super::shard::index_geometry;

/// Encodes parts of one shard. `H` is how its bytes are read and written.
pub(super) struct PartialEncoder<H: ?Sized> {
    codec: Arc<CudaShardingCodec>,
    handle: Arc<H>,
    shape: ChunkShape,
    data_type: DataType,
    fill_value: FillValue,
}

impl<H: ?Sized> PartialEncoder<H> {
    pub(super) fn new(
        codec: Arc<CudaShardingCodec>,
        handle: Arc<H>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Self {
        Self {
            codec,
            handle,
            shape: shape.to_vec(),
            data_type: data_type.clone(),
            fill_value: fill_value.clone(),
        }
    }

    /// The new value of a shard that was `old`; `None` if it is to be erased.
    fn updated(
        &self,
        old: Option<ArrayBytesRaw<'_>>,
        indexer: &dyn Indexer,
        bytes: &ArrayBytes<'_>,
        options: &CodecOptions,
    ) -> Result<Option<Vec<u8>>, CodecError> {
        bytes.validate(indexer.len(), &self.data_type)?;
        let old_len = old.as_ref().map_or(0, |old| old.len());
        let num_elements = self.shape.iter().map(|d| d.get()).product::<u64>();
        let decoded = match old {
            Some(old) => {
                self.codec
                    .decode(old, &self.shape, &self.data_type, &self.fill_value, options)?
            }
            None => ArrayBytes::new_fill_value(&self.data_type, num_elements, &self.fill_value)?,
        };
        let shape: Vec<u64> = self.shape.iter().map(|d| d.get()).collect();
        let updated = update_array_bytes(decoded, &shape, indexer, bytes, self.data_type.size())?;
        if !options.store_empty_chunks() && updated.is_fill_value(&self.fill_value) {
            return Ok(None);
        }
        let encoded = self
            .codec
            .encode(
                updated,
                &self.shape,
                &self.data_type,
                &self.fill_value,
                options,
            )?
            .into_owned();
        self.as_long_as(old_len, encoded).map(Some)
    }

    /// `shard`, with unused bytes before its index if it is at the end and `len` is more.
    fn as_long_as(&self, len: usize, mut shard: Vec<u8>) -> Result<Vec<u8>, CodecError> {
        if len > shard.len() && self.codec.index_location == ShardingIndexLocation::End {
            let (_, index_len) = index_geometry(&self.codec, &self.shape)?;
            let index = shard.split_off(shard.len().saturating_sub(index_len));
            shard.resize(len.saturating_sub(index.len()), 0);
            shard.extend(index);
        }
        Ok(shard)
    }
}

impl ArrayPartialDecoderTraits for PartialEncoder<dyn BytesPartialEncoderTraits> {
    fn data_type(&self) -> &DataType {
        &self.data_type
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
        // The index is read again each time: it changes with every write.
        let decoder = self.codec.clone().partial_decoder(
            self.handle.clone().into_dyn_decoder(),
            &self.shape,
            &self.data_type,
            &self.fill_value,
            options,
        )?;
        Ok(decoder.partial_decode(indexer, options)?.into_owned())
    }

    fn supports_partial_decode(&self) -> bool {
        self.handle.supports_partial_decode()
    }
}

impl ArrayPartialEncoderTraits for PartialEncoder<dyn BytesPartialEncoderTraits> {
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
        if indexer.is_empty() {
            return bytes.validate(0, &self.data_type);
        }
        let old = self.handle.decode(options)?;
        match self.updated(old, indexer, bytes, options)? {
            Some(shard) => self.handle.partial_encode(0, Cow::Owned(shard), options),
            None => self.handle.erase(),
        }
    }

    fn supports_partial_encode(&self) -> bool {
        false
    }
}

#[cfg(feature = "async")]
#[async_trait::async_trait]
impl AsyncArrayPartialDecoderTraits for PartialEncoder<dyn AsyncBytesPartialEncoderTraits> {
    fn data_type(&self) -> &DataType {
        &self.data_type
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
        let decoder = self
            .codec
            .clone()
            .async_partial_decoder(
                self.handle.clone().into_dyn_decoder(),
                &self.shape,
                &self.data_type,
                &self.fill_value,
                options,
            )
            .await?;
        Ok(decoder.partial_decode(indexer, options).await?.into_owned())
    }

    fn supports_partial_decode(&self) -> bool {
        self.handle.supports_partial_decode()
    }
}

#[cfg(feature = "async")]
#[async_trait::async_trait]
impl AsyncArrayPartialEncoderTraits for PartialEncoder<dyn AsyncBytesPartialEncoderTraits> {
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
        if indexer.is_empty() {
            return bytes.validate(0, &self.data_type);
        }
        let old = self.handle.decode(options).await?;
        match self.updated(old, indexer, bytes, options)? {
            Some(shard) => {
                self.handle
                    .partial_encode(0, Cow::Owned(shard), options)
                    .await
            }
            None => self.handle.erase().await,
        }
    }

    fn supports_partial_encode(&self) -> bool {
        false
    }
}

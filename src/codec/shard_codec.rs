//! Encodes and decodes shards, by this crate's engines or by zarrs' own codec. The choice is made once.

use std::sync::Arc;

use zarrs::array::{ArrayBytes, ArrayBytesRaw};
use zarrs_codec::{
    ArrayBytesDecodeIntoTarget, ArrayPartialDecoderTraits, BytesPartialDecoderTraits, CodecError,
    CodecOptions,
};
#[cfg(feature = "async")]
use zarrs_codec::{AsyncArrayPartialDecoderTraits, AsyncBytesPartialDecoderTraits};

use crate::error::Error;
use crate::plan::Explanation;
use crate::shard::sharding::Sharding;

/// Encodes and decodes shards.
///
/// Every method returns a [`CodecError`] if the shard is invalid, an inner codec fails, or the backend
/// of the options cannot be used.
#[cfg_attr(feature = "async", async_trait::async_trait)]
pub(super) trait ShardCodec: Sync {
    /// Checks that the options allow this trait object to encode and decode `shards`.
    fn check(&self, shards: &Sharding) -> Result<(), CodecError>;

    fn encode<'a>(
        &self,
        shards: &Arc<Sharding>,
        elements: ArrayBytes<'a>,
        options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError>;

    fn decode<'a>(
        &self,
        shards: &Sharding,
        shard: ArrayBytesRaw<'a>,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError>;

    fn decode_into(
        &self,
        shards: &Sharding,
        shard: ArrayBytesRaw<'_>,
        target: ArrayBytesDecodeIntoTarget<'_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError>;

    fn partial_decoder(
        &self,
        shards: Arc<Sharding>,
        input: Arc<dyn BytesPartialDecoderTraits>,
        options: &CodecOptions,
    ) -> Result<Arc<dyn ArrayPartialDecoderTraits>, CodecError>;

    #[cfg(feature = "async")]
    async fn async_partial_decoder(
        &self,
        shards: Arc<Sharding>,
        input: Arc<dyn AsyncBytesPartialDecoderTraits>,
        options: &CodecOptions,
    ) -> Result<Arc<dyn AsyncArrayPartialDecoderTraits>, CodecError>;

    fn explain(&self, shards: &Sharding) -> Result<Explanation, Error>;
}

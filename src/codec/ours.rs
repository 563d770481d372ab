//! Shards whose elements the engines encode and decode.

use std::borrow::Cow;
use std::sync::Arc;

use zarrs::array::codec::ShardingIndexLocation;
use zarrs::array::{ArrayBytes, ArrayBytesRaw};
use zarrs_codec::{
    ArrayBytesDecodeIntoTarget, ArrayPartialDecoderTraits, BytesPartialDecoderTraits, CodecError,
    CodecOptions, InvalidNumberOfElementsError,
};
#[cfg(feature = "async")]
use zarrs_codec::{AsyncArrayPartialDecoderTraits, AsyncBytesPartialDecoderTraits};

use super::partial_decoder::PartialDecoder;
use super::shard_codec::ShardCodec;
use super::view::ViewOfShard;
use crate::error::Error;
use crate::plan::{self, Explanation};
use crate::shard::error::{codec_error, other};
use crate::shard::sharding::Sharding;
#[cfg(feature = "async")]
use crate::store::AwaitedHandle;
use crate::store::{BlockingHandle, now};
use zarrs_cuda_engine::contract::{EncodedShard, ShardElements};
use zarrs_cuda_engine::memory::spares::Spares;

/// Encodes and decodes shards by this crate's engines.
pub(super) struct Ours;

#[cfg_attr(feature = "async", async_trait::async_trait)]
impl ShardCodec for Ours {
    fn check(&self, shards: &Sharding) -> Result<(), CodecError> {
        shards.codec.check_backend()
    }

    fn encode<'a>(
        &self,
        shards: &Arc<Sharding>,
        elements: ArrayBytes<'a>,
        options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        let elements = elements.into_fixed()?;
        check_data_type(shards)?;
        let engine = shards.choose_engine().map_err(other)?.engine;
        let (head, tail) = shards.index.room();
        let encoded = shards
            .with_job(options, |job| engine.encode(job, &elements, head, tail))
            .map_err(codec_error)?;
        with_index(shards, encoded, options).map(Cow::Owned)
    }

    fn decode<'a>(
        &self,
        shards: &Sharding,
        shard: ArrayBytesRaw<'a>,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError> {
        let extents = shards.decode_index(&shard, options)?;
        let engine = shards.choose_decoder().map_err(other)?.engine;
        shards
            .with_job(options, |job| engine.decode(job, &shard, &extents))
            .map(ArrayBytes::new_flen)
            .map_err(codec_error)
    }

    fn decode_into(
        &self,
        shards: &Sharding,
        shard: ArrayBytesRaw<'_>,
        target: ArrayBytesDecodeIntoTarget<'_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        let ArrayBytesDecodeIntoTarget::Fixed(view) = target else {
            return Err(CodecError::Other(format!(
                "elements of {} have a fixed size, and the output is for others",
                shards.data_type
            )));
        };
        let num_elements = shards.shape.iter().map(|d| d.get()).product::<u64>();
        if view.num_elements() != num_elements {
            return Err(
                InvalidNumberOfElementsError::new(view.num_elements(), num_elements).into(),
            );
        }
        let engine = shards.choose_decoder().map_err(other)?.engine;
        let extents = shards.decode_index(&shard, options)?;
        let (start, whole) = (vec![0; shards.shape.len()], shards.grid.shard().to_vec());
        let output = ViewOfShard::new(view, shards, start, whole)
            .map_err(codec_error)?
            .filter(|_| !engine.decodes_whole_shards());
        let Some(output) = output else {
            // The view has another shape with the same number of elements, or a device decodes the whole
            // shard. zarrs copies the decoded elements into the view.
            let decoded = shards
                .with_job(options, |job| engine.decode(job, &shard, &extents))
                .map_err(codec_error)?;
            return Ok(view.copy_from_slice(&decoded)?);
        };
        shards
            .with_job(options, |job| {
                plan::host_engine().decode_shard(job, &shard, &extents, &output)
            })
            .map_err(codec_error)
    }

    fn partial_decoder(
        &self,
        shards: Arc<Sharding>,
        input: Arc<dyn BytesPartialDecoderTraits>,
        options: &CodecOptions,
    ) -> Result<Arc<dyn ArrayPartialDecoderTraits>, CodecError> {
        self.check(&shards)?;
        let decoder = PartialDecoder::<BlockingHandle>::new(shards, input, options);
        Ok(Arc::new(now(decoder)?))
    }

    #[cfg(feature = "async")]
    async fn async_partial_decoder(
        &self,
        shards: Arc<Sharding>,
        input: Arc<dyn AsyncBytesPartialDecoderTraits>,
        options: &CodecOptions,
    ) -> Result<Arc<dyn AsyncArrayPartialDecoderTraits>, CodecError> {
        self.check(&shards)?;
        let decoder = PartialDecoder::<AwaitedHandle>::new(shards, input, options);
        Ok(Arc::new(decoder.await?))
    }

    fn explain(&self, shards: &Sharding) -> Result<Explanation, Error> {
        let end = match shards.index.location() {
            ShardingIndexLocation::Start => "start",
            ShardingIndexLocation::End => "end",
        };
        let index = format!("index of {} bytes at the {end}", shards.index.len());
        let [encoder, decoder] = shards.preview_engines()?;
        let codec = &shards.codec;
        let estimates = (codec.engines).estimates(&codec.options, &shards.grid, shards.known());
        Ok(plan::explain(
            &shards.grid,
            shards.known(),
            index,
            (encoder, &decoder),
            estimates,
        ))
    }
}

/// Encodes a shard straight from `elements`, which are in native byte order. Returns the shard with its index;
/// `None` if every subchunk is equal to the fill value and `options` do not store such subchunks, so that the
/// shard should not be stored. With `spares`, the host may encode to one of these buffers.
///
/// # Errors
/// A [`CodecError`] if the elements do not lie in their memory, or have no fixed size; if the options ask for
/// a device that cannot be used; if memory cannot be allocated, or a codec fails.
pub(crate) fn encode_elements(
    shards: &Sharding,
    elements: &ShardElements<'_>,
    spares: Option<&Spares>,
    options: &CodecOptions,
) -> Result<Option<Vec<u8>>, CodecError> {
    if let Some(why) = shards.delegated() {
        return Err(CodecError::Other(format!(
            "cannot encode a shard from its elements in memory: {why}"
        )));
    }
    check_data_type(shards)?;
    let plan = shards.choose_engine().map_err(other)?;
    let room = shards.index.room();
    let encoded = shards
        .with_job(options, |job| {
            plan.encode_elements(job, elements, room, spares)
        })
        .map_err(codec_error)?;
    if encoded.extents.iter().all(Option::is_none) {
        return Ok(None);
    }
    with_index(shards, encoded, options).map(Some)
}

/// Checks that the inner codecs accept the data type, also if all elements are the fill value.
fn check_data_type(shards: &Sharding) -> Result<(), CodecError> {
    if shards.known().is_err() {
        shards.subchunk_representation()?;
    }
    Ok(())
}

/// Returns the bytes of `encoded`, with the index written at the end of the shard or at its start, where the
/// engine left room.
fn with_index(
    shards: &Sharding,
    encoded: EncodedShard,
    options: &CodecOptions,
) -> Result<Vec<u8>, CodecError> {
    let mut bytes = encoded.bytes;
    let index = shards.index.encode(&encoded.extents, options)?;
    if shards.index.is_at_end() {
        bytes.extend_from_slice(&index);
    } else {
        bytes[..index.len()].copy_from_slice(&index);
    }
    Ok(bytes)
}

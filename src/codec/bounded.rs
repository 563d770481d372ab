//! zarrs' decoders, in the memory that the metadata of an array justify.
//!
//! Some of zarrs' codecs allocate what the header of an encoded subchunk claims: a shard of a hundred
//! bytes takes gigabytes. In the chain of inner codecs each of them is replaced by one of the same
//! name, type and configuration, which decodes through the host engine or chunk by chunk, and fails
//! where the content is longer than the codecs before it make a subchunk. That holds wherever zarrs
//! runs the chain: for whole subchunks, parts of them, and data types that zarrs' sharding handles.
//!
//! ```text
//! array-to-bytes codec
//!     sharding_indexed       this crate's codec, with the bounds of its own inner codecs
//!     optional, vlen         made again with bounded chains
//!     pcodec                 decoded chunk by chunk
//!     any other codec        stays
//!         bytes, packbits    have a bound
//!         vlen-utf8, …       have none, but allocate as much as they are given
//!         others             are named as unbounded
//! for each bytes-to-bytes codec
//!     zstd, gzip, zlib, blosc    decompressed by the host engine, up to the length of a subchunk
//!                                named as unbounded if the codecs before have no bound
//!     checksum, filter           stays: does not make bytes longer
//!     any other codec            stays, and is named as unbounded
//! ```
//!
//! The first codec that is named as unbounded is refused where data are not trusted.
//! `docs/reference/correctness.md` names the codecs that remain.

#[cfg(feature = "pcodec")]
mod pcodec;

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

use zarrs::array::codec::{
    BloscCodec, BytesCodec, GzipCodec, OptionalCodec, PackBitsCodec, ShardingCodec,
    ShardingCodecConfiguration, VlenArrayCodec, VlenBytesCodec, VlenCodec, VlenUtf8Codec,
    VlenV2Codec, ZlibCodec, ZstdCodec,
};
use zarrs::array::{ArrayBytesRaw, BytesRepresentation, CodecChain};
use zarrs::metadata::{Configuration, ConfigurationSerialize};
use zarrs::metadata_ext::codec::optional::OptionalCodecConfiguration;
use zarrs::metadata_ext::codec::vlen::{VlenCodecConfiguration, VlenIndexLocation};
use zarrs::plugin::{ExtensionName, PluginCreateError, ZarrVersion};
use zarrs_codec::{
    ArrayToBytesCodecTraits, BytesToBytesCodecTraits, CodecError, CodecMetadataOptions,
    CodecOptions, CodecSpecificOptions, CodecTraits, PartialDecoderCapability,
    PartialEncoderCapability, RecommendedConcurrency,
};

use super::find;
use crate::codec::CudaShardingCodec;
use crate::options::Options;
use crate::shard::codec_parts::{ChainMemoryBounds, InnerCodecs};
use crate::shard::error::not_decoded;
use crate::shard::subchunk_len::SubchunkLen;
use zarrs_cuda_engine::subchunk::DecompressedFormat;

/// Returns `chain` with decoders that allocate no more memory than the metadata justify. This crate's codec,
/// with `options`, decodes nested shards: zarrs' own panics on some corrupted shards, and encodes in no
/// particular order.
///
/// # Errors
/// A [`PluginCreateError`] if a codec of `chain` gives no metadata from which another codec can be made.
pub(super) fn bounded(
    chain: &CodecChain,
    options: &Options,
) -> Result<InnerCodecs, PluginCreateError> {
    let (codec, mut memory_bounds) = array_to_bytes(chain.array_to_bytes_codec(), options)?;
    let mut bytes_to_bytes = Vec::new();
    for codec in chain.bytes_to_bytes_codecs() {
        let compression = compression(codec.as_ref());
        if memory_bounds.unbounded.is_none()
            && !is_fixed_size(codec.as_ref())
            && (compression.is_none() || !memory_bounds.is_bounded)
        {
            memory_bounds.unbounded = Some(name_of(codec.as_ref()));
        }
        bytes_to_bytes.push(match compression {
            None => codec.clone(),
            Some(compression) => Arc::new(Decompressor {
                codec: codec.clone(),
                compression,
            }),
        });
    }
    let array_to_array = chain.array_to_array_codecs().to_vec();
    let alone = array_to_array.is_empty() && bytes_to_bytes.is_empty();
    Ok(InnerCodecs {
        nested: alone
            .then(|| Some(find::ours(&codec)?.spec.parts.clone()))
            .flatten(),
        chain: Arc::new(CodecChain::new(array_to_array, codec, bytes_to_bytes)),
        memory_bounds,
    })
}

/// Returns the codec that replaces the array-to-bytes codec `codec`, and the bounds of the memory that its
/// decoder takes.
fn array_to_bytes(
    codec: &Arc<dyn ArrayToBytesCodecTraits>,
    options: &Options,
) -> Result<(Arc<dyn ArrayToBytesCodecTraits>, ChainMemoryBounds), PluginCreateError> {
    let chain_of = |codecs: &[_]| bounded(&CodecChain::from_metadata(codecs)?, options);
    let any = codec.as_any();
    if any.is::<ShardingCodec>() {
        let ours = match find::ours(codec) {
            Some(ours) => ours,
            None => Arc::new(CudaShardingCodec::new_with_configuration(
                &configuration::<ShardingCodecConfiguration>(codec.as_ref())?,
                options.clone(),
            )?),
        };
        let memory_bounds = ours.spec.parts.memory_bounds.clone();
        return Ok((ours, memory_bounds));
    }
    if any.is::<OptionalCodec>()
        && let OptionalCodecConfiguration::V1(optional) = configuration(codec.as_ref())?
    {
        let mask = chain_of(&optional.mask_codecs)?;
        let data = chain_of(&optional.data_codecs)?;
        let codec = OptionalCodec::new(mask.chain, data.chain);
        let memory_bounds = ChainMemoryBounds {
            is_bounded: mask.memory_bounds.is_bounded && data.memory_bounds.is_bounded,
            unbounded: mask
                .memory_bounds
                .unbounded
                .or(data.memory_bounds.unbounded),
        };
        return Ok((Arc::new(codec), memory_bounds));
    }
    if any.is::<VlenCodec>() {
        let (index, data, data_type, location) = match configuration(codec.as_ref())? {
            VlenCodecConfiguration::V0_1(vlen) => (
                chain_of(&vlen.index_codecs)?,
                chain_of(&vlen.data_codecs)?,
                vlen.index_data_type,
                vlen.index_location,
            ),
            VlenCodecConfiguration::V0(vlen) => (
                chain_of(&vlen.index_codecs)?,
                chain_of(&vlen.data_codecs)?,
                vlen.index_data_type,
                VlenIndexLocation::Start,
            ),
            _ => return Ok(as_it_is(codec)),
        };
        // The encoded index says how long the data are, so nothing bounds what a compressor of the data
        // allocates.
        let compresses = |codec: &Arc<dyn BytesToBytesCodecTraits>| !is_fixed_size(codec.as_ref());
        let compressor = data
            .chain
            .bytes_to_bytes_codecs()
            .iter()
            .find(|c| compresses(c));
        let compressor = compressor.map(|codec| name_of(codec.as_ref()));
        let vlen = VlenCodec::new(index.chain, data.chain, data_type, location);
        let memory_bounds = ChainMemoryBounds {
            is_bounded: false,
            unbounded: index
                .memory_bounds
                .unbounded
                .or(data.memory_bounds.unbounded)
                .or(compressor),
        };
        return Ok((Arc::new(vlen), memory_bounds));
    }
    #[cfg(feature = "pcodec")]
    if let Some(codec) = pcodec::bounded(codec) {
        let memory_bounds = ChainMemoryBounds {
            is_bounded: true,
            unbounded: None,
        };
        return Ok((codec, memory_bounds));
    }
    Ok(as_it_is(codec))
}

/// Returns `codec` unchanged, and the bounds of the memory that its decoder takes.
fn as_it_is(
    codec: &Arc<dyn ArrayToBytesCodecTraits>,
) -> (Arc<dyn ArrayToBytesCodecTraits>, ChainMemoryBounds) {
    let any = codec.as_any();
    let is_bounded = any.is::<BytesCodec>() || any.is::<PackBitsCodec>();
    // These codecs allocate no more bytes than their encoded input has.
    let copies = any.is::<VlenUtf8Codec>()
        || any.is::<VlenBytesCodec>()
        || any.is::<VlenArrayCodec>()
        || any.is::<VlenV2Codec>();
    let memory_bounds = ChainMemoryBounds {
        is_bounded,
        unbounded: (!is_bounded && !copies).then(|| name_of(codec.as_ref())),
    };
    (codec.clone(), memory_bounds)
}

/// Returns the configuration of `codec`.
fn configuration<T: ConfigurationSerialize>(
    codec: &dyn ArrayToBytesCodecTraits,
) -> Result<T, PluginCreateError> {
    codec
        .configuration_v3(&CodecMetadataOptions::default())
        .and_then(|configuration| T::try_from_configuration(configuration).ok())
        .ok_or_else(|| {
            let name = name_of(codec);
            PluginCreateError::Other(format!("the inner codec `{name}` has no metadata"))
        })
}

fn name_of<C: CodecTraits + ?Sized>(codec: &C) -> String {
    let name = codec
        .name(ZarrVersion::V3)
        .unwrap_or("without a name".into());
    name.into_owned()
}

/// Returns whether `codec` is a checksum or filter, whose decoded bytes are not longer than the encoded ones.
fn is_fixed_size(codec: &dyn BytesToBytesCodecTraits) -> bool {
    let encoded = codec.encoded_representation(&BytesRepresentation::FixedSize(1 << 10));
    matches!(encoded, BytesRepresentation::FixedSize(_))
}

/// Returns the format of `codec`, if the host engine decompresses it.
fn compression(codec: &dyn BytesToBytesCodecTraits) -> Option<DecompressedFormat> {
    let any = codec.as_any();
    [
        (any.is::<ZstdCodec>(), DecompressedFormat::Zstd),
        (any.is::<GzipCodec>(), DecompressedFormat::Gzip),
        (any.is::<ZlibCodec>(), DecompressedFormat::Zlib),
        (any.is::<BloscCodec>(), DecompressedFormat::Blosc),
    ]
    .into_iter()
    .find_map(|(is, compression)| is.then_some(compression))
}

/// A compressor of zarrs whose decoding is replaced: the host engine decompresses, with a limit.
#[derive(Debug)]
struct Decompressor {
    codec: Arc<dyn BytesToBytesCodecTraits>,
    compression: DecompressedFormat,
}

impl ExtensionName for Decompressor {
    fn name(&self, version: ZarrVersion) -> Option<Cow<'static, str>> {
        self.codec.name(version)
    }
}

impl CodecTraits for Decompressor {
    /// Returns zarrs' codec, because chains are recognised by the types of their codecs.
    fn as_any(&self) -> &dyn Any {
        self.codec.as_any()
    }

    fn configuration(
        &self,
        version: ZarrVersion,
        options: &CodecMetadataOptions,
    ) -> Option<Configuration> {
        self.codec.configuration(version, options)
    }

    fn partial_decoder_capability(&self) -> PartialDecoderCapability {
        self.codec.partial_decoder_capability()
    }

    fn partial_encoder_capability(&self) -> PartialEncoderCapability {
        self.codec.partial_encoder_capability()
    }
}

/// Parts of a subchunk are decoded and encoded as for each of zarrs' compressors: by way of the whole
/// subchunk.
#[cfg_attr(feature = "async", async_trait::async_trait)]
impl BytesToBytesCodecTraits for Decompressor {
    fn into_dyn(self: Arc<Self>) -> Arc<dyn BytesToBytesCodecTraits> {
        self
    }

    fn with_codec_specific_options(
        self: Arc<Self>,
        options: &CodecSpecificOptions,
    ) -> Arc<dyn BytesToBytesCodecTraits> {
        Arc::new(Self {
            codec: self.codec.clone().with_codec_specific_options(options),
            compression: self.compression,
        })
    }

    fn recommended_concurrency(
        &self,
        decoded_representation: &BytesRepresentation,
    ) -> Result<RecommendedConcurrency, CodecError> {
        self.codec.recommended_concurrency(decoded_representation)
    }

    fn encoded_representation(
        &self,
        decoded_representation: &BytesRepresentation,
    ) -> BytesRepresentation {
        self.codec.encoded_representation(decoded_representation)
    }

    fn encode<'a>(
        &self,
        decoded_value: ArrayBytesRaw<'a>,
        options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        self.codec.encode(decoded_value, options)
    }

    fn decode<'a>(
        &self,
        encoded_value: ArrayBytesRaw<'a>,
        decoded_representation: &BytesRepresentation,
        options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        let most = SubchunkLen::from(*decoded_representation).most();
        if most.is_none() && !self.compression.says_how_long() {
            // Neither the metadata nor the compressed bytes say how long the content is. zarrs' decoder grows
            // its memory while it decompresses.
            return self
                .codec
                .decode(encoded_value, decoded_representation, options);
        }
        let most = most.and_then(|most| usize::try_from(most).ok());
        let decompressed = self
            .compression
            .decompress(&encoded_value, most.unwrap_or(usize::MAX));
        decompressed.map(Cow::Owned).map_err(|failed| {
            not_decoded(failed, |reason| {
                let most = most.map_or_else(String::new, |most| {
                    format!(", of which the array's metadata justify at most {most} bytes,")
                });
                format!(
                    "`{}` could not decompress {} bytes to the content{most} of a subchunk: {reason}; the shard may be corrupted",
                    name_of(self.codec.as_ref()),
                    encoded_value.len()
                )
            })
        })
    }
}

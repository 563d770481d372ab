//! The `sharding_indexed` array-to-bytes codec: the only code that implements zarrs' codec traits.

mod bounded;
mod builder;
mod delegated;
pub(crate) mod find;
mod ours;
pub(crate) mod partial_decoder;
mod partial_encoder;
pub(crate) mod registry;
mod shard_codec;
#[allow(unsafe_code)]
mod view;

use std::any::Any;
use std::borrow::Cow;
use std::num::NonZeroU64;
use std::sync::Arc;

use zarrs::array::codec::{ShardingCodecConfiguration, ShardingIndexLocation};
use zarrs::array::{
    ArrayBytes, ArrayBytesRaw, BytesRepresentation, ChunkShape, CodecChain, DataType, FillValue,
};
use zarrs::metadata::Configuration;
use zarrs::metadata::v3::MetadataV3;
use zarrs::plugin::{ExtensionName, PluginCreateError, ZarrVersion};
use zarrs_codec::{
    ArrayBytesDecodeIntoTarget, ArrayCodecTraits, ArrayPartialDecoderTraits,
    ArrayPartialEncoderTraits, ArrayToBytesCodecTraits, BytesPartialDecoderTraits,
    BytesPartialEncoderTraits, CodecError, CodecMetadataOptions, CodecOptions,
    CodecSpecificOptions, CodecTraits, PartialDecoderCapability, PartialEncoderCapability,
    RecommendedConcurrency,
};
#[cfg(feature = "async")]
use zarrs_codec::{
    AsyncArrayPartialDecoderTraits, AsyncArrayPartialEncoderTraits, AsyncBytesPartialDecoderTraits,
    AsyncBytesPartialEncoderTraits,
};

pub use builder::CudaShardingCodecBuilder;
pub use find::explain;
pub(crate) use ours::encode_elements;
pub(crate) use partial_encoder::changed;

use crate::error::Error;
use crate::metrics::MemoryEstimate;
use crate::options::Options;
use crate::panics::no_panic_of_settings;
#[cfg(test)]
use crate::plan::Engines;
use crate::plan::Explanation;
use crate::shard::codec_parts::CodecParts;
use crate::shard::sharding::{self, Sharding};
use crate::shard::spec::ShardingSpec;
#[cfg(feature = "async")]
use crate::store::AwaitedHandle;
use crate::store::BlockingHandle;
use bounded::bounded;
use delegated::Delegated;
use ours::Ours;
use partial_encoder::PartialEncoder;
use shard_codec::ShardCodec;
use zarrs_cuda_engine::memory::allocate;

/// The `sharding_indexed` codec.
///
/// Use it through [`register`](crate::register) for every array of the process, or through
/// [`CudaShardingCodecBuilder`] for one array.
///
/// ### Compatible Implementations
/// It is compatible with zarrs' [`ShardingCodec`]: it writes the same metadata, and shards that any
/// implementation of the specification reads. Subchunks lie densely in C order, whatever
/// [`SubchunkWriteOrder`] is set, so that equal data give equal shards.
///
/// `as_any` returns zarrs' own [`ShardingCodec`] of the same configuration, because zarrs tests for
/// that type before it reads single subchunks. [`explain`](crate::explain) finds this codec in an
/// array.
///
/// ### Shards
/// The encoded subchunks and the index of a shard, for both places of the index:
///
/// ```text
/// end:    | subchunk | subchunk | … | subchunk | index |
/// start:  | index | subchunk | subchunk | … | subchunk |
///
/// index:  | offset, nbytes | offset, nbytes | … | offset, nbytes | CRC32C  |
///           16 bytes         16 bytes             16 bytes         4 bytes
/// ```
///
/// The index has an entry for each subchunk of the shard, in C order. An entry has two 64-bit integers: the
/// offset of the encoded subchunk from the start of the shard, and the number of its bytes. Both are 2⁶⁴ − 1 if
/// the subchunk is empty. The checksum is behind all entries, if `crc32c` is an index codec. Partial writes may
/// leave subchunks in another order, with unused bytes between them.
///
/// ### Specification
/// - <https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html>
///
/// ### Codec `name` Aliases (Zarr V3)
/// - `sharding_indexed`
///
/// ### Codec `configuration` Example - [`ShardingCodecConfiguration`]:
/// ```rust
/// # let JSON = r#"
/// {
///     "chunk_shape": [32, 32, 32],
///     "codecs": [
///         { "name": "bytes", "configuration": { "endian": "little" } },
///         { "name": "zstd", "configuration": { "level": 1, "checksum": false } }
///     ],
///     "index_codecs": [
///         { "name": "bytes", "configuration": { "endian": "little" } },
///         { "name": "crc32c" }
///     ],
///     "index_location": "end"
/// }
/// # "#;
/// # let configuration = serde_json::from_str(JSON).unwrap();
/// # let options = zarrs_cuda::Options::default();
/// # zarrs_cuda::CudaShardingCodec::new_with_configuration(&configuration, options).unwrap();
/// ```
///
/// [`ShardingCodec`]: zarrs::array::codec::ShardingCodec
/// [`SubchunkWriteOrder`]: zarrs::array::codec::SubchunkWriteOrder
#[derive(Clone, Debug)]
pub struct CudaShardingCodec {
    spec: ShardingSpec,
}

impl CudaShardingCodec {
    /// Creates a codec from the parts of its configuration.
    ///
    /// Nested `sharding_indexed` codecs of zarrs are replaced by this codec. Decompressors are
    /// replaced by those of this crate's host engine, whose memory is bounded.
    ///
    /// # Errors
    /// A [`PluginCreateError`] if `index_codecs` do not encode to a fixed size, because a reader could not
    /// find such an index in a shard.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "the arguments are those of zarrs' codec"
    )]
    pub fn new(
        subchunk_shape: ChunkShape,
        inner_codecs: Arc<CodecChain>,
        index_codecs: Arc<CodecChain>,
        index_location: ShardingIndexLocation,
        options: Options,
    ) -> Result<Self, PluginCreateError> {
        let parts = CodecParts::new(
            subchunk_shape,
            bounded(&inner_codecs, &options)?,
            index_codecs,
            index_location,
            options,
        );
        parts.map(Self::of)
    }

    fn of(parts: CodecParts) -> Self {
        Self::of_spec(ShardingSpec::new(parts))
    }

    /// Returns the codec that encodes and decodes the shards of `spec`.
    pub(crate) fn of_spec(spec: ShardingSpec) -> Self {
        Self { spec }
    }

    /// Creates a codec from its configuration.
    ///
    /// # Errors
    /// A [`PluginCreateError`] if a codec of the configuration cannot be created; the errors of
    /// [`new`](Self::new).
    pub fn new_with_configuration(
        configuration: &ShardingCodecConfiguration,
        options: Options,
    ) -> Result<Self, PluginCreateError> {
        let ShardingCodecConfiguration::V1(configuration) = configuration else {
            return Err(PluginCreateError::Other(
                "this sharding_indexed codec configuration variant is unsupported".to_string(),
            ));
        };
        let chain = |codecs| no_panic_of_settings(|| CodecChain::from_metadata(codecs));
        Self::new(
            configuration.chunk_shape.clone(),
            Arc::new(chain(&configuration.codecs)?),
            Arc::new(chain(&configuration.index_codecs)?),
            configuration.index_location,
            options,
        )
    }

    /// Creates a codec from its metadata.
    pub(crate) fn from_metadata(
        metadata: &MetadataV3,
        options: Options,
    ) -> Result<Self, PluginCreateError> {
        let configuration: ShardingCodecConfiguration = metadata.to_typed_configuration()?;
        Self::new_with_configuration(&configuration, options)
    }

    /// Returns the same codec with other engines.
    #[cfg(test)]
    pub(crate) fn with_engines(&self, engines: Engines) -> Self {
        Self::of(self.spec.parts.with_engines(engines))
    }

    /// Returns the runtime options.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.spec.parts.options
    }

    /// Returns the same codec with other runtime options. They apply to nested codecs of this
    /// crate, too.
    #[must_use]
    #[allow(clippy::needless_pass_by_value, reason = "a builder's method")]
    pub fn with_options(self, options: Options) -> Self {
        Self::of(self.spec.parts.with_options(options))
    }

    /// Checks that a device is usable if a setting asks for one
    /// ([`CodecParts::check_backend`](crate::shard::codec_parts::CodecParts::check_backend)).
    pub(crate) fn check_backend(&self) -> Result<(), CodecError> {
        self.spec.parts.check_backend()
    }

    /// Returns the number of elements of a subchunk along each axis.
    pub(crate) fn subchunk_shape(&self) -> &ChunkShape {
        &self.spec.parts.subchunk_shape
    }

    /// Returns the same codec with subchunks of another shape.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub(crate) fn with_subchunk_shape(
        &self,
        subchunk_shape: ChunkShape,
    ) -> Result<Self, PluginCreateError> {
        let parts = CodecParts::new(
            subchunk_shape,
            bounded(&self.spec.parts.inner_codecs, &self.spec.parts.options)?,
            self.spec.parts.index_codecs.chain().clone(),
            self.spec.parts.index_location,
            self.spec.parts.options.clone(),
        )?;
        let engines = self.spec.parts.engines.clone();
        Ok(Self::of(CodecParts { engines, ..parts }))
    }

    /// Returns the shards that this codec encodes for `shape` (elements), `data_type` and `fill_value`.
    ///
    /// # Errors
    /// A [`CodecError`] if the shape, data type, fill value and codec do not fit each other.
    pub(crate) fn sharding(
        &self,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Result<Arc<Sharding>, CodecError> {
        self.spec.sharding(shape, data_type, fill_value)
    }

    /// Explains what happens to shards of `shard_shape` (elements), `data_type` and `fill_value`:
    /// each stage, where it runs, and why.
    ///
    /// # Errors
    /// - [`Error::Codec`] if the shapes, data type and codecs do not fit each other.
    /// - [`Error::BackendUnavailable`] if the options ask for a backend that cannot be used.
    pub fn explain(
        &self,
        shard_shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Result<Explanation, Error> {
        let shards = self.sharding(shard_shape, data_type, fill_value)?;
        let mut explanation = shards.shard_codec().explain(&shards)?;
        explanation.partial_writes = partial_encoder::explain(&shards);
        let wanted = self.spec.parts.options.huge_pages();
        explanation.no_huge_pages = allocate::why_no_huge_pages(wanted).map(str::to_owned);
        Ok(explanation)
    }

    /// Returns the memory that the buffers of one shard in flight take, for shards of `shard_shape`
    /// (elements), `data_type` and `fill_value`. Returns `None` if these shards do not go to a
    /// device. Creates the context of the device, unlike [`explain`](Self::explain), because the answer
    /// depends on the free memory.
    ///
    /// # Errors
    /// The errors of [`explain`](Self::explain).
    pub fn memory_estimate(
        &self,
        shard_shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Result<Option<MemoryEstimate>, Error> {
        let shards = self.sharding(shard_shape, data_type, fill_value)?;
        shards.shard_codec().check(&shards)?;
        Ok(match shards.delegated() {
            Some(_) => None,
            None => shards.choose_engine()?.memory(),
        })
    }
}

impl ExtensionName for CudaShardingCodec {
    fn name(&self, version: ZarrVersion) -> Option<Cow<'static, str>> {
        self.spec.parts.stock.name(version)
    }
}

impl CodecTraits for CudaShardingCodec {
    /// Returns zarrs' [`ShardingCodec`](zarrs::array::codec::ShardingCodec) of the same configuration,
    /// because zarrs tests for that type.
    fn as_any(&self) -> &dyn Any {
        &self.spec.parts.stock
    }

    fn configuration(
        &self,
        version: ZarrVersion,
        options: &CodecMetadataOptions,
    ) -> Option<Configuration> {
        self.spec.parts.stock.configuration(version, options)
    }

    fn partial_decoder_capability(&self) -> PartialDecoderCapability {
        PartialDecoderCapability {
            partial_read: true,
            partial_decode: true,
        }
    }

    fn partial_encoder_capability(&self) -> PartialEncoderCapability {
        PartialEncoderCapability {
            partial_encode: true,
        }
    }
}

impl ArrayCodecTraits for CudaShardingCodec {
    fn recommended_concurrency(
        &self,
        shape: &[NonZeroU64],
        _data_type: &DataType,
    ) -> Result<RecommendedConcurrency, CodecError> {
        let grid = sharding::grid(&self.spec.parts, shape, 1)?;
        Ok(RecommendedConcurrency::new_maximum(grid.num_subchunks()))
    }

    fn partial_decode_granularity(&self, _shape: &[NonZeroU64]) -> ChunkShape {
        self.spec.parts.subchunk_shape.clone()
    }
}

#[cfg_attr(feature = "async", async_trait::async_trait)]
impl ArrayToBytesCodecTraits for CudaShardingCodec {
    fn into_dyn(self: Arc<Self>) -> Arc<dyn ArrayToBytesCodecTraits> {
        self
    }

    fn with_codec_specific_options(
        self: Arc<Self>,
        options: &CodecSpecificOptions,
    ) -> Arc<dyn ArrayToBytesCodecTraits> {
        find::answer(&self, options);
        // zarrs' own `ShardingCodecOptions` ask for an order of subchunks. They are ignored, because C order
        // is allowed for every order that zarrs has.
        match options.get_option::<Options>() {
            Some(options) => Arc::new((*self).clone().with_options(options.clone())),
            None => self,
        }
    }

    fn encode<'a>(
        &self,
        bytes: ArrayBytes<'a>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
        options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        let shards = self.sharding(shape, data_type, fill_value)?;
        bytes.validate(shape.iter().map(|d| d.get()).product(), data_type)?;
        shards.shard_codec().encode(&shards, bytes, options)
    }

    fn decode<'a>(
        &self,
        bytes: ArrayBytesRaw<'a>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError> {
        self.spec.parts.check_trusted()?;
        let shards = self.sharding(shape, data_type, fill_value)?;
        shards.shard_codec().decode(&shards, bytes, options)
    }

    fn compact<'a>(
        &self,
        bytes: ArrayBytesRaw<'a>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
        options: &CodecOptions,
    ) -> Result<Option<ArrayBytesRaw<'a>>, CodecError> {
        let shards = self.sharding(shape, data_type, fill_value)?;
        Ok(shards.compact(&bytes, options)?.map(Cow::Owned))
    }

    fn decode_into(
        &self,
        bytes: ArrayBytesRaw<'_>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
        output_target: ArrayBytesDecodeIntoTarget<'_>,
        options: &CodecOptions,
    ) -> Result<(), CodecError> {
        self.spec.parts.check_trusted()?;
        let shards = self.sharding(shape, data_type, fill_value)?;
        let codec = shards.shard_codec();
        codec.decode_into(&shards, bytes, output_target, options)
    }

    fn partial_decoder(
        self: Arc<Self>,
        input_handle: Arc<dyn BytesPartialDecoderTraits>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
        options: &CodecOptions,
    ) -> Result<Arc<dyn ArrayPartialDecoderTraits>, CodecError> {
        self.spec.parts.check_trusted()?;
        let shards = self.sharding(shape, data_type, fill_value)?;
        let codec = shards.shard_codec();
        codec.partial_decoder(shards, input_handle, options)
    }

    fn partial_encoder(
        self: Arc<Self>,
        input_output_handle: Arc<dyn BytesPartialEncoderTraits>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
        _options: &CodecOptions,
    ) -> Result<Arc<dyn ArrayPartialEncoderTraits>, CodecError> {
        self.spec.parts.check_trusted()?;
        let shards = self.sharding(shape, data_type, fill_value)?;
        shards.shard_codec().check(&shards)?;
        Ok(Arc::new(PartialEncoder::<BlockingHandle>::new(
            shards,
            input_output_handle,
        )))
    }

    #[cfg(feature = "async")]
    async fn async_partial_decoder(
        self: Arc<Self>,
        input_handle: Arc<dyn AsyncBytesPartialDecoderTraits>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
        options: &CodecOptions,
    ) -> Result<Arc<dyn AsyncArrayPartialDecoderTraits>, CodecError> {
        self.spec.parts.check_trusted()?;
        let shards = self.sharding(shape, data_type, fill_value)?;
        let codec = shards.shard_codec();
        codec
            .async_partial_decoder(shards, input_handle, options)
            .await
    }

    #[cfg(feature = "async")]
    async fn async_partial_encoder(
        self: Arc<Self>,
        input_output_handle: Arc<dyn AsyncBytesPartialEncoderTraits>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
        _options: &CodecOptions,
    ) -> Result<Arc<dyn AsyncArrayPartialEncoderTraits>, CodecError> {
        self.spec.parts.check_trusted()?;
        let shards = self.sharding(shape, data_type, fill_value)?;
        shards.shard_codec().check(&shards)?;
        Ok(Arc::new(PartialEncoder::<AwaitedHandle>::new(
            shards,
            input_output_handle,
        )))
    }

    fn encoded_representation(
        &self,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Result<BytesRepresentation, CodecError> {
        self.sharding(shape, data_type, fill_value)?
            .encoded_representation()
    }
}

impl Sharding {
    /// Returns the [`ShardCodec`] that encodes and decodes these shards.
    fn shard_codec(&self) -> &'static dyn ShardCodec {
        match self.delegated() {
            None => &Ours,
            Some(_) => &Delegated,
        }
    }
}

//! The `sharding_indexed` array-to-bytes codec: the only code that implements zarrs' codec traits.

mod bounded;
mod builder;
mod delegated;
pub(crate) mod find;
pub(crate) mod foreign;
pub(crate) mod index;
mod partial_decoder;
mod partial_encoder;
mod recognise;
pub(crate) mod registry;
mod selection;
pub(crate) mod shard;
pub(crate) mod stored;
pub(crate) mod stream;
#[allow(unsafe_code)]
mod view;

use std::any::Any;
use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU64;
use std::sync::{Arc, OnceLock};

use zarrs::array::codec::{
    ShardingCodec, ShardingCodecConfiguration, ShardingIndexLocation, SubchunkWriteOrder,
};
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
    CodecSpecificOptions, CodecTraits, InvalidNumberOfElementsError, PartialDecoderCapability,
    PartialEncoderCapability, RecommendedConcurrency,
};
#[cfg(feature = "async")]
use zarrs_codec::{
    AsyncArrayPartialDecoderTraits, AsyncArrayPartialEncoderTraits, AsyncBytesPartialDecoderTraits,
    AsyncBytesPartialEncoderTraits,
};

pub use builder::CudaShardingCodecBuilder;
pub use find::explain;

use crate::plan::{self, Engines, Explanation};
use crate::{Error, MemoryEstimate, Options};
use bounded::{Bounded, Limits, bounded};
use delegated::{Delegated, Guarded};
use foreign::{codec_error, no_panic};
use index::IndexCodecs;
use partial_decoder::PartialDecoder;
use partial_encoder::PartialEncoder;
use recognise::{RecognisedChain, recognise};
use shard::Shard;
use view::ViewOfShard;

/// The `sharding_indexed` codec.
///
/// Registered with [`register`](crate::register), or built with [`CudaShardingCodecBuilder`].
///
/// ### Compatible Implementations
/// This is zarrs' [`ShardingCodec`] in every respect but speed: it writes the same metadata, and
/// shards that any implementation of the specification reads. Subchunks lie in C order, densely,
/// whatever [`SubchunkWriteOrder`] is asked for, so that equal data give equal shards.
///
/// `as_any` returns zarrs' own [`ShardingCodec`] of the same configuration, because zarrs tests for
/// that type before it reads single subchunks. [`explain`](crate::explain) finds this codec in an
/// array.
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
#[derive(Clone, Debug)]
pub struct CudaShardingCodec {
    subchunk_shape: ChunkShape,
    inner_codecs: Arc<CodecChain>,
    index_codecs: IndexCodecs,
    index_location: ShardingIndexLocation,
    /// The inner codecs as data, or why they cannot be that.
    recognised: Result<RecognisedChain, String>,
    /// What bounds the memory that the inner codecs take.
    limits: Limits,
    /// zarrs' codec of the same configuration: for `as_any`, metadata, and variable-length types.
    stock: ShardingCodec,
    options: Options,
    engines: Engines,
    /// Of the configuration, once a partial encoder has asked for it.
    fingerprint: OnceLock<u64>,
}

impl CudaShardingCodec {
    /// Create a codec from the parts of its configuration.
    ///
    /// A nested codec that is zarrs' own `sharding_indexed` is replaced by this one, and decompressors by
    /// those of this crate's host engine, whose memory is bounded.
    ///
    /// # Errors
    /// A [`PluginCreateError`] if the size of what `index_codecs` encode is not fixed: the index
    /// could not be found in a shard.
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
        let index = IndexCodecs::new(index_codecs.clone(), subchunk_shape.len())
            .map_err(PluginCreateError::Other)?;
        let Bounded { chain, limits } = bounded(&inner_codecs, &options)?;
        let inner_codecs = chain;
        // Deterministic output, also where zarrs does the encoding.
        let stock = ShardingCodec::new(
            subchunk_shape.clone(),
            inner_codecs.clone(),
            index_codecs,
            index_location,
        )
        .with_subchunk_write_order(SubchunkWriteOrder::C);
        Ok(Self {
            recognised: recognise(&inner_codecs),
            limits,
            subchunk_shape,
            inner_codecs,
            index_codecs: index,
            index_location,
            stock,
            options,
            engines: Engines::default(),
            fingerprint: OnceLock::new(),
        })
    }

    /// Create a codec from its configuration.
    ///
    /// # Errors
    /// A [`PluginCreateError`] if a codec of the configuration cannot be created, or as for
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
        Self::new(
            configuration.chunk_shape.clone(),
            Arc::new(CodecChain::from_metadata(&configuration.codecs)?),
            Arc::new(CodecChain::from_metadata(&configuration.index_codecs)?),
            configuration.index_location,
            options,
        )
    }

    /// Create a codec from its metadata.
    pub(crate) fn from_metadata(
        metadata: &MetadataV3,
        options: Options,
    ) -> Result<Self, PluginCreateError> {
        let configuration: ShardingCodecConfiguration = metadata.to_typed_configuration()?;
        Self::new_with_configuration(&configuration, options)
    }

    /// The same codec with other engines.
    #[cfg(feature = "conformance")]
    pub(crate) fn with_engines(mut self, engines: Engines) -> Self {
        self.engines = engines;
        self
    }

    /// Codecs of one configuration have the same.
    fn fingerprint(&self) -> u64 {
        *self.fingerprint.get_or_init(|| {
            let metadata = self.configuration(ZarrVersion::V3, &CodecMetadataOptions::default());
            let mut hasher = DefaultHasher::new();
            format!("{metadata:?}").hash(&mut hasher);
            hasher.finish()
        })
    }

    /// The runtime options.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The same codec with other runtime options, for nested codecs of this crate, too.
    #[must_use]
    pub fn with_options(mut self, options: Options) -> Self {
        let for_nested = CodecSpecificOptions::default().with_option(options.clone());
        let inner_codecs = (*self.inner_codecs).clone();
        self.inner_codecs = Arc::new(inner_codecs.with_codec_specific_options(&for_nested));
        self.options = options;
        self
    }

    /// Say what happens to shards of `shard_shape` (elements), `data_type` and `fill_value`: each
    /// stage, where it runs, and why.
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
        let mut explanation = self.explain_stages(shard_shape, data_type, fill_value)?;
        explanation.partial_writes =
            partial_encoder::explain(self, shard_shape, data_type, fill_value)?;
        Ok(explanation)
    }

    fn explain_stages(
        &self,
        shard_shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Result<Explanation, Error> {
        if Self::is_delegated(data_type) && !data_type.is_optional() {
            let (grid, _) = shard::index_geometry(self, shard_shape)?;
            let why = Self::why_delegated(data_type);
            return plan::explain_delegated(&grid, why, &self.options);
        }
        let shard = Shard::new(self, shard_shape, data_type, fill_value)?;
        let end = match self.index_location {
            ShardingIndexLocation::Start => "start",
            ShardingIndexLocation::End => "end",
        };
        let choice = shard.choose_engine()?;
        Ok(plan::explain(
            &shard.grid,
            shard.known.as_ref().map_err(String::as_str),
            format!("index of {} bytes at the {end}", shard.index.len()),
            &choice,
        ))
    }

    /// What one shard in flight takes for buffers on a device: shards of `shard_shape` (elements),
    /// `data_type` and `fill_value`. `None` if these shards do not go to a device.
    ///
    /// # Errors
    /// As for [`explain`](Self::explain).
    pub fn memory_estimate(
        &self,
        shard_shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Result<Option<MemoryEstimate>, Error> {
        Ok(self.explain(shard_shape, data_type, fill_value)?.memory)
    }

    /// That the options allow to decode with these codecs.
    ///
    /// # Errors
    /// A [`CodecError`] if the data are not trusted, and a codec needs that.
    pub(crate) fn check_trusted(&self) -> Result<(), CodecError> {
        match &self.limits.unbounded {
            Some(codec) if self.options.untrusted_data() => Err(CodecError::Other(format!(
                "the inner codec `{codec}` is not decoded: a hostile shard could make it take more memory than the array's metadata justify, and the options say that the data are not to be trusted. If the data are to be trusted, decode without `Options::with_untrusted_data`; or store the array with other codecs"
            ))),
            _ => Ok(()),
        }
    }

    /// That zarrs' codec may handle `data_type`.
    fn check_delegated(&self, data_type: &DataType) -> Result<(), CodecError> {
        Engines::check_delegated(&self.options, &Self::why_delegated(data_type)).map_err(other)
    }

    /// Why zarrs' codec handles `data_type`.
    fn why_delegated(data_type: &DataType) -> String {
        if data_type.is_optional() {
            return format!("elements of {data_type} may be missing");
        }
        match data_type.fixed_size() {
            Some(_) => format!("elements of {data_type} have no bytes"),
            None => format!("elements of {data_type} have no fixed size"),
        }
    }

    /// Whether zarrs' codec handles `data_type`: it is variable-length, optional, or empty.
    fn is_delegated(data_type: &DataType) -> bool {
        data_type.is_optional() || data_type.fixed_size().is_none_or(|size| size == 0)
    }
}

impl ExtensionName for CudaShardingCodec {
    fn name(&self, version: ZarrVersion) -> Option<Cow<'static, str>> {
        self.stock.name(version)
    }
}

impl CodecTraits for CudaShardingCodec {
    /// zarrs' [`ShardingCodec`] of the same configuration: zarrs tests for that type.
    fn as_any(&self) -> &dyn Any {
        &self.stock
    }

    fn configuration(
        &self,
        version: ZarrVersion,
        options: &CodecMetadataOptions,
    ) -> Option<Configuration> {
        self.stock.configuration(version, options)
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
        let (grid, _) = shard::index_geometry(self, shape)?;
        Ok(RecommendedConcurrency::new_maximum(grid.num_subchunks()))
    }

    fn partial_decode_granularity(&self, _shape: &[NonZeroU64]) -> ChunkShape {
        self.subchunk_shape.clone()
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
        // zarrs' own `ShardingCodecOptions` ask for an order of subchunks: C order is every order
        // that zarrs has.
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
        if Self::is_delegated(data_type) {
            self.check_delegated(data_type)?;
            if data_type.is_optional() || data_type.fixed_size().is_some() {
                return self
                    .stock
                    .encode(bytes, shape, data_type, fill_value, options);
            }
            // zarrs' codec would leave out subchunks that only look like the fill value.
            bytes.validate(shape.iter().map(|d| d.get()).product(), data_type)?;
            let target = (shape, data_type, fill_value);
            return partial_encoder::encode_delegated(self, target, &bytes, options)
                .map(Cow::Owned);
        }
        let shard = Shard::new(self, shape, data_type, fill_value)?;
        bytes.validate(shape.iter().map(|d| d.get()).product(), data_type)?;
        let bytes = bytes.into_fixed()?;
        if shard.known.is_err() {
            // Whether the inner codecs accept the data type must not depend on the data.
            self.inner_codecs.encoded_representation(
                &self.subchunk_shape,
                data_type,
                fill_value,
            )?;
        }
        let engine = shard.choose_engine().map_err(other)?.engine;
        let (head, tail) = shard.index.room();
        let encoded = shard
            .with_job(options, |job| engine.encode(job, &bytes, head, tail))
            .map_err(codec_error)?;
        Ok(Cow::Owned(shard.with_index(
            encoded.bytes,
            &encoded.extents,
            options,
        )?))
    }

    fn decode<'a>(
        &self,
        bytes: ArrayBytesRaw<'a>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError> {
        self.check_trusted()?;
        if Self::is_delegated(data_type) {
            self.check_delegated(data_type)?;
            shard::check_index(self, &bytes, shape, options)?;
            return no_panic(|| {
                self.stock
                    .decode(bytes, shape, data_type, fill_value, options)
            });
        }
        let shard = Shard::new(self, shape, data_type, fill_value)?;
        let extents = shard.decode_index(&bytes, options)?;
        let engine = shard.choose_decoder().map_err(other)?.engine;
        shard
            .with_job(options, |job| engine.decode(job, &bytes, &extents))
            .map(ArrayBytes::new_flen)
            .map_err(codec_error)
    }

    fn compact<'a>(
        &self,
        bytes: ArrayBytesRaw<'a>,
        shape: &[NonZeroU64],
        _data_type: &DataType,
        _fill_value: &FillValue,
        options: &CodecOptions,
    ) -> Result<Option<ArrayBytesRaw<'a>>, CodecError> {
        Ok(shard::compact(self, &bytes, shape, options)?.map(Cow::Owned))
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
        self.check_trusted()?;
        let view = match output_target {
            ArrayBytesDecodeIntoTarget::Fixed(view) if !Self::is_delegated(data_type) => view,
            target => {
                self.check_delegated(data_type)?;
                shard::check_index(self, &bytes, shape, options)?;
                return no_panic(|| {
                    self.stock
                        .decode_into(bytes, shape, data_type, fill_value, target, options)
                });
            }
        };
        let shard = Shard::new(self, shape, data_type, fill_value)?;
        let num_elements = shape.iter().map(|d| d.get()).product::<u64>();
        if view.num_elements() != num_elements {
            return Err(
                InvalidNumberOfElementsError::new(view.num_elements(), num_elements).into(),
            );
        }
        let engine = shard.choose_decoder().map_err(other)?.engine;
        let extents = shard.decode_index(&bytes, options)?;
        let (start, whole) = (vec![0; shape.len()], shard.grid.shard().to_vec());
        let output = ViewOfShard::new(view, &shard.grid, start, whole)
            .filter(|_| !engine.decodes_whole_shards());
        let Some(output) = output else {
            // The same number of elements in another shape, or all of them from a device: zarrs lays
            // them out.
            let decoded = shard
                .with_job(options, |job| engine.decode(job, &bytes, &extents))
                .map_err(codec_error)?;
            return Ok(view.copy_from_slice(&decoded)?);
        };
        let subchunks = shard::encoded_subchunks(&bytes, &extents);
        shard
            .with_job(options, |job| {
                plan::host_engine().decode_each(job, &subchunks, &|_, subchunk, decoded| {
                    output.write(subchunk.number, &decoded, job.fill_value)
                })
            })
            .map_err(codec_error)
    }

    fn partial_decoder(
        self: Arc<Self>,
        input_handle: Arc<dyn BytesPartialDecoderTraits>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
        options: &CodecOptions,
    ) -> Result<Arc<dyn ArrayPartialDecoderTraits>, CodecError> {
        self.check_trusted()?;
        if Self::is_delegated(data_type) {
            partial_decoder::check_index(&self, &*input_handle, shape, options)?;
            let input = Arc::new(Guarded(input_handle));
            let stock = Arc::new(self.stock.clone());
            let decoder = stock.partial_decoder(input, shape, data_type, fill_value, options)?;
            return Ok(Arc::new(Delegated(decoder)));
        }
        Ok(Arc::new(PartialDecoder::new(
            self,
            input_handle,
            shape,
            data_type,
            fill_value,
            options,
        )?))
    }

    fn partial_encoder(
        self: Arc<Self>,
        input_output_handle: Arc<dyn BytesPartialEncoderTraits>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
        _options: &CodecOptions,
    ) -> Result<Arc<dyn ArrayPartialEncoderTraits>, CodecError> {
        self.check_trusted()?;
        if Self::is_delegated(data_type) {
            self.check_delegated(data_type)?;
        }
        Ok(Arc::new(PartialEncoder::new(
            self,
            input_output_handle,
            shape,
            data_type,
            fill_value,
        )?))
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
        self.check_trusted()?;
        if Self::is_delegated(data_type) {
            partial_decoder::async_check_index(&self, &*input_handle, shape, options).await?;
            let input = Arc::new(Guarded(input_handle));
            let stock = Arc::new(self.stock.clone());
            let decoder = stock
                .async_partial_decoder(input, shape, data_type, fill_value, options)
                .await?;
            return Ok(Arc::new(Delegated(decoder)));
        }
        Ok(Arc::new(
            PartialDecoder::new_async(self, input_handle, shape, data_type, fill_value, options)
                .await?,
        ))
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
        self.check_trusted()?;
        if Self::is_delegated(data_type) {
            self.check_delegated(data_type)?;
        }
        Ok(Arc::new(PartialEncoder::new(
            self,
            input_output_handle,
            shape,
            data_type,
            fill_value,
        )?))
    }

    fn encoded_representation(
        &self,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Result<BytesRepresentation, CodecError> {
        shard::encoded_representation(self, shape, data_type, fill_value)
    }
}

/// One of this crate's errors, where zarrs wants its own.
fn other(error: Error) -> CodecError {
    match error {
        Error::Codec(error) => error,
        error => CodecError::Other(error.to_string()),
    }
}

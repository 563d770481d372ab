//! The parts of a codec that do not depend on a shape: its configuration, and how the codec runs in this
//! process.

use std::sync::Arc;

use zarrs::array::codec::{ShardingCodec, ShardingIndexLocation, SubchunkWriteOrder};
use zarrs::array::{ChunkShape, CodecChain};
use zarrs::metadata::Configuration;
use zarrs::plugin::{PluginCreateError, ZarrVersion};
use zarrs_codec::{CodecError, CodecMetadataOptions, CodecSpecificOptions, CodecTraits};

use super::error::other;
use super::index::IndexCodecs;
use super::recognise::{RecognisedChain, recognise};
use crate::options::Options;
use crate::plan::Engines;

/// The bounds of the memory that the decoders of a codec chain take.
#[derive(Clone, Debug)]
pub(crate) struct ChainMemoryBounds {
    /// Whether the metadata bound the number of bytes that the array-to-bytes codec encodes to.
    pub(crate) is_bounded: bool,
    /// The name of the first codec that may take more memory for a hostile subchunk than the metadata
    /// justify.
    pub(crate) unbounded: Option<String>,
}

/// Inner codecs whose decoders take no more memory than the metadata justify, as far as that is possible.
pub(crate) struct InnerCodecs {
    pub(crate) chain: Arc<CodecChain>,
    pub(crate) memory_bounds: ChainMemoryBounds,
    /// The codec of the inner shards, if each subchunk is a shard and the chain does nothing else.
    pub(crate) nested: Option<Arc<CodecParts>>,
}

/// The parts of a codec: the configuration of its shards, and the engines that encode and decode them.
#[derive(Clone, Debug)]
pub(crate) struct CodecParts {
    pub(crate) subchunk_shape: ChunkShape,
    pub(crate) inner_codecs: Arc<CodecChain>,
    pub(crate) index_codecs: IndexCodecs,
    pub(crate) index_location: ShardingIndexLocation,
    /// The inner codecs as the engines know them, or the reason why the engines do not know them.
    pub(crate) recognised: Result<RecognisedChain, String>,
    /// The codec of the inner shards, if each subchunk is a shard and the inner codecs do nothing else.
    pub(crate) nested: Option<Arc<CodecParts>>,
    /// The bounds of the memory that the inner codecs take.
    pub(crate) memory_bounds: ChainMemoryBounds,
    /// zarrs' codec of the same configuration, for `as_any`, metadata, and data types that it encodes.
    pub(crate) stock: ShardingCodec,
    pub(crate) options: Options,
    pub(crate) engines: Engines,
}

impl CodecParts {
    pub(crate) fn new(
        subchunk_shape: ChunkShape,
        inner_codecs: InnerCodecs,
        index_codecs: Arc<CodecChain>,
        index_location: ShardingIndexLocation,
        options: Options,
    ) -> Result<Self, PluginCreateError> {
        let index = IndexCodecs::new(index_codecs.clone(), subchunk_shape.len())
            .map_err(PluginCreateError::Other)?;
        let InnerCodecs {
            chain,
            memory_bounds,
            nested,
        } = inner_codecs;
        let stock = ShardingCodec::new(
            subchunk_shape.clone(),
            chain.clone(),
            index_codecs,
            index_location,
        );
        let engines = Engines::of_process(&options);
        engines.check_settings().map_err(PluginCreateError::Other)?;
        Ok(Self {
            recognised: recognise(&chain),
            nested,
            memory_bounds,
            subchunk_shape,
            inner_codecs: chain,
            index_codecs: index,
            index_location,
            // Equal data give equal shards, also where zarrs encodes them.
            stock: stock.with_subchunk_write_order(SubchunkWriteOrder::C),
            options,
            engines,
        })
    }

    /// Returns the same parts with other runtime options, for nested codecs of this crate, too.
    pub(crate) fn with_options(&self, options: Options) -> Self {
        let for_nested = CodecSpecificOptions::default().with_option(options.clone());
        let inner_codecs = (*self.inner_codecs).clone();
        let inner_codecs = inner_codecs.with_codec_specific_options(&for_nested);
        Self {
            nested: self
                .nested
                .as_ref()
                .map(|nested| Arc::new(nested.with_options(options.clone()))),
            inner_codecs: Arc::new(inner_codecs),
            engines: self.engines.decide_anew(&options),
            options,
            ..self.clone()
        }
    }

    /// Returns the same parts with other engines.
    #[cfg(test)]
    pub(crate) fn with_engines(&self, engines: Engines) -> Self {
        Self {
            engines,
            ..self.clone()
        }
    }

    /// Returns the configuration of the codec as an array's metadata have it.
    pub(crate) fn configuration(&self) -> Option<Configuration> {
        let options = CodecMetadataOptions::default();
        self.stock.configuration(ZarrVersion::V3, &options)
    }

    /// Checks that a device is usable if a setting asks for [`Backend::Cuda`](crate::Backend::Cuda), also for
    /// work that is always the host's. So an array never uses the host in silence.
    ///
    /// # Errors
    /// A [`CodecError`] with the reason why the backend cannot be used.
    pub(crate) fn check_backend(&self) -> Result<(), CodecError> {
        self.engines.check(&self.options).map_err(other)
    }

    /// Checks that the options allow decoding data with these codecs.
    ///
    /// # Errors
    /// A [`CodecError`] if the options say that the data are not trusted, and a codec needs trusted data.
    pub(crate) fn check_trusted(&self) -> Result<(), CodecError> {
        match &self.memory_bounds.unbounded {
            Some(codec) if self.options.untrusted_data() => Err(CodecError::Other(format!(
                "the inner codec `{codec}` is not decoded: a hostile shard could make it take more memory than the array's metadata justify, and the options say that the data are not to be trusted. If the data are to be trusted, decode without `Options::with_untrusted_data`; or store the array with other codecs"
            ))),
            _ => Ok(()),
        }
    }
}

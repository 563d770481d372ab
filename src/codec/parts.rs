//! What a codec is made of, before it knows a shard: its configuration, and how it runs here.

use std::sync::Arc;

use zarrs::array::codec::{ShardingCodec, ShardingIndexLocation, SubchunkWriteOrder};
use zarrs::array::{ChunkShape, CodecChain};
use zarrs::metadata::Configuration;
use zarrs::plugin::{PluginCreateError, ZarrVersion};
use zarrs_codec::{CodecError, CodecMetadataOptions, CodecSpecificOptions, CodecTraits};

use super::CudaShardingCodec;
use super::bounded::{Bounded, Limits, bounded};
use super::find;
use super::index::IndexCodecs;
use super::recognise::{RecognisedChain, recognise};
use crate::options::Options;
use crate::plan::Engines;

/// The parts of a [`CudaShardingCodec`].
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(super) subchunk_shape: ChunkShape,
    pub(super) inner_codecs: Arc<CodecChain>,
    pub(super) index_codecs: IndexCodecs,
    pub(super) index_location: ShardingIndexLocation,
    /// The inner codecs as data, or why the engines do not know them.
    pub(super) recognised: Result<RecognisedChain, String>,
    /// The codec of the subchunks, if they are shards of this crate and nothing else.
    pub(super) nested: Option<Arc<CudaShardingCodec>>,
    /// What bounds the memory that the inner codecs take.
    pub(super) limits: Limits,
    /// zarrs' codec of the same configuration: for `as_any`, metadata, and delegated data types.
    pub(super) stock: ShardingCodec,
    pub(crate) options: Options,
    pub(super) engines: Engines,
}

impl Parts {
    pub(super) fn new(
        subchunk_shape: ChunkShape,
        inner_codecs: &CodecChain,
        index_codecs: Arc<CodecChain>,
        index_location: ShardingIndexLocation,
        options: Options,
    ) -> Result<Self, PluginCreateError> {
        let index = IndexCodecs::new(index_codecs.clone(), subchunk_shape.len())
            .map_err(PluginCreateError::Other)?;
        let Bounded { chain, limits } = bounded(inner_codecs, &options)?;
        let stock = ShardingCodec::new(
            subchunk_shape.clone(),
            chain.clone(),
            index_codecs,
            index_location,
        );
        Ok(Self {
            recognised: recognise(&chain),
            nested: nested(&chain),
            limits,
            subchunk_shape,
            inner_codecs: chain,
            index_codecs: index,
            index_location,
            // Deterministic output, also where zarrs does the encoding.
            stock: stock.with_subchunk_write_order(SubchunkWriteOrder::C),
            options,
            engines: Engines::default(),
        })
    }

    /// The same parts with other runtime options, for nested codecs of this crate, too.
    pub(super) fn with_options(&self, options: Options) -> Self {
        let for_nested = CodecSpecificOptions::default().with_option(options.clone());
        let inner_codecs = (*self.inner_codecs).clone();
        let inner_codecs = inner_codecs.with_codec_specific_options(&for_nested);
        Self {
            nested: nested(&inner_codecs),
            inner_codecs: Arc::new(inner_codecs),
            options,
            ..self.clone()
        }
    }

    /// The same parts with other engines.
    #[cfg(test)]
    pub(super) fn with_engines(&self, engines: Engines) -> Self {
        Self {
            engines,
            ..self.clone()
        }
    }

    /// The configuration in an array's metadata.
    pub(crate) fn configuration(&self) -> Option<Configuration> {
        let options = CodecMetadataOptions::default();
        self.stock.configuration(ZarrVersion::V3, &options)
    }

    /// Check that the options allow decoding with these codecs.
    ///
    /// # Errors
    /// A [`CodecError`] if the data are not trusted, and a codec needs trusted data.
    pub(crate) fn check_trusted(&self) -> Result<(), CodecError> {
        match &self.limits.unbounded {
            Some(codec) if self.options.untrusted_data() => Err(CodecError::Other(format!(
                "the inner codec `{codec}` is not decoded: a hostile shard could make it take more memory than the array's metadata justify, and the options say that the data are not to be trusted. If the data are to be trusted, decode without `Options::with_untrusted_data`; or store the array with other codecs"
            ))),
            _ => Ok(()),
        }
    }
}

/// The only codec of `chain`, if it is this crate's.
fn nested(chain: &CodecChain) -> Option<Arc<CudaShardingCodec>> {
    let alone =
        chain.array_to_array_codecs().is_empty() && chain.bytes_to_bytes_codecs().is_empty();
    alone
        .then(|| find::ours(chain.array_to_bytes_codec()))
        .flatten()
}

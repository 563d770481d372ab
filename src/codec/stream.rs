//! The shards of an array as an engine for streams, and whoever puts their indexes together, know
//! them: everything owned, since it outlives the array on other threads.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::sync::Arc;

use zarrs::array::{ChunkShape, DataType, FillValue};
use zarrs_codec::{CodecError, CodecOptions};

use super::CudaShardingCodec;
use super::foreign::ForeignChain;
use super::index::ShardIndex;
use super::shard::Shard;
use crate::engine::stream::{StreamChain, StreamJob};
use crate::engine::{EngineError, SubchunkCodec};
use crate::layout::{Extent, SubchunkGrid};
use crate::plan::StreamChoice;
use crate::{Error, Options};

/// How the shards of a stream are encoded.
#[derive(Clone, Debug)]
pub(crate) struct ShardEncoding {
    codec: Arc<CudaShardingCodec>,
    fill_value: FillValue,
    options: CodecOptions,
    grid: SubchunkGrid,
    chain: StreamChain,
    index: ShardIndex,
    threads: NonZeroUsize,
}

impl ShardEncoding {
    /// Shards of `shape` (elements), as `codec` encodes them.
    ///
    /// # Errors
    /// A [`CodecError`] if shapes, data type and codecs do not fit each other, or elements have no
    /// fixed size.
    pub(crate) fn new(
        codec: Arc<CudaShardingCodec>,
        shape: &ChunkShape,
        data_type: &DataType,
        fill_value: &FillValue,
        options: &CodecOptions,
    ) -> Result<Self, CodecError> {
        if CudaShardingCodec::is_delegated(data_type) {
            return Err(CodecError::Other(CudaShardingCodec::why_delegated(
                data_type,
            )));
        }
        let shard = Shard::new(&codec, shape, data_type, fill_value)?;
        let (threads, inner) = shard.concurrency(options);
        let chain = match &shard.known {
            Ok(known) => StreamChain::Known(known.clone()),
            Err(_) => StreamChain::Foreign(Arc::new(OwnedChain {
                codec: codec.clone(),
                data_type: data_type.clone(),
                fill_value: fill_value.clone(),
                options: options.with_concurrent_target(inner),
            })),
        };
        Ok(Self {
            grid: shard.grid.clone(),
            index: shard.index.clone(),
            fill_value: fill_value.clone(),
            options: *options,
            chain,
            threads,
            codec,
        })
    }

    /// How a shard divides into subchunks.
    pub(crate) fn grid(&self) -> &SubchunkGrid {
        &self.grid
    }

    /// How a subchunk is encoded.
    pub(crate) fn chain(&self) -> &StreamChain {
        &self.chain
    }

    /// The bytes of one element of an empty subchunk.
    pub(crate) fn fill_value(&self) -> &[u8] {
        self.fill_value.as_ne_bytes()
    }

    /// Whether subchunks that are equal to the fill value are stored.
    pub(crate) fn store_empty(&self) -> bool {
        self.options.store_empty_chunks()
    }

    /// The most threads to use.
    pub(crate) fn threads(&self) -> NonZeroUsize {
        self.threads
    }

    /// The runtime options of the codec.
    pub(crate) fn options(&self) -> &Options {
        self.codec.options()
    }

    /// The size of the encoded index, in bytes.
    pub(crate) fn index_len(&self) -> usize {
        self.index.len()
    }

    /// Whether the index comes before the subchunks.
    pub(crate) fn index_is_first(&self) -> bool {
        !self.index.is_at_end()
    }

    /// The index of a shard whose subchunks lie at `extents`, encoded.
    ///
    /// # Errors
    /// A [`CodecError`] if the index codecs fail.
    pub(crate) fn encode_index(&self, extents: &[Extent]) -> Result<Vec<u8>, CodecError> {
        self.index.encode(extents, &self.options)
    }

    /// Where a stream of these shards is encoded, if its batches are like those of `job`.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if the options ask for a device, and it cannot be one.
    pub(crate) fn choose_engine(&self, job: &StreamJob) -> Result<StreamChoice, Error> {
        self.codec.engines.choose_stream(&self.codec.options, job)
    }
}

/// Codecs that the engines do not know, and all they need to know.
#[derive(Debug)]
struct OwnedChain {
    codec: Arc<CudaShardingCodec>,
    data_type: DataType,
    fill_value: FillValue,
    options: CodecOptions,
}

impl OwnedChain {
    fn borrowed(&self) -> ForeignChain<'_> {
        ForeignChain {
            chain: &self.codec.inner_codecs,
            shape: &self.codec.subchunk_shape,
            data_type: &self.data_type,
            fill_value: &self.fill_value,
            options: self.options,
        }
    }
}

impl SubchunkCodec for OwnedChain {
    fn encode<'b>(&self, decoded: Cow<'b, [u8]>) -> Result<Cow<'b, [u8]>, EngineError> {
        self.borrowed().encode(decoded)
    }

    fn decode<'b>(&self, encoded: Cow<'b, [u8]>) -> Result<Cow<'b, [u8]>, EngineError> {
        self.borrowed().decode(encoded)
    }
}

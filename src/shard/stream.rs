//! The shards of a stream of slices. All data are owned, because the encoding of a stream runs on other threads,
//! and may outlive the `Array` that the stream was made from.

use std::num::NonZeroUsize;
use std::sync::Arc;

use zarrs_codec::{CodecError, CodecOptions};

use super::foreign::ForeignChain;
use super::sharding::Sharding;
use crate::error::Error;
use crate::plan::StreamChoice;
use zarrs_cuda_engine::contract::stream::{ReducedFrom, StreamChain, StreamJob};
use zarrs_cuda_engine::layout::Extent;

/// The codecs and settings with which the shards of a stream are encoded.
#[derive(Clone, Debug)]
pub(crate) struct ShardEncoding {
    pub(crate) shards: Arc<Sharding>,
    pub(crate) options: CodecOptions,
    /// The inner codecs, which encode each subchunk.
    pub(crate) chain: StreamChain,
    /// The largest number of threads to use.
    pub(crate) threads: NonZeroUsize,
    /// The stream whose slices are reduced to the slices of this stream, if there is one.
    pub(crate) reduced_from: Option<ReducedFrom>,
}

impl ShardEncoding {
    /// # Errors
    /// A [`CodecError`] if elements have no fixed size.
    pub(crate) fn new(shards: Arc<Sharding>, options: &CodecOptions) -> Result<Self, CodecError> {
        if let Some(why) = shards.delegated() {
            return Err(CodecError::Other(why.to_string()));
        }
        let (threads, inner) = shards.concurrency(options);
        let chain = if let Ok(known) = shards.known() {
            StreamChain::Known(known.clone())
        } else {
            let options = options.with_concurrent_target(inner);
            StreamChain::Foreign(Arc::new(ForeignChain::new(shards.clone(), options)))
        };
        Ok(Self {
            shards,
            options: *options,
            chain,
            threads,
            reduced_from: None,
        })
    }

    /// Returns the encoded index of a shard whose subchunks lie at `extents`.
    pub(crate) fn encode_index(&self, extents: &[Extent]) -> Result<Vec<u8>, CodecError> {
        self.shards.index.encode(extents, &self.options)
    }

    /// Returns the engine that encodes a stream of these shards, if the batches of the stream are like those
    /// of `job`.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if the options ask for a device that cannot be used.
    pub(crate) fn choose_engine(&self, job: &StreamJob) -> Result<StreamChoice, Error> {
        let codec = &self.shards.codec;
        let engines = codec.engines.decide_anew(&codec.options);
        engines.choose_stream(&codec.options, job)
    }
}

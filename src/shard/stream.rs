//! The shards of a stream: everything owned, since a stream outlives its array on other threads.

use std::num::NonZeroUsize;
use std::sync::Arc;

use zarrs_codec::{CodecError, CodecOptions};

use super::foreign::ForeignChain;
use super::sharding::Sharding;
use crate::error::Error;
use crate::plan::StreamChoice;
use zarrs_cuda_engine::contract::stream::{ReducedFrom, StreamChain, StreamJob};
use zarrs_cuda_engine::layout::Extent;

/// How the shards of a stream are encoded.
#[derive(Clone, Debug)]
pub(crate) struct ShardEncoding {
    pub(crate) shards: Arc<Sharding>,
    pub(crate) options: CodecOptions,
    /// How a subchunk is encoded.
    pub(crate) chain: StreamChain,
    /// The most threads to use.
    pub(crate) threads: NonZeroUsize,
    /// The stream whose slices become this one's, if there is one.
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

    /// Returns the index of a shard whose subchunks lie at `extents`, encoded.
    pub(crate) fn encode_index(&self, extents: &[Extent]) -> Result<Vec<u8>, CodecError> {
        self.shards.index.encode(extents, &self.options)
    }

    /// Returns where a stream of these shards is encoded, if its batches are like those of `job`.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if the options ask for a device, and it cannot be one.
    pub(crate) fn choose_engine(&self, job: &StreamJob) -> Result<StreamChoice, Error> {
        let codec = &self.shards.codec;
        codec.engines.choose_stream(&codec.options, job)
    }
}

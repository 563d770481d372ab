//! The host engine: whole shards, and batches of streams, by the threads of a rayon pool.
//!
//! | file | purpose |
//! |---|---|
//! | `encode`, `decode` | a whole shard |
//! | `aggregate` | encoded subchunks into their places: C order, dense, in any order of threads |
//! | `stream` | batches of a stream of slices |
//! | `workers` | how many threads, and how they share a list of subchunks |

mod aggregate;
mod decode;
mod encode;
#[cfg(feature = "fakes")]
pub mod limit;
pub mod stream;
mod workers;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::contract::{
    EncodedShard, EncodedSubchunk, Engine, EngineError, NeighbourSink, ShardJob, SubchunkSink,
};
use crate::layout::Extent;

/// How often this engine encoded or decoded subchunks in this process.
static CODINGS: AtomicU64 = AtomicU64::new(0);

/// Returns how often the host engine encoded or decoded the subchunks of a shard, of a batch, or some
/// of a shard, in this process.
pub fn codings() -> u64 {
    CODINGS.load(Ordering::Relaxed)
}

fn count_coding() {
    CODINGS.fetch_add(1, Ordering::Relaxed);
}

/// Encodes and decodes on the threads of the current rayon pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostEngine;

impl HostEngine {
    /// Decodes a whole shard into `output`. `extents` has one entry per subchunk.
    ///
    /// # Errors
    /// An [`EngineError`] if an extent is outside `encoded`, or from a codec, or from `output`.
    #[allow(clippy::unused_self, reason = "as the methods of the contract")]
    pub fn decode_shard(
        self,
        job: &ShardJob<'_>,
        encoded: &[u8],
        extents: &[Extent],
        output: &dyn NeighbourSink,
    ) -> Result<(), EngineError> {
        count_coding();
        decode::decode_shard(job, encoded, extents, output)
    }

    /// Decodes some subchunks, whose numbers ascend, into `output`.
    ///
    /// # Errors
    /// An [`EngineError`] from a codec, or from `output`.
    #[allow(clippy::unused_self, reason = "as the methods of the contract")]
    pub fn decode_some(
        self,
        job: &ShardJob<'_>,
        subchunks: &[EncodedSubchunk<'_>],
        output: &dyn NeighbourSink,
    ) -> Result<(), EngineError> {
        count_coding();
        decode::decode_some(job, subchunks, output)
    }

    /// Decodes some subchunks, and hands each to `sink`.
    ///
    /// # Errors
    /// An [`EngineError`] from a codec, or the first that `sink` returns.
    #[allow(clippy::unused_self, reason = "as the methods of the contract")]
    pub fn decode_each(
        self,
        job: &ShardJob<'_>,
        subchunks: &[EncodedSubchunk<'_>],
        sink: &SubchunkSink<'_>,
    ) -> Result<(), EngineError> {
        count_coding();
        decode::decode_each(job, subchunks, sink)
    }
}

impl Engine for HostEngine {
    fn name(&self) -> &'static str {
        "host"
    }

    fn encode(
        &self,
        job: &ShardJob<'_>,
        decoded: &[u8],
        head: usize,
        tail: usize,
    ) -> Result<EncodedShard, EngineError> {
        count_coding();
        encode::encode(job, decoded, head, tail)
    }

    fn decode(
        &self,
        job: &ShardJob<'_>,
        encoded: &[u8],
        extents: &[Extent],
    ) -> Result<Vec<u8>, EngineError> {
        count_coding();
        decode::decode(job, encoded, extents)
    }
}

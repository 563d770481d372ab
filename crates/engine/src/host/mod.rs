//! The host engine: encodes and decodes whole shards, and batches of streams, on the threads of a rayon pool.
//!
//! | file | purpose |
//! |---|---|
//! | `encode`, `decode` | encode and decode a whole shard |
//! | `aggregate` | places encoded subchunks densely in C order, whichever thread is first |
//! | `stream` | encodes batches of a stream of slices |
//! | `workers` | decides how many threads share a list of subchunks, and how |

mod aggregate;
mod decode;
mod encode;
#[cfg(feature = "fakes")]
pub mod limit;
pub mod stream;
mod workers;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::contract::coded_bytes::{CodedBytesCounter, StoredBytes};
use crate::contract::{
    CodedBytes, EncodedShard, EncodedSubchunk, Engine, EngineError, NeighbourSink, ShardElements,
    ShardJob, SubchunkSink,
};
use crate::layout::Extent;
use crate::memory::spares::Spares;

/// The number of times that this engine encoded or decoded subchunks in this process.
static CODINGS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of times that the host engine has encoded or decoded the subchunks of a shard, of a
/// batch, or some subchunks of a shard, in this process.
pub fn codings() -> u64 {
    CODINGS.load(Ordering::Relaxed)
}

fn count_coding() {
    CODINGS.fetch_add(1, Ordering::Relaxed);
}

/// The bytes of the subchunks that this engine encoded and decoded in this process.
static BYTES: CodedBytesCounter = CodedBytesCounter::new();

/// Returns the bytes of the stored subchunks that the host engine has encoded and decoded in this process.
pub fn coded_bytes() -> CodedBytes {
    BYTES.snapshot()
}

/// The engine that encodes and decodes on the threads of the current rayon pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostEngine;

impl HostEngine {
    /// Encodes a shard like [`encode`](Engine::encode), from elements that may have strides. With `spares`, the
    /// encoded shard may be in one of these buffers, and have more capacity than it needs.
    ///
    /// # Errors
    /// The errors of [`encode`](Engine::encode), and [`EngineError::Strides`] if an element is not in the
    /// memory.
    #[allow(clippy::unused_self, reason = "as the methods of the contract")]
    pub fn encode_elements(
        self,
        job: &ShardJob<'_>,
        elements: &ShardElements<'_>,
        room: (usize, usize),
        spares: Option<&Spares>,
    ) -> Result<EncodedShard, EngineError> {
        count_coding();
        let shard = encode::encode(job, elements, room, spares)?;
        BYTES.encoded(StoredBytes::of_extents(
            job.grid.subchunk_bytes(),
            &shard.extents,
        ));
        Ok(shard)
    }

    /// Copies `elements` to new memory, in C order, with the threads of `job`.
    ///
    /// # Errors
    /// [`EngineError::InputLength`], [`EngineError::Strides`] if an element is not in the memory, and
    /// [`EngineError::OutOfMemory`].
    #[allow(clippy::unused_self, reason = "as the methods of the contract")]
    pub fn gather(
        self,
        job: &ShardJob<'_>,
        elements: &ShardElements<'_>,
    ) -> Result<Vec<u8>, EngineError> {
        encode::gather(job, elements)
    }

    /// Decodes a whole shard into `output`. `extents` has one entry per subchunk.
    ///
    /// # Errors
    /// An [`EngineError`] if an extent is outside of `encoded`, or from a codec or from `output`.
    #[allow(clippy::unused_self, reason = "as the methods of the contract")]
    pub fn decode_shard(
        self,
        job: &ShardJob<'_>,
        encoded: &[u8],
        extents: &[Extent],
        output: &dyn NeighbourSink,
    ) -> Result<(), EngineError> {
        count_coding();
        decode::decode_shard(job, encoded, extents, output)?;
        BYTES.decoded(StoredBytes::of_extents(job.grid.subchunk_bytes(), extents));
        Ok(())
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
        decode::decode_some(job, subchunks, output)?;
        BYTES.decoded(StoredBytes::of_subchunks(
            job.grid.subchunk_bytes(),
            subchunks,
        ));
        Ok(())
    }

    /// Decodes some subchunks, and gives each to `sink`.
    ///
    /// # Errors
    /// An [`EngineError`] from a codec, or the first error that `sink` returns.
    #[allow(clippy::unused_self, reason = "as the methods of the contract")]
    pub fn decode_each(
        self,
        job: &ShardJob<'_>,
        subchunks: &[EncodedSubchunk<'_>],
        sink: &SubchunkSink<'_>,
    ) -> Result<(), EngineError> {
        count_coding();
        decode::decode_each(job, subchunks, sink)?;
        BYTES.decoded(StoredBytes::of_subchunks(
            job.grid.subchunk_bytes(),
            subchunks,
        ));
        Ok(())
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
        let elements = ShardElements::contiguous(decoded);
        self.encode_elements(job, &elements, (head, tail), None)
    }

    fn decode(
        &self,
        job: &ShardJob<'_>,
        encoded: &[u8],
        extents: &[Extent],
    ) -> Result<Vec<u8>, EngineError> {
        count_coding();
        let decoded = decode::decode(job, encoded, extents)?;
        BYTES.decoded(StoredBytes::of_extents(job.grid.subchunk_bytes(), extents));
        Ok(decoded)
    }
}

//! The host engine: stages in order of use, one file each.
//!
//! | file | what it does |
//! |---|---|
//! | `scatter` | a subchunk out of the shard and back: gather, byte order, transpose, fill-value test |
//! | `zstd`, `gzip`, `blosc`, `crc32c` | one stage each, over whole buffers |
//! | `bounded` | one compressed value, decompressed into bounded memory |
//! | `stages` | those stages one after the other, in the buffers of one thread |
//! | `aggregate` | encoded subchunks into their places: C order, dense, in whatever order threads finish |
//! | `encode`, `decode` | a whole shard |
//! | `stream` | batches of a stream of slices |
//! | `workers` | how many threads, and how they share a list of subchunks |
//! | `scratch` | per-thread buffers and contexts, kept between calls |

mod aggregate;
#[allow(unsafe_code)]
mod blosc;
mod bounded;
mod crc32c;
mod decode;
mod encode;
mod gzip;
#[cfg(feature = "internals")]
pub(crate) mod limit;
mod scatter;
mod scratch;
mod stages;
pub(crate) mod stream;
mod workers;
mod zstd;

pub(crate) use bounded::Compression;
pub(in crate::engine) use encode::encode_subchunk;
pub(crate) use stages::encoded_bound;
pub(in crate::engine) use stages::{decode_fixed_size, strip as strip_checksum};

use super::{EncodedShard, EncodedSubchunk, Engine, EngineError, Job, Sink};
use crate::layout::Extent;

/// Encodes and decodes on the threads of the current rayon pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostEngine;

impl HostEngine {
    /// Decode some subchunks, and hand each to `sink`.
    ///
    /// # Errors
    /// An [`EngineError`] from a codec, or the first that `sink` returns.
    #[allow(clippy::unused_self, reason = "as the methods of the contract")]
    pub(crate) fn decode_each(
        self,
        job: &Job<'_>,
        subchunks: &[EncodedSubchunk<'_>],
        sink: &Sink<'_>,
    ) -> Result<(), EngineError> {
        decode::decode_each(job, subchunks, sink)
    }
}

impl Engine for HostEngine {
    fn name(&self) -> &'static str {
        "host"
    }

    fn encode(
        &self,
        job: &Job<'_>,
        decoded: &[u8],
        head: usize,
        tail: usize,
    ) -> Result<EncodedShard, EngineError> {
        encode::encode(job, decoded, head, tail)
    }

    fn decode(
        &self,
        job: &Job<'_>,
        encoded: &[u8],
        extents: &[Extent],
    ) -> Result<Vec<u8>, EngineError> {
        decode::decode(job, encoded, extents)
    }
}

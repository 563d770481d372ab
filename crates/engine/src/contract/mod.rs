//! The contract of engines: from a decoded shard to encoded subchunks and their extents, and back.
//!
//! An engine knows bytes, shapes and [`Chain`]s. It knows no zarrs trait, no store and no shard
//! index: the layers above parse and write the index around what an engine returns.
//!
//! The contract, which the conformance suite checks on every engine:
//!
//! 1. Encoded subchunks lie in C order, densely, after `head` bytes that are left for the index.
//! 2. A subchunk that is bitwise equal to the fill value is not stored, unless `store_empty` is set.
//! 3. The same job gives the same bytes, whatever the number of threads.
//! 4. Decoding takes any bytes. It returns the data, or an [`EngineError`].

mod buffer_bytes;
mod chain;
pub(crate) mod coded_bytes;
mod read;
mod shard_elements;
pub mod stream;

use std::fmt;
use std::num::NonZeroUsize;

pub use crate::error::EngineError;
pub use buffer_bytes::BufferBytes;
pub use chain::{BloscStage, Chain, Cname, KnownChain, Shuffle, Stage, SubchunkCodec};
pub use coded_bytes::CodedBytes;
pub use read::{BoxToPlace, DeviceArray, EncodedBytes};
pub use shard_elements::ShardElements;

use crate::layout::{Extent, SubchunkGrid};

/// Everything about a shard that is to be encoded or decoded, except for its bytes.
#[derive(Clone, Copy, Debug)]
pub struct ShardJob<'a> {
    /// The grid of the shard's subchunks.
    pub grid: &'a SubchunkGrid,
    /// The codecs of a subchunk.
    pub chain: Chain<'a>,
    /// The bytes of one element of an empty subchunk, as many as an element has.
    pub fill_value: &'a [u8],
    /// Whether to store subchunks that are equal to the fill value.
    pub store_empty: bool,
    /// Whether to verify CRC32C checksums when decoding.
    pub validate_checksums: bool,
    /// The most threads to use.
    pub threads: NonZeroUsize,
    /// Whether to ask the operating system for huge pages behind large outputs.
    pub huge_pages: bool,
}

/// An encoded shard without its index.
#[derive(Debug)]
pub struct EncodedShard {
    /// `head` zeros, and then the encoded subchunks. The capacity has room for `tail` more bytes.
    pub bytes: Vec<u8>,
    /// The extent of each subchunk in `bytes`.
    pub extents: Vec<Extent>,
}

/// The decoded contents of a subchunk.
#[derive(Debug)]
pub enum DecodedSubchunk<'a> {
    /// The elements of the subchunk, in C order.
    Bytes(&'a [u8]),
    /// Every element is the fill value.
    Fill,
}

/// A subchunk to decode: its number in the grid, and its encoded bytes; `None` if the subchunk is empty.
#[derive(Clone, Copy, Debug)]
pub struct EncodedSubchunk<'a> {
    pub number: usize,
    pub bytes: Option<&'a [u8]>,
}

/// A function that takes decoded subchunks, each with its number, from several threads and in any order.
pub type SubchunkSink<'a> =
    dyn Fn(usize, DecodedSubchunk<'_>) -> Result<(), EngineError> + Sync + 'a;

/// Takes decoded subchunks in rows of neighbours along the last axis, from several threads and in any order.
/// The output of a row has longer contiguous runs than that of single subchunks.
pub trait NeighbourSink: Sync {
    /// Returns the number of subchunks, at least 1, that are worth writing at once, of the `count` neighbours
    /// from the subchunk `first` on.
    fn row_len(&self, first: usize, count: usize) -> usize;

    /// Returns the most bytes of decoded subchunks to collect before their row is written: the copy of the
    /// row should still find them in the cache.
    fn most_bytes(&self) -> usize {
        256 << 10
    }

    /// Writes the neighbours from the subchunk `first` on. `sources` are their elements, with the axes in the
    /// order of their chain. `buffer` belongs to the calling thread, and a sink may copy through it.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if a subchunk was written before, or a source has a wrong length; an error
    /// of the output.
    fn write_neighbours(
        &self,
        first: usize,
        sources: &[&[u8]],
        buffer: &mut Vec<u8>,
    ) -> Result<(), EngineError>;

    /// Writes `element` into every element of the `count` neighbours from `first` on.
    ///
    /// # Errors
    /// The errors of [`write_neighbours`](Self::write_neighbours).
    fn fill_neighbours(
        &self,
        first: usize,
        count: usize,
        element: &[u8],
    ) -> Result<(), EngineError>;
}

/// Encodes and decodes shards.
pub trait Engine: fmt::Debug + Send + Sync {
    /// Returns the name of the engine, as `explain` shows it.
    fn name(&self) -> &'static str;

    /// Encodes the decoded shard `decoded` (C order), with room for `head` bytes before the subchunks and for
    /// `tail` bytes after them.
    ///
    /// # Errors
    /// An [`EngineError`] if `decoded` is not as long as the shard, memory cannot be allocated, or
    /// a codec fails.
    fn encode(
        &self,
        job: &ShardJob<'_>,
        decoded: &[u8],
        head: usize,
        tail: usize,
    ) -> Result<EncodedShard, EngineError>;

    /// Decodes a whole shard into new memory. `extents` has one entry per subchunk.
    ///
    /// # Errors
    /// An [`EngineError`] if an extent is outside `encoded`, memory cannot be allocated, or a codec
    /// fails.
    fn decode(
        &self,
        job: &ShardJob<'_>,
        encoded: &[u8],
        extents: &[Extent],
    ) -> Result<Vec<u8>, EngineError>;

    /// Returns whether the engine can decode whole shards. If not, callers need not try
    /// [`decode`](Self::decode).
    fn decodes_whole_shards(&self) -> bool {
        false
    }

    /// Returns a description of the work that has to be done before the first shard; `None` if everything is
    /// ready.
    fn first_wait(&self) -> Option<String> {
        None
    }

    /// Counts a fallback: because of `reason`, another engine does a job of this engine.
    fn fell_back(&self, _reason: &str) {}
}

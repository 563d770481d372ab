//! The engine contract: a decoded shard in, encoded subchunks and their places out, and back.
//!
//! An engine knows bytes, shapes and [`Chain`]s. It knows no zarrs trait, no store and no shard
//! index: the layers above parse and write the index around what an engine returns.
//!
//! The contract, which the conformance suite checks on every engine:
//!
//! 1. Encoded subchunks lie in C order, densely, after `head` bytes that are left for the index.
//! 2. A subchunk that is bitwise equal to the fill value is not stored, unless `store_empty`.
//! 3. The same job gives the same bytes, whatever the number of threads.
//! 4. Any bytes may be given to decode. They give the data, or an [`EngineError`].

mod buffer_bytes;
mod chain;
pub mod stream;

use std::fmt;
use std::num::NonZeroUsize;

pub use crate::error::EngineError;
pub use buffer_bytes::BufferBytes;
pub use chain::{BloscStage, Chain, Cname, KnownChain, Shuffle, Stage, SubchunkCodec};

use crate::layout::{Extent, SubchunkGrid};

/// A job: everything about a shard that is to be encoded or decoded, but its bytes.
#[derive(Clone, Copy, Debug)]
pub struct ShardJob<'a> {
    /// How the shard divides into subchunks.
    pub grid: &'a SubchunkGrid,
    /// How one subchunk is encoded.
    pub chain: Chain<'a>,
    /// The bytes of one element of an empty subchunk; as long as an element.
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
    /// `head` zeros, then the encoded subchunks; with spare capacity for `tail` bytes.
    pub bytes: Vec<u8>,
    /// Where each subchunk lies in `bytes`.
    pub extents: Vec<Extent>,
}

/// The decoded contents of a subchunk.
#[derive(Debug)]
pub enum DecodedSubchunk<'a> {
    /// The elements of the subchunk, in C order.
    Bytes(&'a [u8]),
    /// The fill value in every element.
    Fill,
}

/// One subchunk to decode: its number in the grid, and its encoded bytes unless it is empty.
#[derive(Clone, Copy, Debug)]
pub struct EncodedSubchunk<'a> {
    pub number: usize,
    pub bytes: Option<&'a [u8]>,
}

/// Takes single decoded subchunks, by number, from several threads and in any order.
pub type SubchunkSink<'a> =
    dyn Fn(usize, DecodedSubchunk<'_>) -> Result<(), EngineError> + Sync + 'a;

/// Takes decoded subchunks in rows of neighbours along the last axis, from several threads and in
/// any order. A row becomes longer runs of the output than its subchunks one by one.
pub trait NeighbourSink: Sync {
    /// Returns how many of the `count` neighbours from subchunk `first` on are worth writing at
    /// once; at least 1.
    fn row_len(&self, first: usize, count: usize) -> usize;

    /// Returns the most bytes of decoded subchunks that are worth keeping until their row is
    /// written: the copy that follows should find them in the cache.
    fn most_bytes(&self) -> usize {
        256 << 10
    }

    /// Writes the neighbours from `first` on, whose elements are `sources`, with the axes in the
    /// order of their chain. `buffer` belongs to the thread: a sink may copy through it.
    ///
    /// # Errors
    /// [`EngineError::Internal`] if a subchunk was written before, or a source has a wrong length;
    /// an error of the output.
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

    /// Encodes the decoded shard `decoded` (C order), leaving room for `head` bytes before the
    /// subchunks and for `tail` bytes after them.
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

    /// Returns whether the engine can decode whole shards. If not, [`decode`](Self::decode) need
    /// not be tried.
    fn decodes_whole_shards(&self) -> bool {
        false
    }

    /// Returns a description of the work that the first shard waits for. Returns `None` if
    /// everything is ready.
    fn first_wait(&self) -> Option<String> {
        None
    }

    /// Counts a fallback: another engine does a job of this engine, for the given reason.
    fn fell_back(&self, _reason: &str) {}
}

//! How part of a shard is updated, and who is told when that leaves unused bytes behind.

use std::fmt;
use std::sync::Arc;

/// Where a partial write puts subchunks that it changes. Runtime only: the strategy never reaches
/// array metadata, and every result is a shard that any reader opens. Different strategies may be
/// used on one shard, one after the other.
///
/// What each promises to a process that dies in the middle of a write is in a table in
/// [`docs/updates.md`](https://docs.rs/crate/zarrs_cuda/latest/source/docs/updates.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WriteStrategy {
    /// [`InPlace`](Self::InPlace) where every subchunk has the same encoded size, or where the
    /// store rewrites whole objects anyway. Otherwise as [`Append`](Self::Append), but changed
    /// subchunks also go into bytes that nothing uses any more: as safe, and it grows slower.
    #[default]
    Auto,
    /// Changed subchunks go behind everything that is there, and an index behind them. The bytes of
    /// earlier states stay, until [`compact`](crate::compact).
    Append,
    /// A changed subchunk goes where it was, if it fits there; otherwise into bytes that nothing uses,
    /// or behind everything.
    InPlace,
    /// Every subchunk has a slot of the size that it encodes to at worst, in C order. Nothing ever
    /// moves, and unused bytes never add up. The *apparent* size of a shard is the worst case: file
    /// systems store the gaps as holes, but stores in memory allocate them. An error for inner codecs
    /// that name no bound.
    ///
    /// A shard that was not written so keeps its subchunks where they are until they are changed; one
    /// whose slot is then taken by others gets room for its worst case behind everything.
    Slots,
}

impl fmt::Display for WriteStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Append => "append",
            Self::InPlace => "in place",
            Self::Slots => "slots",
        })
    }
}

/// A partial write left more unused bytes in a shard than
/// [`Options::max_dead_fraction`](crate::Options::max_dead_fraction) allows.
///
/// A codec is not told which shard it writes: [`Shards::compact_pending`](crate::Shards::compact_pending)
/// finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactionRequest {
    /// The size of the shard now, in bytes.
    pub size: u64,
    /// How many of them nothing uses.
    pub dead: u64,
}

/// What is called with each [`CompactionRequest`]. Equal to itself and its clones alone.
#[derive(Clone)]
pub(crate) struct CompactionCallback(pub(crate) Arc<dyn Fn(&CompactionRequest) + Send + Sync>);

impl PartialEq for CompactionCallback {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for CompactionCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CompactionCallback")
    }
}

//! Adapters of stores that show shards as chunks, or write parts of objects.
//!
//! | adapter | purpose |
//! |---|---|
//! | [`SparseShardStore`] | many processes write the subchunks of a `sharding_indexed` array at once, and no write is lost; later they are packed into standard shards |
//! | [`SubchunkBatch`] | one call writes many subchunks of such an array |
//! | [`ShardedStore`] | an array of small chunks, whose store keeps many chunks in one object: the sharding storage transformer draft |
//! | [`ShardingTransformer`] | reads such arrays from any store |
//! | [`RangeWrites`] | one writer updates parts of shards in stores that only replace whole objects |
//!
//! [`LockFile`] keeps other processes away from a file, tensorstore's among them.
//! [`Owner`] tells which process a file belongs to, and whether it [runs](Life).
//!
//! All of them work over blocking and over asynchronous stores. The [guide](crate::guide::share)
//! shows how to share an array between writers.

mod chunk_keys;
mod chunk_layout;
mod listing;
mod range_writes;
#[cfg(test)]
mod schedules;
mod shard_grid;
mod sharded;
mod sparse;
mod transformer;
mod zarrs_traits;

pub use crate::store::lock_files::LockFile;
pub use crate::store::owner::{Life, Owner};
pub use crate::store::ranges::{slice, within};
pub use crate::store::replace::{Durable, NewFile, Unfinished, replace};
pub use range_writes::RangeWrites;
pub use sharded::{BinaryFormat, ShardedStore};
pub(crate) use sparse::is_framed;
pub use sparse::{
    Consolidation, ConsolidationProgress, FRAMES_MARKER, SparseShardStore, SubchunkBatch,
};
pub use transformer::ShardingTransformer;

/// Writes parts of files in place, for stores of files in other programs.
///
/// A partial encoder with [`WriteStrategy::InPlace`](crate::WriteStrategy::InPlace) updates a shard by
/// `set_partial_many` of its store. A store of files can implement `set_partial_many` by
/// [`write`](in_place::write), and call [`hold`](in_place::hold) before it reads. Then it works as zarrs'
/// `FilesystemStore` does with this crate: two processes that update one shard take turns, and a full disk
/// leaves no shard half written.
pub mod in_place {
    pub use crate::store::hold;
    pub use crate::store::in_place::write;
}

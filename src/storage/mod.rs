//! Shards as chunks: adapters of stores.
//!
//! | | what it is for |
//! |---|---|
//! | [`SparseShardStore`] | many processes write the subchunks of a `sharding_indexed` array at once, and none loses what another wrote; later they are packed into standard shards |
//! | [`ShardedStore`] | an array of small chunks, whose store keeps many of them in one object: the sharding storage transformer draft |
//! | [`ShardingTransformer`] | the same, to read it from any store |
//! | [`RangeWrites`] | parts of shards are updated in stores that only replace whole objects, by one writer |
//!
//! All are for stores that block and for those that are awaited.

mod chunk_keys;
mod json;
mod listing;
mod packing;
mod range_writes;
#[cfg(test)]
mod schedules;
mod shard_grid;
mod sharded;
mod sparse;
mod transformer;
mod zarrs_traits;

pub use range_writes::RangeWrites;
pub use sharded::{BinaryFormat, ShardedStore};
pub use sparse::{Consolidation, ConsolidationProgress, SparseShardStore};
pub use transformer::ShardingTransformer;

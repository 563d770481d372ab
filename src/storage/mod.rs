//! Shards as chunks.

mod chunk_keys;
mod json;
mod listing;
mod objects;
mod packing;
mod range_writes;
mod ranges;
#[cfg(test)]
mod schedules;
mod shard_grid;
mod sharded;
mod sparse;
mod transformer;
mod turns;

pub use range_writes::RangeWrites;
pub use sharded::{BinaryFormat, ShardedStore};
pub use sparse::{Consolidation, ConsolidationProgress, SparseShardStore};
pub use transformer::ShardingTransformer;

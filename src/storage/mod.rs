//! Shards as chunks.

mod chunk_keys;
mod json;
mod listing;
mod objects;
mod packing;
mod range_writes;
mod ranges;
mod shard_grid;
mod sparse;
mod turns;

pub use range_writes::RangeWrites;
pub use sparse::{Consolidation, ConsolidationProgress, SparseShardStore};

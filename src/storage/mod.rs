//! Shards as chunks.

mod chunk_keys;
mod listing;
mod objects;
mod packing;
mod shard_grid;
mod sharded;
mod transformer;
mod turns;

pub use sharded::{BinaryFormat, ShardedStore};
pub use transformer::ShardingTransformer;

//! Shards as chunks.

mod chunk_keys;
mod listing;
mod objects;
mod packing;
mod range_writes;
mod shard_grid;
mod turns;

pub use range_writes::RangeWrites;

//! Shards as chunks.

mod chunk_keys;
mod listing;
mod objects;
mod packing;
mod shard_grid;
mod turns;

//! Shards as chunks.

mod chunk_keys;
mod listing;
mod objects;
mod packing;
#[cfg(test)]
mod schedules;
mod shard_grid;
mod turns;

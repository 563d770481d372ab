//! Partial writes of shards: what is read afterwards, what a torn one leaves, and what two of them do
//! to each other. Our codec is registered only while an array of ours is opened: zarrs' own reads
//! everything that is written here.

mod act;
pub(crate) mod case;
mod concurrency;
mod creation;
mod invariants;
mod model;
mod regressions;
mod step;
mod subject;
mod torn;
mod torn_shard;
mod update;

use zarrs::array::codec::ShardingIndexLocation as Location;

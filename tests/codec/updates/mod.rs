//! Partial writes of shards: later reads, the remains of torn writes, and concurrent writes. Our
//! codec is registered only while an array is opened with it, so that zarrs' own codec can read
//! every result.

mod act;
pub(crate) mod case;
mod concurrency;
mod creation;
mod failing;
mod invariants;
mod model;
mod regressions;
mod step;
mod subject;
mod torn;
mod torn_shard;
mod update;

use zarrs::array::codec::ShardingIndexLocation as Location;

//! Partial writes of shards: what is read afterwards, what a torn one leaves, and what two of them do
//! to each other. Our codec is registered only while an array of ours is opened: zarrs' own reads
//! everything that is written here.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and says where"
)]

mod common;

#[path = "updates/act.rs"]
mod act;
#[path = "updates/case.rs"]
mod case;
#[path = "updates/concurrency.rs"]
mod concurrency;
#[path = "updates/creation.rs"]
mod creation;
#[path = "updates/invariants.rs"]
mod invariants;
#[path = "updates/model.rs"]
mod model;
#[path = "updates/regressions.rs"]
mod regressions;
#[path = "updates/step.rs"]
mod step;
#[path = "updates/subject.rs"]
mod subject;
#[path = "updates/torn.rs"]
mod torn;
#[path = "updates/torn_shard.rs"]
mod torn_shard;
#[path = "updates/update.rs"]
mod update;

use zarrs::array::codec::ShardingIndexLocation as Location;

/// How many times as much is tried as usual: 1, or what `ZARRS_CUDA_UPDATE_STEPS` says.
fn rounds() -> u64 {
    let rounds = std::env::var("ZARRS_CUDA_UPDATE_STEPS");
    rounds.map_or(1, |rounds| rounds.parse().expect("a number"))
}

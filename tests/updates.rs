//! Partial writes of shards: what is read afterwards, what a torn one leaves, and what two of them do
//! to each other. zarrs' own codec is never registered over here, so that it reads as everybody does.

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

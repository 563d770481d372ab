//! `RangeWrites`: parts of objects in stores that only replace whole ones, against a store that
//! writes parts itself, and with zarrs' partial encoding over it.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and says where"
)]

mod common;
#[path = "common/faulty.rs"]
mod faulty;

#[path = "updates/case.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod case;

#[path = "range_writes/objects.rs"]
mod objects;
#[path = "range_writes/shards.rs"]
mod shards;
#[path = "range_writes/waiting.rs"]
mod waiting;

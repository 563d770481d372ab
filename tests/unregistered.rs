//! Tests in a process that never registers this crate's codec. So zarrs' codec is zarrs' code
//! entirely, also in nested sharding, and can be the oracle.
//!
//! The files are in the folders of their subjects.
//!
//! | module | subject |
//! |---|---|
//! | `boxes` | `BoxWriter` |
//! | `codec` | the codec compared with zarrs', data types without a fixed size, regressions |
//! | `maintenance` | shards that are compacted, recovered and inspected |
//! | `reader` | `ArrayReader` |
//! | `rewrite` | shards with new elements for boxes, without a store |
//! | `sparse` | `SparseShardStore`: as a view, on files, killed, over nested shards |
//! | `vast` | arrays of vast grids, of which next to nothing is stored |
//! | `trouble` | trouble of the machine, which is no damage |
//! | `writer` | `ArrayWriter` |

#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "made-up data, and a test's way to fail"
)]

mod boxes;
mod codec;
#[path = "maintenance/maintenance.rs"]
mod maintenance;
mod reader;
#[path = "maintenance/rewrite.rs"]
mod rewrite;
#[path = "shared/sparse/mod.rs"]
mod sparse;
#[path = "maintenance/trouble.rs"]
mod trouble;
#[path = "maintenance/vast.rs"]
mod vast;
mod writer;

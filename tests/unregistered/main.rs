//! Tests in a process that never registers this crate's codec, so that zarrs' codec is zarrs all the way
//! down, also where sharding is nested: it is the oracle.
//!
//! | module | what is tested |
//! |---|---|
//! | `codec` | the codec against zarrs' own, data types without a fixed size, what went wrong once |
//! | `examples` | the example programs, run as a user runs them |
//! | `maintenance` | shards that are compacted, recovered and inspected |
//! | `sparse` | `SparseShardStore`: as a view, on files, killed, over nested shards |
//! | `writer` | `ArrayWriter` |

#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "made-up data, and a test's way to fail"
)]

mod codec;
mod examples;
mod maintenance;
mod sparse;
mod writer;

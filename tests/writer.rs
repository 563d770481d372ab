//! `ArrayWriter`, held against zarrs: slices that are appended in any pieces are the same shards as
//! one `store_array_subset` by zarrs' own codec, and what a writer says and promises meanwhile.
//!
//! Nothing in this process ever registers our codec, so that zarrs' codec is zarrs all the way down.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and says where"
)]

mod common;

#[path = "writer/appending.rs"]
mod appending;
#[path = "writer/case.rs"]
mod case;
#[path = "writer/content.rs"]
mod content;
#[path = "writer/ending.rs"]
mod ending;
#[path = "writer/failing.rs"]
mod failing;
#[path = "writer/length.rs"]
mod length;
#[path = "writer/probe.rs"]
mod probe;
#[path = "writer/refusals.rs"]
mod refusals;
#[path = "writer/simple.rs"]
mod simple;
#[path = "writer/stream.rs"]
mod stream;
#[path = "writer/threads.rs"]
mod threads;
#[path = "writer/waiting.rs"]
mod waiting;
#[path = "writer/watchdog.rs"]
mod watchdog;

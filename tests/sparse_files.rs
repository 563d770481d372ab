//! Sparse shards in the files of a machine that has too little of something, or where other things lie
//! than there should be.

#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "the numbers of subchunks are small"
)]
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and says where"
)]

#[path = "sparse_files/array.rs"]
mod array;
#[path = "sparse_files/descriptors.rs"]
mod descriptors;
#[path = "sparse_files/limits.rs"]
mod limits;
#[path = "sparse_files/names.rs"]
mod names;
#[path = "sparse_files/objects.rs"]
mod objects;
#[path = "sparse_files/process.rs"]
mod process;
#[path = "sparse_files/strategies.rs"]
mod strategies;

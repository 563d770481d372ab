//! What only a GPU can show. Each test is skipped where there is none, and says so; with
//! `ZARRS_CUDA_REQUIRE_GPU=1` that is a failure.

#![allow(clippy::unwrap_used)] // a test that panics has failed

pub(super) mod application;
pub(super) mod bodies;
pub(super) mod compressed;
mod compression;
mod driver;
mod engine;
mod kernels;
mod nvcomp;
pub(super) mod stream;
mod streams;

const CASES: u32 = 256;

/// How many cases a property is tried with: `ZARRS_CUDA_GPU_CASES`, which tools that watch every
/// access need to be few.
fn cases() -> u32 {
    std::env::var("ZARRS_CUDA_GPU_CASES").map_or(CASES, |cases| cases.parse().unwrap())
}

/// Whether a tool watches every access, as far as that can be told: shards are small then.
fn is_watched() -> bool {
    cases() < CASES
}

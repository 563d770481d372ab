//! Tests that need a GPU. Without one each test is skipped with a message; with
//! `ZARRS_CUDA_REQUIRE_GPU=1` it fails.

#![allow(clippy::unwrap_used)] // a test that panics has failed

pub(super) mod bodies;
pub(super) mod compressed;
mod compression;
mod driver;
pub(super) mod engine;
mod kernels;
pub(super) mod levels;
mod nvcomp;
pub(super) mod stream;
mod streams;

const CASES: u32 = 256;

/// Returns how many cases of a property are tried. `ZARRS_CUDA_GPU_CASES` lowers the number for
/// tools that watch every access, which are slow.
fn cases() -> u32 {
    std::env::var("ZARRS_CUDA_GPU_CASES").map_or(CASES, |cases| cases.parse().unwrap())
}

/// Returns whether a tool seems to watch every access. Shards are small then.
fn is_watched() -> bool {
    cases() < CASES
}

//! Utilities that the tests, fuzz targets and benchmarks of `zarrs_cuda` share.
//!
//! | module | content |
//! |---|---|
//! | [`effort`] | the number of test cases, and their seeds |
//! | [`processes`] | tests and examples in processes of their own |
//! | [`allocations`] | the largest allocation of a process |
//! | [`panics`] | panics of `zarrs_cuda`, also caught ones |
//! | [`stores`] | stores that fail, rename, or record requests |
//! | [`codecs`], [`index`], [`types`] | metadata of codecs, the index of a shard, data types |
//! | [`troubled`] | a codec that fails on demand |
//! | [`xor`] | codecs that neither zarrs nor `zarrs_cuda` knows |
//! | [`frames`] | arrays that are written as streams of frames |
//! | [`tensors`] | tensors of other libraries |
//!
//! Unit tests of `zarrs_cuda` may use only items that do not name a type of `zarrs_cuda`. This
//! crate is linked with the library, and a unit test is a separate compilation of it.

#![deny(unsafe_code)]
#![allow(
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    clippy::should_implement_trait,
    clippy::unwrap_used,
    missing_docs,
    reason = "for tests, which fail by panicking"
)]

#[allow(unsafe_code)]
pub mod allocations;
pub mod codecs;
pub mod effort;
pub mod frames;
pub mod index;
pub mod panics;
pub mod processes;
mod rng;
mod shards;
pub mod stores;
pub mod tensors;
pub mod troubled;
pub mod types;
pub mod xor;

pub use rng::Rng;
pub use shards::{Shards, all_indices, chunk_shape, random_box};

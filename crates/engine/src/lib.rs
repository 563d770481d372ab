//! The engines of `zarrs_cuda`: they encode decoded shards to subchunks and extents, and decode them.
//!
//! An engine knows bytes, shapes and [`Chain`](contract::Chain)s. It knows no zarrs trait, no store and
//! no shard index. This crate serves `zarrs_cuda` alone, and no promise of semantic versioning covers it.
//!
//! | module | content |
//! |---|---|
//! | [`layout`] | integers only: how a shard divides into subchunks, and where their bytes lie |
//! | [`contract`] | the traits of engines, and the types that pass through them |
//! | [`memory`] | buffers, and parts of them that several threads write |
//! | [`process`] | threads, the account of memory, and values that a forked child has anew |
//! | [`error`] | the errors of engines |
//! | [`subchunk`] | one subchunk, encoded or decoded by one thread |
//! | [`reduce`] | elements of a pyramid's level, from those of the level above |
//! | [`host`] | the engine on the host's processors |
//! | [`cuda`] | the engine on CUDA devices |
//! | [`fallback`] | the host in place of a device that fails |

#![deny(unsafe_code)]
#![allow(
    missing_docs,
    clippy::len_without_is_empty,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::new_without_default,
    clippy::return_self_not_must_use,
    rustdoc::private_intra_doc_links,
    reason = "public for zarrs_cuda alone"
)]
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::unwrap_used,
        reason = "made-up data, and a test's way to fail"
    )
)]

pub mod contract;
pub mod cuda;
pub mod error;
#[cfg(any(test, feature = "fakes"))]
pub mod fakes;
pub mod fallback;
pub mod host;
pub mod layout;
pub mod memory;
pub mod process;
#[allow(unsafe_code)]
pub mod reduce;
pub mod subchunk;

//! Tests of the search for the library, of its queries, and of batches.
//!
//! Most tests use the stand-ins, `library` uses NVIDIA's own library.

#![allow(clippy::unwrap_used)] // a test that panics has failed

pub(crate) mod batches;
mod library;
mod queries;
mod search;

use super::*;
use std::path::Path;
use zarrs_cuda_nvcomp_stand_in::StandIn;

pub(crate) const FORMATS: [Format; 4] = [
    Format::Zstd,
    Format::Deflate { algorithm: 1 },
    Format::Deflate { algorithm: 5 },
    Format::Lz4,
];

fn open(library: StandIn) -> Nvcomp {
    Nvcomp::open(&library.path()).unwrap()
}

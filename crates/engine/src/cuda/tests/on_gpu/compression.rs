//! The engine with NVIDIA's compressors, on the device.

use super::{compressed, engine, is_watched, nvcomp};
use crate::cuda::driver::cuda::gpu_or_skip;
use crate::cuda::{Compressors, Tuning};
use compressed::{Scale, Setup};
use std::{env, path::Path};

/// Returns a setup, or `None` without a GPU or, as `nvcomp` reports, without a library.
fn setup(test: &str) -> Option<Setup> {
    let driver = gpu_or_skip(test)?;
    nvcomp::library(test)?;
    let (scale, tuning) = if is_watched() {
        (Scale::Small, Tuning::TINY)
    } else {
        // Large shards take several batches.
        let compressed_batch = 1 << 20;
        let tuning = Tuning {
            compressed_batch,
            ..engine::MEDIUM
        };
        (Scale::Large, tuning)
    };
    let tuning = engine::tuned(tuning);
    let setup = Setup::new(driver, Compressors::default(), tuning, scale);
    Some(setup.reporting())
}

/// The environment variable that names a folder for arrays of every chain. The interoperability
/// tests let other implementations read them, where `ZARRS_CUDA_INTEROP_ARRAYS` names that folder.
const EXPORT: &str = "ZARRS_CUDA_EXPORT";

#[test]
fn arrays_for_other_implementations() {
    let Some(folder) = env::var_os(EXPORT) else {
        println!("arrays_for_other_implementations is skipped: {EXPORT} names no folder");
        return;
    };
    if let Some(setup) = setup("arrays_for_other_implementations") {
        compressed::export(&setup, Path::new(&folder));
    }
}

#[test]
fn every_chain_with_a_compressor() {
    if let Some(setup) = setup("every_chain_with_a_compressor") {
        compressed::every_chain(&setup);
    }
}

/// The data are trusted: each shard was encoded just before.
#[test]
fn every_chain_comes_back() {
    if let Some(setup) = setup("every_chain_comes_back") {
        let ([ours, of_host], others) = compressed::decompressed(&setup);
        println!("decoded on the device: {ours} of its shards, {of_host} of the host's");
        println!("the host decoded the others: {others:?}");
        assert!(ours > 0 && of_host > 0, "all went to the host: {others:?}");
    }
}

#[test]
fn subchunks_of_a_few_bytes() {
    if let Some(setup) = setup("subchunks_of_a_few_bytes") {
        compressed::short_subchunks(&setup);
    }
}

#[test]
fn the_longest_chunks() {
    if let Some(setup) = setup("the_longest_chunks") {
        compressed::longest_chunks(&setup);
    }
}

#[test]
fn compressed_shards_in_several_lanes() {
    if let Some(setup) = setup("compressed_shards_in_several_lanes") {
        compressed::several_lanes(&setup, 6, 3);
    }
}

/// Printed only: NVIDIA does not promise that compressors are deterministic.
#[test]
fn whether_compressed_shards_are_the_same_bytes_every_time() {
    if let Some(setup) = setup("whether_compressed_shards_are_the_same_bytes_every_time") {
        let differ = compressed::that_differ(&setup, 6);
        println!("chains whose bytes differ from one time to the next: {differ:?}");
    }
}

/// Printed only: the bytes may depend on the size of batches.
#[test]
fn whether_the_size_of_batches_shows() {
    if let Some(setup) = setup("whether_the_size_of_batches_shows") {
        let differ = compressed::that_depend_on_batches(&setup, 16 << 20);
        println!("chains whose bytes depend on the size of batches: {differ:?}");
    }
}

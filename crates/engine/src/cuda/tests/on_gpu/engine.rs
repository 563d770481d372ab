//! The engine on the device: large shards, from many threads and with little memory.

use std::time::Duration;

use super::{bodies, is_watched};
use crate::cuda::driver::cuda::gpu_or_skip;
use crate::cuda::{Devices, Tuning};

/// Batches so small that a shard of a few MiB has several of them.
pub(super) const MEDIUM: Tuning = Tuning {
    compressed_batch: 4 << 20,
    slab: 256 << 10,
    long_slab: 256 << 10,
    ring: 3,
    batch: 1 << 20,
    per_multiprocessor: 0,
    batches: 3,
    streams: 1,
    small_part: 4 << 10,
    least_direct: 200,
};

/// The environment variable with the number of streams of kernels of each lane; 1 by default.
pub(in crate::cuda::tests) const STREAMS: &str = "ZARRS_CUDA_GPU_STREAMS";

/// Returns the parameters with the streams of kernels that [`STREAMS`] names.
pub(super) fn tuned(tuning: Tuning) -> Tuning {
    let streams = std::env::var(STREAMS).map_or(1, |streams| streams.parse().unwrap());
    Tuning { streams, ..tuning }
}

/// Subjects, and tunings that suit them.
pub(super) fn subjects() -> (Vec<bodies::Subject>, [Tuning; 2]) {
    if is_watched() {
        (bodies::small(), [Tuning::TINY, Tuning::DEFAULT].map(tuned))
    } else {
        (bodies::large(), [Tuning::DEFAULT, MEDIUM].map(tuned))
    }
}

#[test]
fn many_threads_with_mixed_shards() {
    if let Some(driver) = gpu_or_skip("many_threads_with_mixed_shards") {
        let (subjects, tunings) = subjects();
        let time = Duration::from_secs(if is_watched() { 0 } else { 10 });
        bodies::under_load(&Devices::new(vec![driver]), &subjects, &tunings, 8, time);
    }
}

#[test]
fn one_lane_and_nested_rayon() {
    if let Some(driver) = gpu_or_skip("one_lane_and_nested_rayon") {
        let (mut subjects, [tuning, _]) = subjects();
        let patience = Duration::from_mins(5);
        bodies::one_lane_and_nested_rayon(driver, subjects.swap_remove(3), tuning, patience);
    }
}

#[test]
fn idle_lanes_are_given_up() {
    if let Some(driver) = gpu_or_skip("idle_lanes_are_given_up") {
        let (subjects, [tuning, _]) = subjects();
        bodies::idle_lanes(driver, &subjects[0], tuning);
    }
}

#[test]
fn less_and_less_memory() {
    if let Some(driver) = gpu_or_skip("less_and_less_memory") {
        let (subjects, [tuning, _]) = subjects();
        bodies::budgets(driver, &subjects[1], tuning);
    }
}

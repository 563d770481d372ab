//! The conformance suite and reads on a GPU, and a fork of a process that uses it. Without a GPU each test is
//! skipped with a message; with `ZARRS_CUDA_REQUIRE_GPU=1` it fails.

use zarrs_cuda_engine::cuda::Tuning;
use zarrs_cuda_engine::cuda::driver::cuda::gpu_or_skip;
use zarrs_cuda_engine::fakes::nvcomp_or_skip;

use super::reading::OnDevice;
use super::{foreign, placing, reading, suites};
use crate::options::{Backend, Options};

/// How many cases of a property are tried. `ZARRS_CUDA_GPU_CASES` lowers the number for tools that
/// watch every access, which are slow.
fn cases() -> u32 {
    std::env::var("ZARRS_CUDA_GPU_CASES").map_or(256, |cases| cases.parse().unwrap())
}

/// The parameters with the streams of kernels that `ZARRS_CUDA_GPU_STREAMS` names.
fn tuned(tuning: Tuning) -> Tuning {
    let streams = std::env::var("ZARRS_CUDA_GPU_STREAMS");
    let streams = streams.map_or(1, |streams| streams.parse().unwrap());
    Tuning { streams, ..tuning }
}

#[test]
fn shards_of_the_conformance_suite() {
    if let Some(driver) = gpu_or_skip("shards_of_the_conformance_suite") {
        for tuning in [Tuning::TINY, Tuning::DEFAULT].map(tuned) {
            suites::conformance(&Options::default(), driver.clone(), tuning, cases());
        }
    }
}

/// Uses NVIDIA's own compressors. zarrs decodes their output.
#[test]
fn compressed_shards_of_the_conformance_suite() {
    let name = "compressed_shards_of_the_conformance_suite";
    if let Some(driver) = gpu_or_skip(name)
        && nvcomp_or_skip(name, zarrs_cuda_nvcomp_stand_in::is_stand_in).is_some()
    {
        let options = Options::default().with_backend(Backend::Cuda);
        for tuning in [Tuning::TINY, Tuning::DEFAULT].map(tuned) {
            let on_host = suites::compressed_conformance(&options, driver.clone(), tuning, cases());
            println!("{on_host} subchunks could not be compressed there");
        }
    }
}

/// Runs `test` with a GPU, and with nvCOMP if that is there. The frames of other implementations need both.
fn with_reads(name: &str, needs_nvcomp: bool, test: impl Fn(OnDevice, &Options, u64)) {
    let Some(driver) = gpu_or_skip(name) else {
        return;
    };
    let is_stand_in = zarrs_cuda_nvcomp_stand_in::is_stand_in;
    if needs_nvcomp && nvcomp_or_skip(name, is_stand_in).is_none() {
        return;
    }
    let options = Options::default().with_device_memory(1 << 30);
    for seed in 0..u64::from(cases().min(6)) {
        test(OnDevice::of(driver.clone()), &options, seed);
    }
}

#[test]
fn boxes_of_every_chain_are_read() {
    with_reads(
        "boxes_of_every_chain_are_read",
        false,
        |on, options, seed| {
            let driver = on.driver.clone();
            for (codecs, _) in reading::chains() {
                let on = OnDevice::of(driver.clone());
                let counts = reading::compare_chain(on, options, &codecs, seed);
                println!(
                    "{codecs}: {} of {} by the host",
                    counts.subchunks_read_on_host, counts.subchunks_read
                );
            }
        },
    );
}

#[test]
fn boxes_are_read_into_memory_of_an_application() {
    let name = "boxes_are_read_into_memory_of_an_application";
    with_reads(name, true, placing::place_boxes);
}

/// zarr-python and tensorstore have written the arrays.
#[test]
fn arrays_of_others_are_decoded() {
    with_reads("arrays_of_others_are_decoded", true, |on, options, seed| {
        if seed == 0 {
            foreign::read_all(|_| OnDevice::of(on.driver.clone()), options);
        }
    });
}

#[test]
#[cfg(target_os = "linux")]
fn a_forked_child_uses_the_host() {
    if let Some(driver) = gpu_or_skip("a_forked_child_uses_the_host") {
        suites::forked_child(driver, tuned(Tuning::DEFAULT));
    }
}

//! Processes with the emulated CUDA driver.

use std::fs;
use std::process::{Command, Output};

use zarrs_cuda_emulator::driver;
use zarrs_cuda_engine::cuda::driver::cuda::CudaDriver;
use zarrs_cuda_nvcomp_stand_in::StandIn;
use zarrs_cuda_testing::processes::{again, assert_passed};

/// Lets a process load the emulated driver, and the stand-in for nvCOMP. Returns its output.
fn with_driver(command: &mut Command) -> Output {
    let folder = tempfile::tempdir().unwrap();
    driver::library(folder.path()).unwrap();
    command
        .env("LD_LIBRARY_PATH", folder.path())
        .env("ZARRS_CUDA_EMULATED", "schedule=latest")
        .env("ZARRS_CUDA_NVCOMP", StandIn::Six.path())
        .env("ZARRS_CUDA_REQUIRE_GPU", "1")
        .env("ZARRS_CUDA_REQUIRE_NVCOMP", "1")
        .output()
        .unwrap()
}

/// Nothing is asked of a driver before the first use of a device, and nothing is mapped.
#[test]
fn nothing_happens_before_the_first_use() {
    assert_passed(&with_driver(&mut again(
        module_path!(),
        "no_driver_is_loaded",
        true,
    )));
}

#[test]
#[ignore = "nothing_happens_before_the_first_use runs it"]
fn no_driver_is_loaded() {
    let is_loaded = || {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        maps.contains("libcuda.so")
    };
    let _registration = crate::register(crate::Options::default()).unwrap();
    assert!(!is_loaded());
    CudaDriver::open(0).unwrap();
    assert!(is_loaded());
}

/// The tests that need a GPU, with few cases, with one stream of kernels and with three.
#[test]
fn the_suites_pass() {
    for streams in ["1", "3"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .arg("on_devices::on_gpu::")
            .env("ZARRS_CUDA_GPU_CASES", "4")
            .env("ZARRS_CUDA_GPU_STREAMS", streams);
        let output = with_driver(&mut command);
        let text = [&output.stdout[..], &output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(output.status.success(), "{}\n{text}", output.status);
        assert!(text.contains("3 passed"), "{text}");
        assert!(!text.contains("is skipped"), "{text}");
    }
}

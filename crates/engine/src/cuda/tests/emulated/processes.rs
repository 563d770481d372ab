//! Processes with a CUDA driver: how its library is found and loaded, what a forked child is told,
//! and the tests that need a GPU.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use zarrs_cuda_nvcomp_stand_in::StandIn;
use zarrs_cuda_testing::processes::{again, assert_passed};

use super::super::on_gpu::bodies;
use super::super::on_gpu::engine::STREAMS;
use super::*;
use crate::cuda::DeviceLimits;
use crate::cuda::driver::Fault;
use crate::cuda::driver::cuda::open_all;

/// Lets a process load the library that is in one of `folders`.
fn with_driver<'a>(command: &'a mut Command, folders: &[&Path], settings: &str) -> &'a mut Command {
    let paths = folders.iter().map(|folder| folder.display().to_string());
    command
        .env("LD_LIBRARY_PATH", paths.collect::<Vec<_>>().join(":"))
        .env("ZARRS_CUDA_EMULATED", settings)
}

/// Runs a test of this module in a process with an emulated driver. Returns the process's output.
fn child(test: &str, settings: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    driver::library(folder.path()).unwrap();
    let mut command = again(module_path!(), test, true);
    command
        .env("ZARRS_CUDA_NVCOMP", StandIn::Six.path())
        .env("ZARRS_CUDA_REQUIRE_NVCOMP", "1");
    let output = with_driver(&mut command, &[folder.path()], settings).output();
    assert_passed(&output.unwrap())
}

/// Returns the error that `open_all` returns in a process with these settings.
fn refusal(settings: &str) -> String {
    child("prints_the_devices", settings)
}

#[test]
#[ignore = "other tests run it"]
fn prints_the_devices() {
    match open_all() {
        Ok(found) => {
            let devices: Vec<_> = found.drivers.iter().map(|driver| driver.device()).collect();
            println!("{devices:?}");
        }
        Err(error) => {
            assert_eq!(error.fault, Fault::Unavailable);
            println!("{error}");
        }
    }
}

#[test]
fn devices_are_found_and_described() {
    let text = refusal("devices=2 capability=8.6 multiprocessors=84 memory=25769803776");
    for part in [
        "ordinal: 0",
        "ordinal: 1",
        "Emulated device",
        "(8, 6)",
        "25769803776",
        "multiprocessors: 84",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
#[ignore = "other tests run it"]
fn meets_a_device_that_hangs() {
    let limits = DeviceLimits {
        timeout: Duration::from_millis(50),
        ..limits()
    };
    let devices = Devices::new(open_all().expect("a driver").drivers);
    let engine = CudaEngine::new(devices.clone(), limits, Tuning::TINY);
    let done = Shard::new(1).round_trip(&engine);
    println!("{}", done.expect_err("the device hangs"));
    devices.shut_down(Duration::from_mins(1));
}

/// The process ends, although the device is still at work.
#[test]
fn a_process_ends_on_a_device_that_hangs() {
    let text = child("meets_a_device_that_hangs", "hang=20 schedule=latest");
    assert!(text.contains("did not get there within 50ms"), "{text}");
}

/// A device is used all the same if the driver does not say where it is, or fails when it is asked.
#[test]
fn devices_say_where_they_are_or_not() {
    let found = |settings: &str| {
        let text = refusal(settings);
        assert!(text.contains("ordinal: 1"), "{settings}: {text}");
        text.matches("pci: Some").count()
    };
    let text = refusal("devices=2 pci=10000:3b:1f");
    for bus in [0x3b, 0x3c] {
        let address = format!("PciAddress {{ domain: 65536, bus: {bus}, device: 31 }}");
        assert!(text.contains(&address), "{address}: {text}");
    }
    assert_eq!(found("devices=2"), 0);
    // A fault is one of every device.
    for call in 4..7 {
        let settings = format!("devices=2 pci=0:3b:0 fault=cuDeviceGetAttribute:{call}:1");
        assert_eq!(found(&settings), 0);
    }
    assert_eq!(
        found("devices=2 pci=0:3b:0 fault=cuDeviceGetAttribute:7:1"),
        2
    );
}

#[test]
fn what_makes_a_driver_unusable_is_named() {
    let cases = [
        ("version=11080", "for CUDA 11.8"),
        ("devices=0", "CUDA_ERROR_NO_DEVICE (100)"),
        ("capability=6.1", "its compute capability is 6.1"),
        ("fault=cuInit:0:999", "CUDA_ERROR_UNKNOWN (999)"),
        ("fault=cuInit:0:34", "the stub of a CUDA toolkit"),
        (
            "fault=cuDriverGetVersion:0:34",
            "the stub of a CUDA toolkit",
        ),
        ("fault=cuDriverGetVersion:0:1", "does not tell its version"),
        ("fault=cuDeviceGetCount:0:3", "count the CUDA devices"),
        ("fault=cuDeviceGet:0:101", "find the device"),
        (
            "fault=cuDeviceGetAttribute:0:1",
            "ask for the compute capability",
        ),
        (
            "fault=cuDeviceGetAttribute:1:1",
            "the minor compute capability",
        ),
        (
            "fault=cuDeviceGetAttribute:2:1",
            "the number of multiprocessors",
        ),
        ("fault=cuDeviceGetName:0:1", "ask for the name"),
        ("fault=cuDeviceTotalMem_v2:0:1", "the size of the memory"),
        (
            "fault=cuDeviceGet:0:12345",
            "error 12345, which the driver has no name for",
        ),
    ];
    for (settings, part) in cases {
        let text = refusal(settings);
        assert!(text.contains(part), "{settings}: {text}");
    }
}

/// The context is retained at the first use, not when the device is opened.
#[test]
fn a_device_that_nobody_may_use_is_opened_and_then_refused() {
    child("a_context_is_refused", "fault=cuDevicePrimaryCtxRetain:0:2");
}

#[test]
#[ignore = "a_device_that_nobody_may_use_is_opened_and_then_refused runs it"]
fn a_context_is_refused() {
    let driver = CudaDriver::open(0).unwrap();
    let error = driver.enter().unwrap_err();
    assert_eq!(error.fault, Fault::OutOfMemory, "{error}");
    driver.enter().unwrap();
    driver.leave().unwrap();
}

#[test]
fn a_library_that_lacks_a_function_is_named() {
    let folder = tempfile::tempdir().unwrap();
    driver::library(folder.path()).unwrap();
    // A library with other functions.
    fs::copy(StandIn::Six.path(), folder.path().join("libcuda.so")).unwrap();
    fs::copy(StandIn::Six.path(), folder.path().join("libcuda.so.1")).unwrap();
    let mut command = again(module_path!(), "prints_the_devices", true);
    let output = with_driver(&mut command, &[folder.path()], "")
        .output()
        .unwrap();
    let text = assert_passed(&output);
    assert!(
        text.contains("the CUDA driver's library has no cu"),
        "{text}"
    );
    assert!(text.contains("install an NVIDIA driver"), "{text}");
}

#[test]
fn only_one_of_two_libraries_is_loaded() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for folder in &folders {
        driver::library(folder.path()).unwrap();
    }
    let [first, second] = folders.each_ref().map(tempfile::TempDir::path);
    // One folder has the name that linkers use, as toolkits do, the other has the loader's.
    fs::remove_file(first.join("libcuda.so.1")).unwrap();
    fs::remove_file(second.join("libcuda.so")).unwrap();
    let mut command = again(module_path!(), "prints_the_libraries", true);
    let output = with_driver(&mut command, &[first, second], "")
        .output()
        .unwrap();
    let text = assert_passed(&output);
    let loaded: Vec<_> = text
        .lines()
        .filter(|line| line.contains("loaded: "))
        .collect();
    assert_eq!(loaded.len(), 1, "{text}");
}

#[test]
#[ignore = "only_one_of_two_libraries_is_loaded runs it"]
fn prints_the_libraries() {
    let driver = CudaDriver::open(0).unwrap();
    round_trip(&driver).unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut files: Vec<_> = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .filter(|file| file.contains("libcuda.so"))
        .collect();
    files.dedup();
    for file in files {
        println!("loaded: {file}");
    }
}

#[test]
fn all_devices_of_a_process_are_used() {
    for devices in [2, 4] {
        let settings = format!("devices={devices} schedule=priority:{devices}");
        child("uses_all_devices", &settings);
    }
}

#[test]
#[ignore = "all_devices_of_a_process_are_used runs it"]
fn uses_all_devices() {
    let drivers = open_all().unwrap().drivers;
    let devices = Devices::new(drivers.clone());
    let subjects = bodies::small();
    bodies::under_load(
        &devices,
        &subjects,
        &[Tuning::TINY],
        2 * drivers.len(),
        Duration::ZERO,
    );
    for driver in drivers {
        let device = driver.device().ordinal;
        let free = |driver: &dyn Driver| {
            driver.enter()?;
            let free = driver.free_memory();
            driver.leave()?;
            free
        };
        // The budgets are shares of the free memory, and lanes are kept: a used device has less.
        let free = free(&*driver).unwrap();
        assert!(
            free < driver.device().total_memory,
            "device {device} was not used"
        );
    }
}

#[test]
fn warm_up_runs_each_compressor_on_each_device() {
    child("runs_each_compressor", "devices=2 schedule=latest");
}

#[test]
#[ignore = "warm_up_runs_each_compressor_on_each_device runs it"]
fn runs_each_compressor() {
    let devices = Devices::new(open_all().unwrap().drivers);
    let limits = DeviceLimits {
        device_memory: Some(1 << 26),
        pinned_memory: 1 << 26,
        ..limits()
    };
    let engine = CudaEngine::new(devices, limits, Tuning::DEFAULT);
    let compressors = Compressors {
        decode: true,
        ..Compressors::default()
    };
    engine.warm_up(&compressors).unwrap();
    let metrics = engine.counters().snapshot();
    // Five compressors, encoded and decoded on two devices. The host has compared everything.
    assert_eq!(metrics.batches_checked, 2 * 2 * 5);
    assert_eq!((metrics.subchunks_on_host, metrics.mismatches), (0, 0));
    assert_eq!((metrics.shards_encoded, metrics.shards_decoded), (0, 0));
}

/// The tests that need a GPU, with few cases, with one stream of kernels and with three.
#[test]
fn the_suites_pass() {
    suites_pass("1", &[]);
    // A kernel alone has one stream.
    suites_pass("3", &["--skip", "tests::on_gpu::kernels::"]);
}

fn suites_pass(streams: &str, but: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    driver::library(folder.path()).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .arg("tests::on_gpu::")
        .args(["--skip", "four_processes_share_a_device"]) // each would have a device of its own
        .args(but)
        .env("ZARRS_CUDA_REQUIRE_GPU", "1")
        .env("ZARRS_CUDA_REQUIRE_NVCOMP", "1")
        .env("ZARRS_CUDA_GPU_CASES", "4")
        .env(STREAMS, streams)
        .env("ZARRS_CUDA_NVCOMP", StandIn::Six.path());
    let output = with_driver(&mut command, &[folder.path()], "schedule=latest")
        .output()
        .unwrap();
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success(), "{}\n{text}", output.status);
    assert!(!text.contains("is skipped"), "{text}");
    let passed = text
        .lines()
        .find(|line| line.starts_with("test result: ok."))
        .unwrap_or_default();
    println!("{passed}");
}

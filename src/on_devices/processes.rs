//! Processes with the emulated CUDA driver.

use std::fs;
use std::num::NonZeroU64;
use std::process::{Command, Output};
use std::sync::Arc;

use zarrs::array::codec::ZstdCodec;
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs_cuda_emulator::driver;
use zarrs_cuda_engine::cuda::driver::Driver;
use zarrs_cuda_engine::cuda::driver::cuda::{CudaDriver, open_all};
use zarrs_cuda_nvcomp_stand_in::StandIn;
use zarrs_cuda_testing::processes::{again, assert_passed};
use zarrs_storage::store::MemoryStore;

use super::suites::in_child;
use crate::CudaShardingCodecBuilder;
use crate::options::{Backend, Options};

/// Lets a process load the emulated driver, and the stand-in for nvCOMP. Returns its output.
fn with_driver(command: &mut Command) -> Output {
    with_driver_of(command, "schedule=latest")
}

/// Runs a process like [`with_driver`], with these settings of the emulated driver.
fn with_driver_of(command: &mut Command, settings: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    driver::library(folder.path()).unwrap();
    command
        .env("LD_LIBRARY_PATH", folder.path())
        .env("ZARRS_CUDA_EMULATED", settings)
        .env("ZARRS_CUDA_NVCOMP", StandIn::Six.path())
        .env("ZARRS_CUDA_REQUIRE_GPU", "1")
        .env("ZARRS_CUDA_REQUIRE_NVCOMP", "1")
        .output()
        .unwrap()
}

/// Runs a test of this module in a process with `devices` emulated devices and these variables.
fn child(test: &str, devices: usize, variables: &[(&str, &str)]) {
    let mut command = again(module_path!(), test, true);
    for name in ["ZARRS_CUDA_DEVICES", "ZARRS_CUDA_BACKEND", "LOCAL_RANK"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    let output = with_driver_of(&mut command, &format!("devices={devices} schedule=latest"));
    assert_passed(&output);
}

fn is_loaded(library: &str) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.contains(library)
}

/// Returns the devices whose contexts exist.
fn contexts() -> Vec<usize> {
    let devices = open_all().unwrap().drivers;
    let with_context = devices.iter().filter(|driver| driver.has_context());
    with_context.map(|driver| driver.device().ordinal).collect()
}

/// Returns an array of one shard of 1 MiB, with 32 subchunks.
fn array(options: Options) -> Array<MemoryStore> {
    let subchunk = vec![NonZeroU64::new(1 << 15).unwrap()];
    let codec = CudaShardingCodecBuilder::new(subchunk, &data_type::uint8())
        .bytes_to_bytes_codecs(vec![Arc::new(ZstdCodec::new(1, false))])
        .options(options)
        .build_arc()
        .unwrap();
    ArrayBuilder::new(vec![1 << 20], vec![1 << 20], data_type::uint8(), 0_u8)
        .array_to_bytes_codec(codec)
        .build(Arc::new(MemoryStore::new()), "/array")
        .unwrap()
}

fn store(array: &Array<MemoryStore>) {
    let elements: Vec<u8> = (0..1 << 20_u32).map(|i| (i % 251) as u8 + 1).collect();
    array.store_chunk(&[0], elements.as_slice()).unwrap();
    assert_eq!(array.retrieve_chunk::<Vec<u8>>(&[0]).unwrap(), elements);
}

/// A process that asks for no device loads no driver, and a child that it forks can use CUDA.
#[test]
fn without_consent_no_driver_is_loaded() {
    // A launcher's variable asks for nothing.
    child("asks_for_nothing", 2, &[("LOCAL_RANK", "1")]);
    child("asks_for_nothing", 2, &[("ZARRS_CUDA_BACKEND", "host")]);
}

#[test]
#[ignore = "without_consent_no_driver_is_loaded runs it"]
fn asks_for_nothing() {
    let registration = crate::register(Options::default()).unwrap();
    for options in [
        Options::default(),
        Options::default().with_backend(Backend::Auto),
        Options::default().with_device_decode(true),
    ] {
        let array = array(options.clone());
        store(&array);
        let why = crate::explain(&array).unwrap().why;
        assert!(why.contains("asked for"), "{why}");
        let machine = crate::machine(&options);
        assert_eq!(machine.devices.as_ref(), Err(&why));
        assert_eq!(machine.nvcomp.as_ref(), Err(&why));
    }
    crate::release_idle_memory();
    assert_eq!(crate::metrics().shards_encoded, 0);
    drop(registration);
    assert!(!is_loaded("libcuda.so"));
    assert!(!is_loaded("nvcomp"));
    in_child(&[("it cannot use CUDA", &|| {
        CudaDriver::open(1).is_ok_and(|driver| driver.enter().is_ok())
    })]);
}

/// Each setting that asks for a device selects one, without a context until the first shard.
#[test]
fn with_consent_one_device_is_used() {
    let cases: [(&[(&str, &str)], &str); 5] = [
        (&[], "0: the default, one device"),
        (&[("ZARRS_CUDA_DEVICES", "2")], "2: ZARRS_CUDA_DEVICES"),
        (&[("LOCAL_RANK", "4")], "1: LOCAL_RANK=4"),
        (
            &[("ZARRS_CUDA_DEVICES", "2"), ("LOCAL_RANK", "4")],
            "2: ZARRS_CUDA_DEVICES",
        ),
        (
            &[("TEST_ENTER", "2")],
            "2: the thread's current CUDA context",
        ),
    ];
    for (variables, expected) in cases {
        let expected = [("TEST_EXPECTED", expected), ("ZARRS_CUDA_BACKEND", "cuda")];
        let variables = [variables, &expected].concat();
        child("uses_one_device", 3, &variables);
    }
}

#[test]
#[ignore = "with_consent_one_device_is_used runs it"]
fn uses_one_device() {
    let expected = std::env::var("TEST_EXPECTED").unwrap();
    let (device, by) = expected.split_once(": ").unwrap();
    let device: usize = device.parse().unwrap();
    let entered = std::env::var("TEST_ENTER").ok().map(|ordinal| {
        let driver = CudaDriver::open(ordinal.parse().unwrap()).unwrap();
        driver.enter().unwrap();
        driver
    });
    let array = array(Options::default());
    let explained = crate::explain(&array).unwrap();
    let text = format!("CUDA device {device} ({by})");
    assert!(explained.why.contains(&text), "{}", explained.why);
    assert_eq!(explained.memory.is_some(), entered.is_some());
    assert!(crate::machine(&Options::default()).devices.is_ok());
    let before = entered.as_ref().map(|driver| driver.device().ordinal);
    assert_eq!(contexts(), Vec::from_iter(before));
    // Shards of several threads share one device.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| store(&array));
        }
    });
    assert_eq!(contexts(), [device]);
    let explained = crate::explain(&array).unwrap();
    assert!(explained.why.contains(&text), "{}", explained.why);
    assert!(explained.memory.is_some());
    assert_eq!(crate::metrics().shards_encoded, 8);
    if let Some(driver) = entered {
        driver.leave().unwrap();
    }
}

/// An array that is opened after `warm_up` uses the device that was warmed up. An array that was opened
/// before does not.
#[test]
fn warming_up_asks_for_later_arrays() {
    child("warms_up", 2, &[]);
}

#[test]
#[ignore = "warming_up_asks_for_later_arrays runs it"]
fn warms_up() {
    let before = array(Options::default());
    crate::warm_up(&Options::default().with_devices([1])).unwrap();
    assert_eq!(contexts(), [1]);
    let explained = crate::explain(&before).unwrap();
    assert!(
        explained.why.contains("no GPU was asked for"),
        "{explained}"
    );
    let estimates = explained.estimates.unwrap();
    assert_eq!(estimates.device, None);
    // The device is considered. For so small a shard, the host is faster.
    let after = array(Options::default());
    let explained = crate::explain(&after).unwrap();
    assert!(explained.why.contains("estimated"), "{explained}");
    let estimates = explained.estimates.unwrap();
    assert!(estimates.device.is_some());
    store(&after);
    let cuda = Options::default().with_backend(Backend::Cuda);
    let why = crate::explain(&array(cuda)).unwrap().why;
    assert!(why.contains("CUDA device 1 (`warm_up`)"), "{why}");
    assert_eq!(contexts(), [1]);
}

/// A setting that cannot be understood is an error when an array is opened, and names what it may be.
#[test]
fn wrong_settings_are_errors() {
    child("is_told", 1, &[("ZARRS_CUDA_DEVICES", "gpu0")]);
    child("is_told", 1, &[("ZARRS_CUDA_BACKEND", "gpu0")]);
}

#[test]
#[ignore = "wrong_settings_are_errors runs it"]
fn is_told() {
    let subchunk = vec![NonZeroU64::MIN];
    let opened = CudaShardingCodecBuilder::new(subchunk, &data_type::uint8()).build_arc();
    let registered = crate::register(Options::default());
    let errors = [
        opened.unwrap_err().to_string(),
        registered.unwrap_err().to_string(),
    ];
    for error in errors {
        assert!(error.contains("\"gpu0\" in the environment"), "{error}");
    }
    array(Options::default().with_backend(Backend::Host));
    assert!(!is_loaded("libcuda.so"));
}

/// A device that is too old means the host, with the reason.
#[test]
fn an_old_device_is_not_used() {
    let mut command = again(module_path!(), "is_too_old", true);
    command.env("ZARRS_CUDA_DEVICES", "0");
    let settings = "capability=6.1";
    assert_passed(&with_driver_of(&mut command, settings));
}

#[test]
#[ignore = "an_old_device_is_not_used runs it"]
fn is_too_old() {
    let array = array(Options::default());
    let why = crate::explain(&array).unwrap().why;
    assert!(why.contains("its compute capability is 6.1"), "{why}");
    store(&array);
    let cuda = Options::default().with_backend(Backend::Cuda);
    let error = crate::register(cuda).unwrap_err().to_string();
    assert!(error.contains("its compute capability is 6.1"), "{error}");
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
        assert!(text.contains("6 passed"), "{text}");
        assert!(!text.contains("is skipped"), "{text}");
    }
}

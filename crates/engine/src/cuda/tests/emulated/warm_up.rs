//! Kernels that are compiled ahead.

use std::collections::BTreeSet;

use zarrs_cuda_emulator::driver::Inject;
use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::*;
use crate::cuda::DeviceLimits;
use zarrs_cuda_kernels::KERNELS;

fn files() -> usize {
    let names: BTreeSet<_> = KERNELS.iter().map(|(_, module)| module.name).collect();
    names.len()
}

/// Lets the next file fail to compile.
fn refuse_to_compile(driver: &CudaDriver, code: u32) {
    let inject = Inject {
        function: "cuModuleLoadDataEx".to_owned(),
        call: 0,
        code,
    };
    driver::inject(driver.device().ordinal, inject);
}

#[test]
fn every_file_is_compiled_once() {
    let driver = emulated::driver(config(Schedule::Eager));
    let devices = Devices::new(vec![driver.clone() as Arc<dyn Driver>]);
    assert_eq!(driver.uncompiled(), files());
    devices.warm_up(&DeviceLimits::default()).unwrap();
    assert_eq!(driver.uncompiled(), 0);
    devices.warm_up(&DeviceLimits::default()).unwrap();
    drop(devices);
    run(driver).expect("no panic").expect("no fault");
}

/// A shard needs some of the files alone.
#[test]
fn without_it_a_file_is_compiled_when_it_is_needed() {
    let driver = emulated::driver(config(Schedule::Eager));
    run(driver.clone()).expect("no panic").expect("no fault");
    let left = driver.uncompiled();
    assert!(0 < left && left < files(), "{left}");
}

#[test]
fn a_device_that_cannot_compile_is_an_error_and_the_others_are_warmed_up() {
    const INVALID_PTX: u32 = 218;
    let drivers = [(); 2].map(|()| emulated::driver(config(Schedule::Eager)));
    refuse_to_compile(&drivers[0], INVALID_PTX);
    let devices = drivers
        .each_ref()
        .map(|driver| driver.clone() as Arc<dyn Driver>);
    let devices = Devices::new(devices.into());
    let error = devices.warm_up(&DeviceLimits::default()).unwrap_err();
    let device = drivers[0].device().ordinal;
    assert_eq!(error.device, Some(device), "{error}");
    assert!(error.to_string().contains("compile the module"), "{error}");
    // Nothing will wait again for the file that failed.
    assert_eq!(drivers.map(|driver| driver.uncompiled()), [0, 0]);
}

/// The stand-in cannot enqueue work on these devices, which have no library of a driver.
#[test]
fn a_compressor_that_fails_is_no_error() {
    let driver = emulated::driver(config(Schedule::Latest));
    let engine = CudaEngine::new(
        Devices::new(vec![driver.clone() as Arc<dyn Driver>]),
        limits(),
        Tuning::TINY,
    );
    let compressors = Compressors {
        nvcomp: Some(StandIn::Six.path()),
        ..Compressors::default()
    };
    engine.warm_up(&compressors).unwrap();
    assert_eq!(engine.counters().snapshot().batches_checked, 0);
    drop(engine);
    run(driver).expect("no panic").expect("no fault");
}

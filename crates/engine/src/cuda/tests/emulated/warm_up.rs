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

/// Each compressor of nvCOMP takes a shard through the C functions of the driver, once on each device.
#[test]
fn each_compressor_runs_on_each_device() {
    let drivers = [(); 2].map(|()| emulated::driver(config(Schedule::Latest)));
    let devices = Devices::new(
        drivers
            .each_ref()
            .map(|d| d.clone() as Arc<dyn Driver>)
            .into(),
    );
    let limits = DeviceLimits {
        device_memory: Some(1 << 26),
        pinned_memory: 1 << 26,
        ..limits()
    };
    let engine = CudaEngine::new(devices, limits, Tuning::TINY);
    let compressors = |library: StandIn| Compressors {
        levels: HighestLevels::default(),
        nvcomp: Some(library.path()),
        decode: false,
    };
    let copies = |driver: &CudaDriver| -> usize {
        let calls = driver::calls(driver.device().ordinal).into_iter();
        let copies = calls.filter(|(name, _)| name.starts_with("cuMemcpy"));
        copies.map(|(_, calls)| calls).sum()
    };
    engine.warm_up(&compressors(StandIn::Four)).unwrap();
    assert_eq!(
        drivers.each_ref().map(|d| copies(d)),
        [0, 0],
        "no usable nvCOMP"
    );
    engine.warm_up(&compressors(StandIn::Six)).unwrap();
    let metrics = engine.counters().snapshot();
    assert_eq!(
        (metrics.batches_checked, metrics.subchunks_on_host),
        (2 * 5, 0)
    );
    let [first, second] = drivers.each_ref().map(|d| copies(d));
    assert!(first > 0 && first == second, "{first} {second}");
    drop(engine);
    for driver in &drivers {
        let device = driver.device().ordinal;
        assert!(driver::violations(device).is_empty());
        assert_eq!(driver::live(device), Live::default());
    }
}

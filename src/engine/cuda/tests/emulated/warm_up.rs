//! Kernels that are compiled ahead.

use std::collections::BTreeSet;

use serde_json::json;
use zarrs::array::{ArrayBuilder, data_type};
use zarrs::storage::store::MemoryStore;
use zarrs_cuda_emulator::driver::Inject;

use super::*;
use crate::engine::cuda::Limits;
use crate::engine::cuda::kernels::ptx::KERNELS;
use crate::plan::{Engines, Rule};
use crate::{Backend, CudaShardingCodec, Options};

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
    devices.warm_up(&Limits::default()).unwrap();
    assert_eq!(driver.uncompiled(), 0);
    devices.warm_up(&Limits::default()).unwrap();
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
    let error = devices.warm_up(&Limits::default()).unwrap_err();
    let device = drivers[0].device().ordinal;
    assert_eq!(error.device, Some(device), "{error}");
    assert!(error.to_string().contains("compile the module"), "{error}");
    // Nothing will wait again for the file that failed.
    assert_eq!(drivers.map(|driver| driver.uncompiled()), [0, 0]);
}

/// `explain` says what the first shard waits for, until the kernels are compiled.
#[test]
fn explanations_name_it() {
    let driver = emulated::driver(config(Schedule::Eager));
    let devices = Devices::new(vec![driver as Arc<dyn Driver>]);
    let configuration = json!({
        "chunk_shape": [4, 4],
        "codecs": [{ "name": "bytes", "configuration": { "endian": "little" } }],
        "index_codecs": [{ "name": "bytes", "configuration": { "endian": "little" } }],
    });
    let explain = |backend| {
        let configuration = serde_json::from_value(configuration.clone()).unwrap();
        let options = Options::default().with_backend(backend);
        let codec = CudaShardingCodec::new_with_configuration(&configuration, options)
            .unwrap()
            .with_engines(Engines::of_devices(devices.clone(), Rule::ALL, TINY));
        let array = ArrayBuilder::new(vec![8, 8], vec![8, 8], data_type::uint16(), 0_u16)
            .array_to_bytes_codec(Arc::new(codec))
            .build(Arc::new(MemoryStore::new()), "/array")
            .unwrap();
        crate::explain(&array).unwrap()
    };
    let explanation = explain(Backend::Cuda);
    let wait = explanation.first_wait.clone().expect("nothing is compiled");
    assert!(wait.contains("`zarrs_cuda::warm_up`"), "{wait}");
    assert!(explanation.to_string().contains(&wait), "{explanation}");
    assert_eq!(explain(Backend::Host).first_wait, None);
    devices.warm_up(&Limits::default()).unwrap();
    let explanation = explain(Backend::Cuda);
    assert_eq!(explanation.first_wait, None);
    assert!(!explanation.to_string().contains("waits"), "{explanation}");
}

//! Kernels that are compiled ahead, and what explanations say of them.

use serde_json::json;
use zarrs::array::{ArrayBuilder, data_type};
use zarrs::storage::store::MemoryStore;
use zarrs_cuda_emulator::driver;
use zarrs_cuda_engine::cuda::DeviceLimits;
use zarrs_cuda_engine::cuda::driver::cuda::emulated;

use super::*;
use crate::codec::CudaShardingCodec;
use crate::options::{Backend, Options};
use crate::plan::{EngineRule, Engines};

/// `explain` says what the first shard waits for, until the kernels are compiled.
#[test]
fn explanations_name_it() {
    let driver = emulated::driver(driver::Config::default());
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
            .with_engines(Engines::of_devices(
                devices.clone(),
                EngineRule::ALL,
                Tuning::TINY,
            ));
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
    devices.warm_up(&DeviceLimits::default()).unwrap();
    let explanation = explain(Backend::Cuda);
    assert_eq!(explanation.first_wait, None);
    assert!(!explanation.to_string().contains("waits"), "{explanation}");
}

//! The copies and kernels of writers on a simulated device, as its trace has them.

use serde_json::{Value, json};
use zarrs::array::{ArrayBuilder, data_type};
use zarrs::storage::store::MemoryStore;
use zarrs_cuda_nvcomp_stand_in::StandIn;

use super::*;
use crate::codec::CudaShardingCodec;
use crate::options::{Backend, Options};
use crate::plan::{EngineRule, Engines};
use crate::writer::ArrayWriter;

fn traced() -> Arc<Simulation> {
    Arc::new(Simulation::new(Config {
        multiprocessors: 132,
        memory: 4 << 30,
        pinned: 4 << 30,
        trace: true,
        ..Config::default()
    }))
}

/// Returns the steps, once no rule was broken.
fn steps(simulation: &Simulation) -> Vec<Value> {
    let violations = simulation.violations();
    assert!(violations.is_empty(), "{violations:#?}");
    let trace = simulation.trace();
    let lines = trace.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The sum of a member of the steps that do `operation`.
fn sum(steps: &[Value], operation: &str, member: &str) -> u64 {
    let steps = steps.iter().filter(|step| step["operation"] == operation);
    steps.map(|step| step[member].as_u64().unwrap()).sum()
}

/// The edge of a subchunk.
const EDGE: u64 = 8;

/// How many epochs of two shards a writer has.
const EPOCHS: u64 = 2;

/// Traces a writer, with `compressor` after the bytes. A batch is an epoch.
fn writer(compressor: Option<Value>) -> Vec<Value> {
    let (edge, epochs) = (EDGE, EPOCHS);
    let simulation = traced();
    let bytes = json!({ "name": "bytes", "configuration": { "endian": "little" } });
    let codecs: Vec<Value> = std::iter::once(bytes).chain(compressor).collect();
    let configuration = serde_json::from_value(json!({
        "chunk_shape": [edge, edge, edge],
        "codecs": codecs,
        "index_codecs": [
            { "name": "bytes", "configuration": { "endian": "little" } },
            { "name": "crc32c" },
        ],
        "index_location": "end",
    }));
    let options = Options::default()
        .with_backend(Backend::Cuda)
        .with_device_memory(2 << 30)
        .with_pinned_memory(2 << 30)
        .with_nvcomp(StandIn::Six.path());
    let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
    let engines = Engines::of_devices(devices, EngineRule::ALL, Tuning::DEFAULT);
    let codec = CudaShardingCodec::new_with_configuration(&configuration.unwrap(), options)
        .unwrap()
        .with_engines(engines);
    let shape = vec![epochs * edge, 8 * edge, 16 * edge];
    let shard = vec![edge, 8 * edge, 8 * edge];
    let array = ArrayBuilder::new(shape.clone(), shard, data_type::uint16(), 0_u16)
        .array_to_bytes_codec(Arc::new(codec))
        .build(Arc::new(MemoryStore::new()), "/array")
        .unwrap();
    let mut numbers = zarrs_cuda_testing::Rng(1);
    let slice: Vec<u16> = (0..shape[1] * shape[2])
        .map(|number| (number / 7) as u16 ^ (numbers.below(16) as u16))
        .collect();
    let builder = ArrayWriter::builder(&array).with_epochs_per_batch(1);
    let mut writer = builder.with_start(0).build().unwrap();
    for _ in 0..shape[0] {
        writer.append(&slice).unwrap();
    }
    writer.finish().unwrap();
    let len = shape.iter().product::<u64>() * 2;
    let steps = steps(&simulation);
    // All of the array went up. The tables of a batch, too.
    let up: Vec<Value> = steps
        .iter()
        .filter(|step| step["direction"] == "up")
        .cloned()
        .collect();
    let up = sum(&up, "copy", "bytes");
    assert!((len..len + len / 8).contains(&up), "{up} of {len}");
    for step in &steps {
        if step["operation"] == "kernel" {
            assert!(step["took"]["instructions"].as_u64().unwrap() > 0, "{step}");
            assert!(step["took"]["bytes"].as_u64().unwrap() > 0, "{step}");
        }
    }
    let is_record = |step: &Value| step["operation"] == "record";
    assert!(steps.iter().any(is_record));
    steps
}

#[test]
fn a_writer_without_a_compressor() {
    writer(None);
}

#[test]
fn a_writer_with_zstd() {
    let zstd = json!({ "name": "zstd", "configuration": { "level": 1, "checksum": false } });
    let steps = writer(Some(zstd));
    assert_eq!(sum(&steps, "library", "chunks"), 128 * EPOCHS);
}

#[test]
fn a_writer_with_lz4() {
    let blosc = json!({ "name": "blosc", "configuration": {
        "cname": "lz4", "clevel": 1, "shuffle": "shuffle", "typesize": 2, "blocksize": 0,
    } });
    let steps = writer(Some(blosc));
    assert!(sum(&steps, "library", "chunks") >= 128 * EPOCHS);
}

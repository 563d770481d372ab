//! Traces of what users do, for `cargo xtask predict`: writers of arrays whose store keeps nothing,
//! and two kernels alone.
//!
//! With the environment variable `ZARRS_CUDA_TRACES`, which names a folder, the arrays are large and
//! the traces are written there, a file each. The first line has the number of bytes that were written.

use std::path::PathBuf;

use serde_json::{Value, json};
use zarrs::array::{ArrayBuilder, data_type};
use zarrs_cuda_nvcomp_stand_in::StandIn;

#[path = "../../../../../benches/writer/discarding.rs"]
#[allow(dead_code, reason = "what was stored is not counted here")]
mod discarding;

use discarding::Discarding;

use super::*;
use crate::engine::cuda::kernels::scatter::Scatter;
use crate::engine::cuda::kernels::testing::run;
use crate::engine::cuda::kernels::{aggregate, spans::Slots};
use crate::layout::{Lift, LiftBatch, LiftSlab};
use crate::plan::{Engines, Rule};
use crate::writer::ArrayWriter;
use crate::{Backend, CudaShardingCodec, Options};

fn traced() -> Arc<Simulation> {
    Arc::new(Simulation::new(Config {
        multiprocessors: 132,
        memory: 4 << 30,
        pinned: 4 << 30,
        trace: true,
        ..Config::default()
    }))
}

fn folder() -> Option<PathBuf> {
    std::env::var_os("ZARRS_CUDA_TRACES").map(PathBuf::from)
}

/// Returns the steps, and writes them to the folder, if there is one.
fn keep(name: &str, bytes: usize, simulation: &Simulation) -> Vec<Value> {
    let violations = simulation.violations();
    assert!(violations.is_empty(), "{violations:#?}");
    let lines = simulation.trace();
    if let Some(folder) = folder() {
        std::fs::create_dir_all(&folder).unwrap();
        let text = format!("{}\n{lines}", json!({ "bytes": bytes }));
        std::fs::write(folder.join(format!("{name}.jsonl")), text).unwrap();
    }
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The sum of a member of the steps that do `operation`.
fn sum(steps: &[Value], operation: &str, member: &str) -> u64 {
    let steps = steps.iter().filter(|step| step["operation"] == operation);
    steps.map(|step| step[member].as_u64().unwrap()).sum()
}

/// The edge of a subchunk, and how many epochs of two shards a writer has.
fn size() -> (u64, u64) {
    if folder().is_some() { (64, 6) } else { (8, 2) }
}

/// Traces a writer, with `compressor` after the bytes. A batch is an epoch.
fn writer(name: &str, compressor: Option<Value>) -> Vec<Value> {
    let (edge, epochs) = size();
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
    let engines = Engines::of_devices(devices, Rule::ALL, Tuning::DEFAULT);
    let codec = CudaShardingCodec::new_with_configuration(&configuration.unwrap(), options)
        .unwrap()
        .with_engines(engines);
    let shape = vec![epochs * edge, 8 * edge, 16 * edge];
    let shard = vec![edge, 8 * edge, 8 * edge];
    let array = ArrayBuilder::new(shape.clone(), shard, data_type::uint16(), 0_u16)
        .array_to_bytes_codec(Arc::new(codec))
        .build(Arc::new(Discarding::default()), "/array")
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
    let steps = keep(name, usize::try_from(len).unwrap(), &simulation);
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
    writer("writer-none", None);
}

#[test]
fn a_writer_with_zstd() {
    let zstd = json!({ "name": "zstd", "configuration": { "level": 1, "checksum": false } });
    let steps = writer("writer-zstd", Some(zstd));
    assert_eq!(sum(&steps, "library", "chunks"), 128 * size().1);
}

#[test]
fn a_writer_with_lz4() {
    let blosc = json!({ "name": "blosc", "configuration": {
        "cname": "lz4", "clevel": 1, "shuffle": "shuffle", "typesize": 2, "blocksize": 0,
    } });
    let steps = writer("writer-blosc-lz4", Some(blosc));
    assert!(sum(&steps, "library", "chunks") >= 128 * size().1);
}

/// 2 MiB through `scatter_16` and through `gather`.
#[test]
fn kernels_alone() {
    let simulation = traced();
    let driver = &*simulation;
    let len = 2 << 20;
    let batch = LiftBatch {
        counts: &[1, 2, 2],
        subchunk: &[64, 64, 64],
        element_size: 2,
        order: &[0, 1, 2],
        slot_stride: 1 << 19,
    };
    let slab = LiftSlab {
        start: &[0, 0, 0],
        shape: &[64, 128, 128],
    };
    let scatter = Scatter::new(&Lift::new(&batch, &slab).unwrap(), 1, &[0; 2]).unwrap();
    let data: Vec<u8> = (0..len).map(|n| (n / 3) as u8).collect();
    let mut buffers = [data.clone(), vec![0; len], Scatter::fill_pattern(&[0; 2])];
    let [from, to, fill] = &mut buffers;
    run(driver, &mut [from, to, fill], |stream, spans| {
        // SAFETY: the spans are those of the slab, the slots and the fill value.
        unsafe { scatter.enqueue_scatter(driver, stream, spans[0], spans[1], None, spans[2]) }
    })
    .unwrap();
    let (count, each) = (64, len / 64);
    let words = |numbers: &mut dyn Iterator<Item = usize>| -> Vec<u8> {
        numbers.flat_map(|n| (n as u64).to_ne_bytes()).collect()
    };
    let sources: Vec<u8> = (0..64_u32).flat_map(|n| (63 - n).to_ne_bytes()).collect();
    let mut buffers = [
        data.clone(),
        sources,
        words(&mut (0..=count).map(|n| n * each)),
        vec![0; len],
    ];
    let [from, sources, offsets, to] = &mut buffers;
    run(
        driver,
        &mut [from, sources, offsets, to],
        |stream, spans| {
            let slots = Slots {
                span: spans[0],
                stride: each,
                count,
            };
            // SAFETY: each run has a slot of its own, and the offsets are those of the runs.
            unsafe { aggregate::gather(driver, stream, slots, spans[1], spans[2], count, spans[3]) }
        },
    )
    .unwrap();
    let reversed: Vec<u8> = data.chunks(each).rev().flatten().copied().collect();
    assert_eq!(buffers[3], reversed);
    let steps = keep("kernels", 2 * len, &simulation);
    let names: Vec<_> = steps
        .iter()
        .filter_map(|step| step["name"].as_str())
        .collect();
    assert_eq!(names, ["scatter_16", "gather"]);
    for step in steps.iter().filter(|step| step["operation"] == "kernel") {
        let moved = step["took"]["bytes"].as_u64().unwrap();
        // Read once and written once, and a few words.
        let least = 2 * len as u64;
        assert!((least..least + least / 10).contains(&moved), "{step}");
    }
}

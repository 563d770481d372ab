//! Partial writes of arrays: the device encodes the changed subchunks as one batch.

use serde_json::json;
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::storage::store::MemoryStore;
use zarrs_codec::CodecOptions;

use super::*;
use crate::codec::CudaShardingCodec;
use crate::options::{Backend, Options, WriteStrategy};
use crate::plan::{EngineRule, Engines};

/// A shard of 4 × 4 × 4 subchunks of 4³ elements.
fn array(devices: &Arc<Devices>, strategy: WriteStrategy) -> Array<MemoryStore> {
    let configuration = json!({
        "chunk_shape": [4, 4, 4],
        "codecs": [
            { "name": "bytes", "configuration": { "endian": "big" } },
            { "name": "crc32c" },
        ],
        "index_codecs": [
            { "name": "bytes", "configuration": { "endian": "little" } },
            { "name": "crc32c" },
        ],
    });
    let configuration = serde_json::from_value(configuration).expect("valid");
    let options = Options::default()
        .with_backend(Backend::Cuda)
        .with_write_strategy(strategy);
    let codec = CudaShardingCodec::new_with_configuration(&configuration, options)
        .expect("a known chain")
        .with_engines(Engines::of_devices(
            devices.clone(),
            EngineRule::ALL,
            Tuning::TINY,
        ));
    let shape = vec![16, 16, 16];
    ArrayBuilder::new(shape.clone(), shape, data_type::uint16(), 0_u16)
        .array_to_bytes_codec(Arc::new(codec))
        .build(Arc::new(MemoryStore::new()), "/array")
        .expect("valid")
}

#[test]
fn changed_subchunks_are_one_batch_on_the_device() {
    let partial = CodecOptions::default().with_experimental_partial_encoding(true);
    for strategy in [
        WriteStrategy::Auto,
        WriteStrategy::Append,
        WriteStrategy::Slots,
    ] {
        let simulation = Arc::new(Simulation::new(Config::default()));
        let devices = Devices::new(vec![simulation.clone() as Arc<dyn Driver>]);
        let array = array(&devices, strategy);
        let mut expected: Vec<u16> = (0..16 * 16 * 16).map(|i| i % 500 + 1).collect();
        array
            .store_chunk(&[0, 0, 0], expected.clone())
            .expect("stored");
        // Whole subchunks, and parts of some.
        for (round, ranges) in [[4..12, 0..16, 8..16], [3..5, 1..2, 0..16]]
            .into_iter()
            .enumerate()
        {
            let len = ranges.iter().map(|range| range.end - range.start).product();
            let values: Vec<u16> = (0..len).map(|i: u64| (1000 + i) as u16).collect();
            let mut new = values.iter();
            for z in ranges[0].clone() {
                for y in ranges[1].clone() {
                    for x in ranges[2].clone() {
                        let at = ((z * 16 + y) * 16 + x) as usize;
                        expected[at] = *new.next().expect("as many");
                    }
                }
            }
            let before = devices.counters.encoded();
            array
                .store_array_subset_opt(&ranges, values, &partial)
                .expect("updated");
            assert_eq!(devices.counters.encoded(), before + 1, "round {round}");
            let read: Vec<u16> = array.retrieve_chunk(&[0, 0, 0]).expect("readable");
            assert_eq!(read, expected, "round {round}, {strategy}");
        }
        drop(array);
        drop(devices);
        assert_clean(&simulation);
    }
}

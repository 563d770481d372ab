//! The memory that a call takes is at most that of `memory_estimate`.

use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use zarrs::array::{ArrayBuilder, ArraySubset, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::writer::BoxWriter;
use zarrs_cuda::{CudaShardingCodec, Options};
use zarrs_cuda_testing::Rng;

use crate::in_its_own_process;
use crate::memory::peak;

const SHARD: u64 = 128;
const SUBCHUNK: u64 = 32;

#[test]
fn a_call_takes_the_estimated_memory() {
    let test = "a_call_takes_the_estimated_memory";
    in_its_own_process(module_path!(), test, measure);
}

fn measure() {
    let mut random = Rng(1);
    let shape = [2 * SHARD, 2 * SHARD, SHARD];
    let len = shape.iter().product::<u64>() as usize;
    let elements: Vec<u16> = (0..len).map(|_| random.below(60_000) as u16).collect();
    let zstd = json!({ "name": "zstd", "configuration": { "level": 1, "checksum": false } });
    for compressor in [None, Some(zstd)] {
        let mut codecs = vec![json!({ "name": "bytes", "configuration": { "endian": "little" } })];
        codecs.extend(compressor);
        let configuration: Value = json!({
            "chunk_shape": [SUBCHUNK, SUBCHUNK, SUBCHUNK],
            "codecs": codecs,
            "index_codecs": [{ "name": "bytes", "configuration": { "endian": "little" } }],
        });
        let configuration = serde_json::from_value(configuration).unwrap();
        let codec = CudaShardingCodec::new_with_configuration(&configuration, Options::default());
        let folder = TempDir::new().unwrap();
        let store = Arc::new(FilesystemStore::new(folder.path()).unwrap());
        let array = ArrayBuilder::new(shape.to_vec(), vec![SHARD; 3], data_type::uint16(), 0_u16)
            .array_to_bytes_codec(Arc::new(codec.unwrap()))
            .build(store, "/a")
            .unwrap();
        let writer = BoxWriter::builder(&array).with_sync(false).build().unwrap();
        // The first call makes the contexts and buffers of the threads.
        writer.write(&array.subset_all(), &elements).unwrap();
        let whole = ArraySubset::new_with_shape(shape.to_vec());
        let part = ArraySubset::new_with_ranges(&[1..2 * SHARD, 0..2 * SHARD - 1, 0..SHARD]);
        for subset in [whole, part] {
            let elements = &elements[..subset.num_elements() as usize];
            let (peak, _) = peak(|| writer.write(&subset, elements).unwrap());
            let estimate = writer.memory_estimate();
            // Huge pages at the ends of buffers.
            let slack = 8 << 20;
            let most = estimate + estimate / 10 + slack;
            println!("{subset}: {peak} bytes, estimated {estimate}");
            assert!(peak <= most, "{subset}: {peak} bytes, estimated {estimate}");
        }
    }
}

//! Arrays on disk for the tests.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use serde_json::json;
use zarrs::array::{Array, ArrayBuilder, ArrayMetadata, CodecOptions, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::{CudaShardingCodecBuilder, Options, WriteStrategy};

/// A directory as a store.
pub(crate) fn store(path: &Path) -> Arc<FilesystemStore> {
    Arc::new(FilesystemStore::new(path).unwrap())
}

/// Runs `work` with one thread of zarrs. zarrs' own codec places subchunks in the order in which its threads finish. One
/// thread places them in the order of their numbers, so that tests may compare bytes. `Array::store_chunk` asks rayon for
/// the number of threads, not zarrs' configuration.
pub(crate) fn in_order<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    static ONE: LazyLock<rayon::ThreadPool> = LazyLock::new(|| {
        let one = rayon::ThreadPoolBuilder::new().num_threads(1);
        one.build().unwrap()
    });
    ONE.install(work)
}

/// Opens an array with zarrs' own codecs.
pub(crate) fn open(path: &Path) -> Array<FilesystemStore> {
    Array::open(store(path), "/").unwrap()
}

/// All elements of an array of `uint16`.
pub(crate) fn values(path: &Path) -> Vec<u16> {
    let array = open(path);
    array.retrieve_array_subset(&array.subset_all()).unwrap()
}

/// Writes a sharded array of 32 × 32 `uint16` in four shards of four subchunks. Elements are their
/// position, which is not empty anywhere. `inner` are the codecs of subchunks.
pub(crate) fn sharded(path: &Path, inner: &serde_json::Value) -> Array<FilesystemStore> {
    let metadata = json!({
        "zarr_format": 3, "node_type": "array", "shape": [32, 32], "data_type": "uint16",
        "fill_value": 65535,
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": [16, 16] } },
        "chunk_key_encoding": { "name": "default" },
        "codecs": [{ "name": "sharding_indexed", "configuration": {
            "chunk_shape": [8, 8], "codecs": inner, "index_location": "end",
            "index_codecs": [
                { "name": "bytes", "configuration": { "endian": "little" } }, { "name": "crc32c" },
            ],
        } }],
    });
    let metadata: ArrayMetadata = serde_json::from_value(metadata).unwrap();
    let array = Array::new_with_metadata(store(path), "/", metadata).unwrap();
    array.store_metadata().unwrap();
    let elements: Vec<u16> = (0..32 * 32).collect();
    in_order(|| array.store_array_subset(&array.subset_all(), &elements)).unwrap();
    array
}

/// `bytes` and these codecs.
pub(crate) fn chain(codecs: &[serde_json::Value]) -> serde_json::Value {
    let mut chain = vec![json!({ "name": "bytes", "configuration": { "endian": "little" } })];
    chain.extend_from_slice(codecs);
    chain.into()
}

/// An array that is not sharded.
pub(crate) fn unsharded(path: &Path) {
    let array = ArrayBuilder::new(vec![32, 32], vec![8, 8], data_type::uint16(), 0_u16)
        .build(store(path), "/")
        .unwrap();
    array.store_metadata().unwrap();
    let elements: Vec<u16> = (0..32 * 32).collect();
    array
        .store_array_subset(&array.subset_all(), &elements)
        .unwrap();
}

/// Updates the subchunks (0, 0) and (0, 1) of the shard (0, 0) `times` times, behind what is there.
pub(crate) fn update(path: &Path, times: u16) {
    let options = Options::default().with_write_strategy(WriteStrategy::Append);
    let codec = CudaShardingCodecBuilder::new(vec![8.try_into().unwrap(); 2], &data_type::uint16())
        .bytes_to_bytes_codecs(vec![Arc::new(zarrs::array::codec::Crc32cCodec::new())])
        .options(options)
        .build_arc()
        .unwrap();
    let array = ArrayBuilder::new(vec![32, 32], vec![16, 16], data_type::uint16(), u16::MAX)
        .array_to_bytes_codec(codec)
        .build(store(path), "/")
        .unwrap();
    let partial = CodecOptions::default().with_experimental_partial_encoding(true);
    for time in 0..times {
        let elements = vec![1000 + time; 8 * 16];
        array
            .store_array_subset_opt(&[0..8, 0..16], elements, &partial)
            .unwrap();
    }
}

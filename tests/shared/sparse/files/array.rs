//! An array of shards in a folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use zarrs::array::Array;
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::storage::SparseShardStore;

pub(crate) const PATH: &str = "/volume";
pub(crate) const SHARDS: u64 = 4;
/// The subchunks of a shard.
pub(crate) const SUBCHUNKS: u64 = 8;
/// The elements of a subchunk.
pub(crate) const ELEMENTS: usize = 16;

pub(crate) type Sparse = SparseShardStore<FilesystemStore>;

pub(crate) fn files(folder: &Path) -> Arc<FilesystemStore> {
    Arc::new(FilesystemStore::new(folder).unwrap())
}

/// Stores the metadata of an array.
pub(crate) fn create(folder: &Path) {
    let metadata = json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": [SHARDS * SUBCHUNKS * ELEMENTS as u64],
        "data_type": "uint32",
        "fill_value": 0,
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": [SUBCHUNKS * ELEMENTS as u64] } },
        "chunk_key_encoding": { "name": "default" },
        "codecs": [{ "name": "sharding_indexed", "configuration": {
            "chunk_shape": [ELEMENTS],
            "codecs": [{ "name": "bytes", "configuration": { "endian": "little" } }],
            "index_codecs": [
                { "name": "bytes", "configuration": { "endian": "little" } }, { "name": "crc32c" },
            ],
        } }],
    });
    let metadata = serde_json::from_value(metadata).unwrap();
    let array = Array::new_with_metadata(files(folder), PATH, metadata).unwrap();
    array.store_metadata().unwrap();
}

/// Opens a new adapter, as another process would.
pub(crate) fn open(folder: &Path) -> Arc<Sparse> {
    Arc::new(SparseShardStore::on_filesystem(files(folder), PATH).unwrap())
}

pub(crate) fn subchunks(adapter: &Arc<Sparse>) -> Array<Sparse> {
    Array::open(adapter.clone(), PATH).unwrap()
}

pub(crate) fn write(array: &Array<Sparse>, subchunk: u64, value: u32) -> Result<(), String> {
    let written = array.store_chunk(&[subchunk], vec![value; ELEMENTS]);
    written.map_err(|error| error.to_string())
}

/// Returns the value of a subchunk. All of its elements must be equal.
pub(crate) fn read(array: &Array<Sparse>, subchunk: u64) -> Result<u32, String> {
    let read = array.retrieve_chunk::<Vec<u32>>(&[subchunk]);
    let read = read.map_err(|error| error.to_string())?;
    assert!(read.iter().all(|value| *value == read[0]), "{read:?}");
    Ok(read[0])
}

/// Returns the values that zarrs alone reads.
pub(crate) fn packed(folder: &Path) -> Vec<u32> {
    let array = Array::open(files(folder), PATH).unwrap();
    let read = array.retrieve_array_subset::<Vec<u32>>(&array.subset_all());
    let read = read.unwrap();
    read.chunks(ELEMENTS).map(|subchunk| subchunk[0]).collect()
}

pub(crate) fn shard(folder: &Path, shard: u64) -> PathBuf {
    folder.join(format!("volume/c/{shard}"))
}

pub(crate) fn frame(folder: &Path, shard: u64) -> PathBuf {
    folder.join(format!("volume/c/{shard}.frame"))
}

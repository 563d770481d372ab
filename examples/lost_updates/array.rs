//! The array that is updated, and its content if no update is lost.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use zarrs::array::{Array, ArrayMetadata, ArraySubset};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::ReadableStorageTraits;

use crate::{Result, failed};

/// Extents along each axis.
const SHAPE: [u64; 2] = [192, 128];
const SHARD: [u64; 2] = [64, 128];
const SUBCHUNK: [u64; 2] = [8, 8];

pub(crate) const SHARDS: u64 = SHAPE[0] / SHARD[0] * (SHAPE[1] / SHARD[1]);
pub(crate) const SUBCHUNKS_PER_SHARD: u64 = SHARD[0] / SUBCHUNK[0] * (SHARD[1] / SUBCHUNK[1]);
pub(crate) const SUBCHUNKS: u64 = SHARDS * SUBCHUNKS_PER_SHARD;

/// The value of every element before the updates.
const OLD: u16 = u16::MAX;

/// An array of full shards, not compressed. So each shard always has the same size, and a shard that is
/// mixed from two writes can be read.
pub(crate) fn create(path: &Path) -> Result<()> {
    let metadata = json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": SHAPE,
        "data_type": "uint16",
        "fill_value": 0,
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": SHARD } },
        "chunk_key_encoding": { "name": "default", "configuration": { "separator": "/" } },
        "codecs": [{ "name": "sharding_indexed", "configuration": {
            "chunk_shape": SUBCHUNK,
            "codecs": [
                { "name": "bytes", "configuration": { "endian": "little" } },
            ],
            "index_codecs": [
                { "name": "bytes", "configuration": { "endian": "little" } }, { "name": "crc32c" },
            ],
            "index_location": "end",
        } }],
    });
    let metadata: ArrayMetadata =
        serde_json::from_value(metadata).map_err(failed("describe the array"))?;
    let store = Arc::new(FilesystemStore::new(path).map_err(failed("make the array"))?);
    let array = Array::new_with_metadata(store, "/", metadata).map_err(failed("make the array"))?;
    array.store_metadata().map_err(failed("make the array"))?;
    let len = usize::try_from(SHAPE[0] * SHAPE[1]).map_err(failed("make the array"))?;
    array
        .store_array_subset(&array.subset_all(), vec![OLD; len])
        .map_err(failed("fill the array"))
}

pub(crate) fn open(path: &Path) -> Result<Array<FilesystemStore>> {
    let store = Arc::new(FilesystemStore::new(path).map_err(failed("open the array"))?);
    Array::open(store, "/").map_err(failed("open the array"))
}

/// The indices of a subchunk in the grid of subchunks: those of a shard come one after the other.
pub(crate) fn indices(subchunk: u64) -> [u64; 2] {
    let per_row = SHAPE[1] / SUBCHUNK[1];
    [subchunk / per_row, subchunk % per_row]
}

/// The elements of a subchunk.
pub(crate) fn subset(subchunk: u64) -> ArraySubset {
    let [row, column] = indices(subchunk);
    let start = vec![row * SUBCHUNK[0], column * SUBCHUNK[1]];
    let ranges: Vec<_> = start
        .into_iter()
        .zip(SUBCHUNK)
        .map(|(start, len)| start..start + len)
        .collect();
    ArraySubset::new_with_ranges(&ranges)
}

/// The value that its one update writes into a subchunk.
pub(crate) fn elements(subchunk: u64) -> Vec<u16> {
    // There are fewer than 65 535.
    let value = u16::try_from(subchunk).unwrap_or(OLD);
    vec![value; 64]
}

/// How many subchunks do not hold their update.
pub(crate) fn lost<S: ReadableStorageTraits + ?Sized + 'static>(array: &Array<S>) -> u64 {
    let is_lost = |subchunk: &u64| {
        let read = array.retrieve_array_subset::<Vec<u16>>(&subset(*subchunk));
        read.ok() != Some(elements(*subchunk))
    };
    (0..SUBCHUNKS).filter(is_lost).count() as u64
}

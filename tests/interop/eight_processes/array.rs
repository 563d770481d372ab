//! The array to update, and its content if no update is lost.

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

/// An array of uncompressed, full shards. Each shard always has the same size, so a mixture of two
/// writes is readable.
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

/// The indices of a subchunk in the grid of subchunks. The subchunks of a shard have consecutive
/// numbers.
pub(crate) fn indices(subchunk: u64) -> [u64; 2] {
    let per_row = SHAPE[1] / SUBCHUNK[1];
    [subchunk / per_row, subchunk % per_row]
}

/// The region of a subchunk.
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

/// The elements that a subchunk's only update writes.
pub(crate) fn elements(subchunk: u64) -> Vec<u16> {
    // There are fewer than 65 535 subchunks.
    let value = u16::try_from(subchunk).unwrap_or(OLD);
    vec![value; 64]
}

/// The number of subchunks without their update.
pub(crate) fn lost<S: ReadableStorageTraits + ?Sized + 'static>(array: &Array<S>) -> u64 {
    let is_lost = |subchunk: &u64| {
        let read = array.retrieve_array_subset::<Vec<u16>>(&subset(*subchunk));
        read.ok() != Some(elements(*subchunk))
    };
    (0..SUBCHUNKS).filter(is_lost).count() as u64
}

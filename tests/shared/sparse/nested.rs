//! Subchunks that are shards themselves, seen through a sparse view. The process registers nothing:
//! this crate's codec reads these subchunks, but no other array.

use std::sync::Arc;

use serde_json::{Value, json};
use zarrs::array::{Array, ArrayMetadata, ArraySubset};
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{ReadableStorageTraits, StoreKey, WritableStorageTraits};
use zarrs_cuda::storage::SparseShardStore;

fn sharding(chunk_shape: &[u64], codecs: &Value) -> Value {
    let little = json!({ "name": "bytes", "configuration": { "endian": "little" } });
    json!({ "name": "sharding_indexed", "configuration": {
        "chunk_shape": chunk_shape,
        "codecs": codecs,
        "index_codecs": [little, { "name": "crc32c" }],
        "index_location": "end",
    } })
}

fn metadata(codecs: &Value) -> ArrayMetadata {
    let metadata = json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": [8],
        "data_type": "uint16",
        "fill_value": 0,
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": [8] } },
        "chunk_key_encoding": { "name": "default" },
        "codecs": codecs,
    });
    serde_json::from_value(metadata).unwrap()
}

#[test]
fn hostile_nested_shards_are_errors() {
    let bytes = json!([{ "name": "bytes", "configuration": { "endian": "little" } }]);
    let nested = sharding(&[2], &bytes);
    let store = Arc::new(MemoryStore::new());
    let outer = metadata(&json!([sharding(&[4], &json!([nested]))]));
    let shards = Array::new_with_metadata(store.clone(), "/a", outer).unwrap();
    shards.store_metadata().unwrap();
    shards.store_chunk(&[0], vec![1_u16; 8]).unwrap();

    let view = Arc::new(SparseShardStore::open(store.clone(), "/a").unwrap());
    let key = StoreKey::new("a/zarr.json").unwrap();
    let shown = view.get(&key).unwrap().unwrap();
    let shown: Value = serde_json::from_slice(&shown).unwrap();
    assert_eq!(shown["codecs"], json!([nested]), "the metadata are zarrs'");

    let array = Array::open(view.clone(), "/a").unwrap();
    assert!(zarrs_cuda::explain(&array).is_ok(), "the codec is not ours");
    assert_eq!(array.retrieve_chunk::<Vec<u16>>(&[1]).unwrap(), [1; 4]);

    // An index entry whose offset plus size overflows, with a valid checksum.
    let words = [u64::MAX - 1, 4, 0, 4].map(u64::to_le_bytes).concat();
    let checksum = crc32c::crc32c(&words).to_le_bytes();
    let hostile = [&[1; 8][..], &words, &checksum].concat();
    let chunk = StoreKey::new("a/c/0").unwrap();
    view.set(&chunk, hostile.into()).unwrap();
    assert!(array.retrieve_chunk::<Vec<u16>>(&[0]).is_err());
    let part = ArraySubset::new_with_ranges(&[0..1]);
    assert!(array.retrieve_array_subset::<Vec<u16>>(&part).is_err());

    // Other arrays keep zarrs' codec, even if they have the same codecs as the view.
    let is_ours = |codec: &Value| {
        let array = Array::new_with_metadata(store.clone(), "/b", metadata(&json!([codec])));
        zarrs_cuda::explain(&array.unwrap()).is_ok()
    };
    assert!(!is_ours(&sharding(&[4], &bytes)));
    assert!(is_ours(&nested));
    drop((array, view));
    assert!(!is_ours(&nested));
}

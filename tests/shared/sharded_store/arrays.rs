//! zarrs' arrays in stores of shards.

use std::sync::Arc;

use futures::executor::block_on;
use serde_json::{Value, json};
use zarrs::array::{Array, ArrayMetadata, ArraySubset, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::store::{AsyncMemoryStore, MemoryStore};
use zarrs::storage::{ListableStorageTraits, ReadableStorageTraits, WritableStorageTraits};
use zarrs_cuda::storage::{BinaryFormat, ShardedStore};

use super::subject::{Sharded, key};
use zarrs_cuda_testing::index::IndexLayout;
use zarrs_cuda_testing::{Rng, Shards, codecs};

const SHAPE: [u64; 2] = [20, 27];
const CHUNK: [u64; 2] = [4, 5];
const COUNTS: [u64; 2] = [2, 3];
const SHARD: [u64; 2] = [8, 15];

fn metadata(chunk: &[u64], encoding: &str, separator: char, codecs: &[Value]) -> ArrayMetadata {
    serde_json::from_value(json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": SHAPE,
        "data_type": "uint16",
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": chunk } },
        "chunk_key_encoding": { "name": encoding, "configuration": { "separator": separator } },
        "fill_value": 0,
        "codecs": codecs,
        "attributes": { "a": 1 },
    }))
    .unwrap()
}

fn elements(seed: u64) -> Vec<u16> {
    let mut rng = Rng(seed);
    let len = usize::try_from(SHAPE[0] * SHAPE[1]).unwrap();
    (0..len).map(|_| u16::from(rng.byte()) + 1).collect()
}

fn whole() -> ArraySubset {
    ArraySubset::new_with_shape(SHAPE.to_vec())
}

/// Returns a part of `all`.
fn part(all: &[u16], rows: std::ops::Range<u64>, columns: std::ops::Range<u64>) -> Vec<u16> {
    let at = |row: u64, column: u64| usize::try_from(row * SHAPE[1] + column).unwrap();
    rows.flat_map(|row| columns.clone().map(move |column| at(row, column)))
        .map(|at| all[at])
        .collect()
}

fn sharded(format: BinaryFormat) -> Sharded {
    Sharded {
        format,
        ..Sharded::new("/a", &COUNTS)
    }
}

/// The configurations of these tests.
fn cases() -> Vec<(BinaryFormat, &'static str, char, Vec<Value>)> {
    let mut cases = Vec::new();
    for format in [BinaryFormat::Indexed, BinaryFormat::IndexedCrc32c] {
        for (encoding, separator) in [("default", '/'), ("default", '.'), ("v2", '/'), ("v2", '.')]
        {
            let codecs = if separator == '/' {
                vec![codecs::bytes("little")]
            } else {
                vec![codecs::bytes("big"), codecs::zstd(1, true)]
            };
            cases.push((format, encoding, separator, codecs));
        }
    }
    cases
}

/// Data stored through the adapter can be read through it and through the registered transformer,
/// which cannot write.
#[test]
fn stored_through_the_adapter_and_read_with_the_transformer() {
    let _alone = crate::registry();
    let _registration = zarrs_cuda::register(zarrs_cuda::Options::default()).unwrap();
    for (format, encoding, separator, codecs) in cases() {
        let directory = tempfile::tempdir().unwrap();
        let files = Arc::new(FilesystemStore::new(directory.path()).unwrap());
        let chunks = Arc::new(sharded(format).over(files.clone()));
        let metadata = metadata(&CHUNK, encoding, separator, &codecs);
        let array = Array::new_with_metadata(chunks.clone(), "/a", metadata).unwrap();
        array.store_metadata().unwrap();
        let mut all = elements(1);
        array.store_array_subset(&whole(), all.clone()).unwrap();
        // 3 × 2 shards, and the metadata.
        assert_eq!(files.list().unwrap().len(), 7);
        // Parts of chunks in several shards.
        let subset = ArraySubset::new_with_ranges(&[3..13, 4..21]);
        array.store_array_subset(&subset, vec![0_u16; 170]).unwrap();
        for row in 3..13 {
            let at = usize::try_from(row * SHAPE[1]).unwrap();
            all[at + 4..at + 21].fill(0);
        }

        let opened = Arc::new(ShardedStore::open(files.clone(), "/a").unwrap());
        let through = Array::open(opened.clone(), "/a").unwrap();
        let plain = Array::open(files.clone(), "/a").unwrap();
        for read in [
            through.retrieve_array_subset::<Vec<u16>>(&whole()).unwrap(),
            plain.retrieve_array_subset(&whole()).unwrap(),
        ] {
            assert_eq!(read, all);
        }
        let subset = ArraySubset::new_with_ranges(&[1..19, 7..9]);
        let expected = part(&all, 1..19, 7..9);
        assert_eq!(
            through.retrieve_array_subset::<Vec<u16>>(&subset).unwrap(),
            expected
        );
        assert_eq!(
            plain.retrieve_array_subset::<Vec<u16>>(&subset).unwrap(),
            expected
        );

        let before = files.get(&plain.chunk_key(&[0, 0])).unwrap();
        for result in [
            plain.store_chunk(&[0, 0], vec![1_u16; 20]),
            plain.store_array_subset(&ArraySubset::new_with_ranges(&[0..2, 0..2]), vec![1_u16; 4]),
            plain.erase_chunk(&[0, 0]).map_err(Into::into),
        ] {
            let error = result.unwrap_err().to_string();
            assert!(
                error.contains("zarrs_cuda::storage::ShardedStore"),
                "{error}"
            );
        }
        assert_eq!(files.get(&plain.chunk_key(&[0, 0])).unwrap(), before);
        // The stored metadata still have the transformer.
        plain.store_metadata().unwrap();
        assert_eq!(Array::open(opened, "/a").unwrap().attributes()["a"], 1);
        assert_eq!(
            Array::open(files, "/a")
                .unwrap()
                .retrieve_array_subset::<Vec<u16>>(&whole())
                .unwrap(),
            all
        );
    }
}

/// Without the registered transformer, the array opens only through the adapter.
#[test]
fn arrays_with_a_transformer_that_is_not_registered() {
    let _alone = crate::registry();
    let inner = Arc::new(MemoryStore::new());
    let chunks = Arc::new(sharded(BinaryFormat::Indexed).over(inner.clone()));
    let metadata = metadata(&CHUNK, "default", '/', &[codecs::bytes("little")]);
    let array = Array::new_with_metadata(chunks.clone(), "/a", metadata).unwrap();
    array.store_metadata().unwrap();
    let error = Array::open(inner, "/a").unwrap_err().to_string();
    assert!(error.contains("sharding/1.0"), "{error}");
    Array::open(chunks, "/a").unwrap();
}

#[test]
fn asynchronous_arrays() {
    let _alone = crate::registry();
    let _registration = zarrs_cuda::register(zarrs_cuda::Options::default()).unwrap();
    for (format, encoding, separator, codecs) in cases() {
        let inner = Arc::new(AsyncMemoryStore::new());
        let chunks = Arc::new(sharded(format).over(inner.clone()));
        let metadata = metadata(&CHUNK, encoding, separator, &codecs);
        let array = Array::new_with_metadata(chunks.clone(), "/a", metadata).unwrap();
        let all = elements(2);
        block_on(async {
            array.async_store_metadata().await.unwrap();
            array
                .async_store_array_subset(&whole(), all.clone())
                .await
                .unwrap();
            let opened = ShardedStore::async_open(inner.clone(), "/a").await.unwrap();
            let through = Array::async_open(Arc::new(opened), "/a").await.unwrap();
            let plain = Array::async_open(inner.clone(), "/a").await.unwrap();
            let read: Vec<u16> = through.async_retrieve_array_subset(&whole()).await.unwrap();
            assert_eq!(read, all);
            let read: Vec<u16> = plain.async_retrieve_array_subset(&whole()).await.unwrap();
            assert_eq!(read, all);
            let subset = ArraySubset::new_with_ranges(&[1..19, 7..9]);
            let read: Vec<u16> = plain.async_retrieve_array_subset(&subset).await.unwrap();
            assert_eq!(read, part(&all, 1..19, 7..9));
            let refused = plain.async_store_chunk(&[0, 0], vec![1_u16; 20]).await;
            let error = refused.unwrap_err().to_string();
            assert!(
                error.contains("zarrs_cuda::storage::ShardedStore"),
                "{error}"
            );
        });
    }
}

/// Shards with a checksum are byte for byte those of the codec `sharding_indexed`, and an array
/// with that codec reads them.
#[test]
fn shards_of_the_sharding_codec() {
    let _alone = crate::registry();
    let inner = Arc::new(MemoryStore::new());
    let chunks = Arc::new(sharded(BinaryFormat::IndexedCrc32c).over(inner.clone()));
    let little = [codecs::bytes("little")];
    let array = metadata(&CHUNK, "default", '/', &little);
    let array = Array::new_with_metadata(chunks.clone(), "/a", array).unwrap();
    let mut all = elements(3);
    // A chunk of fill values, which is not stored.
    for row in 4..8 {
        let at = usize::try_from(row * SHAPE[1]).unwrap();
        all[at..at + 5].fill(0);
    }
    array.store_array_subset(&whole(), all.clone()).unwrap();
    assert_eq!(chunks.get(&key("a/c/1/0")).unwrap(), None);

    let codec = codecs::sharding(&CHUNK, &little);
    let as_codec = Array::new_with_metadata(
        inner.clone(),
        "/a",
        metadata(&SHARD, "default", '/', &[codec]),
    )
    .unwrap();
    assert_eq!(
        as_codec
            .retrieve_array_subset::<Vec<u16>>(&whole())
            .unwrap(),
        all
    );

    let shards = Shards {
        shape: SHARD.to_vec(),
        subchunk: CHUNK.to_vec(),
        data_type: data_type::uint16(),
        fill: vec![0, 0],
        codecs: little.to_vec(),
        index: IndexLayout::default(),
    };
    let stock = shards.stock();
    for (row, column) in [(0, 0), (1, 0), (0, 1), (2, 1)] {
        let elements = as_codec.retrieve_chunk::<Vec<u16>>(&[row, column]).unwrap();
        let bytes: Vec<u8> = elements
            .iter()
            .flat_map(|element| element.to_le_bytes())
            .collect();
        let encoded = shards
            .encode(&*stock, &bytes, &zarrs_codec::CodecOptions::default())
            .unwrap();
        let stored = inner
            .get(&key(&format!("a/c/{row}/{column}")))
            .unwrap()
            .unwrap();
        assert_eq!(stored, encoded, "{row} {column}");
    }

    // The reverse: chunks that the codec stored are visible through the adapter.
    let other = Arc::new(MemoryStore::new());
    let codec = codecs::sharding(&CHUNK, &little);
    let as_codec = Array::new_with_metadata(
        other.clone(),
        "/a",
        metadata(&SHARD, "default", '/', &[codec]),
    )
    .unwrap();
    as_codec.store_array_subset(&whole(), all.clone()).unwrap();
    let chunks = Arc::new(sharded(BinaryFormat::IndexedCrc32c).over(other));
    let array = Array::new_with_metadata(
        chunks.clone(),
        "/a",
        metadata(&CHUNK, "default", '/', &little),
    )
    .unwrap();
    assert_eq!(
        array.retrieve_array_subset::<Vec<u16>>(&whole()).unwrap(),
        all
    );
    chunks.erase(&key("a/c/0/0")).unwrap();
    array.store_chunk(&[2, 2], vec![5_u16; 20]).unwrap();
    assert_eq!(
        as_codec
            .retrieve_array_subset::<Vec<u16>>(&ArraySubset::new_with_ranges(&[0..4, 0..5]))
            .unwrap(),
        [0; 20]
    );
    assert_eq!(
        as_codec
            .retrieve_array_subset::<Vec<u16>>(&ArraySubset::new_with_ranges(&[8..12, 10..15]))
            .unwrap(),
        [5; 20]
    );
}

//! `ArrayReader` on an object store: how many requests it makes.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and says where"
)]

use std::sync::Arc;

use serde_json::json;
use zarrs::array::{Array, ArraySubset};
use zarrs_cuda::reader::{ArrayReader, ReaderMetrics};
use zarrs_cuda_object_store_tests::{Server, Store};

/// 64 × 64 elements in 16 shards, each of 16 subchunks.
async fn array(store: Arc<Store>) -> Array<Store> {
    let bytes = json!({ "name": "bytes", "configuration": { "endian": "little" } });
    let zstd = json!({ "name": "zstd", "configuration": { "level": 1, "checksum": false } });
    let metadata = json!({
        "zarr_format": 3, "node_type": "array", "shape": [64, 64], "data_type": "uint16",
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": [16, 16] } },
        "chunk_key_encoding": { "name": "default" },
        "fill_value": 7,
        "codecs": [{ "name": "sharding_indexed", "configuration": {
            "chunk_shape": [4, 4], "codecs": [bytes, zstd],
            "index_codecs": [bytes, { "name": "crc32c" }],
        }}],
    });
    let metadata = serde_json::from_value(metadata).unwrap();
    let array = Array::new_with_metadata(store, "/volume", metadata).unwrap();
    array.async_store_metadata().await.unwrap();
    let elements: Vec<u16> = (0..64 * 64).collect();
    let whole = array.subset_all();
    array
        .async_store_array_subset(&whole, &elements)
        .await
        .unwrap();
    array
}

/// How many of each there were in a call.
#[derive(Debug)]
struct Counts {
    gets: u64,
    heads: u64,
    calls: u64,
    ranges: u64,
}

async fn counts(server: &Server, reader: &ArrayReader<Store>, read: impl AsyncFnOnce()) -> Counts {
    drop(server.requests());
    let before = reader.metrics();
    read().await;
    let requests = server.requests();
    let count = |method: &str| requests.iter().filter(|request| *request == method).count() as u64;
    let since = |of: fn(&ReaderMetrics) -> u64| of(&reader.metrics()) - of(&before);
    let counts = Counts {
        gets: count("GET"),
        heads: count("HEAD"),
        calls: since(|metrics| metrics.requests),
        ranges: since(|metrics| metrics.ranges),
    };
    assert_eq!(
        counts.gets + counts.heads,
        requests.len() as u64,
        "{requests:?}"
    );
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn few_requests() {
    let server = Server::start();
    let array = array(Arc::new(server.store())).await;
    let reader = ArrayReader::builder(&array).build().unwrap();
    let whole = array.subset_all();
    let expected: Vec<u16> = (0..64 * 64).collect();
    let shards = 16;

    // The index of each shard, and one run of subchunks, with which the index comes again.
    let first = counts(&server, &reader, async || {
        assert_eq!(reader.async_read::<u16>(&whole).await.unwrap(), expected);
    });
    let first = first.await;
    assert!(
        first.calls <= 2 * shards && first.ranges <= 3 * shards,
        "{first:?}"
    );
    assert!(
        first.gets <= 2 * shards && first.heads <= first.calls,
        "{first:?}"
    );

    // The indices are kept.
    let again = counts(&server, &reader, async || {
        assert_eq!(reader.async_read::<u16>(&whole).await.unwrap(), expected);
    });
    let again = again.await;
    assert!(again.calls <= shards && again.gets <= shards, "{again:?}");
    assert!(again.heads <= again.calls, "{again:?}");

    // Boxes that share subchunks, in four shards.
    let origins = [[10, 10], [12, 12], [14, 14]];
    let boxes = counts(&server, &reader, async || {
        let mut output = vec![0_u16; 3 * 16];
        reader
            .async_read_boxes(&origins, &[4, 4], &mut output)
            .await
            .unwrap();
        for (origin, found) in origins.iter().zip(output.chunks(16)) {
            let subset = ArraySubset::new_with_start_shape(origin.to_vec(), vec![4, 4]).unwrap();
            let expected: Vec<u16> = array.async_retrieve_array_subset(&subset).await.unwrap();
            assert_eq!(found, expected);
        }
    });
    let boxes = boxes.await;
    assert!(boxes.calls <= 4, "{boxes:?}");
}

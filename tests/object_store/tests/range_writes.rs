//! Shards in an object store, partially updated through `RangeWrites`. zarrs' own codec reads the
//! results directly from the object store.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and says where"
)]

use std::sync::{Arc, Mutex, PoisonError};

use futures::future::join_all;
use serde_json::{Value, json};

use zarrs::array::{Array, ArraySubset, CodecOptions};
use zarrs_cuda::storage::RangeWrites;
use zarrs_cuda::{Options, WriteStrategy, explain, register};
use zarrs_cuda_object_store_tests::{BlockingStore, Server, Store};
use zarrs_storage::storage_adapter::performance_metrics::PerformanceMetricsStorageAdapter;
use zarrs_storage::store_test;

const EXTENT: u64 = 32;

/// Four shards of 16 × 16 elements, with sixteen subchunks each.
fn metadata(codecs: &Value, index_location: &str) -> Value {
    json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": [EXTENT, EXTENT],
        "data_type": "uint16",
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": [16, 16] } },
        "chunk_key_encoding": { "name": "default", "configuration": { "separator": "/" } },
        "fill_value": 7,
        "codecs": [{
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [4, 4],
                "codecs": codecs,
                "index_codecs": [
                    { "name": "bytes", "configuration": { "endian": "little" } },
                    { "name": "crc32c" },
                ],
                "index_location": index_location,
            },
        }],
    })
}

fn uncompressed() -> Value {
    json!([{ "name": "bytes", "configuration": { "endian": "little" } }])
}

fn zstd() -> Value {
    json!([
        { "name": "bytes", "configuration": { "endian": "little" } },
        { "name": "zstd", "configuration": { "level": 1, "checksum": true } },
    ])
}

/// Opens the array in `store` with our codec, or with zarrs alone.
fn open<S: ?Sized>(store: &Arc<S>, metadata: &Value, ours: Option<WriteStrategy>) -> Array<S> {
    // A registration affects the whole process.
    static REGISTRY: Mutex<()> = Mutex::new(());
    let _alone = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let options = |strategy| Options::default().with_write_strategy(strategy);
    let registration = ours.map(|strategy| register(options(strategy)).unwrap());
    let metadata = serde_json::from_value(metadata.clone()).unwrap();
    let array = Array::new_with_metadata(store.clone(), "/volume", metadata).unwrap();
    assert_eq!(explain(&array).is_ok(), registration.is_some());
    array
}

fn options() -> CodecOptions {
    CodecOptions::default().with_experimental_partial_encoding(true)
}

/// Random boxes with elements, the same in every run.
struct Updates(u64);

impl Updates {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn next(&mut self) -> (ArraySubset, Vec<u16>) {
        let mut range = || {
            let start = self.below(EXTENT);
            start..start + 1 + self.below((EXTENT - start).min(20))
        };
        let subset = ArraySubset::new_with_ranges(&[range(), range()]);
        let element = |updates: &mut Self| u16::try_from(updates.below(1 << 16)).unwrap();
        let elements = (0..subset.num_elements()).map(|_| element(self)).collect();
        (subset, elements)
    }
}

/// The expected elements.
struct Model(Vec<u16>);

impl Model {
    fn new() -> Self {
        Self(vec![7; usize::try_from(EXTENT * EXTENT).unwrap()])
    }

    fn store(&mut self, subset: &ArraySubset, elements: &[u16]) {
        for (indices, element) in subset.indices().into_iter().zip(elements) {
            self.0[usize::try_from(indices[0] * EXTENT + indices[1]).unwrap()] = *element;
        }
    }
}

const STRATEGIES: [WriteStrategy; 4] = [
    WriteStrategy::Auto,
    WriteStrategy::Append,
    WriteStrategy::InPlace,
    WriteStrategy::Slots,
];

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_of_zarrs() {
    let server = Server::start();
    let store = RangeWrites::new(Arc::new(server.store()));
    store_test::async_store_write(&store).await.unwrap();
    store_test::async_store_read(&store).await.unwrap();
    store_test::async_store_list(&store).await.unwrap();
    store_test::async_store_list_size(&store).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn arrays_are_updated() {
    for (codecs, strategy) in [uncompressed(), zstd()]
        .iter()
        .flat_map(|c| STRATEGIES.map(|s| (c, s)))
    {
        for location in ["start", "end"] {
            let server = Server::start();
            let metadata = metadata(codecs, location);
            let store = Arc::new(RangeWrites::new(Arc::new(server.store())));
            let array: Array<RangeWrites<Store>> = open(&store, &metadata, Some(strategy));
            let stock = open(&Arc::new(server.store()), &metadata, None);
            array.async_store_metadata().await.unwrap();
            let (mut updates, mut model) = (Updates(1), Model::new());
            for step in 0..6 {
                let (subset, elements) = updates.next();
                model.store(&subset, &elements);
                let options = options();
                let stored = array.async_store_array_subset_opt(&subset, elements, &options);
                stored.await.unwrap();
                let read: Vec<u16> = stock
                    .async_retrieve_array_subset(&stock.subset_all())
                    .await
                    .unwrap();
                assert_eq!(
                    read, model.0,
                    "step {step}, {strategy:?}, {location}, {codecs}"
                );
            }
        }
    }
}

#[test]
fn arrays_are_updated_by_those_who_block() {
    for (codecs, strategy) in [uncompressed(), zstd()]
        .iter()
        .flat_map(|c| STRATEGIES.map(|s| (c, s)))
    {
        let server = Server::start();
        let metadata = metadata(codecs, "end");
        let store = Arc::new(RangeWrites::new(Arc::new(server.blocking_store())));
        let array: Array<RangeWrites<BlockingStore>> = open(&store, &metadata, Some(strategy));
        let stock = open(&Arc::new(server.blocking_store()), &metadata, None);
        array.store_metadata().unwrap();
        let (mut updates, mut model) = (Updates(2), Model::new());
        for step in 0..6 {
            let (subset, elements) = updates.next();
            model.store(&subset, &elements);
            array
                .store_array_subset_opt(&subset, elements, &options())
                .unwrap();
            let read: Vec<u16> = stock.retrieve_array_subset(&stock.subset_all()).unwrap();
            assert_eq!(read, model.0, "step {step}, {strategy:?}, {codecs}");
        }
    }
}

/// An update of a subchunk stores one object, and only reads the shard of that subchunk.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_stores_one_object() {
    let server = Server::start();
    let metadata = metadata(&zstd(), "end");
    let counted = Arc::new(PerformanceMetricsStorageAdapter::new(Arc::new(
        server.store(),
    )));
    let store = Arc::new(RangeWrites::new(counted.clone()));
    let array = open(&store, &metadata, Some(WriteStrategy::Auto));
    let elements: Vec<u16> = (0..256).collect();
    array.async_store_chunk(&[1, 1], elements).await.unwrap();
    let size = std::fs::metadata(server.bucket().join("volume/c/1/1"))
        .unwrap()
        .len();
    counted.reset();
    let subset = ArraySubset::new_with_ranges(&[17..19, 17..19]);
    let options = options();
    let stored = array.async_store_array_subset_opt(&subset, vec![1_u16, 2, 3, 4], &options);
    stored.await.unwrap();
    assert_eq!(counted.writes(), 1);
    let new_size = std::fs::metadata(server.bucket().join("volume/c/1/1"))
        .unwrap()
        .len();
    assert_eq!(counted.bytes_written() as u64, new_size);
    // Reads: the index twice, once with a record; a subchunk; and the object.
    assert!((size + 1..3 * size).contains(&(counted.bytes_read() as u64)));
    let stock = open(&Arc::new(server.store()), &metadata, None);
    let read: Vec<u16> = stock.async_retrieve_array_subset(&subset).await.unwrap();
    assert_eq!(read, [1, 2, 3, 4]);
}

/// Tasks that update different subchunks of the same shards lose nothing.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_take_turns() {
    let server = Server::start();
    let metadata = metadata(&uncompressed(), "end");
    let store = Arc::new(RangeWrites::new(Arc::new(server.store())));
    let array = Arc::new(open(&store, &metadata, Some(WriteStrategy::InPlace)));
    let mut model = Model::new();
    let all = array.subset_all();
    let elements: Vec<u16> = (0..1024).collect();
    model.store(&all, &elements);
    array
        .async_store_array_subset(&all, elements)
        .await
        .unwrap();
    let subchunks = (0..8).flat_map(|row| (0..8).map(move |column| (4 * row, 4 * column)));
    let tasks = subchunks.enumerate().map(|(number, (row, column))| {
        let subset = ArraySubset::new_with_ranges(&[row + 1..row + 2, column..column + 4]);
        let elements = vec![u16::try_from(2000 + number).unwrap(); 4];
        model.store(&subset, &elements);
        let array = array.clone();
        tokio::spawn(async move {
            let options = options();
            array
                .async_store_array_subset_opt(&subset, elements, &options)
                .await
                .unwrap();
        })
    });
    for stored in join_all(tasks.collect::<Vec<_>>()).await {
        stored.unwrap();
    }
    let stock = open(&Arc::new(server.store()), &metadata, None);
    let read: Vec<u16> = stock.async_retrieve_array_subset(&all).await.unwrap();
    assert_eq!(read, model.0);
}

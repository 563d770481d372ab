//! Many writers of the same shards in an object store lose updates with zarrs, but not with
//! `SparseShardStore`.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and says where"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join_all;
use serde_json::json;
use zarrs::array::Array;
use zarrs_cuda::storage::SparseShardStore;
use zarrs_cuda_object_store_tests::{Server, Store};
use zarrs_storage::{
    AsyncReadableWritableListableStorageTraits, AsyncWritableStorageTraits, Bytes,
};

const WRITERS: u64 = 8;
/// The number of subchunks in the array, which has two shards.
const SUBCHUNKS: u64 = 32;

async fn create(store: &Store) {
    let metadata = json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4 * SUBCHUNKS],
        "data_type": "uint16",
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": [2 * SUBCHUNKS] } },
        "chunk_key_encoding": { "name": "default" },
        "fill_value": 0,
        "codecs": [{
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [4],
                "codecs": [
                    { "name": "bytes", "configuration": { "endian": "little" } },
                    { "name": "zstd", "configuration": { "level": 1, "checksum": true } },
                ],
                "index_codecs": [
                    { "name": "bytes", "configuration": { "endian": "little" } },
                    { "name": "crc32c" },
                ],
            },
        }],
    });
    let metadata = Bytes::from(serde_json::to_vec(&metadata).unwrap());
    store
        .set(&"volume/zarr.json".try_into().unwrap(), metadata)
        .await
        .unwrap();
}

/// The elements of a subchunk.
fn elements(subchunk: u64) -> Vec<u16> {
    let first = u16::try_from(4 * subchunk + 1).unwrap();
    (first..first + 4).collect()
}

/// Each writer writes every eighth subchunk; all start at the same time.
async fn write<S>(arrays: &[Array<S>])
where
    S: AsyncReadableWritableListableStorageTraits + 'static,
{
    let writers = arrays.iter().zip(0..).map(|(array, writer)| async move {
        for subchunk in (writer..SUBCHUNKS).step_by(arrays.len()) {
            let subset =
                zarrs::array::ArraySubset::new_with_ranges(&[4 * subchunk..4 * subchunk + 4]);
            array
                .async_store_array_subset(&subset, elements(subchunk))
                .await
                .unwrap();
        }
    });
    join_all(writers).await;
}

/// The number of subchunks whose updates are missing.
async fn lost<S>(array: &Array<S>) -> usize
where
    S: AsyncReadableWritableListableStorageTraits + 'static,
{
    let read: Vec<u16> = array
        .async_retrieve_array_subset(&array.subset_all())
        .await
        .unwrap();
    let written = (0..SUBCHUNKS).map(elements);
    read.chunks(4)
        .zip(written)
        .filter(|(read, written)| read != written)
        .count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers() {
    let server = Server::start();
    let store = Arc::new(server.store());
    create(&store).await;
    let open = || async { Array::async_open(store.clone(), "/volume").await.unwrap() };

    // First with zarrs alone: if no update were lost here, the test below would prove nothing.
    let arrays = join_all((0..WRITERS).map(|_| open())).await;
    write(&arrays).await;
    assert!(lost(&open().await).await > 0);

    store
        .erase_prefix(&"volume/c/".try_into().unwrap())
        .await
        .unwrap();
    assert_eq!(lost(&open().await).await as u64, SUBCHUNKS);
    let adapter = || async {
        let store = Arc::new(server.store());
        Arc::new(
            SparseShardStore::async_open(store, "/volume")
                .await
                .unwrap(),
        )
    };
    let adapters = join_all((0..WRITERS).map(|_| adapter())).await;
    let arrays = adapters
        .iter()
        .map(|adapter| Array::async_open(adapter.clone(), "/volume"));
    let arrays: Vec<_> = join_all(arrays)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    write(&arrays).await;
    assert_eq!(lost(&arrays[0]).await, 0);

    // Writers and a consolidation work at the same time.
    let (done, ()) = futures::join!(
        adapters[0].async_consolidate_all(&|_| {}),
        write(&arrays[1..])
    );
    assert_eq!(done.unwrap().done, 2);
    assert_eq!(lost(&arrays[0]).await, 0);
    adapters[1].async_consolidate_all(&|_| {}).await.unwrap();
    assert!(adapters[2].async_pending().await.unwrap().is_empty());
    assert_eq!(lost(&open().await).await, 0);
    let frames = walk(&server.bucket())
        .into_iter()
        .filter(|path| path.contains(".frame/"));
    assert_eq!(frames.collect::<Vec<_>>(), Vec::<String>::new());
}

/// Shards become shorter and longer while subchunks that stay in them are read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_shards_that_are_replaced() {
    let server = Server::start();
    create(&Arc::new(server.store())).await;
    let open = || async {
        let store = Arc::new(server.store());
        let sparse = SparseShardStore::async_open(store, "/volume").await;
        let sparse = Arc::new(sparse.unwrap());
        let array = Array::async_open(sparse.clone(), "/volume").await.unwrap();
        (sparse, array)
    };
    let (sparse, array) = open().await;
    let stays = |subchunk: &u64| subchunk % 4 == 1;
    write(std::slice::from_ref(&array)).await;
    sparse.async_consolidate_all(&|_| {}).await.unwrap();

    let over = AtomicBool::new(false);
    let changes = async {
        for round in 0..8 {
            for subchunk in (0..SUBCHUNKS).filter(|subchunk| !stays(subchunk)) {
                let done = if round % 2 == 0 {
                    array
                        .async_erase_chunk(&[subchunk])
                        .await
                        .map_err(Into::into)
                } else {
                    array
                        .async_store_chunk(&[subchunk], elements(subchunk))
                        .await
                };
                done.unwrap();
            }
            sparse.async_consolidate_all(&|_| {}).await.unwrap();
        }
        over.store(true, Ordering::Relaxed);
    };
    let (_, other) = open().await;
    let reads = async {
        let mut reads = 0;
        while !over.load(Ordering::Relaxed) {
            for subchunk in (0..SUBCHUNKS).filter(stays) {
                let read: Vec<u16> = other.async_retrieve_chunk(&[subchunk]).await.unwrap();
                assert_eq!(read, elements(subchunk));
                reads += 1;
            }
        }
        reads
    };
    let ((), reads) = futures::join!(changes, reads);
    assert!(reads > 0, "none while shards were replaced");
}

/// The files in a folder.
fn walk(folder: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let files = paths.flat_map(|path| {
        if path.is_dir() {
            walk(&path)
        } else {
            vec![path.to_string_lossy().into_owned()]
        }
    });
    files.collect()
}

/// The requests of each call to the server.
#[test]
fn requests() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(create(&server.store()));
    let store = Arc::new(server.blocking_store());
    let sparse = Arc::new(SparseShardStore::open(store, "/volume").unwrap());
    let array = Array::open(sparse.clone(), "/volume").unwrap();
    let asked = |what: &str| {
        let requests = server.requests().join(" ");
        println!("{what}: {requests}");
        requests
    };
    asked("open");
    array.store_chunk(&[3], elements(3)).unwrap();
    // The first write looks for the marker of arrays with frames, and puts it. A second listing is
    // made because listings of some stores fail silently.
    assert_eq!(asked("first write"), "LIST HEAD PUT PUT LIST");
    array.store_chunk(&[5], elements(5)).unwrap();
    assert_eq!(asked("write"), "LIST PUT LIST");
    array.retrieve_chunk::<Vec<u16>>(&[3]).unwrap();
    // zarrs' blocking adapter requests the size of each object that it reads.
    assert_eq!(asked("read of a version"), "LIST HEAD GET");
}

#[test]
fn for_those_who_block() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(create(&server.store()));
    let store = Arc::new(server.blocking_store());
    let sparse = Arc::new(SparseShardStore::open(store.clone(), "/volume").unwrap());
    let array = Array::open(sparse.clone(), "/volume").unwrap();
    for subchunk in [0, 17, 31] {
        array.store_chunk(&[subchunk], elements(subchunk)).unwrap();
    }
    assert_eq!(sparse.pending().unwrap(), [[0], [1]]);
    assert_eq!(sparse.consolidate_all(&|_| {}).unwrap().sum.subchunks, 3);
    let shards = Array::open(store, "/volume").unwrap();
    let read: Vec<u16> = shards.retrieve_array_subset(&shards.subset_all()).unwrap();
    for subchunk in 0..SUBCHUNKS {
        let at = 4 * usize::try_from(subchunk).unwrap();
        let expected = if [0, 17, 31].contains(&subchunk) {
            elements(subchunk)
        } else {
            vec![0; 4]
        };
        assert_eq!(read[at..at + 4], expected);
    }
}

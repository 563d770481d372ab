//! Sharded arrays in stores, and zarrs' own tests of stores.

use std::error::Error;
use std::sync::Arc;

use serde_json::{Value, json};
use zarrs::storage::storage_adapter::sync_to_async::{
    SyncToAsyncSpawnBlocking, SyncToAsyncStorageAdapter,
};
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    Bytes, ReadableWritableListableStorageTraits, StoreKey, WritableStorageTraits,
};
use zarrs_cuda::storage::SparseShardStore;
use zarrs_filesystem::FilesystemStore;
use zarrs_storage::store_test;

/// The layout of a sharded array.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) path: &'static str,
    pub(crate) shape: Vec<u64>,
    pub(crate) shard: Vec<u64>,
    pub(crate) subchunk: Vec<u64>,
    /// `default` or `v2`.
    pub(crate) encoding: &'static str,
    pub(crate) separator: char,
    pub(crate) codecs: Value,
    pub(crate) index_location: &'static str,
}

impl Layout {
    pub(crate) fn new(shape: &[u64], shard: &[u64], subchunk: &[u64]) -> Self {
        Self {
            path: "/group/array",
            shape: shape.to_vec(),
            shard: shard.to_vec(),
            subchunk: subchunk.to_vec(),
            encoding: "default",
            separator: '/',
            codecs: json!([{ "name": "bytes", "configuration": { "endian": "little" } }]),
            index_location: "end",
        }
    }

    pub(crate) fn key(&self) -> StoreKey {
        StoreKey::new(format!("{}/zarr.json", &self.path[1..])).unwrap()
    }

    pub(crate) fn metadata(&self) -> Value {
        json!({
            "zarr_format": 3,
            "node_type": "array",
            "shape": self.shape,
            "data_type": "uint8",
            "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": self.shard } },
            "chunk_key_encoding": {
                "name": self.encoding,
                "configuration": { "separator": self.separator.to_string() },
            },
            "fill_value": 0,
            "codecs": [{
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": self.subchunk,
                    "codecs": self.codecs,
                    "index_codecs": [
                        { "name": "bytes", "configuration": { "endian": "little" } },
                        { "name": "crc32c" },
                    ],
                    "index_location": self.index_location,
                },
            }],
            "attributes": {},
        })
    }

    /// Stores the metadata.
    pub(crate) fn create<S: WritableStorageTraits + ?Sized>(&self, store: &S) {
        let metadata = serde_json::to_vec(&self.metadata()).unwrap();
        store.set(&self.key(), Bytes::from(metadata)).unwrap();
    }

    /// Opens an adapter over `store`.
    pub(crate) fn open<S>(&self, store: &Arc<S>) -> Arc<SparseShardStore<S>>
    where
        S: ReadableWritableListableStorageTraits + ?Sized,
    {
        Arc::new(SparseShardStore::open(store.clone(), self.path).unwrap())
    }
}

/// A store on a temporary folder.
pub(crate) fn files() -> (tempfile::TempDir, Arc<FilesystemStore>) {
    let folder = tempfile::tempdir().unwrap();
    let store = FilesystemStore::new(folder.path()).unwrap().sorted();
    (folder, Arc::new(store))
}

#[test]
fn passes_the_tests_of_stores() -> Result<(), Box<dyn Error>> {
    let (_folder, files) = files();
    let stores: [Arc<dyn ReadableWritableListableStorageTraits>; 2] =
        [Arc::new(MemoryStore::new()), files];
    for store in stores {
        let layout = Layout::new(&[8, 8], &[4, 4], &[2, 2]);
        layout.create(&*store);
        let sparse = layout.open(&store);
        store_test::store_write(&*sparse)?;
        store_test::store_read(&*sparse)?;
        store_test::store_list(&*sparse)?;
        store_test::store_list_size(&*sparse)?;
    }
    Ok(())
}

/// Runs blocking work on the calling thread.
pub(crate) struct Here;

impl SyncToAsyncSpawnBlocking for Here {
    fn spawn_blocking<F, R>(&self, f: F) -> impl Future<Output = R> + Send
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        std::future::ready(f())
    }
}

#[tokio::test]
async fn passes_the_tests_of_asynchronous_stores() -> Result<(), Box<dyn Error>> {
    let store = Arc::new(MemoryStore::new());
    let layout = Layout::new(&[8, 8], &[4, 4], &[2, 2]);
    layout.create(&*store);
    let store = Arc::new(SyncToAsyncStorageAdapter::new(store, Here));
    let sparse = SparseShardStore::async_open(store, layout.path).await?;
    store_test::async_store_write(&sparse).await?;
    store_test::async_store_read(&sparse).await?;
    store_test::async_store_list(&sparse).await?;
    store_test::async_store_list_size(&sparse).await?;
    Ok(())
}

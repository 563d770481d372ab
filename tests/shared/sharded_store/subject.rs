//! Adapters over stores of every kind, all behind a blocking interface.

use std::sync::Arc;

use futures::executor::block_on;
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::byte_range::ByteRange;
use zarrs::storage::storage_adapter::async_to_sync::{
    AsyncToSyncBlockOn, AsyncToSyncStorageAdapter,
};
use zarrs::storage::storage_adapter::sync_to_async::{
    SyncToAsyncSpawnBlocking, SyncToAsyncStorageAdapter,
};
use zarrs::storage::store::{AsyncMemoryStore, MemoryStore};
use zarrs::storage::{
    AsyncReadableWritableListableStorageTraits, Bytes, ReadableWritableListableStorageTraits,
    StorageError, StoreKey, StorePrefix,
};
use zarrs_cuda::storage::{BinaryFormat, ShardedStore};

pub(crate) type AnyStore = dyn ReadableWritableListableStorageTraits;

pub(crate) fn key(key: &str) -> StoreKey {
    StoreKey::new(key).unwrap()
}

pub(crate) fn prefix(prefix: &str) -> StorePrefix {
    StorePrefix::new(prefix).unwrap()
}

/// Runs blocking work on the calling thread.
pub(crate) struct Inline;

impl SyncToAsyncSpawnBlocking for Inline {
    #[allow(clippy::manual_async_fn, reason = "the signature that the trait has")]
    fn spawn_blocking<F, R>(&self, f: F) -> impl Future<Output = R> + Send
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        async move { f() }
    }
}

pub(crate) struct BlockOn;

impl AsyncToSyncBlockOn for BlockOn {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        block_on(future)
    }
}

/// The operations that an adapter has in addition to those of a store.
pub(crate) trait Many: Send + Sync {
    fn get_many(
        &self,
        wanted: &[(StoreKey, ByteRange)],
    ) -> Result<Vec<Option<Bytes>>, StorageError>;
    fn set_many(&self, values: Vec<(StoreKey, Bytes)>) -> Result<(), StorageError>;
}

impl Many for ShardedStore<AnyStore> {
    fn get_many(
        &self,
        wanted: &[(StoreKey, ByteRange)],
    ) -> Result<Vec<Option<Bytes>>, StorageError> {
        ShardedStore::get_many(self, wanted)
    }

    fn set_many(&self, values: Vec<(StoreKey, Bytes)>) -> Result<(), StorageError> {
        ShardedStore::set_many(self, values)
    }
}

type AnyAsyncStore = dyn AsyncReadableWritableListableStorageTraits;

impl Many for ShardedStore<AnyAsyncStore> {
    fn get_many(
        &self,
        wanted: &[(StoreKey, ByteRange)],
    ) -> Result<Vec<Option<Bytes>>, StorageError> {
        block_on(self.async_get_many(wanted))
    }

    fn set_many(&self, values: Vec<(StoreKey, Bytes)>) -> Result<(), StorageError> {
        block_on(self.async_set_many(values))
    }
}

/// The sharding of an array.
#[derive(Clone, Debug)]
pub(crate) struct Sharded {
    pub(crate) path: &'static str,
    pub(crate) counts: Vec<u64>,
    pub(crate) format: BinaryFormat,
    /// The capacity of the index cache, in bytes.
    pub(crate) index_cache: usize,
}

impl Sharded {
    pub(crate) fn new(path: &'static str, counts: &[u64]) -> Self {
        Self {
            path,
            counts: counts.to_vec(),
            format: BinaryFormat::Indexed,
            index_cache: 1 << 20,
        }
    }

    pub(crate) fn over<S: ?Sized>(&self, store: Arc<S>) -> ShardedStore<S> {
        let store = ShardedStore::new(store, self.path, &self.counts, self.format).unwrap();
        store.with_index_cache(self.index_cache)
    }

    /// Creates adapters over an empty store of every kind.
    pub(crate) fn subjects(&self) -> Vec<Subject> {
        let mut subjects = Vec::new();
        for name in ["memory", "files"] {
            let (inner, directory): (Arc<AnyStore>, _) = if name == "memory" {
                (Arc::new(MemoryStore::new()), None)
            } else {
                let directory = tempfile::tempdir().unwrap();
                let files = FilesystemStore::new(directory.path()).unwrap();
                (Arc::new(files.sorted()), Some(directory))
            };
            let adapter = Arc::new(self.over(inner.clone()));
            subjects.push(Subject {
                name: name.to_owned(),
                inner,
                store: adapter.clone(),
                many: adapter,
                _directory: directory,
            });
        }
        for name in ["asynchronous memory", "asynchronous files"] {
            let (inner, directory): (Arc<AnyAsyncStore>, _) = if name == "asynchronous memory" {
                (Arc::new(AsyncMemoryStore::new()), None)
            } else {
                let directory = tempfile::tempdir().unwrap();
                let files = FilesystemStore::new(directory.path()).unwrap().sorted();
                let files = SyncToAsyncStorageAdapter::new(Arc::new(files), Inline);
                (Arc::new(files), Some(directory))
            };
            let adapter = Arc::new(self.over(inner.clone()));
            subjects.push(Subject {
                name: name.to_owned(),
                inner: Arc::new(AsyncToSyncStorageAdapter::new(inner, BlockOn)),
                store: Arc::new(AsyncToSyncStorageAdapter::new(adapter.clone(), BlockOn)),
                many: adapter,
                _directory: directory,
            });
        }
        subjects
    }
}

/// An adapter over a store.
pub(crate) struct Subject {
    pub(crate) name: String,
    /// The store of the shards.
    pub(crate) inner: Arc<AnyStore>,
    pub(crate) store: Arc<AnyStore>,
    pub(crate) many: Arc<dyn Many>,
    _directory: Option<tempfile::TempDir>,
}

impl Subject {
    pub(crate) fn has_files(&self) -> bool {
        self.name.ends_with("files")
    }
}

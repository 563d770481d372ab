//! Consolidations in asynchronous stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use zarrs::storage::byte_range::ByteRangeIterator;
use zarrs::storage::storage_adapter::sync_to_async::SyncToAsyncStorageAdapter;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    AsyncListableStorageTraits, AsyncMaybeBytesIterator, AsyncReadableStorageTraits,
    AsyncWritableStorageTraits, Bytes, MaybeBytes, OffsetBytesIterator, StorageError, StoreKey,
    StoreKeys, StoreKeysPrefixes, StorePrefix, WritableStorageTraits,
};
use zarrs_cuda::storage::SparseShardStore;

use super::stores::{Here, Layout};

/// A store that fails to store some shards, and takes time for the others.
struct Slow {
    store: SyncToAsyncStorageAdapter<MemoryStore, Here>,
    fails: fn(&str) -> bool,
    failed: AtomicUsize,
}

#[async_trait::async_trait]
impl AsyncReadableStorageTraits for Slow {
    async fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        self.store.get(key).await
    }

    async fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<AsyncMaybeBytesIterator<'a>, StorageError> {
        self.store.get_partial_many(key, byte_ranges).await
    }

    async fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.store.size_key(key).await
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

#[async_trait::async_trait]
impl AsyncListableStorageTraits for Slow {
    async fn list(&self) -> Result<StoreKeys, StorageError> {
        self.store.list().await
    }

    async fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        self.store.list_prefix(prefix).await
    }

    async fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        self.store.list_dir(prefix).await
    }

    async fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        self.store.size_prefix(prefix).await
    }
}

#[async_trait::async_trait]
impl AsyncWritableStorageTraits for Slow {
    async fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        if (self.fails)(key.as_str()) {
            self.failed.fetch_add(1, Ordering::Relaxed);
            return Err(StorageError::Other("503 Slow Down".to_owned()));
        }
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        self.store.set(key, value).await
    }

    async fn set_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator<'a>,
    ) -> Result<(), StorageError> {
        self.store.set_partial_many(key, offset_values).await
    }

    async fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.store.erase(key).await
    }

    async fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.store.erase_prefix(prefix).await
    }

    fn supports_set_partial(&self) -> bool {
        true
    }
}

const SHARDS: u64 = 40;

/// Consolidates shards, some of which fail. Returns the error, the finished shards, and the number
/// of failures.
async fn consolidated(fails: fn(&str) -> bool) -> (String, Vec<u64>, usize) {
    let memory = Arc::new(MemoryStore::new());
    let layout = Layout::new(&[4 * SHARDS], &[4], &[2]);
    layout.create(&*memory);
    let sparse = layout.open(&memory);
    for shard in 0..SHARDS {
        let key = StoreKey::new(format!("group/array/c/{}", 2 * shard)).unwrap();
        sparse.set(&key, vec![1; 2].into()).unwrap();
    }
    let slow = Arc::new(Slow {
        store: SyncToAsyncStorageAdapter::new(memory.clone(), Here),
        fails,
        failed: AtomicUsize::new(0),
    });
    let awaited = SparseShardStore::async_open(slow.clone(), layout.path)
        .await
        .unwrap();
    let consolidated = awaited.async_consolidate_all(&|_| {}).await;
    let pending = sparse.pending().unwrap();
    let done = (0..SHARDS).filter(|&shard| !pending.contains(&vec![shard]));
    let failed = slow.failed.load(Ordering::Relaxed);
    (
        consolidated.unwrap_err().to_string(),
        done.collect(),
        failed,
    )
}

#[tokio::test]
async fn one_that_fails_does_not_stop_the_others() {
    let (error, done, failed) = consolidated(|key| key.ends_with("/c/0")).await;
    assert!(
        error.contains("c/0: 503") && !error.contains("others"),
        "{error}"
    );
    assert_eq!((done, failed), ((1..SHARDS).collect(), 1));
}

/// No shard is begun after the store's failure was seen. Shards that were begun are awaited, so
/// that no request is left.
#[tokio::test]
async fn a_store_that_fails_is_not_asked_for_ever() {
    let (error, done, failed) = consolidated(|key| !key.contains(".frame/")).await;
    assert!(error.contains("503") && error.contains("others"), "{error}");
    assert!(done.is_empty(), "{done:?}");
    // Eight shards are begun at the same time.
    assert!((16..24).contains(&failed), "{failed}");
    let (_, done, failed) = consolidated(|key| key.ends_with('5') || key.ends_with("/c/0")).await;
    assert_eq!((done.len() + failed) as u64, SHARDS);
}

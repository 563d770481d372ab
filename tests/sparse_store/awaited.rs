//! Consolidations in stores that are awaited.

use std::sync::Arc;

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

/// A store that fails to put the first shard, and takes its time to put the others.
struct Slow(SyncToAsyncStorageAdapter<MemoryStore, Here>);

#[async_trait::async_trait]
impl AsyncReadableStorageTraits for Slow {
    async fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        self.0.get(key).await
    }

    async fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<AsyncMaybeBytesIterator<'a>, StorageError> {
        self.0.get_partial_many(key, byte_ranges).await
    }

    async fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.0.size_key(key).await
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

#[async_trait::async_trait]
impl AsyncListableStorageTraits for Slow {
    async fn list(&self) -> Result<StoreKeys, StorageError> {
        self.0.list().await
    }

    async fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        self.0.list_prefix(prefix).await
    }

    async fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        self.0.list_dir(prefix).await
    }

    async fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        self.0.size_prefix(prefix).await
    }
}

#[async_trait::async_trait]
impl AsyncWritableStorageTraits for Slow {
    async fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        if key.as_str().ends_with("/c/0") {
            return Err(StorageError::Other("503 Slow Down".to_owned()));
        }
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        self.0.set(key, value).await
    }

    async fn set_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator<'a>,
    ) -> Result<(), StorageError> {
        self.0.set_partial_many(key, offset_values).await
    }

    async fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.0.erase(key).await
    }

    async fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.0.erase_prefix(prefix).await
    }

    fn supports_set_partial(&self) -> bool {
        true
    }
}

/// No request is left to be done when it is too late.
#[tokio::test]
async fn what_was_begun_is_awaited_when_one_fails() {
    const SHARDS: u64 = 40;
    let memory = Arc::new(MemoryStore::new());
    let layout = Layout::new(&[4 * SHARDS], &[4], &[2]);
    layout.create(&*memory);
    let sparse = layout.open(&memory);
    for shard in 0..SHARDS {
        let key = StoreKey::new(format!("group/array/c/{}", 2 * shard)).unwrap();
        sparse.set(&key, vec![1; 2].into()).unwrap();
    }
    let slow = Arc::new(Slow(SyncToAsyncStorageAdapter::new(memory.clone(), Here)));
    let awaited = SparseShardStore::async_open(slow, layout.path)
        .await
        .unwrap();
    let consolidated = awaited.async_consolidate_all(&|_| {}).await;
    let error = consolidated.unwrap_err().to_string();
    assert!(error.contains("c/0: 503"), "{error}");
    let pending = sparse.pending().unwrap();
    let done = (0..SHARDS).filter(|&shard| !pending.contains(&vec![shard]));
    // Others were begun beside the first, and not all.
    let done: Vec<_> = done.collect();
    assert!((2..20).contains(&done.len()), "{done:?}");
}

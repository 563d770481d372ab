//! The adapter of a store that is awaited.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use zarrs_storage::byte_range::ByteRangeIterator;
use zarrs_storage::{
    AsyncListableStorageTraits, AsyncMaybeBytesIterator, AsyncReadableStorageTraits,
    AsyncWritableStorageTraits, MaybeBytes, OffsetBytesIterator, StorageError, StoreKey, StoreKeys,
    StoreKeysPrefixes, StorePrefix,
};

use super::consolidation::All;
use super::{Consolidation, ConsolidationProgress, SparseArray, SparseShardStore, View, listing};
use crate::Error;
use crate::store::{Awaited, all};

/// How many shards are consolidated at once at most: requests wait for a server, not a processor.
const AT_ONCE: usize = 8;

impl<S: AsyncReadableStorageTraits + ?Sized> SparseShardStore<S> {
    /// [`open`](Self::open) for an asynchronous store.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub async fn async_open(store: Arc<S>, path: &str) -> Result<Self, Error> {
        let array = SparseArray::open(&Awaited(&*store), path).await?;
        Ok(Self { array, store })
    }
}

impl<S> SparseShardStore<S>
where
    S: AsyncReadableStorageTraits
        + AsyncWritableStorageTraits
        + AsyncListableStorageTraits
        + ?Sized,
{
    /// [`pending`](Self::pending) for an asynchronous store.
    ///
    /// # Errors
    /// As for [`pending`](Self::pending).
    pub async fn async_pending(&self) -> Result<Vec<Vec<u64>>, Error> {
        self.array.framed(&Awaited(&*self.store)).await
    }

    /// [`consolidate`](Self::consolidate) for an asynchronous store.
    ///
    /// If the future is dropped, the store may still complete its last operation, for example on
    /// another thread. Wait until it has before you consolidate the shard again. Otherwise an old
    /// shard would replace a newer one.
    ///
    /// # Errors
    /// As for [`consolidate`](Self::consolidate).
    pub async fn async_consolidate(&self, shard: &[u64]) -> Result<Option<Consolidation>, Error> {
        let store = Awaited(&*self.store);
        self.array.consolidate(&store, shard).await
    }

    /// [`consolidate_all`](Self::consolidate_all) for an asynchronous store. A dropped future
    /// leaves each shard as [`async_consolidate`](Self::async_consolidate) does.
    ///
    /// # Errors
    /// As for [`consolidate_all`](Self::consolidate_all).
    pub async fn async_consolidate_all(
        &self,
        on_progress: &(dyn Fn(&ConsolidationProgress) + Sync),
    ) -> Result<ConsolidationProgress, Error> {
        let shards = self.async_pending().await?;
        let all_shards = All::new(shards.len(), on_progress);
        let each = shards.iter().take_while(|_| all_shards.goes_on());
        let each = each.map(|shard| async {
            all_shards.add(self.async_consolidate(shard).await);
            Ok::<_, Error>(())
        });
        all(each, self.array.at_once(AT_ONCE), drop).await?;
        all_shards.end()
    }
}

#[async_trait::async_trait]
impl<S> AsyncReadableStorageTraits for SparseShardStore<S>
where
    S: AsyncReadableStorageTraits + AsyncListableStorageTraits + ?Sized,
{
    async fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        self.array.get(&Awaited(&*self.store), key).await
    }

    async fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<AsyncMaybeBytesIterator<'a>, StorageError> {
        let store = Awaited(&*self.store);
        let values = self
            .array
            .get_ranges(&store, key, byte_ranges.collect())
            .await?;
        Ok(values.map(|values| Box::pin(stream::iter(values)) as _))
    }

    async fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.array.size(&Awaited(&*self.store), key).await
    }

    /// `false`: a subchunk is read as a whole.
    fn supports_get_partial(&self) -> bool {
        false
    }
}

#[async_trait::async_trait]
impl<S> AsyncListableStorageTraits for SparseShardStore<S>
where
    S: AsyncReadableStorageTraits + AsyncListableStorageTraits + ?Sized,
{
    async fn list(&self) -> Result<StoreKeys, StorageError> {
        self.list_prefix(&StorePrefix::root()).await
    }

    async fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        let (array, store) = (&self.array, &Awaited(&*self.store));
        listing::list_prefix(&View { array, store }, store, prefix).await
    }

    async fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        let (array, store) = (&self.array, &Awaited(&*self.store));
        listing::list_dir(&View { array, store }, store, prefix).await
    }

    async fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        let (array, store) = (&self.array, &Awaited(&*self.store));
        listing::size_prefix(&View { array, store }, store, prefix).await
    }
}

#[async_trait::async_trait]
impl<S> AsyncWritableStorageTraits for SparseShardStore<S>
where
    S: AsyncReadableStorageTraits
        + AsyncWritableStorageTraits
        + AsyncListableStorageTraits
        + ?Sized,
{
    async fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.array.set(&Awaited(&*self.store), key, value).await
    }

    async fn set_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator<'a>,
    ) -> Result<(), StorageError> {
        let store = Awaited(&*self.store);
        self.array
            .set_ranges(&store, key, offset_values.collect())
            .await
    }

    async fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.array.erase(&Awaited(&*self.store), key).await
    }

    async fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.array
            .erase_prefix(&Awaited(&*self.store), prefix)
            .await
    }

    /// `false`: a write of part of a subchunk reads and stores all of it.
    fn supports_set_partial(&self) -> bool {
        false
    }
}

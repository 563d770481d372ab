//! The adapter over asynchronous stores.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator};
use zarrs_storage::{
    AsyncListableStorageTraits, AsyncMaybeBytesIterator, AsyncReadableStorageTraits,
    AsyncWritableStorageTraits, MaybeBytes, OffsetBytesIterator, StorageError, StoreKey, StoreKeys,
    StoreKeysPrefixes, StorePrefix,
};

use super::view::View;
use super::{ShardedStore, opened};
use crate::Error;
use crate::storage::listing;
use crate::store::Awaited;

/// How many shards are read at once by one call.
const AT_ONCE: usize = 16;

impl<S: AsyncReadableStorageTraits + ?Sized> ShardedStore<S> {
    /// [`open`](Self::open) for an asynchronous store.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub async fn async_open(store: Arc<S>, path: &str) -> Result<Self, Error> {
        let core = opened(&Awaited(&*store), path).await?;
        Ok(Self::with_core(store, Arc::new(core)))
    }

    /// [`get_many`](Self::get_many) for an asynchronous store, with requests for 16 shards or other
    /// keys at once.
    ///
    /// # Errors
    /// As for [`get_many`](Self::get_many).
    pub async fn async_get_many(
        &self,
        ranges: &[(StoreKey, ByteRange)],
    ) -> Result<Vec<Option<Bytes>>, StorageError> {
        let store = Awaited(&*self.store);
        let groups = self.core.grouped(ranges)?;
        let groups = groups
            .into_iter()
            .map(|group| self.core.get_group(&store, group));
        let mut read = stream::iter(groups).buffer_unordered(AT_ONCE);
        let mut found = vec![None; ranges.len()];
        while let Some(group) = read.try_next().await? {
            for (position, bytes) in group {
                if let Some(found) = found.get_mut(position) {
                    *found = bytes;
                }
            }
        }
        Ok(found)
    }
}

impl<S: AsyncReadableStorageTraits + AsyncWritableStorageTraits + ?Sized> ShardedStore<S> {
    /// [`set_many`](Self::set_many) for an asynchronous store.
    ///
    /// # Errors
    /// As for [`set_many`](Self::set_many).
    pub async fn async_set_many(
        &self,
        values: impl IntoIterator<Item = (StoreKey, Bytes)>,
    ) -> Result<(), StorageError> {
        let values = values.into_iter().map(|(key, value)| (key, Some(value)));
        let values = values.collect();
        self.core.write_many(&Awaited(&*self.store), values).await
    }
}

#[async_trait::async_trait]
impl<S: AsyncReadableStorageTraits + ?Sized> AsyncReadableStorageTraits for ShardedStore<S> {
    async fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        self.core.get(&Awaited(&*self.store), key).await
    }

    async fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<AsyncMaybeBytesIterator<'a>, StorageError> {
        let ranges = byte_ranges.collect();
        let store = Awaited(&*self.store);
        let values = self.core.get_ranges(&store, key, ranges).await?;
        Ok(values.map(|values| stream::iter(values.into_iter().map(Ok)).boxed()))
    }

    async fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.core.size(&Awaited(&*self.store), key).await
    }

    fn supports_get_partial(&self) -> bool {
        self.store.supports_get_partial()
    }
}

#[async_trait::async_trait]
impl<S> AsyncWritableStorageTraits for ShardedStore<S>
where
    S: AsyncReadableStorageTraits
        + AsyncWritableStorageTraits
        + AsyncListableStorageTraits
        + ?Sized,
{
    async fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        let values = vec![(key.clone(), Some(value))];
        self.core.write_many(&Awaited(&*self.store), values).await
    }

    async fn set_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator<'a>,
    ) -> Result<(), StorageError> {
        let values = offset_values.collect();
        let store = Awaited(&*self.store);
        self.core.write_ranges(&store, key, values).await
    }

    async fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        let erased = vec![(key.clone(), None)];
        self.core.write_many(&Awaited(&*self.store), erased).await
    }

    async fn erase_many(&self, keys: &[StoreKey]) -> Result<(), StorageError> {
        let erased = keys.iter().map(|key| (key.clone(), None)).collect();
        self.core.write_many(&Awaited(&*self.store), erased).await
    }

    async fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        let store = Awaited(&*self.store);
        self.core.erase_prefix(&store, prefix).await
    }

    /// `false`: a write of part of a chunk reads and stores its shard.
    fn supports_set_partial(&self) -> bool {
        false
    }
}

#[async_trait::async_trait]
impl<S> AsyncListableStorageTraits for ShardedStore<S>
where
    S: AsyncReadableStorageTraits + AsyncListableStorageTraits + ?Sized,
{
    async fn list(&self) -> Result<StoreKeys, StorageError> {
        self.list_prefix(&StorePrefix::root()).await
    }

    async fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        let store = &Awaited(&*self.store);
        let core = &*self.core;
        listing::list_prefix(&View { core, store }, store, prefix).await
    }

    async fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        let store = &Awaited(&*self.store);
        let core = &*self.core;
        listing::list_dir(&View { core, store }, store, prefix).await
    }

    async fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        let store = &Awaited(&*self.store);
        let core = &*self.core;
        listing::size_prefix(&View { core, store }, store, prefix).await
    }
}

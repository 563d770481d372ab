//! Implements the adapter over a store that is awaited.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{
    AsyncReadableStorageTraits, AsyncWritableStorageTraits, StorageError, StoreKey,
};

use super::{ShardedStore, opened};
use crate::error::Error;
use crate::store::Awaited;

/// The most shards that one call reads at once.
const AT_ONCE: usize = 16;

impl<S: ?Sized> ShardedStore<S> {
    pub(super) fn awaited(&self) -> Awaited<'_, S> {
        Awaited(&*self.store)
    }
}

impl<S: AsyncReadableStorageTraits + ?Sized> ShardedStore<S> {
    /// Does the same as [`open`](Self::open) for an asynchronous store.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub async fn async_open(store: Arc<S>, path: &str) -> Result<Self, Error> {
        let core = opened(&Awaited(&*store), path).await?;
        Ok(Self::with_core(store, Arc::new(core)))
    }

    /// Does the same as [`get_many`](Self::get_many) for an asynchronous store, with requests for 16 shards
    /// or other keys at once.
    ///
    /// # Errors
    /// The errors of [`get_many`](Self::get_many).
    pub async fn async_get_many(
        &self,
        ranges: &[(StoreKey, ByteRange)],
    ) -> Result<Vec<Option<Bytes>>, StorageError> {
        let store = self.awaited();
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
    /// Does the same as [`set_many`](Self::set_many) for an asynchronous store.
    ///
    /// # Errors
    /// The errors of [`set_many`](Self::set_many).
    pub async fn async_set_many(
        &self,
        values: impl IntoIterator<Item = (StoreKey, Bytes)>,
    ) -> Result<(), StorageError> {
        let values = values.into_iter().map(|(key, value)| (key, Some(value)));
        let values = values.collect();
        self.core.write_many(&self.awaited(), values).await
    }
}

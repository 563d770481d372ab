//! The adapter over blocking stores.

use std::sync::Arc;

use bytes::Bytes;
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator};
use zarrs_storage::{
    ListableStorageTraits, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator,
    ReadableStorageTraits, StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix,
    WritableStorageTraits,
};

use super::view::View;
use super::{ShardedStore, opened};
use crate::Error;
use crate::storage::listing;
use crate::store::{Blocking, now};

impl<S: ReadableStorageTraits + ?Sized> ShardedStore<S> {
    /// Opens an adapter of `store` for the array at `path`, whose metadata say how it is sharded.
    ///
    /// # Errors
    /// - [`Error::Storage`] if the store fails, or if the metadata are missing or describe no such
    ///   sharding.
    /// - [`Error::Create`] if `path` is not a node path, or the metadata describe an impossible
    ///   sharding.
    pub fn open(store: Arc<S>, path: &str) -> Result<Self, Error> {
        let core = now(opened(&Blocking::new(&*store), path))?;
        Ok(Self::with_core(store, Arc::new(core)))
    }

    /// Reads ranges of the values of several keys. Returns them in the same order, with `None` for
    /// absent keys.
    ///
    /// Each shard takes a request for its index, unless the index is kept, and one for the bytes,
    /// for any number of its chunks. Every other key takes one request for all its ranges.
    ///
    /// # Errors
    /// The store's errors, errors of invalid shards, and
    /// [`InvalidByteRangeError`](StorageError::InvalidByteRangeError) if a range is not within its
    /// value.
    pub fn get_many(
        &self,
        ranges: &[(StoreKey, ByteRange)],
    ) -> Result<Vec<Option<Bytes>>, StorageError> {
        let store = Blocking::new(&*self.store);
        let mut found = vec![None; ranges.len()];
        for group in self.core.grouped(ranges)? {
            for (position, bytes) in now(self.core.get_group(&store, group))? {
                if let Some(found) = found.get_mut(position) {
                    *found = bytes;
                }
            }
        }
        Ok(found)
    }
}

impl<S: ReadableStorageTraits + WritableStorageTraits + ?Sized> ShardedStore<S> {
    /// Stores several values, each shard once. A shard whose chunks are all given is not read.
    ///
    /// If a key is given more than once, the last value is stored. Keys that are not chunk keys are
    /// stored first, one after the other.
    ///
    /// # Errors
    /// The store's errors, and errors of invalid shards, which stay as they are. Values before the
    /// error are stored.
    pub fn set_many(
        &self,
        values: impl IntoIterator<Item = (StoreKey, Bytes)>,
    ) -> Result<(), StorageError> {
        let values = values.into_iter().map(|(key, value)| (key, Some(value)));
        let store = Blocking::new(&*self.store);
        now(self.core.write_many(&store, values.collect()))
    }
}

impl<S: ReadableStorageTraits + ?Sized> ReadableStorageTraits for ShardedStore<S> {
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        now(self.core.get(&Blocking::new(&*self.store), key))
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        let store = Blocking::new(&*self.store);
        let values = now(self.core.get_ranges(&store, key, byte_ranges.collect()))?;
        Ok(values.map(|values| Box::new(values.into_iter().map(Ok)) as Box<_>))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        now(self.core.size(&Blocking::new(&*self.store), key))
    }

    fn supports_get_partial(&self) -> bool {
        self.store.supports_get_partial()
    }
}

impl<S> WritableStorageTraits for ShardedStore<S>
where
    S: ReadableStorageTraits + WritableStorageTraits + ListableStorageTraits + ?Sized,
{
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.set_many([(key.clone(), value)])
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        let store = Blocking::new(&*self.store);
        now(self.core.write_ranges(&store, key, offset_values.collect()))
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.erase_many(std::slice::from_ref(key))
    }

    fn erase_many(&self, keys: &[StoreKey]) -> Result<(), StorageError> {
        let erased = keys.iter().map(|key| (key.clone(), None));
        let store = Blocking::new(&*self.store);
        now(self.core.write_many(&store, erased.collect()))
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        now(self.core.erase_prefix(&Blocking::new(&*self.store), prefix))
    }

    /// `false`: a write of part of a chunk reads and stores its shard.
    fn supports_set_partial(&self) -> bool {
        false
    }
}

impl<S> ListableStorageTraits for ShardedStore<S>
where
    S: ReadableStorageTraits + ListableStorageTraits + ?Sized,
{
    fn list(&self) -> Result<StoreKeys, StorageError> {
        self.list_prefix(&StorePrefix::root())
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        let store = &Blocking::new(&*self.store);
        let core = &*self.core;
        now(listing::list_prefix(&View { core, store }, store, prefix))
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        let store = &Blocking::new(&*self.store);
        let core = &*self.core;
        now(listing::list_dir(&View { core, store }, store, prefix))
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        let store = &Blocking::new(&*self.store);
        let core = &*self.core;
        now(listing::size_prefix(&View { core, store }, store, prefix))
    }
}

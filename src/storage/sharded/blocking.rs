//! Implements the adapter over a store that blocks.

use std::sync::Arc;

use bytes::Bytes;
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{ReadableStorageTraits, StorageError, StoreKey, WritableStorageTraits};

use super::{ShardedStore, opened};
use crate::error::Error;
use crate::store::{Blocking, now};

impl<S: ?Sized> ShardedStore<S> {
    pub(super) fn blocking(&self) -> Blocking<'_, S> {
        Blocking::new(&*self.store)
    }
}

impl<S: ReadableStorageTraits + ?Sized> ShardedStore<S> {
    /// Opens an adapter of `store` for the array at `path`. The metadata of the array say how it is sharded.
    ///
    /// # Errors
    /// - [`Error::Storage`] if the store fails, or if the metadata are missing or do not describe this
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
        let mut found = vec![None; ranges.len()];
        for group in self.core.grouped(ranges)? {
            for (position, bytes) in now(self.core.get_group(&self.blocking(), group))? {
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
        now(self.core.write_many(&self.blocking(), values.collect()))
    }
}

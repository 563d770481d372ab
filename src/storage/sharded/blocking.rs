//! The adapter over a store that blocks.

use std::sync::Arc;

use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{Bytes, ReadableStorageTraits, StorageError, StoreKey, WritableStorageTraits};

use super::{ShardedStore, opened};
use crate::Error;
use crate::store::{Blocking, now};

impl<S: ?Sized> ShardedStore<S> {
    pub(super) fn blocking(&self) -> Blocking<'_, S> {
        Blocking::new(&*self.store)
    }
}

impl<S: ReadableStorageTraits + ?Sized> ShardedStore<S> {
    /// The chunks of the array at `path` in `store`, whose metadata say how it is sharded.
    ///
    /// # Errors
    /// - [`Error::Storage`] if the store fails, or the metadata are not there or do not say it.
    /// - [`Error::Create`] if `path` is not one of a node, or it is sharded as no array can be.
    pub fn open(store: Arc<S>, path: &str) -> Result<Self, Error> {
        let core = now(opened(&Blocking::new(&*store), path))?;
        Ok(Self::with_core(store, Arc::new(core)))
    }

    /// The ranges of the values of several keys, in the same order; `None` for keys that there are not.
    ///
    /// Of each shard the index is requested, if it is not kept, and the bytes, whatever the number of
    /// its chunks; of each other key that is asked for the ranges are one request.
    ///
    /// # Errors
    /// The store's, those of invalid shards, and
    /// [`InvalidByteRangeError`](StorageError::InvalidByteRangeError) if a range is not within its value.
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
    /// Store several values, each shard once. A shard of which all chunks are given is not read.
    ///
    /// Of a key that is given more than once, the last value is stored. Other keys than those of chunks
    /// are stored first, one after the other.
    ///
    /// # Errors
    /// The store's, and those of invalid shards, which stay as they are. What came before is stored then.
    pub fn set_many(
        &self,
        values: impl IntoIterator<Item = (StoreKey, Bytes)>,
    ) -> Result<(), StorageError> {
        let values = values.into_iter().map(|(key, value)| (key, Some(value)));
        now(self.core.write_many(&self.blocking(), values.collect()))
    }
}

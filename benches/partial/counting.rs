//! Counts the bytes that a store reads and writes.

use std::sync::atomic::{AtomicU64, Ordering};

use zarrs::storage::byte_range::ByteRangeIterator;
use zarrs::storage::{
    Bytes, MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits, StorageError, StoreKey,
    StorePrefix, WritableStorageTraits,
};

/// A store that counts bytes. Every call is passed on unchanged.
pub(crate) struct Counting<S> {
    store: S,
    read: AtomicU64,
    written: AtomicU64,
}

impl<S> Counting<S> {
    pub(crate) fn new(store: S) -> Self {
        Self {
            store,
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
        }
    }

    /// Returns the bytes that were read and written since the last call.
    pub(crate) fn take(&self) -> Traffic {
        Traffic {
            read: self.read.swap(0, Ordering::Relaxed),
            written: self.written.swap(0, Ordering::Relaxed),
        }
    }
}

/// The bytes that a store read and wrote.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) read: u64,
    pub(crate) written: u64,
}

impl<S: ReadableStorageTraits> ReadableStorageTraits for Counting<S> {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        let Some(parts) = self.store.get_partial_many(key, byte_ranges)? else {
            return Ok(None);
        };
        Ok(Some(Box::new(parts.inspect(|part| {
            if let Ok(part) = part {
                self.read.fetch_add(part.len() as u64, Ordering::Relaxed);
            }
        }))))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.store.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        self.store.supports_get_partial()
    }
}

impl<S: WritableStorageTraits> WritableStorageTraits for Counting<S> {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.written
            .fetch_add(value.len() as u64, Ordering::Relaxed);
        self.store.set(key, value)
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator<'_>,
    ) -> Result<(), StorageError> {
        let counted = offset_values.inspect(|(_, value)| {
            self.written
                .fetch_add(value.len() as u64, Ordering::Relaxed);
        });
        self.store.set_partial_many(key, Box::new(counted))
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.store.erase(key)
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.store.erase_prefix(prefix)
    }

    fn supports_set_partial(&self) -> bool {
        self.store.supports_set_partial()
    }
}

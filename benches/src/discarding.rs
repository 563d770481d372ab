//! A store that keeps nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use zarrs::storage::byte_range::ByteRangeIterator;
use zarrs::storage::{
    Bytes, MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits, StorageError, StoreKey,
    StorePrefix, WritableStorageTraits,
};

/// An empty store. [`set`](WritableStorageTraits::set) counts the bytes of a value and drops it at
/// once: on the calling thread, before `set` returns.
#[derive(Debug, Default)]
pub struct Discarding {
    bytes: AtomicU64,
}

impl Discarding {
    /// The number of bytes that were stored.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl ReadableStorageTraits for Discarding {
    fn get_partial_many<'a>(
        &'a self,
        _key: &StoreKey,
        _byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        Ok(None)
    }

    fn size_key(&self, _key: &StoreKey) -> Result<Option<u64>, StorageError> {
        Ok(None)
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for Discarding {
    fn set(&self, _key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.bytes.fetch_add(value.len() as u64, Ordering::Relaxed);
        drop(value);
        Ok(())
    }

    fn set_partial_many(
        &self,
        _key: &StoreKey,
        offset_values: OffsetBytesIterator<'_>,
    ) -> Result<(), StorageError> {
        for (_, value) in offset_values {
            self.bytes.fetch_add(value.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    fn erase(&self, _key: &StoreKey) -> Result<(), StorageError> {
        Ok(())
    }

    fn erase_prefix(&self, _prefix: &StorePrefix) -> Result<(), StorageError> {
        Ok(())
    }

    fn supports_set_partial(&self) -> bool {
        false
    }
}

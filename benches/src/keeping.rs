//! A store in memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use zarrs::storage::byte_range::{ByteRangeIterator, InvalidByteRangeError};
use zarrs::storage::{
    Bytes, MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits, StorageError, StoreKey,
    StorePrefix, WritableStorageTraits,
};

/// A store that keeps the given bytes without a copy, like the stores of tensorstore and
/// zarr-python. zarrs' `MemoryStore` copies each value, one at a time, which would distort the
/// measurement.
#[derive(Debug, Default)]
pub struct Keeping {
    values: Mutex<BTreeMap<StoreKey, Bytes>>,
}

impl Keeping {
    fn value(&self, key: &StoreKey) -> Option<Bytes> {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values.get(key).cloned()
    }
}

impl ReadableStorageTraits for Keeping {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let size = value.len() as u64;
        Ok(Some(Box::new(byte_ranges.map(move |range| {
            if range.end(size) > size {
                return Err(InvalidByteRangeError::new(range, size).into());
            }
            Ok(value.slice(range.to_range_usize(size)))
        }))))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        Ok(self.value(key).map(|value| value.len() as u64))
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for Keeping {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let before = values.insert(key.clone(), value);
        drop(values);
        drop(before);
        Ok(())
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        _offset_values: OffsetBytesIterator<'_>,
    ) -> Result<(), StorageError> {
        Err(StorageError::Unsupported(format!(
            "part of {key} cannot be set"
        )))
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values.remove(key);
        Ok(())
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        values.retain(|key, _| !key.has_prefix(prefix));
        Ok(())
    }

    fn supports_set_partial(&self) -> bool {
        false
    }
}

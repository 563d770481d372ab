//! A store of the values that Python got before a call, which keeps the changes that Python stores after the call.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use zarrs_cuda::storage::FRAMES_MARKER;
use zarrs_storage::byte_range::ByteRangeIterator;
use zarrs_storage::{
    ListableStorageTraits, MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits,
    StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix, WritableStorageTraits,
    store_set_partial_many,
};

use crate::value::Value;

/// The new values of some keys, or `None` for values that are to be erased.
pub(crate) type Changes = HashMap<String, Option<Bytes>>;

/// The values that a call may read, and its changes.
#[derive(Debug, Default)]
pub(crate) struct Given {
    /// All keys that the call reads are there.
    values: HashMap<String, Option<Value>>,
    changes: Mutex<Changes>,
}

impl Given {
    pub(crate) fn new(values: HashMap<String, Option<Value>>) -> Self {
        Self {
            values,
            ..Self::default()
        }
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the changes of the call, and forgets them.
    pub(crate) fn take_changes(&self) -> Changes {
        std::mem::take(&mut *self.changes())
    }

    fn change(&self, key: &StoreKey, value: Option<Bytes>) {
        self.changes().insert(key.as_str().to_owned(), value);
    }

    /// Returns the value of `key`, with the changes of the call; `None` if there is no value.
    ///
    /// # Errors
    /// A [`StorageError`] if Python did not read `key` from its store.
    pub(crate) fn value(&self, key: &str) -> Result<Option<Value>, StorageError> {
        if let Some(changed) = self.changes().get(key) {
            return Ok(changed.clone().map(Value::Whole));
        }
        if let Some(value) = self.values.get(key) {
            return Ok(value.clone());
        }
        if key.rsplit('/').next() == Some(FRAMES_MARKER) {
            // Python has looked for subchunks beside the shards before the call.
            return Ok(None);
        }
        Err(StorageError::Other(format!(
            "{key} was not read from the store before the call"
        )))
    }

    /// Returns whether the call was not given parts of the value of `key` only.
    pub(crate) fn has_whole(&self, key: &str) -> bool {
        !matches!(self.values.get(key), Some(Some(Value::Parts(_))))
    }
}

impl ReadableStorageTraits for Given {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        let Some(value) = self.value(key.as_str())? else {
            return Ok(None);
        };
        Ok(Some(Box::new(
            byte_ranges.map(move |range| value.part(range)),
        )))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        match self.value(key.as_str())? {
            Some(Value::Whole(value)) => Ok(Some(value.len() as u64)),
            Some(Value::Parts(_)) => Err(StorageError::UnknownKeySize(key.clone())),
            None => Ok(None),
        }
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for Given {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.change(key, Some(value));
        Ok(())
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        parts: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        store_set_partial_many(self, key, parts)
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.change(key, None);
        Ok(())
    }

    fn erase_prefix(&self, _prefix: &StorePrefix) -> Result<(), StorageError> {
        Err(not_listed())
    }

    fn supports_set_partial(&self) -> bool {
        false
    }
}

fn not_listed() -> StorageError {
    StorageError::Unsupported("Python lists this store".to_owned())
}

impl ListableStorageTraits for Given {
    fn list(&self) -> Result<StoreKeys, StorageError> {
        Err(not_listed())
    }

    fn list_prefix(&self, _prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        Err(not_listed())
    }

    fn list_dir(&self, _prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        Err(not_listed())
    }

    fn size_prefix(&self, _prefix: &StorePrefix) -> Result<u64, StorageError> {
        Err(not_listed())
    }
}

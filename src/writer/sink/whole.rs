//! Shards that are stored by one `set`.

use std::fmt;
use std::sync::Arc;

use zarrs::array::Array;
use zarrs_storage::{
    Bytes, StorageError, StorageHandle, StoreKey, WritableStorage, WritableStorageTraits,
};

use super::ShardSink;

/// Shards go into the array's own storage, through its storage transformers, each by one `set`:
/// they appear as the store lets values appear.
pub(in crate::writer) struct WholeSink {
    storage: WritableStorage,
}

impl WholeSink {
    /// For the shards of `array`.
    ///
    /// # Errors
    /// That of a storage transformer.
    pub(in crate::writer) fn of<T>(array: &Array<T>) -> Result<Self, StorageError>
    where
        T: ?Sized + WritableStorageTraits + 'static,
    {
        let storage = Arc::new(StorageHandle::new(array.storage()));
        let storage = array
            .storage_transformers()
            .create_writable_transformer(storage)?;
        Ok(Self { storage })
    }
}

impl fmt::Debug for WholeSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WholeSink").finish_non_exhaustive()
    }
}

fn does_not_grow(key: &StoreKey) -> StorageError {
    StorageError::Unsupported(format!(
        "cannot write pieces of {key}: shards are stored whole here"
    ))
}

impl ShardSink for WholeSink {
    fn grows(&self) -> bool {
        false
    }

    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.storage.set(key, value)
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.storage.erase(key)
    }

    fn write(
        &self,
        key: &StoreKey,
        _pieces: Vec<(u64, Bytes)>,
        _first: bool,
    ) -> Result<(), StorageError> {
        Err(does_not_grow(key))
    }

    fn complete(&self, key: &StoreKey) -> Result<(), StorageError> {
        Err(does_not_grow(key))
    }

    fn discard(&self, _key: &StoreKey) -> Result<(), StorageError> {
        // Nothing was begun.
        Ok(())
    }
}

//! Values that are renamed when they are complete, in stores that rename: the names of their temporaries.

use bytes::Bytes;
use zarrs_storage::storage_adapter::atomic_write::AtomicWriteStorageAdapter;
use zarrs_storage::{StorageError, StoreKey, WritableStorageTraits};

/// The key of the temporary of `key`. It is that of zarrs' adapter for atomic writes, so that
/// leftovers of both have the same names.
///
/// # Errors
/// If `key` is the root.
pub(crate) fn temporary_key(key: &StoreKey) -> Result<StoreKey, StorageError> {
    AtomicWriteStorageAdapter::<()>::temporary_key(key)
}

/// Stores `value` in the new value `temporary`. On files, a link that has this name, or other names of the
/// file, would let a foreign file be written: so what is there is erased first.
///
/// # Errors
/// The store's.
pub(crate) fn set_anew<S: ?Sized + WritableStorageTraits>(
    store: &S,
    temporary: &StoreKey,
    value: Bytes,
) -> Result<(), StorageError> {
    store.erase(temporary)?;
    store.set(temporary, value)
}

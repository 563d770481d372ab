//! Names the temporaries of values that are renamed when they are complete, in stores that rename.

use bytes::Bytes;
use zarrs_storage::storage_adapter::atomic_write::AtomicWriteStorageAdapter;
use zarrs_storage::{StorageError, StoreKey, WritableStorageTraits};

/// Returns the key of the temporary of `key`. It is the key that zarrs' adapter for atomic writes uses, so
/// that leftovers of both have the same names.
///
/// # Errors
/// The error of a `key` that is the root.
pub(crate) fn temporary_key(key: &StoreKey) -> Result<StoreKey, StorageError> {
    AtomicWriteStorageAdapter::<()>::temporary_key(key)
}

/// Stores `value` in the new value `temporary`. Erases an old value first: on files, `temporary` may be a
/// link or have other names, and writing to it would change a foreign file.
///
/// # Errors
/// The errors of the store.
pub(crate) fn set_anew<S: ?Sized + WritableStorageTraits>(
    store: &S,
    temporary: &StoreKey,
    value: Bytes,
) -> Result<(), StorageError> {
    store.erase(temporary)?;
    store.set(temporary, value)
}

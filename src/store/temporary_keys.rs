//! Names what lies beside values: temporaries that are renamed when they are complete, in stores that rename, and
//! lock files.

use bytes::Bytes;
use zarrs_storage::storage_adapter::atomic_write::AtomicWriteStorageAdapter;
use zarrs_storage::{StorageError, StoreKey, WritableStorageTraits};

/// The suffix of the names of lock files (`lock_files.rs`), which tensorstore makes, too.
pub(super) const LOCK_SUFFIX: &str = ".__lock";

/// Returns whether `key`, which may be the name of a file, is that of a lock file.
pub(crate) fn is_lock_file(key: &str) -> bool {
    key.ends_with(LOCK_SUFFIX)
}

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

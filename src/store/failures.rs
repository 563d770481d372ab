//! The errors of stores that failed or panicked.

use zarrs_codec::CodecError;
use zarrs_storage::{StorageError, StoreKey, StorePrefix};

/// Returns the reason why a prefix was not listed: the error of the store, or that the store panicked.
pub(super) fn not_listed(prefix: &StorePrefix, error: CodecError) -> StorageError {
    match error {
        CodecError::StorageError(error) => error,
        _ => StorageError::Other(format!(
            "cannot list {prefix}: the store panicked. See whether there are names that are not UTF-8, and delete those; on a filesystem `SparseShardStore::on_filesystem` passes over them"
        )),
    }
}

/// Returns the reason why parts of a value were not read: the error of the store, or that the store panicked.
pub(super) fn not_read(key: &StoreKey, error: CodecError) -> StorageError {
    match error {
        CodecError::StorageError(error) => error,
        error => StorageError::Other(format!("cannot read parts of {key}: {error}")),
    }
}

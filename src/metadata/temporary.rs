//! Writes metadata to temporaries, which are renamed when they are complete.
//!
//! Several processes may store the same metadata at once, if each writes a part of an image. Each process has
//! temporaries of its own: otherwise it could rename a temporary that another process is still writing.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use zarrs_storage::{
    AtomicRenameStorageTraits, OffsetBytesIterator, ReadableStorageTraits, StorageError, StoreKey,
    StorePrefix, WritableStorage, WritableStorageTraits,
};

use crate::store::temporary_keys::{set_anew, temporary_key};

const OF_PART: &str = ".part";

/// Returns the key of the temporary of `key`, for the process that writes `part`, or for the only process.
///
/// # Errors
/// The error of a `key` that is the root.
pub(crate) fn temporary_of(key: &StoreKey, part: Option<u64>) -> Result<StoreKey, StorageError> {
    match part {
        None => temporary_key(key),
        Some(part) => temporary_key(&StoreKey::new(format!("{key}{OF_PART}{part}"))?),
    }
}

/// Returns whether `found` is the temporary of `key` that a process of any part writes.
pub(crate) fn is_of_a_part(found: &StoreKey, key: &StoreKey) -> bool {
    let part = found.as_str().strip_prefix(key.as_str());
    let part = part.and_then(|rest| rest.strip_prefix(OF_PART)?.split('.').next()?.parse().ok());
    part.is_some_and(|part| temporary_of(key, Some(part)).is_ok_and(|key| key == *found))
}

/// Returns a store that writes each value to its [temporary](temporary_of), and renames it.
pub(crate) fn replacing<S>(store: Arc<S>, part: Option<u64>) -> WritableStorage
where
    S: AtomicRenameStorageTraits + ReadableStorageTraits + WritableStorageTraits + 'static,
{
    Arc::new(TemporaryMetadata { store, part })
}

/// Replaces a value only if no other process has changed it.
pub(crate) trait Comparing: WritableStorageTraits {
    /// Replaces the value of `key` if it is `before`. Returns whether it was `before`. Another process may
    /// still change the value in the moment between the comparison and the rename.
    fn replace(
        &self,
        key: &StoreKey,
        before: Option<&Bytes>,
        value: Bytes,
    ) -> Result<bool, StorageError>;
}

/// Returns a store that replaces values as the store of [`replacing`] does, if no other process has changed
/// them.
pub(crate) fn comparing<S>(store: Arc<S>, part: Option<u64>) -> Arc<dyn Comparing>
where
    S: AtomicRenameStorageTraits + ReadableStorageTraits + WritableStorageTraits + 'static,
{
    Arc::new(TemporaryMetadata { store, part })
}

/// Writes metadata for the process that writes a part, or for the only process.
struct TemporaryMetadata<S> {
    store: Arc<S>,
    part: Option<u64>,
}

impl<S> fmt::Debug for TemporaryMetadata<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TemporaryMetadata")
            .field("part", &self.part)
            .finish_non_exhaustive()
    }
}

impl<S> TemporaryMetadata<S>
where
    S: ReadableStorageTraits + WritableStorageTraits,
{
    /// Writes `value` to the temporary of `key`, and returns the key of the temporary.
    fn write(&self, key: &StoreKey, value: Bytes) -> Result<StoreKey, StorageError> {
        let temporary = temporary_of(key, self.part)?;
        if self.part.is_none() && self.store.size_key(&temporary)?.is_some() {
            return Err(StorageError::Other(format!(
                "cannot store {key}: {temporary} is there, so another process is about to replace it, or died when it was"
            )));
        }
        set_anew(&*self.store, &temporary, value)?;
        Ok(temporary)
    }
}

impl<S> Comparing for TemporaryMetadata<S>
where
    S: AtomicRenameStorageTraits + ReadableStorageTraits + WritableStorageTraits,
{
    fn replace(
        &self,
        key: &StoreKey,
        before: Option<&Bytes>,
        value: Bytes,
    ) -> Result<bool, StorageError> {
        let temporary = self.write(key, value)?;
        // The value is compared only now, because writing and syncing the temporary takes time.
        if self.store.get(key)?.as_ref() != before {
            self.store.erase(&temporary)?;
            return Ok(false);
        }
        self.store.rename(&temporary, key)?;
        Ok(true)
    }
}

impl<S> WritableStorageTraits for TemporaryMetadata<S>
where
    S: AtomicRenameStorageTraits + ReadableStorageTraits + WritableStorageTraits,
{
    /// Replaces the value of `key`. A temporary that a killed process of this part left is replaced. A
    /// temporary of the only process may belong to another process, and is not replaced.
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        let temporary = self.write(key, value)?;
        self.store.rename(&temporary, key)
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        _values: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        Err(StorageError::Unsupported(format!(
            "cannot write parts of {key}: metadata are replaced whole"
        )))
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.store.erase(key)
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.store.erase_prefix(prefix)
    }

    fn supports_set_partial(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(key: &str) -> StoreKey {
        StoreKey::new(key).unwrap()
    }

    #[test]
    fn each_part_has_its_own() {
        let metadata = key("a/zarr.json");
        let temporary = |part| temporary_of(&metadata, part).unwrap();
        assert_eq!(temporary(None), key("a/zarr.json.tmp"));
        assert_eq!(temporary(Some(12)), key("a/zarr.json.part12.tmp"));
        for part in [0, 12, u64::MAX] {
            assert!(is_of_a_part(&temporary(Some(part)), &metadata));
        }
        for other in [
            "a/zarr.json",
            "a/zarr.json.tmp",
            "a/zarr.json.part",
            "a/zarr.json.part.tmp",
            "a/zarr.json.part1",
            "a/zarr.json.part01.tmp",
            "a/zarr.json.part-1.tmp",
            "a/zarr.json.part1.tmp.tmp",
            "b/zarr.json.part1.tmp",
            "zarr.json.part1.tmp",
        ] {
            assert!(!is_of_a_part(&key(other), &metadata), "{other}");
        }
    }
}

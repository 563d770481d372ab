//! Stores that replace a value only if no other process has changed it.

use bytes::Bytes;
use zarrs_storage::{StorageError, StoreKey, WritableStorageTraits};

/// The version of a stored value, as its store tells it. At least one of both is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueVersion {
    /// The entity tag (`ETag`) of the value.
    pub e_tag: Option<String>,
    /// The number or name that the store gave this version of the value, such as a generation.
    pub version: Option<String>,
}

/// A store of objects that makes a value only if there is none, and replaces a value only if it has a version
/// (`If-None-Match: *` and `If-Match` of HTTP). The store does both in one step, so that of several processes
/// one succeeds.
pub trait ConditionalStore: WritableStorageTraits {
    /// Returns the value of `key` and its version; `None` if there is no value.
    ///
    /// # Errors
    /// The store's; [`StorageError::Unsupported`] if it does not tell versions.
    fn get_with_version(
        &self,
        key: &StoreKey,
    ) -> Result<Option<(Bytes, ValueVersion)>, StorageError>;

    /// Stores `value` if the stored one has this `version`, or without one if there is no value. Returns the
    /// new version, or `None` if the stored value is another one: then nothing was stored. After a request
    /// that was sent twice, the value may be stored nevertheless.
    ///
    /// # Errors
    /// The store's; [`StorageError::Unsupported`] if it has no such requests.
    fn set_if(
        &self,
        key: &StoreKey,
        value: Bytes,
        version: Option<&ValueVersion>,
    ) -> Result<Option<ValueVersion>, StorageError>;
}

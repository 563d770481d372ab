//! Reads the stored metadata of a node, and replaces them unless another process has changed them.

use std::sync::Arc;

use bytes::Bytes;
use zarrs::array::Array;
use zarrs::group::Group;
use zarrs::node::meta_key_v3;
use zarrs::storage::store::MemoryStore;
use zarrs_storage::{
    ReadableStorage, ReadableStorageTraits, StorageError, StoreKey, WritableStorage,
    WritableStorageTraits,
};

use super::temporary::Comparing;
use crate::store::conditional::{ConditionalStore, ValueVersion};

/// A reader and a writer of stored metadata.
pub(crate) struct MetadataStore {
    pub(crate) reader: ReadableStorage,
    pub(crate) writer: Replacement,
}

/// The way in which metadata are replaced.
pub(crate) enum Replacement {
    /// Replaces them by one `set`.
    Whole(WritableStorage),
    /// Writes a temporary, and renames it if the metadata are still the same then.
    Renamed(Arc<dyn Comparing>),
    /// Replaces them by a request whose condition is their version.
    Conditional(Arc<dyn ConditionalStore>),
}

/// Stored metadata that were read.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) bytes: Bytes,
    /// The version of the metadata; `None` if the store has no conditional requests.
    pub(crate) version: Option<ValueVersion>,
}

impl MetadataStore {
    /// Returns the metadata at `key`; `None` if there are none.
    pub(crate) fn read(&self, key: &StoreKey) -> Result<Option<Seen>, StorageError> {
        if let Replacement::Conditional(store) = &self.writer {
            let seen = |(bytes, version)| Seen {
                bytes,
                version: Some(version),
            };
            return Ok(store.get_with_version(key)?.map(seen));
        }
        let stored = self.reader.get(key)?;
        Ok(stored.map(|bytes| Seen {
            bytes,
            version: None,
        }))
    }
}

impl Replacement {
    pub(crate) fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        match self {
            Self::Whole(store) => store.erase(key),
            Self::Renamed(store) => store.erase(key),
            Self::Conditional(store) => store.erase(key),
        }
    }

    /// Replaces the metadata `before`. Returns whether they were still stored, and so were replaced.
    pub(crate) fn replace(
        &self,
        key: &StoreKey,
        before: Option<&Seen>,
        value: Bytes,
    ) -> Result<bool, StorageError> {
        match self {
            Self::Whole(store) => store.set(key, value).map(|()| true),
            Self::Renamed(store) => store.replace(key, before.map(|seen| &seen.bytes), value),
            Self::Conditional(store) => {
                let version = before.and_then(|seen| seen.version.as_ref());
                match store.set_if(key, value.clone(), version) {
                    // The store tells versions, but takes no conditions.
                    Err(StorageError::Unsupported(_)) => store.set(key, value).map(|()| true),
                    Err(error) => Err(error),
                    Ok(Some(_)) => Ok(true),
                    // If the request was sent twice because its first answer was lost, the first one has
                    // stored the value.
                    Ok(None) => {
                        let now = store.get_with_version(key)?;
                        Ok(now.is_some_and(|(now, _)| now == value))
                    }
                }
            }
        }
    }
}

/// Returns the text that zarrs stores for `array`, with the metadata options that only the array knows.
pub(crate) fn text_of_array<T: ?Sized>(array: &Array<T>) -> Result<Bytes, StorageError> {
    let scratch = Arc::new(MemoryStore::new());
    array.with_storage(scratch.clone()).store_metadata()?;
    let text = scratch.get(&meta_key_v3(array.path()))?;
    Ok(text.unwrap_or_default())
}

/// Returns the text that zarrs stores for `group`.
pub(crate) fn text_of_group<T: ?Sized>(group: &Group<T>) -> Result<Bytes, StorageError> {
    let scratch = Arc::new(MemoryStore::new());
    let path = group.path().as_str();
    Group::new_with_metadata(scratch.clone(), path, group.metadata().clone())
        .map_err(|error| StorageError::Other(error.to_string()))?
        .store_metadata()?;
    let text = scratch.get(&meta_key_v3(group.path()))?;
    Ok(text.unwrap_or_default())
}

//! Replaces the value of a store only if no other process has changed it.

use bytes::Bytes;
use zarrs_storage::{ListableStorageTraits, StorageError, StoreKey, WritableStorageTraits};

/// The version of a stored value, as its store tells it. At least one of the two members is there.
///
/// ```
/// # use std::sync::Arc;
/// # use zarrs::storage::StoreKey;
/// # use zarrs_cuda::objects::{BlockingObjectStore, object_store::memory::InMemory};
/// # let store = BlockingObjectStore::new(Arc::new(InMemory::new()));
/// # let key = StoreKey::new("state")?;
/// use zarrs_cuda::writer::ConditionalStore;
///
/// let made = store.set_if(&key, "one".into(), None)?.ok_or("the value was there")?;
/// println!("{:?} or {:?}", made.e_tag, made.version); // as the store tells it
/// store.set_if(&key, "two".into(), Some(&made))?.ok_or("another process has written")?;
/// // The value has another version now.
/// assert_eq!(store.set_if(&key, "three".into(), Some(&made))?, None);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueVersion {
    /// The entity tag (`ETag`) of the value.
    pub e_tag: Option<String>,
    /// The number or name that the store gave this version of the value, such as a generation.
    pub version: Option<String>,
}

/// A store of objects with conditional writes (`If-None-Match: *` and `If-Match` of HTTP). The store makes a
/// value only if there is none, or replaces a value only if the value has a given version. The store checks
/// and writes in one step, so of several processes one succeeds. A listing shows everything that was stored
/// before it.
///
/// ```
/// use zarrs::storage::{StorageError, StoreKey};
/// use zarrs_cuda::writer::ConditionalStore;
///
/// /// Appends a line to the value of `key`, which several processes may do at once.
/// fn log(store: &dyn ConditionalStore, key: &StoreKey, line: &str) -> Result<(), StorageError> {
///     loop {
///         let (old, version) = store.get_with_version(key)?.unzip();
///         let new = [&old.unwrap_or_default(), line.as_bytes(), b"\n"].concat();
///         if store.set_if(key, new.into(), version.as_ref())?.is_some() {
///             return Ok(());
///         }
///     }
/// }
/// # use std::sync::Arc;
/// # use zarrs::storage::ReadableStorageTraits;
/// # use zarrs_cuda::objects::{BlockingObjectStore, object_store::memory::InMemory};
/// # let (store, key) = (BlockingObjectStore::new(Arc::new(InMemory::new())), StoreKey::new("log")?);
/// # for line in ["one", "two"] {
/// #     log(&store, &key, line)?;
/// # }
/// # assert_eq!(store.get(&key)?.as_deref(), Some(&b"one\ntwo\n"[..]));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub trait ConditionalStore: WritableStorageTraits + ListableStorageTraits {
    /// Returns the value of `key` and its version; `None` if there is no value.
    ///
    /// # Errors
    /// The errors of the store; [`StorageError::Unsupported`] if it does not tell versions.
    fn get_with_version(
        &self,
        key: &StoreKey,
    ) -> Result<Option<(Bytes, ValueVersion)>, StorageError>;

    /// Stores `value` if the stored value has this `version`, or, without a `version`, if there is no value.
    /// Returns the new version, or `None` if the condition was not met, and nothing was stored. If the
    /// request was sent twice, `None` may be returned although the first one has stored the value.
    ///
    /// # Errors
    /// The errors of the store; [`StorageError::Unsupported`] if it has no conditional requests.
    fn set_if(
        &self,
        key: &StoreKey,
        value: Bytes,
        version: Option<&ValueVersion>,
    ) -> Result<Option<ValueVersion>, StorageError>;
}

/// Values with versions, in memory.
#[cfg(test)]
pub(crate) mod in_memory {
    use std::collections::HashMap;
    use std::sync::{Arc, Mutex};

    use zarrs_storage::byte_range::ByteRangeIterator;
    use zarrs_storage::store::MemoryStore;
    use zarrs_storage::{
        MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits, StoreKeys,
        StoreKeysPrefixes, StorePrefix,
    };

    use super::*;

    /// The ways in which stores take conditions.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) enum Conditions {
        Obeyed,
        /// They are, and nothing is listed.
        ObeyedUnlisted,
        Ignored,
        /// Values are replaced under conditions, and made without.
        IgnoredWhenMade,
        Refused,
        /// Values are made under conditions, and not replaced.
        RefusedWhenReplaced,
        /// Values are stored, and have no versions.
        WithoutVersions,
    }

    impl Conditions {
        /// The conditions with which there is no lease.
        pub(crate) const UNUSABLE: [Self; 5] = [
            Self::Ignored,
            Self::IgnoredWhenMade,
            Self::Refused,
            Self::RefusedWhenReplaced,
            Self::WithoutVersions,
        ];
    }

    #[derive(Debug)]
    pub(crate) struct Objects {
        conditions: Conditions,
        values: MemoryStore,
        /// How often a value was stored, and when each was.
        versions: Mutex<(u64, HashMap<StoreKey, u64>)>,
    }

    impl Objects {
        pub(crate) fn new(conditions: Conditions) -> Arc<Self> {
            Arc::new(Self {
                conditions,
                values: MemoryStore::new(),
                versions: Mutex::default(),
            })
        }

        fn store(
            &self,
            versions: &mut (u64, HashMap<StoreKey, u64>),
            key: &StoreKey,
            value: Bytes,
        ) -> Result<u64, StorageError> {
            versions.0 += 1;
            versions.1.insert(key.clone(), versions.0);
            self.values.set(key, value)?;
            Ok(versions.0)
        }
    }

    fn version(number: u64) -> ValueVersion {
        ValueVersion {
            e_tag: Some(number.to_string()),
            version: None,
        }
    }

    impl ReadableStorageTraits for Objects {
        fn get_partial_many<'a>(
            &'a self,
            key: &StoreKey,
            byte_ranges: ByteRangeIterator<'a>,
        ) -> Result<MaybeBytesIterator<'a>, StorageError> {
            self.values.get_partial_many(key, byte_ranges)
        }

        fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
            self.values.size_key(key)
        }

        fn supports_get_partial(&self) -> bool {
            true
        }
    }

    impl WritableStorageTraits for Objects {
        fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
            let mut versions = self.versions.lock().unwrap();
            self.store(&mut versions, key, value).map(drop)
        }

        fn set_partial_many(
            &self,
            _: &StoreKey,
            _: OffsetBytesIterator,
        ) -> Result<(), StorageError> {
            Err(StorageError::Unsupported("parts".to_owned()))
        }

        fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
            let mut versions = self.versions.lock().unwrap();
            versions.1.remove(key);
            self.values.erase(key)
        }

        fn erase_prefix(&self, _: &StorePrefix) -> Result<(), StorageError> {
            Err(StorageError::Unsupported("prefixes".to_owned()))
        }

        fn supports_set_partial(&self) -> bool {
            false
        }
    }

    impl ListableStorageTraits for Objects {
        fn list(&self) -> Result<StoreKeys, StorageError> {
            self.values.list()
        }

        fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
            if self.conditions == Conditions::ObeyedUnlisted {
                return Err(StorageError::Unsupported("listings".to_owned()));
            }
            self.values.list_prefix(prefix)
        }

        fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
            self.values.list_dir(prefix)
        }

        fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
            self.values.size_prefix(prefix)
        }
    }

    impl ConditionalStore for Objects {
        fn get_with_version(
            &self,
            key: &StoreKey,
        ) -> Result<Option<(Bytes, ValueVersion)>, StorageError> {
            let versions = self.versions.lock().unwrap();
            let value = self.values.get(key)?;
            if self.conditions == Conditions::WithoutVersions && value.is_some() {
                return Err(StorageError::Unsupported("versions".to_owned()));
            }
            Ok(value.map(|value| (value, version(versions.1[key]))))
        }

        fn set_if(
            &self,
            key: &StoreKey,
            value: Bytes,
            before: Option<&ValueVersion>,
        ) -> Result<Option<ValueVersion>, StorageError> {
            let mut versions = self.versions.lock().unwrap();
            let now = versions.1.get(key).copied().map(version);
            let is_obeyed = match self.conditions {
                Conditions::Refused => false,
                Conditions::RefusedWhenReplaced if before.is_some() => false,
                _ => true,
            };
            if !is_obeyed {
                return Err(StorageError::Unsupported("conditions".to_owned()));
            }
            let is_ignored = match self.conditions {
                Conditions::Ignored => true,
                Conditions::IgnoredWhenMade => before.is_none(),
                _ => false,
            };
            if !is_ignored && now.as_ref() != before {
                return Ok(None);
            }
            if self.conditions == Conditions::WithoutVersions {
                self.store(&mut versions, key, value)?;
                return Err(StorageError::Unsupported("versions".to_owned()));
            }
            self.store(&mut versions, key, value).map(version).map(Some)
        }
    }
}

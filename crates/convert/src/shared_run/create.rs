//! Stores values that replace no other value: of several processes that create one value, one does.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use zarrs_cuda::storage::{Durable, NewFile, Owner};
use zarrs_cuda::writer::ConditionalStore;
use zarrs_storage::byte_range::ByteRangeIterator;
use zarrs_storage::{
    Bytes, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits,
    StorageError, StoreKey, StorePrefix, WritableStorageTraits,
};

use super::watch::{Created, PlanWatch};
use crate::failure::Failure;
use crate::open::{self, Place, RUN, Store, forward_listing};
use crate::replace::{ReplacingFiles, sync_all_files};

type Result<T, E = StorageError> = std::result::Result<T, E>;

/// The way in which a store creates values.
enum By {
    /// Files in this directory are written beside their names, synced, and linked to them.
    Links(PathBuf),
    /// The store is asked to store a value only if there is none.
    Conditions(Arc<dyn ConditionalStore>),
    /// The store replaces values, in this directory if they are files. Another process may store one between the look
    /// and the write.
    Looking(Option<PathBuf>),
}

/// A store of which this run creates values, and replaces none.
pub(crate) struct Creating {
    store: Arc<Store>,
    by: By,
}

impl Creating {
    /// Opens the store of the output `place`. If it `can_replace`, a store without creation is taken, too: then
    /// all processes must store equal values.
    pub(crate) fn open(place: &Place, can_replace: bool) -> Result<Self, Failure> {
        let stores = open::output(place)?;
        let by = match (place, stores.conditional) {
            (Place::Directory(path), _) if can_replace => By::Looking(Some(path.clone())),
            (Place::Directory(path), _) => By::Links(path.clone()),
            (Place::Url(_), Some(store)) if !can_replace => By::Conditions(store),
            (Place::Url(_), _) => By::Looking(None),
        };
        Ok(Self {
            store: match stores.files {
                Some(files) => Arc::new(ReplacingFiles::new(files)),
                None => stores.store,
            },
            by,
        })
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Stores `value` under `key`, unless there is a value. Returns whether it did. The bytes of files are durable
    /// then, and their names are after [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`StorageError::Unsupported`] if the store does not create values; its other errors.
    pub(crate) fn create(&self, key: &StoreKey, value: Bytes) -> Result<bool> {
        Ok(self.created(key, value)?.is_some())
    }

    /// Creates a value as [`create`](Self::create) does.
    fn created(&self, key: &StoreKey, value: Bytes) -> Result<Option<Created>> {
        match &self.by {
            By::Links(root) => {
                let path = root.join(key.as_str());
                let created = NewFile::beside(&path).and_then(|new| {
                    new.file().write_all(&value)?;
                    let created = Created::file(&path, new.file())?;
                    let is_new = new.create_at(&path, Durable::Bytes)?;
                    Ok(is_new.then_some(created))
                });
                created.map_err(|error| match error.kind() {
                    ErrorKind::Unsupported => StorageError::Unsupported(error.to_string()),
                    _ => error.into(),
                })
            }
            By::Conditions(store) => {
                let version = store.set_if(key, value, None)?;
                Ok(version.map(|_| Created::Object))
            }
            By::Looking(_) => {
                if self.store.size_key(key)?.is_some() {
                    return Ok(None);
                }
                self.store.set(key, value)?;
                Ok(Some(Created::Object))
            }
        }
    }

    /// Makes all that was stored before durable, also by other processes of this machine.
    pub(crate) fn sync(&self) -> Result<()> {
        match &self.by {
            By::Links(root) | By::Looking(Some(root)) => Ok(sync_all_files(root)?),
            By::Conditions(_) | By::Looking(None) => Ok(()),
        }
    }

    /// Creates `value`, or finds an equal one. Returns another value that has the key.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create).
    pub(crate) fn agree(&self, key: &StoreKey, value: &[u8]) -> Result<Option<Bytes>> {
        const ATTEMPTS: u64 = 10;
        for attempt in 1..=ATTEMPTS {
            if self.create(key, value.to_vec().into())? {
                return Ok(None);
            }
            // A request that was sent twice may find what it has stored itself. A value that another process is storing
            // may take a key before it can be read.
            if let Some(stored) = self.store.get(key)? {
                return Ok(Some(stored).filter(|stored| **stored != *value));
            }
            std::thread::sleep(Duration::from_millis(10 * attempt));
        }
        Err(StorageError::Other(format!(
            "the store has a value of {key}, and does not return it"
        )))
    }

    /// Checks that the store creates values, by an object that is created twice.
    ///
    /// # Errors
    /// [`StorageError::Unsupported`] if it replaces the object, or knows no conditions; its other errors.
    pub(crate) fn must_create(&self) -> Result<()> {
        let By::Conditions(store) = &self.by else {
            return Ok(());
        };
        let random = RandomState::new().hash_one(Owner::this().to_string());
        let key = StoreKey::new(format!("{RUN}/probe-{random:016x}"))?;
        let create = || store.set_if(&key, Bytes::from_static(b"probe"), None);
        let created = create()?.is_some() && create()?.is_some();
        let _ = self.store.erase(&key); // some may create and not delete; the probe does no harm
        if created {
            return Err(StorageError::Unsupported(
                "the store replaces objects that it is asked to create (If-None-Match: *)"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

/// The store of an output array whose shards are created, and never replaced or erased.
pub(crate) struct CreatingStore {
    store: Arc<Store>,
    creating: Creating,
    watch: Arc<PlanWatch>,
}

impl CreatingStore {
    pub(crate) fn new(creating: Creating, watch: Arc<PlanWatch>) -> Self {
        Self {
            store: creating.store.clone(),
            creating,
            watch,
        }
    }
}

impl ReadableStorageTraits for CreatingStore {
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes> {
        self.store.get(key)
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>> {
        self.store.get_partial_many(key, byte_ranges)
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>> {
        self.store.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        self.store.supports_get_partial()
    }
}

impl WritableStorageTraits for CreatingStore {
    /// Leaves a value that is there: another process does the same part.
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<()> {
        self.watch.create(|| self.creating.created(key, value))
    }

    fn set_partial_many(&self, key: &StoreKey, _parts: OffsetBytesIterator) -> Result<()> {
        Err(StorageError::Unsupported(format!(
            "no part of {key} is replaced while an output is made in parts"
        )))
    }

    /// Does nothing. A shard without stored elements is not stored, and this run has stored none.
    fn erase(&self, _key: &StoreKey) -> Result<()> {
        Ok(())
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<()> {
        Err(StorageError::Unsupported(format!(
            "nothing below {prefix} is erased while an output is made in parts"
        )))
    }

    fn supports_set_partial(&self) -> bool {
        false
    }
}

forward_listing!(CreatingStore, store);

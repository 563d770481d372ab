//! Stores the metadata that OME-Zarr demands besides the arrays of the levels: the description in the group, and the names of
//! the dimensions of level 0, which may be there without.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use zarrs::group::Group;
use zarrs::node::meta_key_v3;
use zarrs::storage::store::MemoryStore;
use zarrs_storage::{
    ReadableStorageTraits, ReadableWritableStorageTraits, StorageError, StoreKey,
    WritableStorageTraits,
};

use super::MultiscaleBuilder;
use super::plan::Plan;
use crate::Error;
use crate::json::Document;
use crate::writer::WriterError;
use crate::writer::sink::temporary_key;

impl<TStorage> MultiscaleBuilder<TStorage>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
{
    /// Stores the description of the image, and the names of the dimensions of level 0, unless they are
    /// there. If this process is not `alone`, others may do the same now.
    pub(super) fn describe(&self, plan: &Plan<TStorage>, alone: bool) -> Result<(), WriterError> {
        let key = meta_key_v3(plan.group.path());
        let doing = "store the description of the image in";
        self.store(doing, key, alone, &|key| self.description(plan, key))?;
        let key = meta_key_v3(self.array().path());
        let doing = "store the names of the dimensions in";
        self.store(doing, key, alone, &|key| self.with_names(plan, key))
    }

    /// The metadata of the group, unless they are stored.
    fn description(
        &self,
        plan: &Plan<TStorage>,
        key: &StoreKey,
    ) -> Result<Option<Bytes>, StorageError> {
        let group = &plan.group;
        let stored = Group::open(self.array().storage(), group.path().as_str());
        if stored.is_ok_and(|stored| stored.metadata() == group.metadata()) {
            return Ok(None);
        }
        let scratch = Arc::new(MemoryStore::new());
        Group::new_with_metadata(
            scratch.clone(),
            group.path().as_str(),
            group.metadata().clone(),
        )
        .map_err(|error| StorageError::Other(error.to_string()))?
        .store_metadata()?;
        scratch.get(key)
    }

    /// The metadata of level 0 with the names of its dimensions, unless they are stored so, or not at all.
    fn with_names(
        &self,
        plan: &Plan<TStorage>,
        key: &StoreKey,
    ) -> Result<Option<Bytes>, StorageError> {
        let Some(stored) = self.array().storage().get(key)? else {
            return Ok(None);
        };
        let invalid = |reason| StorageError::InvalidMetadata(key.clone(), reason);
        let document = Document::parse(&stored).map_err(invalid)?;
        let names = json!(plan.arrays[0].dimension_names());
        let member = "dimension_names";
        let changed = match document.member(member) {
            Some(text) if serde_json::from_str::<Value>(text).is_ok_and(|is| is == names) => None,
            Some(_) => Some(document.with(&[(member, &names.to_string())])),
            None => document.with_last(member, &names.to_string()),
        };
        Ok(changed.map(Bytes::from))
    }

    /// Stores the value that `lacking` returns, if there is one. If this process is not `alone`, others may
    /// store it, too.
    fn store(
        &self,
        doing: &'static str,
        key: StoreKey,
        alone: bool,
        lacking: &dyn Fn(&StoreKey) -> Result<Option<Bytes>, StorageError>,
    ) -> Result<(), WriterError> {
        let attempt = || match lacking(&key)? {
            None => Ok(()),
            Some(value) => match &self.renamed {
                Some(renamed) => renamed.set(&key, value),
                None => self.array().storage().set(&key, value),
            },
        };
        let result = if alone { attempt() } else { patiently(attempt) };
        let result = result.or_else(|error| {
            self.erase_leftover(&key).unwrap_or(Err(error))?;
            attempt()
        });
        result.map_err(|source| WriterError::Array(Error::Storage { doing, key, source }))
    }

    /// Erases the temporary of `key`, if the store has temporaries. The process that made it has died: one
    /// that lives takes less time.
    pub(super) fn erase_leftover(&self, key: &StoreKey) -> Option<Result<(), StorageError>> {
        let renamed = self.renamed.as_ref()?;
        let temporary = temporary_key(key);
        Some(temporary.and_then(|temporary| renamed.erase(&temporary)))
    }
}

/// Repeats `work` while it fails, for two seconds: another process may be doing the same. Returns its last
/// result.
pub(super) fn patiently<E>(work: impl Fn() -> Result<(), E>) -> Result<(), E> {
    const ATTEMPTS: usize = 20;
    for _ in 0..ATTEMPTS {
        if work().is_ok() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    work()
}

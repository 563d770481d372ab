//! Stores the metadata that OME-Zarr demands besides the arrays of the levels: the description in the group,
//! and the dimension names of level 0, which a stored level 0 may lack.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use zarrs::array::Array;
use zarrs::group::{Group, GroupCreateError};
use zarrs::node::meta_key_v3;
use zarrs_storage::{
    ReadableStorageTraits, ReadableWritableStorageTraits, StorageError, StoreKey,
    WritableStorageTraits,
};

use super::MultiscaleBuilder;
use super::made_from::{Note, Source};
use super::ome::with_made_from;
use super::plan::Plan;
use crate::error::Error;
use crate::metadata::json::Document;
use crate::metadata::stored::text_of_group;
use crate::metadata::temporary::{is_of_a_part, temporary_of};
use crate::store::temporary_keys::temporary_key;
use crate::writer::WriterError;
use crate::writer::stores::Renaming;

impl<TStorage> MultiscaleBuilder<TStorage>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
{
    /// Stores the description of the image, and the dimension names of level 0, unless the store has them
    /// already.
    pub(super) fn describe(&self, plan: &Plan<TStorage>) -> Result<(), WriterError> {
        let key = meta_key_v3(plan.group.path());
        let doing = "store the description of the image in";
        self.store(doing, key, plan.part, &|key| self.description(plan, key))?;
        let key = meta_key_v3(self.array.path());
        let doing = "store the names of the dimensions in";
        self.store(doing, key, plan.part, &|key| self.with_names(plan, key))
    }

    /// Returns the metadata of the group, with the description; `None` if the store has them already.
    fn description(
        &self,
        plan: &Plan<TStorage>,
        key: &StoreKey,
    ) -> Result<Option<Bytes>, StorageError> {
        let group = &plan.group;
        match Group::open(self.array.storage(), group.path().as_str()) {
            Ok(stored) if stored.metadata() == group.metadata() => return Ok(None),
            Ok(_) | Err(GroupCreateError::MissingMetadata) => {}
            // Another program has written metadata since the plan was made. They cannot be read, so they
            // stay.
            Err(error) => {
                let reason = format!("it cannot be read, and is not replaced: {error}");
                return Err(StorageError::InvalidMetadata(key.clone(), reason));
            }
        }
        text_of_group(group).map(Some)
    }

    /// Returns the files of level 0; `None` if the values of the store are not known to be files.
    pub(super) fn source(&self, plan: &Plan<TStorage>) -> Option<Source> {
        let array = plan.arrays[0].with_storage(Arc::new(()));
        Some(Source::new(
            self.settings.root.clone()?,
            array,
            &plan.levels[0],
        ))
    }

    /// Returns a function that notes in the description from which files the levels were made.
    pub(super) fn noting(&self, plan: &Plan<TStorage>) -> Note {
        let (storage, renaming) = (self.array.storage(), self.settings.renaming.clone());
        let group = plan.group.path().clone();
        let path = plan.arrays[0].path().as_str();
        let name = path
            .rsplit_once('/')
            .map_or(path, |(_, name)| name)
            .to_owned();
        Box::new(move |made_from| {
            let lacking = |_: &StoreKey| {
                let Ok(mut stored) = Group::open(storage.clone(), group.as_str()) else {
                    return Ok(None);
                };
                let before = stored.attributes().clone();
                match with_made_from(before.clone(), &name, made_from) {
                    Some(attributes) if attributes != before => {
                        *stored.attributes_mut() = attributes;
                        text_of_group(&stored).map(Some)
                    }
                    _ => Ok(None),
                }
            };
            let key = meta_key_v3(&group);
            let noted = store_if_lacking(&storage, renaming.as_deref(), &key, None, &lacking);
            if let Err(error) = noted {
                // The next call then makes the levels again.
                tracing::warn!(%key, %error, "the description of an image does not say what its levels were made from");
            }
        })
    }

    /// Returns the metadata of level 0 with its dimension names; `None` if they are stored already, or level
    /// 0 is not stored.
    fn with_names(
        &self,
        plan: &Plan<TStorage>,
        key: &StoreKey,
    ) -> Result<Option<Bytes>, StorageError> {
        let Some(stored) = self.array.storage().get(key)? else {
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

    /// Stores the value that `lacking` returns, if it returns one. Other processes may store the same value,
    /// if this process writes a `part`.
    fn store(
        &self,
        doing: &'static str,
        key: StoreKey,
        part: Option<u64>,
        lacking: &dyn Fn(&StoreKey) -> Result<Option<Bytes>, StorageError>,
    ) -> Result<(), WriterError> {
        let renaming = self.settings.renaming.as_deref();
        let result = store_if_lacking(&self.array.storage(), renaming, &key, part, lacking);
        result.map_err(|source| WriterError::Array(Error::Storage { doing, key, source }))
    }

    /// Erases the temporaries of metadata that killed processes left. A process that writes a part erases the
    /// temporaries of its part; otherwise those of all parts are erased. The caller has the leases of the
    /// levels.
    pub(super) fn erase_leftovers(&self, plan: &Plan<TStorage>) -> Result<(), WriterError> {
        let Some(renaming) = &self.settings.renaming else {
            return Ok(());
        };
        let writer = renaming.replacing(plan.part);
        let top = meta_key_v3(plan.arrays[0].path());
        let erase = |key: &StoreKey| {
            // The temporary of level 0 may belong to another process that appends to level 0.
            if *key != top {
                writer.erase(&temporary_key(key)?)?;
            }
            if plan.part.is_some() {
                return writer.erase(&temporary_of(key, plan.part)?);
            }
            let beside = renaming.listed().list_dir(&key.parent())?;
            let found = beside.keys().iter();
            let mut of_parts = found.filter(|found| is_of_a_part(found, key));
            of_parts.try_for_each(|found| writer.erase(found))
        };
        let arrays = plan.arrays.iter().map(Array::path);
        for path in std::iter::once(plan.group.path()).chain(arrays) {
            let key = meta_key_v3(path);
            let doing = "erase the temporaries of";
            erase(&key)
                .map_err(|source| WriterError::Array(Error::Storage { doing, key, source }))?;
        }
        Ok(())
    }
}

/// Stores the value that `lacking` returns, if it returns one: by a rename if there is `renaming`, and by
/// `storage` otherwise.
fn store_if_lacking<TStorage>(
    storage: &Arc<TStorage>,
    renaming: Option<&dyn Renaming<TStorage>>,
    key: &StoreKey,
    part: Option<u64>,
    lacking: &dyn Fn(&StoreKey) -> Result<Option<Bytes>, StorageError>,
) -> Result<(), StorageError>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
{
    let attempt = || match lacking(key)? {
        None => Ok(()),
        Some(value) => match renaming {
            Some(renaming) => renaming.replacing(part).set(key, value),
            None => storage.set(key, value),
        },
    };
    patiently(attempt).or_else(|error| match renaming {
        // A temporary that is still there after all attempts was left by a killed process.
        Some(renaming) if part.is_none() => {
            renaming.replacing(part).erase(&temporary_key(key)?)?;
            attempt()
        }
        _ => Err(error),
    })
}

/// Repeats `work` while it fails, for two seconds, because another process may be doing the same work.
/// Returns the last result of `work`.
pub(super) fn patiently<E>(work: impl Fn() -> Result<(), E>) -> Result<(), E> {
    const ATTEMPTS: usize = 20;
    const WAIT: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 100 });
    for _ in 0..ATTEMPTS {
        if work().is_ok() {
            return Ok(());
        }
        std::thread::sleep(WAIT);
    }
    work()
}

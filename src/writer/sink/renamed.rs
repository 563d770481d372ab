//! Stores shards that grow in a temporary beside their key, and are renamed when they are complete.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use zarrs::array::{Array, ArrayMetadata};
use zarrs::node::meta_key_v3;
use zarrs_storage::{
    AtomicRenameStorageTraits, ReadableStorageTraits, StorageError, StoreKey, WritableStorageTraits,
};

use super::ShardSink;
use crate::store::durable::Names;
use crate::store::temporary_keys::{set_anew, temporary_key};

/// Lets shards grow in temporaries of `store`, which are renamed when the shards are complete.
pub(crate) struct RenamedSink<S: ?Sized> {
    store: Arc<S>,
    /// The shards that were begun, and not completed or discarded.
    begun: Mutex<HashMap<StoreKey, Begun>>,
    /// The key of the array's metadata.
    metadata: StoreKey,
    /// The names of shards that are not synced yet; `None` if the values are no files, or the store syncs
    /// names.
    names: Option<Names>,
}

/// A shard of which pieces were written.
#[derive(Clone, Copy, Debug, Default)]
struct Begun {
    /// The end of the last of these pieces, in bytes.
    len: u64,
    /// Set before the temporary is renamed. From then on, the temporary may have been renamed.
    renaming: Option<Renaming>,
}

/// The state before the temporary was renamed.
#[derive(Clone, Copy, Debug)]
struct Renaming {
    /// The size of the shard that had this key before; `None` if there was none.
    before: Option<u64>,
}

impl<S> RenamedSink<S>
where
    S: ?Sized + AtomicRenameStorageTraits + ReadableStorageTraits + WritableStorageTraits,
{
    /// Makes a sink for the shards of `array`, whose storage is, or gives access to, `store`. `names` are the
    /// names of its files, if the store does not sync them.
    ///
    /// # Errors
    /// [`StorageError::Unsupported`] if the store cannot write parts of values, if the array has storage
    /// transformers, which `store` would bypass, or if `store` has other metadata of the array than its own
    /// storage; the errors of the store.
    pub(crate) fn of<T>(
        array: &Array<T>,
        store: Arc<S>,
        names: Option<Names>,
    ) -> Result<Self, StorageError>
    where
        T: ?Sized + ReadableStorageTraits,
    {
        if !store.supports_set_partial() {
            return Err(StorageError::Unsupported(
                "shards cannot grow in a store that cannot write parts of a value: leave out `with_atomic_rename`, so that they are stored whole".to_owned(),
            ));
        }
        if let ArrayMetadata::V3(metadata) = array.metadata()
            && !metadata.storage_transformers.is_empty()
        {
            return Err(StorageError::Unsupported(format!(
                "the array {} has storage transformers, which shards would bypass that grow in a store of their own: leave out `with_atomic_rename`",
                array.path()
            )));
        }
        let key = meta_key_v3(array.path());
        if array.storage().get(&key)? != store.get(&key)? {
            return Err(StorageError::Unsupported(format!(
                "{key} in the array's storage is not {key} in the store for `with_atomic_rename`: give it the store that the array is in, with the same root"
            )));
        }
        Ok(Self {
            store,
            begun: Mutex::default(),
            metadata: key,
            names,
        })
    }

    fn begun(&self) -> MutexGuard<'_, HashMap<StoreKey, Begun>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, key: &StoreKey) {
        if let Some(names) = &self.names {
            names.note(key);
        }
    }

    fn of_begun(&self, key: &StoreKey) -> Result<Begun, StorageError> {
        self.begun().get(key).copied().ok_or_else(|| {
            StorageError::Other(format!("cannot go on with {key}: nothing of it is written"))
        })
    }

    /// Checks that the temporary has at least `len` bytes, as many as were written to it. Another writer may
    /// have erased it as a leftover, and later pieces would make a shard with holes.
    fn check(&self, key: &StoreKey, temporary: &StoreKey, len: u64) -> Result<(), StorageError> {
        let size = self.store.size_key(temporary)?;
        if size.is_some_and(|size| size >= len) {
            return Ok(());
        }
        let now = size.map_or("is gone".to_owned(), |size| format!("has {size} bytes"));
        Err(StorageError::Other(format!(
            "{len} bytes of {key} were written to {temporary}, which {now}: another process writes this array, or cleans it. See to it that none does, and append these slices again"
        )))
    }

    /// Returns whether the temporary of `key` was renamed to `key`, although the store reported an error.
    /// Returns false if the shard had as many bytes `before` as now, because the sizes then do not tell.
    fn was_renamed(
        &self,
        key: &StoreKey,
        temporary: &StoreKey,
        before: Option<u64>,
        len: u64,
    ) -> bool {
        before != Some(len)
            && matches!(self.store.size_key(temporary), Ok(None))
            && matches!(self.store.size_key(key), Ok(Some(size)) if size == len)
    }
}

impl<S: ?Sized> fmt::Debug for RenamedSink<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenamedSink")
            .field("begun", &self.begun)
            .finish_non_exhaustive()
    }
}

impl<S> ShardSink for RenamedSink<S>
where
    S: ?Sized + AtomicRenameStorageTraits + ReadableStorageTraits + WritableStorageTraits,
{
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        let temporary = temporary_key(key)?;
        self.begun().remove(key);
        set_anew(&*self.store, &temporary, value)?;
        self.store.rename(&temporary, key)?;
        self.note(key);
        Ok(())
    }

    fn sync_names(&self) -> Result<(), StorageError> {
        self.note(&self.metadata);
        let synced = self.names.as_ref().map(Names::sync);
        Ok(synced.transpose().map(drop)?)
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.store.erase(key)?;
        self.note(key);
        // A killed writer may have left a temporary of this shard.
        self.discard(key)
    }

    fn write(
        &self,
        key: &StoreKey,
        mut pieces: Vec<(u64, Bytes)>,
        first: bool,
    ) -> Result<(), StorageError> {
        let temporary = temporary_key(key)?;
        let ends = pieces.iter().map(|(at, bytes)| {
            let len = u64::try_from(bytes.len()).ok();
            len.and_then(|len| at.checked_add(len))
        });
        let end = ends.max().unwrap_or(Some(0)).ok_or_else(|| {
            StorageError::Other(format!(
                "cannot write pieces of {key} that end behind 2^64 bytes"
            ))
        })?;
        if first {
            self.begun().insert(key.clone(), Begun::default());
            // Only `set` cuts off the bytes of a temporary that a killed writer left.
            let start = pieces.iter().position(|(at, _)| *at == 0);
            let start = start.map_or_else(Bytes::new, |start| pieces.remove(start).1);
            set_anew(&*self.store, &temporary, start)?;
        } else {
            self.check(key, &temporary, self.of_begun(key)?.len)?;
        }
        if !pieces.is_empty() {
            // One call writes all pieces, because a store may sync at the end of each call.
            self.store
                .set_partial_many(&temporary, Box::new(pieces.into_iter()))?;
        }
        let mut begun = self.begun();
        let begun = begun.entry(key.clone()).or_default();
        begun.len = begun.len.max(end);
        Ok(())
    }

    fn complete(&self, key: &StoreKey) -> Result<(), StorageError> {
        let temporary = temporary_key(key)?;
        let Begun { len, renaming } = self.of_begun(key)?;
        let was_renamed = |Renaming { before }| self.was_renamed(key, &temporary, before, len);
        if !renaming.is_some_and(was_renamed) {
            self.check(key, &temporary, len)?;
            let renaming = match renaming {
                Some(renaming) => renaming,
                None => Renaming {
                    before: self.store.size_key(key)?,
                },
            };
            if let Some(begun) = self.begun().get_mut(key) {
                begun.renaming = Some(renaming);
            }
            if let Err(error) = self.store.rename(&temporary, key)
                && !was_renamed(renaming)
            {
                return Err(error);
            }
        }
        self.begun().remove(key);
        self.note(key);
        Ok(())
    }

    fn discard(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.store.erase(&temporary_key(key)?)?;
        self.begun().remove(key);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use zarrs::array::{ArrayBuilder, data_type};
    use zarrs::filesystem::FilesystemStore;

    use super::super::super::interrupted::{Files, Step, files, interrupted, key, put, value};
    use super::*;
    use zarrs_cuda_testing::stores::faulty::{Faulty, Operation};

    type Sink = RenamedSink<Files>;

    const SHARD: &str = "a/c/0/1";
    const TEMPORARY: &str = "a/c/0/1.tmp";

    fn array_of<S: ReadableStorageTraits>(store: Arc<S>) -> Array<S> {
        ArrayBuilder::new(vec![4, 4], vec![2, 2], data_type::uint8(), 0u8)
            .build(store, "/a")
            .unwrap()
    }

    fn sink(store: &Arc<Files>) -> Sink {
        RenamedSink::of(&array_of(store.clone()), store.clone(), None).unwrap()
    }

    /// A shard that was there, and what a killed writer left of another, which is longer.
    fn prepare(store: &Files) {
        put(store, SHARD, "before");
        put(store, TEMPORARY, [b'x'; 100]);
    }

    fn piece(at: u64, bytes: &'static str) -> (u64, Bytes) {
        (at, Bytes::from_static(bytes.as_bytes()))
    }

    fn write(
        sink: &impl ShardSink,
        pieces: &[(u64, &'static str)],
        first: bool,
    ) -> Result<(), StorageError> {
        let pieces = pieces.iter().map(|(at, bytes)| piece(*at, bytes));
        sink.write(&key(SHARD), pieces.collect(), first)
    }

    /// Interrupted anywhere, `steps` end with `after` and without a temporary; until then the shard is
    /// what it was, or that.
    fn check(steps: &[Step<'_, Sink>], after: Option<&str>) {
        let is_shard = |store: &Files| {
            let now = value(store, SHARD);
            let now = now.map(|value| String::from_utf8(value).unwrap());
            assert!(
                now.as_deref() == Some("before") || now.as_deref() == after,
                "{now:?}"
            );
        };
        let end = interrupted(prepare, sink, steps, is_shard);
        let after = after.map(|after| (SHARD.to_owned(), after.as_bytes().to_vec()));
        assert_eq!(end.into_iter().collect::<Vec<_>>(), Vec::from_iter(after));
    }

    #[test]
    fn a_shard_grows_and_appears() {
        let begin: Step<Sink> = &|sink| write(sink, &[(4, "efgh"), (0, "abcd"), (10, "kl")], true);
        let middle: Step<Sink> = &|sink| write(sink, &[(8, "ij")], false);
        let end: Step<Sink> = &|sink| write(sink, &[(12, "mn"), (14, "op")], false);
        let complete: Step<Sink> = &|sink| sink.complete(&key(SHARD));
        check(&[begin, middle, end, complete], Some("abcdefghijklmnop"));
    }

    #[test]
    fn a_shard_grows_from_its_middle() {
        let begin: Step<Sink> = &|sink| write(sink, &[(2, "cd")], true);
        let end: Step<Sink> = &|sink| write(sink, &[(0, "ab")], false);
        let complete: Step<Sink> = &|sink| sink.complete(&key(SHARD));
        check(&[begin, end, complete], Some("abcd"));
    }

    #[test]
    fn a_shard_is_begun_again() {
        let begin: Step<Sink> = &|sink| write(sink, &[(0, "abcdef")], true);
        let again: Step<Sink> = &|sink| write(sink, &[(0, "ABC")], true);
        let complete: Step<Sink> = &|sink| sink.complete(&key(SHARD));
        check(&[begin, again, complete], Some("ABC"));
    }

    #[test]
    fn a_shard_is_set() {
        check(
            &[&|sink| sink.set(&key(SHARD), piece(0, "after").1)],
            Some("after"),
        );
    }

    #[test]
    fn a_shard_is_erased() {
        check(&[&|sink| sink.erase(&key(SHARD))], None);
    }

    #[test]
    fn a_shard_is_discarded() {
        let begin: Step<Sink> = &|sink| write(sink, &[(0, "abcdef")], true);
        check(&[begin, &|sink| sink.discard(&key(SHARD))], Some("before"));
    }

    /// Each call syncs on a filesystem.
    #[test]
    fn pieces_are_written_at_once() {
        let (_directory, store) = files();
        let sink = sink(&store);
        let operations = || {
            let requests = store.requests();
            store.work();
            requests.iter().map(|r| r.operation).collect::<Vec<_>>()
        };
        store.work();
        write(&sink, &[(0, "abcd")], true).unwrap();
        assert_eq!(operations(), [Operation::Erase, Operation::Set]);
        write(&sink, &[(0, "abcd"), (4, "e"), (5, "f")], true).unwrap();
        let begun = [Operation::Erase, Operation::Set, Operation::SetPartial];
        assert_eq!(operations(), begun);
        write(&sink, &[(6, "g"), (7, "h"), (8, "i")], false).unwrap();
        assert_eq!(operations(), [Operation::Size, Operation::SetPartial]);
        sink.complete(&key(SHARD)).unwrap();
        let complete = [Operation::Size, Operation::Size, Operation::Rename];
        assert_eq!(operations(), complete);
    }

    /// Nothing with holes appears.
    #[test]
    fn somebody_takes_the_temporary_away() {
        let refuses = |result: Result<(), StorageError>| {
            let error = result.unwrap_err().to_string();
            assert!(
                error.contains(TEMPORARY) && error.contains("another process"),
                "{error}"
            );
        };
        for again in [None, Some("ab")] {
            let (_directory, store) = files();
            prepare(&store);
            let sink = sink(&store);
            write(&sink, &[(0, "abcdef")], true).unwrap();
            match again {
                None => store.inner().erase(&key(TEMPORARY)).unwrap(),
                Some(value) => put(&store, TEMPORARY, value),
            }
            refuses(write(&sink, &[(6, "gh")], false));
            refuses(sink.complete(&key(SHARD)));
            assert_eq!(value(&store, SHARD).unwrap(), b"before");
            // From the start, it goes well.
            write(&sink, &[(0, "ABCDEF")], true).unwrap();
            sink.complete(&key(SHARD)).unwrap();
            assert_eq!(value(&store, SHARD).unwrap(), b"ABCDEF");
        }
    }

    /// The shard that was there has as many bytes as the one that does not appear.
    #[test]
    fn an_old_shard_is_not_taken_for_the_new_one() {
        let (_directory, store) = files();
        put(&store, SHARD, "before");
        let sink = sink(&store);
        write(&sink, &[(0, "after!")], true).unwrap();
        // Another process removes the temporary just before it is renamed.
        store.work();
        let taken = store.inner().clone();
        store.fail(move |request| {
            if request.operation == Operation::Rename {
                taken.erase(&key(TEMPORARY)).unwrap();
            }
            None
        });
        assert!(sink.complete(&key(SHARD)).is_err());
        store.work();
        assert!(sink.complete(&key(SHARD)).is_err());
        assert_eq!(value(&store, SHARD).unwrap(), b"before");
    }

    /// The length must not cover shards whose names may be gone after a power failure.
    #[cfg(unix)]
    #[test]
    fn names_that_are_not_synced_are_tried_again() {
        let (directory, store) = files();
        let names = Some(Names::new(directory.path().to_path_buf()));
        let array = array_of(store.clone());
        let sink = RenamedSink::of(&array, store.clone(), names).unwrap();
        sink.sync_names().unwrap();
        write(&sink, &[(0, "abc")], true).unwrap();
        sink.complete(&key(SHARD)).unwrap();
        // Opening the directory fails.
        let (place, aside) = (
            directory.path().join("a/c/0"),
            directory.path().join("aside"),
        );
        std::fs::rename(&place, &aside).unwrap();
        std::os::unix::fs::symlink(&place, &place).unwrap();
        for _ in 0..2 {
            assert!(sink.sync_names().is_err());
        }
        std::fs::remove_file(&place).unwrap();
        std::fs::rename(&aside, &place).unwrap();
        sink.sync_names().unwrap();
        // They are on the disk: they are not asked for again.
        std::fs::rename(&place, &aside).unwrap();
        std::os::unix::fs::symlink(&place, &place).unwrap();
        sink.sync_names().unwrap();
    }

    /// A link, a second name or a pipe where a temporary is to be.
    #[cfg(unix)]
    #[test]
    fn no_foreign_file_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let store = Arc::new(FilesystemStore::new(directory.path()).unwrap());
        let array = array_of(store.clone());
        let sink = RenamedSink::of(&array, store, None).unwrap();
        std::fs::create_dir_all(at("a/c/0")).unwrap();
        for (number, grows) in (0..8).map(|number| (number, number % 2 == 0)) {
            std::fs::write(at("foreign"), "theirs").unwrap();
            let way = number / 2;
            match way {
                0 => std::os::unix::fs::symlink(at("foreign"), at(TEMPORARY)).unwrap(),
                1 => std::fs::hard_link(at("foreign"), at(TEMPORARY)).unwrap(),
                2 => {
                    let mut command = std::process::Command::new("mkfifo");
                    assert!(command.arg(at(TEMPORARY)).status().unwrap().success());
                }
                _ => std::os::unix::fs::symlink(at("nothing"), at(TEMPORARY)).unwrap(),
            }
            if grows {
                write(&sink, &[(0, "abc")], true).unwrap();
                sink.complete(&key(SHARD)).unwrap();
            } else {
                sink.set(&key(SHARD), piece(0, "abc").1).unwrap();
            }
            assert_eq!(std::fs::read(at("foreign")).unwrap(), b"theirs", "{way}");
            assert_eq!(std::fs::read(at(SHARD)).unwrap(), b"abc");
            assert!(!at("nothing").exists());
            assert!(std::fs::symlink_metadata(at(SHARD)).unwrap().is_file());
        }
    }

    #[test]
    fn what_was_not_begun_does_not_go_on() {
        let (_directory, store) = files();
        prepare(&store);
        let sink = sink(&store);
        assert!(write(&sink, &[(0, "abc")], false).is_err());
        assert!(sink.complete(&key(SHARD)).is_err());
        write(&sink, &[(0, "abc")], true).unwrap();
        sink.complete(&key(SHARD)).unwrap();
        assert!(sink.complete(&key(SHARD)).is_err());
        assert_eq!(value(&store, SHARD).unwrap(), b"abc");
    }

    #[test]
    fn stores_that_will_not_do() {
        let refusal = |sink: Result<Sink, StorageError>| match sink {
            Err(StorageError::Unsupported(reason)) => reason,
            other => panic!("{other:?}"),
        };
        let (directory, store) = files();
        let array = array_of(store.clone());
        array.store_metadata().unwrap();
        assert!(RenamedSink::of(&array, store.clone(), None).is_ok());

        let whole = Arc::new(Faulty::new(store.inner().clone()).without_parts());
        assert!(refusal(RenamedSink::of(&array, whole, None)).contains("parts of a value"));

        let other = FilesystemStore::new(directory.path().join("a")).unwrap();
        let other = Arc::new(Faulty::new(Arc::new(other)));
        assert!(refusal(RenamedSink::of(&array, other, None)).contains("a/zarr.json"));

        let mut metadata = serde_json::to_value(array.metadata()).unwrap();
        metadata["storage_transformers"] = json!([{ "name": "one", "must_understand": false }]);
        let metadata = serde_json::from_value(metadata).unwrap();
        let array = Array::new_with_metadata(store.clone(), "/a", metadata).unwrap();
        assert!(refusal(RenamedSink::of(&array, store, None)).contains("storage transformers"));
    }
}

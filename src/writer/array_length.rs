//! The length of an array in its stored metadata.

use std::cell::Cell;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use zarrs::array::{Array, ArrayMetadata};
use zarrs::node::meta_key_v3;
use zarrs_storage::{
    AtomicRenameStorageTraits, ReadableStorage, ReadableStorageTraits,
    ReadableWritableStorageTraits, StorageError, StorageHandle, StoreKey, WritableStorageTraits,
};

use super::sink::Length;
use super::storing::caught;
use crate::metadata::json::Document;
use crate::metadata::same_array::stored_differs;
use crate::metadata::stored::{MetadataStore, Replacement, Seen, text_of_array};
use crate::metadata::temporary::{comparing, temporary_of};
use crate::store::conditional::ConditionalStore;

/// Reads and changes the length of an array in the `zarr.json` of its store.
///
/// The file is read again whenever the array grows, and only the length in it is changed. All other metadata,
/// also those that another process has added meanwhile, stay. If the file has bytes that this writer has
/// neither read nor written before, the file must still describe the same array.
pub(super) struct ArrayLength {
    key: StoreKey,
    /// The key of the temporary, if new metadata are written to a temporary that is renamed.
    temporary: Option<StoreKey>,
    /// The array's own description, which is stored if the store has no `zarr.json` yet.
    own: Bytes,
    /// The extents of the array along all axes but the first.
    inner: Vec<u64>,
    metadata: MetadataStore,
    /// The writer's knowledge of the stored metadata. The lock is held while the metadata change.
    state: Mutex<State>,
}

/// The number of attempts to change the metadata while other processes change them.
const ATTEMPTS: usize = 10;

/// The stored metadata, as far as the writer knows them.
#[derive(Debug, Default)]
struct State {
    /// The metadata that this writer last tried to store, in vain: part of them may be stored.
    attempted: Option<Bytes>,
    /// The number of slices that this writer last saw or stored; `None` if other processes may change it.
    known: Option<u64>,
    /// The number of slices in metadata that the store refused by an error, and may have stored nevertheless.
    tried: Option<u64>,
    /// The metadata that this writer last read or stored.
    last: Option<Bytes>,
}

impl fmt::Debug for ArrayLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrayLength")
            .field("key", &self.key)
            .field("temporary", &self.temporary)
            .finish_non_exhaustive()
    }
}

impl ArrayLength {
    /// Returns the length of `array` in its own storage: metadata are replaced by one `set`, as zarrs does.
    ///
    /// # Errors
    /// [`StorageError::Unsupported`] for an array of Zarr V2; the error of a storage transformer.
    pub(super) fn of<T>(array: &Array<T>) -> Result<Self, StorageError>
    where
        T: ?Sized + ReadableWritableStorageTraits + 'static,
    {
        let writer = Arc::new(StorageHandle::new(array.storage()));
        let writer = array
            .storage_transformers()
            .create_writable_transformer(writer)?;
        // zarrs does not pass metadata through the array's storage transformers.
        let writer = Replacement::Whole(writer);
        Self::new(array, array.storage().readable(), writer, None)
    }

    /// Returns the length of `array` in `store`: metadata are written to a temporary, which is renamed. Each
    /// process that writes a `part` of the array has a temporary of its own.
    ///
    /// # Errors
    /// [`StorageError::Unsupported`] for an array of Zarr V2.
    pub(super) fn renamed<T, S>(
        array: &Array<T>,
        store: Arc<S>,
        part: Option<u64>,
    ) -> Result<Self, StorageError>
    where
        T: ?Sized,
        S: AtomicRenameStorageTraits + ReadableStorageTraits + WritableStorageTraits + 'static,
    {
        let temporary = temporary_of(&meta_key_v3(array.path()), part)?;
        let writer = Replacement::Renamed(comparing(store.clone(), part));
        Self::new(array, store, writer, Some(temporary))
    }

    /// Returns the length of `array` in `store`, whose requests may have conditions. `store` is the array's
    /// storage.
    ///
    /// # Errors
    /// [`StorageError::Unsupported`] for an array of Zarr V2, and if `store` has other metadata of the array;
    /// the errors of the store.
    pub(super) fn conditional<T>(
        array: &Array<T>,
        store: Arc<dyn ConditionalStore>,
    ) -> Result<Self, StorageError>
    where
        T: ?Sized + ReadableWritableStorageTraits + 'static,
    {
        if let ArrayMetadata::V3(metadata) = array.metadata()
            && !metadata.storage_transformers.is_empty()
        {
            return Self::of(array);
        }
        let reader = array.storage().readable();
        let key = meta_key_v3(array.path());
        let stored = match store.get_with_version(&key) {
            Err(StorageError::Unsupported(_)) => return Self::of(array),
            stored => stored?.map(|(bytes, _)| bytes),
        };
        if stored != reader.get(&key)? {
            return Err(StorageError::Unsupported(format!(
                "{key} in the array's storage is not {key} in the store for `with_conditional_writes`: give it the store that the array is in, with the same root"
            )));
        }
        Self::new(array, reader, Replacement::Conditional(store), None)
    }

    fn new<T: ?Sized>(
        array: &Array<T>,
        reader: ReadableStorage,
        writer: Replacement,
        temporary: Option<StoreKey>,
    ) -> Result<Self, StorageError> {
        let key = meta_key_v3(array.path());
        if let ArrayMetadata::V2(_) = array.metadata() {
            return Err(StorageError::Unsupported(format!(
                "the array {} is one of Zarr V2, which has no shards",
                array.path()
            )));
        }
        let own = text_of_array(array)?;
        Ok(Self {
            key,
            temporary,
            own,
            inner: array.shape().iter().skip(1).copied().collect(),
            metadata: MetadataStore { reader, writer },
            state: Mutex::default(),
        })
    }

    /// Lets every later change check whether another process has changed the number of slices. The stored
    /// array has `slices` slices now, or is not stored yet.
    pub(super) fn know(&self, slices: u64) {
        self.state().known = Some(slices);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that no other process has changed the number of slices, which is `found` in the stored
    /// metadata.
    fn check(&self, state: &State, found: u64) -> Result<(), StorageError> {
        match state.known {
            Some(known) if found != known && state.tried != Some(found) => {
                Err(StorageError::Other(format!(
                    "{} says that the array has {found} slices, and this writer left it with {known}: another process resizes the array or appends to it at the same time, and slices from {known} on may be those of either. Stop one of the two, `abort` this writer, open the array again, and write these slices once more",
                    self.key
                )))
            }
            _ => Ok(()),
        }
    }

    /// Erases the temporary that a failed attempt left, if its value is `attempted` or the beginning of
    /// `attempted`.
    fn erase_own(&self, attempted: &mut Option<Bytes>) -> Result<(), StorageError> {
        if let (Some(temporary), Some(attempted)) = (&self.temporary, &*attempted)
            && let Some(found) = self.metadata.reader.get(temporary)?
            && attempted.starts_with(&found)
        {
            self.metadata.writer.erase(temporary)?;
        }
        *attempted = None;
        Ok(())
    }

    /// Replaces the metadata `before` by `metadata`. If the store fails, `metadata` stay in `attempted`.
    /// Returns whether they were stored: not if the store no longer had `before`.
    fn store(
        &self,
        attempted: &mut Option<Bytes>,
        before: Option<&Seen>,
        metadata: Bytes,
    ) -> Result<bool, StorageError> {
        self.erase_own(attempted)?;
        self.is_free()?;
        *attempted = Some(metadata.clone());
        let stored = self.metadata.writer.replace(&self.key, before, metadata)?;
        *attempted = None;
        Ok(stored)
    }

    fn is_free(&self) -> Result<(), StorageError> {
        match &self.temporary {
            Some(temporary) if self.metadata.reader.size_key(temporary)?.is_some() => {
                Err(StorageError::Other(format!(
                    "cannot store {}: {temporary} is there, so another process is about to replace the metadata of this array, or died when it was. If none is, erase {temporary}; then try again",
                    self.key
                )))
            }
            _ => Ok(()),
        }
    }

    /// Returns `metadata` with the first extent of the shape that `change` makes of its present first extent,
    /// and the new extent. The metadata are `None` if the extent stays the same.
    fn with_length(
        &self,
        metadata: &[u8],
        change: &dyn Fn(u64) -> Result<u64, StorageError>,
    ) -> Result<(Option<String>, u64), StorageError> {
        let invalid = |reason: String| StorageError::InvalidMetadata(self.key.clone(), reason);
        let document = Document::parse(metadata).map_err(invalid)?;
        let shape = document.elements("shape").map_err(invalid)?;
        let extents = shape.iter().map(|extent| extent.parse().ok());
        let Some(extents) = extents.collect::<Option<Vec<u64>>>() else {
            return Err(invalid("its shape is not one of whole numbers".to_owned()));
        };
        let ([first, ..], [extent, inner @ ..]) = (&shape[..], &extents[..]) else {
            return Err(invalid("its shape has no axes".to_owned()));
        };
        if inner != self.inner {
            return Err(invalid(format!(
                "its shape is {extents:?}, and slices of {:?} are being appended: another array was stored in its place",
                self.inner
            )));
        }
        let slices = change(*extent)?;
        let changed = (*extent != slices).then(|| document.with_part(first, &slices.to_string()));
        Ok((changed.flatten(), slices))
    }

    /// Replaces the first extent of the stored shape by the extent that `change` makes of it.
    fn change(&self, change: &dyn Fn(u64) -> u64) -> Result<(), StorageError> {
        let mut state = self.state();
        for _ in 0..ATTEMPTS {
            if self.try_change(&mut state, change)? {
                return Ok(());
            }
            tracing::debug!(key = %self.key, "another process has changed the metadata meanwhile");
        }
        Err(StorageError::Other(format!(
            "{} was changed by another process each of {ATTEMPTS} times that it was about to be replaced: let the process end, and try again",
            self.key
        )))
    }

    /// Makes one attempt of [`change`](Self::change). Returns whether the metadata are stored. If not,
    /// another process has changed them meanwhile, or the stored value was torn.
    fn try_change(
        &self,
        state: &mut State,
        change: &dyn Fn(u64) -> u64,
    ) -> Result<bool, StorageError> {
        let stored = self.metadata.read(&self.key)?;
        let base = match (&state.attempted, &stored) {
            // A torn value is completed first, so that it is never taken for the beginning of an older
            // attempt.
            (Some(whole), Some(torn)) if is_torn(&torn.bytes, whole) => {
                let whole = whole.clone();
                self.store(&mut state.attempted, stored.as_ref(), whole)?;
                return Ok(false); // the caller reads the metadata again
            }
            (_, Some(stored)) => stored.bytes.clone(),
            (Some(attempted), None) => attempted.clone(),
            (None, None) => self.own.clone(),
        };
        let is_stored = stored.is_some();
        if is_stored {
            self.check_array(state, &base)?;
        }
        let found = Cell::new(None);
        let checked = |extent| {
            if is_stored {
                self.check(state, extent)?;
                found.set(Some(extent));
            }
            Ok(change(extent))
        };
        let (changed, slices) = self.with_length(&base, &checked)?;
        let changed = match changed {
            Some(changed) => Some(Bytes::from(changed)),
            None if !is_stored => Some(base.clone()),
            None => None,
        };
        state.known = state.known.map(|known| found.get().unwrap_or(known));
        state.last = Some(base.clone());
        state.tried = Some(slices);
        match changed {
            Some(changed) => {
                if !self.store(&mut state.attempted, stored.as_ref(), changed.clone())? {
                    state.tried = None;
                    return Ok(false);
                }
                state.last = Some(changed);
            }
            None => self.erase_own(&mut state.attempted)?,
        }
        state.known = state.known.map(|_| slices);
        state.tried = None;
        Ok(true)
    }

    /// Checks that the metadata `now` describe the same array as the metadata that were last read or stored.
    fn check_array(&self, state: &State, now: &Bytes) -> Result<(), StorageError> {
        let Some(last) = state.last.as_ref().filter(|last| *last != now) else {
            return Ok(());
        };
        match stored_differs(last, now) {
            None => Ok(()),
            Some(member) => Err(StorageError::InvalidMetadata(
                self.key.clone(),
                format!(
                    "another process has changed its {member} while slices are being appended: another array was stored in its place. `abort` this writer, and open the array again"
                ),
            )),
        }
    }
}

/// Returns whether `value` is only the beginning of `whole`.
fn is_torn(value: &Bytes, whole: &Bytes) -> bool {
    value.len() < whole.len() && whole.starts_with(value)
}

/// Erases the temporary that a failed attempt left.
impl Drop for ArrayLength {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let mut attempted = state
            .unwrap_or_else(PoisonError::into_inner)
            .attempted
            .take();
        // A panic of the store must not end a thread that drops the writer.
        if let Err(error) = caught(|| self.erase_own(&mut attempted)) {
            tracing::warn!(key = %self.key, %error, "the temporary of metadata was left behind");
        }
    }
}

impl Length for ArrayLength {
    fn stored(&self) -> Result<Option<u64>, StorageError> {
        let Some(stored) = self.metadata.reader.get(&self.key)? else {
            return Ok(None);
        };
        self.state().last.get_or_insert_with(|| stored.clone());
        let invalid = |reason| StorageError::InvalidMetadata(self.key.clone(), reason);
        let document = Document::parse(&stored).map_err(invalid)?;
        let shape = document.elements("shape").map_err(invalid)?;
        let first = shape.first().and_then(|extent| extent.parse().ok());
        let first =
            first.ok_or_else(|| invalid("its shape does not begin with a whole number".to_owned()));
        first.map(Some)
    }

    fn expect(&self, slices: u64) -> Result<(), StorageError> {
        let found = self.stored()?.unwrap_or(slices);
        self.know(slices);
        self.check(&self.state(), found)
    }

    fn grow(&self, slices: u64) -> Result<(), StorageError> {
        self.change(&|extent| extent.max(slices))
    }

    fn cut(&self, slices: u64) -> Result<(), StorageError> {
        self.change(&|extent| extent.min(slices))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use zarrs::array::{ArrayBuilder, data_type};
    use zarrs::storage::store::MemoryStore;

    use super::super::interrupted::{Files, files, interrupted, key, put, snapshot, value};
    use super::*;
    use crate::store::conditional::in_memory::{Conditions, Objects};
    use zarrs_cuda_testing::stores::faulty::{Fault, Operation};

    const KEY: &str = "a/zarr.json";
    const TEMPORARY: &str = "a/zarr.json.tmp";

    /// Unusual, but legal.
    const METADATA: &str = r#" {"zarr_format" :3,"attributes":{"shape":[7],"n":123456789012345678901234567890,
        "x": 1.10, "e": 1E+2, "\u00e9": "\u00e9"},  "shape" : [ 6
        , 5 ], "later": {"must_understand": false, "shape": [6,5]} } "#;

    fn array<S: ReadableStorageTraits>(store: Arc<S>) -> Array<S> {
        let mut builder = ArrayBuilder::new(vec![6, 5], vec![2, 5], data_type::uint8(), 0u8);
        let attributes = json!({ "made by": "a test" });
        let attributes = attributes.as_object().unwrap().clone();
        builder.attributes(attributes).build(store, "/a").unwrap()
    }

    fn renamed(store: &Arc<Files>) -> ArrayLength {
        ArrayLength::renamed(&array(store.clone()), store.clone(), None).unwrap()
    }

    fn whole(store: &Arc<Files>) -> ArrayLength {
        ArrayLength::of(&array(store.clone())).unwrap()
    }

    const BOTH: [fn(&Arc<Files>) -> ArrayLength; 2] = [renamed, whole];

    fn stored(store: &Files) -> String {
        String::from_utf8(value(store, KEY).unwrap()).unwrap()
    }

    fn with_shape(extent: u64) -> String {
        METADATA.replace("[ 6\n", &format!("[ {extent}\n"))
    }

    #[test]
    fn one_number_changes() {
        for make in BOTH {
            let (_directory, store) = files();
            put(&store, KEY, METADATA);
            let length = make(&store);
            for slices in [8, 9, 10, 1_000_000, u64::MAX] {
                length.grow(slices).unwrap();
                assert_ne!(with_shape(slices), METADATA);
                assert_eq!(stored(&store), with_shape(slices));
            }
            assert_eq!(snapshot(&store).len(), 1);
        }
    }

    #[test]
    fn it_never_shrinks() {
        for make in BOTH {
            let (_directory, store) = files();
            put(&store, KEY, METADATA);
            let length = make(&store);
            store.work();
            for slices in [0, 5, 6] {
                length.grow(slices).unwrap();
            }
            let is_read = |operation| matches!(operation, Operation::Get | Operation::Size);
            assert!(store.requests().iter().all(|r| is_read(r.operation)));
            assert_eq!(stored(&store), METADATA);
        }
    }

    #[test]
    fn what_is_added_meanwhile_stays() {
        for make in BOTH {
            let (_directory, store) = files();
            put(&store, KEY, METADATA);
            let length = make(&store);
            length.grow(7).unwrap();
            let edited = stored(&store).replace("\"x\"", "\"added\": true, \"x\"");
            put(&store, KEY, &edited);
            length.grow(12).unwrap();
            assert_eq!(stored(&store), edited.replace("[ 7\n", "[ 12\n"));
        }
    }

    /// zarr-python's `append` and `resize`, or another writer.
    #[test]
    fn another_process_changes_the_length() {
        for make in BOTH {
            for other in [5, 8, 100] {
                let (_directory, store) = files();
                put(&store, KEY, METADATA);
                let length = make(&store);
                length.know(6);
                length.grow(7).unwrap();
                // Other edits stay.
                let edited = stored(&store).replace("\"x\"", "\"added\": true, \"x\"");
                put(&store, KEY, &edited);
                length.grow(9).unwrap();
                assert_eq!(stored(&store), edited.replace("[ 7\n", "[ 9\n"));
                let theirs = stored(&store).replace("[ 9\n", &format!("[ {other}\n"));
                put(&store, KEY, &theirs);
                for _ in 0..2 {
                    let error = length.grow(10).unwrap_err().to_string();
                    let both = [format!("has {other} slices"), "with 9: another".to_owned()];
                    assert!(both.iter().all(|part| error.contains(part)), "{error}");
                    assert!(length.cut(2).is_err());
                    assert_eq!(stored(&store), theirs);
                }
                assert_eq!(snapshot(&store).len(), 1);
                // Where several processes write, each lets the array grow.
                make(&store).grow(200).unwrap();
                assert_eq!(
                    stored(&store),
                    theirs.replace(&format!("[ {other}\n"), "[ 200\n")
                );
            }
        }
    }

    /// The temporary takes its time, and another process replaces the metadata meanwhile.
    #[test]
    fn a_change_while_the_temporary_is_written() {
        let edited = METADATA.replace("\"x\"", "\"added\": true, \"x\"");
        let resized = with_shape(8);
        for (theirs, is_kept) in [(edited, true), (resized, false)] {
            let (_directory, store) = files();
            put(&store, KEY, METADATA);
            let length = renamed(&store);
            length.know(6);
            let (inner, value) = (store.inner().clone(), theirs.clone());
            let mut is_done = false;
            store.fail(move |request| {
                let is_temporary = request.key == TEMPORARY;
                if is_temporary && request.operation == Operation::Set && !is_done {
                    is_done = true;
                    inner.set(&key(KEY), value.clone().into()).unwrap();
                }
                None
            });
            let grown = length.grow(7);
            if is_kept {
                grown.unwrap();
                assert_eq!(stored(&store), theirs.replace("[ 6\n", "[ 7\n"));
            } else {
                let error = grown.unwrap_err().to_string();
                assert!(error.contains("has 8 slices"), "{error}");
                assert_eq!(stored(&store), theirs);
            }
            assert_eq!(snapshot(&store).len(), 1);
        }
    }

    #[test]
    fn a_process_that_never_ends_to_change_the_metadata() {
        let (_directory, store) = files();
        put(&store, KEY, METADATA);
        let length = renamed(&store);
        let inner = store.inner().clone();
        let mut number = 0;
        store.fail(move |request| {
            if request.key == TEMPORARY && request.operation == Operation::Set {
                number += 1;
                let edited = METADATA.replace("1.10", &number.to_string());
                inner.set(&key(KEY), edited.into()).unwrap();
            }
            None
        });
        let error = length.grow(7).unwrap_err().to_string();
        assert!(error.contains("changed by another process"), "{error}");
        assert_eq!(snapshot(&store).len(), 1);
        store.work();
        length.grow(7).unwrap();
        assert!(stored(&store).contains("[ 7\n"));
    }

    /// Another array of the same shape, which another process stores.
    #[test]
    fn another_array_is_stored_in_its_place() {
        for make in BOTH {
            let (_directory, store) = files();
            let length = make(&store);
            length.grow(7).unwrap();
            let ours = stored(&store);
            let spelled = ours.replace("\"made by\"", "\"also made by\"");
            assert_ne!(spelled, ours);
            put(&store, KEY, &spelled);
            length.grow(8).unwrap();
            let mut theirs: serde_json::Value = serde_json::from_str(&stored(&store)).unwrap();
            theirs["data_type"] = "int8".into();
            let theirs = theirs.to_string();
            put(&store, KEY, &theirs);
            for _ in 0..2 {
                let error = length.grow(9).unwrap_err().to_string();
                assert!(error.contains("changed its data type"), "{error}");
                assert_eq!(stored(&store), theirs);
            }
        }
    }

    /// On objects no change is lost, at whatever moment it comes.
    #[test]
    fn objects_are_replaced_by_their_versions() {
        for conditions in [Conditions::Obeyed, Conditions::Ignored, Conditions::Refused] {
            let store = Objects::new(conditions);
            let of = || {
                let array = array(store.clone());
                ArrayLength::conditional(&array, store.clone()).unwrap()
            };
            let text =
                || String::from_utf8(store.get(&key(KEY)).unwrap().unwrap().to_vec()).unwrap();
            of().grow(7).unwrap();
            assert!(text().contains("\"shape\""));
            store.set(&key(KEY), METADATA.into()).unwrap();
            let length = of();
            length.know(6);
            length.grow(9).unwrap();
            assert_eq!(text(), with_shape(9));
            if conditions == Conditions::Obeyed {
                let seen = length.metadata.read(&length.key).unwrap().unwrap();
                let edited = text().replace("1.10", "2");
                store.set(&key(KEY), edited.clone().into()).unwrap();
                let stale = length
                    .metadata
                    .writer
                    .replace(&key(KEY), Some(&seen), "lost".into());
                assert!(!stale.unwrap());
                assert_eq!(text(), edited);
            }
            length.grow(10).unwrap();
            store.set(&key(KEY), with_shape(12).into()).unwrap();
            assert!(length.grow(13).is_err());
            assert_eq!(text(), with_shape(12));
        }
        // Another store is found.
        let (one, other) = (
            Objects::new(Conditions::Obeyed),
            Objects::new(Conditions::Obeyed),
        );
        one.set(&key(KEY), METADATA.into()).unwrap();
        assert!(ArrayLength::conditional(&array(one), other).is_err());
    }

    /// A store may have done what it reported as an error.
    #[test]
    fn a_failed_change_is_no_other_process() {
        for fault in Fault::ALL {
            for (make, number) in BOTH
                .into_iter()
                .flat_map(|make| (0..6).map(move |n| (make, n)))
            {
                let (_directory, store) = files();
                put(&store, KEY, METADATA);
                let length = make(&store);
                length.know(6);
                store.fail_at(number, fault);
                let _ = length.grow(1000);
                store.work();
                length.grow(20_000).unwrap();
                length.grow(30_000).unwrap();
                assert_eq!(stored(&store), with_shape(30_000), "{fault:?} {number}");
            }
        }
    }

    #[test]
    fn an_array_that_is_not_stored_yet() {
        for make in BOTH {
            for (slices, extent) in [(0, 6), (6, 6), (11, 11)] {
                let (_directory, store) = files();
                make(&store).grow(slices).unwrap();
                let mut expected = array(Arc::new(MemoryStore::new()));
                expected.set_shape(vec![extent, 5]).unwrap();
                expected.store_metadata().unwrap();
                let expected = expected.storage().get(&key(KEY)).unwrap().unwrap();
                assert_eq!(stored(&store).as_bytes(), expected);
                let opened = Array::open(store.inner().clone(), "/a").unwrap();
                assert_eq!(opened.shape(), [extent, 5]);
                assert_eq!(opened.attributes()["made by"], "a test");
            }
        }
    }

    #[test]
    fn interrupted_anywhere() {
        for prepared in [None, Some(METADATA)] {
            let prepare = |store: &Files| {
                if let Some(metadata) = prepared {
                    put(store, KEY, metadata);
                }
            };
            let shape = |store: &Files| {
                let stored = value(store, KEY)?;
                let stored: serde_json::Value = serde_json::from_slice(&stored).unwrap();
                stored["shape"][0].as_u64()
            };
            let is_before_or_after = |store: &Files| match shape(store) {
                Some(slices) => assert!([6, 7, 12345].contains(&slices), "{slices}"),
                None => assert_eq!(prepared, None),
            };
            // Without renaming a store may be left with a part of it.
            let checks: [&dyn Fn(&Files); 2] = [&is_before_or_after, &|_| {}];
            for (make, check) in BOTH.into_iter().zip(checks) {
                let end = interrupted(
                    prepare,
                    make,
                    &[&|length| length.grow(7), &|length| length.grow(12345)],
                    check,
                );
                assert_eq!(end.keys().collect::<Vec<_>>(), [KEY]);
                if prepared.is_some() {
                    assert_eq!(end[KEY], with_shape(12345).as_bytes());
                }
            }
        }
    }

    /// Steps that failed are not repeated: the array grows further each time.
    #[test]
    fn interrupted_twice_and_then_grown_further() {
        let faults = || {
            let numbers = |fault| (0..8).map(move |number| (fault, number));
            Fault::ALL.into_iter().flat_map(numbers)
        };
        let pairs = || faults().flat_map(|first| faults().map(move |second| (first, second)));
        // Half of the metadata ends before the shape; half of the padded metadata ends behind it.
        for padding in [0, 600] {
            let padded = |slices| {
                let later = format!(r#"{:padding$}"later""#, "");
                with_shape(slices).replace(r#""later""#, &later)
            };
            for (make, (first, second)) in BOTH
                .into_iter()
                .flat_map(|make| pairs().map(move |pair| (make, pair)))
            {
                let (_directory, store) = files();
                put(&store, KEY, padded(6));
                let length = make(&store);
                length.know(6);
                store.fail_at(first.1, first.0);
                let _ = length.grow(1000);
                store.fail_at(second.1, second.0);
                let _ = length.grow(20_000);
                store.work();
                length.grow(20).unwrap();
                let grown = stored(&store);
                assert!([20, 1000, 20_000].map(padded).contains(&grown), "{grown}");
                length.grow(30_000).unwrap();
                assert_eq!(stored(&store), padded(30_000));
                assert_eq!(snapshot(&store).len(), 1, "{first:?} {second:?}");
            }
        }
    }

    #[test]
    fn an_attempt_leaves_nothing_behind() {
        for fault in [Fault::Refused, Fault::Torn] {
            let (_directory, store) = files();
            put(&store, KEY, METADATA);
            let length = renamed(&store);
            let fails = |operation| matches!(operation, Operation::Set | Operation::Rename);
            store.fail(move |request| fails(request.operation).then_some(fault));
            assert!(length.grow(8).is_err());
            assert_eq!(value(&store, TEMPORARY).is_some(), fault == Fault::Torn);
            drop(length);
            assert_eq!(value(&store, TEMPORARY), None);
            assert_eq!(stored(&store), METADATA);
        }
    }

    #[test]
    fn a_temporary_of_somebody_else() {
        let (_directory, store) = files();
        put(&store, KEY, METADATA);
        let length = renamed(&store);
        length.grow(7).unwrap();
        put(&store, TEMPORARY, "{\"zarr_format\": 3");
        for _ in 0..2 {
            let error = length.grow(8).unwrap_err().to_string();
            assert!(error.contains("erase a/zarr.json.tmp"), "{error}");
        }
        assert_eq!(stored(&store), with_shape(7));
        assert!(value(&store, TEMPORARY).is_some());
        store.inner().erase(&key(TEMPORARY)).unwrap();
        length.grow(8).unwrap();
        assert_eq!(stored(&store), with_shape(8));
    }

    /// A link that leads to nothing, where the temporary is to be.
    #[cfg(unix)]
    #[test]
    fn no_foreign_file_is_made() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let store = Arc::new(zarrs::filesystem::FilesystemStore::new(directory.path()).unwrap());
        std::fs::create_dir(at("a")).unwrap();
        std::fs::write(at(KEY), METADATA).unwrap();
        for part in [None, Some(3)] {
            let length = ArrayLength::renamed(&array(store.clone()), store.clone(), part).unwrap();
            let temporary = temporary_of(&key(KEY), part).unwrap();
            std::os::unix::fs::symlink(at("foreign"), at(temporary.as_str())).unwrap();
            length.grow(7 + part.unwrap_or(0)).unwrap();
            assert!(!at("foreign").exists());
            assert!(std::fs::symlink_metadata(at(KEY)).unwrap().is_file());
        }
    }

    #[test]
    fn something_else_is_stored_there() {
        for other in [
            "",
            "{",
            "\u{feff}{}",
            r#"{"zarr_format":3,"node_type":"group"}"#,
            r#"{"shape":[]}"#,
            r#"{"shape":[6]}"#,
            r#"{"shape":[6,4]}"#,
            r#"{"shape":[6,5,1]}"#,
            r#"{"shape":[6.0,5]}"#,
            r#"{"shape":[-6,5]}"#,
            r#"{"shape":"[6,5]"}"#,
        ] {
            for make in BOTH {
                let (_directory, store) = files();
                put(&store, KEY, other);
                let error = make(&store).grow(8).unwrap_err();
                assert!(
                    matches!(error, StorageError::InvalidMetadata(..)),
                    "{error}"
                );
                assert_eq!(stored(&store), other);
                assert_eq!(snapshot(&store).len(), 1);
            }
        }
    }
}

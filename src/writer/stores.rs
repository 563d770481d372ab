//! The ways to the store of a writer: where shards go, and where the array's length is kept.

use std::sync::Arc;

use zarrs::array::Array;
use zarrs_storage::{
    AtomicRenameStorageTraits, ListableStorage, ListableStorageTraits, ReadableStorageTraits,
    ReadableWritableStorageTraits, StorageError, WritableStorage, WritableStorageTraits,
};

use super::array_length::ArrayLength;
use super::error::{WriterError, unsupported};
use super::leftovers;
use super::sink::{Length, RenamedSink, ShardSink, WholeSink};
use crate::metadata::temporary::replacing;
use crate::store::conditional::ConditionalStore;
use crate::store::durable::Names;

/// Where shards go, and where the array's length is kept.
pub(crate) type Stores = (Box<dyn ShardSink>, Arc<dyn Length>);

/// A writer that extends its array.
#[derive(Clone, Copy)]
pub(crate) struct Extends {
    /// The index of the first new shard epoch: temporaries from there on are leftovers.
    pub(crate) first: u64,
    /// Whether the stored array is cut off there, and created.
    pub(crate) cuts: bool,
}

/// The process that writes: which part of its arrays, if others write the others, and whether it extends them.
type Role = (Option<u64>, Option<Extends>);

/// A store that renames, whose type is known only where an application gives it.
pub(crate) trait Renaming<TStorage: ?Sized>: Send + Sync {
    /// Returns temporaries of `array` that are renamed.
    fn stores(&self, array: &Array<TStorage>, role: Role) -> Result<Stores, WriterError>;

    /// Returns a store that replaces metadata at once, for the process that writes a part, or the only one.
    fn replacing(&self, part: Option<u64>) -> WritableStorage;

    /// Returns the store, which has lists.
    fn listed(&self) -> ListableStorage;
}

impl<TStorage, S> Renaming<TStorage> for Arc<S>
where
    TStorage: ?Sized + ReadableStorageTraits,
    S: AtomicRenameStorageTraits
        + ReadableStorageTraits
        + WritableStorageTraits
        + ListableStorageTraits
        + 'static,
{
    fn stores(
        &self,
        array: &Array<TStorage>,
        (part, extends): Role,
    ) -> Result<Stores, WriterError> {
        let refused = |error| WriterError::refused(array.path(), error);
        let sink = RenamedSink::of(array, self.clone(), Names::of(self)).map_err(refused)?;
        let length = ArrayLength::renamed(array, self.clone(), part).map_err(refused)?;
        if let Some(extends) = extends {
            // First: what is there may belong to another process, which extends the array now.
            check(array, &length, extends)?;
            let erased = leftovers::clean(array, &**self, extends.first).map_err(refused)?;
            if erased > 0 {
                let path = array.path();
                tracing::info!(erased, %path, "erased what a writer left that did not finish");
            }
            know(array, &length, part)?;
        }
        Ok((Box::new(sink), Arc::new(length)))
    }

    fn replacing(&self, part: Option<u64>) -> WritableStorage {
        replacing(self.clone(), part)
    }

    fn listed(&self) -> ListableStorage {
        self.clone()
    }
}

/// Returns the array's own store, to which each value goes by one `set`, or under a condition of `conditional`.
pub(crate) fn whole<TStorage>(
    array: &Array<TStorage>,
    conditional: Option<&Arc<dyn ConditionalStore>>,
    (part, extends): Role,
) -> Result<Stores, WriterError>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
{
    let refused = |error| WriterError::refused(array.path(), error);
    let sink = WholeSink::of(array).map_err(refused)?;
    let length = match conditional {
        Some(store) => ArrayLength::conditional(array, store.clone()),
        None => ArrayLength::of(array),
    };
    let length = length.map_err(refused)?;
    if let Some(extends) = extends {
        check(array, &length, extends)?;
        know(array, &length, part)?;
    }
    Ok((Box::new(sink), Arc::new(length)))
}

/// Lets no other process change the length of an array that this writer extends, unless it writes a part
/// of the array.
fn know<TStorage: ?Sized>(
    array: &Array<TStorage>,
    length: &ArrayLength,
    part: Option<u64>,
) -> Result<(), WriterError> {
    if part.is_none() {
        let stored = length.stored();
        let stored = stored.map_err(|error| WriterError::refused(array.path(), error))?;
        length.know(stored.unwrap_or(array.shape()[0]));
    }
    Ok(())
}

/// Checks that the array was not extended since it was opened, unless it is cut: the writer would start within
/// its new slices.
fn check<TStorage: ?Sized>(
    array: &Array<TStorage>,
    length: &dyn Length,
    extends: Extends,
) -> Result<(), WriterError> {
    if extends.cuts {
        return Ok(());
    }
    let stored = length
        .stored()
        .map_err(|error: StorageError| WriterError::refused(array.path(), error))?;
    let opened = array.shape()[0];
    match stored {
        Some(stored) if stored != opened => Err(unsupported(format!(
            "it has {stored} slices now, and had {opened} when it was opened: open it again to extend it"
        ))),
        _ => Ok(()),
    }
}

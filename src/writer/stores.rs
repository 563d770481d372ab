//! Gives a writer its sink, which takes shards, and its length, which changes the array's metadata.

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

/// The destination of shards, and the stored length of the array.
pub(crate) type Stores = (Box<dyn ShardSink>, Arc<dyn Length>);

/// The way in which a writer extends its array.
#[derive(Clone, Copy)]
pub(crate) struct Extends {
    /// The index of the first new shard epoch: temporaries from there on are leftovers.
    pub(crate) first: u64,
    /// Whether the stored array is cut off at `first`, and created if it is missing.
    pub(crate) cuts: bool,
}

/// The role of the process: which part of the arrays it writes, if other processes write the other parts, and
/// how it extends the arrays, if it does.
type Role = (Option<u64>, Option<Extends>);

/// A store that renames. Its type is known only in the call in which the application gives it.
pub(crate) trait Renaming<TStorage: ?Sized>: Send + Sync {
    /// Returns a sink and a length for `array` that write temporaries and rename them.
    fn stores(&self, array: &Array<TStorage>, role: Role) -> Result<Stores, WriterError>;

    /// Returns a store that replaces metadata atomically. Each process that writes a `part` has temporaries
    /// of its own.
    fn replacing(&self, part: Option<u64>) -> WritableStorage;

    /// Returns the store as one that can list keys.
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
            // This check comes first: if another process has extended the array, temporaries may belong to
            // that process.
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

/// Returns a sink and a length in the array's own store. Each value is stored by one `set`, or under a
/// condition by `conditional`.
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

/// Lets the length refuse changes by other processes, if this writer extends the array and does not write
/// only a part of it.
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

/// Checks that the array was not extended since it was opened, unless it is cut. The writer would otherwise
/// start within the new slices.
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

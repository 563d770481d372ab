//! The store operations that maintenance needs, with errors that name the operation and the key.

use bytes::Bytes;
use zarrs_codec::CodecError;
use zarrs_storage::{StorageError, StoreKey};

use crate::error::Error;
use crate::store::{Reads, Writes};

/// A change that maintenance makes to an object.
pub(super) enum ObjectChange {
    Keep,
    Erase,
    /// Replace the object by these bytes, in one operation.
    Replace(Bytes),
    /// Write `parts` at their offsets, one after the other, which makes the object equal to `whole`.
    Write {
        parts: Vec<(u64, Bytes)>,
        whole: Bytes,
    },
}

/// Makes the error of a store that failed while it was `doing` something to `key`.
pub(super) fn failed(doing: &'static str, key: &StoreKey) -> impl Fn(StorageError) -> Error {
    let key = key.clone();
    move |source| Error::Storage {
        doing,
        key: key.clone(),
        source,
    }
}

/// Makes the error for a shard at `key` that was not decoded for a reason other than its bytes.
pub(super) fn undecided(key: &StoreKey) -> impl Fn(CodecError) -> Error {
    let key = key.clone();
    move |source| Error::Undecided {
        key: key.clone(),
        source,
    }
}

pub(super) async fn read<O: Reads>(store: &O, key: &StoreKey) -> Result<Option<Bytes>, Error> {
    store.get(key).await.map_err(failed("read", key))
}

/// Makes the `change` to the object at `key`.
pub(super) async fn apply<O: Writes>(
    store: &O,
    key: &StoreKey,
    change: ObjectChange,
) -> Result<(), Error> {
    match change {
        ObjectChange::Keep => Ok(()),
        ObjectChange::Erase => store.erase(key).await.map_err(failed("erase", key)),
        ObjectChange::Write { parts, .. } if store.writes_ranges() => {
            // Each part is one operation, because a store may write the parts of one operation in another
            // order.
            for part in parts {
                let written = store.set_ranges(key, vec![part]).await;
                written.map_err(failed("write into", key))?;
            }
            Ok(())
        }
        ObjectChange::Replace(whole) | ObjectChange::Write { whole, .. } => {
            store.set(key, whole).await.map_err(failed("store", key))
        }
    }
}

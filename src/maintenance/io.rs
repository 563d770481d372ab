//! The few operations of a store that maintenance needs, with errors that say what failed.

use bytes::Bytes;
use zarrs_codec::CodecError;
use zarrs_storage::{StorageError, StoreKey};

use crate::error::Error;
use crate::store::{Reads, Writes};

/// A change of an object.
pub(super) enum ObjectChange {
    Keep,
    Erase,
    /// Store this instead, in one operation.
    Replace(Bytes),
    /// Write `parts` at their offsets, each before the next is begun. The object is `whole` then.
    Write {
        parts: Vec<(u64, Bytes)>,
        whole: Bytes,
    },
}

/// An error of a store while it was `doing` something to `key`.
pub(super) fn failed(doing: &'static str, key: &StoreKey) -> impl Fn(StorageError) -> Error {
    let key = key.clone();
    move |source| Error::Storage {
        doing,
        key: key.clone(),
        source,
    }
}

/// Returns an error of decoding the shard at `key` that is none of its bytes.
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

/// Does `change` to an object.
pub(super) async fn apply<O: Writes>(
    store: &O,
    key: &StoreKey,
    change: ObjectChange,
) -> Result<(), Error> {
    match change {
        ObjectChange::Keep => Ok(()),
        ObjectChange::Erase => store.erase(key).await.map_err(failed("erase", key)),
        ObjectChange::Write { parts, .. } if store.writes_ranges() => {
            // A store may lose the order of several parts in one operation.
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

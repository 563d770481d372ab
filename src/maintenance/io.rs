//! The few operations of a store that maintenance needs, with errors that say what failed.

use zarrs_codec::CodecError;
use zarrs_storage::{Bytes, ReadableWritableStorageTraits, StorageError, StoreKey};

use crate::Error;

/// What is to be done to an object.
pub(super) enum Change {
    /// Nothing.
    Keep,
    /// Erase it.
    Erase,
    /// Store this instead, in one operation.
    Replace(Vec<u8>),
    /// Write these bytes at these offsets, in this order.
    Write(Vec<(u64, Vec<u8>)>),
}

impl Change {
    /// The same, for a store that can only replace `object`.
    pub(super) fn whole(self, object: &[u8]) -> Result<Self, Error> {
        match self {
            Self::Write(_) => Ok(Self::Replace(self.written_to(object)?)),
            other => Ok(other),
        }
    }

    /// `object` with what is to be written into it.
    pub(super) fn written_to(&self, object: &[u8]) -> Result<Vec<u8>, Error> {
        let writes = match self {
            Self::Write(writes) => &writes[..],
            _ => &[],
        };
        let end = writes
            .iter()
            .map(|(at, bytes)| at + bytes.len() as u64)
            .max();
        let end = end.unwrap_or(0).max(object.len() as u64);
        let mut written = Vec::new();
        usize::try_from(end)
            .ok()
            .and_then(|end| written.try_reserve_exact(end).ok())
            .ok_or_else(|| too_long(end))?;
        written.extend_from_slice(object);
        for (offset, bytes) in writes {
            let start = usize::try_from(*offset).map_err(|_| too_long(end))?;
            written.resize(written.len().max(start + bytes.len()), 0);
            written[start..start + bytes.len()].copy_from_slice(bytes);
        }
        Ok(written)
    }
}

fn too_long(len: u64) -> Error {
    Error::Codec(CodecError::Other(format!(
        "out of memory: {len} bytes for a shard"
    )))
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

pub(super) fn read<S: ReadableWritableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
) -> Result<Option<Bytes>, Error> {
    store.get(key).map_err(failed("read", key))
}

/// Do `change` in one operation, to an object that is `object` now.
pub(super) fn apply<S: ReadableWritableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
    object: &[u8],
    change: Change,
) -> Result<(), Error> {
    let change = if store.supports_set_partial() {
        change
    } else {
        change.whole(object)?
    };
    match change {
        Change::Keep => Ok(()),
        Change::Erase => store.erase(key).map_err(failed("erase", key)),
        Change::Replace(bytes) => store.set(key, bytes.into()).map_err(failed("store", key)),
        Change::Write(writes) => {
            let ranges = writes.into_iter().map(|(offset, b)| (offset, b.into()));
            store
                .set_partial_many(key, Box::new(ranges))
                .map_err(failed("write into", key))
        }
    }
}

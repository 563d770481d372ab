//! The few operations of a store that maintenance needs, with errors that say what failed.

use zarrs_codec::CodecError;
use zarrs_storage::{
    Bytes, ReadableStorageTraits, ReadableWritableStorageTraits, StorageError, StoreKey,
};

use crate::Error;

/// What is to be done to an object.
pub(super) enum Change {
    /// Nothing.
    Keep,
    /// Erase it.
    Erase,
    /// Store this instead, in one operation.
    Replace(Vec<u8>),
    /// Write these bytes at these offsets, each before the next is begun.
    Write(Vec<(u64, Vec<u8>)>),
}

impl Change {
    /// The same for a store that may be able to write parts of objects, or may only replace `object`.
    pub(super) fn for_store(self, writes_parts: bool, object: &[u8]) -> Result<Self, Error> {
        match self {
            Self::Write(_) if !writes_parts => Ok(Self::Replace(self.written_to(object)?)),
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

pub(super) fn read<S: ReadableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
) -> Result<Option<Bytes>, Error> {
    store.get(key).map_err(failed("read", key))
}

/// Do `change` to an object that is `object` now. Each range is an operation of its own: a store may
/// lose the order of those in one.
pub(super) fn apply<S: ReadableWritableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
    object: &[u8],
    change: Change,
) -> Result<(), Error> {
    match change.for_store(store.supports_set_partial(), object)? {
        Change::Keep => Ok(()),
        Change::Erase => store.erase(key).map_err(failed("erase", key)),
        Change::Replace(bytes) => store.set(key, bytes.into()).map_err(failed("store", key)),
        Change::Write(writes) => writes.into_iter().try_for_each(|(offset, bytes)| {
            let written = store.set_partial(key, offset, bytes.into());
            written.map_err(failed("write into", key))
        }),
    }
}

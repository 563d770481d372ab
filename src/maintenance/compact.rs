//! A shard without the bytes that nothing uses.

use zarrs_storage::{ReadableWritableStorageTraits, StoreKey};

use super::ShardFormat;
use super::diagnosis::Diagnosis;
use super::format::diagnosis_of;
use super::io::{Change, apply, read};
use crate::Error;
use crate::metrics::counters;

/// What compaction made of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compaction {
    /// The size of the shard before, in bytes.
    pub before: u64,
    /// Its size now, in bytes; 0 if it had no subchunks, and was erased.
    pub after: u64,
}

/// Replace the shard at `key` by one without the bytes that nothing uses, its subchunks in C order.
/// `None` if there is no shard. Where there is nothing to gain, nothing is stored.
///
/// Subchunks are copied as they are: nothing is decoded or encoded. The shard is read, held twice in
/// memory, and stored by one `set`. That is atomic where the store's `set` is. zarrs'
/// `FilesystemStore` is not: wrap it in `zarrs_storage`'s `AtomicWriteStorageAdapter`, or **the shard
/// is lost** if the process dies while it is stored.
///
/// Nobody else may write the shard meanwhile: what they write would be lost.
///
/// # Errors
/// - [`Error::UpdatePending`] if an update of the shard was torn: [`recover`](crate::recover) it
///   first.
/// - [`Error::Codec`] if its index is invalid, or memory cannot be had.
/// - [`Error::Storage`] if the store fails.
pub fn compact<S: ReadableWritableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Option<Compaction>, Error> {
    let Some(object) = read(store, key)? else {
        return Ok(None);
    };
    let (change, compaction) = compacted(&object, key, format)?;
    apply(store, key, &object, change)?;
    count(compaction);
    Ok(Some(compaction))
}

/// Tell the metrics.
pub(super) fn count(compaction: Compaction) {
    if compaction.after < compaction.before {
        counters::compaction();
    }
}

/// What is to be stored instead of `object`.
pub(super) fn compacted(
    object: &[u8],
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<(Change, Compaction), Error> {
    let stored = format.stored()?;
    let pending = match diagnosis_of(&stored, object) {
        Diagnosis::Intact => None,
        Diagnosis::Undo(_) => Some("an update of it was torn, and has to be undone".to_string()),
        Diagnosis::Complete(_) => {
            Some("an update of it was torn, and has to be completed".to_string())
        }
        Diagnosis::Erase => Some("it was being created, and is not complete".to_string()),
        Diagnosis::Unrecoverable(reason) => Some(reason),
    };
    if let Some(reason) = pending {
        let key = key.clone();
        return Err(Error::UpdatePending { key, reason });
    }
    let before = object.len() as u64;
    let entries = stored.entries(stored.index().of(object)?, before)?;
    let (change, after) = if entries.iter().all(|extent| extent.is_none()) {
        (Change::Erase, 0)
    } else {
        match stored.compact(object)? {
            None => (Change::Keep, before),
            Some(shard) => {
                let after = shard.len() as u64;
                (Change::Replace(shard), after)
            }
        }
    };
    Ok((change, Compaction { before, after }))
}

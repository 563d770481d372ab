//! Where finished shards go, and how the array's metadata says how far they reach.

mod renamed;
mod whole;

use zarrs_storage::{Bytes, StorageError, StoreKey};

pub(super) use renamed::{RenamedSink, temporary_key};
pub(super) use whole::WholeSink;

/// Where shards go. Called by several threads at once, but never twice at once for one key.
///
/// A shard is stored whole ([`set`](Self::set)), or, where a store can rename, in pieces:
/// [`write`](Self::write) them, and [`complete`](Self::complete) it. Every call can be repeated after
/// it has failed.
pub(super) trait ShardSink: Send + Sync + std::fmt::Debug {
    /// Let the shard `key` be `value`, all at once: whoever reads it sees what was there before or
    /// all of `value`.
    ///
    /// # Errors
    /// The store's.
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError>;

    /// Let there be no shard `key`.
    ///
    /// # Errors
    /// The store's.
    fn erase(&self, key: &StoreKey) -> Result<(), StorageError>;

    /// Write pieces of the shard `key`, each at its offset, where readers do not see it yet. With
    /// `first`, whatever was begun of it before is forgotten.
    ///
    /// # Errors
    /// The store's.
    fn write(
        &self,
        key: &StoreKey,
        pieces: Vec<(u64, Bytes)>,
        first: bool,
    ) -> Result<(), StorageError>;

    /// All pieces of the shard `key` are written: let it appear.
    ///
    /// # Errors
    /// The store's.
    fn complete(&self, key: &StoreKey) -> Result<(), StorageError>;

    /// Forget what was written of the shard `key`, which was not completed.
    ///
    /// # Errors
    /// The store's.
    fn discard(&self, key: &StoreKey) -> Result<(), StorageError>;
}

/// How far the array reaches, for those who open it.
pub(super) trait Length: Send + Sync + std::fmt::Debug {
    /// Let the array have at least `slices` slices along its first axis: whoever opens it sees the
    /// number before or this one.
    ///
    /// # Errors
    /// The store's.
    fn grow(&self, slices: u64) -> Result<(), StorageError>;

    /// How many slices the stored array has along its first axis; `None` if it has no metadata yet.
    ///
    /// # Errors
    /// The store's, and that the metadata cannot be understood.
    fn stored(&self) -> Result<Option<u64>, StorageError>;
}

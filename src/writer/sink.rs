//! Where finished shards go, and how the array's metadata says how far they reach.

mod renamed;
mod whole;

use bytes::Bytes;
use zarrs_storage::{StorageError, StoreKey};

pub(crate) use renamed::RenamedSink;
pub(crate) use whole::WholeSink;

/// Where shards go. Called by several threads at once, but never twice at once for one key.
///
/// A shard is stored whole ([`set`](Self::set)), or, where a store can rename, in pieces:
/// [`write`](Self::write) them, and [`complete`](Self::complete) it. Every call can be repeated after
/// it has failed.
pub(crate) trait ShardSink: Send + Sync + std::fmt::Debug {
    /// Replaces the shard `key` by `value` at once: a reader sees the old shard or all of `value`.
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError>;

    /// Erases the shard `key`.
    fn erase(&self, key: &StoreKey) -> Result<(), StorageError>;

    /// Writes pieces of the shard `key`, each at its offset, where readers do not see them yet. `first`
    /// discards a shard that was begun before.
    fn write(
        &self,
        key: &StoreKey,
        pieces: Vec<(u64, Bytes)>,
        first: bool,
    ) -> Result<(), StorageError>;

    /// Makes the shard `key` visible. All its pieces are written.
    fn complete(&self, key: &StoreKey) -> Result<(), StorageError>;

    /// Lets the names of all shards that were stored, and of the metadata, outlast a power failure, where the
    /// store does not do that itself. Called before the array's length covers shards, and at the end.
    fn sync_names(&self) -> Result<(), StorageError> {
        Ok(())
    }

    /// Discards the pieces of the shard `key`, which was not completed.
    fn discard(&self, key: &StoreKey) -> Result<(), StorageError>;
}

/// The array's length, as readers see it.
pub(crate) trait Length: Send + Sync + std::fmt::Debug {
    /// Checks that the stored array has `slices` slices along its first axis, or is not stored yet. Lets every
    /// change find out from now on whether another process has changed the number of slices.
    ///
    /// # Errors
    /// The store's, that the metadata cannot be understood, and that the array has more or fewer slices.
    fn expect(&self, slices: u64) -> Result<(), StorageError>;

    /// Lets the array have at least `slices` slices along its first axis. A reader that opens it sees
    /// the old number or this one.
    fn grow(&self, slices: u64) -> Result<(), StorageError>;

    /// Lets the array have at most `slices` slices along its first axis, and stores its metadata if
    /// there are none. A reader that opens it sees the old number or this one.
    fn cut(&self, slices: u64) -> Result<(), StorageError>;

    /// How many slices the stored array has along its first axis; `None` if it has no metadata yet.
    ///
    /// # Errors
    /// The store's, and that the metadata cannot be understood.
    fn stored(&self) -> Result<Option<u64>, StorageError>;
}

//! Takes finished shards, and lets the array's metadata say how far they reach.

mod renamed;
mod whole;

use bytes::Bytes;
use zarrs_storage::{StorageError, StoreKey};

pub(crate) use renamed::RenamedSink;
pub(crate) use whole::WholeSink;

/// The destination of shards. Several threads call it at once, but never two for the same key.
///
/// A shard is stored whole by [`set`](Self::set). In a store that can rename, it is stored in pieces:
/// [`write`](Self::write) stores pieces, and [`complete`](Self::complete) ends the shard. Every call can be
/// repeated after it has failed.
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

    /// Lets the names of all stored shards, and of the metadata, outlast a power failure, where the store
    /// does not do that itself. The writer calls this before the array's length covers shards, and at the
    /// end.
    fn sync_names(&self) -> Result<(), StorageError> {
        Ok(())
    }

    /// Discards the pieces of the shard `key`, which was not completed.
    fn discard(&self, key: &StoreKey) -> Result<(), StorageError>;
}

/// The array's length, as readers see it.
pub(crate) trait Length: Send + Sync + std::fmt::Debug {
    /// Checks that the stored array has `slices` slices along its first axis, or is not stored yet. From now
    /// on, every change checks whether another process has changed the number of slices.
    ///
    /// # Errors
    /// The errors of the store, that the metadata cannot be understood, and that the array has more or fewer
    /// slices.
    fn expect(&self, slices: u64) -> Result<(), StorageError>;

    /// Lets the array have at least `slices` slices along its first axis. A reader that opens it sees
    /// the old number or this one.
    fn grow(&self, slices: u64) -> Result<(), StorageError>;

    /// Lets the array have at most `slices` slices along its first axis, and stores its metadata if
    /// there are none. A reader that opens it sees the old number or this one.
    fn cut(&self, slices: u64) -> Result<(), StorageError>;

    /// Returns the number of slices of the stored array along its first axis; `None` if it has no metadata
    /// yet.
    ///
    /// # Errors
    /// The errors of the store, and that the metadata cannot be understood.
    fn stored(&self) -> Result<Option<u64>, StorageError>;
}

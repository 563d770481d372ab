//! Subchunks that are stored beside their shard, and are newer than the shard: those in the frames of
//! `storage/sparse/`.

use bytes::Bytes;
use zarrs_storage::{StorageError, StoreKey};

pub(crate) use super::threads::Later;

type Result<T> = std::result::Result<T, StorageError>;

/// Lists the newer subchunks of the shards of an array.
pub(crate) trait ListsNewerSubchunks: Send + Sync {
    /// Returns whether each future is ready when it is first polled, because the store blocks.
    fn blocks(&self) -> bool;

    /// Lists the newer subchunks of `shard`. With `anew`, no earlier listing is used.
    fn list<'a>(
        &'a self,
        shard: &'a StoreKey,
        anew: bool,
    ) -> Later<'a, Result<Box<dyn NewerSubchunks + 'a>>>;
}

/// The newer subchunks of a shard, as they were listed.
pub(crate) trait NewerSubchunks: Send + Sync {
    /// Returns whether a version of the subchunk is listed.
    fn has(&self, number: usize) -> bool;

    /// Returns whether no version is listed.
    fn is_empty(&self) -> bool;

    /// Reads the newest version of a subchunk that was listed. If there is none, a shard that is read
    /// from now on has the subchunk.
    fn newest(&self, number: usize) -> Later<'_, Result<NewestSubchunk>>;

    /// Reads a subchunk from beside its shard or from the shard, also while both change. Returns `None` if
    /// the subchunk is empty.
    fn read(&self, number: usize) -> Later<'_, Result<Option<Bytes>>>;
}

/// The newest version of a subchunk beside its shard.
#[derive(Debug)]
pub(crate) enum NewestSubchunk {
    /// The version has these encoded bytes.
    Data(Bytes),
    /// The version is an empty subchunk.
    Empty,
    /// No version is beside the shard: the shard has the subchunk.
    InShard,
    /// A consolidation deleted the version meanwhile: list again.
    Gone,
}

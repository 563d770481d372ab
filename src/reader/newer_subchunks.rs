//! Lists and reads subchunks that are stored beside their shard in frames, and are newer than the shard. The
//! frames are those of `storage/sparse/`.

use bytes::Bytes;
use zarrs_storage::{StorageError, StoreKey};

pub(crate) use super::threads::Later;

type Result<T> = std::result::Result<T, StorageError>;

/// Lists the newer subchunks of the shards of an array.
pub(crate) trait ListsNewerSubchunks: Send + Sync {
    /// Returns whether the store blocks: then each future of this trait is ready when it is first polled.
    fn blocks(&self) -> bool;

    /// Lists the newer subchunks of `shard`. If `anew`, no earlier listing is used.
    fn list<'a>(
        &'a self,
        shard: &'a StoreKey,
        anew: bool,
    ) -> Later<'a, Result<Box<dyn NewerSubchunks + 'a>>>;
}

/// The newer subchunks of a shard, from one listing.
pub(crate) trait NewerSubchunks: Send + Sync {
    /// Returns whether the listing has a version of subchunk `number`.
    fn has(&self, number: usize) -> bool;

    /// Returns whether the listing has no version of any subchunk.
    fn is_empty(&self) -> bool;

    /// Reads the newest version of subchunk `number`, which is listed. If a consolidation has packed the
    /// version into the shard, a read of the shard from now on returns the subchunk.
    fn newest(&self, number: usize) -> Later<'_, Result<NewestSubchunk>>;

    /// Reads subchunk `number` from beside its shard or from the shard, even if both change during the read.
    /// Returns `None` if the subchunk is empty.
    fn read(&self, number: usize) -> Later<'_, Result<Option<Bytes>>>;
}

/// The newest version of a subchunk beside its shard.
#[derive(Debug)]
pub(crate) enum NewestSubchunk {
    /// The version has these encoded bytes.
    Data(Bytes),
    /// The version is an empty subchunk.
    Empty,
    /// No version is stored beside the shard: the subchunk is in the shard.
    InShard,
    /// A consolidation deleted the version after the listing: list again.
    Gone,
}

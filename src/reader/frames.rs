//! Frames: where subchunks lie that were stored beside their shard and are newer than it.

use bytes::Bytes;
use zarrs_storage::{StorageError, StoreKey};

pub(crate) use super::threads::Later;

type Result<T> = std::result::Result<T, StorageError>;

/// The frames of the shards of an array.
pub(crate) trait ListsFrames: Send + Sync {
    /// Returns whether each future is ready when it is first polled, because the store blocks.
    fn blocks(&self) -> bool;

    /// Lists the frame of `shard`. With `anew`, no earlier listing is used.
    fn list<'a>(
        &'a self,
        shard: &'a StoreKey,
        anew: bool,
    ) -> Later<'a, Result<Box<dyn ListedFrame + 'a>>>;
}

/// A frame as it was listed.
pub(crate) trait ListedFrame: Send + Sync {
    /// Returns whether a version of the subchunk is listed.
    fn has(&self, number: usize) -> bool;

    /// Returns whether no version is listed.
    fn is_empty(&self) -> bool;

    /// Reads the newest version of a subchunk that was listed. If there is none, a shard that is read
    /// from now on has the subchunk.
    fn newest(&self, number: usize) -> Later<'_, Result<Newest>>;

    /// Reads a subchunk from the frame or from the shard, also while both change. Returns `None` if
    /// the subchunk is empty.
    fn read(&self, number: usize) -> Later<'_, Result<Option<Bytes>>>;
}

/// The newest version of a subchunk in a frame.
#[derive(Debug)]
pub(crate) enum Newest {
    /// The version has these encoded bytes.
    Data(Bytes),
    /// The version is an empty subchunk.
    Empty,
    /// The frame has no version of the subchunk: the shard has the subchunk.
    InShard,
    /// A consolidation deleted the version meanwhile: list the frame again.
    Gone,
}

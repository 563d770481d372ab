//! The places where shards are stored: files, a store that blocks, or a store that is awaited.

use std::fs::File;
use std::future::Future;
use std::io::{self, Write};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use zarrs::array::{ArrayBytes, ArraySubset, Indexer};
use zarrs_codec::CodecOptions;
use zarrs_storage::{StorageError, StoreKey};

use super::ShardUpdate;
use super::error::BoxWriterErrorKind as Kind;
use super::request::ShardToWrite;
use crate::maintenance::{RewrittenShard, ShardFormat, StoredShard};
use zarrs_cuda_engine::memory::spares::Spares;

/// The new value of a shard.
#[derive(Debug)]
pub(super) enum NewShard {
    Encoded(Vec<u8>),
    Rewritten(RewrittenShard),
}

impl NewShard {
    /// Returns the number of bytes of the value.
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Encoded(bytes) => bytes.len() as u64,
            Self::Rewritten(shard) => shard.size(),
        }
    }

    pub(super) fn write_to(&self, file: &mut File) -> io::Result<()> {
        match self {
            Self::Encoded(bytes) => file.write_all(bytes),
            Self::Rewritten(shard) => shard.write_to(file),
        }
    }

    /// Returns the value for a store. A store that copies the value gives the memory of an encoded shard back to
    /// `spares`.
    pub(super) fn into_bytes(self, spares: &Arc<Spares>) -> io::Result<Bytes> {
        match self {
            Self::Encoded(bytes) => Ok(Bytes::from_owner(LentShard {
                bytes,
                spares: Arc::downgrade(spares),
            })),
            Self::Rewritten(shard) => Ok(shard.to_bytes()?.into()),
        }
    }
}

/// An encoded shard that a store has. It may outlive the call that encoded it.
struct LentShard {
    bytes: Vec<u8>,
    /// The call's buffers, where the memory returns to, unless the call has ended.
    spares: Weak<Spares>,
}

impl AsRef<[u8]> for LentShard {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for LentShard {
    fn drop(&mut self) {
        if let Some(spares) = self.spares.upgrade() {
            spares.give(std::mem::take(&mut self.bytes));
        }
    }
}

/// Changes of a shard: the places of elements, which count from the origin of the shard, and the new elements.
pub(super) type Changes<'u> = Vec<(Box<dyn Indexer>, ArrayBytes<'u>)>;

/// Changes of a stored shard in place.
pub(super) struct Update<'u> {
    pub(super) format: &'u ShardFormat,
    pub(super) changes: Changes<'u>,
    pub(super) options: &'u CodecOptions,
}

/// Stores the shards of an array.
pub(super) trait Target: Sync {
    /// A lock of a key, until the value is dropped.
    type Guard: Send;

    /// Whether one thread polls all shards of a call, so that one shard is encoded at a time.
    const IS_POLLED: bool = false;

    /// Checks, before the first shard is written, that shards can be changed by `update`.
    fn check(&self, update: ShardUpdate) -> impl Future<Output = Result<(), Kind>> + Send;

    /// Waits until no other writer of boxes writes the value of `key`.
    fn lock(
        &self,
        key: &StoreKey,
    ) -> impl Future<Output = Result<Self::Guard, StorageError>> + Send;

    /// Returns the stored value of `key`; `None` if there is none.
    fn stored(
        &self,
        key: &StoreKey,
    ) -> impl Future<Output = Result<Option<StoredShard>, StorageError>> + Send;

    /// Replaces the value of `key`, which is locked, at once.
    fn replace(
        &self,
        locked: &mut Self::Guard,
        key: &StoreKey,
        value: NewShard,
    ) -> impl Future<Output = Result<(), StorageError>> + Send;

    /// Returns the memory of stored shards, in which other shards may be encoded.
    fn spares(&self) -> &Spares;

    /// Erases the value of `key`, which is locked.
    fn erase(
        &self,
        locked: &mut Self::Guard,
        key: &StoreKey,
    ) -> impl Future<Output = Result<(), StorageError>> + Send;

    /// Returns whether subchunks may be stored beside some shards.
    fn is_marked(&self) -> impl Future<Output = Result<bool, Kind>> + Send;

    /// Returns whether subchunks are stored beside the shard `key`.
    fn has_frame(&self, key: &StoreKey) -> impl Future<Output = Result<bool, StorageError>> + Send;

    /// Updates the stored shard `key`, which is locked, in place.
    fn update(
        &self,
        locked: &mut Self::Guard,
        key: &StoreKey,
        update: Update<'_>,
    ) -> impl Future<Output = Result<(), Kind>> + Send;

    /// Stores the subchunks that `boxes` meet beside the shard. The boxes count in elements of the array.
    fn share(
        &self,
        shard: &ShardToWrite,
        boxes: Vec<(ArraySubset, ArrayBytes<'_>)>,
        options: &CodecOptions,
    ) -> impl Future<Output = Result<(), Kind>> + Send;
}

/// Checks that a store can update shards in place, which it `can` if it writes parts of values.
pub(super) fn check_parts(update: ShardUpdate, can: bool) -> Result<(), Kind> {
    if can || update != ShardUpdate::InPlace {
        return Ok(());
    }
    let reason = "its store only replaces whole values, so `ShardUpdate::InPlace` would not be in place: use `ShardUpdate::Rewrite`";
    Err(Kind::unsupported(reason))
}

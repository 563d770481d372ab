//! The protocol of frames: how versions of subchunks are written, read and packed into their shard.
//!
//! ```text
//! write:        (one subchunk of a shard, or several by one call)
//!               list the frame
//!               leave out erasures of subchunks that are empty
//!               version of each = highest that is listed for this subchunk, invalid ones included, + 1
//!               put the marker of the array, if this process has not seen it yet
//!               put them, in any order
//!               list the frame, unless a listing that fails is always an error: put each again whose version
//!                     is not listed, or that has one above it, above every version seen so far
//! read:         list the frame
//!               the newest valid version: get it; start again if it is gone
//!               none: the shard's index; the bytes that it points at and the index, by one
//!                     request; the index again; start again if it changed
//! consolidate:  list the frame; list it again, which adds versions below those of the first listing
//!               get all listed versions: the newest valid one of each subchunk counts
//!               no valid version: erase receipts, if the frame has nothing invalid; done
//!               where the store has times: stop if the shard is younger than one of them, and no receipt has it
//!               read the other subchunks from the shard
//!               where the store has times: put a receipt of the new shard
//!               replace it at once, or erase it if all is empty
//!               delete what was listed and valid, oldest first, newest last
//!               where the store has times: list the frame; delete older receipts, and the new one if there is no
//!                     version (see `changed.rs`)
//! ```
//!
//! | file | operation |
//! |---|---|
//! | `write` | puts new versions of subchunks |
//! | `newest` | finds the newest valid version of a subchunk |
//! | `read`, `present` | read one subchunk; list the subchunks that there are, and their sizes |
//! | `packed_index` | reads, decodes and keeps the indices of shards |
//! | `consolidate` | packs a frame into its shard |
//!
//! Versions are never changed. A version that was listed is deleted only after the shard has this version or
//! a newer one. So a process that finds no version of a subchunk finds the last one that was written, or a
//! newer one, in the shard; and a process that finds versions finds the last one among them. The newest
//! version is deleted last: otherwise a reader that lists in between would take an older version for the
//! newest. A new version is higher than all listed versions, so it never replaces a version whose writer
//! died, or still writes.
//!
//! Some stores return an empty list when a listing fails, and no error. A writer would then put the first
//! version beside a higher one, and its update would be lost. The listing after the put shows the failure:
//! the version that was just put is missing, or the higher one is listed.
//!
//! A listing takes time, and goes through a directory in any order. It can find version 7 and miss version 6,
//! if both were put after it began. If 7 was then packed and deleted, 6 would be the newest again. All
//! versions below 7 were put before 7, so a second listing finds them. The second listing comes before the
//! versions are read. Since 7 is still there when it is read, all writers that listed meanwhile have seen it,
//! and none took a version below it. After the shard was replaced, this would not be certain: if a process
//! died after it began to delete 7, the deletion may take effect late, and a writer that lists then begins at
//! 1 again.
//!
//! A write of several subchunks is equivalent to several writes of one subchunk that share their listings. A
//! write of one subchunk needs only this order: its first listing begins when every earlier write of the same
//! subchunk is done, its put comes after this listing, and its second listing begins when the put is done.
//! The time in between does not matter, nor do the puts of the same process for other subchunks: versions of
//! different subchunks are never compared. If a consolidation deletes a version between the put and the
//! second listing, it has packed the version, and the subchunk is put once more. The locks of all subchunks
//! are taken before the first listing, so no other thread of the process can write one of them after that
//! listing.
//!
//! The protocol rests on these assumptions:
//!
//! - Every process that reads or lists afterwards finds a value that was put. If listings of a store fail
//!   silently, writes are still safe, with two exceptions: erasures of subchunks without a listed version,
//!   and a write whose two listings both miss the newest version, while its second listing has the version that
//!   the write has put. Reads and consolidations then see the past, and so does a write of a part of a subchunk, which reads first.
//! - A shard is replaced atomically: a process that reads it finds all of the old shard or all of the new
//!   one, also by a request for several parts. Objects of frames may be put in part, since their trailers say
//!   whether they are complete.
//! - Each subchunk has one writer at a time. Writers of one adapter wait for each other.
//! - Each shard has one consolidation at a time, which does not go on after another one has begun.

mod consolidate;
pub(super) mod newest;
mod packed_index;
mod present;
mod read;
mod write;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use zarrs_storage::{StorageError, StoreKey};

use super::frame::{self, Entry, Listing, TRAILER_LEN};
use super::marker::Marker;
use crate::error::Error;
use crate::shard::sharding::Sharding;
use crate::shard::subchunk_len::SubchunkLen;
use crate::storage::chunk_layout::ChunkLayout;
use crate::store::Lists;
use crate::store::key_locks::KeyLocks;
use packed_index::{DecodedIndex, INDICES};

/// Returns a name for the writer of a version, a different one each time. So a deletion of one version,
/// however late it takes effect, never deletes another version.
pub(super) type Writers = Box<dyn Fn() -> String + Send + Sync>;

/// The shards of an array and their frames, with everything that the protocol needs.
pub(super) struct Frames {
    layout: ChunkLayout,
    /// The number of subchunks in a shard.
    subchunks: usize,
    /// The most bytes that a shard can have; `None` if its codecs do not tell.
    bound: Option<u64>,
    /// The lengths that an encoded subchunk may have.
    len: SubchunkLen,
    /// Names the writers of the versions that this adapter puts.
    writers: Writers,
    /// The locks of the writers of this adapter.
    key_locks: KeyLocks,
    /// The locks of the consolidations of this adapter.
    consolidations: KeyLocks,
    marker: Marker,
    /// The indices that were decoded last. Most reads of a shard find the same index, which need not be
    /// decoded again.
    indices: [Mutex<Option<(StoreKey, DecodedIndex)>>; INDICES],
}

/// Replaces a shard atomically.
pub(super) trait ReplacesShards: Sync {
    /// Replaces the shard at `key` by `shard` atomically, or erases it if `shard` is `None`.
    fn replace(
        &self,
        key: &StoreKey,
        shard: Option<Bytes>,
    ) -> impl Future<Output = Result<(), StorageError>> + Send;
}

impl Frames {
    /// Makes the protocol's state for an array of these shards.
    ///
    /// # Errors
    /// - [`Error::Codec`] if the codecs do not fit the data type, or cannot encode an index.
    /// - [`Error::NotShards`] if a shard has more subchunks than an adapter packs.
    pub(super) fn new(
        shards: Arc<Sharding>,
        writers: Writers,
        marker: Marker,
    ) -> Result<Self, Error> {
        Ok(Self {
            subchunks: shards.grid.num_subchunks(),
            bound: shards.encoded_representation()?.size(),
            len: shards.subchunk_len()?,
            layout: ChunkLayout::of(shards)?,
            writers,
            key_locks: KeyLocks::default(),
            consolidations: KeyLocks::default(),
            marker,
            indices: [const { Mutex::new(None) }; INDICES],
        })
    }

    /// Returns the most bytes that a shard can have; `None` if its codecs do not tell.
    pub(super) fn bound(&self) -> Option<u64> {
        self.bound
    }

    /// Returns the marker, which tells other programs that the array has frames.
    pub(super) fn marker(&self) -> &Marker {
        &self.marker
    }

    /// Returns the locks of the writers of this adapter.
    pub(super) fn key_locks(&self) -> &KeyLocks {
        &self.key_locks
    }

    /// Lists the frame of `shard`.
    pub(super) async fn list<O: Lists>(
        &self,
        store: &O,
        shard: &StoreKey,
    ) -> Result<Listing, StorageError> {
        let frame = frame::prefix_of(shard)?;
        let listed = store.list_dir(&frame).await?;
        Ok(Listing::of(&frame, listed.keys(), self.subchunks))
    }

    /// Returns the most bytes of an encoded subchunk.
    fn most(&self) -> u64 {
        self.len.most().unwrap_or(u64::MAX)
    }

    /// Decodes an object of a frame. Returns `None` if the object is not complete, or has more data than a
    /// subchunk can have.
    fn entry(&self, object: &Bytes) -> Option<Entry> {
        let is_possible = object.len() as u64 <= self.most_of_object();
        is_possible.then(|| Entry::decode(object)).flatten()
    }

    fn most_of_object(&self) -> u64 {
        self.most().saturating_add(TRAILER_LEN as u64)
    }
}

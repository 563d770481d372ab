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
//! Versions are never changed, and a version that was listed is deleted only after the shard has it or
//! a newer one. So a process that finds no version of a subchunk finds the last one that was written in the
//! shard, or a newer one; and a process that finds one finds the last one there. The newest is deleted last,
//! since a reader that lists in between would take an older one for the newest. A new version is higher
//! than all that are listed, so that one whose writer died, or is not done yet, is never put over.
//!
//! Some stores return an empty list when a listing fails, and no error. A writer would then take the first
//! version beside a higher one, and its update would be lost. The listing after the put shows that: the
//! version that is there for certain is missing, or the higher one is there.
//!
//! A listing takes time, and goes through a directory in any order. A listing can find version 7 and miss 6,
//! both put after it began. If 7 was packed and deleted, 6 would be the newest again. All versions below 7
//! were put before 7 was: a second listing has them. It comes before the versions are read: since 7 is there
//! when it is read, all writers that listed meanwhile have seen it, and none took a version below it. After
//! the shard was replaced this would not be certain: a deletion of 7 that another process began before it
//! died may take effect late, and a writer that lists then begins at 1 again.
//!
//! A write of several subchunks is as many writes of one whose listings are the same ones. Each write of one
//! subchunk needs this alone: its first listing begins when every earlier write of the same subchunk is done, its
//! put comes behind this listing, and its second listing begins when the put is done. How long it waits in between
//! does not matter, nor what the same process puts meanwhile for other subchunks: versions of different subchunks
//! are never compared. A consolidation that deletes a version between the put and the second listing has packed it,
//! and the subchunk is put once more. The locks of all subchunks are taken before the first listing, so another
//! thread of the process cannot write one of them behind that listing.
//!
//! The protocol rests on these assumptions:
//!
//! - What was put is found by all who read or list afterwards. If listings of a store fail silently, writes
//!   are safe, but for erasures of subchunks without a listed version and unless both listings miss the newest
//!   version and the second has the new one; reads and consolidations see the past, and with them a
//!   write of a part of a subchunk, which reads first.
//! - A shard is replaced at once: a process that reads it finds all of the one before or all of the new one,
//!   also by a request for several parts. Objects of frames may be put in part, since they say whether
//!   they are whole.
//! - One writer at a time of each subchunk. Writers of one adapter wait for each other.
//! - One consolidation at a time of each shard, none of which goes on after another one has begun.

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

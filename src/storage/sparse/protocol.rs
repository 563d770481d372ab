//! The protocol of frames: how versions of subchunks are written, read and packed into their shard.
//!
//! ```text
//! write:        list the frame
//!               version = highest that is listed for this subchunk, invalid ones included, + 1
//!               put it
//! read:         list the frame
//!               the newest valid version: get it; start again if it is gone
//!               none: the shard's index, then the bytes it points at and the index again, by
//!                     one request; start again if it changed
//! consolidate:  list the frame
//!               get the newest valid version of each subchunk
//!               read the shard
//!               replace it at once, or erase it if all is empty
//!               delete what was listed and valid, oldest first, newest last
//! ```
//!
//! Versions are never changed, and a version that was listed is deleted only after the shard has it or
//! a newer one. So whoever finds no version of a subchunk finds the last one that was written in the
//! shard, or a newer one; and whoever finds one finds the last one there. The newest is deleted last,
//! since a reader that lists in between would take an older one for the newest. A new version is higher
//! than all that are listed, so that one whose writer died, or is not done yet, is never put over.
//!
//! It rests on these assumptions:
//!
//! - What was put is found by whoever reads or lists afterwards.
//! - A shard is replaced at once: whoever reads it finds all of the one before or all of the new one,
//!   also by a request for several parts. Objects of frames may be put in part, since they say whether
//!   they are whole.
//! - One writer at a time of each subchunk. Those of one adapter take turns.
//! - One consolidation at a time of each shard, none of which goes on after another one has begun.

use std::sync::{Arc, Mutex, PoisonError};

use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{Bytes, StorageError, StoreKey};

use super::consolidation::Consolidation;
use super::frame::{self, Entry, Listing, Version};
use crate::layout::Extent;
use crate::storage::objects::{Lists, Reads, Writes};
use crate::storage::packing::Packing;
use crate::storage::turns::{TakesTurns, Turns};

/// How often a read begins again: each time, somebody else has changed what it reads.
const ATTEMPTS: usize = 1000;
/// Parts of a shard that are longer than this are read once it is known that the shard has them.
const UNCHECKED_LEN: usize = 16 << 20;
/// How many decoded indices are kept.
const INDICES: usize = 16;

/// Shards that are worked on.
#[derive(Debug)]
pub(super) struct Frames {
    packing: Packing,
    /// How many subchunks a shard has.
    subchunks: usize,
    /// Of the versions that are put here.
    writer: String,
    /// Of those who write.
    turns: Turns,
    /// Of those who consolidate.
    consolidations: Turns,
    /// Indices that were decoded last: most reads of a shard find the same bytes.
    indices: [Mutex<Option<Decoded>>; INDICES],
}

/// An index, encoded and decoded.
#[derive(Clone, Debug)]
struct Decoded {
    encoded: Bytes,
    extents: Arc<[Extent]>,
}

/// How a shard is replaced at once.
pub(super) trait ReplacesShards: Sync {
    /// Let the shard at `key` be `shard`, at once; erase it if that is `None`.
    fn replace(
        &self,
        key: &StoreKey,
        shard: Option<Bytes>,
    ) -> impl Future<Output = Result<(), StorageError>> + Send;
}

impl Frames {
    /// Of shards of `subchunks` subchunks.
    pub(super) fn new(packing: Packing, subchunks: usize, writer: String) -> Self {
        Self {
            packing,
            subchunks,
            writer,
            turns: Turns::default(),
            consolidations: Turns::default(),
            indices: [const { Mutex::new(None) }; INDICES],
        }
    }

    /// The turns of those who write.
    pub(super) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// What is in the frame of `shard`.
    ///
    /// # Errors
    /// The store's.
    pub(super) async fn list<O: Lists>(
        &self,
        store: &O,
        shard: &StoreKey,
    ) -> Result<Listing, StorageError> {
        let frame = frame::prefix_of(shard)?;
        let listed = store.list_dir(&frame).await?;
        Ok(Listing::of(&frame, listed.keys(), self.subchunks))
    }

    /// Put a new version of a subchunk. Whoever calls this has the turn of the subchunk.
    ///
    /// # Errors
    /// The store's.
    pub(super) async fn write<O: Writes + Lists>(
        &self,
        store: &O,
        shard: &StoreKey,
        number: u32,
        entry: &Entry,
    ) -> Result<(), StorageError> {
        let object = entry.encode()?;
        let listing = self.list(store, shard).await?;
        let version = listing.next_version(number).ok_or_else(|| {
            StorageError::Other(format!(
                "subchunk {number} of the shard {shard} has a version with the greatest number there is: something else wrote it; erase it"
            ))
        })?;
        let version = Version {
            version,
            writer: self.writer.clone(),
        };
        let key = frame::key_of(&frame::prefix_of(shard)?, number, &version)?;
        store.set(&key, object).await
    }

    /// A subchunk, encoded; `None` if it is empty.
    ///
    /// `listing` is used first, which may be of the past: what is read is then at least as new as that.
    ///
    /// # Errors
    /// The store's, and if the shard is invalid.
    pub(super) async fn read<O: Reads + Lists>(
        &self,
        store: &O,
        shard: &StoreKey,
        number: u32,
        mut listing: Option<Arc<Listing>>,
    ) -> Result<Option<Bytes>, StorageError> {
        for _ in 0..ATTEMPTS {
            let listing = match listing.take() {
                Some(listing) => listing,
                None => Arc::new(self.list(store, shard).await?),
            };
            let frame = frame::prefix_of(shard)?;
            let read = match newest(store, &frame, number, listing.versions(number)).await? {
                Found::Valid(entry) => Some(entry.data()),
                Found::Nothing => self.read_packed(store, shard, number).await?,
                Found::Gone => None,
            };
            if let Some(read) = read {
                return Ok(read);
            }
        }
        Err(starved(shard))
    }

    /// A subchunk of the shard itself: `Some(None)` if it is empty; `None` if the shard was replaced
    /// meanwhile.
    async fn read_packed<O: Reads>(
        &self,
        store: &O,
        shard: &StoreKey,
        number: u32,
    ) -> Result<Option<Option<Bytes>>, StorageError> {
        let Some(index) = self.read_index(store, shard).await? else {
            return Ok(Some(None));
        };
        let extents = self.decode(shard, &index)?;
        let Some(extent) = extents.get(number as usize).cloned().flatten() else {
            return Ok(Some(None));
        };
        if extent.is_empty() {
            return Ok(Some(Some(Bytes::new())));
        }
        self.read_extent(store, shard, number, extent, &index).await
    }

    /// The bytes of a shard that are those of a subchunk if `index` is its index; `None` if it has
    /// another one now.
    ///
    /// The index is read once more by the same request, which finds all of one shard. Were it read by
    /// another one, there could be another shard in between, and then one with this index again.
    async fn read_extent<O: Reads>(
        &self,
        store: &O,
        shard: &StoreKey,
        number: u32,
        extent: std::ops::Range<usize>,
        index: &Bytes,
    ) -> Result<Option<Option<Bytes>>, StorageError> {
        let (start, len) = (extent.start as u64, extent.len() as u64);
        // A store may make room for what is asked before it looks.
        let is_there = extent.len() <= UNCHECKED_LEN
            || store
                .size(shard)
                .await?
                .is_some_and(|size| extent.end as u64 <= size);
        if is_there {
            let ranges = vec![
                ByteRange::FromStart(start, Some(len)),
                self.packing.index_range(),
            ];
            let read = store.get_ranges(shard, ranges).await;
            if let Ok(Some(read)) = &read
                && let [bytes, again] = &read[..]
            {
                if again != index {
                    return Ok(None);
                }
                if bytes.len() == extent.len() {
                    return Ok(Some(Some(bytes.clone())));
                }
            }
        }
        // Either the shard is another one now, which is shorter, or it is wrong. All of it tells.
        let Some(object) = store.get(shard).await? else {
            return Ok(None);
        };
        let mut subchunks = self.packing.chunks(shard, &object)?;
        let subchunk = subchunks.get_mut(number as usize).and_then(Option::take);
        // The rest of the shard is not kept.
        Ok(Some(subchunk.map(|bytes| Bytes::copy_from_slice(&bytes))))
    }

    /// The index of a shard, encoded; `None` if there is no shard.
    async fn read_index<O: Reads>(
        &self,
        store: &O,
        shard: &StoreKey,
    ) -> Result<Option<Bytes>, StorageError> {
        let range = self.packing.index_range();
        let read = store.get_ranges(shard, vec![range]).await?;
        Ok(read.and_then(|mut read| read.pop()))
    }

    /// Where the subchunks lie, in a shard that could have any size.
    fn decode(&self, shard: &StoreKey, encoded: &Bytes) -> Result<Arc<[Extent]>, StorageError> {
        // A checksum's worth of the index spreads shards over the slots; any choice is right.
        let slot = encoded
            .iter()
            .rev()
            .take(4)
            .fold(0, |sum, &byte| sum ^ usize::from(byte));
        let mut slot = self.indices[slot % INDICES]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(decoded) = &*slot
            && decoded.encoded == *encoded
        {
            return Ok(decoded.extents.clone());
        }
        let extents: Arc<[Extent]> = self.packing.extents(shard, encoded, u64::MAX)?.into();
        *slot = Some(Decoded {
            // A part of something larger would keep all of it.
            encoded: Bytes::copy_from_slice(encoded),
            extents: extents.clone(),
        });
        Ok(extents)
    }

    /// The subchunks that there are, in C order, and the size of each, in bytes.
    ///
    /// # Errors
    /// The store's, and if the shard is invalid.
    pub(super) async fn present<O: Reads + Lists>(
        &self,
        store: &O,
        shard: &StoreKey,
    ) -> Result<Vec<(usize, u64)>, StorageError> {
        'again: for _ in 0..ATTEMPTS {
            let listing = self.list(store, shard).await?;
            let frame = frame::prefix_of(shard)?;
            let mut newer = Vec::new();
            for (number, versions) in listing.iter() {
                match newest(store, &frame, number, versions).await? {
                    Found::Valid(entry) => {
                        newer.push((number as usize, entry.data().map(|data| data.len() as u64)));
                    }
                    Found::Nothing => {}
                    Found::Gone => continue 'again,
                }
            }
            let mut sizes = vec![None; self.subchunks];
            if let Some(index) = self.read_index(store, shard).await? {
                let extents = self.decode(shard, &index)?;
                for (size, extent) in sizes.iter_mut().zip(&*extents) {
                    *size = extent.as_ref().map(|extent| extent.len() as u64);
                }
            }
            for (number, size) in newer {
                if let Some(slot) = sizes.get_mut(number) {
                    *slot = size;
                }
            }
            let present = sizes.into_iter().enumerate();
            return Ok(present
                .filter_map(|(number, size)| Some((number, size?)))
                .collect());
        }
        Err(starved(shard))
    }

    /// Pack the frame of a shard into it, which `shards` replaces. `None` if there is no frame.
    ///
    /// # Errors
    /// The store's; if the shard is invalid; if somebody else consolidates it.
    pub(super) async fn consolidate<O, R>(
        &self,
        store: &O,
        shards: &R,
        shard: &StoreKey,
    ) -> Result<Option<Consolidation>, StorageError>
    where
        O: Reads + Writes + Lists + TakesTurns,
        R: ReplacesShards,
    {
        let _turn = store.turn(&self.consolidations, shard).await;
        let listing = self.list(store, shard).await?;
        let frame = frame::prefix_of(shard)?;
        let mut packed = Consolidation::default();
        let mut newest = Vec::new();
        let mut valid = Vec::new();
        for (number, versions) in listing.iter() {
            let mut entry = None;
            for version in versions {
                let key = frame::key_of(&frame, number, version)?;
                let Some(object) = store.get(&key).await? else {
                    return Err(StorageError::Other(format!(
                        "cannot consolidate the shard {shard}: {key} was deleted meanwhile. Somebody else consolidates it: see to it that one does at a time, and try again"
                    )));
                };
                if let Some(decoded) = Entry::decode(&object) {
                    entry = Some(decoded);
                    valid.push((version, key));
                } else {
                    packed.invalid += 1;
                }
            }
            newest.extend(entry.map(|entry| (number as usize, entry)));
        }
        if newest.is_empty() {
            return Ok((packed.invalid > 0).then_some(packed));
        }
        packed.subchunks = newest.len();
        packed.versions = valid.len();
        let mut subchunks = match store.get(shard).await? {
            None => vec![None; self.subchunks],
            Some(object) => {
                packed.before = object.len() as u64;
                self.packing.chunks(shard, &object)?
            }
        };
        for (number, entry) in newest {
            if let Some(subchunk) = subchunks.get_mut(number) {
                *subchunk = entry.data();
            }
        }
        let object = self.packing.pack(shard, &subchunks)?;
        drop(subchunks);
        packed.after = object.as_ref().map_or(0, |object| object.len() as u64);
        shards.replace(shard, object).await?;
        valid.sort();
        for (_, key) in valid {
            store.erase(&key).await?;
        }
        Ok(Some(packed))
    }
}

/// What the versions of a subchunk that were listed come to.
enum Found {
    Valid(Entry),
    /// None of them is valid.
    Nothing,
    /// One that could have been the newest was deleted.
    Gone,
}

/// The newest valid one of `versions`, which are listed from the oldest on.
async fn newest<O: Reads>(
    store: &O,
    frame: &zarrs_storage::StorePrefix,
    number: u32,
    versions: &[Version],
) -> Result<Found, StorageError> {
    for version in versions.iter().rev() {
        let key = frame::key_of(frame, number, version)?;
        let Some(object) = store.get(&key).await? else {
            return Ok(Found::Gone);
        };
        if let Some(entry) = Entry::decode(&object) {
            return Ok(Found::Valid(entry));
        }
    }
    Ok(Found::Nothing)
}

fn starved(shard: &StoreKey) -> StorageError {
    StorageError::Other(format!(
        "the shard {shard} was changed each of {ATTEMPTS} times that it was read: wait until less is written to it, and try again"
    ))
}

//! The protocol of frames: how versions of subchunks are written, read and packed into their shard.
//!
//! ```text
//! write:        (one subchunk of a shard, or several by one call)
//!               list the frame
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
//!               get the newest valid version of each subchunk
//!               where the store has times: stop if the shard is younger than one of them, and no receipt has it
//!               read the shard
//!               where the store has times: put a receipt of the new shard
//!               replace it at once, or erase it if all is empty
//!               delete what was listed and valid, oldest first, newest last
//!               where the store has times: list the frame; delete older receipts, and the new one if there is no
//!                     version (see `changed.rs`)
//! ```
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
//! A listing takes time, and goes through a directory in any order. It can find version 7 and miss 6, both put
//! after it began. If 7 was packed and deleted, 6 would be the newest again. All versions below 7 were put before
//! 7 was: a second listing has them. It comes before the versions are read: since 7 is there when it is
//! read, all writers that listed meanwhile have seen it, and none took a version below it. After the shard was replaced
//! this would not be certain: a deletion of 7 that another process began before it died may take effect late, and
//! a writer that lists then begins at 1 again.
//!
//! A write of several subchunks is as many writes of one whose listings are the same ones. Each write of one
//! subchunk needs this alone: its first listing begins when every earlier write of the same subchunk is done, its
//! put comes behind this listing, and its second listing begins when the put is done. How long it waits in between
//! does not matter, nor what the same process puts meanwhile for other subchunks: versions of different subchunks
//! are never compared. A consolidation that deletes a version between the put and the second listing has packed it,
//! and the subchunk is put once more. The turns of all subchunks are taken before the first listing, so another
//! thread of the process cannot write one of them behind that listing.
//!
//! It rests on these assumptions:
//!
//! - What was put is found by all who read or list afterwards. If listings of a store fail silently, writes
//!   are safe, but for erasures of subchunks without a listed version and unless both listings miss the newest
//!   version and the second has the new one; reads and consolidations see the past, and with them a
//!   write of a part of a subchunk, which reads first.
//! - A shard is replaced at once: a process that reads it finds all of the one before or all of the new one,
//!   also by a request for several parts. Objects of frames may be put in part, since they say whether
//!   they are whole.
//! - One writer at a time of each subchunk. Those of one adapter take turns.
//! - One consolidation at a time of each shard, none of which goes on after another one has begun.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{StorageError, StoreKey, StorePrefix};

use super::changed::{NotPacked, Watch};
use super::frame::{self, Entry, Listing, TRAILER_LEN, Version};
use super::marker::Marker;
use super::report::Consolidation;
use crate::error::Error;
use crate::shard::sharding::Sharding;
use crate::shard::subchunk_len::SubchunkLen;
use crate::storage::packing::{Packing, UNCHECKED};
use crate::store::ranges::Merged;
use crate::store::turns::{TakesTurns, Turns, stripe};
use crate::store::{Lists, Reads, Writes};
use zarrs_cuda_engine::layout::Extent;

/// How often a read begins again, because another process has changed what it reads.
const ATTEMPTS: usize = 1000;
/// How often a version is put before its listing shows it as the newest.
const PUTS: usize = 16;
/// How often parts of a shard that cannot be read, or understood, are asked for before all of it is.
const FAILURES: usize = 3;
/// How many versions that are not the last of their subchunk are in memory at once.
const AT_ONCE: usize = 64;
/// How many decoded indices are kept.
const INDICES: usize = 16;

/// Names the writer of a version, differently each time. So deleting one version, however late that takes
/// effect, never deletes another.
pub(super) type Writers = Box<dyn Fn() -> String + Send + Sync>;

/// Shards that are worked on.
pub(super) struct Frames {
    packing: Packing,
    /// How many subchunks a shard has.
    subchunks: usize,
    /// The most bytes that a shard can have, where its codecs say so.
    bound: Option<u64>,
    /// How long an encoded subchunk may be.
    len: SubchunkLen,
    /// Names of the versions that are put here.
    writers: Writers,
    /// The turns of writers.
    turns: Turns,
    /// The turns of consolidations.
    consolidations: Turns,
    marker: Marker,
    /// Indices that were decoded last: most reads of a shard find the same bytes.
    indices: [Mutex<Option<(StoreKey, Decoded)>>; INDICES],
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
            packing: Packing::of(shards)?,
            writers,
            turns: Turns::default(),
            consolidations: Turns::default(),
            marker,
            indices: [const { Mutex::new(None) }; INDICES],
        })
    }

    /// The most bytes that a shard can have, where its codecs say so.
    pub(super) fn bound(&self) -> Option<u64> {
        self.bound
    }

    /// The marker, which tells other programs that the array has frames.
    pub(super) fn marker(&self) -> &Marker {
        &self.marker
    }

    /// The turns of writers.
    pub(super) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// The content of the frame of `shard`.
    pub(super) async fn list<O: Lists>(
        &self,
        store: &O,
        shard: &StoreKey,
    ) -> Result<Listing, StorageError> {
        let frame = frame::prefix_of(shard)?;
        let listed = store.list_dir(&frame).await?;
        Ok(Listing::of(&frame, listed.keys(), self.subchunks))
    }

    /// The most bytes of an encoded subchunk.
    fn most(&self) -> u64 {
        self.len.most().unwrap_or(u64::MAX)
    }

    /// Decodes an object of a frame. Returns `None` if the object is not whole, or has more data than a
    /// subchunk can have.
    fn entry(&self, object: &Bytes) -> Option<Entry> {
        let is_possible = object.len() as u64 <= self.most_of_object();
        is_possible.then(|| Entry::decode(object)).flatten()
    }

    fn most_of_object(&self) -> u64 {
        self.most().saturating_add(TRAILER_LEN as u64)
    }

    /// Write new versions of subchunks of a shard: one of each. The caller has their turns.
    ///
    /// The frame is listed once before all of them, and once behind all of them. An empty subchunk is not erased
    /// again: frames would fill with such objects.
    ///
    /// # Errors
    /// The store's; if a subchunk is longer than one can be. Then any of them may have been written.
    pub(super) async fn write_each<O: Reads + Writes + Lists>(
        &self,
        store: &O,
        shard: &StoreKey,
        entries: BTreeMap<u32, Entry>,
    ) -> Result<(), StorageError> {
        let listing = Arc::new(self.list(store, shard).await?);
        let entries = self.changes(store, shard, entries, &listing).await?;
        let frame = frame::prefix_of(shard)?;
        let mut puts = Vec::with_capacity(entries.len());
        for (number, entry) in entries {
            let object = self.object(shard, number, &entry)?;
            let above = listing.newest(number);
            puts.push((number, above, object));
        }
        if !puts.is_empty() {
            self.marker.put(store).await?;
        }
        for _ in 0..PUTS {
            if puts.is_empty() {
                return Ok(());
            }
            let mut versions = Vec::with_capacity(puts.len());
            let mut objects = Vec::with_capacity(puts.len());
            for (number, above, object) in &puts {
                let version = self.version(shard, *number, *above)?;
                objects.push((frame::key_of(&frame, *number, &version)?, object.clone()));
                versions.push(version);
            }
            store.set_each(&objects).await?;
            if store.returns_each_error() {
                return Ok(());
            }
            let listing = self.list(store, shard).await?;
            let mut versions = versions.into_iter();
            puts.retain_mut(|(number, above, _)| {
                let Some(put) = versions.next() else {
                    return true;
                };
                let is_newest = listing.versions(*number).last() == Some(&put);
                *above = put.version.max(listing.newest(*number));
                !is_newest
            });
        }
        match puts.first() {
            Some(&(number, ..)) => Err(unlisted(shard, number)),
            None => Ok(()),
        }
    }

    /// The `entries` that change something: all but erasures of subchunks that are empty.
    async fn changes<O: Reads + Lists>(
        &self,
        store: &O,
        shard: &StoreKey,
        mut entries: BTreeMap<u32, Entry>,
        listing: &Arc<Listing>,
    ) -> Result<BTreeMap<u32, Entry>, StorageError> {
        let is_erased = |number: u32| entries.get(&number) == Some(&Entry::Tombstone);
        if !entries.keys().any(|&number| is_erased(number)) {
            return Ok(entries);
        }
        let first = Some(listing.clone());
        let present = self.present_of(store, shard, &is_erased, first).await?;
        let present: BTreeSet<usize> = present.into_iter().map(|(number, _)| number).collect();
        entries.retain(|number, entry| {
            *entry != Entry::Tombstone || present.contains(&(*number as usize))
        });
        Ok(entries)
    }

    /// The object of a version of a subchunk.
    fn object(&self, shard: &StoreKey, number: u32, entry: &Entry) -> Result<Bytes, StorageError> {
        let object = entry.encode()?;
        let (len, most) = (object.len() - TRAILER_LEN, self.most());
        if len as u64 > most {
            return Err(StorageError::Other(format!(
                "cannot store {len} bytes as subchunk {number} of the shard {shard}: its codecs need at most {most}. Encode it by the codecs of the array"
            )));
        }
        Ok(object)
    }

    /// A new version of a subchunk, above `above`.
    fn version(&self, shard: &StoreKey, number: u32, above: u64) -> Result<Version, StorageError> {
        let version = above.checked_add(1).ok_or_else(|| {
            StorageError::Other(format!(
                "subchunk {number} of the shard {shard} has a version with the greatest number there is: something else wrote it; erase it"
            ))
        })?;
        Ok(Version {
            version,
            writer: (self.writers)(),
        })
    }

    /// A subchunk, encoded; `None` if it is empty.
    ///
    /// `listing` is used first, which may be of the past: what is read is then at least as new as that.
    /// With `snapshots`, parts of a shard that are read by one request come from one shard.
    ///
    /// # Errors
    /// The store's, and if the shard is invalid.
    pub(super) async fn read<O: Reads + Lists>(
        &self,
        store: &O,
        shard: &StoreKey,
        number: u32,
        mut listing: Option<Arc<Listing>>,
        snapshots: bool,
    ) -> Result<Option<Bytes>, StorageError> {
        let mut failures = 0;
        for _ in 0..ATTEMPTS {
            let listing = match listing.take() {
                Some(listing) => listing,
                None => Arc::new(self.list(store, shard).await?),
            };
            let read = match self.newest(store, shard, number, &listing).await? {
                Found::Valid(entry) => Some(entry.data()),
                Found::Nothing => match self.read_packed(store, shard, number, snapshots).await {
                    Ok(read) => read,
                    Err(error) => {
                        let whole = self.read_whole(store, shard, error, &mut failures);
                        whole.await?.map(|mut subchunks| {
                            let subchunk = subchunks.get_mut(number as usize)?.take();
                            // The rest of the shard is not kept.
                            subchunk.map(|bytes| Bytes::copy_from_slice(&bytes))
                        })
                    }
                },
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
        snapshots: bool,
    ) -> Result<Option<Option<Bytes>>, StorageError> {
        // Most shards have the index that they had when it was read last.
        if snapshots
            && let Some(known) = self.known(shard)
            && let Some(Some(extent)) = known.extents.get(number as usize)
            && let Ok(Some(bytes)) = self
                .read_extent(store, shard, number, extent.clone(), &known)
                .await
        {
            return Ok(Some(Some(bytes)));
        }
        let Some(index) = self.read_index(store, shard).await? else {
            return Ok(Some(None));
        };
        let known = self.decode(shard, &index)?;
        let extent = match known.extents.get(number as usize) {
            Some(Some(extent)) if extent.is_empty() => return Ok(Some(Some(Bytes::new()))),
            Some(Some(extent)) => extent.clone(),
            Some(None) | None => return Ok(Some(None)),
        };
        let read = self
            .read_extent(store, shard, number, extent, &known)
            .await?;
        // Else the store may have made several requests of the last one, in any order.
        let is_same = snapshots || self.read_index(store, shard).await? == Some(known.encoded);
        Ok(read.filter(|_| is_same).map(Some))
    }

    /// The bytes of a shard that are those of a subchunk if it has the index that is `known`; `None` if
    /// it has another one.
    ///
    /// The index is read by the same request, of which a filesystem finds all in one shard. Were it read
    /// by others alone, there could be another shard in between, and then one with this index again.
    async fn read_extent<O: Reads>(
        &self,
        store: &O,
        shard: &StoreKey,
        number: u32,
        extent: std::ops::Range<usize>,
        known: &Decoded,
    ) -> Result<Option<Bytes>, StorageError> {
        let (start, len) = (extent.start as u64, extent.len() as u64);
        let failed = |what: String| {
            StorageError::Other(format!(
                "cannot read the {len} bytes from {start} on of the shard {shard}, where its index has subchunk {number}: {what}"
            ))
        };
        // A store may make room for what is asked before it looks.
        if len > UNCHECKED {
            match store.size(shard).await? {
                Some(size) if extent.end as u64 <= size => {}
                Some(size) => return Err(failed(format!("it has {size}"))),
                None => return Err(failed("its store has no size of it".to_owned())),
            }
        }
        let ranges = vec![
            ByteRange::FromStart(start, Some(len)),
            self.packing.index_range(),
        ];
        let Some(read) = store.get_ranges(shard, ranges).await? else {
            return Ok(None);
        };
        match &read[..] {
            [_, index] if *index != known.encoded => Ok(None),
            [bytes, _] if bytes.len() == extent.len() => Ok(Some(bytes.clone())),
            _ => Err(failed("its store returned others".to_owned())),
        }
    }

    /// All subchunks of a shard, by one request, since parts of it cannot be read, or understood, because
    /// of `error`; `None` if they should be asked for once more.
    ///
    /// A store that asks how long a shard is, and then for a part of a shard of that length, finds
    /// something else if the shard is replaced in between. That comes to an end; and all of a shard can be
    /// much to ask for.
    ///
    /// # Errors
    /// The store's; if the shard is invalid; `error` if its index stays the same, or if it has more bytes
    /// than shards have.
    async fn read_whole<O: Reads>(
        &self,
        store: &O,
        shard: &StoreKey,
        error: StorageError,
        failures: &mut usize,
    ) -> Result<Option<Vec<Option<Bytes>>>, StorageError> {
        *failures += 1;
        if *failures < FAILURES {
            return Ok(None);
        }
        // An index that stays is that of one shard, which is damaged.
        let index = self.read_index(store, shard).await;
        let again = self.read_index(store, shard).await;
        if matches!((index, again), (Ok(Some(index)), Ok(Some(again))) if index == again) {
            return Err(error);
        }
        let size = store.size(shard).await?;
        if self.bound.is_some_and(|bound| size > Some(bound)) {
            return Err(error);
        }
        match store.get(shard).await? {
            Some(object) => self.packing.chunks(shard, &object).map(Some),
            None => Ok(Some(Vec::new())),
        }
    }

    /// The newest valid version of a subchunk in a frame that was listed.
    pub(super) async fn newest<O: Reads>(
        &self,
        store: &O,
        shard: &StoreKey,
        number: u32,
        listing: &Listing,
    ) -> Result<Found, StorageError> {
        let frame = frame::prefix_of(shard)?;
        let versions = listing.versions(number);
        self.newest_of(store, &frame, number, versions).await
    }

    /// The newest valid one of `versions`, which are listed from the oldest on.
    async fn newest_of<O: Reads>(
        &self,
        store: &O,
        frame: &StorePrefix,
        number: u32,
        versions: &[Version],
    ) -> Result<Found, StorageError> {
        for version in versions.iter().rev() {
            let key = frame::key_of(frame, number, version)?;
            let Some(object) = store.get_at_most(&key, self.most_of_object()).await? else {
                return Ok(Found::Gone);
            };
            if let Some(entry) = self.entry(&object) {
                return Ok(Found::Valid(entry));
            }
        }
        Ok(Found::Nothing)
    }

    /// The index of a shard, encoded; `None` if there is no shard.
    async fn read_index<O: Reads>(
        &self,
        store: &O,
        shard: &StoreKey,
    ) -> Result<Option<Bytes>, StorageError> {
        let len = self.packing.index_len() as u64;
        // A store may make room for what is asked before it looks.
        if len > UNCHECKED
            && let Some(size) = store.size(shard).await?
            && size < len
        {
            return Err(StorageError::Other(format!(
                "the shard {shard} has {size} bytes, fewer than its index of {len}: it is truncated"
            )));
        }
        let range = self.packing.index_range();
        let Some(read) = store.get_ranges(shard, vec![range]).await? else {
            return Ok(None);
        };
        let index = read.into_iter().next();
        let index = index.filter(|index| index.len() as u64 == len);
        index.map(Some).ok_or_else(|| {
            StorageError::Other(format!(
                "the store did not return the {len} bytes of the index of the shard {shard}"
            ))
        })
    }

    fn slot(&self, shard: &StoreKey) -> MutexGuard<'_, Option<(StoreKey, Decoded)>> {
        self.indices[stripe(shard) % INDICES]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The index that the shard had when it was decoded last.
    fn known(&self, shard: &StoreKey) -> Option<Decoded> {
        match &*self.slot(shard) {
            Some((of, known)) if of == shard => Some(known.clone()),
            _ => None,
        }
    }

    /// Know of no index.
    #[cfg(test)]
    pub(super) fn forget(&self) {
        for slot in &self.indices {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Where the subchunks lie, in a shard that could have any size.
    fn decode(&self, shard: &StoreKey, encoded: &Bytes) -> Result<Decoded, StorageError> {
        if let Some(known) = self.known(shard)
            && known.encoded == *encoded
        {
            return Ok(known);
        }
        let extents = self.packing.extents(shard, encoded, u64::MAX);
        let decoded = Decoded {
            // A part of something larger would keep all of it.
            encoded: Bytes::copy_from_slice(encoded),
            extents: extents?.into(),
        };
        *self.slot(shard) = Some((shard.clone(), decoded.clone()));
        Ok(decoded)
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
        self.present_of(store, shard, &|_| true, None).await
    }

    /// Does the same as [`present`](Self::present) for the subchunks that are `wanted`. `listing` is used first.
    async fn present_of<O: Reads + Lists>(
        &self,
        store: &O,
        shard: &StoreKey,
        wanted: &(dyn Fn(u32) -> bool + Sync),
        mut listing: Option<Arc<Listing>>,
    ) -> Result<Vec<(usize, u64)>, StorageError> {
        let mut failures = 0;
        'again: for _ in 0..ATTEMPTS {
            let listing = match listing.take() {
                Some(listing) => listing,
                None => Arc::new(self.list(store, shard).await?),
            };
            let frame = frame::prefix_of(shard)?;
            let mut sizes = BTreeMap::new();
            for (number, versions) in listing.iter().filter(|(number, _)| wanted(*number)) {
                match self.newest_of(store, &frame, number, versions).await? {
                    Found::Valid(entry) => {
                        let size = entry.data().map(|data| data.len() as u64);
                        sizes.insert(number as usize, size);
                    }
                    Found::Nothing => {}
                    Found::Gone => continue 'again,
                }
            }
            let mut unknown = (0_u32..)
                .take(self.subchunks)
                .filter(|&number| wanted(number) && !sizes.contains_key(&(number as usize)));
            let packed = if unknown.next().is_none() {
                Ok(Vec::new())
            } else {
                self.packed_sizes(store, shard).await
            };
            let packed = match packed {
                Ok(packed) => packed,
                Err(error) => {
                    let whole = self.read_whole(store, shard, error, &mut failures);
                    let Some(subchunks) = whole.await? else {
                        continue;
                    };
                    let sizes = subchunks.into_iter();
                    sizes
                        .map(|bytes| bytes.map(|bytes| bytes.len() as u64))
                        .collect()
                }
            };
            for (number, size) in packed.into_iter().enumerate() {
                if size.is_some() && u32::try_from(number).is_ok_and(wanted) {
                    sizes.entry(number).or_insert(size);
                }
            }
            let present = sizes.into_iter();
            return Ok(present
                .filter_map(|(number, size)| Some((number, size?)))
                .collect());
        }
        Err(starved(shard))
    }

    /// The size of each subchunk of the shard itself that there is.
    async fn packed_sizes<O: Reads>(
        &self,
        store: &O,
        shard: &StoreKey,
    ) -> Result<Vec<Option<u64>>, StorageError> {
        let Some(index) = self.read_index(store, shard).await? else {
            return Ok(Vec::new());
        };
        let extents = self.decode(shard, &index)?.extents;
        let sizes = extents.iter();
        Ok(sizes
            .map(|extent| extent.as_ref().map(|extent| extent.len() as u64))
            .collect())
    }

    /// Pack the frame of a shard into it, which `shards` replaces. `None` if there is no frame.
    ///
    /// # Errors
    /// The store's; if the shard is invalid; if another process consolidates it.
    pub(super) async fn consolidate<O, R>(
        &self,
        store: &O,
        shards: &R,
        shard: &StoreKey,
        watch: &Watch,
    ) -> Result<Option<Consolidation>, NotPacked>
    where
        O: Reads + Writes + Lists + TakesTurns,
        R: ReplacesShards,
    {
        let _turn = store.turn(&self.consolidations, shard).await;
        let mut listing = self.list(store, shard).await?;
        if !listing.is_empty() {
            let again = self.list(store, shard).await?;
            if let Some(number) = again.misses_newest_of(&listing) {
                return Err(NotPacked::Store(StorageError::Other(format!(
                    "a second listing of the frame of the shard {shard} has not the newest version of subchunk {number} that the first had: a listing failed and did not say so, or somebody else consolidates the shard. Nothing was changed. See to it that one consolidates at a time and that the process may open enough files (`ulimit -n`), and try again"
                ))));
            }
            listing.add_older(again);
        }
        let mut done = Consolidation {
            not_utf_8: listing.not_utf_8(),
            ..Consolidation::default()
        };
        let frame = frame::prefix_of(shard)?;
        let mut versions = self.versions(store, shard, &listing).await?;
        done.invalid = versions.invalid.len();
        if versions.newest.is_empty() {
            if done.invalid == 0 {
                // A consolidation died behind its last deletion of a version.
                let old = listing.receipts().iter().map(|old| old.key(&frame));
                let old: Vec<_> = old.collect::<Result<_, _>>()?;
                store.erase_each(&old).await?;
            }
            if done.invalid == 0 && done.not_utf_8 == 0 {
                return Ok(None);
            }
            // The shard stays as it is.
            done.before = store.size(shard).await?.unwrap_or(0);
            done.after = done.before;
            return Ok(Some(done));
        }
        let newest = versions.newest.iter();
        let newest = newest.map(|(&number, (key, _))| (number, key));
        let check = watch.check(store, shard, &frame, newest, listing.receipts());
        check.await?;
        done.subchunks = versions.newest.len();
        let older = versions.older.values().map(Vec::len).sum::<usize>();
        done.versions = older + versions.newest.len();
        let mut subchunks = vec![None; self.subchunks];
        let mut keys = Vec::with_capacity(versions.newest.len());
        for (number, (key, entry)) in std::mem::take(&mut versions.newest) {
            if let Some(subchunk) = subchunks.get_mut(number as usize) {
                *subchunk = Some(entry);
            }
            keys.push(key);
        }
        done.before = self.complete(store, shard, &mut subchunks).await?;
        let subchunks = subchunks.into_iter().map(|entry| entry?.data());
        let subchunks: Vec<_> = subchunks.collect();
        let object = self.packing.pack(shard, &subchunks)?;
        drop(subchunks);
        done.after = object.as_ref().map_or(0, |object| object.len() as u64);
        let receipt = watch.receipt(object.as_ref());
        if let Some(receipt) = &receipt {
            let content = Bytes::from_static(b"packed");
            store.set(&receipt.key(&frame)?, content).await?;
        }
        shards.replace(shard, object).await?;
        for round in versions.rounds_of_older() {
            store.erase_each(&round).await?;
        }
        store.erase_each(&keys).await?;
        if watch.is_on() {
            let left = self.list(store, shard).await?;
            // A version that is left may be older than the new shard.
            let stays = receipt.filter(|_| !left.is_empty());
            let old = left.receipts().iter();
            let old = old.filter(|&receipt| Some(*receipt) != stays);
            let old: Vec<_> = old.map(|old| old.key(&frame)).collect::<Result<_, _>>()?;
            store.erase_each(&old).await?;
        }
        Ok(Some(done))
    }

    /// Erase the objects in the frame of a shard that are not whole. Returns how many there were.
    ///
    /// # Errors
    /// The store's; if another process consolidates the shard.
    pub(super) async fn discard_invalid<O: Reads + Writes + Lists + TakesTurns>(
        &self,
        store: &O,
        shard: &StoreKey,
    ) -> Result<usize, StorageError> {
        let _turn = store.turn(&self.consolidations, shard).await;
        let listing = self.list(store, shard).await?;
        let invalid = self.versions(store, shard, &listing).await?.invalid;
        store.erase_each(&invalid).await?;
        Ok(invalid.len())
    }

    /// Get what is listed.
    async fn versions<O: Reads>(
        &self,
        store: &O,
        shard: &StoreKey,
        listing: &Listing,
    ) -> Result<Versions, StorageError> {
        let frame = frame::prefix_of(shard)?;
        let gone = |key: &StoreKey| {
            StorageError::Other(format!(
                "{key} was deleted meanwhile: somebody else consolidates the shard {shard}. See to it that one does at a time, and try again"
            ))
        };
        let mut versions = Versions::default();
        let mut add = |number, key: StoreKey, object: Option<Bytes>| {
            let object = object.ok_or_else(|| gone(&key))?;
            match self.entry(&object) {
                None => versions.invalid.push(key),
                Some(_) if versions.newest.contains_key(&number) => {
                    versions.older.entry(number).or_default().push(key);
                }
                Some(entry) => {
                    versions.newest.insert(number, (key, entry));
                }
            }
            Ok::<_, StorageError>(())
        };
        // The last of each subchunk are as many bytes as a shard has. Of the others there can be more.
        let (mut last, mut others) = (Vec::new(), Vec::new());
        for (number, versions) in listing.iter() {
            let mut keys = Vec::with_capacity(versions.len());
            for version in versions {
                keys.push((number, frame::key_of(&frame, number, version)?));
            }
            last.extend(keys.pop());
            others.extend(keys.into_iter().rev());
        }
        let others = others.chunks(AT_ONCE);
        for some in std::iter::once(&last[..]).chain(others) {
            let keys: Vec<_> = some.iter().map(|(_, key)| key.clone()).collect();
            let objects = store.get_each_at_most(&keys, self.most_of_object()).await?;
            for ((number, key), object) in std::iter::zip(some, objects) {
                add(*number, key.clone(), object)?;
            }
        }
        Ok(versions)
    }

    /// Read those of `subchunks` that are `None` from the shard: its size. Nobody else replaces it
    /// meanwhile.
    async fn complete<O: Reads>(
        &self,
        store: &O,
        shard: &StoreKey,
        subchunks: &mut [Option<Entry>],
    ) -> Result<u64, StorageError> {
        if subchunks.iter().all(Option::is_some) {
            // No subchunk is needed from the shard, whatever the shard is.
            return Ok(store.size(shard).await?.unwrap_or(0));
        }
        let unusable = |error: StorageError| {
            let what = format!(
                "{error}. Nothing of its frame is lost. If the shard is damaged, put a copy in its place, or write all of its {} subchunks, and consolidate it then",
                self.subchunks
            );
            match error {
                StorageError::IOError(error) => io::Error::new(error.kind(), what).into(),
                // It is shorter than its index.
                StorageError::InvalidByteRangeError(_) => {
                    io::Error::new(io::ErrorKind::InvalidData, what).into()
                }
                _ => StorageError::Other(what),
            }
        };
        let index = self.read_index(store, shard).await.map_err(unusable)?;
        let Some(index) = index else {
            return Ok(0);
        };
        // Some stores have no size of what they cannot look at.
        let size = store.size(shard).await?.ok_or_else(|| {
            StorageError::Other(format!(
                "the store says that there is a shard {shard}, and that it has no size: try again"
            ))
        })?;
        let extents = self.packing.extents(shard, &index, size);
        let extents = extents.map_err(unusable)?;
        let missing = |(number, subchunk): (usize, &Option<Entry>)| {
            let extent = extents.get(number)?.as_ref()?;
            let range = extent.start as u64..extent.end as u64;
            subchunk.is_none().then_some((number, range))
        };
        let missing: Vec<_> = subchunks.iter().enumerate().filter_map(missing).collect();
        // Subchunks may share bytes; but they are not more than subchunks can be.
        let sum = missing.iter().try_fold(0_u64, |sum, (_, range)| {
            sum.checked_add(range.end - range.start)
        });
        let most = self.bound.unwrap_or(0).max(size);
        if sum.is_none_or(|sum| sum > most) {
            return Err(unusable(StorageError::Other(format!(
                "the index of the shard {shard} has subchunks of more than {most} bytes together, and the shard has {size}"
            ))));
        }
        // Subchunks that lie together are read together.
        let merged = Merged::of(missing.iter().map(|(_, range)| range.clone()));
        let read = if merged.is_empty() {
            Vec::new()
        } else {
            let read = store.get_ranges(shard, merged.byte_ranges()).await?;
            read.unwrap_or_default()
        };
        for (number, range) in missing {
            let bytes = merged.slice(&read, &range).ok_or_else(|| {
                StorageError::Other(format!(
                    "the shard {shard} became shorter while it was read: somebody else consolidates or writes it. See to it that nobody does, and try again"
                ))
            })?;
            subchunks[number] = Some(Entry::Data(bytes));
        }
        Ok(size)
    }
}

/// The versions of a shard's subchunks.
#[derive(Default)]
struct Versions {
    /// The newest of each subchunk.
    newest: BTreeMap<u32, (StoreKey, Entry)>,
    /// The others of each, older ones behind newer ones.
    older: BTreeMap<u32, Vec<StoreKey>>,
    /// Objects that are not whole.
    invalid: Vec<StoreKey>,
}

impl Versions {
    /// The older versions in the order in which they are deleted: those of a subchunk one after the other,
    /// the oldest first.
    ///
    /// A listing takes time on some stores. It may miss the newest version, which came when it had
    /// begun, and one before that, which was deleted meanwhile: it must not find a still older one then.
    fn rounds_of_older(mut self) -> Vec<Vec<StoreKey>> {
        let mut rounds = Vec::new();
        loop {
            let round: Vec<_> = self.older.values_mut().filter_map(Vec::pop).collect();
            if round.is_empty() {
                return rounds;
            }
            rounds.push(round);
        }
    }
}

/// The result of reading the listed versions of a subchunk.
pub(super) enum Found {
    Valid(Entry),
    /// None of them is valid.
    Nothing,
    /// One that could have been the newest was deleted.
    Gone,
}

fn unlisted(shard: &StoreKey, number: u32) -> StorageError {
    StorageError::Other(format!(
        "subchunk {number} of the shard {shard} was put {PUTS} times, and each time its frame was listed without it, or with newer versions: see whether listings of the store fail, and whether another process writes the subchunk, and try again"
    ))
}

fn starved(shard: &StoreKey) -> StorageError {
    StorageError::Other(format!(
        "the shard {shard} was changed each of {ATTEMPTS} times that it was read: wait until less is written to it, and try again"
    ))
}

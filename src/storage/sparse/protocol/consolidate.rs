//! Packs the frame of a shard into the shard.

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;
use zarrs_storage::{StorageError, StoreKey};

use super::{Frames, ReplacesShards};
use crate::storage::sparse::changed::{NotPacked, Watch};
use crate::storage::sparse::frame::{self, Entry, Listing};
use crate::storage::sparse::report::Consolidation;
use crate::store::key_locks::LocksKeys;
use crate::store::ranges::Merged;
use crate::store::{Lists, Reads, Writes};

/// The most older versions that are in memory at once. The newest version of each subchunk is not counted.
const AT_ONCE: usize = 64;

impl Frames {
    /// Packs the frame of a shard into the shard, and replaces the shard through `shards`. Returns `None` if
    /// there is no frame.
    ///
    /// # Errors
    /// The errors of the store, of an invalid shard, and of another process that consolidates the shard.
    pub(in crate::storage::sparse) async fn consolidate<O, R>(
        &self,
        store: &O,
        shards: &R,
        shard: &StoreKey,
        watch: &Watch,
    ) -> Result<Option<Consolidation>, NotPacked>
    where
        O: Reads + Writes + Lists + LocksKeys,
        R: ReplacesShards,
    {
        let _lock = store.lock_key(&self.consolidations, shard).await;
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
                // A receipt without versions is left if a consolidation died after it had deleted all
                // versions.
                let old = listing.receipts().iter().map(|old| old.key(&frame));
                let old: Vec<_> = old.collect::<Result<_, _>>()?;
                store.erase_each(&old).await?;
            }
            if done.invalid == 0 && done.not_utf_8 == 0 {
                return Ok(None);
            }
            // Without valid versions, the shard stays as it is.
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
        let object = self.layout.pack(shard, &subchunks)?;
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
            // If a version is left, it may be older than the new shard, so the receipt stays.
            let stays = receipt.filter(|_| !left.is_empty());
            let old = left.receipts().iter();
            let old = old.filter(|&receipt| Some(*receipt) != stays);
            let old: Vec<_> = old.map(|old| old.key(&frame)).collect::<Result<_, _>>()?;
            store.erase_each(&old).await?;
        }
        Ok(Some(done))
    }

    /// Erases the incomplete objects in the frame of a shard. Returns how many there were.
    ///
    /// # Errors
    /// The errors of the store, and of another process that consolidates the shard.
    pub(in crate::storage::sparse) async fn discard_invalid<
        O: Reads + Writes + Lists + LocksKeys,
    >(
        &self,
        store: &O,
        shard: &StoreKey,
    ) -> Result<usize, StorageError> {
        let _lock = store.lock_key(&self.consolidations, shard).await;
        let listing = self.list(store, shard).await?;
        let invalid = self.versions(store, shard, &listing).await?.invalid;
        store.erase_each(&invalid).await?;
        Ok(invalid.len())
    }

    /// Reads the versions that are listed.
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
        // The newest versions of all subchunks take as many bytes as a shard. The older versions may take
        // more.
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

    /// Reads the entries of `subchunks` that are `None` from the shard. Returns the size of the shard. No
    /// other process replaces the shard meanwhile.
    async fn complete<O: Reads>(
        &self,
        store: &O,
        shard: &StoreKey,
        subchunks: &mut [Option<Entry>],
    ) -> Result<u64, StorageError> {
        if subchunks.iter().all(Option::is_some) {
            // Every subchunk has a version in the frame, so the shard need not be valid.
            return Ok(store.size(shard).await?.unwrap_or(0));
        }
        let unusable = |error: StorageError| {
            let what = format!(
                "{error}. Nothing of its frame is lost. If the shard is damaged, put a copy in its place, or write all of its {} subchunks, and consolidate it then",
                self.subchunks
            );
            match error {
                StorageError::IOError(error) => io::Error::new(error.kind(), what).into(),
                // The shard is shorter than its index says.
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
        // Some stores return no size for a value that they cannot look at.
        let size = store.size(shard).await?.ok_or_else(|| {
            StorageError::Other(format!(
                "the store says that there is a shard {shard}, and that it has no size: try again"
            ))
        })?;
        let extents = self.layout.extents(shard, &index, size);
        let extents = extents.map_err(unusable)?;
        let missing = |(number, subchunk): (usize, &Option<Entry>)| {
            let extent = extents.get(number)?.as_ref()?;
            let range = extent.start as u64..extent.end as u64;
            subchunk.is_none().then_some((number, range))
        };
        let missing: Vec<_> = subchunks.iter().enumerate().filter_map(missing).collect();
        // Extents of an index may overlap, but their sum must not exceed what subchunks can have.
        let sum = missing.iter().try_fold(0_u64, |sum, (_, range)| {
            sum.checked_add(range.end - range.start)
        });
        let most = self.bound.unwrap_or(0).max(size);
        if sum.is_none_or(|sum| sum > most) {
            return Err(unusable(StorageError::Other(format!(
                "the index of the shard {shard} has subchunks of more than {most} bytes together, and the shard has {size}"
            ))));
        }
        // Adjacent subchunks are read as one range.
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
    /// The newest valid version of each subchunk: its key and its content.
    newest: BTreeMap<u32, (StoreKey, Entry)>,
    /// The keys of the other valid versions of each subchunk, the newest first.
    older: BTreeMap<u32, Vec<StoreKey>>,
    /// The keys of incomplete objects.
    invalid: Vec<StoreKey>,
}

impl Versions {
    /// Returns the older versions in rounds, in the order in which the rounds are deleted: in each round one
    /// version of each subchunk, the oldest first.
    ///
    /// A listing takes time on some stores. It may miss the newest version, which was put after the listing
    /// began, and the version before it, which was deleted meanwhile. It must not find a still older version
    /// then.
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

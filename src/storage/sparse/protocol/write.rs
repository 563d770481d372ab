//! Writes new versions of subchunks into the frame of their shard.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use zarrs_storage::{StorageError, StoreKey};

use super::Frames;
use crate::storage::sparse::frame::{self, Entry, Listing, TRAILER_LEN, Version};
use crate::store::{Lists, Reads, Writes};

/// The number of times that a version is put until a listing shows it as the newest.
const PUTS: usize = 16;

impl Frames {
    /// Writes one new version of each of some subchunks of a shard. The caller holds their locks.
    ///
    /// The frame is listed once before all puts, and once after them. An empty subchunk is not erased again:
    /// otherwise frames would fill with tombstones.
    ///
    /// # Errors
    /// The errors of the store, and of a subchunk that is longer than an encoded subchunk can be. After an
    /// error, any of the versions may have been written.
    pub(in crate::storage::sparse) async fn write_each<O: Reads + Writes + Lists>(
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

    /// Returns the `entries` without those that erase an empty subchunk.
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

    /// Returns the object that stores a version of a subchunk.
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

    /// Returns a new version of a subchunk, with a number higher than `above`.
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
}

fn unlisted(shard: &StoreKey, number: u32) -> StorageError {
    StorageError::Other(format!(
        "subchunk {number} of the shard {shard} was put {PUTS} times, and each time its frame was listed without it, or with newer versions: see whether listings of the store fail, and whether another process writes the subchunk, and try again"
    ))
}

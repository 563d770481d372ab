//! Reads one subchunk, from its frame or from its shard.

use std::sync::Arc;

use bytes::Bytes;
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{StorageError, StoreKey};

use super::Frames;
use super::newest::NewestVersion;
use super::packed_index::DecodedIndex;
use crate::storage::chunk_layout::UNCHECKED;
use crate::storage::sparse::frame::Listing;
use crate::store::{Lists, Reads};

/// The number of times that a read begins again because another process has changed what it reads.
pub(super) const ATTEMPTS: usize = 1000;

/// The number of times that parts of a shard are read in vain before the whole shard is read.
const FAILURES: usize = 3;

impl Frames {
    /// Returns a subchunk, encoded; `None` if it is empty.
    ///
    /// `listing`, which may be old, is used first: the result is at least as new as that listing. `snapshots`
    /// says that all parts of a shard that one request reads come from one version of the shard.
    ///
    /// # Errors
    /// The errors of the store, and of an invalid shard.
    pub(in crate::storage::sparse) async fn read<O: Reads + Lists>(
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
                NewestVersion::Valid(entry) => Some(entry.data()),
                NewestVersion::Nothing => {
                    match self.read_packed(store, shard, number, snapshots).await {
                        Ok(read) => read,
                        Err(error) => {
                            let whole = self.read_whole(store, shard, error, &mut failures);
                            whole.await?.map(|mut subchunks| {
                                let subchunk = subchunks.get_mut(number as usize)?.take();
                                // A copy lets the rest of the shard's memory be freed.
                                subchunk.map(|bytes| Bytes::copy_from_slice(&bytes))
                            })
                        }
                    }
                }
                NewestVersion::Gone => None,
            };
            if let Some(read) = read {
                return Ok(read);
            }
        }
        Err(starved(shard))
    }

    /// Returns a subchunk of the shard itself, without its frame: `Some(None)` if it is empty; `None` if the
    /// shard was replaced during the read.
    async fn read_packed<O: Reads>(
        &self,
        store: &O,
        shard: &StoreKey,
        number: u32,
        snapshots: bool,
    ) -> Result<Option<Option<Bytes>>, StorageError> {
        // Most shards still have the index that was read last.
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
        // Without snapshots, the store may have read the parts of the last request one by one, in any order.
        let is_same = snapshots || self.read_index(store, shard).await? == Some(known.encoded);
        Ok(read.filter(|_| is_same).map(Some))
    }

    /// Returns the bytes of a subchunk from a shard that has the index `known`; `None` if the shard has
    /// another index.
    ///
    /// The same request reads the index, and a filesystem serves one request from one version of the shard.
    /// If the index were read only before and after, another shard could have been there in between.
    async fn read_extent<O: Reads>(
        &self,
        store: &O,
        shard: &StoreKey,
        number: u32,
        extent: std::ops::Range<usize>,
        known: &DecodedIndex,
    ) -> Result<Option<Bytes>, StorageError> {
        let (start, len) = (extent.start as u64, extent.len() as u64);
        let failed = |what: String| {
            StorageError::Other(format!(
                "cannot read the {len} bytes from {start} on of the shard {shard}, where its index has subchunk {number}: {what}"
            ))
        };
        // A store may allocate the requested bytes before it looks at the value.
        if len > UNCHECKED {
            match store.size(shard).await? {
                Some(size) if extent.end as u64 <= size => {}
                Some(size) => return Err(failed(format!("it has {size}"))),
                None => return Err(failed("its store has no size of it".to_owned())),
            }
        }
        let ranges = vec![
            ByteRange::FromStart(start, Some(len)),
            self.layout.index_range(),
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

    /// Returns all subchunks of a shard by one request, because parts of it could not be read or decoded,
    /// with `error`. Returns `None` if the caller should read the parts once more.
    ///
    /// A store may ask for the size of a shard, and then for a part of a shard of that size. If the shard is
    /// replaced in between, the part is wrong. Such failures end after a few reads, and a whole shard may be
    /// large.
    ///
    /// # Errors
    /// The errors of the store, and of an invalid shard. `error` if two reads find the same index, or if the
    /// shard has more bytes than a shard can have.
    pub(super) async fn read_whole<O: Reads>(
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
        // An index that stays the same belongs to one version of the shard, which is damaged.
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
            Some(object) => self.layout.chunks(shard, &object).map(Some),
            None => Ok(Some(Vec::new())),
        }
    }
}

pub(super) fn starved(shard: &StoreKey) -> StorageError {
    StorageError::Other(format!(
        "the shard {shard} was changed each of {ATTEMPTS} times that it was read: wait until less is written to it, and try again"
    ))
}

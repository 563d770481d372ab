//! Writes many subchunks by one call: subchunks are kept first, and then the frame of each shard is listed
//! once for all of them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use zarrs_storage::byte_range::ByteRange;
#[cfg(feature = "async")]
use zarrs_storage::{
    AsyncListableStorageTraits, AsyncReadableStorageTraits, AsyncWritableStorageTraits,
};
use zarrs_storage::{
    ListableStorageTraits, ReadableStorageTraits, StorageError, StoreKey, StorePrefix,
    WritableStorageTraits,
};

use super::frame::{Entry, Listing};
use super::{SparseArray, SparseShardStore};
use crate::error::Error;
use crate::storage::zarrs_traits::reads_and_writes;
#[cfg(feature = "async")]
use crate::store::Awaited;
use crate::store::key_locks::{KeyLocks, LocksKeys};
use crate::store::ranges::{slice, with_parts};
use crate::store::{Blocking, Lists, Reads, Writes, now};

/// A store that keeps the subchunks that it is given until [`write`](Self::write).
///
/// A batch is a [`SparseShardStore`] for one call that writes many subchunks, such as zarrs'
/// `store_array_subset`. Through the adapter itself, each subchunk is written alone: a shard of
/// 2,048 subchunks is listed 2,048 times, each time with more objects in its frame. `write` lists
/// the frame of each shard once, stores all subchunks, several at once, and lists the frame once
/// more where listings may fail silently.
///
/// ```
/// # use std::sync::Arc;
/// # use zarrs::array::{Array, ArrayBuilder, data_type};
/// use zarrs_cuda::storage::SparseShardStore;
///
/// # let store = Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0u16);
/// # builder.subchunk_shape(vec![8, 8]).build(store.clone(), "/volume")?.store_metadata()?;
/// let sparse = Arc::new(SparseShardStore::open(store, "/volume")?);
/// let subchunks = Array::open(sparse.clone(), "/volume")?;
///
/// let batch = Arc::new(sparse.batch());
/// let kept = subchunks.with_storage(batch.clone());
/// kept.store_array_subset(&[0..40, 0..64], vec![1_u16; 40 * 64])?;
/// batch.write()?;
/// assert_eq!(subchunks.retrieve_array_subset::<Vec<u16>>(&[39..41, 63..64])?, [1, 0]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// - The encoded subchunks are in memory until they are written.
/// - A read through the batch returns the subchunk that the batch keeps, or else the adapter's. The batch
///   lists the frame of a shard once, when it first reads one of the shard's subchunks.
/// - **A batch that is dropped has not written** the subchunks that it was given since the last `write`.
/// - The rules of the adapter hold. Nothing else may write a subchunk from the moment that a part
///   of it is changed through the batch until `write` returns.
/// - Everything but subchunks is passed on to the adapter at once. A batch lists nothing, and
///   erases no prefixes.
pub struct SubchunkBatch<S: ?Sized> {
    core: SparseBatch,
    store: Arc<S>,
}

/// All of a batch except its store.
pub(super) struct SparseBatch {
    array: SparseArray,
    shards: Mutex<BTreeMap<StoreKey, BatchOfShard>>,
    /// The locks of frames, so that only one thread lists a frame.
    key_locks: KeyLocks,
}

/// The subchunks of one shard that a batch keeps.
#[derive(Default)]
struct BatchOfShard {
    /// The key of each subchunk, and its new content.
    entries: BTreeMap<u32, (StoreKey, Entry)>,
    /// The frame as it was before the batch first read a subchunk of the shard.
    listing: Option<Arc<Listing>>,
}

impl SparseBatch {
    pub(super) fn of(array: SparseArray) -> Self {
        Self {
            array,
            shards: Mutex::default(),
            key_locks: KeyLocks::default(),
        }
    }

    fn shards(&self) -> MutexGuard<'_, BTreeMap<StoreKey, BatchOfShard>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the shard and the number of the subchunk with this key; `None` if the key is not that of a
    /// subchunk.
    fn place(&self, key: &StoreKey) -> Result<Option<(StoreKey, u32)>, StorageError> {
        let chunk = self.array.keys.parse(key.as_str());
        chunk.map(|chunk| self.array.place(&chunk)).transpose()
    }

    fn keep(&self, key: &StoreKey, (shard, number): (StoreKey, u32), entry: Entry) {
        let mut shards = self.shards();
        let kept = shards.entry(shard).or_default();
        kept.entries.insert(number, (key.clone(), entry));
    }

    async fn get<O: Reads + Lists + LocksKeys>(
        &self,
        store: &O,
        key: &StoreKey,
    ) -> Result<Option<Bytes>, StorageError> {
        let Some((shard, number)) = self.place(key)? else {
            return self.array.get(store, key).await;
        };
        let known = || {
            let shards = self.shards();
            let kept = shards.get(&shard)?;
            let entry = kept.entries.get(&number).map(|(_, entry)| entry.clone());
            Some((entry, kept.listing.clone()))
        };
        let mut found = known().unwrap_or_default();
        if let (None, None) = found {
            let _lock = store.lock_key(&self.key_locks, &shard).await;
            found = known().unwrap_or_default();
            if let (None, None) = found {
                let listing = self.array.list(store, &shard, true).await?;
                self.shards().entry(shard.clone()).or_default().listing = Some(listing.clone());
                found.1 = Some(listing);
            }
        }
        match found {
            (Some(entry), _) => Ok(entry.data()),
            (None, listing) => self.array.read(store, &shard, number, listing).await,
        }
    }

    async fn get_ranges<O: Reads + Lists + LocksKeys>(
        &self,
        store: &O,
        key: &StoreKey,
        ranges: Vec<ByteRange>,
    ) -> Result<Option<Vec<Bytes>>, StorageError> {
        if self.place(key)?.is_none() {
            return self.array.get_ranges(store, key, ranges).await;
        }
        let Some(value) = self.get(store, key).await? else {
            return Ok(None);
        };
        let parts = ranges.into_iter().map(|range| slice(&value, range));
        parts.collect::<Result<_, _>>().map(Some)
    }

    async fn size<O: Reads + Lists + LocksKeys>(
        &self,
        store: &O,
        key: &StoreKey,
    ) -> Result<Option<u64>, StorageError> {
        if self.place(key)?.is_none() {
            return self.array.size(store, key).await;
        }
        let value = self.get(store, key).await?;
        Ok(value.map(|value| value.len() as u64))
    }

    pub(super) async fn set<O: Reads + Writes + Lists + LocksKeys>(
        &self,
        store: &O,
        key: &StoreKey,
        value: Bytes,
    ) -> Result<(), StorageError> {
        let Some(place) = self.place(key)? else {
            return self.array.set(store, key, value).await;
        };
        self.array.check_writable(key.as_str())?;
        self.keep(key, place, Entry::Data(value));
        Ok(())
    }

    pub(super) async fn set_ranges<O: Reads + Writes + Lists + LocksKeys>(
        &self,
        store: &O,
        key: &StoreKey,
        parts: Vec<(u64, Bytes)>,
    ) -> Result<(), StorageError> {
        let Some(place) = self.place(key)? else {
            return self.array.set_ranges(store, key, parts).await;
        };
        self.array.check_writable(key.as_str())?;
        let value = self.get(store, key).await?.unwrap_or_default();
        let value = with_parts(key, value, &parts)?;
        self.keep(key, place, Entry::Data(value));
        Ok(())
    }

    pub(super) async fn erase_each<O: Reads + Writes + Lists + LocksKeys>(
        &self,
        store: &O,
        keys: &[StoreKey],
    ) -> Result<(), StorageError> {
        for key in keys {
            match self.place(key)? {
                Some(place) => {
                    self.array.check_writable(key.as_str())?;
                    self.keep(key, place, Entry::Tombstone);
                }
                None => self.array.erase(store, key).await?,
            }
        }
        Ok(())
    }

    #[allow(clippy::unused_async, reason = "as the other operations")]
    async fn erase_prefix<O>(&self, _: &O, prefix: &StorePrefix) -> Result<(), StorageError> {
        Err(StorageError::Unsupported(format!(
            "cannot erase the prefix {prefix} through a batch of subchunks: erase it through the adapter"
        )))
    }

    pub(super) async fn write<O: Reads + Writes + Lists + LocksKeys>(
        &self,
        store: &O,
    ) -> Result<(), Error> {
        let mut shards = std::mem::take(&mut *self.shards());
        while let Some((shard, kept)) = shards.pop_first() {
            let keys = kept.entries.values().map(|(key, _)| key.clone());
            let keys: Vec<StoreKey> = keys.collect();
            if keys.is_empty() {
                continue;
            }
            let entries = kept.entries.iter();
            let entries = entries.map(|(&number, (_, entry))| (number, entry.clone()));
            let entries: BTreeMap<u32, Entry> = entries.collect();
            let frames = &self.array.frames;
            let locks = store.lock_keys(frames.key_locks(), &keys).await;
            let written = frames.write_each(store, &shard, entries).await;
            drop(locks);
            if let Err(source) = written {
                // Subchunks that were given during the failed write are newer than those that it took.
                shards.insert(shard.clone(), kept);
                let mut now = self.shards();
                for (shard, kept) in shards {
                    let newer = now.entry(shard).or_default();
                    for (number, entry) in kept.entries {
                        newer.entries.entry(number).or_insert(entry);
                    }
                }
                return Err(Error::Storage {
                    doing: "store subchunks beside",
                    key: shard,
                    source,
                });
            }
        }
        Ok(())
    }
}

impl<S: ?Sized> SparseShardStore<S> {
    /// Returns an empty batch, for a call that writes many subchunks.
    #[must_use]
    pub fn batch(&self) -> SubchunkBatch<S> {
        SubchunkBatch {
            core: SparseBatch::of(self.array.clone()),
            store: self.store.clone(),
        }
    }
}

impl<S: ?Sized> SubchunkBatch<S> {
    fn blocking(&self) -> Blocking<'_, S> {
        Blocking::new(&*self.store).with_files(self.core.array.files.as_ref())
    }

    #[cfg(feature = "async")]
    fn awaited(&self) -> Awaited<'_, S> {
        Awaited(&*self.store)
    }
}

impl<S> SubchunkBatch<S>
where
    S: ReadableStorageTraits + WritableStorageTraits + ListableStorageTraits + ?Sized,
{
    /// Writes all subchunks that the batch keeps, one shard after the other.
    ///
    /// If the process dies meanwhile, each subchunk is as it was, or as written.
    ///
    /// # Errors
    /// [`Error::Storage`] with the shard if the store fails, or if a subchunk is longer than an encoded
    /// subchunk can be. Some subchunks of the shard may have been written. The batch keeps all subchunks of
    /// this shard and of the shards after it: call `write` again.
    pub fn write(&self) -> Result<(), Error> {
        now(self.core.write(&self.blocking()))
    }
}

#[cfg(feature = "async")]
impl<S> SubchunkBatch<S>
where
    S: AsyncReadableStorageTraits
        + AsyncWritableStorageTraits
        + AsyncListableStorageTraits
        + ?Sized,
{
    /// Does the same as [`write`](Self::write) for an asynchronous store. If the future is dropped, the batch
    /// has lost the subchunks that it kept, and some of them may have been written.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    pub async fn async_write(&self) -> Result<(), Error> {
        self.core.write(&self.awaited()).await
    }
}

reads_and_writes! {
    SubchunkBatch.core,
    reads: [ReadableStorageTraits ListableStorageTraits],
        [AsyncReadableStorageTraits AsyncListableStorageTraits],
    gets_parts: false, // a read of a part reads the whole subchunk
}

impl<S: ?Sized> fmt::Debug for SubchunkBatch<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shards = self.core.shards();
        let subchunks: usize = shards.values().map(|kept| kept.entries.len()).sum();
        f.debug_struct("SubchunkBatch")
            .field("path", &self.core.array.path)
            .field("subchunks", &subchunks)
            .finish_non_exhaustive()
    }
}

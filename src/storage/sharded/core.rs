//! Implements the reads of the adapter, for both kinds of stores.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use zarrs::node::{NodePath, meta_key_v3};
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{StorageError, StoreKey};

use super::BinaryFormat;
use super::array_metadata::{self, Configuration};
use super::indices::{Index, Indices, ShardStamp};
use crate::error::Error;
use crate::storage::chunk_keys::{ChunkKey, ChunkKeys};
use crate::storage::chunk_layout::{ChunkLayout, MAX_CHUNKS, UNCHECKED};
use crate::storage::shard_grid::ShardGrid;
use crate::store::Reads;
use crate::store::key_locks::{KeyLocks, LocksKeys};
use crate::store::ranges::{Merged, slice, within};

type Result<T> = std::result::Result<T, StorageError>;

/// The most bytes that a shard can have: file systems have signed sizes.
const LARGEST: u64 = i64::MAX.cast_unsigned();

/// The number of times that a read is repeated because a write interfered, before the read waits for the lock
/// of its shard.
const ATTEMPTS: usize = 3;

/// The number of a chunk in its shard, and the ranges of bytes of the chunk that are wanted.
pub(super) type WantedRanges = (usize, Vec<ByteRange>);

/// The meaning of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::storage) enum KeyMeaning {
    /// The key of a chunk. The fields are its shard, and its number in the shard, in C order.
    Chunk(ChunkKey, usize),
    /// The key of the metadata of the array.
    Metadata,
    /// Any other key, which is passed on to the store.
    Elsewhere,
}

/// All of an adapter except its store.
#[derive(Debug)]
pub(in crate::storage) struct Core {
    configuration: Configuration,
    /// The key of the array's metadata, if the adapter shows them without the transformer; `None` if it
    /// passes them on.
    metadata: Option<StoreKey>,
    pub(super) keys: ChunkKeys,
    pub(super) grid: ShardGrid,
    pub(super) layout: ChunkLayout,
    pub(super) key_locks: KeyLocks,
    pub(super) indices: Indices,
    /// The number of chunks of the array along each axis; `None` until the metadata were read.
    chunk_grid: RwLock<Option<Vec<u64>>>,
}

impl Core {
    /// Returns the core of an adapter for the array at `path`.
    ///
    /// # Errors
    /// [`Error::Create`] if this machine cannot address shards of this configuration.
    pub(in crate::storage) fn new(
        path: &NodePath,
        configuration: Configuration,
    ) -> std::result::Result<Self, Error> {
        let grid = ShardGrid::new(&configuration.chunks_per_shard)?;
        if grid.len() > MAX_CHUNKS {
            return Err(Error::Create(zarrs::plugin::PluginCreateError::Other(
                format!(
                    "chunks_per_shard {:?} are {} chunks, more than the {MAX_CHUNKS} that a shard can have here",
                    configuration.chunks_per_shard,
                    grid.len()
                ),
            )));
        }
        let checksum = configuration.format == BinaryFormat::IndexedCrc32c;
        Ok(Self {
            metadata: Some(meta_key_v3(path)),
            keys: ChunkKeys::new(path, grid.counts().len()),
            layout: ChunkLayout::indexed(&grid, checksum)?,
            key_locks: KeyLocks::default(),
            indices: Indices::new(super::DEFAULT_INDEX_CACHE),
            chunk_grid: RwLock::default(),
            configuration,
            grid,
        })
    }

    /// Returns this core, changed so that it keeps no indices, and passes on the metadata of the array.
    pub(in crate::storage) fn for_transformer(mut self) -> Self {
        self.metadata = None;
        self.indices.set_limit(0);
        self
    }

    pub(in crate::storage) fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    pub(in crate::storage) fn keys(&self) -> &ChunkKeys {
        &self.keys
    }

    pub(in crate::storage) fn place(&self, key: &StoreKey) -> KeyMeaning {
        if self.metadata.as_ref() == Some(key) {
            return KeyMeaning::Metadata;
        }
        match self.keys.parse(key.as_str()) {
            Some(chunk) => {
                let (shard, number) = self.grid.shard_of(&chunk);
                KeyMeaning::Chunk(shard, number)
            }
            None => KeyMeaning::Elsewhere,
        }
    }

    /// Returns the number of chunks of the array along each axis; `None` if it is not known.
    pub(super) fn chunk_grid(&self) -> Option<Vec<u64>> {
        let grid = self.chunk_grid.read();
        grid.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes the extent of the array from its present metadata; `None` if the array has no metadata.
    pub(super) fn note(&self, metadata: Option<&[u8]>) {
        let grid = metadata.and_then(array_metadata::chunk_grid);
        let grid = grid.filter(|grid| grid.len() == self.grid.counts().len());
        *self
            .chunk_grid
            .write()
            .unwrap_or_else(PoisonError::into_inner) = grid;
    }

    /// Returns stored metadata as the adapter shows them.
    fn shown(&self, key: &StoreKey, stored: Bytes) -> Result<Bytes> {
        self.note(Some(&stored));
        match array_metadata::hidden(&stored, &self.configuration) {
            Ok(None) => Ok(stored),
            Ok(Some(hidden)) => Ok(hidden.into()),
            Err(reason) => Err(StorageError::InvalidMetadata(key.clone(), reason)),
        }
    }

    /// Returns given metadata as the adapter stores them.
    pub(super) fn stored(&self, key: &StoreKey, given: Bytes) -> Result<Bytes> {
        match array_metadata::described(&given, &self.configuration) {
            Ok(None) => Ok(given),
            Ok(Some(described)) => Ok(described.into()),
            Err(reason) => Err(StorageError::InvalidMetadata(key.clone(), reason)),
        }
    }

    pub(super) async fn get<R: Reads + LocksKeys>(
        &self,
        store: &R,
        key: &StoreKey,
    ) -> Result<Option<Bytes>> {
        match self.place(key) {
            KeyMeaning::Elsewhere => store.get(key).await,
            KeyMeaning::Metadata => {
                let stored = store.get(key).await?;
                stored.map(|stored| self.shown(key, stored)).transpose()
            }
            KeyMeaning::Chunk(shard, number) => {
                let wanted = [(number, vec![ByteRange::FromStart(0, None)])];
                let found = self.read(store, &self.keys.key(&shard)?, &wanted).await?;
                let found = found.into_iter().next().flatten();
                Ok(found.and_then(|ranges| ranges.into_iter().next()))
            }
        }
    }

    pub(super) async fn get_ranges<R: Reads + LocksKeys>(
        &self,
        store: &R,
        key: &StoreKey,
        ranges: Vec<ByteRange>,
    ) -> Result<Option<Vec<Bytes>>> {
        match self.place(key) {
            KeyMeaning::Elsewhere => store.get_ranges(key, ranges).await,
            KeyMeaning::Metadata => {
                let Some(shown) = self.get(store, key).await? else {
                    return Ok(None);
                };
                let parts = ranges.into_iter().map(|range| slice(&shown, range));
                parts.collect::<Result<_>>().map(Some)
            }
            KeyMeaning::Chunk(shard, number) => {
                let wanted = [(number, ranges)];
                let found = self.read(store, &self.keys.key(&shard)?, &wanted).await?;
                Ok(found.into_iter().next().flatten())
            }
        }
    }

    pub(super) async fn size<R: Reads + LocksKeys>(
        &self,
        store: &R,
        key: &StoreKey,
    ) -> Result<Option<u64>> {
        match self.place(key) {
            KeyMeaning::Elsewhere => store.size(key).await,
            KeyMeaning::Metadata => {
                let shown = self.get(store, key).await?;
                Ok(shown.map(|shown| shown.len() as u64))
            }
            KeyMeaning::Chunk(shard, number) => {
                let index = self.read_index(store, &self.keys.key(&shard)?).await?;
                let extent = index.and_then(|index| index.extents.get(number).cloned().flatten());
                Ok(extent.map(|extent| extent.len() as u64))
            }
        }
    }

    /// Returns the requests that `get_many` makes: the ranges of each shard together, and those of each other
    /// key.
    pub(super) fn grouped(&self, wanted: &[(StoreKey, ByteRange)]) -> Result<Vec<Group>> {
        let mut groups: BTreeMap<StoreKey, Group> = BTreeMap::new();
        for (position, (key, range)) in wanted.iter().enumerate() {
            let (object, number) = match self.place(key) {
                KeyMeaning::Chunk(shard, number) => (self.keys.key(&shard)?, Some(number)),
                KeyMeaning::Metadata | KeyMeaning::Elsewhere => (key.clone(), None),
            };
            // A shard has the key of some chunk, so no other key can be equal to it.
            let group = groups.entry(object).or_insert_with_key(|object| Group {
                object: object.clone(),
                is_shard: number.is_some(),
                wanted: BTreeMap::new(),
            });
            let of_chunk = group.wanted.entry(number.unwrap_or(0)).or_default();
            of_chunk.0.push(*range);
            of_chunk.1.push(position);
        }
        Ok(groups.into_values().collect())
    }

    /// Reads the ranges of a group. Returns the bytes of each range whose chunk exists, with the position of
    /// the range in the caller's request.
    pub(super) async fn get_group<R: Reads + LocksKeys>(
        &self,
        store: &R,
        group: Group,
    ) -> Result<Vec<(usize, Option<Bytes>)>> {
        let Group {
            object,
            is_shard,
            wanted,
        } = group;
        let (wanted, positions): (Vec<WantedRanges>, Vec<_>) = wanted
            .into_iter()
            .map(|(number, (ranges, positions))| ((number, ranges), positions))
            .unzip();
        let found = if is_shard {
            self.read(store, &object, &wanted).await?
        } else {
            let ranges = wanted.into_iter().flat_map(|(_, ranges)| ranges).collect();
            vec![self.get_ranges(store, &object, ranges).await?]
        };
        let mut all = Vec::new();
        for (found, positions) in found.into_iter().zip(positions) {
            match found {
                None => all.extend(positions.into_iter().map(|position| (position, None))),
                Some(found) => {
                    all.extend(positions.into_iter().zip(found.into_iter().map(Some)));
                }
            }
        }
        Ok(all)
    }

    /// Reads the `wanted` ranges of the chunks of a shard, all from one state of the shard. Returns `None`
    /// for a chunk that does not exist.
    pub(super) async fn read<R: Reads + LocksKeys>(
        &self,
        store: &R,
        shard: &StoreKey,
        wanted: &[WantedRanges],
    ) -> Result<Vec<Option<Vec<Bytes>>>> {
        for _ in 0..ATTEMPTS {
            let Some(stamp) = self.indices.stamp(shard) else {
                break;
            };
            let read = self.try_read(store, shard, wanted, Some(stamp)).await;
            if self.indices.is_current(shard, stamp) {
                return read;
            }
        }
        let _lock = store.lock_key(&self.key_locks, shard).await;
        let stamp = self.indices.stamp(shard);
        self.try_read(store, shard, wanted, stamp).await
    }

    /// Returns the index of a shard, read from one state of the shard; `None` if there is no shard.
    pub(super) async fn read_index<R: Reads + LocksKeys>(
        &self,
        store: &R,
        shard: &StoreKey,
    ) -> Result<Option<Arc<Index>>> {
        for _ in 0..ATTEMPTS {
            let Some(stamp) = self.indices.stamp(shard) else {
                break;
            };
            let kept = self.indices.get(shard);
            let index = match kept {
                Some(kept) => Ok(Some(kept)),
                None => self.stored_index(store, shard, Some(stamp)).await,
            };
            if self.indices.is_current(shard, stamp) {
                return index;
            }
        }
        let _lock = store.lock_key(&self.key_locks, shard).await;
        let stamp = self.indices.stamp(shard);
        self.stored_index(store, shard, stamp).await
    }

    async fn try_read<R: Reads>(
        &self,
        store: &R,
        shard: &StoreKey,
        wanted: &[WantedRanges],
        stamp: Option<ShardStamp>,
    ) -> Result<Vec<Option<Vec<Bytes>>>> {
        let kept = stamp.and_then(|_| self.indices.get(shard));
        if let Some(kept) = kept {
            match self.read_with(store, shard, wanted, &kept).await {
                Ok(Some(read)) => return Ok(read),
                // The kept index may be old, because another process has written the shard.
                Ok(None) | Err(_) => self.indices.forget(shard),
            }
        }
        let none = || vec![None; wanted.len()];
        let Some(index) = self.stored_index(store, shard, stamp).await? else {
            return Ok(none());
        };
        let read = self.read_with(store, shard, wanted, &index).await?;
        Ok(read.unwrap_or_else(none))
    }

    /// Returns the index of a shard from the store, not from the kept indices; `None` if there is no shard.
    pub(super) async fn stored_index<R: Reads>(
        &self,
        store: &R,
        shard: &StoreKey,
        stamp: Option<ShardStamp>,
    ) -> Result<Option<Arc<Index>>> {
        let len = self.layout.index_len() as u64;
        if len > UNCHECKED && !self.is_long_enough(store, shard, len).await? {
            return Ok(None);
        }
        let range = vec![self.layout.index_range()];
        let read = match store.get_ranges(shard, range).await {
            Ok(None) => return Ok(None),
            Ok(Some(read)) => read.into_iter().next(),
            Err(error) => {
                let is_there = self.is_long_enough(store, shard, len).await?;
                return if is_there { Err(error) } else { Ok(None) };
            }
        };
        let read = read.filter(|read| read.len() as u64 == len);
        let read = read.ok_or_else(|| {
            invalid(
                shard,
                &format!("its store did not return the {len} bytes of its index"),
            )
        })?;
        let extents = match self.layout.extents(shard, &read, LARGEST) {
            Ok(extents) => extents,
            // The error is made again with the size of the shard.
            Err(error) => match store.size(shard).await? {
                Some(size) => self.layout.extents(shard, &read, size)?,
                None => return Err(error),
            },
        };
        let index = Arc::new(Index {
            extents,
            is_checked: AtomicBool::new(false),
        });
        if let Some(stamp) = stamp {
            self.indices.keep(shard, stamp, index.clone());
        }
        Ok(Some(index))
    }

    /// Returns whether the shard exists.
    ///
    /// # Errors
    /// The error of a shard that is shorter than its index of `len` bytes.
    async fn is_long_enough<R: Reads>(
        &self,
        store: &R,
        shard: &StoreKey,
        len: u64,
    ) -> Result<bool> {
        match store.size(shard).await? {
            None => Ok(false),
            Some(size) if size < len => Err(invalid(
                shard,
                &format!("it has {size} bytes, fewer than its index of {len}: it is truncated"),
            )),
            Some(_) => Ok(true),
        }
    }

    /// Reads the `wanted` ranges of the chunks of a shard with this index, by one request. Returns `None` if
    /// there is no shard.
    async fn read_with<R: Reads>(
        &self,
        store: &R,
        shard: &StoreKey,
        wanted: &[WantedRanges],
        index: &Index,
    ) -> Result<Option<Vec<Option<Vec<Bytes>>>>> {
        let mut ranges = Vec::with_capacity(wanted.len());
        for (number, of_chunk) in wanted {
            let extent = index.extents.get(*number).and_then(Option::as_ref);
            let of_chunk = extent.map(|extent| {
                let of_chunk = of_chunk.iter().map(|&range| in_shard(extent, range));
                of_chunk.collect::<Result<Vec<_>>>()
            });
            ranges.push(of_chunk.transpose()?);
        }
        let merged = Merged::of(ranges.iter().flatten().flatten().cloned());
        // A chunk of no bytes is not read, so the read does not tell whether its extent is within the shard.
        let mut extents = wanted
            .iter()
            .filter_map(|(number, _)| index.extents.get(*number)?.as_ref());
        if extents.any(Range::is_empty) && !self.is_within(store, shard, index).await? {
            return Ok(None);
        }
        let mut read = Vec::new();
        if !merged.is_empty() {
            if merged.total() > UNCHECKED && !self.is_within(store, shard, index).await? {
                return Ok(None);
            }
            read = match store.get_ranges(shard, merged.byte_ranges()).await {
                Ok(None) => return Ok(None),
                Ok(Some(read)) if merged.fits(&read) => read,
                Ok(Some(_)) => {
                    let reason = "its store did not return the bytes that its index references";
                    return Err(invalid(shard, reason));
                }
                Err(error) => {
                    // The size tells whether the shard or the store is the cause of the error.
                    let is_there = self.is_within(store, shard, index).await?;
                    return if is_there { Err(error) } else { Ok(None) };
                }
            };
        }
        let mut found = Vec::with_capacity(ranges.len());
        for of_chunk in ranges {
            let of_chunk = of_chunk.map(|of_chunk| {
                let parts = of_chunk.iter().map(|range| merged.slice(&read, range));
                parts.collect::<Option<Vec<_>>>()
            });
            match of_chunk {
                None => found.push(None),
                Some(Some(parts)) => found.push(Some(parts)),
                Some(None) => {
                    return Err(invalid(shard, "its store did not return all of its bytes"));
                }
            }
        }
        Ok(Some(found))
    }

    /// Returns whether the shard exists.
    ///
    /// # Errors
    /// The error of a shard whose index references bytes beyond the end of the shard.
    async fn is_within<R: Reads>(
        &self,
        store: &R,
        shard: &StoreKey,
        index: &Index,
    ) -> Result<bool> {
        if index.is_checked.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let Some(size) = store.size(shard).await? else {
            return Ok(false);
        };
        let mut extents = index.extents.iter().enumerate();
        let outside = extents.find_map(|(number, extent)| {
            let extent = extent.as_ref().filter(|extent| extent.end as u64 > size)?;
            Some((number, extent))
        });
        if let Some((number, extent)) = outside {
            return Err(invalid(
                shard,
                &format!(
                    "its index references bytes {}..{} for chunk {number}, and it has {size}: it may be corrupted",
                    extent.start, extent.end
                ),
            ));
        }
        index.is_checked.store(true, Ordering::Relaxed);
        Ok(true)
    }
}

/// The ranges that are wanted of one object.
#[derive(Debug)]
pub(super) struct Group {
    object: StoreKey,
    is_shard: bool,
    /// The wanted ranges of each chunk, and the position of each range in the caller's request.
    wanted: BTreeMap<usize, (Vec<ByteRange>, Vec<usize>)>,
}

/// Returns the bytes of a shard that hold `range` of the chunk at `extent`.
fn in_shard(extent: &Range<usize>, range: ByteRange) -> Result<Range<u64>> {
    let within = within(range, extent.len() as u64)?;
    // The range is within the extent, whose end is a `usize`, so the sums do not overflow.
    let start = extent.start as u64;
    Ok(start.saturating_add(within.start)..start.saturating_add(within.end))
}

pub(super) fn invalid(shard: &StoreKey, reason: &str) -> StorageError {
    StorageError::Other(format!("the shard {shard} is invalid: {reason}"))
}

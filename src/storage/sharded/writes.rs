//! Implements the writes of the adapter, for both kinds of stores.

use std::collections::BTreeMap;

use bytes::Bytes;
use zarrs_storage::{StorageError, StoreKey, StorePrefix};

use super::core::{Core, KeyMeaning};
use crate::storage::chunk_keys::{ChunkKey, Scope};
use crate::store::key_locks::LocksKeys;
use crate::store::ranges::with_parts;
use crate::store::{Lists, Reads, Writes};

type Result<T> = std::result::Result<T, StorageError>;

/// The chunks of a shard, in C order.
type Chunks = Vec<Option<Bytes>>;

/// The chunks of a shard before a write changes some of them.
struct ShardBefore {
    chunks: Chunks,
    /// Whether the write replaces all stored chunks of the shard, so that the shard was not read.
    is_covered: bool,
}

impl Core {
    pub(super) async fn set<W: Reads + Writes + LocksKeys>(
        &self,
        store: &W,
        key: &StoreKey,
        value: Bytes,
    ) -> Result<()> {
        let entries = vec![(key.clone(), Some(value))];
        self.write_many(store, entries).await
    }

    pub(super) async fn erase_each<W: Reads + Writes + LocksKeys>(
        &self,
        store: &W,
        keys: &[StoreKey],
    ) -> Result<()> {
        let entries = keys.iter().map(|key| (key.clone(), None));
        self.write_many(store, entries.collect()).await
    }

    /// Stores the values, or erases the keys whose values are `None`. Each shard is stored once. If a key
    /// occurs more than once, its last entry counts.
    pub(super) async fn write_many<W: Reads + Writes + LocksKeys>(
        &self,
        store: &W,
        entries: Vec<(StoreKey, Option<Bytes>)>,
    ) -> Result<()> {
        let mut shards: BTreeMap<StoreKey, (ChunkKey, BTreeMap<usize, Option<Bytes>>)> =
            BTreeMap::new();
        let mut others = Vec::new();
        for (key, value) in entries {
            match self.place(&key) {
                KeyMeaning::Chunk(shard, number) => {
                    let of_shard = shards.entry(self.keys.key(&shard)?);
                    let (_, changes) = of_shard.or_insert_with(|| (shard, BTreeMap::new()));
                    changes.insert(number, value);
                }
                KeyMeaning::Metadata | KeyMeaning::Elsewhere => others.push((key, value)),
            }
        }
        for (key, value) in others {
            self.write_other(store, &key, value).await?;
        }
        for (key, (shard, changes)) in shards {
            self.update(store, &key, &shard, changes).await?;
        }
        Ok(())
    }

    /// Stores or erases the value of a key that is not the key of a chunk.
    async fn write_other<W: Reads + Writes + LocksKeys>(
        &self,
        store: &W,
        key: &StoreKey,
        value: Option<Bytes>,
    ) -> Result<()> {
        let is_metadata = self.place(key) == KeyMeaning::Metadata;
        match value {
            Some(value) if is_metadata => {
                let value = self.stored(key, value)?;
                store.set(key, value.clone()).await?;
                self.note(Some(&value));
            }
            Some(value) => store.set(key, value).await?,
            None => {
                store.erase(key).await?;
                if is_metadata {
                    self.note(None);
                }
            }
        }
        Ok(())
    }

    /// Writes parts of the value of a key.
    pub(super) async fn set_ranges<W: Reads + Writes + LocksKeys>(
        &self,
        store: &W,
        key: &StoreKey,
        parts: Vec<(u64, Bytes)>,
    ) -> Result<()> {
        match self.place(key) {
            KeyMeaning::Elsewhere => store.set_ranges(key, parts).await,
            _ if parts.is_empty() => Ok(()),
            KeyMeaning::Metadata => {
                let _lock = store.lock_key(&self.key_locks, key).await;
                let shown = self.get(store, key).await?;
                let value = with_parts(key, shown.unwrap_or_default(), &parts)?;
                self.write_other(store, key, Some(value)).await
            }
            KeyMeaning::Chunk(shard, number) => {
                let shard = self.keys.key(&shard)?;
                let _lock = store.lock_key(&self.key_locks, &shard).await;
                let mut chunks = self.chunks(store, &shard).await?;
                if let Some(chunk) = chunks.get_mut(number) {
                    *chunk = Some(with_parts(key, chunk.take().unwrap_or_default(), &parts)?);
                }
                self.replace(store, &shard, &chunks).await
            }
        }
    }

    /// Replaces or erases some chunks of a shard.
    async fn update<W: Reads + Writes + LocksKeys>(
        &self,
        store: &W,
        key: &StoreKey,
        shard: &ChunkKey,
        changes: BTreeMap<usize, Option<Bytes>>,
    ) -> Result<()> {
        let _lock = store.lock_key(&self.key_locks, key).await;
        let mut before = self.before(store, key, shard, &changes).await?;
        let mut is_changed = before.is_covered;
        for (number, value) in changes {
            if let Some(chunk) = before.chunks.get_mut(number) {
                is_changed |= value.is_some() || chunk.is_some();
                *chunk = value;
            }
        }
        if is_changed {
            self.replace(store, key, &before.chunks).await?;
        }
        Ok(())
    }

    async fn before<R: Reads>(
        &self,
        store: &R,
        key: &StoreKey,
        shard: &ChunkKey,
        changes: &BTreeMap<usize, Option<Bytes>>,
    ) -> Result<ShardBefore> {
        let covered = || ShardBefore {
            chunks: vec![None; self.grid.len()],
            is_covered: true,
        };
        if changes.len() == self.grid.len() {
            return Ok(covered());
        }
        // The stored shard may have chunks beyond the known end of the array, if the array was larger before,
        // or if another process has enlarged it. Such chunks stay.
        if self.covers_array(shard, changes)
            && let Some(index) = self.stored_index(store, key, None).await?
        {
            let mut extents = index.extents.iter().enumerate();
            if extents.all(|(number, extent)| extent.is_none() || changes.contains_key(&number)) {
                return Ok(covered());
            }
        }
        Ok(ShardBefore {
            chunks: self.chunks(store, key).await?,
            is_covered: false,
        })
    }

    /// Returns whether `changes` include every chunk of a shard that is within the array; false if the
    /// array's extent is not known.
    fn covers_array(&self, shard: &ChunkKey, changes: &BTreeMap<usize, Option<Bytes>>) -> bool {
        let Some(chunk_grid) = self.chunk_grid() else {
            return false;
        };
        // This count avoids the loop below, because most writes change only one or two of a shard's many
        // chunks.
        let axes = shard
            .coordinates
            .iter()
            .zip(self.grid.counts())
            .zip(&chunk_grid);
        let in_array = axes.map(|((&shard, &count), &extent)| {
            let first = shard.saturating_mul(count as u64);
            extent.saturating_sub(first).min(count as u64)
        });
        if in_array.fold(1, u64::saturating_mul) > changes.len() as u64 {
            return false;
        }
        let is_in_array = |number| {
            let chunk = self.grid.chunk(shard, number);
            chunk.is_some_and(|chunk| {
                chunk
                    .coordinates
                    .iter()
                    .zip(&chunk_grid)
                    .all(|(at, n)| at < n)
            })
        };
        (0..self.grid.len()).all(|number| changes.contains_key(&number) || !is_in_array(number))
    }

    /// Returns the stored chunks of a shard.
    async fn chunks<R: Reads>(&self, store: &R, shard: &StoreKey) -> Result<Chunks> {
        match store.get(shard).await? {
            Some(object) => self.layout.chunks(shard, &object),
            None => Ok(vec![None; self.grid.len()]),
        }
    }

    /// Stores a shard of `chunks`, or erases the shard if all chunks are empty. The caller holds the lock of
    /// the shard.
    async fn replace<W: Writes>(
        &self,
        store: &W,
        shard: &StoreKey,
        chunks: &[Option<Bytes>],
    ) -> Result<()> {
        let packed = self.layout.pack(shard, chunks)?;
        let write = self.indices.write(shard);
        match packed {
            Some(packed) => store.set(shard, packed).await?,
            None => store.erase(shard).await?,
        }
        write.done();
        Ok(())
    }

    pub(super) async fn erase_prefix<W: Reads + Writes + Lists + LocksKeys>(
        &self,
        store: &W,
        prefix: &StorePrefix,
    ) -> Result<()> {
        let chunks = match self.keys.scope(prefix) {
            Scope::Elsewhere => return store.erase_prefix(prefix).await,
            Scope::Everything => {
                self.erase_shards(store, prefix).await?;
                self.note(None);
                return Ok(());
            }
            Scope::Chunks(chunks) => chunks,
        };
        let (shards, _) = self.grid.shard_of(&chunks);
        let underlying = self.keys.prefix_of(&shards)?;
        let fixed = self.grid.counts().iter().take(chunks.coordinates.len());
        if fixed.clone().all(|&count| count == 1) {
            return self.erase_shards(store, &underlying).await;
        }
        for key in store.list_prefix(&underlying).await? {
            let Some(shard) = self.keys.parse(key.as_str()) else {
                // A key that is listed with the prefix is erased with the prefix, whatever the key is.
                if key.has_prefix(prefix) {
                    store.erase(&key).await?;
                }
                continue;
            };
            let is_erased = |number: &usize| {
                let chunk = self.grid.chunk(&shard, *number);
                chunk.is_some_and(|chunk| chunk.coordinates.starts_with(&chunks.coordinates))
            };
            let erased = (0..self.grid.len()).filter(is_erased);
            let changes = erased.map(|number| (number, None)).collect();
            self.update(store, &key, &shard, changes).await?;
        }
        Ok(())
    }

    /// Erases whole shards, and all other keys that have their prefix.
    async fn erase_shards<W: Writes + LocksKeys>(
        &self,
        store: &W,
        prefix: &StorePrefix,
    ) -> Result<()> {
        let _lock = store.lock_all_keys(&self.key_locks).await;
        let write = self.indices.write_all();
        store.erase_prefix(prefix).await?;
        write.done();
        Ok(())
    }
}

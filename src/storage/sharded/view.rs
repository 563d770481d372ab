//! Lists the keys of the adapter's store as the adapter shows them.

use zarrs_storage::{StorageError, StoreKey};

use super::core::{Core, KeyMeaning};
use crate::storage::chunk_keys::{ChunkKey, ChunkKeys};
use crate::storage::listing::{Present, Seen, ShardsSeenAsChunks};
use crate::storage::shard_grid::ShardGrid;
use crate::store::Reads;
use crate::store::key_locks::LocksKeys;

/// The adapter and its store, for a listing of the chunks in the shards of the store.
#[derive(Debug)]
pub(super) struct View<'a, R> {
    core: &'a Core,
    store: &'a R,
}

impl Core {
    pub(super) fn view<'a, R>(&'a self, store: &'a R) -> View<'a, R> {
        View { core: self, store }
    }
}

impl<R: Reads + LocksKeys> ShardsSeenAsChunks for View<'_, R> {
    fn keys(&self) -> &ChunkKeys {
        &self.core.keys
    }

    fn grid(&self) -> &ShardGrid {
        &self.core.grid
    }

    fn seen(&self, key: &StoreKey) -> Seen {
        match self.core.keys.parse(key.as_str()) {
            Some(shard) => Seen::Shard(shard),
            None => Seen::Itself,
        }
    }

    async fn present(&self, shard: &ChunkKey) -> Result<Vec<Present>, StorageError> {
        let shard = self.core.keys.key(shard)?;
        // A shard that was listed may have been erased meanwhile.
        let Some(index) = self.core.read_index(self.store, &shard).await? else {
            return Ok(Vec::new());
        };
        let extents = index.extents.iter().enumerate();
        let present = extents.filter_map(|(number, extent)| {
            let len = extent.as_ref()?.len() as u64;
            Some(Present { number, len })
        });
        Ok(present.collect())
    }

    async fn size_of(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        match self.core.place(key) {
            KeyMeaning::Metadata => self.core.size(self.store, key).await,
            KeyMeaning::Chunk(..) | KeyMeaning::Elsewhere => self.store.size(key).await,
        }
    }
}

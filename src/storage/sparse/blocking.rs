//! The adapter over a store that blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(feature = "filesystem")]
use zarrs_storage::StorePrefix;
use zarrs_storage::{ListableStorageTraits, ReadableStorageTraits, WritableStorageTraits};

#[cfg(feature = "filesystem")]
use super::Files;
use super::consolidation::All;
use super::{Consolidation, ConsolidationProgress, SparseArray, SparseShardStore};
use crate::Error;
use crate::store::{Blocking, now};

impl<S: ?Sized> SparseShardStore<S> {
    pub(super) fn blocking(&self) -> Blocking<'_, S> {
        Blocking::new(&*self.store).with_files(self.array.files.as_ref())
    }
}

impl<S: ReadableStorageTraits + ?Sized> SparseShardStore<S> {
    /// An adapter of `store` for the array at `path`.
    ///
    /// # Errors
    /// - [`Error::NotShards`] if the array does not store plain shards on a regular grid, with the
    ///   reason.
    /// - [`Error::Storage`] if the store fails, or has no metadata there, or they are invalid.
    pub fn open(store: Arc<S>, path: &str) -> Result<Self, Error> {
        let array = now(SparseArray::open(&Blocking::new(&*store), path))?;
        Ok(Self { array, store })
    }
}

impl<S> SparseShardStore<S>
where
    S: ReadableStorageTraits + WritableStorageTraits + ListableStorageTraits + ?Sized,
{
    /// The indices of the shards that have subchunks in a frame, which are those to consolidate, in order.
    /// Everything in the array is listed, and nothing is read: so a shard stays among them as long as there
    /// is an object that is not whole ([`Consolidation::invalid`]), however often it is consolidated.
    ///
    /// # Errors
    /// [`Error::Storage`] if the store fails.
    pub fn pending(&self) -> Result<Vec<Vec<u64>>, Error> {
        now(self.array.framed(&self.blocking()))
    }

    /// Pack the shard with the indices `shard` and its frame into one shard, with its subchunks in C
    /// order. `None` if it has no frame.
    ///
    /// Subchunks are copied as they are: nothing is decoded or encoded. The shard, the newest object of
    /// each subchunk in its frame, of whatever size that is, and the new shard are in memory at once. Others
    /// may read and write meanwhile; whatever they write is kept. If the process dies, at whichever moment,
    /// nothing is lost, and another call completes it.
    ///
    /// If the store fails to put the shard, and may do so later nevertheless, see to it that it does not
    /// before the shard is consolidated again: it would put an old shard in place of a newer one.
    ///
    /// # Errors
    /// - [`Error::NotShards`] if there cannot be such a shard.
    /// - [`Error::Storage`] if the store fails, if the shard is invalid, or if somebody else consolidates
    ///   it.
    pub fn consolidate(&self, shard: &[u64]) -> Result<Option<Consolidation>, Error> {
        now(self.array.consolidate(&self.blocking(), shard))
    }

    /// [`consolidate`](Self::consolidate) all shards that have a frame, several at once as
    /// [memory](Self::with_memory) allows. `on_progress` is called after each, by one thread at a time.
    ///
    /// One shard that fails, because it or its frame is damaged for example, does not keep the others from being
    /// packed. After 16 no more are begun, and those that were begun are completed.
    ///
    /// # Errors
    /// As for [`consolidate`](Self::consolidate): of the first shard that fails, with the names of the others.
    pub fn consolidate_all(
        &self,
        on_progress: &(dyn Fn(&ConsolidationProgress) + Sync),
    ) -> Result<ConsolidationProgress, Error> {
        let shards = self.pending()?;
        let all = All::new(shards.len(), on_progress);
        let next = AtomicUsize::new(0);
        let work = || {
            while all.goes_on()
                && let Some(shard) = shards.get(next.fetch_add(1, Ordering::Relaxed))
            {
                all.add(self.consolidate(shard));
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 1..self.array.at_once(threads).min(shards.len()) {
                scope.spawn(work);
            }
            work();
        });
        all.end()
    }
}

#[cfg(feature = "filesystem")]
impl SparseShardStore<zarrs_filesystem::FilesystemStore> {
    /// An adapter for the array at `path` of a filesystem. **Use it on every filesystem**, instead of
    /// [`open`](Self::open).
    ///
    /// Shards, and the metadata of the array, are replaced by renaming, as with
    /// [`atomic_rename`](Self::atomic_rename). Directories are read by the adapter, and each error of that is
    /// returned: zarrs' `FilesystemStore` lists nothing where it cannot open a directory, for instance because the
    /// process has too many open files, and an update could be lost that way, or a frame be passed over. Names that
    /// are not UTF-8 are passed over and [counted](super::Consolidation::not_utf_8). In a frame only regular files are read, of at
    /// most the size that a subchunk can have; all else with the name of a version is
    /// [invalid](super::Consolidation::invalid).
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn on_filesystem(
        store: Arc<zarrs_filesystem::FilesystemStore>,
        path: &str,
    ) -> Result<Self, Error> {
        let root = store.prefix_to_fs_path(&StorePrefix::root());
        let mut adapter = Self::open(store.clone(), path)?.atomic_rename(store)?;
        adapter.array.files = Some(Files::new(root));
        Ok(adapter)
    }
}

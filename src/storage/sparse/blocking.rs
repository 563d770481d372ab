//! The adapter of a store that blocks.

use std::sync::Arc;

use zarrs_storage::byte_range::ByteRangeIterator;
use zarrs_storage::{
    Bytes, ListableStorageTraits, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator,
    ReadableStorageTraits, StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix,
    WritableStorageTraits,
};

#[cfg(feature = "filesystem")]
use super::Files;
use super::{SparseArray, SparseShardStore, View, listing};
use crate::Error;
use crate::store::{Blocking, now};

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

impl<S> ReadableStorageTraits for SparseShardStore<S>
where
    S: ReadableStorageTraits + ListableStorageTraits + ?Sized,
{
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        now(self.array.get(&self.blocking(), key))
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        let store = self.blocking();
        let values = now(self.array.get_ranges(&store, key, byte_ranges.collect()))?;
        Ok(values.map(|values| Box::new(values.into_iter()) as _))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        now(self.array.size(&self.blocking(), key))
    }

    /// No: of a subchunk everything is read.
    fn supports_get_partial(&self) -> bool {
        false
    }
}

impl<S> ListableStorageTraits for SparseShardStore<S>
where
    S: ReadableStorageTraits + ListableStorageTraits + ?Sized,
{
    fn list(&self) -> Result<StoreKeys, StorageError> {
        self.list_prefix(&StorePrefix::root())
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        let (array, store) = (&self.array, &self.blocking());
        now(listing::list_prefix(&View { array, store }, store, prefix))
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        let (array, store) = (&self.array, &self.blocking());
        now(listing::list_dir(&View { array, store }, store, prefix))
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        let (array, store) = (&self.array, &self.blocking());
        now(listing::size_prefix(&View { array, store }, store, prefix))
    }
}

impl<S> WritableStorageTraits for SparseShardStore<S>
where
    S: ReadableStorageTraits + WritableStorageTraits + ListableStorageTraits + ?Sized,
{
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        now(self.array.set(&self.blocking(), key, value))
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        let store = self.blocking();
        now(self.array.set_ranges(&store, key, offset_values.collect()))
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        now(self.array.erase(&self.blocking(), key))
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        now(self.array.erase_prefix(&self.blocking(), prefix))
    }

    /// No: to write a part of a subchunk, all of it is read and written.
    fn supports_set_partial(&self) -> bool {
        false
    }
}

//! Implements the adapter over a store that blocks.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(feature = "filesystem")]
use zarrs_storage::StorePrefix;
use zarrs_storage::{
    AtomicRenameStorageTraits, ListableStorageTraits, ReadableStorageTraits, WritableStorageTraits,
};

use super::Files;
use super::consolidation::All;
use super::reading::BlockingFrames;
use super::{Consolidation, ConsolidationProgress, SparseArray, SparseShardStore};
use crate::error::Error;
use crate::reader::{ArrayReader, ArrayReaderBuilder};
use crate::store::durable::Names;
use crate::store::{Blocking, now};

impl<S: ?Sized> SparseShardStore<S> {
    pub(super) fn blocking(&self) -> Blocking<'_, S> {
        Blocking::new(&*self.store).with_files(self.array.files.as_ref())
    }
}

impl<S: ReadableStorageTraits + ?Sized> SparseShardStore<S> {
    /// Opens an adapter of `store` for the array at `path`.
    ///
    /// # Errors
    /// - [`Error::NotShards`] if the array does not store plain shards on a regular grid, with the
    ///   reason.
    /// - [`Error::Storage`] if the store fails, or if the metadata are missing or invalid.
    pub fn open(store: Arc<S>, path: &str) -> Result<Self, Error> {
        let array = now(SparseArray::open(&Blocking::new(&*store), path))?;
        Ok(Self { array, store })
    }

    /// Opens an adapter of `store` that replaces shards, and the metadata of the array, by renaming in
    /// `renaming`: the same store, or the store that it wraps.
    ///
    /// Use this for stores of files other than zarrs' `FilesystemStore`, which has `on_filesystem`.
    /// [`open`](Self::open) replaces a shard by one `set`. On a filesystem that is not atomic: a reader
    /// may find part of a shard, and a process that dies leaves one behind.
    ///
    /// Renaming also makes reads of subchunks without versions cheaper. The parts of an object that one
    /// call reads must then come from one object, as they do when `FilesystemStore` reads them from
    /// one open file. So a kept index tells where a subchunk lies, if it is read again together
    /// with the subchunk and has not changed.
    ///
    /// The key of a temporary is the key of the value with `.tmp` behind it. The next consolidation of a
    /// shard replaces a temporary that a dead process left. Several processes may store metadata at once, so
    /// temporaries of metadata are called `zarr.json.<writer>.tmp`; those of dead processes can be erased.
    ///
    /// # Errors
    /// - The errors of [`open`](Self::open).
    /// - [`Error::NotShards`] if the array's metadata in `renaming` differ from those in `store`.
    pub fn open_renaming<R>(store: Arc<S>, path: &str, renaming: Arc<R>) -> Result<Self, Error>
    where
        R: AtomicRenameStorageTraits
            + ReadableStorageTraits
            + WritableStorageTraits
            + ?Sized
            + 'static,
    {
        let mut adapter = Self::open(store, path)?;
        let key = adapter.array.metadata.clone();
        let failed = |error| super::unreadable(&key, error);
        if adapter.store.get(&key).map_err(failed)? != renaming.get(&key).map_err(failed)? {
            return Err(Error::NotShards {
                reason: format!(
                    "{key} in the store that renames is not that of the array: give the store that the array is in, with the same root"
                ),
            });
        }
        adapter.rename_in(renaming, None);
        Ok(adapter)
    }
}

impl<S: ?Sized> SparseShardStore<S> {
    /// Notes that the values of the store are `files`.
    fn set_files(&mut self, files: Files) {
        self.array.watch.times = Some(files.clone().times());
        self.array.files = Some(files);
    }

    /// Lets the adapter replace objects by renaming in `renaming`, which has the same objects as the store.
    /// `names` are the names of its files, if it does not sync them.
    pub(super) fn rename_in<R>(&mut self, renaming: Arc<R>, names: Option<Names>)
    where
        R: AtomicRenameStorageTraits
            + ReadableStorageTraits
            + WritableStorageTraits
            + ?Sized
            + 'static,
    {
        self.array.rename = Some(super::renaming(
            renaming,
            self.array.metadata.clone(),
            names,
        ));
    }
}

impl<S> SparseShardStore<S>
where
    S: ReadableStorageTraits + ListableStorageTraits + ?Sized + 'static,
{
    /// Returns a builder of a reader of boxes, which sees each subchunk as reads through the adapter
    /// do.
    ///
    /// zarrs lists a frame for each subchunk that it reads through the adapter. The reader lists it
    /// once for each call. The reader takes subchunks that are in the frame from there, and the others from
    /// the shard by its index, several at once.
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
    /// let reader = sparse.reader()?.build()?;
    ///
    /// let subchunks = Array::open(sparse, "/volume")?;
    /// subchunks.store_chunk(&[3, 7], vec![1_u16; 8 * 8])?;
    /// let elements: Vec<u16> = reader.read(&[31..33, 55..57])?;
    /// assert_eq!(elements, [0, 1, 0, 0]);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The builder takes no path: an adapter is opened for one array. [`ArrayReader::array`] is the array of
    /// shards. With [`on_filesystem`](Self::on_filesystem), shards are read as files. An adapter
    /// with a [listing age](Self::with_listing_age) shares its listings with the reader.
    ///
    /// - A shard that is consolidated while it is read is read again. After the third time each
    ///   subchunk is read alone, as through the adapter.
    /// - Indices are kept for shards that are files. Elsewhere each call reads the index anew:
    ///   before the subchunks, with each request for them, and after them.
    /// - There is no [subchunk cache](ArrayReaderBuilder::with_subchunk_cache).
    /// - A forked child opens an adapter and a reader of its own.
    ///
    /// # Errors
    /// [`Error::Storage`] if the store fails, or if the array's metadata are missing, or have another
    /// sharding than when the adapter was opened.
    pub fn reader(&self) -> Result<ArrayReaderBuilder<S>, Error> {
        let array = now(self.array.shards(&self.blocking()))?;
        let builder = ArrayReader::builder(&array.with_storage(self.store.clone()));
        let frames = Arc::new(BlockingFrames(self.clone()));
        Ok(builder.with_newer_subchunks(frames, self.array.files.clone()))
    }
}

impl<S> SparseShardStore<S>
where
    S: ReadableStorageTraits + ListableStorageTraits + ?Sized + 'static,
{
    /// Returns a builder of readers of `array`. It does the same as [`reader`](Self::reader), but asks the
    /// store for nothing. `array` is the array of this adapter, with any shape.
    pub fn reader_of(&self, array: &zarrs::array::Array<S>) -> ArrayReaderBuilder<S> {
        let frames = Arc::new(BlockingFrames(self.clone()));
        ArrayReader::builder(array).with_newer_subchunks(frames, self.array.files.clone())
    }
}

impl<S> SparseShardStore<S>
where
    S: ReadableStorageTraits + WritableStorageTraits + ListableStorageTraits + ?Sized,
{
    /// Returns the indices of the shards that have objects in a frame, in order: the shards to
    /// consolidate.
    ///
    /// Everything in the array is listed, and nothing is read. So a shard stays pending while its
    /// frame has an incomplete object ([`Consolidation::invalid`]), however often it is
    /// consolidated.
    ///
    /// # Errors
    /// [`Error::Storage`] if the store fails.
    pub fn pending(&self) -> Result<Vec<Vec<u64>>, Error> {
        now(self.array.framed(&self.blocking()))
    }

    /// Packs the shard with the indices `shard` and its frame into one shard, with its subchunks in
    /// C order. Returns `None` if the shard has no frame.
    ///
    /// Subchunks are copied as they are: nothing is decoded or encoded. The old shard, the newest
    /// object of each subchunk in its frame, and the new shard are in memory at once. Other
    /// processes may read and write meanwhile, and their writes are kept. If the process dies at
    /// any moment, nothing is lost, and another call completes the work.
    ///
    /// Another program may have replaced the shard since subchunks were stored beside it, because it
    /// does not see frames: its data would be hidden by older subchunks. Where the store has times
    /// ([`on_filesystem`](Self::on_filesystem), [`with_times`](Self::with_times)), that is an error,
    /// and nothing is changed, unless [`over_changed_shards`](Self::over_changed_shards) is set.
    ///
    /// If the store fails to store the shard, but may complete the write later, wait until it has done so
    /// before you consolidate the shard again. Otherwise an old shard would replace a newer one.
    ///
    /// # Errors
    /// - [`Error::NotShards`] if `shard` is not the index of a shard.
    /// - [`Error::ShardChanged`] if another program has replaced the shard meanwhile, with both times.
    /// - [`Error::Storage`] if the store fails, if the shard is invalid, or if another process
    ///   consolidates it.
    pub fn consolidate(&self, shard: &[u64]) -> Result<Option<Consolidation>, Error> {
        now(self.array.consolidate(&self.blocking(), shard))
    }

    /// Erases the incomplete objects ([`Consolidation::invalid`]) in the frame of the shard with the indices
    /// `shard`. Returns how many there were.
    ///
    /// Writers that died, or whose machines failed, left these objects, and nothing reads them. But a store
    /// may also show an object that is being written. So nothing may write to the shard meanwhile.
    ///
    /// # Errors
    /// The errors of [`consolidate`](Self::consolidate).
    pub fn discard_invalid(&self, shard: &[u64]) -> Result<usize, Error> {
        now(self.array.discard_invalid(&self.blocking(), shard))
    }

    /// [Consolidates](Self::consolidate) all shards that have a frame, several at once as
    /// [memory](Self::with_memory) allows. `on_progress` is called after each shard, by one thread
    /// at a time.
    ///
    /// A shard that fails, for example because it or its frame is damaged, does not keep other shards from
    /// being packed. After 16 failures no more shards are begun; those that have begun are completed.
    ///
    /// # Errors
    /// The error of [`consolidate`](Self::consolidate) for the first shard that failed, with the names of the
    /// other failed shards.
    pub fn consolidate_all(
        &self,
        on_progress: &(dyn Fn(&ConsolidationProgress) + Sync),
    ) -> Result<ConsolidationProgress, Error> {
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        self.consolidate_each(&self.pending()?, threads, on_progress)
    }

    fn consolidate_each(
        &self,
        shards: &[Vec<u64>],
        threads: NonZeroUsize,
        on_progress: &(dyn Fn(&ConsolidationProgress) + Sync),
    ) -> Result<ConsolidationProgress, Error> {
        let all = All::new(shards.len(), on_progress);
        let next = AtomicUsize::new(0);
        let work = || {
            while all.goes_on()
                && let Some(shard) = shards.get(next.fetch_add(1, Ordering::Relaxed))
            {
                all.add(self.consolidate(shard));
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.array.at_once(threads.get()).min(shards.len()) {
                scope.spawn(work);
            }
            work();
        });
        all.end()
    }
}

impl<S> SparseShardStore<S>
where
    S: ReadableStorageTraits + WritableStorageTraits + ListableStorageTraits + ?Sized,
{
    /// Consolidates the shards with these indices, on at most `threads` threads: see
    /// [`consolidate_all`](Self::consolidate_all).
    ///
    /// # Errors
    /// The errors of [`consolidate_all`](Self::consolidate_all).
    pub fn consolidate_shards(
        &self,
        shards: &[Vec<u64>],
        threads: NonZeroUsize,
        on_progress: &(dyn Fn(&ConsolidationProgress) + Sync),
    ) -> Result<ConsolidationProgress, Error> {
        self.consolidate_each(shards, threads, on_progress)
    }
}

impl<S> SparseShardStore<S>
where
    S: AtomicRenameStorageTraits + ReadableStorageTraits + WritableStorageTraits + 'static,
{
    /// Opens an adapter for the array at `path` of a store of files below `root`. It does the same as
    /// `on_filesystem` (feature `filesystem`), for a store other than zarrs' `FilesystemStore`. The store
    /// syncs names of files itself.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn on_directory(
        store: Arc<S>,
        path: &str,
        root: std::path::PathBuf,
    ) -> Result<Self, Error> {
        let mut adapter = Self::open(store.clone(), path)?;
        adapter.rename_in(store, None);
        adapter.set_files(Files::new(root));
        Ok(adapter)
    }
}

#[cfg(feature = "filesystem")]
impl SparseShardStore<zarrs_filesystem::FilesystemStore> {
    /// Opens an adapter for the array at `path` of a filesystem. **Use it on every filesystem**,
    /// instead of [`open`](Self::open).
    ///
    /// - Shards, and the metadata of the array, are replaced by renaming, as with
    ///   [`open_renaming`](Self::open_renaming).
    /// - The name of a packed shard is on the disk before its frame is deleted.
    /// - The adapter reads directories itself, and returns each error. zarrs' `FilesystemStore` returns an
    ///   empty listing for a directory that it cannot open, for instance because the process has too many
    ///   open files. An update could be lost that way, or a frame be skipped.
    /// - In a frame only regular files are read, of at most the size that a subchunk can have.
    ///   Everything else with the name of a version is [invalid](super::Consolidation::invalid).
    /// - Names that are not UTF-8 are skipped and [counted](super::Consolidation::not_utf_8).
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn on_filesystem(
        store: Arc<zarrs_filesystem::FilesystemStore>,
        path: &str,
    ) -> Result<Self, Error> {
        let root = store.prefix_to_fs_path(&StorePrefix::root());
        let mut adapter = Self::open(store.clone(), path)?;
        let names = Names::of(&store);
        adapter.rename_in(store, names);
        adapter.set_files(Files::new(root));
        Ok(adapter)
    }
}

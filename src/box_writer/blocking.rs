//! The calls of a writer whose store blocks.

use std::sync::Arc;

use zarrs::array::{Array, ArrayBytes, ArraySubset, ArraySubsetTraits, Element};
use zarrs_codec::{ArrayToBytesCodecTraits, CodecOptions, StoragePartialEncoder};
use zarrs_storage::{
    ListableStorageTraits, ReadableWritableStorage, ReadableWritableStorageTraits, StorageError,
    StorageHandle, StoreKey, WritableStorageTraits,
};

use super::call::Call;
use super::error::{BoxWriterError, BoxWriterErrorKind as Kind};
use super::pool::encoding;
use super::request::{BoxesInMemory, ShardToWrite};
use super::shared::{Shared, Subchunks, not_looked, not_opened};
use super::target::{NewShard, Target, Update, check_parts};
use super::{BoxReport, BoxWriter, FilesOfArray, Inner, Input, Place, ShardUpdate};
use crate::maintenance::StoredShard;
use crate::panics::no_panic;
use crate::reader::threads::{self, Each};
use crate::storage::{SparseShardStore, is_framed};
use crate::store::file_store::FileStore;
use crate::store::lock_files::LockFile;
use crate::store::shard_locks::{ShardLock, ShardLocks};
use crate::store::{Blocking, now};
use zarrs_cuda_engine::memory::spares::Spares;

impl<TStorage> BoxWriter<TStorage>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + ListableStorageTraits + 'static,
{
    /// Writes `elements`, in C order, to the box `subset`.
    ///
    /// # Errors
    /// The errors of [`write_bytes`](Self::write_bytes), and
    /// [`BoxWriterErrorKind::Element`](crate::writer::BoxWriterErrorKind::Element) if `T` is not the array's data
    /// type.
    pub fn write<T: Element>(
        &self,
        subset: &dyn ArraySubsetTraits,
        elements: &[T],
    ) -> Result<BoxReport, BoxWriterError> {
        let bytes = self.bytes(elements)?;
        self.write_bytes(subset, Input::contiguous(&bytes))
    }

    /// Writes the elements of `input` to the box `subset`.
    ///
    /// A range that ends before it starts is empty, as everywhere in zarrs.
    ///
    /// # Errors
    /// - [`BoxWriterErrorKind::OutOfBounds`](crate::writer::BoxWriterErrorKind::OutOfBounds) if `subset` is not in
    ///   the array, [`BoxWriterErrorKind::Input`](crate::writer::BoxWriterErrorKind::Input) if `input` does not fit
    ///   it, [`BoxWriterErrorKind::Unsupported`](crate::writer::BoxWriterErrorKind::Unsupported) if elements have no
    ///   fixed size. Nothing was written.
    /// - [`BoxWriterErrorKind::Shard`](crate::writer::BoxWriterErrorKind::Shard),
    ///   [`BoxWriterErrorKind::Store`](crate::writer::BoxWriterErrorKind::Store),
    ///   [`BoxWriterErrorKind::Zarrs`](crate::writer::BoxWriterErrorKind::Zarrs),
    ///   [`BoxWriterErrorKind::FramesPending`](crate::writer::BoxWriterErrorKind::FramesPending) and
    ///   [`BoxWriterErrorKind::Memory`](crate::writer::BoxWriterErrorKind::Memory) if a shard cannot be written, and
    ///   [`BoxWriterErrorKind::Cancelled`](crate::writer::BoxWriterErrorKind::Cancelled). The report of the error
    ///   lists the shards that are written.
    pub fn write_bytes(
        &self,
        subset: &dyn ArraySubsetTraits,
        input: Input<'_>,
    ) -> Result<BoxReport, BoxWriterError> {
        let memory = self.one_box(subset, input)?;
        self.write_memories(vec![memory])
    }

    /// Writes a box of `shape` to each of `origins`. The boxes follow one another in `elements`, each in C order.
    /// Each shard is written once, whatever boxes it has elements of.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write), and
    /// [`BoxWriterErrorKind::Overlap`](crate::writer::BoxWriterErrorKind::Overlap) if two boxes have elements in
    /// common.
    pub fn write_boxes<T: Element>(
        &self,
        origins: &[impl AsRef<[u64]>],
        shape: &[u64],
        elements: &[T],
    ) -> Result<BoxReport, BoxWriterError> {
        let bytes = self.bytes(elements)?;
        self.write_boxes_bytes(origins, shape, Input::contiguous(&bytes))
    }

    /// Writes a box of `shape` to each of `origins`. The input has one axis more than the array: its first axis
    /// counts the boxes.
    ///
    /// # Errors
    /// The errors of [`write_bytes`](Self::write_bytes), and
    /// [`BoxWriterErrorKind::Overlap`](crate::writer::BoxWriterErrorKind::Overlap) if two boxes have elements in
    /// common.
    pub fn write_boxes_bytes(
        &self,
        origins: &[impl AsRef<[u64]>],
        shape: &[u64],
        input: Input<'_>,
    ) -> Result<BoxReport, BoxWriterError> {
        let memory = self.several_boxes(origins, shape, input)?;
        self.write_memories(vec![memory])
    }

    /// Writes boxes of different shapes, each from its own memory. Each shard is written once.
    ///
    /// # Errors
    /// The errors of [`write_boxes_bytes`](Self::write_boxes_bytes).
    pub fn write_each(
        &self,
        boxes: Vec<(ArraySubset, Input<'_>)>,
    ) -> Result<BoxReport, BoxWriterError> {
        let memories = boxes.into_iter();
        let memories = memories.map(|(subset, input)| self.one_box(&subset, input));
        self.write_memories(memories.collect::<Result<_, Kind>>()?)
    }

    fn write_memories(
        &self,
        memories: Vec<BoxesInMemory<'_>>,
    ) -> Result<BoxReport, BoxWriterError> {
        let Inner {
            array,
            grid,
            encoded_by,
            settings,
            place,
            shared,
        } = &*self.0;
        let call = Call::new(grid, encoded_by, settings, memories)?;
        match place {
            Place::Files(files) => {
                let target = Filed {
                    files,
                    grid,
                    limit: settings.lock_limit,
                    spares: Spares::default(),
                };
                now(call.run(&target, self.at_once(), threads::blocking as Each<Kind>))
            }
            Place::Store(locks) => {
                let target = Stored {
                    array,
                    grid,
                    locks,
                    shared,
                    spares: Arc::default(),
                };
                now(call.run(&target, self.at_once(), threads::blocking as Each<Kind>))
            }
        }
    }
}

/// Opens the subchunks of the array of `grid` in the adapter that `sparse` opens, unless `shared` has them.
fn opened<S>(
    shared: &Shared<S>,
    grid: &Array<()>,
    sparse: impl FnOnce(&str) -> Result<SparseShardStore<S>, crate::Error>,
) -> Result<Arc<Subchunks<S>>, Kind>
where
    S: ReadableWritableStorageTraits + ListableStorageTraits + ?Sized + 'static,
{
    if let Some(known) = shared.known() {
        return Ok(known);
    }
    let path = grid.path().as_str();
    let sparse = Arc::new(sparse(path).map_err(not_opened)?);
    let subchunks = Array::open(sparse.clone(), path).map_err(not_opened)?;
    shared.keep((sparse, subchunks), grid)
}

/// Stores shards as files.
struct Filed<'w> {
    files: &'w FilesOfArray,
    grid: &'w Array<()>,
    limit: Option<std::time::Duration>,
    /// The memory of written shards, for the next shards of the call.
    spares: Spares,
}

/// The locks of a shard in this process, and its lock file.
struct LockedFile {
    file: Option<LockFile>,
    /// The locks in this process are released last.
    _process: [ShardLock; 2],
}

impl LockedFile {
    /// Checks that no one has deleted the lock file, if there is one.
    fn check(&self) -> std::io::Result<()> {
        self.file.as_ref().map_or(Ok(()), LockFile::check)
    }
}

impl Target for Filed<'_> {
    type Guard = LockedFile;

    async fn check(&self, update: ShardUpdate) -> Result<(), Kind> {
        if update == ShardUpdate::Shared {
            self.subchunks()?;
        }
        Ok(())
    }

    async fn lock(&self, key: &StoreKey) -> Result<LockedFile, StorageError> {
        // Writers that do not know that the store has files have the first lock alone. All writers take the locks
        // in this order.
        let [store, files] = &self.files.locks;
        let process = [store.lock(key)?, files.lock(key)?];
        let path = self.files.array.storage().path(key);
        let file = self.limit.map(|limit| LockFile::take(&path, limit));
        Ok(LockedFile {
            file: file.transpose()?,
            _process: process,
        })
    }

    async fn stored(&self, key: &StoreKey) -> Result<Option<StoredShard>, StorageError> {
        let file = self.files.array.storage().open(key)?;
        Ok(file.map(StoredShard::File))
    }

    async fn replace(
        &self,
        locked: &mut Self::Guard,
        key: &StoreKey,
        value: NewShard,
    ) -> Result<(), StorageError> {
        let store = self.files.array.storage();
        let new = store.new_file(key, |file| value.write_to(file))?;
        if let NewShard::Encoded(bytes) = value {
            self.spares.give(bytes);
        }
        let Some(file) = &mut locked.file else {
            return Ok(store.rename_new(key, new)?);
        };
        file.replace(new, store.durable())?;
        Ok(store.sync_directories(key)?)
    }

    fn spares(&self) -> &Spares {
        &self.spares
    }

    async fn erase(&self, locked: &mut Self::Guard, key: &StoreKey) -> Result<(), StorageError> {
        locked.check()?;
        self.files.array.storage().erase(key)
    }

    async fn is_marked(&self) -> Result<bool, Kind> {
        // A look at a directory that does not exist takes no longer than a look at the marker.
        Ok(true)
    }

    async fn has_frame(&self, key: &StoreKey) -> Result<bool, StorageError> {
        let store = self.files.array.storage();
        is_framed(
            &Blocking::new(&*store).with_files(Some(&self.files.files)),
            key,
        )
        .await
    }

    async fn update(
        &self,
        locked: &mut Self::Guard,
        key: &StoreKey,
        update: Update<'_>,
    ) -> Result<(), Kind> {
        let checked = locked.check();
        checked.map_err(|error| Kind::store("update", key)(error.into()))?;
        updated(self.files.array.storage(), key, update)?;
        let told = locked
            .file
            .as_mut()
            .map_or(Ok(()), LockFile::wrote_in_place);
        told.map_err(|error| Kind::store("set the time of", key)(error.into()))
    }

    async fn share(
        &self,
        shard: &ShardToWrite,
        boxes: Vec<(ArraySubset, ArrayBytes<'_>)>,
        options: &CodecOptions,
    ) -> Result<(), Kind> {
        let subchunks = self.subchunks()?;
        encoding(1, |_| subchunks.write(shard, boxes, options))
    }
}

impl Filed<'_> {
    /// Opens the subchunks that are stored beside their shards.
    fn subchunks(&self) -> Result<Arc<Subchunks<FileStore>>, Kind> {
        let store = self.files.array.storage();
        opened(&self.files.shared, self.grid, |path: &str| {
            let root = store.root().to_path_buf();
            SparseShardStore::on_directory(store.clone(), path, root)
        })
    }
}

/// Updates a stored shard in place.
fn updated<S: ?Sized + ReadableWritableStorageTraits + 'static>(
    store: Arc<S>,
    key: &StoreKey,
    update: Update<'_>,
) -> Result<(), Kind> {
    let Update {
        format,
        changes,
        options,
    } = update;
    let shards = format.shards();
    let storage: ReadableWritableStorage = Arc::new(StorageHandle::new(store));
    let stored = Arc::new(StoragePartialEncoder::new(storage, key.clone()));
    let codec = format.codec().clone();
    let update = || {
        let encoder = codec.partial_encoder(
            stored,
            format.shape(),
            &shards.data_type,
            &shards.fill_value,
            options,
        )?;
        let mut changes = changes.iter();
        changes.try_for_each(|(at, elements)| encoder.partial_encode(&**at, elements, options))
    };
    let updated = encoding(1, |_| no_panic(update));
    updated.map_err(Kind::codec("update", key))
}

/// Stores shards in the store of the array.
struct Stored<'w, S: ?Sized> {
    array: &'w Array<S>,
    grid: &'w Array<()>,
    locks: &'w ShardLocks,
    shared: &'w Shared<S>,
    /// The memory of shards that the store has copied, for the next shards of the call.
    spares: Arc<Spares>,
}

impl<S> Stored<'_, S>
where
    S: ?Sized + ReadableWritableStorageTraits + ListableStorageTraits + 'static,
{
    /// Opens the subchunks that are stored beside their shards.
    fn subchunks(&self) -> Result<Arc<Subchunks<S>>, Kind> {
        let sparse = |path: &str| SparseShardStore::open(self.array.storage(), path);
        opened(self.shared, self.grid, sparse)
    }
}

impl<S> Target for Stored<'_, S>
where
    S: ?Sized + ReadableWritableStorageTraits + ListableStorageTraits + 'static,
{
    type Guard = ShardLock;

    async fn check(&self, update: ShardUpdate) -> Result<(), Kind> {
        if update == ShardUpdate::Shared {
            self.subchunks()?;
        }
        check_parts(update, self.array.storage().supports_set_partial())
    }

    async fn lock(&self, key: &StoreKey) -> Result<Self::Guard, StorageError> {
        Ok(self.locks.lock(key)?)
    }

    async fn stored(&self, key: &StoreKey) -> Result<Option<StoredShard>, StorageError> {
        Ok(self.array.storage().get(key)?.map(StoredShard::Bytes))
    }

    async fn replace(
        &self,
        _locked: &mut Self::Guard,
        key: &StoreKey,
        value: NewShard,
    ) -> Result<(), StorageError> {
        let bytes = value.into_bytes(&self.spares)?;
        self.array.storage().set(key, bytes)
    }

    fn spares(&self) -> &Spares {
        &self.spares
    }

    async fn erase(&self, _locked: &mut Self::Guard, key: &StoreKey) -> Result<(), StorageError> {
        self.array.storage().erase(key)
    }

    async fn is_marked(&self) -> Result<bool, Kind> {
        let marked = SparseShardStore::is_marked(&*self.array.storage(), self.grid.path().as_str());
        marked.map_err(not_looked)
    }

    async fn has_frame(&self, key: &StoreKey) -> Result<bool, StorageError> {
        is_framed(&Blocking::new(&*self.array.storage()), key).await
    }

    async fn update(
        &self,
        _locked: &mut Self::Guard,
        key: &StoreKey,
        update: Update<'_>,
    ) -> Result<(), Kind> {
        updated(self.array.storage(), key, update)
    }

    async fn share(
        &self,
        shard: &ShardToWrite,
        boxes: Vec<(ArraySubset, ArrayBytes<'_>)>,
        options: &CodecOptions,
    ) -> Result<(), Kind> {
        let subchunks = self.subchunks()?;
        encoding(1, |_| subchunks.write(shard, boxes, options))
    }
}

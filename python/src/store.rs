//! The stores from which a call reads the values of an array, and to which it writes them.

use std::borrow::Cow;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use zarrs_cuda::maintenance::StoredShard;
use zarrs_cuda::reader::ArrayReaderBuilder;
use zarrs_cuda::storage::SparseShardStore;
use zarrs_cuda::writer::BoxWriterBuilder;
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator};
use zarrs_storage::{
    AtomicRenameStorageTraits, ListableStorageTraits, MaybeBytes, MaybeBytesIterator,
    OffsetBytesIterator, ReadableStorageTraits, StorageError, StoreKey, StoreKeys,
    StoreKeysPrefixes, StorePrefix, WritableStorageTraits,
};

use crate::asked::Asked;
use crate::error::Error;
use crate::files::{Files, frame_directory};
use crate::given::Given;
use crate::objects::{Objects, PyObjects};
use crate::value::Value;

/// The largest gap, in bytes, between parts of an object that are read together. zarr-python has the same
/// default.
const GAP: u64 = 1 << 20;

/// A store of values, by their keys.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    Files(Arc<Files>),
    Objects(Arc<Objects>),
    /// A store of Python, which writers of slices use through Python.
    Asked(Arc<Asked>),
    /// The values that Python got from its store before the call, and the changes that it stores afterwards.
    Given(Arc<Given>),
}

/// The place of a store's values: files below a directory, objects, or a store that only Python can use.
#[derive(FromPyObject)]
pub(crate) enum StorePlace<'py> {
    Objects(PyRef<'py, PyObjects>),
    Files(PathBuf),
    Asked(Bound<'py, PyAny>),
}

impl Store {
    /// Returns the store at `place`. If `sync`, its files are synced.
    pub(crate) fn at(place: Option<StorePlace<'_>>, sync: bool) -> Self {
        match place {
            Some(StorePlace::Files(root)) => Self::Files(Arc::new(Files::new(root, sync))),
            Some(StorePlace::Objects(objects)) => Self::Objects(Arc::new(objects.0.of_one_array())),
            Some(StorePlace::Asked(store)) => Self::Asked(Arc::new(Asked(store.unbind()))),
            None => Self::Given(Arc::default()),
        }
    }

    /// Returns whether the library itself reads and writes the store, and not Python before and after a call.
    pub(crate) fn is_ours(&self) -> bool {
        !matches!(self, Self::Given(_))
    }

    /// Sets up `builder` for a reader of this store, which uses up to `threads` threads.
    pub(crate) fn read_by(
        &self,
        builder: ArrayReaderBuilder<Self>,
        threads: usize,
    ) -> ArrayReaderBuilder<Self> {
        let builder = self.limit(builder, threads);
        match self {
            Self::Files(files) => builder.on_directory(files.root().to_owned()),
            Self::Objects(_) | Self::Asked(_) | Self::Given(_) => builder,
        }
    }

    /// Limits the threads of a reader, or its requests if this store has objects. For other builders than
    /// those that know where files are, use [`read_by`](Self::read_by).
    pub(crate) fn limit(
        &self,
        builder: ArrayReaderBuilder<Self>,
        threads: usize,
    ) -> ArrayReaderBuilder<Self> {
        match self {
            // Each request has a thread, which waits most of the time. A gap of `GAP` bytes takes as long to
            // read as a request.
            Self::Objects(objects) => builder.with_requests(objects.requests.get()).with_gap(GAP),
            Self::Files(_) | Self::Asked(_) | Self::Given(_) => builder.with_threads(threads),
        }
    }

    /// Sets up `builder` for a writer of this store, which uses up to `threads` threads.
    pub(crate) fn written_by(
        &self,
        builder: BoxWriterBuilder<Self>,
        threads: usize,
    ) -> BoxWriterBuilder<Self> {
        match self {
            Self::Files(files) => {
                let builder = builder.on_directory(files.root().to_owned());
                builder.with_sync(files.syncs()).with_threads(threads)
            }
            // Each request has a thread, which waits most of the time.
            Self::Objects(objects) => builder.with_requests(objects.requests.get()),
            Self::Asked(_) | Self::Given(_) => builder.with_requests(threads).with_threads(threads),
        }
    }

    /// Returns the store of the shared shards of the array at `path`.
    pub(crate) fn shared(&self, path: &str) -> Result<SparseShardStore<Self>, zarrs_cuda::Error> {
        let store = Arc::new(self.clone());
        match self {
            Self::Files(files) => {
                SparseShardStore::on_directory(store, path, files.root().to_owned())
            }
            Self::Objects(objects) => {
                let objects = objects.clone();
                let shared = SparseShardStore::open(store, path)?;
                Ok(shared.with_times(move |shard, frame| objects.times(shard, frame)))
            }
            Self::Asked(_) | Self::Given(_) => SparseShardStore::open(store, path),
        }
    }

    /// Returns the number of threads for work that mostly waits for the store, in a call that may use
    /// `threads` threads.
    pub(crate) fn waiting(&self, threads: NonZeroUsize) -> NonZeroUsize {
        match self {
            Self::Objects(objects) => threads.max(objects.requests),
            Self::Files(_) | Self::Asked(_) | Self::Given(_) => threads,
        }
    }

    fn writable(&self) -> &dyn WritableStorageTraits {
        match self {
            Self::Files(files) => files,
            Self::Objects(objects) => &objects.store,
            Self::Asked(asked) => asked,
            Self::Given(given) => given,
        }
    }

    fn listable(&self) -> &dyn ListableStorageTraits {
        match self {
            Self::Files(files) => files,
            Self::Objects(objects) => &objects.store,
            Self::Asked(asked) => asked,
            Self::Given(given) => given,
        }
    }

    /// Stores `value` under `key`, or erases the value if `value` is `None`.
    pub(crate) fn change(&self, key: &str, value: Option<Cow<'_, [u8]>>) -> Result<(), Error> {
        let doing = if value.is_some() { "write" } else { "erase" };
        let to_key = || StoreKey::new(key).map_err(StorageError::from);
        let done = match (self, value) {
            (Self::Files(files), Some(value)) => {
                let replaced = files.replace(key, |file| file.write_all(&value));
                replaced.map_err(Into::into)
            }
            (_, Some(value)) => to_key().and_then(|key| self.set(&key, value.into_owned().into())),
            (_, None) => to_key().and_then(|key| self.erase(&key)),
        };
        done.map_err(|error| Error::store(doing, key, &error))
    }

    /// Returns whether subchunks of the shard `key` are stored beside it. Makes one request.
    pub(crate) fn has_frame(&self, key: &str) -> Result<bool, Error> {
        let frame = StorePrefix::new(frame_directory(key) + "/");
        let listed = frame
            .map_err(Into::into)
            .and_then(|frame| self.list_dir(&frame));
        let listed =
            listed.map_err(|error| Error::store("look for subchunks beside", key, &error))?;
        let mut names = listed.keys().iter().map(|key| Path::new(key.as_str()));
        Ok(names.any(|name| name.extension().is_some_and(|kind| kind == "chunk")))
    }

    /// Returns the value of `key`, to be changed in part, or `None` if there is no value.
    pub(crate) fn stored(&self, key: &str) -> Result<Option<StoredShard>, Error> {
        match self {
            Self::Files(files) => {
                let opened = files.open_sized(key);
                let opened = opened.map_err(|error| Error::store("read", key, &error.into()))?;
                Ok(opened.map(|(file, _)| StoredShard::File(file)))
            }
            Self::Objects(_) | Self::Asked(_) | Self::Given(_) => {
                Ok(self.whole(key)?.map(StoredShard::Bytes))
            }
        }
    }

    /// Returns whether the store has a value of `key`.
    pub(crate) fn has(&self, key: &str) -> Result<bool, Error> {
        let found = match self {
            Self::Given(given) => given.value(key).map(|value| value.is_some()),
            Self::Files(_) | Self::Objects(_) | Self::Asked(_) => StoreKey::new(key)
                .map_err(Into::into)
                .and_then(|key| self.size_key(&key))
                .map(|size| size.is_some()),
        };
        found.map_err(|error| Error::store("look for", key, &error))
    }

    /// Returns whether [`whole`](Self::whole) can return the value of `key`, and the call was not given parts
    /// of it only.
    pub(crate) fn has_whole(&self, key: &str) -> bool {
        match self {
            Self::Given(given) => given.has_whole(key),
            Self::Files(_) | Self::Objects(_) | Self::Asked(_) => true,
        }
    }

    /// Returns the whole value of `key`, or `None` if there is no value.
    pub(crate) fn whole(&self, key: &str) -> Result<Option<Bytes>, Error> {
        let failed = |error: StorageError| Error::store("read", key, &error);
        match self {
            Self::Files(files) => {
                let value = files.whole(key).map_err(|error| failed(error.into()))?;
                Ok(value.map(Bytes::from))
            }
            Self::Objects(objects) => {
                let key = StoreKey::new(key).map_err(|error| failed(error.into()))?;
                objects.store.get(&key).map_err(failed)
            }
            Self::Asked(asked) => {
                let key = StoreKey::new(key).map_err(|error| failed(error.into()))?;
                asked.get(&key).map_err(failed)
            }
            Self::Given(given) => match given.value(key).map_err(failed)? {
                Some(Value::Whole(value)) => Ok(Some(value)),
                Some(Value::Parts(_)) => {
                    Err(Error::Other(format!("only parts of {key} were read")))
                }
                None => Ok(None),
            },
        }
    }
}

impl ReadableStorageTraits for Store {
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        match self {
            Self::Objects(objects) => objects.store.get(key),
            Self::Asked(asked) => asked.get(key),
            Self::Files(_) | Self::Given(_) => self.get_partial(key, ByteRange::FromStart(0, None)),
        }
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        match self {
            Self::Files(files) => files.get_partial_many(key, byte_ranges),
            Self::Objects(objects) => objects.store.get_partial_many(key, byte_ranges),
            Self::Asked(asked) => asked.get_partial_many(key, byte_ranges),
            Self::Given(given) => given.get_partial_many(key, byte_ranges),
        }
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        match self {
            Self::Files(files) => files.size_key(key),
            Self::Objects(objects) => objects.store.size_key(key),
            Self::Asked(asked) => asked.size_key(key),
            Self::Given(given) => given.size_key(key),
        }
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for Store {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.writable().set(key, value)
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        self.writable().set_partial_many(key, offset_values)
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.writable().erase(key)
    }

    fn erase_many(&self, keys: &[StoreKey]) -> Result<(), StorageError> {
        self.writable().erase_many(keys)
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.writable().erase_prefix(prefix)
    }

    fn supports_set_partial(&self) -> bool {
        self.writable().supports_set_partial()
    }
}

impl ListableStorageTraits for Store {
    fn list(&self) -> Result<StoreKeys, StorageError> {
        self.listable().list()
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        self.listable().list_prefix(prefix)
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        self.listable().list_dir(prefix)
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        self.listable().size_prefix(prefix)
    }
}

impl AtomicRenameStorageTraits for Store {
    fn rename(&self, source: &StoreKey, destination: &StoreKey) -> Result<(), StorageError> {
        match self {
            Self::Files(files) => files.rename(source, destination),
            Self::Objects(_) | Self::Asked(_) | Self::Given(_) => Err(StorageError::Unsupported(
                "objects are not renamed".to_owned(),
            )),
        }
    }
}

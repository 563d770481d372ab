//! Adds partial writes to stores that only replace whole objects.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator};
#[cfg(feature = "async")]
use zarrs_storage::{
    AsyncListableStorageTraits, AsyncMaybeBytesIterator, AsyncReadableStorageTraits,
    AsyncWritableStorageTraits,
};
use zarrs_storage::{
    ListableStorageTraits, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator,
    ReadableStorageTraits, StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix,
    WritableStorageTraits,
};

#[cfg(feature = "async")]
use crate::store::Awaited;
use crate::store::key_locks::{KeyLocks, LocksKeys};
use crate::store::ranges::with_parts;
use crate::store::{Blocking, Reads, Writes, hold, in_place, now};

/// The default limit of an object's length, in bytes: 5 GiB, the most that S3 stores by one request
/// ("Uploading objects", Amazon S3 User Guide).
const MAX_OBJECT_LEN: u64 = 5 << 30;

/// The default number of bytes of patched objects that an adapter keeps.
const KEPT_BYTES: usize = 256 << 20;

/// The most patched objects that an adapter keeps, however small they are.
const KEPT_OBJECTS: usize = 64;

/// Adds partial writes (`set_partial`) to a store that only replaces whole objects, such as an
/// object store.
///
/// zarrs updates parts of shards where they are stored only if their store supports partial writes.
/// With this adapter any store does: it reads the object, patches it, and stores it by one `set`.
/// The shard is not decoded, and only changed subchunks are encoded. Every other operation goes to
/// the store unchanged. The adapter blocks if the store blocks, and is asynchronous if the store
/// is.
///
/// ```
/// use std::sync::Arc;
/// use zarrs::array::{Array, ArraySubset, CodecOptions};
/// use zarrs_cuda::storage::RangeWrites;
/// # use zarrs::array::{ArrayBuilder, data_type};
/// # let object_store = Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let _registration = zarrs_cuda::register(zarrs_cuda::Options::default())?;
/// # let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # zarrs_cuda::build_sharded(builder, object_store.clone(), "/volume")?.store_metadata()?;
///
/// let store = Arc::new(RangeWrites::new(object_store));
/// let array = Array::open(store, "/volume")?;
/// let options = CodecOptions::default().with_experimental_partial_encoding(true);
/// let slice = ArraySubset::new_with_ranges(&[0..1, 0..64]);
/// array.store_array_subset_opt(&slice, vec![1_u16; 64], &options)?;
/// # assert_eq!(array.retrieve_array_subset::<Vec<u16>>(&slice)?, [1; 64]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// ### One writer
/// Only one process may write an object between the adapter's read and its `set`. Otherwise one of
/// two writers loses its data, and a shard that both update can become unreadable.
///
/// Threads and tasks that write through the same `RangeWrites` take turns for each key, if all of
/// them use the blocking operations, or all of them the asynchronous ones. A value that another
/// process stored is seen from the next read of its key on.
///
/// ### What an update costs
/// Each call of `set_partial` or `set_partial_many` stores the whole object. The call reads the object
/// first, unless the last call for this key was a partial write too: then the object is [still
/// there](Self::with_kept_bytes). The partial encoder of this crate writes a shard by one call, or
/// by two if it rewrites an index in place; the two read the shard once.
///
/// To zarrs this store supports partial writes. So [`WriteStrategy::Auto`](crate::WriteStrategy)
/// does not overwrite subchunks of different sizes in place, and shards grow until they are
/// [compacted](crate::compact). [`WriteStrategy::InPlace`](crate::WriteStrategy) keeps them
/// smaller.
///
/// ### What is promised
/// [Updates](crate::guide::reference::updates#what-is-promised) says what is left of a shard if the
/// process dies between two calls, or inside a call. The same holds here under two conditions: the
/// store's `set` is atomic, and a stored value is what the next read returns. The object is then as
/// before a call or as after it, in the order of the calls. S3 and its like meet both conditions.
///
/// A store that truncates an object before it writes, such as zarrs' filesystem store, must be
/// inside an `AtomicWriteStorageAdapter`. Otherwise the whole shard can be lost. After an error, or
/// when a future of these operations was dropped, a call may or may not have been done.
///
/// ### Stores that support partial writes
/// If the inner store supports partial writes, they are forwarded to it, and its own guarantees
/// apply. For the files of zarrs' `FilesystemStore` there is `on_filesystem`, which promises more.
pub struct RangeWrites<S: ?Sized> {
    key_locks: KeyLocks,
    kept: RecentObjects,
    max_object_len: u64,
    /// The directory of the store, if its values are files in which parts are written in place; `None`
    /// otherwise.
    root: Option<PathBuf>,
    store: Arc<S>,
}

#[cfg(feature = "filesystem")]
impl RangeWrites<zarrs_filesystem::FilesystemStore> {
    /// Returns an adapter whose partial writes change the files of `store` in place.
    ///
    /// - **A full disk leaves no shard half written.** Room is reserved before the first byte is
    ///   written. File systems that copy what is overwritten (btrfs, ZFS) do not keep room for that.
    /// - **A write that fails nevertheless** leaves the file as long as it was.
    /// - **Several processes** update one shard one after the other, by an advisory lock on its file. A
    ///   process that waits longer than [`Options::with_turn_limit`](crate::Options::with_turn_limit)
    ///   is refused with an error of the kind `ResourceBusy`. All writers have to use this adapter, on
    ///   a file system with locks.
    /// - **A file with other names** (hard links) is copied first, so that its other names keep their
    ///   bytes.
    /// - Each call syncs the file before it returns, as the store does.
    ///
    /// Leave zarrs' `file_handle_cache_size` off.
    #[must_use]
    pub fn on_filesystem(store: Arc<zarrs_filesystem::FilesystemStore>) -> Self {
        let root = store.prefix_to_fs_path(&StorePrefix::root());
        Self {
            root: Some(root),
            ..Self::new(store)
        }
    }
}

impl<S: ?Sized> RangeWrites<S> {
    /// Returns an adapter of `store`.
    #[must_use]
    pub fn new(store: Arc<S>) -> Self {
        Self {
            key_locks: KeyLocks::default(),
            kept: RecentObjects::new(KEPT_BYTES),
            max_object_len: MAX_OBJECT_LEN,
            root: None,
            store,
        }
    }

    /// Sets the longest object that a partial write may leave, in bytes. A longer object is an
    /// error. Default: 5 GiB, the most that S3 stores by one request.
    #[must_use]
    pub fn with_max_object_len(mut self, bytes: u64) -> Self {
        self.max_object_len = bytes;
        self
    }

    /// Sets how many bytes of recently patched objects are kept, so that the next partial write
    /// does not read them again. Default: 256 MiB, of at most 64 objects.
    ///
    /// An object is kept until its key is read, stored or erased through this adapter.
    #[must_use]
    pub fn with_kept_bytes(mut self, bytes: usize) -> Self {
        self.kept = RecentObjects::new(bytes);
        self
    }

    /// Holds the file of `key` for as long as the lock of a partial write, if the values of the store are
    /// files.
    fn hold(&self, key: &StoreKey) -> Result<(), StorageError> {
        let held = self
            .root
            .as_ref()
            .map(|root| hold(&root.join(key.as_str())));
        Ok(held.transpose().map(drop)?)
    }

    async fn set_in_turn<A: Writes + LocksKeys>(
        &self,
        store: &A,
        key: &StoreKey,
        value: Bytes,
    ) -> Result<(), StorageError> {
        let _lock = store.lock_key(&self.key_locks, key).await;
        self.kept.take(key);
        store.set(key, value).await
    }

    async fn set_ranges_in_turn<A: Reads + Writes + LocksKeys>(
        &self,
        store: &A,
        key: &StoreKey,
        values: Vec<(u64, Bytes)>,
    ) -> Result<(), StorageError> {
        if values.is_empty() {
            return Ok(());
        }
        check_end(key, &values, self.max_object_len)?;
        let _lock = store.lock_key(&self.key_locks, key).await;
        // The object is kept again after the store has stored it.
        let before = match self.kept.take(key) {
            Some(kept) => Some(kept),
            None => store.get(key).await?,
        };
        let before = before.unwrap_or_default();
        if before.len() as u64 > self.max_object_len {
            return Err(too_long(key, before.len() as u64, self.max_object_len));
        }
        let after = with_parts(key, before, &values)?;
        drop(values);
        store.set(key, after.clone()).await?;
        self.kept.put(key, after);
        Ok(())
    }

    async fn erase_in_turn<A: Writes + LocksKeys>(
        &self,
        store: &A,
        key: &StoreKey,
    ) -> Result<(), StorageError> {
        let _lock = store.lock_key(&self.key_locks, key).await;
        self.kept.take(key);
        store.erase(key).await
    }

    async fn erase_prefix_in_turn<A: Writes + LocksKeys>(
        &self,
        store: &A,
        prefix: &StorePrefix,
    ) -> Result<(), StorageError> {
        let _lock = store.lock_all_keys(&self.key_locks).await;
        self.kept.forget_prefix(prefix);
        store.erase_prefix(prefix).await
    }
}

impl<S: ?Sized> fmt::Debug for RangeWrites<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RangeWrites")
            .field("max_object_len", &self.max_object_len)
            .finish_non_exhaustive()
    }
}

/// Checks that none of `values` ends beyond `max` bytes.
fn check_end(key: &StoreKey, values: &[(u64, Bytes)], max: u64) -> Result<(), StorageError> {
    let mut end = 0;
    for (offset, value) in values {
        let here = offset.checked_add(value.len() as u64).ok_or_else(|| {
            StorageError::Other(format!(
                "cannot write {} bytes at offset {offset} of {key}: they would end beyond 2^64 bytes",
                value.len()
            ))
        })?;
        end = end.max(here);
    }
    if end > max {
        return Err(too_long(key, end, max));
    }
    Ok(())
}

fn too_long(key: &StoreKey, len: u64, max: u64) -> StorageError {
    StorageError::Other(format!(
        "cannot write part of {key}: it would have {len} bytes, and {max} is the most that one request may store here (RangeWrites::with_max_object_len)"
    ))
}

/// The objects that were patched last, which the adapter keeps.
struct RecentObjects {
    budget: usize,
    /// The kept objects and their keys, the oldest first.
    objects: Mutex<VecDeque<(StoreKey, Bytes)>>,
}

impl RecentObjects {
    fn new(budget: usize) -> Self {
        Self {
            budget,
            objects: Mutex::default(),
        }
    }

    fn objects(&self) -> MutexGuard<'_, VecDeque<(StoreKey, Bytes)>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the object of `key` from the kept objects, and returns it; `None` if it is not kept.
    fn take(&self, key: &StoreKey) -> Option<Bytes> {
        let mut objects = self.objects();
        let at = objects.iter().position(|(kept, _)| kept == key)?;
        objects.remove(at).map(|(_, object)| object)
    }

    fn forget_prefix(&self, prefix: &StorePrefix) {
        self.objects().retain(|(key, _)| !key.has_prefix(prefix));
    }

    fn put(&self, key: &StoreKey, object: Bytes) {
        if object.len() > self.budget {
            return;
        }
        let mut objects = self.objects();
        objects.retain(|(kept, _)| kept != key);
        objects.push_back((key.clone(), object));
        let mut bytes = objects
            .iter()
            .map(|(_, object)| object.len())
            .sum::<usize>();
        while bytes > self.budget || objects.len() > KEPT_OBJECTS {
            let Some((_, oldest)) = objects.pop_front() else {
                break;
            };
            bytes = bytes.saturating_sub(oldest.len());
        }
    }
}

/// Reads values. A read forgets the kept object, so that the read, and a write after it, see what other
/// processes stored.
impl<S: ReadableStorageTraits + ?Sized> ReadableStorageTraits for RangeWrites<S> {
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        self.hold(key)?;
        self.kept.take(key);
        self.store.get(key)
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        self.hold(key)?;
        self.kept.take(key);
        self.store.get_partial_many(key, byte_ranges)
    }

    fn get_partial(
        &self,
        key: &StoreKey,
        byte_range: ByteRange,
    ) -> Result<MaybeBytes, StorageError> {
        self.hold(key)?;
        self.kept.take(key);
        self.store.get_partial(key, byte_range)
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.kept.take(key);
        self.store.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        self.store.supports_get_partial()
    }
}

impl<S: ReadableStorageTraits + WritableStorageTraits + ?Sized> WritableStorageTraits
    for RangeWrites<S>
{
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        now(self.set_in_turn(&Blocking::new(&*self.store), key, value))
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        if let Some(root) = &self.root {
            let values: Vec<_> = offset_values.collect();
            return Ok(in_place::write(
                &root.join(key.as_str()),
                &values,
                Some(root),
            )?);
        }
        if self.store.supports_set_partial() {
            return self.store.set_partial_many(key, offset_values);
        }
        now(self.set_ranges_in_turn(&Blocking::new(&*self.store), key, offset_values.collect()))
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        now(self.erase_in_turn(&Blocking::new(&*self.store), key))
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        now(self.erase_prefix_in_turn(&Blocking::new(&*self.store), prefix))
    }

    /// Returns true: the adapter writes parts of any value.
    fn supports_set_partial(&self) -> bool {
        true
    }
}

impl<S: ListableStorageTraits + ?Sized> ListableStorageTraits for RangeWrites<S> {
    fn list(&self) -> Result<StoreKeys, StorageError> {
        self.store.list()
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        self.store.list_prefix(prefix)
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        self.store.list_dir(prefix)
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        self.store.size_prefix(prefix)
    }

    fn size(&self) -> Result<u64, StorageError> {
        self.store.size()
    }
}

#[cfg(feature = "async")]
#[async_trait::async_trait]
impl<S: AsyncReadableStorageTraits + ?Sized> AsyncReadableStorageTraits for RangeWrites<S> {
    async fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        self.kept.take(key);
        self.store.get(key).await
    }

    async fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<AsyncMaybeBytesIterator<'a>, StorageError> {
        self.kept.take(key);
        self.store.get_partial_many(key, byte_ranges).await
    }

    async fn get_partial<'a>(
        &'a self,
        key: &StoreKey,
        byte_range: ByteRange,
    ) -> Result<MaybeBytes, StorageError> {
        self.kept.take(key);
        self.store.get_partial(key, byte_range).await
    }

    async fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.kept.take(key);
        self.store.size_key(key).await
    }

    fn supports_get_partial(&self) -> bool {
        self.store.supports_get_partial()
    }
}

#[cfg(feature = "async")]
#[async_trait::async_trait]
impl<S: AsyncReadableStorageTraits + AsyncWritableStorageTraits + ?Sized> AsyncWritableStorageTraits
    for RangeWrites<S>
{
    async fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.set_in_turn(&Awaited(&*self.store), key, value).await
    }

    async fn set_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator<'a>,
    ) -> Result<(), StorageError> {
        if self.store.supports_set_partial() {
            return self.store.set_partial_many(key, offset_values).await;
        }
        let values = offset_values.collect();
        self.set_ranges_in_turn(&Awaited(&*self.store), key, values)
            .await
    }

    async fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.erase_in_turn(&Awaited(&*self.store), key).await
    }

    async fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.erase_prefix_in_turn(&Awaited(&*self.store), prefix)
            .await
    }

    /// Returns true: the adapter writes parts of any value.
    fn supports_set_partial(&self) -> bool {
        true
    }
}

#[cfg(feature = "async")]
#[async_trait::async_trait]
impl<S: AsyncListableStorageTraits + ?Sized> AsyncListableStorageTraits for RangeWrites<S> {
    async fn list(&self) -> Result<StoreKeys, StorageError> {
        self.store.list().await
    }

    async fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        self.store.list_prefix(prefix).await
    }

    async fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        self.store.list_dir(prefix).await
    }

    async fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        self.store.size_prefix(prefix).await
    }

    async fn size(&self) -> Result<u64, StorageError> {
        self.store.size().await
    }
}

//! Shows a sharded array to many writers: each subchunk is an object of its own until it is packed into its
//! shard.

mod batch;
mod changed;
mod consolidation;
mod frame;
mod listings;
mod marker;
mod metadata;
mod protocol;
mod reading;
mod report;

#[cfg(feature = "async")]
mod awaited;
mod blocking;
#[cfg(test)]
mod every_schedule;
#[cfg(all(test, feature = "filesystem"))]
mod power_failure;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use zarrs::array::Array;
use zarrs::node::{NodePath, meta_key_v2_array, meta_key_v3};
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{
    AtomicRenameStorageTraits, StorageError, StoreKey, StorePrefix, WritableStorageTraits,
};

pub use batch::SubchunkBatch;
use changed::Watch;
pub(crate) use frame::is_framed;
use frame::{Entry, Listing};
use listings::{Listings, Recent};
pub use marker::FRAMES_MARKER;
use marker::Marker;
use metadata::ShardedArray;
use protocol::Frames;
pub use report::{Consolidation, ConsolidationProgress};

use super::chunk_keys::{ChunkKey, ChunkKeys, Scope};
use super::listing::{self, Present, Seen, ShardsSeenAsChunks};
use super::shard_grid::ShardGrid;
use super::zarrs_traits::zarrs_traits;
use crate::codec::registry::OwnedMetadata;
use crate::error::Error;
use crate::options::Options;
use crate::store::durable::Names;
use crate::store::files::Files;
use crate::store::key_locks::LocksKeys;
use crate::store::ranges::{slice, with_parts};
use crate::store::replace::Unfinished;
use crate::store::temporary_keys::temporary_key;
use crate::store::times::Stamp;
use crate::store::{Lists, Reads, Writes};

/// The suffix of a temporary's key.
const TEMPORARY: &str = ".tmp";

/// Shows a sharded array as an unsharded one, whose chunks many processes may write.
///
/// The array at a path of `S` has the codec `sharding_indexed`, on a regular grid, and no codec
/// around it. Through the adapter it has one chunk for each subchunk: its `zarr.json` shows the
/// grid of subchunks and the inner codecs, and its chunk keys are those of subchunks. Everything
/// else in the store looks as it is.
///
/// A write of a subchunk does not touch its shard. The write stores an object of its own beside the shard,
/// in the shard's *frame*. So
///
/// - writers of different subchunks never lose each other's data, in any number of processes and
///   machines;
/// - a write costs what the subchunk costs;
/// - readers through an adapter see a write at once. Other readers see it after the shard was
///   [consolidated](Self::consolidate): frame and shard become one standard shard, which any Zarr
///   reader opens.
///
/// ```
/// # use std::sync::Arc;
/// # use zarrs::array::{Array, ArrayBuilder, data_type};
/// use zarrs_cuda::storage::SparseShardStore;
///
/// # let store = Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0u16);
/// # builder.subchunk_shape(vec![8, 8]).build(store.clone(), "/volume")?.store_metadata()?;
/// let sparse = Arc::new(SparseShardStore::open(store.clone(), "/volume")?);
/// let subchunks = Array::open(sparse.clone(), "/volume")?;
/// subchunks.store_chunk(&[3, 7], vec![1_u16; 8 * 8])?; // any number of processes, at once
///
/// sparse.consolidate_all(&|progress| println!("{progress}"))?;
/// let shards = Array::open(store, "/volume")?;
/// assert_eq!(shards.retrieve_chunk::<Vec<u16>>(&[0, 1])?.iter().filter(|&&x| x == 1).count(), 64);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Rules
/// - A stored object must be found at once by every process that reads or lists. zarrs'
///   `FilesystemStore` must have no file handle cache (`file_handle_cache_size`; off by default):
///   it would go on reading shards that others have replaced, and consolidate them.
/// - A shard must be replaced at once. Object stores and databases do that by `set`. zarrs'
///   `FilesystemStore` does not, and its listings fail without an error: use `on_filesystem` there.
/// - One writer at a time for each *subchunk*. zarrs writes part of a subchunk by reading and
///   storing it, so elements of one subchunk belong to one writer. Threads that write through the
///   same adapter take turns for each call, but that does not make zarrs' two steps safe.
/// - One consolidation at a time for each shard, and none that is paused and goes on after another
///   one: zarrs' stores have no conditional writes.
/// - No writes to the shards themselves meanwhile, and no erasing of prefixes of the array.
/// - No change of the sharding. An adapter reads, writes and consolidates as the array was sharded
///   when it was opened. The adapter looks again only when the array's metadata are read or stored; a change
///   is then an error. Consolidation reads no metadata. The array's shape may change.
///
/// The [guide](crate::guide::share) shows how to use it. The [reference
/// page](crate::guide::reference::sparse_shards) has the promises, the protocol, and how both were
/// checked.
pub struct SparseShardStore<S: ?Sized> {
    array: SparseArray,
    store: Arc<S>,
}

/// All of an adapter except its store. Clones take turns with each other.
#[derive(Clone)]
struct SparseArray {
    path: NodePath,
    metadata: StoreKey,
    /// The sharding of the array when the adapter was opened.
    sharded: ShardedArray,
    keys: ChunkKeys,
    grid: ShardGrid,
    /// Makes this library the owner of the codec of subchunks that are shards; `None` if they are not shards.
    _nested: Option<Arc<OwnedMetadata>>,
    frames: Arc<Frames>,
    listings: Arc<Listings>,
    /// Replaces a value atomically; `None` if the store's `set` does so.
    rename: Option<Rename>,
    /// The directory of the store, if its values are known to be files.
    files: Option<Files>,
    /// The most bytes of memory that consolidations take.
    memory: usize,
    /// The means by which consolidations see that another program has replaced a shard.
    watch: Watch,
}

/// Stores a value under a key atomically, or erases the key.
type Rename = Arc<dyn Fn(&StoreKey, Option<Bytes>) -> Result<(), StorageError> + Send + Sync>;

impl SparseArray {
    /// Opens the adapter of the array at `path`, with the sharding in its stored metadata.
    async fn open<O: Reads>(store: &O, path: &str) -> Result<Self, Error> {
        let node = node_path(path)?;
        let key = meta_key_v3(&node);
        let metadata = store.get(&key).await;
        if let Some(metadata) = metadata.map_err(|error| unreadable(&key, error))? {
            return Self::new(path, &metadata);
        }
        let older = meta_key_v2_array(&node);
        if let Ok(Some(_)) = store.size(&older).await {
            return Err(Error::NotShards {
                reason: format!(
                    "{older} is that of an array of Zarr V2, which has no shards: store the array as one of Zarr V3, with the codec `sharding_indexed`"
                ),
            });
        }
        let source = "there is no array: create it, and store its metadata, first".to_owned();
        Err(unreadable(&key, StorageError::Other(source)))
    }

    fn new(path: &str, metadata: &[u8]) -> Result<Self, Error> {
        let path = node_path(path)?;
        let key = meta_key_v3(&path);
        let sharded = metadata::sharded(&key, &path, metadata)?;
        let nested =
            metadata::own_nested(&key, metadata).map_err(|error| unreadable(&key, error))?;
        let counts = sharded.shards.grid.counts();
        let counts: Vec<u64> = counts.iter().map(|&count| count as u64).collect();
        let grid = ShardGrid::new(&counts)?;
        let marker = Marker::of(&key).map_err(|error| unreadable(&key, error))?;
        let frames = Frames::new(sharded.shards.clone(), Box::new(frame::writers()), marker)?;
        Ok(Self {
            keys: ChunkKeys::new(&path, grid.counts().len()),
            sharded,
            _nested: nested.map(Arc::new),
            frames: Arc::new(frames),
            listings: Arc::default(),
            rename: None,
            files: None,
            memory: Options::default().host_memory(),
            watch: Watch::default(),
            metadata: key,
            path,
            grid,
        })
    }

    /// Returns the shard of a chunk, and the number of the chunk in it.
    fn place(&self, chunk: &ChunkKey) -> Result<(StoreKey, u32), StorageError> {
        let (shard, number) = self.grid.shard_of(chunk);
        // The adapter was opened only because a shard has fewer subchunks than `u32` can count.
        let number =
            u32::try_from(number).map_err(|error| StorageError::Other(error.to_string()))?;
        Ok((self.keys.key(&shard)?, number))
    }

    /// Checks that the adapter may write, which it may not if it uses old listings. zarrs writes a part of a
    /// subchunk by reading and storing it, and a read by an old listing would undo what others have written
    /// since.
    ///
    /// # Errors
    /// [`StorageError::Unsupported`] if the adapter uses old listings.
    fn check_writable(&self, what: &str) -> Result<(), StorageError> {
        if self.listings.is_off() {
            return Ok(());
        }
        Err(StorageError::Unsupported(format!(
            "cannot change {what:?} through an adapter with a listing age, which may read what is no more: write through another one, without `with_listing_age`"
        )))
    }

    /// Returns the array of shards, with its present metadata.
    async fn shards<O: Reads>(&self, store: &O) -> Result<Array<()>, Error> {
        let key = &self.metadata;
        let array = async {
            let stored = store.get(key).await?;
            let stored = stored.ok_or_else(|| {
                StorageError::Other("the array was erased: open the adapter of another".to_owned())
            })?;
            self.sharded.check(key, &self.path, &stored)?;
            metadata::array_of(key, &self.path, &stored)
        };
        array.await.map_err(|error| unreadable(key, error))
    }

    async fn presented<O: Reads>(&self, store: &O) -> Result<Option<Bytes>, StorageError> {
        match store.get(&self.metadata).await? {
            None => Ok(None),
            Some(stored) => {
                self.sharded.check(&self.metadata, &self.path, &stored)?;
                let presented = metadata::presented(&self.metadata, &stored)?;
                Ok(Some(presented.into()))
            }
        }
    }

    /// Returns an encoded subchunk; `None` if it is empty.
    async fn read<O: Reads + Lists>(
        &self,
        store: &O,
        shard: &StoreKey,
        number: u32,
        listing: Option<Arc<Listing>>,
    ) -> Result<Option<Bytes>, StorageError> {
        // If shards are replaced by renaming, an open file stays the same version of the shard.
        let snapshots = self.rename.is_some();
        self.frames
            .read(store, shard, number, listing, snapshots)
            .await
    }

    async fn read_chunk<O: Reads + Lists>(
        &self,
        store: &O,
        chunk: &ChunkKey,
    ) -> Result<Option<Bytes>, StorageError> {
        let (shard, number) = self.place(chunk)?;
        let listing = self.list(store, &shard, false).await?;
        self.read(store, &shard, number, Some(listing)).await
    }

    /// Returns the content of the frame of `shard`, which may be as old as the adapter allows. With `anew`,
    /// no earlier listing is used.
    async fn list<O: Lists>(
        &self,
        store: &O,
        shard: &StoreKey,
        anew: bool,
    ) -> Result<Arc<Listing>, StorageError> {
        if !anew && let Recent::Known(listing) = self.listings.recent(shard) {
            return Ok(listing);
        }
        let begin = Instant::now();
        let listing = Arc::new(self.frames.list(store, shard).await?);
        if !self.listings.is_off() {
            self.listings.keep(shard, begin, &listing);
        }
        Ok(listing)
    }

    /// Writes or erases a subchunk. The caller holds the lock of the subchunk.
    async fn write_chunk<O: Reads + Writes + Lists>(
        &self,
        store: &O,
        chunk: &ChunkKey,
        entry: Entry,
    ) -> Result<(), StorageError> {
        let (shard, number) = self.place(chunk)?;
        let entries = BTreeMap::from([(number, entry)]);
        self.frames.write_each(store, &shard, entries).await
    }

    async fn get<O: Reads + Lists>(
        &self,
        store: &O,
        key: &StoreKey,
    ) -> Result<Option<Bytes>, StorageError> {
        if *key == self.metadata {
            self.presented(store).await
        } else if let Some(chunk) = self.keys.parse(key.as_str()) {
            self.read_chunk(store, &chunk).await
        } else {
            store.get(key).await
        }
    }

    fn is_own(&self, key: &StoreKey) -> bool {
        *key == self.metadata || self.keys.parse(key.as_str()).is_some()
    }

    async fn get_ranges<O: Reads + Lists>(
        &self,
        store: &O,
        key: &StoreKey,
        ranges: Vec<ByteRange>,
    ) -> Result<Option<Vec<Bytes>>, StorageError> {
        if !self.is_own(key) {
            return store.get_ranges(key, ranges).await;
        }
        let Some(value) = self.get(store, key).await? else {
            return Ok(None);
        };
        let parts = ranges.into_iter().map(|range| slice(&value, range));
        parts.collect::<Result<_, _>>().map(Some)
    }

    async fn size<O: Reads + Lists>(
        &self,
        store: &O,
        key: &StoreKey,
    ) -> Result<Option<u64>, StorageError> {
        if self.is_own(key) {
            let value = self.get(store, key).await?;
            return Ok(value.map(|value| value.len() as u64));
        }
        store.size(key).await
    }

    async fn set<O: Reads + Writes + Lists + LocksKeys>(
        &self,
        store: &O,
        key: &StoreKey,
        value: Bytes,
    ) -> Result<(), StorageError> {
        self.check_writable(key.as_str())?;
        if let Some(chunk) = self.keys.parse(key.as_str()) {
            let _lock = store.lock_key(self.frames.key_locks(), key).await;
            self.write_chunk(store, &chunk, Entry::Data(value)).await
        } else if *key == self.metadata {
            let _lock = store.lock_key(self.frames.key_locks(), key).await;
            self.set_metadata(store, &value).await
        } else {
            store.set(key, value).await
        }
    }

    async fn set_metadata<O: Reads + Writes>(
        &self,
        store: &O,
        value: &[u8],
    ) -> Result<(), StorageError> {
        let key = &self.metadata;
        let stored = store.get(key).await?.ok_or_else(|| {
            StorageError::Other(format!(
                "cannot store {key}: it was erased, and with it how subchunks lie in shards. Store the array anew"
            ))
        })?;
        self.sharded.check(key, &self.path, &stored)?;
        let value = metadata::stored_for(key, &self.path, &stored, value)?;
        self.replace(store, key, Some(value.into())).await
    }

    async fn set_ranges<O: Reads + Writes + Lists + LocksKeys>(
        &self,
        store: &O,
        key: &StoreKey,
        parts: Vec<(u64, Bytes)>,
    ) -> Result<(), StorageError> {
        self.check_writable(key.as_str())?;
        if !self.is_own(key) {
            return store.set_ranges(key, parts).await;
        }
        let _lock = store.lock_key(self.frames.key_locks(), key).await;
        if let Some(chunk) = self.keys.parse(key.as_str()) {
            let (shard, number) = self.place(&chunk)?;
            let value = self.read(store, &shard, number, None).await?;
            let value = with_parts(key, value.unwrap_or_default(), &parts)?;
            self.write_chunk(store, &chunk, Entry::Data(value)).await
        } else {
            let value = self.presented(store).await?.unwrap_or_default();
            let value = with_parts(key, value, &parts)?;
            self.set_metadata(store, &value).await
        }
    }

    async fn erase<O: Reads + Writes + Lists + LocksKeys>(
        &self,
        store: &O,
        key: &StoreKey,
    ) -> Result<(), StorageError> {
        self.check_writable(key.as_str())?;
        let Some(chunk) = self.keys.parse(key.as_str()) else {
            return store.erase(key).await;
        };
        let _lock = store.lock_key(self.frames.key_locks(), key).await;
        self.write_chunk(store, &chunk, Entry::Tombstone).await
    }

    async fn erase_each<O: Reads + Writes + Lists + LocksKeys>(
        &self,
        store: &O,
        keys: &[StoreKey],
    ) -> Result<(), StorageError> {
        for key in keys {
            self.erase(store, key).await?;
        }
        Ok(())
    }

    async fn erase_prefix<O: Reads + Writes + Lists + LocksKeys>(
        &self,
        store: &O,
        prefix: &StorePrefix,
    ) -> Result<(), StorageError> {
        self.check_writable(prefix.as_str())?;
        match self.keys.scope(prefix) {
            Scope::Chunks(chunks) if !chunks.coordinates.is_empty() => {
                let keys = listing::list_prefix(&self.view(store), store, prefix).await?;
                self.erase_each(store, &keys).await
            }
            // Objects in a frame are not shown, so nothing can be erased there.
            Scope::Elsewhere if frame::shard_of(&self.keys, prefix.as_str()).is_some() => Ok(()),
            // Either all shards and frames have this prefix, or none has it.
            _ => {
                // The prefix may cover the marker, so the marker must be looked for again.
                self.frames.marker().forget(false);
                store.erase_prefix(prefix).await
            }
        }
    }

    /// Replaces the value of `key` atomically, or erases it.
    async fn replace<O: Writes>(
        &self,
        store: &O,
        key: &StoreKey,
        value: Option<Bytes>,
    ) -> Result<(), StorageError> {
        match (value, &self.rename) {
            (value, Some(rename)) => rename(key, value),
            (Some(value), None) => store.set(key, value).await,
            (None, None) => store.erase(key).await,
        }
    }
}

/// Returns a function that replaces values by renaming in `store`. `names` are the names of its files, if the
/// store does not sync them. Any process may store the `metadata` at any time; any other value is replaced by
/// one process at a time.
pub(super) fn renaming<R>(store: Arc<R>, metadata: StoreKey, names: Option<Names>) -> Rename
where
    R: AtomicRenameStorageTraits + WritableStorageTraits + ?Sized + 'static,
{
    let writers = frame::writers();
    Arc::new(move |key, value| {
        // One process at a time consolidates a shard, but any process stores metadata.
        let is_shared = *key == metadata;
        let temporary = if is_shared {
            StoreKey::new(format!("{key}.{}{TEMPORARY}", writers()))?
        } else {
            temporary_key(key)?
        };
        if !is_shared {
            // A process that died may have left the temporary; or it is a link, through which the store would
            // write.
            store.erase(&temporary)?;
        }
        // The caller deletes versions in the frame after this, so the name of the shard must be on the disk
        // before.
        let sync = || {
            let Some(names) = &names else { return Ok(()) };
            names.note(key);
            names.sync().map_err(StorageError::from)
        };
        let Some(value) = value else {
            return store.erase(key).and_then(|()| sync());
        };
        let stored = store.set(&temporary, value);
        let stored = stored.and_then(|()| store.rename(&temporary, key));
        let stored = stored.and_then(|()| sync());
        if stored.is_err() && is_shared {
            // The name of the temporary is not used again, so it is erased. The first error is returned, and
            // not an error here.
            let _ = store.erase(&temporary);
        }
        stored
    })
}

fn unreadable(key: &StoreKey, source: StorageError) -> Error {
    Error::Storage {
        doing: "read",
        key: key.clone(),
        source,
    }
}

/// Returns the key of the metadata of the array at `path`.
fn metadata_of(path: &str) -> Result<StoreKey, Error> {
    Ok(meta_key_v3(&node_path(path)?))
}

fn node_path(path: &str) -> Result<NodePath, Error> {
    NodePath::new(path)
        .map_err(|error| Error::Create(zarrs::plugin::PluginCreateError::Other(error.to_string())))
}

zarrs_traits! {
    SparseShardStore.array,
    reads: [ReadableStorageTraits ListableStorageTraits],
        [AsyncReadableStorageTraits AsyncListableStorageTraits],
    gets_parts: false, // a read of a part reads the whole subchunk
}

/// An adapter and its store, as [`listing`] needs them.
struct View<'a, O> {
    array: &'a SparseArray,
    store: &'a O,
}

impl SparseArray {
    fn view<'a, O>(&'a self, store: &'a O) -> View<'a, O> {
        View { array: self, store }
    }
}

impl<O: Reads + Lists> ShardsSeenAsChunks for View<'_, O> {
    fn keys(&self) -> &ChunkKeys {
        &self.array.keys
    }

    fn grid(&self) -> &ShardGrid {
        &self.array.grid
    }

    fn seen(&self, key: &StoreKey) -> Seen {
        if key == self.array.frames.marker().key() {
            return Seen::Hidden;
        }
        let (keys, key) = (&self.array.keys, key.as_str());
        let shard = frame::shard_of(keys, key).unwrap_or(key);
        if let Some(shard) = keys.parse(shard) {
            return Seen::Shard(shard);
        }
        match Unfinished::of(key) {
            Some(unfinished) if keys.parse(unfinished.name).is_some() => Seen::Hidden,
            _ => Seen::Itself,
        }
    }

    fn seen_prefix(&self, prefix: &StorePrefix) -> Seen {
        let shard = frame::shard_of(&self.array.keys, prefix.as_str());
        let shard = shard.and_then(|shard| self.array.keys.parse(shard));
        shard.map_or(Seen::Itself, Seen::Shard)
    }

    async fn present(&self, shard: &ChunkKey) -> Result<Vec<Present>, StorageError> {
        let shard = self.array.keys.key(shard)?;
        let present = self.array.frames.present(self.store, &shard).await?;
        let present = present.into_iter();
        Ok(present
            .map(|(number, len)| Present { number, len })
            .collect())
    }

    async fn size_of(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.array.size(self.store, key).await
    }
}

impl<S: ?Sized> SparseShardStore<S> {
    /// Lets reads reuse a frame listing that is at most `age` old. Default: zero, and each read of
    /// a subchunk lists its shard's frame.
    ///
    /// With an age, many reads of a shard list its frame once. Writes of others may be seen that much
    /// later. A read never returns anything that was not written.
    ///
    /// **Such an adapter only reads.** Storing, erasing and consolidating through it is
    /// [`StorageError::Unsupported`]. zarrs writes part of a subchunk by reading and storing it,
    /// and a read by an old listing would undo what others wrote since. Write through another
    /// adapter, such as a clone from before.
    #[must_use]
    pub fn with_listing_age(mut self, age: Duration) -> Self {
        self.array.listings = Arc::new(Listings::new(age));
        self
    }

    /// Sets the most memory that [`consolidate_all`](Self::consolidate_all) takes, in bytes, unless
    /// one shard takes more. Default: [`Options::host_memory`](crate::Options::host_memory) of
    /// `Options::default`, whatever was registered.
    #[must_use]
    pub fn with_memory(mut self, bytes: usize) -> Self {
        self.array.memory = bytes;
        self
    }

    /// Sets how the store tells when its objects were stored, for
    /// [`consolidate`](Self::consolidate), which then reports shards that another program has
    /// replaced. `times` is given the key of a shard and the prefix of its frame. The function returns the
    /// keys and times of the shard and of the objects directly under the prefix, as far as they are there.
    ///
    /// zarrs' traits of stores have no times. [`on_filesystem`](Self::on_filesystem) needs no
    /// `times`. For an object store, one request finds the time of the shard, and a listing those of
    /// the frame. All times must come from one clock, that of the store. A consolidation of an
    /// asynchronous store calls it, too, and waits for it as for its own work.
    #[must_use]
    pub fn with_times(
        mut self,
        times: impl Fn(&StoreKey, &StorePrefix) -> Result<Vec<(StoreKey, SystemTime)>, StorageError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.array.watch.times = Some(Arc::new(move |shard, frame| {
            let times = times(shard, frame)?.into_iter();
            Ok(times.map(|(key, time)| (key, Stamp::at(time))).collect())
        }));
        self
    }

    /// Lets [`consolidate`](Self::consolidate) also pack a shard that another program has replaced after
    /// subchunks were stored beside it. The subchunks replace the program's data. Default: such a shard is an
    /// error.
    #[must_use]
    pub fn over_changed_shards(mut self) -> Self {
        self.array.watch.over_changed = true;
        self
    }

    /// Returns the store of the shards and their frames.
    #[must_use]
    pub fn inner(&self) -> &Arc<S> {
        &self.store
    }
}

/// A clone takes turns with the original. Later settings of one do not change the other.
impl<S: ?Sized> Clone for SparseShardStore<S> {
    fn clone(&self) -> Self {
        Self {
            array: self.array.clone(),
            store: self.store.clone(),
        }
    }
}

impl<S: ?Sized> fmt::Debug for SparseShardStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SparseShardStore")
            .field("path", &self.array.path)
            .finish_non_exhaustive()
    }
}

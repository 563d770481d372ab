//! Shards that many may write: each subchunk an object of its own, until they are packed.

mod consolidation;
mod frame;
mod listings;
mod metadata;
mod protocol;
mod report;

#[cfg(feature = "async")]
mod awaited;
mod blocking;
#[cfg(test)]
mod every_schedule;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zarrs::node::{NodePath, meta_key_v2_array, meta_key_v3};
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::storage_adapter::atomic_write::AtomicWriteStorageAdapter;
use zarrs_storage::{
    AtomicRenameStorageTraits, Bytes, ReadableStorageTraits, StorageError, StoreKey, StorePrefix,
    WritableStorageTraits,
};

use frame::{Entry, Listing};
use listings::{Listings, Recent};
use metadata::Sharding;
use protocol::Frames;
pub use report::{Consolidation, ConsolidationProgress};

use super::chunk_keys::{ChunkKey, ChunkKeys, Scope};
use super::listing::{self, Present, Seen, ShardsSeenAsChunks};
use super::shard_grid::ShardGrid;
use super::zarrs_traits::zarrs_traits;
use crate::codec::registry::Claim;
use crate::store::files::Files;
use crate::store::ranges::{slice, with_parts};
use crate::store::turns::TakesTurns;
use crate::store::{Lists, Reads, Writes};
use crate::{Error, Options};

/// What a temporary has behind its key.
const TEMPORARY: &str = ".tmp";

/// A sharded array as an unsharded one, whose chunks many may write.
///
/// The array at a path of `S` has the codec `sharding_indexed`, on a regular grid, and no codec around
/// it. Here it has a chunk for each subchunk: its `zarr.json` shows the grid of subchunks and the inner
/// codecs, its chunk keys are those of subchunks. Everything else of the store is as it is.
///
/// What is written to a subchunk does not touch its shard. It is an object of its own, next to it, in the
/// shard's *frame*: `<shard key>.frame/0000002E.0000000000000003.9F31C02E5B7A44D00000000A.chunk`. So writers of
/// different subchunks never lose each other's data, whichever processes and machines they are on, and a
/// write costs what the subchunk costs. Readers through an adapter see what was written at once; other
/// readers do when the shard was [consolidated](Self::consolidate): frame and shard become one standard
/// shard, which any Zarr reader opens.
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
/// # What it rests on
/// - What was stored is found by whoever reads or lists afterwards. zarrs' `FilesystemStore` has no file
///   handle cache then (`file_handle_cache_size`; by default it has none): it would go on reading shards
///   that others have replaced, and consolidate them.
/// - A shard is replaced at once. Object stores and databases do that by `set`. zarrs' `FilesystemStore`
///   does not, and its listings fail without an error: open the adapter with `on_filesystem`.
/// - One writer at a time of each *subchunk*. To write a part of one it is read first, so elements of
///   one subchunk are for one writer. Those who write through the same adapter take turns, but zarrs
///   writes a part in two steps: it is not safe for threads either.
/// - One consolidation at a time of each shard, and none that was paused goes on after another one:
///   zarrs' stores have no conditional writes.
/// - Nobody writes the shards themselves meanwhile, and nobody erases prefixes of the array.
/// - Nobody shards the array differently: an adapter reads, writes and consolidates as the array was
///   sharded when it was opened. It looks again only where its metadata is read or stored, which is an
///   error then; to consolidate, no metadata is read. The shape of the array may change.
///
/// `docs/sparse_shards.md` has the protocol, and what was checked of it.
pub struct SparseShardStore<S: ?Sized> {
    array: SparseArray,
    store: Arc<S>,
}

/// All of an adapter but its store. Clones take turns with each other.
#[derive(Clone)]
struct SparseArray {
    path: NodePath,
    metadata: StoreKey,
    /// When the adapter was opened.
    sharding: Sharding,
    keys: ChunkKeys,
    grid: ShardGrid,
    /// Makes subchunks that are shards ours.
    _nested: Option<Arc<Claim>>,
    frames: Arc<Frames>,
    listings: Arc<Listings>,
    /// How an object is replaced at once, if not by `set`.
    rename: Option<Rename>,
    /// Where the store's values are files, if that is known.
    files: Option<Files>,
    /// For consolidations, in bytes.
    memory: usize,
}

/// Store a value under a key at once, or erase it.
type Rename = Arc<dyn Fn(&StoreKey, Option<Bytes>) -> Result<(), StorageError> + Send + Sync>;

impl SparseArray {
    /// That at `path`, as it is stored.
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
        let nested = metadata::claim(&key, metadata).map_err(|error| unreadable(&key, error))?;
        let grid = ShardGrid::new(&sharded.subchunks)?;
        Ok(Self {
            keys: ChunkKeys::new(&path, grid.counts().len()),
            sharding: sharded.sharding,
            _nested: nested.map(Arc::new),
            frames: Arc::new(Frames::new(
                sharded.packing,
                grid.len(),
                sharded.bound,
                sharded.len,
                Box::new(frame::writers()),
            )),
            listings: Arc::default(),
            rename: None,
            files: None,
            memory: Options::default().host_memory(),
            metadata: key,
            path,
            grid,
        })
    }

    /// The shard of a chunk, and the number of the chunk in it.
    fn place(&self, chunk: &ChunkKey) -> Result<(StoreKey, u32), StorageError> {
        let (shard, number) = self.grid.shard_of(chunk);
        // It was checked that a shard does not have more.
        let number =
            u32::try_from(number).map_err(|error| StorageError::Other(error.to_string()))?;
        Ok((self.keys.key(&shard)?, number))
    }

    /// Zarrs writes a part of a subchunk by reading and storing it. What was read by a listing of the past
    /// would undo what others wrote since.
    ///
    /// # Errors
    /// [`StorageError::Unsupported`] if listings of the past are used.
    fn check_writable(&self, what: &str) -> Result<(), StorageError> {
        if self.listings.is_off() {
            return Ok(());
        }
        Err(StorageError::Unsupported(format!(
            "cannot change {what:?} through an adapter with a listing age, which may read what is no more: write through another one, without `with_listing_age`"
        )))
    }

    async fn presented<O: Reads>(&self, store: &O) -> Result<Option<Bytes>, StorageError> {
        match store.get(&self.metadata).await? {
            None => Ok(None),
            Some(stored) => {
                self.sharding.check(&self.metadata, &self.path, &stored)?;
                let presented = metadata::presented(&self.metadata, &stored)?;
                Ok(Some(presented.into()))
            }
        }
    }

    /// A subchunk, encoded.
    async fn read<O: Reads + Lists>(
        &self,
        store: &O,
        shard: &StoreKey,
        number: u32,
        listing: Option<Arc<Listing>>,
    ) -> Result<Option<Bytes>, StorageError> {
        // Where shards are replaced by renaming, one that is open stays what it is.
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
        let listing = match self.listings.recent(&shard) {
            Recent::Off => None,
            Recent::Known(listing) => Some(listing),
            Recent::Unknown => {
                let begin = Instant::now();
                let listing = Arc::new(self.frames.list(store, &shard).await?);
                self.listings.keep(&shard, begin, &listing);
                Some(listing)
            }
        };
        self.read(store, &shard, number, listing).await
    }

    /// Who calls this has the turn of the chunk.
    async fn write_chunk<O: Reads + Writes + Lists>(
        &self,
        store: &O,
        chunk: &ChunkKey,
        entry: Entry,
    ) -> Result<(), StorageError> {
        let (shard, number) = self.place(chunk)?;
        // What is empty is not made empty once more: frames would be full of that.
        if entry == Entry::Tombstone && self.read(store, &shard, number, None).await?.is_none() {
            return Ok(());
        }
        self.frames.write(store, &shard, number, &entry).await
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

    async fn set<O: Reads + Writes + Lists + TakesTurns>(
        &self,
        store: &O,
        key: &StoreKey,
        value: Bytes,
    ) -> Result<(), StorageError> {
        self.check_writable(key.as_str())?;
        if let Some(chunk) = self.keys.parse(key.as_str()) {
            let _turn = store.turn(self.frames.turns(), key).await;
            self.write_chunk(store, &chunk, Entry::Data(value)).await
        } else if *key == self.metadata {
            let _turn = store.turn(self.frames.turns(), key).await;
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
        self.sharding.check(key, &self.path, &stored)?;
        let value = metadata::stored_for(key, &self.path, &stored, value)?;
        self.replace(store, key, Some(value.into())).await
    }

    async fn set_ranges<O: Reads + Writes + Lists + TakesTurns>(
        &self,
        store: &O,
        key: &StoreKey,
        parts: Vec<(u64, Bytes)>,
    ) -> Result<(), StorageError> {
        self.check_writable(key.as_str())?;
        if !self.is_own(key) {
            return store.set_ranges(key, parts).await;
        }
        let _turn = store.turn(self.frames.turns(), key).await;
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

    async fn erase<O: Reads + Writes + Lists + TakesTurns>(
        &self,
        store: &O,
        key: &StoreKey,
    ) -> Result<(), StorageError> {
        self.check_writable(key.as_str())?;
        let Some(chunk) = self.keys.parse(key.as_str()) else {
            return store.erase(key).await;
        };
        let _turn = store.turn(self.frames.turns(), key).await;
        self.write_chunk(store, &chunk, Entry::Tombstone).await
    }

    async fn erase_each<O: Reads + Writes + Lists + TakesTurns>(
        &self,
        store: &O,
        keys: &[StoreKey],
    ) -> Result<(), StorageError> {
        for key in keys {
            self.erase(store, key).await?;
        }
        Ok(())
    }

    async fn erase_prefix<O: Reads + Writes + Lists + TakesTurns>(
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
            // In a frame nothing is seen that could be erased.
            Scope::Elsewhere if frame::shard_of(&self.keys, prefix.as_str()).is_some() => Ok(()),
            // Shards and frames lie there, all of them or none.
            _ => store.erase_prefix(prefix).await,
        }
    }

    /// Let the value of `key` be another one at once, or let there be none.
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

fn unreadable(key: &StoreKey, source: StorageError) -> Error {
    Error::Storage {
        doing: "read",
        key: key.clone(),
        source,
    }
}

fn node_path(path: &str) -> Result<NodePath, Error> {
    NodePath::new(path)
        .map_err(|error| Error::Create(zarrs::plugin::PluginCreateError::Other(error.to_string())))
}

zarrs_traits! {
    SparseShardStore.array,
    reads: [ReadableStorageTraits ListableStorageTraits],
        [AsyncReadableStorageTraits AsyncListableStorageTraits],
    gets_parts: false, // of a subchunk everything is read
}

/// An adapter with its store, as [`listing`] sees it.
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
        let (keys, key) = (&self.array.keys, key.as_str());
        let shard = frame::shard_of(keys, key).unwrap_or(key);
        if let Some(shard) = keys.parse(shard) {
            return Seen::Shard(shard);
        }
        match key.strip_suffix(TEMPORARY) {
            Some(shard) if keys.parse(shard).is_some() => Seen::Hidden,
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
    /// Replace shards, and the metadata of the array, by renaming in `store`, which is the store of the
    /// adapter, or the one that it looks upon.
    ///
    /// This is for stores of files that are not zarrs' `FilesystemStore`, for which there is `on_filesystem`. Without it
    /// a shard is replaced by one `set`, which on a filesystem is not at once: a process that reads meanwhile may find
    /// part of a shard, and a process that dies leaves that behind. It also makes reads of subchunks without versions
    /// cheaper: parts of an object that are asked for by one call of the adapter's store have to come from one object,
    /// as those do that `FilesystemStore` reads from one open file, and so an index that was read before tells where a
    /// subchunk is, if it is read with it, and still the same.
    ///
    /// A temporary is the key with `.tmp` behind it. What a process that died left there is replaced by
    /// the next consolidation of the shard. Those of metadata have a name of the writer before `.tmp`,
    /// since several may store them at once: `zarr.json.<writer>.tmp` of one that died can be erased.
    ///
    /// # Errors
    /// - [`Error::NotShards`] if the array's metadata in `store` are others than those in the adapter's
    ///   store.
    /// - [`Error::Storage`] if a store fails.
    pub fn atomic_rename<R>(mut self, store: Arc<R>) -> Result<Self, Error>
    where
        S: ReadableStorageTraits,
        R: AtomicRenameStorageTraits
            + ReadableStorageTraits
            + WritableStorageTraits
            + ?Sized
            + 'static,
    {
        let key = &self.array.metadata;
        let failed = |error| unreadable(key, error);
        if self.store.get(key).map_err(failed)? != store.get(key).map_err(failed)? {
            return Err(Error::NotShards {
                reason: format!(
                    "{key} in the store for `atomic_rename` is not that of the array: give it the store that the array is in, with the same root"
                ),
            });
        }
        let (metadata, writers) = (key.clone(), frame::writers());
        self.array.rename = Some(Arc::new(move |key, value| {
            // One at a time consolidates a shard, but anybody stores metadata.
            let is_shared = *key == metadata;
            let temporary = if is_shared {
                StoreKey::new(format!("{key}.{}{TEMPORARY}", writers()))?
            } else {
                AtomicWriteStorageAdapter::<()>::temporary_key(key)?
            };
            if !is_shared {
                // A process that died may have left it; or it is a link, which would be written through.
                store.erase(&temporary)?;
            }
            let Some(value) = value else {
                return store.erase(key);
            };
            let stored = store.set(&temporary, value);
            let stored = stored.and_then(|()| store.rename(&temporary, key));
            if stored.is_err() && is_shared {
                // Nobody uses its name again. What failed is more important than if this does.
                let _ = store.erase(&temporary);
            }
            stored
        }));
        Ok(self)
    }

    /// Let reads know of a frame what was listed at most so long ago. Default: zero, and each read of a
    /// subchunk lists its shard's frame.
    ///
    /// With it, whoever reads many subchunks of a shard lists its frame once. What others wrote may be
    /// seen so much later; never is anything seen that was not written.
    ///
    /// **Such an adapter is for those who only read.** Whatever is stored, erased or consolidated through
    /// it is [`StorageError::Unsupported`]: zarrs writes a part of a subchunk by reading and storing it,
    /// and what was read by a listing of the past would undo what others wrote since. Write through
    /// another adapter, such as a clone from before.
    #[must_use]
    pub fn with_listing_age(mut self, age: Duration) -> Self {
        self.array.listings = Arc::new(Listings::new(age));
        self
    }

    /// The most memory that [`consolidate_all`](Self::consolidate_all) takes, in bytes, unless one shard
    /// takes more. Default: that of `Options::default`, whatever was registered.
    #[must_use]
    pub fn with_memory(mut self, bytes: usize) -> Self {
        self.array.memory = bytes;
        self
    }

    /// The store of the shards and their frames.
    #[must_use]
    pub fn inner(&self) -> &Arc<S> {
        &self.store
    }
}

/// Both take turns with each other, as if they were one; what either is told afterwards is its own.
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

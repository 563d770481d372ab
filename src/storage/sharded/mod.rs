//! Shows a store of shards as a store of chunks.

mod array_metadata;
#[cfg(feature = "async")]
mod awaited;
mod blocking;
mod core;
mod indices;
mod view;
mod writes;

use std::fmt;
use std::sync::Arc;

use zarrs::node::{NodePath, meta_key_v3};
use zarrs::plugin::PluginCreateError;
use zarrs_storage::StorageError;

pub(super) use self::array_metadata::{Configuration, NAME, is_name};
pub(super) use self::core::{Core, KeyMeaning};
use super::zarrs_traits::zarrs_traits;
use crate::error::Error;
use crate::store::Reads;

/// The default limit of the indices that an adapter keeps, in bytes.
const DEFAULT_INDEX_CACHE: usize = 64 << 20;

/// The binary format of a shard: how its chunks lie in its bytes.
///
/// ```
/// # use std::sync::Arc;
/// # let files = Arc::new(zarrs::storage::store::MemoryStore::new());
/// use zarrs_cuda::storage::{BinaryFormat, ShardedStore};
///
/// // With a checksum of the index, unless readers know only the draft's first format.
/// let format = BinaryFormat::IndexedCrc32c;
/// let chunks = ShardedStore::new(files, "/volume", &[4, 4], format)?;
/// assert_eq!(chunks.format().name(), "indexed_crc32c");
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryFormat {
    /// `"indexed"`, the format of the sharding storage transformer draft: the chunks, then an index
    /// of 16 bytes for each chunk.
    Indexed,
    /// `"indexed_crc32c"`: the same format, then the CRC32C of the index. These are the shards of the codec
    /// `sharding_indexed` with its index at the end.
    IndexedCrc32c,
}

impl BinaryFormat {
    /// Returns the name of the format in metadata.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Indexed => "indexed",
            Self::IndexedCrc32c => "indexed_crc32c",
        }
    }

    fn of_name(name: &str) -> Option<Self> {
        let formats = [Self::Indexed, Self::IndexedCrc32c];
        formats.into_iter().find(|format| format.name() == name)
    }
}

/// Shows a store of shards as a store of chunks.
///
/// An array has small chunks and no sharding codec, and its store keeps many chunks in one object.
/// Each chunk is read and written by itself. The adapter implements the [sharding storage
/// transformer draft] operation by operation, for one array, and passes on the keys of everything
/// else. For several arrays, put an adapter over an adapter.
///
/// ```
/// # use std::sync::Arc;
/// # use zarrs::array::{Array, ArrayBuilder, data_type};
/// use zarrs_cuda::storage::{BinaryFormat, ShardedStore};
///
/// let files = Arc::new(zarrs::storage::store::MemoryStore::new());
/// let chunks = ShardedStore::new(files.clone(), "/volume", &[4, 4], BinaryFormat::IndexedCrc32c)?;
/// let chunks = Arc::new(chunks);
///
/// let builder = ArrayBuilder::new(vec![64, 64], vec![8, 8], data_type::uint16(), 0u16);
/// let array = builder.build(chunks.clone(), "/volume")?;
/// array.store_metadata()?;
/// array.store_chunk(&[1, 5], vec![7_u16; 64])?;
///
/// // Later, by what `zarr.json` says.
/// let chunks = Arc::new(ShardedStore::open(files, "/volume")?);
/// let array = Array::open(chunks, "/volume")?;
/// assert_eq!(array.retrieve_chunk::<Vec<u16>>(&[1, 5])?, [7; 64]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Requests
///
/// A read of a chunk, or of ranges of it, sends two requests: for the index of its shard, and for
/// the bytes. If the index is [kept](Self::with_index_cache), it sends one.
/// [`get_many`](Self::get_many) sends two for each shard, for any number of its chunks. A read of
/// more than 16 MiB of a shard asks for the shard's size first, once for each index.
///
/// A write of a chunk reads the shard and stores it again. Write many chunks at once by
/// [`set_many`](Self::set_many), which stores each shard once, and does not read a shard if all its
/// chunks are given.
///
/// # Several writers
///
/// Writers of different chunks of a shard take turns if they use the same adapter or clones of it,
/// and none loses what another wrote. Readers see each chunk as it was before or after a write.
///
/// **Other processes, and other adapters, are not kept from losing each other's chunks of the same
/// shard.** Shards are replaced by one `set`. A process that reads the files meanwhile, or after a
/// process died there, sees what the store's `set` leaves.
///
/// # Metadata
///
/// `zarr.json` is stored with the transformer in it, so that the files say what they are:
///
/// ```json
/// "storage_transformers": [{
///     "name": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
///     "configuration": { "type": "indexed_crc32c", "chunks_per_shard": [4, 4] }
/// }]
/// ```
///
/// Through the adapter `zarr.json` appears without the transformer. Otherwise zarrs would put a
/// [`ShardingTransformer`](super::ShardingTransformer) over the adapter. Nothing else of the
/// document changes. Metadata that describe other shards than the adapter's are an error.
///
/// The [reference page](crate::guide::reference::sharded_store) has every request, every promise,
/// and the differences from the draft.
///
/// [sharding storage transformer draft]: https://github.com/zarr-developers/zarr-specs/pull/134
pub struct ShardedStore<S: ?Sized> {
    core: Arc<Core>,
    store: Arc<S>,
}

impl<S: ?Sized> fmt::Debug for ShardedStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardedStore")
            .field("keys", &self.core.keys)
            .field("configuration", self.core.configuration())
            .finish_non_exhaustive()
    }
}

/// A clone takes turns with the original, and shares its kept indices.
impl<S: ?Sized> Clone for ShardedStore<S> {
    fn clone(&self) -> Self {
        Self {
            core: self.core.clone(),
            store: self.store.clone(),
        }
    }
}

impl<S: ?Sized> ShardedStore<S> {
    /// Returns an adapter of `store` for the array at `path`, whose shards have `chunks_per_shard`
    /// chunks along each axis.
    ///
    /// # Errors
    /// [`Error::Create`] if `path` is not a node path, or if `chunks_per_shard` contains a zero or
    /// makes more than 16 777 216 chunks.
    pub fn new(
        store: Arc<S>,
        path: &str,
        chunks_per_shard: &[u64],
        format: BinaryFormat,
    ) -> Result<Self, Error> {
        let configuration = Configuration {
            format,
            chunks_per_shard: chunks_per_shard.to_vec(),
        };
        let core = Core::new(&node(path)?, configuration)?;
        Ok(Self::with_core(store, Arc::new(core)))
    }

    pub(super) fn with_core(store: Arc<S>, core: Arc<Core>) -> Self {
        Self { core, store }
    }

    /// Sets the most bytes of indices that are kept. Default: 64 MiB. Zero keeps no index.
    ///
    /// An index takes 24 bytes for each chunk of its shard. Writes through this adapter or its
    /// clones are always seen. Other writes are not seen while the index of their shard is kept:
    /// see [`clear_index_cache`](Self::clear_index_cache).
    #[must_use]
    pub fn with_index_cache(self, bytes: usize) -> Self {
        self.core.indices.set_limit(bytes);
        self
    }

    /// Forgets the kept indices, so that writes of other processes are seen.
    pub fn clear_index_cache(&self) {
        self.core.indices.clear();
    }

    /// Returns the number of chunks in a shard along each axis.
    #[must_use]
    pub fn chunks_per_shard(&self) -> &[u64] {
        &self.core.configuration().chunks_per_shard
    }

    /// Returns the binary format of the shards.
    #[must_use]
    pub fn format(&self) -> BinaryFormat {
        self.core.configuration().format
    }

    /// Returns the store of the shards.
    #[must_use]
    pub fn inner(&self) -> &Arc<S> {
        &self.store
    }
}

zarrs_traits! {
    ShardedStore.core,
    reads: [ReadableStorageTraits], [AsyncReadableStorageTraits],
    gets_parts: true,
}

fn node(path: &str) -> Result<NodePath, Error> {
    NodePath::new(path).map_err(|error| Error::Create(PluginCreateError::Other(error.to_string())))
}

/// Returns an adapter without its store, configured from the metadata of the array at `path`.
async fn opened<R: Reads>(store: &R, path: &str) -> Result<Core, Error> {
    let path = node(path)?;
    let key = meta_key_v3(&path);
    let failed = |source| Error::Storage {
        doing: "open the sharded array of",
        key: key.clone(),
        source,
    };
    let invalid = |reason| failed(StorageError::InvalidMetadata(key.clone(), reason));
    let stored = store.get(&key).await.map_err(failed)?;
    let stored = stored.ok_or_else(|| failed(StorageError::MissingMetadata(key.parent())))?;
    let configuration = array_metadata::configuration(&stored).map_err(invalid)?;
    let configuration = configuration.ok_or_else(|| {
        invalid(format!(
            "it is not that of an array with the storage transformer {NAME:?}: say how it is sharded with `ShardedStore::new`"
        ))
    })?;
    let core = Core::new(&path, configuration)?;
    core.note(Some(&stored));
    Ok(core)
}

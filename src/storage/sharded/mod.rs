//! A store of shards, as one of chunks.

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
pub(super) use self::core::{Core, Place};
use super::zarrs_traits::zarrs_traits;
use crate::Error;
use crate::store::Reads;

/// The size of the indices that an adapter keeps, in bytes, unless it is told otherwise.
const DEFAULT_INDEX_CACHE: usize = 64 << 20;

/// How the chunks of a shard lie in its bytes.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryFormat {
    /// `"indexed"`, that of the sharding storage transformer draft: the chunks, and an index of 16 bytes
    /// for each.
    Indexed,
    /// `"indexed_crc32c"`: the same, and the CRC32C of the index. These are the shards of the codec
    /// `sharding_indexed` with its index at the end.
    IndexedCrc32c,
}

impl BinaryFormat {
    /// As it is called in metadata.
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

/// A store of shards, seen as one of chunks.
///
/// Sharding keeps many chunks of an array in one object of a store. Here it is not a codec's work, but
/// that of the store: the array has small chunks and knows nothing of shards, and each of its chunks is
/// read and written by itself. It implements the [sharding storage transformer draft] operation by
/// operation, for one array; the keys of everything else are passed on. For several arrays, put an
/// adapter over an adapter.
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
/// A read of a chunk, or of ranges of it, makes two requests: for the index of its shard, and for the
/// bytes. Where the index is [kept](Self::with_index_cache) it makes one. [`get_many`](Self::get_many)
/// makes two for each shard, however many chunks of it are read. Whoever reads more than 16 MiB of a
/// shard at once asks for its size first, unless that was done with the same index.
///
/// A write of a chunk reads the shard and stores another: write many at once by
/// [`set_many`](Self::set_many), which stores each shard once, and reads none of which all chunks are
/// given.
///
/// # Several writers
///
/// Writers of different chunks of a shard take turns, if they use the same adapter or clones of it, and
/// none loses what another wrote. Readers see each chunk as it was before or after a write. **Nothing
/// keeps other processes, or other adapters, from losing each other's chunks of the same shard.** Shards
/// are replaced by one `set`: who reads the files while they are replaced, or after a process died there,
/// sees what the store's `set` leaves.
///
/// # Metadata
///
/// `zarr.json` is stored with the transformer in it,
///
/// ```json
/// "storage_transformers": [{
///     "name": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
///     "configuration": { "type": "indexed_crc32c", "chunks_per_shard": [4, 4] }
/// }]
/// ```
///
/// so that files say what they are, and is shown without: zarrs would put a
/// [`ShardingTransformer`](super::ShardingTransformer) over the adapter otherwise. Nothing else of it
/// changes. It is an error if it describes other shards than the adapter's.
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

/// Both take turns with each other, and keep the same indices.
impl<S: ?Sized> Clone for ShardedStore<S> {
    fn clone(&self) -> Self {
        Self {
            core: self.core.clone(),
            store: self.store.clone(),
        }
    }
}

impl<S: ?Sized> ShardedStore<S> {
    /// The chunks of the array at `path` in `store`, which has shards of `chunks_per_shard` chunks along
    /// each axis.
    ///
    /// # Errors
    /// [`Error::Create`] if `path` is not one of a node, or `chunks_per_shard` has a zero or is of more
    /// than 16 777 216 chunks.
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

    /// Keep at most `bytes` bytes of indices; 64 MiB unless this is called, none if it is 0.
    ///
    /// An index is 24 bytes for each chunk of its shard. What is written through this adapter or its
    /// clones is always seen. What is written round them is not, as long as the index of its shard is
    /// kept: see [`clear_index_cache`](Self::clear_index_cache).
    #[must_use]
    pub fn with_index_cache(self, bytes: usize) -> Self {
        self.core.indices.set_limit(bytes);
        self
    }

    /// Forget the indices that are kept, so that what somebody else wrote is seen.
    pub fn clear_index_cache(&self) {
        self.core.indices.clear();
    }

    /// How many chunks a shard has along each axis.
    #[must_use]
    pub fn chunks_per_shard(&self) -> &[u64] {
        &self.core.configuration().chunks_per_shard
    }

    /// How chunks lie in their shards.
    #[must_use]
    pub fn format(&self) -> BinaryFormat {
        self.core.configuration().format
    }

    /// The store of the shards.
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

/// An adapter without its store, by the metadata of the array at `path`.
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

//! Implements the sharding storage transformer for zarrs arrays.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use zarrs::array::StorageTransformerTraits;
use zarrs::array::storage_transformer::StorageTransformer;
use zarrs::metadata::Configuration as ConfigurationMap;
use zarrs::metadata::v3::MetadataV3;
use zarrs::node::NodePath;
use zarrs::plugin::{ExtensionName, PluginCreateError, ZarrVersion};
use zarrs_storage::byte_range::ByteRangeIterator;
#[cfg(feature = "async")]
use zarrs_storage::{
    AsyncListableStorage, AsyncListableStorageTraits, AsyncMaybeBytesIterator,
    AsyncReadableStorage, AsyncReadableStorageTraits, AsyncReadableWritableStorage,
    AsyncWritableStorage, AsyncWritableStorageTraits,
};
use zarrs_storage::{
    ListableStorage, ListableStorageTraits, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator,
    ReadableStorage, ReadableStorageTraits, ReadableWritableStorage, StorageError, StoreKey,
    StoreKeys, StoreKeysPrefixes, StorePrefix, WritableStorage, WritableStorageTraits,
};

use super::chunk_keys::Scope;
use super::sharded::{Configuration, Core, KeyMeaning, NAME, is_name};
use super::{BinaryFormat, ShardedStore};
use crate::error::Error;

/// Reads arrays whose metadata have the [sharding storage transformer draft], from any store.
///
/// The transformer is the reading side of [`ShardedStore`]. zarrs gives a transformer no readable store when
/// an array writes one chunk at a time, and nothing to list. So writing, erasing and listing chunks through
/// it are errors that name [`ShardedStore`]. Metadata are passed on, so zarrs can store them.
///
/// [`register`](crate::register) makes zarrs use this transformer for every array whose metadata name it:
///
/// | part of the metadata | accepted values |
/// |---|---|
/// | name | `https://purl.org/zarr/spec/storage_transformers/sharding/1.0`, or the draft's other name, `http://purl.org/zarr/spec/storage-transformers/sharding/1.0` |
/// | configuration | `{"type": "indexed", "chunks_per_shard": [4, 4]}`, or the type `"indexed_crc32c"` |
///
/// The chunk key encoding of the array must be `default` or `v2`. zarrs does not tell the encoding to a
/// transformer; with another encoding no chunks are found.
///
/// No indices are kept, because zarrs makes a reader of the transformer for each request, and
/// another process may write meanwhile. A read sends two requests.
///
/// [sharding storage transformer draft]: https://github.com/zarr-developers/zarr-specs/pull/134
///
/// ```
/// # use std::sync::Arc;
/// # use zarrs::array::{Array, ArrayBuilder, data_type};
/// # use zarrs_cuda::storage::{BinaryFormat, ShardedStore};
/// # let store = Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let chunks = ShardedStore::new(store.clone(), "/volume", &[4, 4], BinaryFormat::Indexed)?;
/// # let builder = ArrayBuilder::new(vec![64, 64], vec![8, 8], data_type::uint16(), 0_u16);
/// # let array = builder.build(Arc::new(chunks), "/volume")?;
/// # array.store_metadata()?;
/// # array.store_chunk(&[1, 5], vec![7_u16; 64])?;
/// let _registration = zarrs_cuda::register(zarrs_cuda::Options::default())?;
/// // The metadata name the transformer, so zarrs needs no `ShardedStore` to read.
/// let array = Array::open(store, "/volume")?;
/// assert_eq!(array.retrieve_chunk::<Vec<u16>>(&[1, 5])?, [7; 64]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ShardingTransformer {
    /// The name of the transformer in the array's metadata.
    name: Cow<'static, str>,
    core: Arc<Core>,
}

impl fmt::Debug for ShardingTransformer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardingTransformer")
            .field("name", &self.name)
            .field("configuration", self.core.configuration())
            .finish_non_exhaustive()
    }
}

impl ShardingTransformer {
    /// Returns the transformer of the array at `path`, whose shards have `chunks_per_shard` chunks
    /// along each axis.
    ///
    /// # Errors
    /// The errors of [`ShardedStore::new`].
    pub fn new(path: &str, chunks_per_shard: &[u64], format: BinaryFormat) -> Result<Self, Error> {
        let path = NodePath::new(path).map_err(|error| other(error.to_string()))?;
        let configuration = Configuration {
            format,
            chunks_per_shard: chunks_per_shard.to_vec(),
        };
        Self::named(Cow::Borrowed(NAME), &path, configuration)
    }

    fn named(
        name: Cow<'static, str>,
        path: &NodePath,
        configuration: Configuration,
    ) -> Result<Self, Error> {
        let core = Core::new(path, configuration)?.for_transformer();
        Ok(Self {
            name,
            core: Arc::new(core),
        })
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

    /// Returns whether `name` is one of the names of this transformer.
    pub(crate) fn is_name(name: &str) -> bool {
        is_name(name)
    }

    fn over<S: ?Sized>(&self, store: Arc<S>) -> Arc<Passed<S>> {
        let core = self.core.clone();
        let chunks = ShardedStore::with_core(store.clone(), core.clone());
        Arc::new(Passed {
            core,
            chunks,
            store,
        })
    }
}

fn other(reason: String) -> PluginCreateError {
    PluginCreateError::Other(reason)
}

impl ExtensionName for ShardingTransformer {
    fn name(&self, version: ZarrVersion) -> Option<Cow<'static, str>> {
        (version == ZarrVersion::V3).then(|| self.name.clone())
    }
}

#[cfg_attr(feature = "async", async_trait::async_trait)]
impl StorageTransformerTraits for ShardingTransformer {
    fn create(
        metadata: &MetadataV3,
        path: &NodePath,
    ) -> Result<StorageTransformer, PluginCreateError> {
        let name = metadata.name();
        let unusable =
            |reason: String| other(format!("the storage transformer {name:?}: {reason}"));
        if !is_name(name) {
            return Err(unusable(format!("it is not {NAME:?}")));
        }
        let configuration = metadata.configuration().map(|map| (**map).clone());
        let configuration = Configuration::parse(&configuration.unwrap_or_default());
        let configuration = configuration.map_err(unusable)?;
        let name = Cow::Owned(name.to_owned());
        match Self::named(name, path, configuration) {
            Ok(transformer) => Ok(Arc::new(transformer)),
            Err(Error::Create(error)) => Err(error),
            Err(error) => Err(other(error.to_string())),
        }
    }

    fn configuration(&self) -> ConfigurationMap {
        self.core.configuration().to_json().into()
    }

    fn create_readable_transformer(
        self: Arc<Self>,
        storage: ReadableStorage,
    ) -> Result<ReadableStorage, StorageError> {
        Ok(self.over(storage))
    }

    fn create_writable_transformer(
        self: Arc<Self>,
        storage: WritableStorage,
    ) -> Result<WritableStorage, StorageError> {
        Ok(self.over(storage))
    }

    fn create_readable_writable_transformer(
        self: Arc<Self>,
        storage: ReadableWritableStorage,
    ) -> Result<ReadableWritableStorage, StorageError> {
        Ok(self.over(storage))
    }

    fn create_listable_transformer(
        self: Arc<Self>,
        storage: ListableStorage,
    ) -> Result<ListableStorage, StorageError> {
        Ok(self.over(storage))
    }

    #[cfg(feature = "async")]
    async fn create_async_readable_transformer(
        self: Arc<Self>,
        storage: AsyncReadableStorage,
    ) -> Result<AsyncReadableStorage, StorageError> {
        Ok(self.over(storage))
    }

    #[cfg(feature = "async")]
    async fn create_async_writable_transformer(
        self: Arc<Self>,
        storage: AsyncWritableStorage,
    ) -> Result<AsyncWritableStorage, StorageError> {
        Ok(self.over(storage))
    }

    #[cfg(feature = "async")]
    async fn create_async_readable_writable_transformer(
        self: Arc<Self>,
        storage: AsyncReadableWritableStorage,
    ) -> Result<AsyncReadableWritableStorage, StorageError> {
        Ok(self.over(storage))
    }

    #[cfg(feature = "async")]
    async fn create_async_listable_transformer(
        self: Arc<Self>,
        storage: AsyncListableStorage,
    ) -> Result<AsyncListableStorage, StorageError> {
        Ok(self.over(storage))
    }
}

/// A store behind the transformer. It reads chunks and passes on all other keys, but does not write or list
/// chunks.
struct Passed<S: ?Sized> {
    core: Arc<Core>,
    chunks: ShardedStore<S>,
    store: Arc<S>,
}

fn unsupported(doing: &str, what: &dyn fmt::Display) -> StorageError {
    StorageError::Unsupported(format!(
        "cannot {doing} {what} through the sharding storage transformer, which reads chunks and does nothing else with them: open the array in a `zarrs_cuda::storage::ShardedStore` over its store"
    ))
}

impl<S: ?Sized> Passed<S> {
    /// Checks that `key` is not the key of a chunk, which the transformer can only read.
    ///
    /// # Errors
    /// [`StorageError::Unsupported`] if `key` is the key of a chunk.
    fn check(&self, doing: &str, key: &StoreKey) -> Result<(), StorageError> {
        match self.core.place(key) {
            KeyMeaning::Chunk(..) => Err(unsupported(doing, &format_args!("the chunk {key}"))),
            KeyMeaning::Metadata | KeyMeaning::Elsewhere => Ok(()),
        }
    }

    /// Checks that no keys with `prefix` are keys of chunks.
    ///
    /// # Errors
    /// [`StorageError::Unsupported`] if keys with `prefix` are keys of chunks.
    fn check_prefix(&self, doing: &str, prefix: &StorePrefix) -> Result<(), StorageError> {
        match self.core.keys().scope(prefix) {
            Scope::Elsewhere => Ok(()),
            Scope::Everything | Scope::Chunks(_) => {
                let prefix = prefix.as_str();
                Err(unsupported(
                    doing,
                    &format_args!("the chunks with the prefix {prefix:?}"),
                ))
            }
        }
    }

    /// Checks that no keys directly under `prefix` can be keys of chunks.
    ///
    /// # Errors
    /// [`StorageError::Unsupported`] if keys directly under `prefix` can be keys of chunks.
    fn check_dir(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        // A prefix above the array shows the array only as a prefix, and no chunks.
        let is_above = self.core.keys().scope(prefix) == Scope::Everything
            && prefix.as_str() != self.core.keys().prefix();
        if is_above {
            Ok(())
        } else {
            self.check_prefix("list", prefix)
        }
    }
}

impl<S: ReadableStorageTraits + ?Sized> ReadableStorageTraits for Passed<S> {
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        self.chunks.get(key)
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        self.chunks.get_partial_many(key, byte_ranges)
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.chunks.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        self.store.supports_get_partial()
    }
}

impl<S: WritableStorageTraits + ?Sized> WritableStorageTraits for Passed<S> {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.check("store", key)?;
        self.store.set(key, value)
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        self.check("store parts of", key)?;
        self.store.set_partial_many(key, offset_values)
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.check("erase", key)?;
        self.store.erase(key)
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.check_prefix("erase", prefix)?;
        self.store.erase_prefix(prefix)
    }

    fn supports_set_partial(&self) -> bool {
        false
    }
}

impl<S: ListableStorageTraits + ?Sized> ListableStorageTraits for Passed<S> {
    fn list(&self) -> Result<StoreKeys, StorageError> {
        self.list_prefix(&StorePrefix::root())
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        self.check_prefix("list", prefix)?;
        self.store.list_prefix(prefix)
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        self.check_dir(prefix)?;
        self.store.list_dir(prefix)
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        self.check_prefix("add up the sizes of", prefix)?;
        self.store.size_prefix(prefix)
    }
}

#[cfg(feature = "async")]
#[async_trait::async_trait]
impl<S: AsyncReadableStorageTraits + ?Sized> AsyncReadableStorageTraits for Passed<S> {
    async fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        self.chunks.get(key).await
    }

    async fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<AsyncMaybeBytesIterator<'a>, StorageError> {
        self.chunks.get_partial_many(key, byte_ranges).await
    }

    async fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.chunks.size_key(key).await
    }

    fn supports_get_partial(&self) -> bool {
        self.store.supports_get_partial()
    }
}

#[cfg(feature = "async")]
#[async_trait::async_trait]
impl<S: AsyncWritableStorageTraits + ?Sized> AsyncWritableStorageTraits for Passed<S> {
    async fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.check("store", key)?;
        self.store.set(key, value).await
    }

    async fn set_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator<'a>,
    ) -> Result<(), StorageError> {
        self.check("store parts of", key)?;
        self.store.set_partial_many(key, offset_values).await
    }

    async fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.check("erase", key)?;
        self.store.erase(key).await
    }

    async fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.check_prefix("erase", prefix)?;
        self.store.erase_prefix(prefix).await
    }

    fn supports_set_partial(&self) -> bool {
        false
    }
}

#[cfg(feature = "async")]
#[async_trait::async_trait]
impl<S: AsyncListableStorageTraits + ?Sized> AsyncListableStorageTraits for Passed<S> {
    async fn list(&self) -> Result<StoreKeys, StorageError> {
        self.list_prefix(&StorePrefix::root()).await
    }

    async fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        self.check_prefix("list", prefix)?;
        self.store.list_prefix(prefix).await
    }

    async fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        self.check_dir(prefix)?;
        self.store.list_dir(prefix).await
    }

    async fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        self.check_prefix("add up the sizes of", prefix)?;
        self.store.size_prefix(prefix).await
    }
}

//! The settings of a reader, and the builder that makes a reader with them.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use zarrs::array::{Array, ArrayError, ArrayMetadata};
use zarrs::metadata::v3::ArrayMetadataV3;
use zarrs::node::meta_key_v3;
use zarrs_codec::CodecOptions;
use zarrs_storage::byte_range::ByteRange;

use super::cache::Caches;
use super::metrics::Counters;
use super::newer_subchunks::ListsNewerSubchunks;
use super::{ArrayReader, DecodedBy, Inner, KeptByReader, ReaderError, Settings};
use crate::codec::find;
use crate::store::files::Files;
use zarrs_cuda_engine::process::per_process::PerProcess;

/// Builds an [`ArrayReader`]: see [`ArrayReader::builder`].
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # array.store_chunk(&[0, 0], vec![7_u16; 32 * 32])?;
/// use zarrs_cuda::reader::ArrayReader;
///
/// // For many small boxes of an array that does not change, on a server that is far away.
/// let reader = ArrayReader::builder(&array)
///     .with_requests(64)
///     .with_subchunk_cache(256 << 20)
///     .build()?;
/// reader.read::<u16>(&[0..2, 0..2])?;
/// reader.read::<u16>(&[2..4, 2..4])?;
/// assert_eq!(reader.metrics().subchunk_hits, 1);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct ArrayReaderBuilder<TStorage: ?Sized> {
    array: Array<TStorage>,
    files: Option<Files>,
    /// Files that [`build`](Self::build) does not check to have the array.
    unchecked_files: Option<Files>,
    /// The newer subchunks of the array, and the files of its shards, if the shards are files.
    newer_subchunks: Option<(Arc<dyn ListsNewerSubchunks>, Option<Files>)>,
    memory: Option<usize>,
    settings: Settings,
}

impl<TStorage: ?Sized> fmt::Debug for ArrayReaderBuilder<TStorage> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrayReaderBuilder")
            .field("array", &self.array.path())
            .field("files", &self.files)
            .field("unchecked_files", &self.unchecked_files)
            .field("has_frames", &self.newer_subchunks.is_some())
            .field("memory", &self.memory)
            .field("settings", &self.settings)
            .finish()
    }
}

impl<TStorage: ?Sized> ArrayReaderBuilder<TStorage> {
    pub(super) fn new(array: &Array<TStorage>) -> Self {
        Self {
            array: array.with_storage(array.storage()),
            files: None,
            unchecked_files: None,
            newer_subchunks: None,
            memory: None,
            settings: Settings {
                codec_options: zarrs::config::global_config().codec_options(),
                index_cache: 64 << 20,
                subchunk_cache: 0,
                memory: 0,
                requests: const { NonZeroUsize::new(16).expect("positive") },
                threads: None,
                gap: None,
                fill_damaged: false,
                huge_pages: true,
                device: None,
            },
        }
    }

    /// Makes the reader take subchunks that are newer than their shard from `newer_subchunks`, and read the
    /// shards as `files`, if they are files.
    pub(crate) fn with_newer_subchunks(
        self,
        newer_subchunks: Arc<dyn ListsNewerSubchunks>,
        files: Option<Files>,
    ) -> Self {
        Self {
            newer_subchunks: Some((newer_subchunks, files)),
            ..self
        }
    }

    /// Reads shards as files of `store`, which is the store of the array. This is often faster. A shard that
    /// a rename replaces during a read is read as it was before.
    ///
    /// If a shard is written in place during a read, as zarrs' own `set` does, the read may return an error,
    /// or elements from before and after the write. zarrs' store makes readers of its own process wait
    /// instead.
    ///
    /// [`build`](Self::build) returns an error if `store` does not have the array's metadata, or has
    /// the metadata of an array with other chunks.
    #[cfg(feature = "filesystem")]
    pub fn on_filesystem(mut self, store: &zarrs_filesystem::FilesystemStore) -> Self {
        let root = zarrs_storage::StorePrefix::root();
        self.files = Some(Files::new(store.prefix_to_fs_path(&root)));
        self
    }

    /// Reads shards as files below `root`, the directory of the array's store. It serves stores of files
    /// other than the one of `on_filesystem` (feature `filesystem`). Whether `root` has the array is not
    /// checked.
    pub fn on_directory(mut self, root: std::path::PathBuf) -> Self {
        self.unchecked_files = Some(Files::new(root));
        self
    }

    /// Sets zarrs' options for codecs. Default: zarrs' global configuration.
    pub fn with_codec_options(mut self, options: CodecOptions) -> Self {
        self.settings.codec_options = options;
        self
    }

    /// Sets the largest number of bytes of encoded subchunks in memory during one call. Default: the
    /// [`host_memory`](crate::Options::host_memory) of the codec's options. One subchunk for each request is
    /// always allowed. Decoding takes, in addition, some buffers of a subchunk's size for each core. The
    /// output and the caches are not counted.
    pub fn with_memory(mut self, bytes: usize) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Sets the number of requests that one call makes to the store at once; at least 1. Default: 16. Use
    /// more for a store that is far away. If the store blocks, the calling thread makes requests, and so do
    /// threads that all readers share: at most 255, or one for each other core if there are more. Files are
    /// read by as many threads as there are cores.
    pub fn with_requests(mut self, requests: usize) -> Self {
        self.settings.requests = NonZeroUsize::new(requests).unwrap_or(NonZeroUsize::MIN);
        self
    }

    /// Sets the largest number of threads that one call uses, including the calling thread; at least 1.
    /// Default: one for each core, and one for each [request](Self::with_requests) to a store that is not
    /// read as files.
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.settings.threads = NonZeroUsize::new(threads.max(1));
        self
    }

    /// Sets the largest gap, in bytes, between two wanted subchunks of a shard that are read as one range,
    /// including the gap. The same holds for wanted rows of a subchunk that needs no decoding: they are read
    /// apart if this takes less time than all bytes of the subchunk, where each range takes as long as a gap of
    /// this length. Default: by the kind of the store. 4 KiB for files in the cache of the system and for stores
    /// that block, 48 KiB for files that are not in the cache, 64 KiB for asynchronous stores.
    pub fn with_gap(mut self, bytes: u64) -> Self {
        self.settings.gap = Some(bytes);
        self
    }

    /// Sets the number of bytes that the kept indices may take. Default: 64 MiB. An index takes about twice
    /// its size in the shard.
    pub fn with_index_cache(mut self, bytes: usize) -> Self {
        self.settings.index_cache = bytes;
        self
    }

    /// Sets the number of bytes that the kept decoded subchunks may take. Default: 0, which keeps none.
    ///
    /// A kept subchunk is used again as long as the index of its shard is kept and stays the same. A shard
    /// that is replaced or updated may have the same index: if no compressor is used, or if all subchunks are
    /// compressed to as many bytes as before. Use this cache for shards that do not change.
    pub fn with_subchunk_cache(mut self, bytes: usize) -> Self {
        self.settings.subchunk_cache = bytes;
        self
    }

    /// Sets whether a subchunk that cannot be decoded, or is not inside its shard, becomes fill values, and
    /// is [listed](super::ReadReport::damaged). A shard whose index cannot be decoded is treated in the same
    /// way. Default: damage is an error. For an array that zarrs reads, damage is always an error.
    pub fn with_damaged_as_fill_value(mut self, fill: bool) -> Self {
        self.settings.fill_damaged = fill;
        self
    }

    /// Builds the reader.
    ///
    /// # Errors
    /// [`ReaderError::Zarrs`], if the options of the array ask for [`Backend::Cuda`](crate::Backend::Cuda) and no
    /// device is usable.
    ///
    /// [`ReaderError::Unsupported`]
    /// - if the store of [`on_filesystem`](Self::on_filesystem) does not have the array;
    /// - for a reader of a [`SparseShardStore`](crate::storage::SparseShardStore), if it has a
    ///   [subchunk cache](Self::with_subchunk_cache), or if this crate cannot read the elements.
    pub fn build(self) -> Result<ArrayReader<TStorage>, ReaderError> {
        let Self {
            array,
            mut files,
            unchecked_files,
            newer_subchunks,
            memory,
            mut settings,
        } = self;
        if let Some(files) = &files {
            check_files(&array, files)?;
        }
        files = files.or(unchecked_files);
        let decoded_by = decoded_by(&array);
        let mut listed = None;
        if let Some((newer_subchunks, files_of_shards)) = newer_subchunks {
            check_shards_are_decoded_here(&decoded_by)?;
            if files.is_some() {
                return Err(ReaderError::Unsupported {
                    reason: "the adapter of sparse shards knows whether they are files: leave out `on_filesystem`, and open the adapter with its own".to_string(),
                });
            }
            (listed, files) = (Some(newer_subchunks), files_of_shards);
            if settings.subchunk_cache > 0 {
                return Err(ReaderError::Unsupported {
                    reason: "no decoded subchunks of sparse shards are kept, because a consolidation may replace a shard by one with the same index: leave out `with_subchunk_cache`".to_string(),
                });
            }
        }
        if let DecodedBy::ThisCrate(codec) = &decoded_by {
            codec.check_backend().map_err(ArrayError::from)?;
            settings.huge_pages = codec.options().huge_pages();
            settings.memory = memory.unwrap_or(codec.options().host_memory());
        }
        Ok(ArrayReader(Arc::new(Inner {
            array,
            settings,
            decoded_by,
            files,
            newer_subchunks: listed,
            kept: Arc::new(KeptByReader {
                caches: PerProcess::new(Caches::default),
                counters: Counters::default(),
            }),
        })))
    }
}

impl<TStorage: ?Sized> ArrayReader<TStorage> {
    /// Returns a reader like this one for `array`, which is the same array with another shape. `now` is the
    /// stored array.
    ///
    /// # Errors
    /// [`ReaderError::Unsupported`] if the array has newer subchunks, and is sharded differently now.
    pub(super) fn with_array(
        &self,
        array: Array<TStorage>,
        now: &Array<TStorage>,
    ) -> Result<Self, ReaderError> {
        let Inner {
            settings,
            files,
            newer_subchunks,
            kept,
            ..
        } = &*self.0;
        let decoded_by = decoded_by(&array);
        if newer_subchunks.is_some() {
            check_shards_are_decoded_here(&decoded_by)?;
            let is_same = match (now.metadata(), self.array().metadata()) {
                (ArrayMetadata::V3(now), ArrayMetadata::V3(before)) => is_sharded_as(now, before),
                _ => false,
            };
            if !is_same {
                return Err(ReaderError::Unsupported {
                    reason: "the array is sharded differently now: open the adapter of its sparse shards, and the reader, anew".to_string(),
                });
            }
        }
        Ok(Self(Arc::new(Inner {
            decoded_by,
            array,
            settings: settings.clone(),
            files: files.clone(),
            newer_subchunks: newer_subchunks.clone(),
            kept: kept.clone(),
        })))
    }

    /// Returns a reader like this one that reads into the memory of the CUDA device with the number `device`. Both share
    /// their caches. The device must be among those that the options of the array's codec, or the environment, ask for.
    #[must_use]
    pub fn with_device(&self, device: usize) -> Self {
        let Inner {
            array,
            settings,
            decoded_by,
            files,
            newer_subchunks,
            kept,
        } = &*self.0;
        Self(Arc::new(Inner {
            array: array.with_storage(array.storage()),
            settings: Settings {
                device: Some(device),
                ..settings.clone()
            },
            decoded_by: decoded_by.clone(),
            files: files.clone(),
            newer_subchunks: newer_subchunks.clone(),
            kept: kept.clone(),
        }))
    }

    /// Returns the extent along the first axis of a subchunk, or of a chunk if zarrs reads the array.
    pub(super) fn depth(&self) -> u64 {
        let array = self.array();
        let Ok(chunk) = array.chunk_shape(&vec![0; array.dimensionality()]) else {
            return 1;
        };
        let sharding = match &self.0.decoded_by {
            DecodedBy::ThisCrate(codec) => codec
                .sharding(&chunk, array.data_type(), array.fill_value())
                .ok(),
            DecodedBy::Zarrs(_) => None,
        };
        let depth = match sharding {
            Some(sharding) => sharding.grid.subchunk().first().map(|&depth| depth as u64),
            None => chunk.first().map(|depth| depth.get()),
        };
        depth.unwrap_or(1)
    }
}

/// Checks that this crate decodes the shards: zarrs does not see subchunks that are newer than their shard.
fn check_shards_are_decoded_here(decoded_by: &DecodedBy) -> Result<(), ReaderError> {
    match decoded_by {
        DecodedBy::ThisCrate(_) => Ok(()),
        DecodedBy::Zarrs(why) => Err(ReaderError::Unsupported {
            reason: format!(
                "{why}: read it by the calls of a zarrs array over the adapter of its sparse shards"
            ),
        }),
    }
}

/// Returns whether arrays with these metadata have equal shards, perhaps in different numbers.
fn is_sharded_as(one: &ArrayMetadataV3, other: &ArrayMetadataV3) -> bool {
    one.data_type == other.data_type
        && one.chunk_grid == other.chunk_grid
        && one.chunk_key_encoding == other.chunk_key_encoding
        && one.codecs == other.codecs
        && one.fill_value == other.fill_value
        && one.storage_transformers == other.storage_transformers
}

/// Checks that `files` contain `array`, perhaps with another shape.
pub(crate) fn check_files<TStorage: ?Sized>(
    array: &Array<TStorage>,
    files: &Files,
) -> Result<(), ReaderError> {
    let ArrayMetadata::V3(opened) = array.metadata() else {
        // zarrs reads arrays of other Zarr versions, which have no shards to check.
        return Ok(());
    };
    let key = meta_key_v3(array.path());
    let refused = |why: &str| ReaderError::Unsupported {
        reason: format!(
            "{key} in the filesystem store {why}: give the store that the array is in, with the same root"
        ),
    };
    let file = files
        .open(&key)
        .map_err(|error| refused(&error.to_string()))?;
    let file = file.ok_or_else(|| refused("does not exist"))?;
    let mut buffer = Vec::new();
    let stored = file.read(&[ByteRange::FromStart(0, None)], &mut buffer);
    let stored = stored.map_err(|error| refused(&error.to_string()))?;
    let stored = stored.first().copied().unwrap_or_default();
    let stored: ArrayMetadataV3 =
        serde_json::from_slice(stored).map_err(|error| refused(&error.to_string()))?;
    if is_sharded_as(&stored, opened) {
        return Ok(());
    }
    Err(refused("has an array with other shards"))
}

/// Returns the decoder of the elements of `array`.
pub(crate) fn decoded_by<TStorage: ?Sized>(array: &Array<TStorage>) -> DecodedBy {
    if !array.storage_transformers().create_metadatas().is_empty() {
        return DecodedBy::Zarrs("its storage transformers change what the store has".to_string());
    }
    if !array.codecs().array_to_array_codecs().is_empty() {
        return DecodedBy::Zarrs(
            "its shards are encoded by an array-to-array codec first".to_string(),
        );
    }
    let codec = match find::of_array(array) {
        Ok(codec) => codec,
        Err(error) => return DecodedBy::Zarrs(error.to_string()),
    };
    let first = vec![0; array.dimensionality()];
    let sharding = array
        .chunk_shape(&first)
        .ok()
        .map(|shape| codec.sharding(&shape, array.data_type(), array.fill_value()));
    match sharding {
        Some(Ok(sharding)) => match sharding.delegated() {
            None => DecodedBy::ThisCrate(codec),
            Some(why) => DecodedBy::Zarrs(why.to_string()),
        },
        Some(Err(error)) => DecodedBy::Zarrs(error.to_string()),
        None => DecodedBy::ThisCrate(codec),
    }
}

//! The settings of a writer of boxes, and the builder that makes a writer with them.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use zarrs::array::{Array, ArrayMetadata};
use zarrs_codec::CodecOptions;

use super::error::{BoxWriterError, BoxWriterErrorKind as Kind};
use super::growth::Growth;
use super::shared::Shared;
use super::{BoxReport, BoxWriter, FilesOfArray, Inner, OnProgress, Place, Settings, ShardUpdate};
use crate::reader::builder::{check_files, decoded_by};
use crate::reader::{Cancel, DecodedBy};
use crate::store::conditional::ConditionalStore;
use crate::store::file_store::FileStore;
use crate::store::files::{Files, directory_of};
use crate::store::shard_locks::ShardLocks;

/// The extent of the first axis of an array that may grow: as many whole shards as 62 bits count.
const UNLIMITED: u64 = 1 << 62;

/// Builds a [`BoxWriter`]: see [`BoxWriter::builder`].
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// use zarrs_cuda::writer::BoxWriter;
///
/// // On a server that is far away, in little memory.
/// let writer = BoxWriter::builder(&array)
///     .with_requests(64)
///     .with_memory(64 << 20)
///     .with_progress(|report| eprint!("\r{} of {} shards", report.stored.len(), report.wanted))
///     .build()?;
/// writer.write(&[0..64, 0..64], &[7_u16; 64 * 64])?;
/// # assert_eq!(array.retrieve_array_subset::<Vec<u16>>(&[63..64, 63..64])?, [7]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct BoxWriterBuilder<TStorage: ?Sized> {
    array: Array<TStorage>,
    root: Option<PathBuf>,
    /// Whether [`build`](Self::build) checks that `root` has the array.
    is_checked: bool,
    syncs: bool,
    memory: Option<usize>,
    settings: Settings,
}

impl<TStorage: ?Sized> fmt::Debug for BoxWriterBuilder<TStorage> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxWriterBuilder")
            .field("array", &self.array.path())
            .field("root", &self.root)
            .field("syncs", &self.syncs)
            .field("memory", &self.memory)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl<TStorage: ?Sized> BoxWriterBuilder<TStorage> {
    pub(super) fn new(array: &Array<TStorage>) -> Self {
        Self {
            array: array.with_storage(array.storage()),
            root: None,
            is_checked: true,
            syncs: true,
            memory: None,
            settings: Settings {
                update: ShardUpdate::default(),
                codec_options: zarrs::config::global_config().codec_options(),
                memory: 0,
                shard_memory: 0,
                requests: const { NonZeroUsize::new(16).expect("positive") },
                threads: None,
                growth: None,
                lock_limit: None,
                cancel: None,
                on_progress: None,
            },
        }
    }

    /// Sets how shards that a box covers in part are changed. Default: [`ShardUpdate::Rewrite`].
    pub fn with_update(mut self, update: ShardUpdate) -> Self {
        self.settings.update = update;
        self
    }

    /// Stores shards as files of `store`, which is the store of the array or the store that it wraps. Each file is
    /// written beside its name and renamed, so a reader sees the old shard or the new one. If the array's store is
    /// zarrs' `FilesystemStore`, this is the default.
    ///
    /// [`build`](Self::build) returns an error if `store` does not have the array's metadata, or has the metadata
    /// of an array with other chunks.
    #[cfg(feature = "filesystem")]
    pub fn on_filesystem(mut self, store: &zarrs_filesystem::FilesystemStore) -> Self {
        let root = zarrs_storage::StorePrefix::root();
        self.root = Some(store.prefix_to_fs_path(&root));
        self.is_checked = true;
        self
    }

    /// Stores shards as files below `root`, the directory of the array's store, as `on_filesystem` does. Whether
    /// `root` has the array is not checked.
    pub fn on_directory(mut self, root: PathBuf) -> Self {
        self.root = Some(root);
        self.is_checked = false;
        self
    }

    /// Sets whether files and their names are on the disk when a call returns. Default: true. Without it, a power
    /// failure may take back the shards of the last seconds, and on some file systems leave shards torn.
    pub fn with_sync(mut self, sync: bool) -> Self {
        self.syncs = sync;
        self
    }

    /// Lets the array grow along its first axis: boxes may lie behind its end. When the shards of a call are
    /// stored, the stored shape gets the maximum of its first extent and the end of the boxes. It never gets
    /// shorter. [`BoxReport::length`] is the new extent.
    ///
    /// On files, several processes may let one array grow if each has [`with_locks`](Self::with_locks). In a store
    /// of objects, they need [`with_conditional_writes`](Self::with_conditional_writes). Elsewhere one process may.
    pub fn with_growth(mut self) -> Self {
        self.settings.growth.get_or_insert_default();
        self
    }

    /// Lets the array grow, as [`with_growth`](Self::with_growth) does, by conditional writes to `store`, which is
    /// the array's store. The asynchronous calls block during these writes.
    pub fn with_conditional_writes(mut self, store: Arc<dyn ConditionalStore>) -> Self {
        self.settings.growth = Some(Growth::conditional(store));
        self
    }

    /// Keeps other processes from writing a shard meanwhile: writers with this setting, and tensorstore, which
    /// locks the same file, `KEY.__lock`. Each thread of a call has one lock at a time, and waits for it at most for
    /// `limit`, after it has waited for writers of its own process. For arrays on files, on Linux on 64 bits.
    pub fn with_locks(mut self, limit: Duration) -> Self {
        self.settings.lock_limit = Some(limit);
        self
    }

    /// Sets zarrs' options for codecs. Default: zarrs' global configuration. With `store_empty_chunks`, shards of
    /// nothing but the fill value are stored, too.
    pub fn with_codec_options(mut self, options: CodecOptions) -> Self {
        self.settings.codec_options = options;
        self
    }

    /// Sets the largest number of bytes that the shards of one call may take while they are encoded and stored.
    /// Default: the [`host_memory`](crate::Options::host_memory) of the codec's options. One shard is always
    /// allowed.
    pub fn with_memory(mut self, bytes: usize) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Sets the number of shards that one call stores at once, if the values of the store are not files; at least
    /// 1. Default: 16. Files are written by as many threads as there are cores.
    pub fn with_requests(mut self, requests: usize) -> Self {
        self.settings.requests = NonZeroUsize::new(requests).unwrap_or(NonZeroUsize::MIN);
        self
    }

    /// Sets the largest number of threads that one call uses, including the calling thread; at least 1. Default:
    /// one for each core, and one for each [request](Self::with_requests) to a store that blocks.
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.settings.threads = NonZeroUsize::new(threads.max(1));
        self
    }

    /// Lets `cancel` end calls with [`BoxWriterErrorKind::Cancelled`](crate::writer::BoxWriterErrorKind::Cancelled).
    /// Shards that were begun are completed.
    pub fn with_cancel(mut self, cancel: Cancel) -> Self {
        self.settings.cancel = Some(cancel);
        self
    }

    /// Calls `on_progress` with the report of a call after each shard, from the threads that write, one at a time.
    pub fn with_progress(
        mut self,
        on_progress: impl Fn(&BoxReport) + Send + Sync + 'static,
    ) -> Self {
        self.settings.on_progress = Some(OnProgress(Arc::new(on_progress)));
        self
    }
}

impl<TStorage: ?Sized + Send + Sync + 'static> BoxWriterBuilder<TStorage> {
    /// Builds the writer.
    ///
    /// # Errors
    /// - [`BoxWriterErrorKind::Unsupported`](crate::writer::BoxWriterErrorKind::Unsupported), with the reason, if the
    ///   array, its store or its grid does not fit the settings.
    /// - [`BoxWriterErrorKind::Backend`](crate::writer::BoxWriterErrorKind::Backend) if the options of the array ask
    ///   for [`Backend::Cuda`](crate::Backend::Cuda) and no device
    ///   is usable.
    pub fn build(self) -> Result<BoxWriter<TStorage>, BoxWriterError> {
        let Self {
            array,
            root,
            is_checked,
            syncs,
            memory,
            mut settings,
        } = self;
        let unsupported = |reason: String| Kind::Unsupported { reason };
        if !array.storage_transformers().create_metadatas().is_empty() {
            let reason = "its storage transformers change what the store has: use zarrs' own calls";
            return Err(Kind::unsupported(reason).into());
        }
        let data_type = array.data_type();
        if data_type.is_optional() {
            return Err(unsupported(format!(
                "elements of {data_type} may be missing: use zarrs' own calls"
            ))
            .into());
        }
        let encoded_by = decoded_by(&array);
        match &encoded_by {
            DecodedBy::ThisCrate(codec) => {
                let usable = codec.check_backend();
                usable.map_err(|error| Kind::Backend {
                    error: Box::new(error.into()),
                })?;
                settings.memory = memory.unwrap_or(codec.options().host_memory());
            }
            DecodedBy::Zarrs(why) if settings.update != ShardUpdate::Rewrite => {
                return Err(unsupported(format!(
                    "{why}, so only `ShardUpdate::Rewrite` can change it"
                ))
                .into());
            }
            DecodedBy::Zarrs(_) => {
                let options = crate::Options::default();
                settings.memory = memory.unwrap_or(options.host_memory());
            }
        }
        let mut grid = array.with_storage(Arc::new(()));
        if settings.growth.is_some() {
            grow(&mut grid).map_err(|reason| Kind::Unsupported { reason })?;
        }
        let is_found = root.is_none();
        let place = match root.or_else(|| directory_of(&array.storage())) {
            Some(root) => {
                let files = Files::new(root.clone());
                if is_checked && !is_found {
                    if let ArrayMetadata::V2(_) = array.metadata() {
                        let reason = "`on_filesystem` cannot compare metadata of Zarr V2: use `on_directory`";
                        return Err(Kind::unsupported(reason).into());
                    }
                    check_files(&array, &files).map_err(Kind::from)?;
                }
                let store = Arc::new(FileStore::new(root.clone(), syncs));
                Place::Files(Box::new(FilesOfArray {
                    locks: [
                        ShardLocks::of(&array.storage()),
                        ShardLocks::of_files(&root),
                    ],
                    array: array.with_storage(store),
                    files,
                    shared: Shared::default(),
                }))
            }
            None if settings.lock_limit.is_some() => {
                let reason = "`with_locks` locks files, and its store is not known to be one of files: use `on_filesystem` or `on_directory`, or `ShardUpdate::Shared`";
                return Err(Kind::unsupported(reason).into());
            }
            None => Place::Store(ShardLocks::of(&array.storage())),
        };
        settings.shard_memory = shard_memory(&grid, &encoded_by, matches!(place, Place::Files(_)))
            .map_err(|reason| Kind::Unsupported { reason })?;
        Ok(BoxWriter(Arc::new(Inner {
            array,
            grid,
            encoded_by,
            settings,
            place,
            shared: Shared::default(),
        })))
    }
}

/// Makes the first axis of `grid` unlimited.
///
/// # Errors
/// The reason why the array cannot grow.
fn grow(grid: &mut Array<()>) -> Result<(), String> {
    match grid.metadata() {
        ArrayMetadata::V3(metadata) if metadata.chunk_grid.name() == "regular" => {}
        ArrayMetadata::V3(metadata) => {
            return Err(format!(
                "its chunk grid is {}, and `with_growth` is for regular ones",
                metadata.chunk_grid.name()
            ));
        }
        ArrayMetadata::V2(_) => {
            let reason = "it is an array of Zarr V2, and `with_growth` changes metadata of V3";
            return Err(reason.to_owned());
        }
    }
    let mut shape = grid.shape().to_vec();
    let chunk = grid.chunk_shape(&vec![0; shape.len()]);
    let chunk = chunk.map_err(|error| format!("its grid has no first chunk: {error}"))?;
    let (Some(first), Some(extent)) = (shape.first_mut(), chunk.first()) else {
        return Err("it has no axis along which it could grow".to_owned());
    };
    *first = UNLIMITED / extent.get() * extent.get();
    let grown = grid.set_shape(shape);
    grown
        .map(drop)
        .map_err(|error| format!("its grid cannot grow along the first axis: {error}"))
}

/// Returns the number of bytes that a shard takes while it is written.
///
/// # Errors
/// The reason why the array has no such shards.
fn shard_memory(grid: &Array<()>, encoded_by: &DecodedBy, is_files: bool) -> Result<usize, String> {
    // A grid without chunks has no shards to write.
    let Ok(shape) = grid.chunk_shape(&vec![0; grid.dimensionality()]) else {
        return Ok(0);
    };
    let size = grid.data_type().fixed_size().unwrap_or(1) as u64;
    let decoded = shape
        .iter()
        .fold(size, |bytes, extent| bytes.saturating_mul(extent.get()));
    let bound = match encoded_by {
        DecodedBy::ThisCrate(codec) => {
            let shards = codec.sharding(&shape, grid.data_type(), grid.fill_value());
            let shards = shards.map_err(|error| error.to_string())?;
            let bound = shards
                .encoded_representation()
                .map_err(|error| error.to_string())?;
            bound.size()
        }
        DecodedBy::Zarrs(_) => None,
    };
    // Codecs without a bound encode to about as many bytes.
    let bound = bound.unwrap_or(decoded);
    // The copied elements of boxes, and the decoded subchunks that they meet; their old and their new encoded bytes;
    // and the new value, where it is not written to a file.
    let copies = if is_files { 2 } else { 3 };
    let bytes = decoded
        .saturating_mul(2)
        .saturating_add(bound.saturating_mul(copies));
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

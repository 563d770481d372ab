//! The settings of a writer, whether of an array or of an image with its levels.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use zarrs::array::Array;
use zarrs_codec::CodecOptions;
use zarrs_storage::{
    AtomicRenameStorageTraits, ListableStorageTraits, ReadableStorageTraits,
    ReadableWritableStorageTraits, WritableStorageTraits,
};

use super::start::Start;
use super::stores::Renaming;
use super::waiting::{Interrupt, Waiting};
use crate::options::Options;
use crate::store::conditional::ConditionalStore;
use crate::store::files::directory_of;

/// Builds a writer: an [`ArrayWriter`](super::ArrayWriter) or a [`MultiscaleWriter`](super::MultiscaleWriter).
/// The [guide](crate::guide::tuning#writer-settings) says when to change which setting.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![0, 64], vec![16, 64], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![4, 16]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/frames")?;
/// # array.store_metadata()?;
/// use std::time::Duration;
/// use zarrs_cuda::writer::{ArrayWriter, Resume};
///
/// let mut writer = ArrayWriter::builder(&array)
///     .with_start(Resume) // behind the last slice, wherever in a shard that is
///     .with_host_memory(1 << 30) // for the buffers of all writers
///     .with_metadata_interval(Duration::from_millis(200)) // followers see slices soon
///     .with_progress_callback(|progress| eprint!("\r{} slices", progress.covered_slices))
///     .build()?;
/// writer.append(&[7_u16; 20 * 64])?;
/// writer.finish()?;
/// # assert_eq!(zarrs::array::Array::open(store, "/frames")?.shape(), [20, 64]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct WriterBuilder<TStorage: ?Sized, Target> {
    pub(crate) array: Array<TStorage>,
    pub(crate) settings: Settings<TStorage>,
    /// The settings that only this kind of writer has.
    pub(crate) target: Target,
}

/// The settings that both kinds of writers have.
pub(crate) struct Settings<TStorage: ?Sized> {
    /// The store, if it can rename values.
    pub(crate) renaming: Option<Arc<dyn Renaming<TStorage>>>,
    /// The store, if it can replace values under conditions.
    pub(crate) conditional: Option<Arc<dyn ConditionalStore>>,
    /// The directory of the store, if its values are files.
    pub(crate) root: Option<PathBuf>,
    pub(crate) start: Option<Start>,
    pub(crate) epochs_per_batch: Option<usize>,
    /// The most host memory of all open writers, in bytes; `None` for the number in the codec's options.
    pub(crate) host_memory: Option<usize>,
    pub(crate) store_threads: usize,
    pub(crate) codec_options: CodecOptions,
    pub(crate) metadata_interval: Duration,
    pub(crate) flush_after: Option<Duration>,
    pub(crate) drop_limit: Duration,
    pub(crate) interrupt: Option<Interrupt>,
    /// The device to encode on; `None` for the device that the codec's options select.
    pub(crate) device: Option<usize>,
}

impl<TStorage: ?Sized> Default for Settings<TStorage> {
    fn default() -> Self {
        Self {
            renaming: None,
            conditional: None,
            root: None,
            start: None,
            epochs_per_batch: None,
            host_memory: None,
            store_threads: 8,
            codec_options: zarrs::config::global_config().codec_options(),
            metadata_interval: Duration::from_secs(1),
            flush_after: Some(Duration::from_secs(1)),
            drop_limit: Duration::from_secs(5),
            interrupt: None,
            device: None,
        }
    }
}

impl<TStorage: ?Sized> Clone for Settings<TStorage> {
    fn clone(&self) -> Self {
        Self {
            renaming: self.renaming.clone(),
            conditional: self.conditional.clone(),
            root: self.root.clone(),
            interrupt: self.interrupt.clone(),
            ..*self
        }
    }
}

impl<TStorage: ?Sized> Settings<TStorage> {
    /// Makes the limit for how long calls of the writer wait.
    pub(crate) fn new_waiting(&self) -> Arc<Waiting> {
        Arc::new(Waiting::new(self.interrupt.clone()))
    }

    /// Returns the `options` of the array's codec, with the host memory and the device that were set for this
    /// writer.
    pub(crate) fn limit(&self, options: &Options) -> Options {
        let mut options = options.clone();
        if let Some(bytes) = self.host_memory {
            options = options.with_host_memory(bytes);
        }
        if let Some(device) = self.device {
            options = options.with_devices([device]).with_consent("`with_device`");
        }
        options
    }
}

impl<TStorage: ?Sized, Target: fmt::Debug> fmt::Debug for WriterBuilder<TStorage, Target> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriterBuilder")
            .field("array", &self.array.path())
            .field("renames", &self.settings.renaming.is_some())
            .field("start", &self.settings.start)
            .field("epochs_per_batch", &self.settings.epochs_per_batch)
            .field("store_threads", &self.settings.store_threads)
            .field("metadata_interval", &self.settings.metadata_interval)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

impl<TStorage, Target> WriterBuilder<TStorage, Target>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
    Target: Default,
{
    pub(crate) fn new(array: &Array<TStorage>) -> Self {
        Self {
            array: array.with_storage(array.storage()),
            settings: Settings::default(),
            target: Target::default(),
        }
    }
}

impl<TStorage, Target> WriterBuilder<TStorage, Target>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
{
    /// Sets the first slice to write: an index along the first axis, and a multiple of a shard's extent along
    /// that axis. Or lets the writer go on behind the last slice of the array, wherever in a shard that is:
    /// [`Start::Resume`]. Default: the end of the array, which must be at the border of a shard.
    ///
    /// The array's slices from the first slice on are replaced, shard by shard. A writer that begins at the
    /// last border of a shard before the end, or resumes, extends the array, as one that begins at the end.
    ///
    /// A writer of an image takes a slice of level 0 that is not behind the end of level 0. When the first
    /// shard is about to be stored, all levels are cut at that slice. Until then the image stays as it is,
    /// also if the writer finishes without a slice.
    pub fn with_start(mut self, start: impl Into<Start>) -> Self {
        self.settings.start = Some(start.into());
        self
    }

    /// Sets the most epochs that are encoded together. An epoch is all subchunks at one index of the first
    /// axis. Default: enough epochs that all threads, or a whole device, have work, as the budgets allow.
    ///
    /// The number is rounded down to a divisor or a multiple of the epochs in a shard, and is at
    /// least 1. The stored shards are the same for any number. For an image, the number is that of level 0.
    pub fn with_epochs_per_batch(mut self, epochs: usize) -> Self {
        self.settings.epochs_per_batch = Some(epochs.max(1));
        self
    }

    /// Sets how many shards are stored at once, each by a thread of its own; at least 1. Default:
    /// 8, because the threads mostly wait for a disk that syncs or for a server. Use more for a
    /// store that is far away. Each level of an image has half as many threads as the level above, and at
    /// least one.
    pub fn with_store_threads(mut self, threads: usize) -> Self {
        self.settings.store_threads = threads.max(1);
        self
    }

    /// Sets the most host memory, in bytes, that the buffers of all open writers of this process may take.
    /// The limit applies when this writer is built and when the pool lends it further buffers. Default:
    /// [`Options::host_memory`](crate::Options::host_memory) of the array's codec.
    pub fn with_host_memory(mut self, bytes: usize) -> Self {
        self.settings.host_memory = Some(bytes);
        self
    }

    /// Sets the CUDA device to encode on, by the driver's number. Asks for that device, whatever device the
    /// [options](crate::Options::with_devices) of the array's codec name.
    pub fn with_device(mut self, device: usize) -> Self {
        self.settings.device = Some(device);
        self
    }

    /// Sets zarrs' options for codecs: how many threads encode, and whether empty subchunks are
    /// stored. Default: zarrs' global configuration; an array does not tell its own.
    pub fn with_codec_options(mut self, options: CodecOptions) -> Self {
        self.settings.codec_options = options;
        self
    }

    /// Sets the shortest time between updates of the shape in the array's metadata. Default: one
    /// second. Zero updates it whenever it can cover more finished shards.
    ///
    /// [`flush`](super::ArrayWriter::flush) and [`finish`](super::ArrayWriter::finish) update it in any case, and so does
    /// a [pause](Self::with_flush_after).
    pub fn with_metadata_interval(mut self, interval: Duration) -> Self {
        self.settings.metadata_interval = interval;
        self
    }

    /// Sets for how long a complete shard waits for the rest of its batch before it is stored alone. With
    /// `None`, the shard waits until the batch is full. Default: one second.
    ///
    /// A batch may have several shards, which are encoded together. While slices come fast this changes
    /// nothing. When the input rests, or slices come slowly, complete shards are stored nevertheless, and
    /// the metadata cover them as soon as they are stored, also before the
    /// [metadata interval](Self::with_metadata_interval) is over. Then a kill loses only the shard that is
    /// being filled. The stored bytes are the same for any time. [`Progress::at_risk`](super::Progress::at_risk) says how many
    /// slices are not stored.
    ///
    /// When a shard takes longer than 60 seconds to fill, the writer logs a warning, once. The warning says
    /// which length of shards would fill in time, as does
    /// [`Progress::slow_shard`](super::Progress::slow_shard).
    ///
    /// One thread looks after all writers of a process.
    pub fn with_flush_after(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.settings.flush_after = time.into();
        self
    }

    /// Sets how long a writer that is dropped without [`finish`](super::ArrayWriter::finish) waits until its
    /// complete shards are stored. Default: five seconds.
    pub fn with_drop_limit(mut self, limit: Duration) -> Self {
        self.settings.drop_limit = limit;
        self
    }

    /// Sets a function that the calling thread asks about every 50 ms while a call waits for the encoder
    /// or the store. When it returns true, the call returns [`WriterError::Cancelled`](super::WriterError::Cancelled). The writer keeps
    /// what was appended, and the call can be repeated. A call of `append` may have appended the beginning of its
    /// elements: repeat it with the rest, behind [`Progress::appended_bytes`](super::Progress::appended_bytes).
    /// `flush` and `finish` are cancelled, too, as long as `asked` returns true. Default: none.
    pub fn with_interrupt(mut self, asked: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.settings.interrupt = Some(Interrupt(Arc::new(asked)));
        self
    }

    /// Writes shards and metadata to temporaries in `store`, and renames them when they are
    /// complete. `store` is the store of the array. An [`Array`] does not say whether its store can
    /// rename; zarrs' `FilesystemStore` can.
    ///
    /// **Use it on every filesystem.** Without it a shard is stored by one `set`, which on a
    /// filesystem is not atomic: a reader, also one after a crash, may find part of a shard. It
    /// also saves memory: a shard is written as it grows, and needs no buffer until it is complete.
    ///
    /// A temporary is the key with `.tmp` behind it, as in zarrs' `AtomicWriteStorageAdapter`. The
    /// next writer that extends the array erases the temporaries of a writer that was killed. So
    /// only one such writer may run at a time. On zarrs' `FilesystemStore` (feature `filesystem`) a second
    /// one is refused while the first has its [lease](crate::guide::reference::streaming#leases), and
    /// directories are synced before the array's shape covers what is in them.
    ///
    /// [`build`](Self::build) reports errors of `store`.
    pub fn with_atomic_rename<S>(mut self, store: Arc<S>) -> Self
    where
        S: AtomicRenameStorageTraits
            + ReadableStorageTraits
            + WritableStorageTraits
            + ListableStorageTraits
            + 'static,
    {
        self.settings.root = directory_of(&store).or(self.settings.root);
        self.settings.renaming = Some(Arc::new(store));
        self
    }

    /// Takes the [lease](crate::guide::reference::streaming#leases) of the array, and replaces its metadata,
    /// by conditional requests to `store`. `store` is the array's object store, and supports such requests.
    /// Without this setting there is no lease, and metadata are replaced unconditionally.
    ///
    /// With [`with_atomic_rename`](Self::with_atomic_rename) this setting changes nothing.
    /// [`explain`](super::ArrayWriter::explain) says whether there is a lease. [`build`](Self::build) reports errors
    /// of `store`.
    pub fn with_conditional_writes(mut self, store: Arc<dyn ConditionalStore>) -> Self {
        self.settings.conditional = Some(store);
        self
    }

    /// Tells the writer that the values of the store are the files below `root`, so that the writer has a
    /// [lease](crate::guide::reference::streaming#leases). Not needed for zarrs' `FilesystemStore`.
    pub fn on_directory(mut self, root: PathBuf) -> Self {
        self.settings.root = Some(root);
        self
    }
}

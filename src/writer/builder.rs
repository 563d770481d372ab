//! The settings of a writer, and how it is built.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use zarrs::array::Array;
use zarrs::plugin::{ExtensionName, ZarrVersion};
use zarrs_codec::{CodecError, CodecOptions};
use zarrs_storage::{
    AtomicRenameStorageTraits, ListableStorage, ListableStorageTraits, ReadableStorageTraits,
    ReadableWritableStorageTraits, StorageError, WritableStorageTraits,
};

use super::assembler::Assembler;
use super::cuts::Cutting;
use super::encoding::Encoding;
use super::error::WriterError;
use super::explanation::WriterExplanation;
use super::late_lease::LateLease;
use super::metadata::ArrayLength;
use super::plan::{self, Account, Assembly, Epochs, Plan};
use super::report::Progress;
use super::shared::{ProgressCallback, Setup, Shared};
use super::sink::{Length, RenamedSink, ShardSink, WholeSink};
use super::waiting::{Interrupt, Waiting};
use super::{ArrayWriter, Stream, begun, leftovers, staff};
use crate::codec::find;
use crate::error::Error;
use crate::metrics::MemoryEstimate;
use crate::options::Options;
use crate::shard::error::codec_error;
use crate::shard::stream::ShardEncoding;
use crate::store::array_lease::{Leases, Work};
use crate::store::conditional::ConditionalStore;
use crate::store::durable::Names;
use crate::store::files::directory_of;
use crate::store::lease::Held;
use zarrs_cuda_engine::contract::EngineError;
use zarrs_cuda_engine::contract::stream::{ReducedFrom, Returned, StreamEngine};
use zarrs_cuda_engine::layout::StreamGrid;
use zarrs_cuda_engine::memory::buffers::{Contents, Pool};
use zarrs_cuda_engine::process::account::{Debtor, Reservation};

/// Builds an [`ArrayWriter`]: see [`ArrayWriter::builder`]. The
/// [guide](crate::guide::tuning#writer-settings) says when to change which setting.
#[must_use]
pub struct ArrayWriterBuilder<TStorage: ?Sized> {
    array: Array<TStorage>,
    renamed: Option<Renamed<TStorage>>,
    /// The store that renames, which has lists.
    listed: Option<ListableStorage>,
    /// The store, if it replaces values under conditions.
    conditional: Option<Arc<dyn ConditionalStore>>,
    /// The directory of the store, if its values are files.
    root: Option<PathBuf>,
    start: Option<u64>,
    cutting: Option<Cutting>,
    part: Option<u64>,
    /// The lease of the array, if the caller has taken it.
    lease: Option<Held>,
    epochs: Epochs,
    reduced_from: Option<ReducedFrom>,
    /// The most host memory of all open writers, if it is not that of the options.
    host_memory: Option<usize>,
    /// The account in which the memory of this writer was reserved, if it was.
    account: Option<Account>,
    store_threads: usize,
    codec_options: CodecOptions,
    metadata_interval: Duration,
    flush_after: Option<Duration>,
    drop_limit: Duration,
    interrupt: Option<Interrupt>,
    /// How long calls of all levels of an image wait.
    waiting: Option<Arc<Waiting>>,
    on_progress: Option<ProgressCallback>,
}

impl ArrayWriter {
    /// Returns a builder of a writer to `array`, whose codec must be this crate's.
    ///
    /// The writer uses the store from one or several threads at a time. For an asynchronous store
    /// use zarrs' `AsyncToSyncStorageAdapter`. The store may keep the bytes that it is given, as a
    /// store in memory does.
    pub fn builder<TStorage>(array: &Array<TStorage>) -> ArrayWriterBuilder<TStorage>
    where
        TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
    {
        ArrayWriterBuilder::new(array)
    }
}

/// Where shards go, and where the array's length is kept.
type Stores = (Box<dyn ShardSink>, Arc<dyn Length>);

/// An engine with its buffers, and the reservation of its memory, unless it was reserved before.
type Prepared = (Plan, Arc<dyn StreamEngine>, Option<Reservation>);

/// Makes the [`Stores`] of a store that renames.
type Renamed<TStorage> = Arc<
    dyn Fn(&ArrayWriterBuilder<TStorage>, Option<Extends>) -> Result<Stores, WriterError>
        + Send
        + Sync,
>;

/// A writer that extends its array.
#[derive(Clone, Copy)]
struct Extends {
    /// The index of the first new shard epoch: temporaries from there on are leftovers.
    first: u64,
    /// Whether the stored array is cut off there, and created.
    cuts: bool,
}

impl<TStorage: ?Sized> fmt::Debug for ArrayWriterBuilder<TStorage> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrayWriterBuilder")
            .field("array", &self.array.path())
            .field("renames", &self.renamed.is_some())
            .field("start", &self.start)
            .field("epochs_per_batch", &self.epochs.asked)
            .field("store_threads", &self.store_threads)
            .field("metadata_interval", &self.metadata_interval)
            .finish_non_exhaustive()
    }
}

impl<TStorage> ArrayWriterBuilder<TStorage>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
{
    pub(super) fn new(array: &Array<TStorage>) -> Self {
        Self {
            array: array.with_storage(array.storage()),
            renamed: None,
            listed: None,
            conditional: None,
            root: None,
            start: None,
            cutting: None,
            part: None,
            lease: None,
            epochs: Epochs::default(),
            reduced_from: None,
            host_memory: None,
            account: None,
            store_threads: 8,
            codec_options: zarrs::config::global_config().codec_options(),
            metadata_interval: Duration::from_secs(1),
            flush_after: Some(Duration::from_secs(1)),
            drop_limit: Duration::from_secs(5),
            interrupt: None,
            waiting: None,
            on_progress: None,
        }
    }

    /// Sets the first slice to write: an index along the first axis, and a multiple of a shard's
    /// extent there. Default: the end of the array, which is extended.
    ///
    /// The array's slices from there on are replaced, shard by shard. A writer that begins at the last
    /// border of a shard before the end extends the array, as one that begins at its end does.
    pub fn with_start(mut self, slice: u64) -> Self {
        self.start = Some(slice);
        self
    }

    /// The array that was given.
    pub(super) fn array(&self) -> &Array<TStorage> {
        &self.array
    }

    /// Zarrs' options for codecs.
    pub(super) fn codec_options(&self) -> &CodecOptions {
        &self.codec_options
    }

    /// The same settings for `array`, a level of the image of this builder's array. Each level has half as
    /// many threads that store as the level above. The number of epochs is one of level 0.
    pub(super) fn for_level(&self, level: usize, array: &Array<TStorage>) -> Self {
        Self {
            array: array.with_storage(array.storage()),
            renamed: self.renamed.clone(),
            listed: self.listed.clone(),
            conditional: self.conditional.clone(),
            root: self.root.clone(),
            start: None,
            cutting: None,
            part: self.part,
            lease: None,
            epochs: Epochs {
                asked: self.epochs.asked.filter(|_| level == 0),
                most: None,
            },
            reduced_from: None,
            host_memory: None,
            account: None,
            store_threads: (self.store_threads >> level.min(63)).max(1),
            codec_options: self.codec_options,
            metadata_interval: self.metadata_interval,
            flush_after: self.flush_after,
            drop_limit: self.drop_limit,
            interrupt: self.interrupt.clone(),
            waiting: None,
            on_progress: None,
        }
    }

    /// Lets the stored array end where the array that was given ends, from the first shard on that needs it,
    /// and creates it now if it is not there. Otherwise an array that was extended meanwhile is an error.
    pub(super) fn cutting(mut self, cutting: Cutting) -> Self {
        self.cutting = Some(cutting);
        self
    }

    /// Lets the writer be one of several processes that each write a part of the same arrays at once, none
    /// the same part.
    pub(super) fn for_part(mut self, part: Option<u64>) -> Self {
        self.part = part;
        self
    }

    /// Lets the writer have this lease of its array, which the caller has taken.
    pub(super) fn with_lease(mut self, lease: Option<Held>) -> Self {
        self.lease = lease;
        self
    }

    /// Lets calls of the writer wait together with those of others.
    pub(super) fn waiting_as(mut self, waiting: Arc<Waiting>) -> Self {
        self.waiting = Some(waiting);
        self
    }

    /// How long calls of a writer wait.
    pub(super) fn waiting(&self) -> Arc<Waiting> {
        let new = || Arc::new(Waiting::new(self.interrupt.clone()));
        self.waiting.clone().unwrap_or_else(new)
    }

    /// For how long complete shards wait, and how long the end of a writer takes, at most.
    pub(super) fn pauses(&self) -> (Option<Duration>, Duration) {
        (self.flush_after, self.drop_limit)
    }

    /// Lets a batch have at most so many epochs, unless it is a whole shard epoch that is stored as it is.
    pub(super) fn with_at_most_epochs(mut self, epochs: Option<usize>) -> Self {
        self.epochs.most = epochs;
        self
    }

    /// Takes the memory of the writer from what was reserved before, in `account`.
    pub(super) fn reserved_in(mut self, account: Account) -> Self {
        self.account = Some(account);
        self
    }

    /// Lets a device make the slices of those of another stream.
    pub(super) fn with_reduced_from(mut self, above: Option<ReducedFrom>) -> Self {
        self.reduced_from = above;
        self
    }

    /// The stream, and whether a device encodes it.
    pub(super) fn stream_on(&self) -> Result<(StreamGrid, bool), WriterError> {
        let (encoding, grid) = self.stream()?;
        let plan = self.plan(&encoding, &grid, self.epochs, None)?;
        Ok((grid, plan.choice.is_device()))
    }

    /// How many epochs a batch of the writer would have.
    pub(super) fn planned_epochs(&self) -> Result<usize, WriterError> {
        let (encoding, grid) = self.stream()?;
        Ok(self.plan(&encoding, &grid, self.epochs, None)?.job.epochs)
    }

    /// Returns the bytes of host memory that a writer reserves when it is built now: its smallest buffers.
    ///
    /// # Errors
    /// As for [`memory_estimate`](Self::memory_estimate).
    pub fn memory_reserved(&self) -> Result<usize, WriterError> {
        let (encoding, grid) = self.stream()?;
        Ok(self.plan(&encoding, &grid, self.epochs, None)?.reserved)
    }

    /// How many slices the stored array has; `None` if it is not there.
    pub(super) fn stored_length(&self) -> Result<Option<u64>, WriterError> {
        let stored = self.stores(None)?.1.stored();
        stored.map_err(|error| refused(&self.array, error))
    }

    /// Stores the array that was given unless one is there.
    pub(super) fn create(&self) -> Result<(), WriterError> {
        let (_, length) = self.stores(None)?;
        let created = length.grow(0);
        created.map_err(|error| refused(&self.array, error))
    }

    /// Lets the stored array be as long as the array that was given.
    pub(super) fn store_length(&self) -> Result<(), WriterError> {
        let (_, length) = self.stores(None)?;
        let slices = self.array.shape()[0];
        let stored = length.grow(slices).and_then(|()| length.cut(slices));
        stored.map_err(|error| refused(&self.array, error))
    }

    /// Sets the most host memory that the buffers of all open writers of this process may take for this writer
    /// to be built, and to be lent further ones, in bytes. Default:
    /// [`Options::host_memory`](crate::Options::host_memory) of the array's codec.
    pub fn with_host_memory(mut self, bytes: usize) -> Self {
        self.host_memory = Some(bytes);
        self
    }

    /// The options of the array's codec, with the memory that the writer may have.
    pub(super) fn options(&self, options: &Options) -> Options {
        let options = options.clone();
        match self.host_memory {
            Some(bytes) => options.with_host_memory(bytes),
            None => options,
        }
    }

    /// Sets how many epochs are encoded together, at most. An epoch is all subchunks at one index
    /// of the first axis. Default: enough that all threads, or a whole device, have work, as the
    /// budgets allow.
    ///
    /// The number is rounded down to a divisor or a multiple of the epochs in a shard, and is at
    /// least 1. The shards are the same for any number.
    pub fn with_epochs_per_batch(mut self, epochs: usize) -> Self {
        self.epochs.asked = Some(epochs.max(1));
        self
    }

    /// Sets how many shards are stored at once, each by a thread of its own; at least 1. Default:
    /// 8, because the threads mostly wait for a disk that syncs or for a server. Use more for a
    /// store that is far away.
    pub fn with_store_threads(mut self, threads: usize) -> Self {
        self.store_threads = threads.max(1);
        self
    }

    /// Sets zarrs' options for codecs: how many threads encode, and whether empty subchunks are
    /// stored. Default: zarrs' global configuration; an array does not tell its own.
    pub fn with_codec_options(mut self, options: CodecOptions) -> Self {
        self.codec_options = options;
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
        self.root = directory_of(&store).or(self.root);
        self.listed = Some(store.clone());
        self.renamed = Some(Arc::new(move |builder, extends| {
            let array = &builder.array;
            let sink = RenamedSink::of(array, store.clone(), Names::of(&store));
            let sink = sink.map_err(|error| refused(array, error))?;
            let length = ArrayLength::renamed(array, store.clone(), builder.part);
            let length = length.map_err(|error| refused(array, error))?;
            if let Some(extends) = extends {
                // First: what is there may belong to somebody who extends the array now.
                if !extends.cuts {
                    check_length(array, &length)?;
                }
                let erased = leftovers::clean(array, &*store, extends.first);
                let erased = erased.map_err(|error| refused(array, error))?;
                if erased > 0 {
                    let path = array.path();
                    tracing::info!(erased, %path, "erased what a writer left that did not finish");
                }
                builder.expects(&length)?;
            }
            Ok((Box::new(sink), Arc::new(length)))
        }));
        self
    }

    /// Takes the [lease](crate::guide::reference::streaming#leases) of the array, and replaces its metadata,
    /// by requests to `store` that have conditions. `store` is the store of the array: one of objects, which
    /// has such requests. Without them there is no lease, and the metadata are replaced in any case.
    ///
    /// With [`with_atomic_rename`](Self::with_atomic_rename) it changes nothing.
    /// [`explain`](ArrayWriter::explain) says whether there is a lease. [`build`](Self::build) reports errors
    /// of `store`.
    pub fn with_conditional_writes(mut self, store: Arc<dyn ConditionalStore>) -> Self {
        self.conditional = Some(store);
        self
    }

    /// Tells the writer that the values of the store are the files below `root`, so that the writer has a
    /// [lease](crate::guide::reference::streaming#leases). Not needed for zarrs' `FilesystemStore`.
    pub fn on_directory(mut self, root: PathBuf) -> Self {
        self.root = Some(root);
        self
    }

    /// Sets the shortest time between updates of the shape in the array's metadata. Default: one
    /// second. Zero updates it whenever it can cover more finished shards.
    ///
    /// [`flush`](ArrayWriter::flush) and [`finish`](ArrayWriter::finish) update it in any case, and so does
    /// a [pause](Self::with_flush_after).
    pub fn with_metadata_interval(mut self, interval: Duration) -> Self {
        self.metadata_interval = interval;
        self
    }

    /// Sets for how long a complete shard waits for the rest of its batch before it is stored without it;
    /// `None`: until the batch is full. Default: one second.
    ///
    /// A batch may have several shards, which are encoded together. While slices come fast this changes
    /// nothing. When the input rests, or slices come slowly, complete shards are stored nevertheless, and
    /// the metadata cover them as soon as they are stored, also before the
    /// [metadata interval](Self::with_metadata_interval) is over. Then a kill loses only the shard that is
    /// being filled. The stored bytes are the same for any time. [`Progress::at_risk`] says how many
    /// slices are not stored.
    ///
    /// When a shard takes longer than 60 seconds to fill, the writer logs a warning, once, with a length
    /// of shards that would not: [`Progress::slow_shard`].
    ///
    /// One thread does this for all writers of a process.
    pub fn with_flush_after(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.flush_after = time.into();
        self
    }

    /// Sets how long a writer that is dropped without [`finish`](ArrayWriter::finish) waits until its
    /// complete shards are stored. Default: five seconds.
    pub fn with_drop_limit(mut self, limit: Duration) -> Self {
        self.drop_limit = limit;
        self
    }

    /// Sets a function that the calling thread asks about every 50 ms while a call waits for the encoder
    /// or the store. When it returns true, the call returns [`WriterError::Cancelled`]. The writer keeps
    /// what was appended, and the call can be repeated. Default: none.
    pub fn with_interrupt(mut self, asked: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.interrupt = Some(Interrupt(Arc::new(asked)));
        self
    }

    /// Sets a function to call whenever a shard was stored or the metadata was written. Default:
    /// none.
    ///
    /// It runs on threads of the writer, one at a time, and they wait for it.
    pub fn with_progress_callback(
        mut self,
        callback: impl Fn(&Progress) + Send + Sync + 'static,
    ) -> Self {
        self.on_progress = Some(ProgressCallback(Arc::new(callback)));
        self
    }

    /// Returns the most memory that the writer's buffers would take if it is built now, beside the writers
    /// that are open. Allocates none of them; it may start CUDA.
    ///
    /// The host memory beyond [`memory_reserved`](Self::memory_reserved) is lent, when the open writers leave
    /// any.
    ///
    /// # Errors
    /// As for [`build`](Self::build), without the errors of the store.
    pub fn memory_estimate(&self) -> Result<MemoryEstimate, WriterError> {
        let (encoding, grid) = self.stream()?;
        self.first_slice(&grid)?;
        Ok(self.plan(&encoding, &grid, self.epochs, None)?.memory)
    }

    /// Builds the writer. Buffers on the host are allocated when they are first needed, buffers on
    /// a device now.
    ///
    /// # Errors
    /// - [`WriterError::Unsupported`] if the array cannot be written as a stream, if the store
    ///   lacks an operation, if the array was extended since it was opened and the writer extends it, or if no
    ///   [start](Self::with_start) is given and the array has slices and none of them is stored.
    /// - [`WriterError::Start`] if the first slice is not at the border of a shard.
    /// - [`WriterError::Memory`] if the smallest buffers do not fit the budgets of the
    ///   [`Options`](crate::Options), those on the host beside the buffers that the open writers of this
    ///   process have reserved.
    /// - [`WriterError::Array`] if the array's codec is not this crate's, the backend cannot be
    ///   used, or the store fails; on files also if another process extends, compacts or repairs the
    ///   array, with a source of the kind [`ResourceBusy`](std::io::ErrorKind::ResourceBusy).
    pub fn build(&self) -> Result<ArrayWriter, WriterError> {
        let stream = self.build_stream()?;
        ArrayWriter::new(stream, self.flush_after, self.drop_limit)
            .map_err(|error| no_thread("store shards in pauses", &error))
    }

    /// Builds the stream of a writer.
    ///
    /// # Errors
    /// As for [`build`](Self::build).
    pub(super) fn build_stream(&self) -> Result<Stream, WriterError> {
        let (encoding, grid) = self.stream()?;
        if self.start.is_none() && self.cutting.is_none() {
            self.check_begun()?;
        }
        let start = self.first_slice(&grid)?;
        let signal = Arc::new(Returned::default());
        let (plan, engine, reservation) = self.engine(&encoding, &grid, &signal)?;
        let encoder = engine.encoder().map_err(cannot)?;
        let batch = grid.batch(plan.job.epochs);
        let batch = batch.map_err(|error| unsupported(error.to_string()))?;
        let extends = self.extends(start, &grid);
        // Before anything of another writer is taken for a leftover.
        let (mut lease, mut late) = (self.lease.clone(), None);
        if lease.is_none()
            && self.part.is_none()
            && let Some(leases) = self.leases()
        {
            if extends.is_some() {
                let taken = leases.take(Work::Alone);
                lease = taken.map_err(|error| cannot_begin(&self.array, error))?;
            } else {
                late = Some(Arc::new(LateLease::new(leases, self.array.shape()[0])));
            }
        }
        let explanation = self.explanation(&plan, engine.name(), lease.is_some(), extends);
        let extending = late.as_ref().map(Arc::downgrade).unwrap_or_default();
        if let Some(late) = late {
            lease = Some(late);
        }
        let (sink, length) = self.stores(extends)?;
        let stored = length
            .stored()
            .map_err(|error| refused(&self.array, error))?;
        if let Some(cutting) = &self.cutting {
            let slices = self.array.shape()[0];
            match stored {
                Some(stored) if stored > slices => cutting.cuts.add(length.clone(), slices),
                Some(_) => {}
                None => length
                    .cut(slices)
                    .map_err(|error| refused(&self.array, error))?,
            }
        }
        // An array whose metadata were never stored covers nothing yet.
        let covered = stored.map_or(0, |_| self.array.shape()[0]);
        let buffers = plan.assembly.map(
            |Assembly {
                 count,
                 own,
                 len,
                 lender,
             }| {
                let (own, huge_pages) = (Some((own, lender)), plan.job.huge_pages);
                Pool::lending(len, Contents::Zeros, count, own, huge_pages, signal.clone())
            },
        );
        let mut pools = engine.pools();
        pools.extend(
            buffers
                .clone()
                .map(|buffers| -> Arc<dyn Debtor> { buffers }),
        );
        let shared = Shared::new(
            Setup {
                engine: engine.name(),
                explanation,
                array: self.array.with_storage(Arc::new(())),
                encoding,
                start,
                whole_shards: plan.whole_shards,
                sink,
                length,
                cutting: self.cutting.clone().unwrap_or_default(),
                extending,
                store_threads: self.store_threads,
                metadata_interval: self.metadata_interval,
                on_progress: self.on_progress.clone(),
                grid,
            },
            covered,
            signal,
        );
        let encoding = Encoding::new(encoder, Assembler::new(buffers));
        staff::employ(&shared, encoding, pools);
        let (after, waiting) = (self.flush_after, self.waiting());
        let held = (lease, reservation);
        Ok(Stream::new(
            shared, engine, &plan, batch, held, after, waiting,
        ))
    }

    /// Where shards and metadata go: to temporaries that are renamed, or by one `set` each.
    fn stores(&self, extends: Option<Extends>) -> Result<Stores, WriterError> {
        if let Some(renamed) = &self.renamed {
            return renamed(self, extends);
        }
        let sink = WholeSink::of(&self.array).map_err(|error| refused(&self.array, error))?;
        let length = match &self.conditional {
            Some(store) => ArrayLength::conditional(&self.array, store.clone()),
            None => ArrayLength::of(&self.array),
        };
        let length = length.map_err(|error| refused(&self.array, error))?;
        if let Some(extends) = extends {
            if !extends.cuts {
                check_length(&self.array, &length)?;
            }
            self.expects(&length)?;
        }
        Ok((Box::new(sink), Arc::new(length)))
    }

    /// Lets no other process change the length of an array that this writer extends, unless it writes a part
    /// of the array.
    fn expects(&self, length: &ArrayLength) -> Result<(), WriterError> {
        if self.part.is_none() {
            let stored = length.stored();
            let stored = stored.map_err(|error| refused(&self.array, error))?;
            length.know(stored.unwrap_or(self.array.shape()[0]));
        }
        Ok(())
    }

    /// Whether a writer that begins at the slice `start` extends the array. A writer of the last shard epoch
    /// does, if the array ends within it: none of several writers within the array begins there twice.
    fn extends(&self, start: u64, grid: &StreamGrid) -> Option<Extends> {
        let end = self.array.shape()[0];
        let shard_slices = grid.shard_slices() as u64;
        let is_last = self.part.is_none() && start == end / shard_slices * shard_slices;
        (start == end || is_last).then_some(Extends {
            first: start / shard_slices,
            cuts: self.cutting.is_some(),
        })
    }

    /// Where the leases of the array are: `None` if the store's values are not known to be files, and it has
    /// no requests with conditions.
    pub(super) fn leases(&self) -> Option<Leases> {
        let array = self.array.path();
        match (&self.root, &self.conditional) {
            (Some(root), _) => Some(Leases::of_files(root, array)),
            (None, Some(store)) => Some(Leases::of_objects(store.clone(), array)),
            (None, None) => None,
        }
    }

    fn explanation(
        &self,
        plan: &Plan,
        engine: &'static str,
        has_lease: bool,
        extends: Option<Extends>,
    ) -> WriterExplanation {
        let (is_renamed, is_conditional) = (self.renamed.is_some(), self.conditional.is_some());
        WriterExplanation {
            engine,
            why: plan.choice.why.clone(),
            epochs_per_batch: plan.job.epochs,
            memory: plan.memory,
            store_threads: self.store_threads,
            shards: if is_renamed {
                "each grows in a temporary, which is renamed when it is complete"
            } else {
                "each is put together in memory and stored whole, which takes longer and more memory than a temporary in a store that renames"
            },
            metadata: match (is_renamed, is_conditional) {
                (true, _) => "a temporary is compared with what was read last, and renamed",
                (false, true) => {
                    "replaced under the condition that they are as they were read, where the store takes conditions"
                }
                (false, false) => {
                    "replaced by one `set`, which overwrites changes of other processes at the same moment"
                }
            },
            has_lease,
            lease: match (has_lease, extends) {
                (true, _) => {
                    "the writer extends or cuts the array, or writes a part of the levels of an image"
                }
                (false, None) => {
                    "a writer that does not begin at the end of the array may be one of several; it takes the lease when it extends the array, if the store has leases"
                }
                (false, Some(_)) if is_conditional => {
                    "the store takes no conditions, or ignores them: see to it that no other process extends the array"
                }
                (false, Some(_)) => {
                    "the values of the store are not known to be files, and it has no requests with conditions: see to it that no other process extends the array"
                }
            },
        }
    }

    /// Returns the directory of the store, if its values are files.
    pub(super) fn root(&self) -> Option<PathBuf> {
        self.root.clone()
    }

    fn plan(
        &self,
        encoding: &ShardEncoding,
        grid: &StreamGrid,
        epochs: Epochs,
        host: Option<&str>,
    ) -> Result<Plan, WriterError> {
        let limit = encoding.shards.codec.options.host_memory();
        let account = self.account.unwrap_or_else(|| Account::now(limit));
        plan::plan(
            encoding,
            grid,
            self.renamed.is_some(),
            epochs,
            host,
            &account,
        )
    }

    /// Prepares an engine. If a device has less memory than its budget, batches become
    /// smaller. If it has too little for any, the host encodes, where the options allow it.
    fn engine(
        &self,
        encoding: &ShardEncoding,
        grid: &StreamGrid,
        signal: &Arc<Returned>,
    ) -> Result<Prepared, WriterError> {
        let mut epochs = self.epochs;
        let mut host: Option<String> = None;
        let limit = encoding.shards.codec.options.host_memory();
        loop {
            let plan = self.plan(encoding, grid, epochs, host.as_deref())?;
            let reservation = match self.account {
                Some(_) => None,
                None => match Reservation::take(plan.reserved, limit) {
                    Ok(reservation) => Some(reservation),
                    // Another writer was built meanwhile: the next plan finds less memory.
                    Err(_) => continue,
                },
            };
            let error = match plan.choice.engine(plan.job.clone(), signal.clone()) {
                Ok(engine) => return Ok((plan, engine, reservation)),
                Err(error) => error,
            };
            if error.wants_less() && plan.job.epochs > 1 {
                epochs.asked = Some(plan.job.epochs / 2);
            } else if plan.choice.can_fall_back() {
                tracing::warn!(%error, "no stream on a device: the host encodes it");
                (epochs, host) = (self.epochs, Some(error.to_string()));
            } else {
                return Err(cannot(error));
            }
        }
    }

    /// Checks that the slices behind which the writer appends are there. An array that was made with its final
    /// shape has none, and slices that were appended behind them would be overlooked.
    ///
    /// # Errors
    /// [`WriterError::Unsupported`] if [no shard](begun::is_begun) is stored; the store's.
    pub(super) fn check_begun(&self) -> Result<(), WriterError> {
        let slices = self.array.shape().first().copied().unwrap_or(0);
        let (_, grid) = self.stream()?;
        let is_begun = begun::is_begun(&self.array, &grid, self.listed.as_ref());
        if slices == 0 || is_begun.map_err(|error| refused(&self.array, error))? {
            return Ok(());
        }
        Err(unsupported(format!(
            "it has {slices} slices, and none of them is stored: to write these slices begin `with_start(0)`, and to append behind them `with_start({slices})`"
        )))
    }

    fn first_slice(&self, grid: &StreamGrid) -> Result<u64, WriterError> {
        let start = self.start.unwrap_or(self.array.shape()[0]);
        let shard_slices = grid.shard_slices() as u64;
        // Numbers of slices must not overflow, as far as anything can be appended behind `start`.
        let numbers = start
            .checked_add(i64::MAX as u64)
            .and_then(|end| end.checked_add(shard_slices));
        if numbers.is_none() {
            return Err(WriterError::Unsupported {
                reason: format!("slice {start} is at the end of all numbers"),
            });
        }
        if start.is_multiple_of(shard_slices) {
            return Ok(start);
        }
        Err(WriterError::Start {
            start,
            shard_slices,
            before: start / shard_slices * shard_slices,
        })
    }

    /// How the array's shards are encoded, and how its slices divide.
    fn stream(&self) -> Result<(ShardEncoding, StreamGrid), WriterError> {
        let codecs = self.array.codecs();
        let name = |name: Option<std::borrow::Cow<'static, str>>| name.unwrap_or_default();
        let codec =
            find::ours(codecs.array_to_bytes_codec()).ok_or_else(|| Error::ForeignCodec {
                codec: name(codecs.array_to_bytes_codec().name(ZarrVersion::V3)).into_owned(),
            })?;
        if let Some(outer) = codecs.array_to_array_codecs().first() {
            return Err(unsupported(format!(
                "the codec `{}` comes before `sharding_indexed`, so that shards do not hold slices as they come: put it among the inner codecs",
                name(outer.name(ZarrVersion::V3))
            )));
        }
        if let Some(outer) = codecs.bytes_to_bytes_codecs().first() {
            return Err(unsupported(format!(
                "the codec `{}` encodes whole shards once more: put it among the inner codecs",
                name(outer.name(ZarrVersion::V3))
            )));
        }
        let Some(inner) = self.array.shape().get(1..) else {
            return Err(unsupported("it has no axis to append along".to_string()));
        };
        let grid_name = self.array.chunk_grid().name(ZarrVersion::V3);
        if name(grid_name.clone()) != "regular" {
            return Err(unsupported(format!(
                "its chunk grid is `{}`, and shards of a stream are all of one shape: use a regular grid",
                name(grid_name)
            )));
        }
        let first = vec![0; self.array.dimensionality()];
        let shape = self
            .array
            .chunk_shape(&first)
            .map_err(|error| unsupported(error.to_string()))?;
        let codec = (*codec).clone().with_options(self.options(codec.options()));
        let mut encoding = codec
            .sharding(&shape, self.array.data_type(), self.array.fill_value())
            .and_then(|shards| ShardEncoding::new(shards, &self.codec_options))
            .map_err(|error| unsupported(error.to_string()))?;
        encoding.reduced_from.clone_from(&self.reduced_from);
        let grid = StreamGrid::new(encoding.shards.grid.clone(), inner)
            .map_err(|error| unsupported(error.to_string()))?;
        Ok((encoding, grid))
    }
}

/// The store cannot be written to, or failed.
fn refused<TStorage: ?Sized>(array: &Array<TStorage>, error: StorageError) -> WriterError {
    match error {
        StorageError::Unsupported(reason) => WriterError::Unsupported { reason },
        source => WriterError::Array(Error::Storage {
            doing: "prepare the store of",
            key: zarrs::node::meta_key_v3(array.path()),
            source,
        }),
    }
}

pub(super) fn no_thread(task: &str, error: &std::io::Error) -> WriterError {
    let reason = format!("no thread to {task}: {error}");
    WriterError::Array(CodecError::from(std::io::Error::new(error.kind(), reason)).into())
}

fn unsupported(reason: String) -> WriterError {
    WriterError::Unsupported { reason }
}

fn cannot(error: EngineError) -> WriterError {
    WriterError::Array(Error::Codec(codec_error(error)))
}

/// Checks that the array was not extended since it was opened: the writer would start within its
/// new slices.
/// The error of a lease of `array`.
pub(super) fn cannot_begin<TStorage: ?Sized>(
    array: &Array<TStorage>,
    source: StorageError,
) -> WriterError {
    WriterError::Array(Error::Storage {
        doing: "begin to write",
        key: zarrs::node::meta_key_v3(array.path()),
        source,
    })
}

fn check_length<TStorage: ?Sized>(
    array: &Array<TStorage>,
    length: &dyn Length,
) -> Result<(), WriterError> {
    let stored = length.stored().map_err(|error| refused(array, error))?;
    let opened = array.shape()[0];
    match stored {
        Some(stored) if stored != opened => Err(unsupported(format!(
            "it has {stored} slices now, and had {opened} when it was opened: open it again to extend it"
        ))),
        _ => Ok(()),
    }
}

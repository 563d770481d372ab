//! Plans and builds a writer of one array.

use std::sync::Arc;

use zarrs::array::Array;
use zarrs::plugin::{ExtensionName, ZarrVersion};
use zarrs_storage::ReadableWritableStorageTraits;

use super::array_writer::ArrayWriter;
use super::assembler::Assembler;
use super::cuts::Cutting;
use super::encoding::Encoding;
use super::error::{WriterError, unsupported};
use super::explanation::{StoreKind, WriterExplanation, why_lease};
use super::late_lease::LateLease;
use super::plan::{self, Account, Assembly, Epochs, Plan};
use super::read_back;
use super::report::Progress;
use super::settings::WriterBuilder;
use super::shared::{ProgressCallback, Setup, Shared};
use super::staff;
use super::start::Start;
use super::stores::{self, Extends, Stores};
use super::stream::Stream;
use super::waiting::Waiting;
use crate::codec::find;
use crate::error::Error;
use crate::metrics::MemoryEstimate;
use crate::shard::stream::ShardEncoding;
use crate::store::array_lease::{Leases, Work};
use crate::store::lease::Held;
use zarrs_cuda_engine::contract::stream::{ReducedFrom, Returned, StreamEngine};
use zarrs_cuda_engine::layout::StreamGrid;
use zarrs_cuda_engine::memory::buffers::{Contents, Pool};
use zarrs_cuda_engine::process::account::{Debtor, Reservation};

/// Builds an [`ArrayWriter`]. [`ArrayWriter::builder`] returns a builder.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![0, 64], vec![16, 64], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![4, 16]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/frames")?;
/// # array.store_metadata()?;
/// use std::time::Duration;
/// use zarrs::storage::ReadableWritableStorageTraits;
/// use zarrs_cuda::writer::{ArrayWriter, ArrayWriterBuilder};
///
/// /// Sets the limits that all streams of an application have in common.
/// fn limited<S>(builder: ArrayWriterBuilder<S>) -> ArrayWriterBuilder<S>
/// where
///     S: ReadableWritableStorageTraits + 'static,
/// {
///     builder.with_host_memory(256 << 20).with_flush_after(Duration::from_secs(5))
/// }
///
/// let builder = limited(ArrayWriter::builder(&array));
/// assert!(builder.memory_estimate()?.host <= 256 << 20);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub type ArrayWriterBuilder<TStorage> = WriterBuilder<TStorage, OneArray>;

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

/// The settings that only a writer of one array has, and not a writer of an image.
#[derive(Debug, Default)]
pub struct OneArray {
    on_progress: Option<ProgressCallback>,
    /// The settings that the writer of an image gives, if the array is a level of the image.
    pub(crate) level: OneLevel,
}

/// The settings of one level that the writer of its image gives.
#[derive(Debug, Default)]
pub(crate) struct OneLevel {
    /// The cuts of the image, which the first shard that needs them makes. This writer creates a missing
    /// array. If `None`, an array that was extended meanwhile is an error.
    pub(crate) cutting: Option<Cutting>,
    /// The number of stored slices behind the end of the array that was given, which the writer of the image
    /// reads back.
    pub(crate) read_back: u64,
    /// The part of the arrays that this process writes, if other processes write the other parts.
    pub(crate) part: Option<u64>,
    /// The lease of the array, which the writer of the image has taken.
    pub(crate) lease: Option<Held>,
    /// The most epochs of a batch, unless the batch is a whole shard epoch that is stored as it is.
    pub(crate) most_epochs: Option<usize>,
    /// The stream whose slices a device reduces to those of this level.
    pub(crate) reduced_from: Option<ReducedFrom>,
    /// The account in which the memory of this writer was reserved.
    pub(crate) account: Option<Account>,
    /// The limit for how long calls wait, which all levels share.
    pub(crate) waiting: Option<Arc<Waiting>>,
}

/// The plan of a writer, its engine with its buffers, and the reservation of its memory, unless the caller
/// has reserved it.
type Prepared = (Plan, Arc<dyn StreamEngine>, Option<Reservation>);

impl<TStorage> ArrayWriterBuilder<TStorage>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
{
    fn epochs(&self) -> Epochs {
        Epochs {
            asked: self.settings.epochs_per_batch,
            most: self.target.level.most_epochs,
        }
    }

    /// Returns the grid of the stream, and whether a device encodes the stream.
    pub(crate) fn stream_on(&self) -> Result<(StreamGrid, bool), WriterError> {
        let (encoding, grid) = self.stream()?;
        let plan = self.plan(&encoding, &grid, self.epochs(), None)?;
        Ok((grid, plan.choice.is_device()))
    }

    /// Returns the number of epochs in a batch of the writer.
    pub(crate) fn planned_epochs(&self) -> Result<usize, WriterError> {
        let (encoding, grid) = self.stream()?;
        Ok(self.plan(&encoding, &grid, self.epochs(), None)?.job.epochs)
    }

    /// Returns the bytes of host memory that a writer reserves when it is built now: its smallest buffers.
    ///
    /// # Errors
    /// The errors of [`memory_estimate`](Self::memory_estimate).
    pub fn memory_reserved(&self) -> Result<usize, WriterError> {
        let (encoding, grid) = self.stream()?;
        Ok(self.plan(&encoding, &grid, self.epochs(), None)?.reserved)
    }

    /// Returns the number of slices in the stored array; `None` if the array is not stored.
    pub(crate) fn stored_length(&self) -> Result<Option<u64>, WriterError> {
        let stored = self.stores(None)?.1.stored();
        stored.map_err(|error| WriterError::refused(self.array.path(), error))
    }

    /// Stores the array that was given unless the store has an array there.
    pub(crate) fn create(&self) -> Result<(), WriterError> {
        let (_, length) = self.stores(None)?;
        let created = length.grow(0);
        created.map_err(|error| WriterError::refused(self.array.path(), error))
    }

    /// Sets the length of the stored array to the length of the array that was given.
    pub(crate) fn store_length(&self) -> Result<(), WriterError> {
        let (_, length) = self.stores(None)?;
        let slices = self.array.shape()[0];
        let stored = length.grow(slices).and_then(|()| length.cut(slices));
        stored.map_err(|error| WriterError::refused(self.array.path(), error))
    }

    /// Sets a function to call whenever a shard was stored or the metadata was written. Default:
    /// none.
    ///
    /// The function runs on threads of the writer, one at a time, and these threads wait for it.
    pub fn with_progress_callback(
        mut self,
        callback: impl Fn(&Progress) + Send + Sync + 'static,
    ) -> Self {
        self.target.on_progress = Some(ProgressCallback(Arc::new(callback)));
        self
    }

    /// Returns the most memory that the writer's buffers would take if it is built now, beside the writers
    /// that are open. Allocates none of them; it may start CUDA.
    ///
    /// The host memory beyond [`memory_reserved`](Self::memory_reserved) is lent, when the open writers leave
    /// any.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build), without the errors of the store.
    pub fn memory_estimate(&self) -> Result<MemoryEstimate, WriterError> {
        let (encoding, grid) = self.stream()?;
        self.begin(&grid)?;
        Ok(self.plan(&encoding, &grid, self.epochs(), None)?.memory)
    }

    /// Builds the writer. Buffers on the host are allocated when they are first needed, buffers on
    /// a device now.
    ///
    /// With [`Start::Resume`], this function reads the slices of the last shard back if the array ends inside
    /// it. Meanwhile this takes the memory of an epoch, besides the buffers of the writer.
    ///
    /// # Errors
    /// - [`WriterError::Unsupported`] if the array cannot be written as a stream, if the store
    ///   lacks an operation, if the array was extended since it was opened and the writer extends it, or if no
    ///   [start](Self::with_start) is given and the array has slices and none of them is stored.
    /// - [`WriterError::Start`] if the first slice is not at the border of a shard.
    /// - [`WriterError::Memory`] if the smallest buffers do not fit the budgets of the
    ///   [`Options`](crate::Options), those on the host beside the buffers that the open writers of this
    ///   process have reserved.
    /// - [`WriterError::Read`] if [`Start::Resume`] was given, and the stored slices of the last shard cannot be
    ///   read.
    /// - [`WriterError::Array`] if the array's codec is not this crate's, the backend cannot be
    ///   used, or the store fails; on files also if another process extends, compacts or repairs the
    ///   array, with a source of the kind [`ResourceBusy`](std::io::ErrorKind::ResourceBusy).
    pub fn build(&self) -> Result<ArrayWriter, WriterError> {
        let mut stream = self.build_stream()?;
        let options = self.settings.codec_options;
        read_back::read_back(&self.array, options, &mut stream)?;
        let memory = stream.memory;
        ArrayWriter::new(
            stream,
            memory,
            self.settings.flush_after,
            self.settings.drop_limit,
        )
        .map_err(|error| WriterError::no_thread("store shards in pauses", &error))
    }

    /// Builds the stream of a writer.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build).
    pub(crate) fn build_stream(&self) -> Result<Stream, WriterError> {
        let (encoding, grid) = self.stream()?;
        let takes_end = !matches!(self.settings.start, Some(Start::Slice(_)));
        if takes_end && self.target.level.cutting.is_none() {
            self.check_begun()?;
        }
        let begin = self.begin(&grid)?;
        let signal = Arc::new(Returned::default());
        let (plan, engine, reservation) = self.engine(&encoding, &grid, &signal)?;
        let encoder = engine.encoder().map_err(WriterError::of_engine)?;
        let batch = grid.batch(plan.job.epochs);
        let batch = batch.map_err(|error| unsupported(error.to_string()))?;
        let extends = self.extends(begin.border, &grid);
        // The lease is taken first, so that no file of another writer is taken for a leftover.
        let (mut lease, mut late) = (self.target.level.lease.clone(), None);
        if lease.is_none()
            && self.target.level.part.is_none()
            && let Some(leases) = self.leases()
        {
            if extends.is_some() {
                let taken = leases.take(Work::Alone);
                lease = taken.map_err(|error| WriterError::no_lease(self.array.path(), error))?;
            } else {
                late = Some(Arc::new(LateLease::new(leases, self.array.shape()[0])));
            }
        }
        let explanation =
            self.explanation(&plan, engine.name(), lease.is_some(), extends.is_some());
        let extending = late.as_ref().map(Arc::downgrade).unwrap_or_default();
        if let Some(late) = late {
            lease = Some(late);
        }
        let (sink, length) = self.stores(extends)?;
        let stored = length
            .stored()
            .map_err(|error| WriterError::refused(self.array.path(), error))?;
        if let Some(cutting) = &self.target.level.cutting {
            match stored {
                Some(stored) if stored > cutting.end => {
                    cutting.cuts.add(length.clone(), cutting.end);
                }
                Some(_) => {}
                None => length
                    .cut(cutting.end)
                    .map_err(|error| WriterError::refused(self.array.path(), error))?,
            }
        }
        // If the array's metadata were never stored, they cover no slices yet.
        let covered = stored.map_or(0, |_| self.array.shape()[0] + self.target.level.read_back);
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
                start: begin.border,
                read_back: begin.read_back,
                whole_shards: plan.whole_shards,
                sink,
                length,
                cutting: self.target.level.cutting.clone().unwrap_or_default(),
                extending,
                store_threads: self.settings.store_threads,
                metadata_interval: self.settings.metadata_interval,
                on_progress: self.target.on_progress.clone(),
                grid,
            },
            covered,
            signal,
        );
        let encoding = Encoding::new(encoder, Assembler::new(buffers));
        staff::employ(&shared, encoding, pools);
        let after = self.settings.flush_after;
        let waiting = self.target.level.waiting.clone();
        let waiting = waiting.unwrap_or_else(|| self.settings.new_waiting());
        let held = (lease, reservation);
        Ok(Stream::new(
            shared, engine, &plan, batch, held, after, waiting,
        ))
    }

    /// Returns the destinations of shards and metadata: temporaries that are renamed, or keys that one `set`
    /// replaces.
    fn stores(&self, extends: Option<Extends>) -> Result<Stores, WriterError> {
        let role = (self.target.level.part, extends);
        match &self.settings.renaming {
            Some(renaming) => renaming.stores(&self.array, role),
            None => stores::whole(&self.array, self.settings.conditional.as_ref(), role),
        }
    }

    /// Returns how a writer that begins at the slice `start` extends the array; `None` if it does not. A
    /// writer of the last shard epoch extends the array if the array ends within that epoch: of several
    /// writers within the array, at most one begins there.
    fn extends(&self, start: u64, grid: &StreamGrid) -> Option<Extends> {
        let end = self.array.shape()[0];
        let shard_slices = grid.shard_slices() as u64;
        let is_last =
            self.target.level.part.is_none() && start == end / shard_slices * shard_slices;
        (start == end || is_last).then_some(Extends {
            first: start / shard_slices,
            cuts: self.target.level.cutting.is_some(),
        })
    }

    /// Returns the place of the array's leases; `None` if the store's values are not known to be files, and
    /// the store has no requests with conditions.
    pub(crate) fn leases(&self) -> Option<Leases> {
        let array = self.array.path();
        match (&self.settings.root, &self.settings.conditional) {
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
        extends: bool,
    ) -> WriterExplanation {
        let store = match (&self.settings.renaming, &self.settings.conditional) {
            (Some(_), _) => StoreKind::Renames,
            (None, Some(_)) => StoreKind::HasConditions,
            (None, None) => StoreKind::Plain,
        };
        WriterExplanation {
            engine,
            why: plan.choice.why.clone(),
            epochs_per_batch: plan.job.epochs,
            memory: plan.memory,
            store_threads: self.settings.store_threads,
            shards: store.shards(),
            metadata: store.metadata(),
            has_lease,
            lease: why_lease(has_lease, extends, self.settings.conditional.is_some()),
        }
    }

    fn plan(
        &self,
        encoding: &ShardEncoding,
        grid: &StreamGrid,
        epochs: Epochs,
        host: Option<&str>,
    ) -> Result<Plan, WriterError> {
        let limit = encoding.shards.codec.options.host_memory();
        let account = self
            .target
            .level
            .account
            .unwrap_or_else(|| Account::now(limit));
        plan::plan(
            encoding,
            grid,
            self.settings.renaming.is_some(),
            epochs,
            host,
            &account,
        )
    }

    /// Prepares an engine. If a device has less memory than its budget, batches become smaller. If the device
    /// has too little memory for any batch, the host encodes, where the options allow it.
    fn engine(
        &self,
        encoding: &ShardEncoding,
        grid: &StreamGrid,
        signal: &Arc<Returned>,
    ) -> Result<Prepared, WriterError> {
        let mut epochs = self.epochs();
        let mut host: Option<String> = None;
        let limit = encoding.shards.codec.options.host_memory();
        loop {
            let plan = self.plan(encoding, grid, epochs, host.as_deref())?;
            let reservation = match self.target.level.account {
                Some(_) => None,
                None => match Reservation::take(plan.reserved, limit) {
                    Ok(reservation) => Some(reservation),
                    // Another writer was built meanwhile, and has reserved memory: the next plan finds less
                    // free memory.
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
                (epochs, host) = (self.epochs(), Some(error.to_string()));
            } else {
                return Err(WriterError::of_engine(error));
            }
        }
    }

    /// Returns how the array's shards are encoded, and how its slices are divided into epochs and shards.
    pub(crate) fn stream(&self) -> Result<(ShardEncoding, StreamGrid), WriterError> {
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
            return Err(unsupported("it has no axis to append along"));
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
        let codec = (*codec)
            .clone()
            .with_options(self.settings.limit(codec.options()));
        let mut encoding = codec
            .sharding(&shape, self.array.data_type(), self.array.fill_value())
            .and_then(|shards| ShardEncoding::new(shards, &self.settings.codec_options))
            .map_err(|error| unsupported(error.to_string()))?;
        encoding
            .reduced_from
            .clone_from(&self.target.level.reduced_from);
        let grid = StreamGrid::new(encoding.shards.grid.clone(), inner)
            .map_err(|error| unsupported(error.to_string()))?;
        Ok((encoding, grid))
    }
}

//! Sets up and builds a writer of all levels of an image.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use zarrs::array::Array;
use zarrs::node::meta_key_v3;
use zarrs_storage::ReadableWritableStorageTraits;

use super::Reduction;
use super::axis::Axis;
use super::cascade::{self, Cascade, Lower, at_level};
use super::image::Image;
use super::levels;
use super::plan::Plan;
use super::{MultiscaleWriter, feed};
use crate::error::Error;
use crate::metrics::MemoryEstimate;
use crate::reader::Cancel;
use crate::writer::builder::OneLevel;
use crate::writer::cuts::{Cuts, Cutting};
use crate::writer::plan::Account;
use crate::writer::read_back;
use crate::writer::settings::WriterBuilder;
use crate::writer::{ArrayWriterBuilder, Progress, WriterError};
use zarrs_cuda_engine::contract::stream::ReducedFrom;
use zarrs_cuda_engine::process::account::Reservation;

/// Builds a [`MultiscaleWriter`]. [`MultiscaleWriter::builder`] returns a builder.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![0, 64], vec![16, 64], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![4, 16]);
/// # let array = zarrs_cuda::build_sharded(builder, store, "/image/0")?;
/// use zarrs_cuda::writer::{Axis, MultiscaleWriter, Reduction};
///
/// let builder = MultiscaleWriter::builder(&array)
///     .with_axes([Axis::space("y"), Axis::space("x")])
///     .with_levels(3)
///     .with_reduction(Reduction::Maximum);
/// let levels = builder.levels()?; // stores nothing
/// assert_eq!(levels.len(), 3);
/// assert_eq!((levels[2].path().as_str(), levels[2].shape()), ("/image/2", &[0, 16][..]));
/// let mut writer = builder.build()?;
/// # writer.finish()?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub type MultiscaleBuilder<TStorage> = WriterBuilder<TStorage, AllLevels>;

/// The settings that only a writer of an image has, and not a writer of one array.
#[derive(Default)]
pub struct AllLevels {
    pub(super) axes: Option<Vec<Axis>>,
    pub(super) levels: Option<usize>,
    pub(super) reduction: Reduction,
    /// The number of a level, its subchunk shape and its shard shape, for each level with shapes of its own.
    pub(super) shapes: Vec<(usize, Vec<u64>, Vec<u64>)>,
    pub(super) name: Option<String>,
    pub(super) omero: Option<serde_json::Value>,
    pub(super) on_progress: Option<OnProgress>,
}

type OnProgress = Arc<dyn Fn(usize, &Progress) + Send + Sync>;

impl fmt::Debug for AllLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllLevels")
            .field("axes", &self.axes)
            .field("levels", &self.levels)
            .field("reduction", &self.reduction)
            .finish_non_exhaustive()
    }
}

impl<TStorage> MultiscaleBuilder<TStorage>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
{
    /// Sets the axes, in the order of the array's axes. Default: the axes in the stored description of the
    /// image; without one, axes by the array's dimension names, if each is `t`, `time`, `c`, `channel`, `z`,
    /// `y` or `x`.
    ///
    /// [OME-Zarr](https://ngff.openmicroscopy.org/0.5/#axes-md) allows two to five axes: time, then
    /// channels or another type, then two or three of space.
    pub fn with_axes(mut self, axes: impl IntoIterator<Item = Axis>) -> Self {
        self.target.axes = Some(axes.into_iter().collect());
        self
    }

    /// Sets the number of levels, including level 0: 1 to 64. Default: enough levels that one subchunk covers
    /// a slice of the last level along the axes that are halved.
    pub fn with_levels(mut self, levels: usize) -> Self {
        self.target.levels = Some(levels);
        self
    }

    /// Sets how a window of a level becomes one element of the level below. Default:
    /// [`Reduction::Mean`]. Use [`Reduction::Mode`] for labels.
    pub fn with_reduction(mut self, reduction: Reduction) -> Self {
        self.target.reduction = reduction;
        self
    }

    /// Sets the shapes of the subchunks and of the shards of a level, from 1 on, in elements. Default:
    /// the shapes of level 0, clipped to the extents of the level.
    pub fn with_level_shapes(
        mut self,
        level: usize,
        subchunk: impl Into<Vec<u64>>,
        shard: impl Into<Vec<u64>>,
    ) -> Self {
        self.target
            .shapes
            .push((level, subchunk.into(), shard.into()));
        self
    }

    /// Sets the name of the image in its metadata. Default: the name in the stored metadata, or none.
    pub fn with_name(mut self, name: &str) -> Self {
        self.target.name = Some(name.to_owned());
        self
    }

    /// Sets the [`omero`](https://ngff.openmicroscopy.org/0.5/#omero-md) metadata: how viewers show the
    /// channels. Default: the stored `omero` metadata, or none.
    pub fn with_omero(mut self, omero: serde_json::Value) -> Self {
        self.target.omero = Some(omero);
        self
    }

    /// Sets a function to call with the number of a level whenever a shard or the metadata of this level was
    /// stored. Default: none.
    ///
    /// The function runs on threads of the writers, one at a time for each level, and these threads wait for
    /// it.
    pub fn with_progress_callback(
        mut self,
        callback: impl Fn(usize, &Progress) + Send + Sync + 'static,
    ) -> Self {
        self.target.on_progress = Some(Arc::new(callback));
        self
    }

    /// Returns the most memory that the buffers of all levels would take if the writer is built now, beside
    /// the writers that are open. Allocates none of them; it may start CUDA.
    ///
    /// The host memory beyond [`memory_reserved`](Self::memory_reserved) is lent, when the open writers leave
    /// any.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build), without the errors of the store while it is written.
    pub fn memory_estimate(&self) -> Result<MemoryEstimate, WriterError> {
        let mut plan = self.plan()?;
        self.plan_reductions(&mut plan);
        self.set_starts(&mut plan)?;
        let mut memory = plan.kept_memory();
        for level in 0..plan.arrays.len() {
            let of_level = self.writer(&plan, level).memory_estimate();
            memory = sum(memory, plan.of_level(level, of_level)?);
        }
        Ok(memory)
    }

    /// Returns the bytes of host memory that a writer reserves when it is built now: the smallest buffers of
    /// all levels.
    ///
    /// # Errors
    /// The errors of [`memory_estimate`](Self::memory_estimate).
    pub fn memory_reserved(&self) -> Result<usize, WriterError> {
        let mut plan = self.plan()?;
        self.plan_reductions(&mut plan);
        self.reserved(&plan, 0)
    }

    /// Returns the bytes of host memory that the levels from `first` on reserve.
    fn reserved(&self, plan: &Plan<TStorage>, first: usize) -> Result<usize, WriterError> {
        (first..plan.arrays.len()).try_fold(plan.kept, |sum, level| {
            let of_level = self.writer(plan, level).memory_reserved();
            let of_level = cascade::of_level(level, plan.of_level(level, of_level));
            Ok(of_level?.saturating_add(sum))
        })
    }

    /// Reserves the smallest buffers of the levels from `first` on.
    ///
    /// # Errors
    /// [`WriterError::Memory`] if the buffers do not fit beside those of the other open writers.
    pub(super) fn reserve(
        &self,
        plan: &mut Plan<TStorage>,
        first: usize,
    ) -> Result<Reservation, WriterError> {
        let limit = plan.budget.host_memory();
        loop {
            let bytes = self.reserved(plan, first)?;
            match Reservation::take(bytes, limit) {
                Ok(reservation) => return Ok(reservation),
                Err(reserved) if reserved == plan.account.reserved => {
                    return Err(plan.account.refuses(bytes, limit));
                }
                Err(_) => {}
            }
            // Another writer was built meanwhile, and has reserved memory: the next plan finds less free
            // memory.
            plan.account = Account::now(limit);
            plan.epochs = self.writer(plan, 0).planned_epochs().ok();
        }
    }

    /// Plans which levels a device makes: each from the batches of the level above.
    fn plan_reductions(&self, plan: &mut Plan<TStorage>) {
        for level in 0..plan.reducers.len() {
            // If the level has no plan, its writer reports the error later.
            let Ok((above, true)) = self.writer(plan, level).stream_on() else {
                return;
            };
            plan.reduced.push(ReducedFrom {
                reducer: plan.reducers[level].clone(),
                slices: plan.levels[level + 1].window(),
                above,
            });
        }
    }

    /// Returns the arrays of all levels, from level 0 on, as the writer writes them. Each has as many slices
    /// as are stored; an array that is not stored has none. Stores nothing.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build), without the errors of the store while it is written.
    pub fn levels(&self) -> Result<Vec<Array<TStorage>>, WriterError> {
        Ok(self.plan()?.arrays)
    }

    /// Builds the writer. Stores the metadata of the image and of all levels that are not stored yet. Reads
    /// the stored slices from which lower levels lack slices.
    ///
    /// Reading takes the memory of up to three blocks of slices, each of the extent of a subchunk,
    /// besides the buffers of the writer.
    ///
    /// # Errors
    /// [`WriterError::Pyramid`] if the array cannot have these levels, if OME-Zarr does not allow the image,
    /// or if another array is stored in the place of a level.
    /// - [`WriterError::Read`] if stored slices cannot be read.
    /// - The errors of [`ArrayWriterBuilder::build`], among them [`WriterError::Start`] if level 0 does not end
    ///   at the border of a shard, and no [start](Self::with_start) is given.
    pub fn build(&self) -> Result<MultiscaleWriter, WriterError> {
        let mut plan = self.plan_alone(0)?;
        self.plan_reductions(&mut plan);
        let mut reservation = self.reserve(&mut plan, 0)?;
        let stored = plan.arrays[0].with_storage(plan.arrays[0].storage());
        let starts = self.set_starts(&mut plan)?;
        let keeps_until_first = starts.ends[0] < stored.shape()[0];
        let cuts = Arc::new(Cuts::default());
        let cutting = |level: usize, kept| Cutting {
            cuts: cuts.clone(),
            kept,
            end: starts.ends[level],
        };
        let mut top = self.writer(&plan, 0);
        top.target.level.cutting = Some(cutting(0, starts.first));
        top.target.level.read_back = starts.read_back;
        let mut top = plan.of_level(0, top.build_stream())?;
        self.erase_leftovers(&plan)?;
        // A shard of a level is kept if its windows have only slices of the level above that stay.
        let kept = |level: usize| plan.length(level - 1) / plan.levels[level].factors[0];
        let mut lower = self.cascade(&plan, &|level| cutting(level, kept(level)))?;
        self.describe_levels(&plan, &cuts, usize::from(keeps_until_first))?;
        feed::feed(&plan, &mut lower, &Cancel::new())?;
        cascade::hold(&mut top, &mut lower.levels);
        let writers = std::iter::once(&top).chain(lower.levels.iter().map(|lower| &lower.writer));
        let memory = writers.fold(plan.kept_memory(), |memory, writer| {
            sum(memory, writer.memory)
        });
        let reserved = lower.reserved() + plan.kept + top.reserved;
        plan.extend(&mut reservation, reserved)?;
        let is_within = keeps_until_first.then_some(cuts);
        let note = self
            .source(&plan)
            .map(|source| (source, self.noting(&plan)));
        let mut image = Image::new(top, lower, reservation, is_within, note);
        read_back::read_back(&stored, self.settings.codec_options, &mut image)?;
        let (after, limit) = (self.settings.flush_after, self.settings.drop_limit);
        let writer = MultiscaleWriter::new(image, memory, after, limit);
        writer.map_err(|error| WriterError::no_thread("store shards in pauses", &error))
    }

    /// Makes the writers of the levels below level 0. Each cuts its stored array off where it begins, by the
    /// cuts that `cutting` returns for the level.
    pub(super) fn cascade(
        &self,
        plan: &Plan<TStorage>,
        cutting: &dyn Fn(usize) -> Cutting,
    ) -> Result<Cascade, WriterError> {
        cascade_of(plan, &|level| {
            let mut writer = self.writer(plan, level);
            writer.target.level.cutting = Some(cutting(level));
            writer
        })
    }

    /// Stores the description of the image. If the stored levels were made in another way, or parts of them
    /// may be missing, they are cut first, because the new description no longer says so. The first `left` of
    /// the arrays to be cut are not cut.
    pub(super) fn describe_levels(
        &self,
        plan: &Plan<TStorage>,
        cuts: &Cuts,
        left: usize,
    ) -> Result<(), WriterError> {
        if plan.described.in_parts || plan.described.difference(&plan.describes()).is_some() {
            let made = cuts.make(left);
            made.map_err(|source| {
                WriterError::Array(Error::Storage {
                    doing: "cut the levels of the image before they are described anew:",
                    key: meta_key_v3(plan.group.path()),
                    source,
                })
            })?;
        }
        self.describe(plan)
    }

    /// Makes the writers of the levels below level 0, for the windows that begin with the `slices` of level
    /// 0.
    pub(super) fn cascade_from(
        &self,
        plan: &Plan<TStorage>,
        slices: &Range<u64>,
    ) -> Result<Cascade, WriterError> {
        let starts = levels::lengths(&plan.levels, slices.start);
        cascade_of(plan, &|level| {
            self.writer(plan, level).with_start(starts[level])
        })
    }

    pub(super) fn writer(
        &self,
        plan: &Plan<TStorage>,
        level: usize,
    ) -> ArrayWriterBuilder<TStorage> {
        let reduced = level
            .checked_sub(1)
            .and_then(|above| plan.reduced.get(above));
        let mut settings = self.settings.clone();
        settings.start = None;
        settings.epochs_per_batch = settings.epochs_per_batch.filter(|_| level == 0);
        settings.store_threads = (settings.store_threads >> level.min(63)).max(1);
        let array = &plan.arrays[level];
        let mut builder = ArrayWriterBuilder {
            settings,
            ..ArrayWriterBuilder::new(array)
        };
        builder.target.level = OneLevel {
            cutting: None,
            read_back: 0,
            part: plan.part,
            lease: plan.leases.get(level).cloned().flatten(),
            most_epochs: plan.epochs,
            reduced_from: reduced.cloned(),
            account: Some(plan.account_of(level)),
            waiting: Some(plan.waiting.clone()),
        };
        match self.target.on_progress.clone() {
            Some(callback) => {
                builder.with_progress_callback(move |progress| callback(level, progress))
            }
            None => builder,
        }
    }
}

/// Returns the levels below level 0, with the writers that `writer` builds for them.
fn cascade_of<TStorage>(
    plan: &Plan<TStorage>,
    writer: &dyn Fn(usize) -> ArrayWriterBuilder<TStorage>,
) -> Result<Cascade, WriterError>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
{
    let mut lower = Cascade::default();
    for (number, reducer) in plan.reducers.iter().enumerate() {
        let writer = plan.of_level(number + 1, writer(number + 1).build_stream());
        let writer = at_level(number, writer)?;
        let window = plan.levels[number + 1].window();
        lower
            .levels
            .push(Lower::new(writer, reducer.clone(), window, plan.threads));
    }
    Ok(lower)
}

fn sum(a: MemoryEstimate, b: MemoryEstimate) -> MemoryEstimate {
    MemoryEstimate {
        host: a.host + b.host,
        pinned: a.pinned + b.pinned,
        device: a.device + b.device,
    }
}

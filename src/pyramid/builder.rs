//! The settings of a writer of all levels, and how it is built.

use std::fmt;
use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::Range;
use std::sync::Arc;

use zarrs::array::{Array, DataType};
use zarrs::group::{Group, GroupBuilder, GroupCreateError};
use zarrs::metadata::GroupMetadata;
use zarrs::node::meta_key_v3;
use zarrs::plugin::ZarrVersion;
use zarrs_storage::ReadableWritableStorageTraits;

use super::Reduction;
use super::axis::Axis;
use super::cascade::{self, Cascade, Lower, at_level};
use super::image::Image;
use super::levels::{self, Level};
use super::ome::{Described, Description};
use super::plan::Plan;
use super::{MultiscaleWriter, feed};
use crate::codec::CudaShardingCodec;
use crate::codec::find;
use crate::error::Error;
use crate::metrics::MemoryEstimate;
use crate::reader::Cancel;
use crate::store::array_lease::{self, Work};
use crate::store::lease::Held;
use crate::writer::builder::OneLevel;
use crate::writer::cuts::{Cuts, Cutting};
use crate::writer::differs::differs;
use crate::writer::plan::Account;
use crate::writer::settings::WriterBuilder;
use crate::writer::waiting::Waiting;
use crate::writer::{ArrayWriterBuilder, Progress, WriterError};
use zarrs_cuda_engine::contract::stream::ReducedFrom;
use zarrs_cuda_engine::process::account::Reservation;
use zarrs_cuda_engine::reduce::{Elements, Reducer};

/// Builds a [`MultiscaleWriter`]: see [`MultiscaleWriter::builder`].
pub type MultiscaleBuilder<TStorage> = WriterBuilder<TStorage, AllLevels>;

/// The settings of a writer of an image that a writer of one array does not have.
#[derive(Default)]
pub struct AllLevels {
    axes: Option<Vec<Axis>>,
    levels: Option<usize>,
    reduction: Reduction,
    /// Subchunks and shards of some levels.
    shapes: Vec<(usize, Vec<u64>, Vec<u64>)>,
    name: Option<String>,
    omero: Option<serde_json::Value>,
    on_progress: Option<OnProgress>,
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
    /// Sets the axes, in the order of the array's. Default: the axes of the stored description of the image,
    /// or else axes by the array's dimension names, if each is `t`, `time`, `c`, `channel`, `z`, `y` or `x`.
    ///
    /// [OME-Zarr](https://ngff.openmicroscopy.org/0.5/#axes-md) allows two to five axes: time, then
    /// channels or another type, then two or three of space.
    pub fn with_axes(mut self, axes: impl IntoIterator<Item = Axis>) -> Self {
        self.target.axes = Some(axes.into_iter().collect());
        self
    }

    /// Sets how many levels there are, with level 0: 1 to 64. Default: as many as it takes until one
    /// subchunk covers a slice of the last level along the axes that are halved.
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

    /// Sets the name of the image in its metadata. Default: the name that it has there, or none.
    pub fn with_name(mut self, name: &str) -> Self {
        self.target.name = Some(name.to_owned());
        self
    }

    /// Sets the [`omero`](https://ngff.openmicroscopy.org/0.5/#omero-md) metadata: how viewers show the
    /// channels. Default: the member that is stored, or none.
    pub fn with_omero(mut self, omero: serde_json::Value) -> Self {
        self.target.omero = Some(omero);
        self
    }

    /// Sets a function to call whenever a shard of a level was stored, or its metadata: with the number
    /// of the level. Default: none.
    ///
    /// It runs on threads of the writers, one at a time for each level, and they wait for it.
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
    /// As for [`build`](Self::build), without the errors of the store while it is written.
    pub fn memory_estimate(&self) -> Result<MemoryEstimate, WriterError> {
        let mut plan = self.plan()?;
        self.plan_reductions(&mut plan);
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
    /// As for [`memory_estimate`](Self::memory_estimate).
    pub fn memory_reserved(&self) -> Result<usize, WriterError> {
        let mut plan = self.plan()?;
        self.plan_reductions(&mut plan);
        self.reserved(&plan, 0)
    }

    /// The bytes that the levels from `first` on reserve.
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
    /// [`WriterError::Memory`] if they do not fit beside those of the other open writers.
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
            // Another writer was built meanwhile: the next plan finds less memory.
            plan.account = Account::now(limit);
            plan.epochs = self.writer(plan, 0).planned_epochs().ok();
        }
    }

    /// Plans which levels a device makes of the batches of the level above.
    fn plan_reductions(&self, plan: &mut Plan<TStorage>) {
        for level in 0..plan.reducers.len() {
            // Without a plan, the writer of the level says why.
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

    /// Returns the arrays of all levels, from level 0 on, as the writer writes them. Each has as many
    /// slices as are stored: none if it is not there. Stores nothing.
    ///
    /// # Errors
    /// As for [`build`](Self::build), without the errors of the store while it is written.
    pub fn levels(&self) -> Result<Vec<Array<TStorage>>, WriterError> {
        Ok(self.plan()?.arrays)
    }

    /// Builds the writer. Stores the metadata of the image and of all levels that are not there, and
    /// reads what the levels lack of the slices that are stored.
    ///
    /// Reading takes the memory of up to three blocks of slices, each of the extent of a subchunk,
    /// besides the buffers of the writer.
    ///
    /// # Errors
    /// - [`WriterError::Pyramid`] if the array has no such levels, if OME-Zarr does not allow the
    ///   image, or if a level is there and is another array.
    /// - [`WriterError::Read`] if stored slices cannot be read.
    /// - Otherwise as for [`ArrayWriterBuilder::build`]: [`WriterError::Start`] if level 0 does not end
    ///   at the border of a shard, and no [start](Self::with_start) is given.
    pub fn build(&self) -> Result<MultiscaleWriter, WriterError> {
        let mut plan = self.plan_alone(0)?;
        self.plan_reductions(&mut plan);
        let mut reservation = self.reserve(&mut plan, 0)?;
        let first = self.first_slice(&plan)?.unwrap_or(plan.length(0));
        let keeps_until_first = first < plan.length(0);
        let starts = levels::starts(&plan.levels, &plan.whole_lengths(), first);
        for (level, start) in starts.into_iter().enumerate() {
            plan.set_length(level, start)?;
        }
        let cuts = Arc::new(Cuts::default());
        let cutting = |kept| Cutting {
            cuts: cuts.clone(),
            kept,
        };
        let mut top = self.writer(&plan, 0);
        top.target.level.cutting = Some(cutting(first));
        let mut top = plan.of_level(0, top.build_stream())?;
        self.erase_leftovers(&plan)?;
        // The windows of the slices that stay.
        let kept = |level: usize| plan.length(level - 1) / plan.levels[level].factors[0];
        let mut lower = self.cascade(&plan, &|level| cutting(kept(level)))?;
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
        let image = Image::new(top, lower, reservation, is_within, note);
        let (after, limit) = (self.settings.flush_after, self.settings.drop_limit);
        let writer = MultiscaleWriter::new(image, memory, after, limit);
        writer.map_err(|error| WriterError::no_thread("store shards in pauses", &error))
    }

    /// The writers of the levels below level 0, which are cut off where these begin, as `cutting` says.
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

    /// Stores the description of the image. Levels that were made otherwise, or of which parts may be missing,
    /// are cut before, because the description says so no more; level 0, if it is one of the first arrays
    /// that are `left`, is not.
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

    /// The writers of the levels below level 0, for the windows that begin with `slices` of level 0.
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

    /// Plans the levels. Each array is as long as it is stored.
    ///
    /// # Errors
    /// As for [`build`](Self::build).
    pub(super) fn plan(&self) -> Result<Plan<TStorage>, WriterError> {
        let plan = self.plan_for(None)?;
        if self.settings.start != Some(0) && !plan.described.in_parts {
            self.check_settings(&plan, "make them again with `with_start(0)`")?;
        }
        Ok(plan)
    }

    /// Plans the levels with the leases of the arrays from level `first` on: no other process writes them.
    ///
    /// # Errors
    /// As for [`build`](Self::build).
    pub(super) fn plan_alone(&self, first: usize) -> Result<Plan<TStorage>, WriterError> {
        let plan = self.plan()?;
        if first == 0 && self.settings.start.is_none() {
            // A lease of this writer would be taken for one that a killed writer has left.
            self.writer(&plan, 0).check_begun()?;
        }
        let leases = self.leases(&plan, first, Work::Alone)?;
        if leases.iter().all(Option::is_none) {
            return Ok(plan);
        }
        // Another process may have changed the arrays until the leases were there.
        Ok(Plan {
            leases,
            ..self.plan()?
        })
    }

    /// Takes the leases for `work` on the arrays from level `first` on.
    pub(super) fn leases(
        &self,
        plan: &Plan<TStorage>,
        first: usize,
        work: Work,
    ) -> Result<Vec<Option<Held>>, WriterError> {
        let leases: Vec<_> = (0..plan.arrays.len())
            .map(|level| self.writer(plan, level).leases().filter(|_| level >= first))
            .collect();
        let of_level = |(level, taken): (usize, Result<_, _>)| {
            let array = &plan.arrays[level];
            cascade::of_level(
                level,
                taken.map_err(|error| WriterError::no_lease(array.path(), error)),
            )
        };
        let taken = array_lease::take_each(&leases, work).into_iter();
        taken.enumerate().map(of_level).collect()
    }

    /// Checks that the levels that are there were made with the same settings.
    pub(super) fn check_settings(
        &self,
        plan: &Plan<TStorage>,
        or: &str,
    ) -> Result<(), WriterError> {
        let is_begun = (1..plan.levels.len()).any(|level| plan.length(level) > 0);
        let difference = plan.described.difference(&plan.describes());
        match difference.filter(|_| is_begun) {
            Some(difference) => Err(self.refused(format!(
                "its levels are there, and were made with {difference}: use the same settings, or {or}"
            ))),
            None => Ok(()),
        }
    }

    /// Plans the levels for a process that writes a part of them, while others write the others, or for
    /// the only one.
    pub(super) fn plan_for(&self, part: Option<u64>) -> Result<Plan<TStorage>, WriterError> {
        let refused = |reason| self.refused(reason);
        let codec = find::of_array(&self.array)?;
        let name = self.names(1).map_err(refused)?.swap_remove(0);
        let (mut group, described) = self.stored_group(&name).map_err(refused)?;
        let axes = self.axes(&described).map_err(refused)?;
        let factors: Vec<u64> = axes.iter().map(|axis| axis.factor).collect();
        let top = self.top(&codec).map_err(refused)?;
        let mut levels = levels::levels(&top, &factors, self.target.levels).map_err(refused)?;
        for (level, subchunk, shard) in &self.target.shapes {
            let last = levels.len() - 1;
            let place = levels.get_mut(*level).filter(|_| *level > 0);
            let place = place.ok_or_else(|| {
                refused(format!("shapes are given for level {level}: they can be given for levels 1 to {last}, and level 0 has its own"))
            })?;
            place.subchunk.clone_from(subchunk);
            place.shard.clone_from(shard);
        }
        let names = self.names(levels.len()).map_err(refused)?;
        let (elements, reducers) = self.reducers(&levels).map_err(refused)?;
        let description = Description {
            axes: &axes,
            reduction: self.target.reduction,
            names: &names,
            name: self.target.name.as_deref().or(described.name.as_deref()),
            omero: self.target.omero.as_ref(),
            in_parts: part.is_some(),
        };
        let attributes = description.add_to(group.attributes().clone());
        *group.attributes_mut() = attributes.map_err(refused)?;

        // Each level has the part of the budget that its epochs have of the bytes of all.
        let weights: Vec<usize> = levels
            .iter()
            .map(|level| level.epoch_bytes(elements.size()))
            .collect();
        let slice = reducers.first().map_or(0, Reducer::bytes);
        let kept: usize = std::iter::zip(&reducers, &levels[1..])
            .map(|(reducer, level)| Lower::bytes(reducer, level.window()))
            .sum();
        let budget = self.settings.limit(codec.options());
        let mut plan = Plan {
            arrays: Vec::new(),
            reducers,
            kept: kept + slice,
            weights,
            epochs: None,
            reduced: Vec::new(),
            account: Account::now(budget.host_memory()),
            budget,
            threads: NonZeroUsize::new(self.settings.codec_options.concurrent_target())
                .unwrap_or(NonZeroUsize::MIN),
            group,
            described,
            part,
            leases: Vec::new(),
            waiting: Arc::new(Waiting::new(self.settings.interrupt.clone())),
            levels,
        };
        for (number, name) in names.iter().enumerate() {
            let array = self.array_of(&codec, &plan, &axes, number, name);
            let array = array.map_err(&refused)?;
            let length = self.stored_length(&array)?;
            let is_level = |described: &Described| described.names.contains(name);
            if number > 0 && length > 0 && !is_level(&plan.described) {
                // Another process may have stored the description meanwhile: it does so before the level has slices.
                let now = self.stored_group(&names[0]).map_err(&refused)?.1;
                if !is_level(&now) {
                    return Err(refused(format!(
                        "{} is there, and the description of the image does not name it as a level: move or erase it, or give the image a group of its own",
                        array.path()
                    )));
                }
            }
            plan.arrays.push(array);
            plan.set_length(number, length)?;
        }
        // Without a plan, the writer of level 0 says why.
        plan.epochs = self.writer(&plan, 0).planned_epochs().ok();
        Ok(plan)
    }

    pub(super) fn refused(&self, reason: String) -> WriterError {
        WriterError::Pyramid {
            path: self.array.path().to_string(),
            reason,
        }
    }

    /// The first slice of level 0 to write, or to make the levels of again, if one was given.
    pub(super) fn first_slice(&self, plan: &Plan<TStorage>) -> Result<Option<u64>, WriterError> {
        let stored = plan.length(0);
        match self.settings.start {
            Some(start) if start > stored => Err(self.refused(format!(
                "its first {stored} slices are stored, and slice {start} would be the next one: begin at {stored} or before"
            ))),
            start => Ok(start),
        }
    }

    fn axes(&self, described: &Described) -> Result<Vec<Axis>, String> {
        let rank = self.array.dimensionality();
        let names = self.array.dimension_names().as_ref();
        let axes = match self.target.axes.as_ref().or(described.axes.as_ref()) {
            Some(axes) => axes.clone(),
            None => names
                .and_then(|names| {
                    let axis = |name: &Option<String>| Axis::by_name(name.as_deref()?);
                    names.iter().map(axis).collect()
                })
                .ok_or(
                    "its dimension names do not say what its axes are: give them by `with_axes`",
                )?,
        };
        if axes.len() != rank {
            return Err(format!("it has {rank} axes, and {} were given", axes.len()));
        }
        let differs = |(axis, name): (&Axis, &Option<String>)| {
            name.as_ref().is_some_and(|name| *name != axis.name)
        };
        let names = names.into_iter().flatten();
        if let Some((axis, name)) = axes.iter().zip(names).find(|pair| differs(*pair)) {
            return Err(format!(
                "its dimension names and the axes differ: {name:?} and {:?}",
                axis.name
            ));
        }
        Ok(axes)
    }

    /// Level 0.
    fn top(&self, codec: &CudaShardingCodec) -> Result<Level, String> {
        let Some(inner) = self.array.shape().get(1..) else {
            return Err("it has no axis to append along".to_owned());
        };
        if let Some(axis) = inner.iter().position(|extent| *extent == 0) {
            return Err(format!(
                "it has no elements along axis {}, so its slices are empty",
                axis + 1
            ));
        }
        let rank = self.array.dimensionality();
        let shard = self.array.chunk_shape(&vec![0; rank]);
        let shard = shard.map_err(|error| error.to_string())?;
        let extents = |shape: &[NonZeroU64]| shape.iter().map(|extent| extent.get()).collect();
        Ok(Level {
            inner: inner.to_vec(),
            subchunk: extents(codec.subchunk_shape()),
            shard: extents(&shard),
            factors: vec![1; rank],
        })
    }

    /// The names of the levels' arrays: the name of level 0, and those that count on from there.
    fn names(&self, levels: usize) -> Result<Vec<String>, String> {
        let path = self.array.path().as_str();
        let (_, name) = path.rsplit_once('/').unwrap_or(("", path));
        if name.is_empty() {
            return Err("it is the root of its store, and no group has it: an image is a group with an array for each level, such as /image/0".to_owned());
        }
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = name[stem.len()..].parse::<usize>().ok();
        Ok((0..levels)
            .map(|level| match (level, number) {
                (0, _) => name.to_owned(),
                (_, Some(number)) => format!("{stem}{}", number.saturating_add(level)),
                (_, None) => format!("{name}_{level}"),
            })
            .collect())
    }

    fn reducers(&self, levels: &[Level]) -> Result<(Elements, Vec<Reducer>), String> {
        let data_type = self.array.data_type();
        let elements = elements_of(data_type)
            .ok_or_else(|| format!("elements of {data_type} have no fixed size of 1, 2, 4, 8 or 16 bytes, and cannot be reduced"))?;
        let reducer = |pair: &[Level]| {
            let shape: Option<Vec<usize>> = pair[0]
                .inner
                .iter()
                .map(|e| usize::try_from(*e).ok())
                .collect();
            let shape = shape.ok_or("its slices are larger than this machine can address")?;
            let factors: Vec<usize> = pair[1].factors[1..]
                .iter()
                .map(|factor| if *factor == 2 { 2 } else { 1 })
                .collect();
            let reducer = Reducer::new(
                self.target.reduction.of_engine(),
                elements,
                &shape,
                &factors,
            );
            reducer
                .map_err(|reason| format!("elements of {data_type} cannot be reduced so: {reason}"))
        };
        let reducers: Result<Vec<_>, String> = levels.windows(2).map(reducer).collect();
        Ok((elements, reducers?))
    }

    /// The group of the image, which may not be stored, and what it says of the image whose level 0 has the
    /// name `name`.
    fn stored_group(&self, name: &str) -> Result<(Group<TStorage>, Described), String> {
        let path = self.array.path().as_str();
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        let parent = if parent.is_empty() { "/" } else { parent };
        let storage = self.array.storage();
        let group = match Group::open(storage.clone(), parent) {
            Ok(group) if matches!(group.metadata(), GroupMetadata::V2(_)) => {
                return Err(format!(
                    "the group {parent} is one of Zarr v2, and an image is one of Zarr v3"
                ));
            }
            Ok(group) => group,
            Err(GroupCreateError::MissingMetadata) => GroupBuilder::new()
                .build(storage, parent)
                .map_err(|error| error.to_string())?,
            // It is left alone, because nothing that cannot be read is replaced.
            Err(error) => return Err(format!("the group {parent} cannot be read: {error}")),
        };
        let described = Described::of(group.attributes(), name);
        Ok((group, described))
    }

    /// The array of a level. Its first extent is the given one's.
    fn array_of(
        &self,
        codec: &CudaShardingCodec,
        plan: &Plan<TStorage>,
        axes: &[Axis],
        number: usize,
        name: &str,
    ) -> Result<Array<TStorage>, String> {
        let level = &plan.levels[number];
        let nonzero = |shape: &[u64], of: &str| -> Result<Vec<NonZeroU64>, String> {
            let extents = shape.iter().map(|extent| NonZeroU64::new(*extent));
            let extents: Option<Vec<_>> = extents.collect();
            extents.ok_or_else(|| format!("{of} of level {number} have no elements: {shape:?}"))
        };
        nonzero(&level.shard, "shards")?;
        let codec = codec.with_subchunk_shape(nonzero(&level.subchunk, "subchunks")?);
        let codec = codec.map_err(|error| error.to_string())?;
        let codec = codec.with_options(plan.options_of(number));
        let path = self.array.path().as_str();
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        let first = self.array.shape().first().copied().unwrap_or(0);
        let shape: Vec<u64> = std::iter::once(first)
            .chain(level.inner.iter().copied())
            .collect();
        let mut builder = self.array.builder();
        if number > 0 {
            // Attributes that an application has set on level 0 are not true of the other levels.
            builder.attributes(serde_json::Map::new());
            builder
                .shape(shape)
                .chunk_grid_metadata(level.shard.clone());
        }
        builder
            .array_to_bytes_codec(Arc::new(codec))
            .dimension_names(Some(axes.iter().map(|axis| axis.name.clone())))
            .build(self.array.storage(), &format!("{parent}/{name}"))
            .map_err(|error| format!("level {number} cannot be such an array: {error}"))
    }

    /// How many slices a level has in the store: 0 if it is not there.
    ///
    /// # Errors
    /// The store's, or that the stored array is another one.
    fn stored_length(&self, array: &Array<TStorage>) -> Result<u64, WriterError> {
        let Some(length) = ArrayWriterBuilder::new(array).stored_length()? else {
            return Ok(0);
        };
        let (path, refused) = (array.path(), |reason| self.refused(reason));
        let stored = Array::open(array.storage(), path.as_str());
        let stored = stored
            .map_err(|error| refused(format!("{path} is there, and cannot be opened: {error}")))?;
        // Another program may have spelled out less of level 0 than is built here.
        if path == self.array.path() && differs(&stored, &self.array).is_none() {
            return Ok(length);
        }
        match differs(&stored, array) {
            Some(member) if path == self.array.path() => Err(refused(format!(
                "{path} is there, and has another {member}: open the array that is stored"
            ))),
            Some(member) => Err(refused(format!(
                "{path} is there, and has another {member}: erase it, or use the settings that it was written with"
            ))),
            None => Ok(length),
        }
    }
}

/// The levels below level 0, with the writers that `writer` has for them.
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

/// The kind of elements of a data type; `None` if they cannot be reduced.
fn elements_of(data_type: &DataType) -> Option<Elements> {
    let name = zarrs::plugin::ExtensionName::name(data_type, ZarrVersion::V3);
    Some(match name.as_deref().unwrap_or_default() {
        "bool" => Elements::Bool,
        "int8" => Elements::Int8,
        "int16" => Elements::Int16,
        "int32" => Elements::Int32,
        "int64" => Elements::Int64,
        "uint8" => Elements::UInt8,
        "uint16" => Elements::UInt16,
        "uint32" => Elements::UInt32,
        "uint64" => Elements::UInt64,
        "bfloat16" => Elements::BFloat16,
        "float16" => Elements::Float16,
        "float32" => Elements::Float32,
        "float64" => Elements::Float64,
        "complex64" | "complex_float32" => Elements::Complex64,
        "complex128" | "complex_float64" => Elements::Complex128,
        _ => {
            let size = data_type.fixed_size()?;
            matches!(size, 1 | 2 | 4 | 8 | 16).then_some(Elements::Bytes(size))?
        }
    })
}

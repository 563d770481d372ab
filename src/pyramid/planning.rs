//! Plans the levels of an image: their arrays, and how each is made from the level above.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;

use zarrs::array::{Array, DataType};
use zarrs::group::{Group, GroupBuilder, GroupCreateError};
use zarrs::metadata::GroupMetadata;
use zarrs::plugin::ZarrVersion;
use zarrs_storage::ReadableWritableStorageTraits;

use super::axis::Axis;
use super::builder::MultiscaleBuilder;
use super::cascade::{self, Lower};
use super::levels::{self, Level};
use super::ome::{Described, Description};
use super::plan::Plan;
use crate::codec::CudaShardingCodec;
use crate::codec::find;
use crate::metadata::same_array::differs;
use crate::store::array_lease::{self, Work};
use crate::store::lease::Held;
use crate::writer::plan::Account;
use crate::writer::start::Start;
use crate::writer::{ArrayWriterBuilder, WriterError};
use zarrs_cuda_engine::reduce::{Elements, Reducer};

/// The slices from which the levels of an image are written.
pub(super) struct Starts {
    /// The first slice of level 0 that is written.
    pub(super) first: u64,
    /// The number of stored slices of level 0 from `first` on that are read back and written again.
    pub(super) read_back: u64,
    /// The number of slices to which each level is cut, before a shard is replaced.
    pub(super) ends: Vec<u64>,
}

impl<TStorage> MultiscaleBuilder<TStorage>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
{
    /// Plans the levels. Each array has as many slices as are stored.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build).
    pub(super) fn plan(&self) -> Result<Plan<TStorage>, WriterError> {
        let plan = self.plan_for(None)?;
        if self.settings.start != Some(Start::Slice(0)) && !plan.described.in_parts {
            self.check_settings(&plan, "make them again with `with_start(0)`")?;
        }
        Ok(plan)
    }

    /// Plans the levels, and takes the leases of the arrays from level `first` on, so that no other process
    /// writes them.
    ///
    /// # Errors
    /// The errors of [`build`](Self::build).
    pub(super) fn plan_alone(&self, first: usize) -> Result<Plan<TStorage>, WriterError> {
        let plan = self.plan()?;
        let takes_end = !matches!(self.settings.start, Some(Start::Slice(_)));
        if first == 0 && takes_end {
            // This check comes before the leases: it would take a lease of this writer for a leftover of a
            // killed writer.
            self.writer(&plan, 0).check_begun()?;
        }
        let leases = self.leases(&plan, first, Work::Alone)?;
        if leases.iter().all(Option::is_none) {
            return Ok(plan);
        }
        // The plan is made again, because another process may have changed the arrays before the leases were
        // taken.
        Ok(Plan {
            leases,
            ..self.plan()?
        })
    }

    /// Takes the leases for `work` on the arrays of the levels from `first` on.
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

    /// Checks that the stored levels were made with the same settings.
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

    /// Plans the levels for a process that writes a `part` of them, or for the only process that writes them
    /// if `part` is `None`.
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

        // The share of a level in the budgets is in proportion to the bytes of its epochs.
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
            waiting: self.settings.new_waiting(),
            levels,
        };
        for (number, name) in names.iter().enumerate() {
            let array = self.array_of(&codec, &plan, &axes, number, name);
            let array = array.map_err(&refused)?;
            let length = self.stored_length(&array)?;
            let is_level = |described: &Described| described.names.contains(name);
            if number > 0 && length > 0 && !is_level(&plan.described) {
                // The description is read again: another process may have stored it meanwhile, as it does
                // before the level has slices.
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
        // If level 0 has no plan, its writer reports the error later.
        plan.epochs = self.writer(&plan, 0).planned_epochs().ok();
        Ok(plan)
    }

    pub(super) fn refused(&self, reason: String) -> WriterError {
        WriterError::Pyramid {
            path: self.array.path().to_string(),
            reason,
        }
    }

    /// Returns the slice that was given as the start: the first slice of level 0 to write, or from which the
    /// lower levels are made again. `None` if the writer goes on at the end.
    pub(super) fn first_slice(&self, plan: &Plan<TStorage>) -> Result<Option<u64>, WriterError> {
        let stored = plan.length(0);
        match self.settings.start {
            Some(Start::Slice(start)) if start > stored => Err(self.refused(format!(
                "its first {stored} slices are stored, and slice {start} would be the next one: begin at {stored} or before"
            ))),
            Some(Start::Slice(start)) => Ok(Some(start)),
            Some(Start::Resume) | None => Ok(None),
        }
    }

    /// Gives the array of each level as many slices as are kept: the level is written from there on.
    pub(super) fn set_starts(&self, plan: &mut Plan<TStorage>) -> Result<Starts, WriterError> {
        let (end, stored) = (plan.length(0), plan.whole_lengths());
        let resumes = self.settings.start == Some(Start::Resume);
        let read_back = if resumes {
            end % plan.levels[0].shard_slices().max(1)
        } else {
            0
        };
        let first = self.first_slice(plan)?.unwrap_or(end - read_back);
        let starts = levels::starts(&plan.levels, &stored, first);
        for (level, start) in starts.iter().enumerate() {
            plan.set_length(level, *start)?;
        }
        let ends = if resumes {
            // Stored slices stay, except for the last slice of a level if its window was not whole.
            let whole = levels::whole_windows(&plan.levels, end);
            std::iter::zip(whole, stored)
                .map(|(whole, stored)| whole.min(stored))
                .collect()
        } else {
            starts
        };
        Ok(Starts {
            first,
            read_back,
            ends,
        })
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

    /// Returns the shapes of level 0.
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

    /// Returns the names of the levels' arrays: the name of level 0, and names that count on from the number
    /// at its end.
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

    /// Returns the group of the image, which may not be stored yet, and its description of the image whose
    /// level 0 has the name `name`.
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
            // The group is not replaced, because its metadata cannot be read.
            Err(error) => return Err(format!("the group {parent} cannot be read: {error}")),
        };
        let described = Described::of(group.attributes(), name);
        Ok((group, described))
    }

    /// Returns the array of a level, with the first extent of the array that was given.
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
            // The attributes that an application has set on level 0 may not hold for the other levels.
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

    /// Returns the number of slices that a level has in the store; 0 if it is not stored.
    ///
    /// # Errors
    /// The errors of the store, and that another array is stored in the place of the level.
    fn stored_length(&self, array: &Array<TStorage>) -> Result<u64, WriterError> {
        let Some(length) = ArrayWriterBuilder::new(array).stored_length()? else {
            return Ok(0);
        };
        let (path, refused) = (array.path(), |reason| self.refused(reason));
        let stored = Array::open(array.storage(), path.as_str());
        let stored = stored
            .map_err(|error| refused(format!("{path} is there, and cannot be opened: {error}")))?;
        // Another program may have left out members of level 0's metadata that this crate writes.
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

/// Returns the kind of elements of a data type; `None` if elements of this type cannot be reduced.
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

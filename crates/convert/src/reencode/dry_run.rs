//! Tells the work of a run, and writes nothing.

use std::collections::HashSet;
use std::num::NonZeroU64;
use std::sync::{Mutex, PoisonError};

use zarrs::array::ArraySubset;

use super::covered::Covered;
use super::in_parts::{Whole, as_planned, must_make_sense};
use super::lanes::Lanes;
use super::report::{ArrayWork, DryRun, PartWork, Work};
use super::resume::Stored;
use super::{Plan, Reencode, Shared, not_begun};
use crate::failure::Failure;
use crate::parts::element_bytes;
use crate::shared_run::{self, Part, PartStart};
use crate::watcher::{Step, Unit, Watcher};

/// Plans the run, and divides it into parts if it has any.
pub(super) fn run(settings: &Reencode, watcher: &dyn Watcher) -> Result<DryRun, Failure> {
    let chosen = settings.shared.and_then(Shared::part);
    if settings.shared.is_some() {
        must_make_sense(settings, chosen)?;
    }
    // Shards that are missing or damaged would be made again, if a run in parts has completed the output.
    let completed = if settings.resume {
        shared_run::completed(&settings.output)?
    } else {
        None
    };
    let planned = completed.map(|parts| as_planned(settings, parts));
    let planned = planned.as_ref().unwrap_or(settings);
    let of_plan = planned.shared.map_or(NonZeroU64::MIN, Shared::parts);
    let whole = Whole::of(planned, of_plan, watcher)?;
    let is_refused = whole.is_refused(settings);
    // A run without parts looks at OUT when it plans arrays.
    let is_complete = planned.shared.is_some() && !is_refused && whole.may_begin(planned)?;
    let covered = whole.all_covered()?;
    let (parts, starts) = if completed.is_some() {
        (NonZeroU64::MIN, Vec::new())
    } else {
        (of_plan, whole.division_of(&covered).starts)
    };
    let mut works = Vec::new();
    for number in 1..=parts.get() {
        works.push(PartWork {
            part: Part::new(number, parts.get())?,
            work: Work::default(),
            memory: 0,
        });
    }
    let mut arrays = Vec::new();
    for (array, (plan, covered)) in whole.plans().iter().zip(&covered).enumerate() {
        let memory = plan.shapes.parts.most_bytes();
        let kept = plan.kept(covered, completed.is_some())?;
        let mut sum = Work::default();
        for (position, _, region) in covered.regions() {
            if kept.contains(&position) {
                continue;
            }
            let work = plan.work(&region);
            sum.add(work);
            let shard = PartStart {
                array,
                shard: position,
            };
            let part = starts.partition_point(|start| *start <= shard);
            if let Some(part) = works.get_mut(part.saturating_sub(1)) {
                part.work.add(work);
                part.memory = part.memory.max(memory);
            }
        }
        arrays.push(ArrayWork {
            input: plan.job.input.clone(),
            shape: plan.shapes.array.clone(),
            data_type: plan.output.data_type().to_string(),
            shard: plan.shapes.shard.clone(),
            subchunk: plan.shapes.subchunk.clone(),
            work: sum,
            kept: kept.len() as u64,
            memory,
        });
    }
    works.retain(|work| chosen.is_none_or(|chosen| chosen == work.part));
    let (left_out, failures) = whole.left();
    let makes_none = arrays.iter().all(|array| array.work.shards == 0);
    Ok(DryRun {
        input: settings.input.clone(),
        output: settings.output.clone(),
        arrays,
        parts: works,
        left_out,
        failures,
        is_refused,
        is_complete: is_complete && (completed.is_none() || makes_none),
        resumes: settings.resume,
    })
}

impl Plan<'_> {
    /// Returns the positions of the stored shards of `covered` that the run keeps. `is_completed`: whether a run in parts
    /// has completed the output.
    fn kept(&self, covered: &Covered<'_>, is_completed: bool) -> Result<HashSet<u128>, Failure> {
        let Self {
            job, input, output, ..
        } = self;
        let stored = match &self.goes_on {
            _ if self.is_done || is_completed => Stored::of_shown(job, input, output)?,
            Some(goes_on) => Stored::of(job, input, output, goes_on.changes.as_ref())?,
            None => return Ok(HashSet::new()),
        };
        let total = u64::try_from(covered.len()).unwrap_or(u64::MAX);
        let step = Step::begin(
            job.watcher,
            "looking at what is stored",
            Unit::Things("shards"),
            total,
        );
        let kept = Mutex::new(HashSet::new());
        Lanes::run(covered.regions(), job.settings.threads, |lanes| {
            while let Some((position, indices, region)) = lanes.next() {
                if job.watcher.is_stopping() {
                    return Err(not_begun());
                }
                if stored.has(&indices, &region)? {
                    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                    kept.insert(position);
                }
                step.add(1);
            }
            Ok(())
        })?;
        Ok(kept.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the work on the shard with the elements `region`.
    fn work(&self, region: &ArraySubset) -> Work {
        let chunks = self.input.chunks_in_array_subset(region);
        let chunks = chunks.ok().flatten();
        let reads = chunks.map_or(0, |chunks| self.chunks.count_in(&chunks.to_ranges()));
        Work {
            shards: 1,
            bytes: region
                .num_elements()
                .saturating_mul(element_bytes(&self.output)),
            reads,
        }
    }
}

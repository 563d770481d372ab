//! Tells the work of a run, and writes nothing.

use std::num::NonZeroU64;

use zarrs::array::ArraySubset;

use super::in_parts::{Whole, must_make_sense};
use super::report::{ArrayWork, DryRun, PartWork, Work};
use super::{Plan, Reencode, Shared};
use crate::failure::Failure;
use crate::parts::element_bytes;
use crate::shared_run::{Part, PartStart};
use crate::watcher::Watcher;

/// Plans the run, and divides it into parts if it has any.
pub(super) fn run(settings: &Reencode, watcher: &dyn Watcher) -> Result<DryRun, Failure> {
    if settings.resume {
        return Err(Failure::usage(
            "the work that is left is not told: --dry-run excludes --resume",
        ));
    }
    let parts = settings.shared.map_or(NonZeroU64::MIN, Shared::parts);
    let chosen = settings.shared.and_then(Shared::part);
    if settings.shared.is_some() {
        must_make_sense(settings, chosen)?;
    }
    let whole = Whole::of(settings, parts, watcher)?;
    let is_refused = whole.is_refused(settings);
    // A run without parts looks at OUT when it plans arrays.
    let is_complete = settings.shared.is_some() && !is_refused && whole.may_begin(settings)?;
    let covered = whole.all_covered()?;
    let starts = whole.starts_of(&covered);
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
        let mut sum = Work::default();
        for (position, _, region) in covered.regions() {
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
            memory,
        });
    }
    works.retain(|work| chosen.is_none_or(|chosen| chosen == work.part));
    let (left_out, failures) = whole.left();
    Ok(DryRun {
        input: settings.input.clone(),
        output: settings.output.clone(),
        arrays,
        parts: works,
        left_out,
        failures,
        is_refused,
        is_complete,
    })
}

impl Plan<'_> {
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

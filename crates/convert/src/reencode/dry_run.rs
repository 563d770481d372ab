//! Tells the work of a run, and writes nothing.

use std::num::NonZeroU64;

use zarrs::array::ArraySubset;

use super::in_parts::Whole;
use super::target::Target;
use super::{Plan, Reencode, Shared};
use crate::failure::Failure;
use crate::open::Place;
use crate::parts::element_bytes;
use crate::shared_run::{Output, Part, PartStart};
use crate::watcher::Watcher;

/// The work of a run that was not made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DryRun {
    /// The place that would be read.
    pub input: Place,
    /// The place that would be written.
    pub output: Place,
    /// The arrays that would be written.
    pub arrays: Vec<ArrayWork>,
    /// The parts of the run; one if it has no parts.
    pub parts: Vec<PartWork>,
    /// The paths of arrays and groups that would be left out.
    pub left_out: Vec<String>,
    /// A failure for each array or group that cannot be re-encoded.
    pub failures: Vec<Failure>,
}

/// The work on one array.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ArrayWork {
    /// The array that would be read.
    pub input: Place,
    /// The shape of the array, in elements.
    pub shape: Vec<u64>,
    /// The name of the data type.
    pub data_type: String,
    /// The shape of a shard, in elements.
    pub shard: Vec<NonZeroU64>,
    /// The shape of a subchunk, in elements.
    pub subchunk: Vec<NonZeroU64>,
    /// The work on all shards.
    pub work: Work,
    /// The most bytes that buffers take.
    pub memory: u64,
}

/// The work of one part.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PartWork {
    /// The part.
    pub part: Part,
    /// The work on its shards.
    pub work: Work,
    /// The most bytes that buffers take.
    pub memory: u64,
}

/// An amount of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Work {
    /// The number of shards to make. A shard that has only the fill value is made and not stored.
    pub shards: u64,
    /// The number of bytes of the decoded elements. An element whose size differs counts as 32 bytes.
    pub bytes: u64,
    /// The number of reads of objects of the input. An object that several shards need is read for each.
    pub reads: u64,
}

impl Work {
    fn add(&mut self, other: Self) {
        self.shards = self.shards.saturating_add(other.shards);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.reads = self.reads.saturating_add(other.reads);
    }
}

/// Plans the run, and divides it into parts if it has any.
pub(super) fn run(settings: &Reencode, watcher: &dyn Watcher) -> Result<DryRun, Failure> {
    if settings.resume {
        return Err(Failure::usage(
            "the work that is left is not told: --dry-run excludes --resume",
        ));
    }
    let (parts, chosen) = match settings.shared {
        None => (NonZeroU64::MIN, None),
        Some(Shared::Prepare { parts }) => (parts, None),
        Some(Shared::Part(part)) => (part.of(), Some(part)),
    };
    let whole = Whole::of(settings, parts, watcher)?;
    if !settings.overwrite && !Target::new(&settings.output)?.is_in_parts()? {
        whole.must_be_free()?;
    }
    let starts = whole.starts()?;
    let mut works = Vec::new();
    for number in 1..=parts.get() {
        works.push(PartWork {
            part: Part::new(number, parts.get())?,
            work: Work::default(),
            memory: 0,
        });
    }
    let mut arrays = Vec::new();
    for (array, plan) in whole.plans().iter().enumerate() {
        let memory = plan.shapes.parts.most_bytes();
        let mut sum = Work::default();
        for (position, _, region) in whole.covered(array, &plan.output)?.regions() {
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

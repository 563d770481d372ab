//! Finds the shards of an output that are whole and current, so that `--resume` keeps them.

use std::sync::Arc;

use zarrs::array::ArraySubset;
use zarrs_cuda::maintenance::{Inspection, Shards, SubchunkState};

use super::Job;
use super::arrays::{Input, OutputArray};
use crate::evidence::Changes;
use crate::failure::Failure;
use crate::open::Store;
use crate::shared_run::{Part, PlanWatch, SharedRun};

/// The shards of the output that an earlier run stored.
pub(super) struct Stored<'a> {
    place: String,
    input: &'a Input,
    /// The shards of the output; `None` if this run does not resume an earlier one.
    shards: Option<Shards<'a, Store>>,
    /// The keys of the input that were written since the earlier run began.
    changes: Option<&'a Changes>,
    /// The run in parts and the part that is made, if this is a part of one.
    shared: Option<(&'a SharedRun, Part)>,
    /// Whether readers see the array. Others may have updated shards since, and each shard that readers can use stays.
    is_shown: bool,
    /// Whether a shard of an array that readers see is decoded, to find out whether readers can use it.
    is_decoded: bool,
}

impl<'a> Stored<'a> {
    pub(super) fn of(
        job: &Job<'_>,
        input: &'a Input,
        output: &'a OutputArray,
        changes: Option<&'a Changes>,
    ) -> Result<Self, Failure> {
        let shards = job
            .settings
            .resume
            .then(|| Shards::of(output))
            .transpose()?;
        Ok(Self {
            place: job.output.to_string(),
            input,
            shards,
            changes,
            shared: None,
            is_shown: false,
            is_decoded: false,
        })
    }

    /// Returns the shards of an array that readers see.
    pub(super) fn of_shown(
        job: &Job<'_>,
        input: &'a Input,
        output: &'a OutputArray,
    ) -> Result<Self, Failure> {
        Ok(Self {
            is_shown: true,
            is_decoded: job.settings.verify,
            ..Self::all(job, input, output)?
        })
    }

    /// Returns the shards of `output` that any process of the run in parts `shared` has stored.
    pub(super) fn of_part(
        job: &Job<'_>,
        input: &'a Input,
        output: &'a OutputArray,
        shared: (&'a SharedRun, Part),
    ) -> Result<Self, Failure> {
        Ok(Self {
            shared: Some(shared),
            ..Self::all(job, input, output)?
        })
    }

    /// Returns all stored shards of `output`.
    fn all(job: &Job<'_>, input: &'a Input, output: &'a OutputArray) -> Result<Self, Failure> {
        Ok(Self {
            place: job.output.to_string(),
            input,
            shards: Some(Shards::of(output)?),
            changes: None,
            shared: None,
            is_shown: false,
            is_decoded: false,
        })
    }

    /// Returns the watch of the plan, if this is a part of a run, whose shards are created and never replaced.
    pub(super) fn watch(&self) -> Option<Arc<PlanWatch>> {
        self.shared.map(|(run, _)| run.watch().clone())
    }

    /// Returns whether the run goes on: another process may have completed it.
    pub(super) fn goes_on(&self) -> Result<bool, Failure> {
        self.shared.map_or(Ok(true), |(run, _)| run.goes_on())
    }

    /// Returns whether the shard with these indices, which covers `region`, is stored and [whole](is_whole), or can be
    /// [used](is_usable) if readers see the array, and no chunk of the input in `region` was written since the earlier run. If not, this run writes the
    /// shard again.
    pub(super) fn has(&self, indices: &[u64], region: &ArraySubset) -> Result<bool, Failure> {
        let Some(shards) = &self.shards else {
            return Ok(false);
        };
        let found = shards.inspect(indices).map_err(Failure::to(format_args!(
            "tell whether the shard {indices:?} of {} is whole",
            self.place
        )))?;
        let Some(shard) = found else {
            return Ok(false);
        };
        if self.is_shown {
            return Ok(is_usable(&shard) && (!self.is_decoded || self.decodes(shards, indices)?));
        }
        if !is_whole(&shard)
            && let Some((run, part)) = self.shared
        {
            // The part may have been marked when the shard was whole.
            run.unmark(part.number())?;
            return Err(Failure::not_well(format!(
                "the shard {indices:?} of {} is not whole, and a run in parts replaces no shard",
                self.place
            ))
            .with_remedy("delete the shard, and do this part again"));
        }
        Ok(is_whole(&shard) && !self.is_changed(region))
    }

    /// Returns whether each subchunk of a shard decodes, with the right checksums.
    fn decodes(&self, shards: &Shards<'_, Store>, indices: &[u64]) -> Result<bool, Failure> {
        let verified = shards.verify(indices).map_err(Failure::to(format_args!(
            "tell whether the shard {indices:?} of {} decodes",
            self.place
        )))?;
        let is_readable =
            |state: &SubchunkState| !matches!(state, SubchunkState::Unreadable { .. });
        Ok(verified.is_some_and(|found| found.subchunks.iter().all(is_readable)))
    }

    /// Returns whether readers see the array.
    pub(super) fn is_shown(&self) -> bool {
        self.is_shown
    }

    fn is_changed(&self, region: &ArraySubset) -> bool {
        let Some(changes) = self.changes else {
            return false;
        };
        match self.input.chunks_in_array_subset(region) {
            Ok(Some(chunks)) => chunks.indices().iter().any(|chunk| {
                let key = self.input.chunk_key(&chunk);
                changes.has(key.as_str())
            }),
            _ => true, // the chunks are not known, so they count as changed
        }
    }
}

/// Returns whether the index of a shard decodes with the right checksum, and no subchunk is outside of the shard.
fn is_usable(shard: &Inspection) -> bool {
    let mut subchunks = shard.subchunks.iter().flatten();
    shard.index_problem.is_none() && subchunks.all(|subchunk| subchunk.problem.is_none())
}

/// Returns whether a shard is as this program writes it: its index decodes with the right checksum, and the
/// subchunks and the index fill the shard without gaps.
fn is_whole(shard: &Inspection) -> bool {
    let index = shard.index.as_ref().map(|index| index.end - index.start);
    let size = shard
        .subchunks
        .iter()
        .flatten()
        .map(|subchunk| subchunk.size);
    is_usable(shard) && index.map(|index| size.fold(index, u64::saturating_add)) == Some(shard.size)
}

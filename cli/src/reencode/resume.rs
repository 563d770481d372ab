//! Which shards of an incomplete output are whole and current, so that `--resume` keeps them.

use zarrs::array::ArraySubset;
use zarrs_cuda::maintenance::Shards;

use super::Job;
use super::arrays::{Input, Output};
use crate::evidence::Changes;
use crate::failure::Failure;
use crate::open::Store;

/// The shards that an earlier run stored.
pub(super) struct Stored<'a> {
    place: String,
    input: &'a Input,
    /// `None` if this run does not resume one.
    shards: Option<Shards<'a, Store>>,
    /// What was written to the input since.
    changes: Option<&'a Changes>,
}

impl<'a> Stored<'a> {
    pub(super) fn of(
        job: &Job<'_>,
        input: &'a Input,
        output: &'a Output,
        changes: Option<&'a Changes>,
    ) -> Result<Self, Failure> {
        let shards = job.args.resume.then(|| Shards::of(output)).transpose()?;
        Ok(Self {
            place: job.output.to_string(),
            input,
            shards,
            changes,
        })
    }

    /// Whether the shard with these indices, which is of this region of the array, is stored and whole:
    /// its index decodes, which compares its checksum; all subchunks lie inside; and they and the index
    /// fill the shard. No chunk of the input in the region may have been written since. Otherwise the shard
    /// is to be written again.
    pub(super) fn has(&self, indices: &[u64], region: &ArraySubset) -> Result<bool, Failure> {
        let Some(shards) = &self.shards else {
            return Ok(false);
        };
        let usage = shards.usage(indices).map_err(|error| {
            Failure::failed(format!(
                "cannot tell whether the shard {indices:?} of {} is whole: {error}",
                self.place
            ))
        })?;
        let is_whole = usage.is_some_and(|usage| usage.unused == Some(0));
        Ok(is_whole && !self.is_changed(region))
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
            _ => true, // nothing is known of its chunks
        }
    }
}

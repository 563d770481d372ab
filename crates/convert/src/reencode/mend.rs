//! Makes shards again that are missing or damaged in an array that readers see already.

use super::Plan;
use super::copy::copy;
use super::covered::Covered;
use super::resume::Stored;
use super::verify::verify;
use crate::failure::Failure;
use crate::words::counted;

impl Plan<'_> {
    /// Makes the shards again in which the input has chunks, and which are missing or damaged: the index does not
    /// decode, or a subchunk is outside of its shard. Other shards stay, also if somebody has updated them. Each shard
    /// is replaced as a whole. Returns the number of shards that were made again.
    pub(super) fn mend(&self) -> Result<u64, Failure> {
        let Self {
            job,
            shapes,
            chunks,
            input,
            output,
            ..
        } = self;
        let stopped = |failure: Failure| {
            let when = failure.condition();
            failure.with_remedy(format!(
                "{when}run the same command again: shards of {} that were made again stay",
                job.output
            ))
        };
        let registration = zarrs_cuda::register(job.settings.options.clone())?;
        let stored = Stored::of_shown(job, input, output)?;
        let covered = Covered::of(&self.opened, chunks, input, output).map_err(stopped)?;
        let copied = copy(job, shapes, &covered, chunks, input, output, &stored);
        let shards = copied.map_err(stopped)?.made_again;
        drop(registration);
        if shards > 0 {
            let are = if shards == 1 { "is" } else { "are" };
            job.say(&format!(
                "note: {} of {} {are} made again: missing or damaged",
                counted(shards, "shard"),
                job.output
            ));
            if job.settings.verify {
                verify(job, shapes, output).map_err(stopped)?;
            }
        }
        Ok(shards)
    }
}

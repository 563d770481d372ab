//! Makes shards again that are missing or damaged in an array that readers see already.

use zarrs::node::meta_key_v3;
use zarrs::storage::ReadableStorageTraits;

use super::Plan;
use super::copy::copy;
use super::covered::Covered;
use super::resume::Stored;
use super::verify::verify;
use crate::failure::Failure;
use crate::words::counted;

impl Plan<'_> {
    /// Makes the shards again in which the input has chunks, and which are missing or damaged: the index does not
    /// decode, or a subchunk is outside of its shard, or does not decode if the settings say `verify`. Stores the
    /// metadata again if they are missing. Other shards stay, also if somebody has updated them. Each shard
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
        self.mend_metadata().map_err(stopped)?;
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

    /// Stores the metadata of the output if they are missing.
    fn mend_metadata(&self) -> Result<(), Failure> {
        let Self { job, output, .. } = self;
        let storage = output.storage();
        let key = meta_key_v3(output.path());
        let found = storage.get(&key);
        if found
            .map_err(Failure::to(format_args!("read {key} of {}", job.output)))?
            .is_some()
        {
            return Ok(());
        }
        output
            .store_metadata()
            .map_err(Failure::to(format_args!("store {key} of {}", job.output)))?;
        job.say(&format!(
            "note: {key} of {} was missing, and is stored again",
            job.output
        ));
        Ok(())
    }
}

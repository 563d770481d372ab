//! Looking after shards: packing, compacting, repairing and describing them.

use std::num::NonZeroUsize;
use std::sync::Arc;

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use serde_json::json;
use zarrs::array::Array;
use zarrs_cuda::maintenance::{RecoveryOutcome, Shards};
use zarrs_storage::{StorePrefix, WritableStorageTraits};

use crate::array::Shared;
use crate::error::Error;
use crate::files::{Files, frame_of};
use crate::pool;

/// How many shards were packed, of how many subchunks in how many objects; how many objects are not whole,
/// and how many frames outside of the array were erased.
pub(crate) type Packed = (usize, usize, usize, usize, usize);

fn failed(error: zarrs_cuda::Error) -> Error {
    match error {
        zarrs_cuda::Error::Storage { doing, key, source } => {
            Error::store(doing, key.as_str(), &source)
        }
        zarrs_cuda::Error::NotShards { .. } => Error::Value(error.to_string()),
        error => Error::Other(error.to_string()),
    }
}

/// Packs the frames of the shards whose number in `grid`, modulo `parts`, is `part`. Part 0 erases the
/// frames outside of `grid`.
pub(crate) fn consolidate(
    shared: &Shared,
    files: &Arc<Files>,
    grid: &[u64],
    (part, parts): (u64, u64),
    threads: NonZeroUsize,
) -> Result<Packed, Error> {
    let pending = shared.store.pending().map_err(failed)?;
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    for shard in pending {
        match number(&shard, grid) {
            Some(number) if number % parts == part => inside.push(shard),
            None if part == 0 => outside.push(shard),
            _ => {}
        }
    }
    for shard in &outside {
        let key = shared.shards.array.chunk_key(shard);
        let frame = StorePrefix::new(frame_of(key.as_str()) + "/");
        let erased = frame
            .map_err(Into::into)
            .and_then(|frame| files.erase_prefix(&frame));
        erased.map_err(|error| Error::store("erase the frame of", key.as_str(), &error))?;
    }
    let packed = pool::run(threads, || {
        let pack = |shard: &Vec<u64>| shared.store.consolidate(shard).map_err(failed);
        inside
            .par_iter()
            .map(pack)
            .collect::<Result<Vec<_>, Error>>()
    })??;
    let mut sum = (0, 0, 0, 0, outside.len());
    for one in packed.into_iter().flatten() {
        sum.0 += 1;
        sum.1 += one.subchunks;
        sum.2 += one.versions;
        sum.3 += one.invalid;
    }
    Ok(sum)
}

/// Packs the frame of one shard. Returns how many subchunks it had.
pub(crate) fn consolidate_shard(shared: &Shared, shard: &[u64]) -> Result<usize, Error> {
    let packed = shared.store.consolidate(shard).map_err(failed)?;
    Ok(packed.map_or(0, |packed| packed.subchunks))
}

/// The number of a shard in C order; `None` if it is not in the grid.
fn number(shard: &[u64], grid: &[u64]) -> Option<u64> {
    shard
        .iter()
        .zip(grid)
        .try_fold(0_u64, |number, (index, count)| {
            (index < count).then(|| number.wrapping_mul(*count).wrapping_add(*index))
        })
}

/// The array whose shards are looked after.
pub(crate) struct Maintained(pub(crate) Array<Files>);

impl Maintained {
    fn shards(&self) -> Result<Shards<'_, Files>, Error> {
        Shards::of(&self.0).map_err(failed)
    }

    pub(crate) fn inspect(&self, shard: &[u64]) -> Result<Option<(String, String)>, Error> {
        let found = self.shards()?.inspect(shard).map_err(failed)?;
        Ok(found.map(|found| {
            let subchunks = found.subchunks.iter();
            let subchunks = subchunks
                .map(|subchunk| subchunk.map(|subchunk| json!([subchunk.offset, subchunk.size])));
            let index = found
                .index
                .as_ref()
                .map(|index| json!([index.start, index.end]));
            let described = json!({
                "size": found.size,
                "live": found.live,
                "grid": found.grid,
                "decoded_size": found.decoded_size,
                "index": index,
                "problem": found.index_problem,
                "subchunks": subchunks.collect::<Vec<_>>(),
                "state": word(&found.recovery),
            });
            (described.to_string(), found.to_string())
        }))
    }

    pub(crate) fn compact(&self, shard: &[u64]) -> Result<Option<(u64, u64)>, Error> {
        let compacted = self.shards()?.compact(shard).map_err(failed)?;
        Ok(compacted.map(|compacted| (compacted.before, compacted.after)))
    }

    pub(crate) fn recover(&self, shard: &[u64]) -> Result<(&'static str, String), Error> {
        let recovered = self.shards()?.recover(shard).map_err(failed)?;
        Ok((word(&recovered.outcome), recovered.to_string()))
    }
}

fn word(outcome: &RecoveryOutcome) -> &'static str {
    match outcome {
        RecoveryOutcome::Absent => "absent",
        RecoveryOutcome::Intact => "intact",
        RecoveryOutcome::Undone => "undone",
        RecoveryOutcome::Completed => "completed",
        RecoveryOutcome::Erased => "erased",
        _ => "unrecoverable",
    }
}

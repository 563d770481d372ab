//! Packs a shard and its frame into a new shard.

use std::fs::{self, File};
use std::io::Write as _;
use std::time::Instant;

use zarrs_cuda_benches::{Result, warm};

use crate::sharded::{SHARD, SUBCHUNK, Sharded, open};
use crate::{Row, median};

/// The goal: the rate of consolidation relative to a copy of the shard.
const GOAL: f64 = 0.6;

pub(crate) fn run(sharded: &Sharded, rounds: usize) -> Result<Vec<Row>> {
    let (sparse, array) = open(sharded.sparse()?)?;
    let across = SHARD / SUBCHUNK;
    let file = sharded.file([0, 0, 0]);
    let len = fs::metadata(&file)?.len();
    let mut seconds = [const { Vec::new() }; 2];
    for round in 0..=rounds {
        for at in (0..across.pow(3)).filter(|at| (at + at / across).is_multiple_of(2)) {
            let chunk = [at / across / across, at / across % across, at % across];
            let elements = array.retrieve_chunk::<Vec<u16>>(&chunk)?;
            array.store_chunk(&chunk, elements)?;
        }
        for turn in 0..seconds.len() {
            let who = (round + turn) % seconds.len();
            warm::warm(2 * len)?;
            let clock = Instant::now();
            if who == 0 {
                let done = sparse.consolidate(&[0, 0, 0])?.ok_or("there is no frame")?;
                if done.after != len || done.subchunks as u64 != across.pow(3) / 2 {
                    return Err(format!("{done:?} is not what was to be done").into());
                }
            } else {
                let temporary = file.with_extension("copy.tmp");
                let bytes = fs::read(&file)?;
                let mut copy = File::create(&temporary)?;
                copy.write_all(&bytes)?;
                copy.sync_all()?;
                fs::rename(&temporary, file.with_extension("copy"))?;
            }
            if round > 0 {
                seconds[who].push(clock.elapsed().as_secs_f64());
            }
        }
    }
    let [ours, reference] = seconds.map(|seconds| len as f64 / 1e9 / median(seconds));
    Ok(vec![Row {
        case: "consolidate".to_owned(),
        chain: sharded.chain,
        unit: "GB/s",
        ours,
        reference,
        reference_name: "copy",
        goal: Some(GOAL),
    }])
}

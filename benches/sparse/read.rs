//! Reads a whole array at once.

use std::time::{Duration, Instant};

use zarrs::array::Array;
use zarrs::storage::ReadableStorageTraits;
use zarrs_cuda::reader::ArrayReader;
use zarrs_cuda_benches::{Result, warm};

use crate::sharded::{Encoder, SHAPE, SHARD, SUBCHUNK, Sharded, open};
use crate::{Row, median};

/// The goal: the rate of reading an array without frames relative to reading the shards.
const GOAL: f64 = 0.95;

pub(crate) fn run(sharded: &Sharded, rounds: usize) -> Result<Vec<Row>> {
    let shards = sharded.array(Encoder::Ours)?;
    let zarrs = sharded.array(Encoder::Zarrs)?;
    let (_, each) = open(sharded.sparse()?)?;
    let (sparse, once) = open(sharded.sparse()?.with_listing_age(Duration::from_secs(1)))?;
    let boxes = sharded.sparse()?.reader()?.build()?;
    let store = sharded.store()?;
    let plain = ArrayReader::builder(&shards).on_filesystem(&store);
    let plain = plain.build()?;
    let bytes = SHAPE.iter().product::<u64>() * 2;
    let mut rows = Vec::new();
    for frames in ["no", "half"] {
        if frames == "half" {
            let chunk = |at: u64| [at / 16 / 16, at / 16 % 16, at % 16];
            let count = bytes / 2 / SUBCHUNK.pow(3);
            for at in (0..count).filter(|at| (at + at / 16).is_multiple_of(2)) {
                let elements = each.retrieve_chunk::<Vec<u16>>(&chunk(at))?;
                each.store_chunk(&chunk(at), elements)?;
            }
            assert_eq!(
                sparse.pending()?.len(),
                usize::try_from(SHAPE[1] / SHARD * 2)?
            );
        }
        let expected = elements(&shards)?;
        let mut seconds = [const { Vec::new() }; 6];
        for round in 0..=rounds {
            for turn in 0..seconds.len() {
                let who = (round + turn) % seconds.len();
                warm::warm(bytes)?;
                let clock = Instant::now();
                let read = match who {
                    0 => elements(&shards)?,
                    1 => elements(&each)?,
                    2 => elements(&zarrs)?,
                    3 => elements(&once)?,
                    4 => boxes.read(&shards.subset_all())?,
                    _ => plain.read(&shards.subset_all())?,
                };
                let time = clock.elapsed().as_secs_f64();
                if round > 0 {
                    seconds[who].push(time);
                } else if read != expected {
                    return Err("the elements that were read are not those of the shards".into());
                }
            }
        }
        let [
            shards_rate,
            each_rate,
            zarrs_rate,
            once_rate,
            boxes_rate,
            plain_rate,
        ] = seconds.map(|seconds| bytes as f64 / 1e9 / median(seconds));
        for (ours, listed) in [(each_rate, ""), (once_rate, ", listed once")] {
            let row = |reference, reference_name, goal| Row {
                case: format!("read {frames} frames{listed}"),
                chain: sharded.chain,
                unit: "GB/s",
                ours,
                reference,
                reference_name,
                goal,
            };
            rows.push(row(shards_rate, "shards", (frames == "no").then_some(GOAL)));
            rows.push(row(zarrs_rate, "zarrs", None));
        }
        let row = |reference, reference_name, goal| Row {
            case: format!("read {frames} frames, reader"),
            chain: sharded.chain,
            unit: "GB/s",
            ours: boxes_rate,
            reference,
            reference_name,
            goal,
        };
        let goal = (frames == "no").then_some(GOAL);
        rows.push(row(plain_rate, "shards, reader", goal));
        rows.push(row(shards_rate, "shards", None));
        rows.push(row(each_rate, "adapter", None));
    }
    Ok(rows)
}

fn elements<S: ReadableStorageTraits + 'static>(array: &Array<S>) -> Result<Vec<u16>> {
    Ok(array.retrieve_array_subset(&array.subset_all())?)
}

//! Stores random subchunks of one shard, one after the other.

use std::time::Instant;

use zarrs::array::{ArrayBytes, ArraySubset};
use zarrs_cuda_benches::Result;
use zarrs_cuda_benches::microscopy::Microscopy;

use crate::sharded::{Encoder, SHARD, SUBCHUNK, Sharded, open, options};
use crate::{Row, median};

/// Subchunks of a shard along each axis.
const ACROSS: u64 = SHARD / SUBCHUNK;
/// The updates of each contender in a round. The one that rewrites the shard makes only one.
const UPDATES: usize = 16;
/// The goal: the rate of updates relative to rewriting the shard.
const GOAL: f64 = 50.0;

pub(crate) fn run(sharded: &Sharded, rounds: usize) -> Result<Vec<Row>> {
    let (_, sparse) = open(sharded.sparse()?)?;
    let zarrs = sharded.array(Encoder::Zarrs)?;
    let ours = sharded.array(Encoder::Ours)?;
    let mut microscopy = Microscopy::new();
    let mut seconds = [const { Vec::new() }; 4];
    for round in 0..=rounds {
        // All contenders use one array, since the elements are not read here.
        for (who, seconds) in seconds.iter_mut().enumerate() {
            let updates = if who == 1 { 1 } else { UPDATES };
            for _ in 0..updates {
                let at = [(); 3].map(|()| microscopy.random() % ACROSS);
                let start = at.map(|at| at * SUBCHUNK);
                let elements = ArrayBytes::new_flen(microscopy.volume(start, [SUBCHUNK; 3], 6));
                let subset = ArraySubset::new_with_start_shape(start.to_vec(), vec![SUBCHUNK; 3])?;
                let clock = Instant::now();
                match who {
                    0 => sparse.store_chunk(&at, elements)?,
                    1 => zarrs.store_array_subset_opt(&subset, elements, &options(false))?,
                    2 => zarrs.store_array_subset_opt(&subset, elements, &options(true))?,
                    _ => ours.store_array_subset_opt(&subset, elements, &options(true))?,
                }
                if round > 0 {
                    seconds.push(clock.elapsed().as_secs_f64());
                }
            }
        }
    }
    let [sparse, rewrite, zarrs_partial, partial] = seconds.map(|seconds| 1.0 / median(seconds));
    let row = |reference, reference_name, goal| Row {
        case: "update".to_owned(),
        chain: sharded.chain,
        unit: "1/s",
        ours: sparse,
        reference,
        reference_name,
        goal,
    };
    Ok(vec![
        row(rewrite, "rewrite", Some(GOAL)),
        row(zarrs_partial, "zarrs partial", None),
        row(partial, "partial", None),
    ])
}

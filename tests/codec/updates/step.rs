//! The operations on an array, as data.

use std::ops::Range;

use zarrs::array::ArraySubset;
use zarrs_cuda::WriteStrategy;

use super::case::{Case, NUM_SHARDS, STRATEGIES, Values};
use zarrs_cuda_testing::Rng;

/// An operation on an array.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) strategy: WriteStrategy,
    /// Whether zarrs' asynchronous methods are used.
    pub(crate) asynchronous: bool,
    pub(crate) what: What,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    /// `Array::store_array_subset`.
    ArraySubset(Vec<Range<u64>>, Values),
    /// `Array::store_chunk_subset`.
    ChunkSubset(usize, Vec<Range<u64>>, Values),
    /// A partial encoder with a subset of the shard.
    Encode(usize, Vec<Range<u64>>, Values),
    /// A partial encoder with single elements of the shard, which may repeat.
    Points(usize, Vec<Vec<u64>>, Values),
    /// `Array::store_chunk`, with zarrs' codec or ours.
    Store(usize, Values, By),
    /// `Array::erase_chunk`.
    Erase(usize),
    /// Erases with a partial encoder.
    EncodeErase(usize),
    /// `zarrs_cuda::compact`, or `Array::compact_chunk` in an asynchronous step.
    Compact(usize),
    /// Appends meaningless bytes to a shard with its index at the start.
    Junk(usize, u64),
    /// Drops all state that is not in the store.
    Reopen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Zarrs,
    Us,
}

pub(crate) fn subset(ranges: &[Range<u64>]) -> ArraySubset {
    ArraySubset::new_with_ranges(ranges)
}

/// Random ranges in `shape`, often aligned to `subchunk`.
pub(crate) fn ranges(shape: &[u64], subchunk: &[u64], rng: &mut Rng) -> Vec<Range<u64>> {
    let aligned = rng.one_in(2);
    let small = rng.one_in(2);
    let axes = shape.iter().zip(subchunk);
    axes.map(|(&extent, &unit)| {
        let unit = if aligned { unit } else { 1 };
        let count = extent.div_ceil(unit);
        let start = rng.below(count);
        let most = if small { 2 } else { count };
        let end = start + 1 + rng.below((count - start).min(most));
        start * unit..(end * unit).min(extent)
    })
    .collect()
}

impl Step {
    /// A random step, with `strategy` if there is one.
    pub(crate) fn random(case: &Case, strategy: Option<WriteStrategy>, rng: &mut Rng) -> Self {
        let shape = &case.shape;
        let shard = usize::try_from(rng.below(NUM_SHARDS as u64)).unwrap();
        let ranges_in = |shape: &[u64], rng: &mut Rng| ranges(shape, &case.subchunk, rng);
        let values = Values::random(rng);
        let what = match rng.below(40) {
            0..8 => What::ArraySubset(ranges_in(&case.array_shape(), rng), values),
            8..18 => What::ChunkSubset(shard, ranges_in(shape, rng), values),
            18..24 => What::Encode(shard, ranges_in(shape, rng), values),
            24..31 => {
                let len = 1 + rng.below(12);
                let point = |rng: &mut Rng| shape.iter().map(|&d| rng.below(d)).collect();
                let mut points: Vec<Vec<u64>> = (0..len).map(|_| point(rng)).collect();
                if rng.one_in(2) {
                    points.push(points[0].clone());
                }
                What::Points(shard, points, values)
            }
            31 => What::Store(shard, values, By::Zarrs),
            32..34 => What::Store(shard, values, By::Us),
            34 => What::Erase(shard),
            35 => What::EncodeErase(shard),
            36 => What::Compact(shard),
            37 if case.takes_junk() => What::Junk(shard, rng.next()),
            _ => What::Reopen,
        };
        let any = STRATEGIES[usize::try_from(rng.below(4)).unwrap()];
        Self {
            strategy: strategy.unwrap_or(any),
            asynchronous: rng.one_in(4),
            what,
        }
    }
}

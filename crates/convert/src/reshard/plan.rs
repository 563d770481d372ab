//! Computes, with integers only, which subchunks of which objects of IN make which objects of OUT.

use std::ops::Range;

use super::side::Side;
use crate::grid::{indices_of, number_of};

/// The grids of objects of both sides, in subchunks, and blocks of objects of OUT.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The number of subchunks of the array along each axis.
    cells: Vec<u64>,
    pub(super) input: Objects,
    pub(super) output: Objects,
    /// The number of objects of OUT in a block along each axis. A block is at least as large as an object of
    /// IN.
    block: Vec<u64>,
    /// The number of blocks along each axis.
    blocks: Vec<u64>,
}

/// The grid of the objects of one side.
#[derive(Clone, Debug)]
pub(super) struct Objects {
    /// The number of subchunks in an object along each axis.
    pub(super) counts: Vec<u64>,
    /// The number of objects along each axis.
    pub(super) grid: Vec<u64>,
}

/// A piece of a block: objects of OUT that one thread writes, one after the other, by their positions in the
/// block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlockPiece {
    block: u64,
    objects: Range<u64>,
}

impl Plan {
    /// Returns the plan for a copy from `input` to `output`.
    ///
    /// # Errors
    /// The reason, if there are more objects than a `u64` can number.
    pub(super) fn new(input: &Side, output: &Side) -> Result<Self, String> {
        let cells = quotients(&input.shape, &input.subchunk);
        let objects = |side: &Side| Objects {
            counts: side.counts(),
            grid: quotients(&side.shape, &side.object),
        };
        let (input, output) = (objects(input), objects(output));
        let block: Vec<u64> = quotients(&input.counts, &output.counts);
        let blocks = quotients(&output.grid, &block);
        for grid in [&input.grid, &output.grid, &input.counts, &output.counts] {
            volume(grid).ok_or_else(|| format!("a grid of {grid:?} has too many objects"))?;
        }
        Ok(Self {
            cells,
            input,
            output,
            block,
            blocks,
        })
    }

    /// Returns the bytes that a thread takes for indices: those of all shards of IN in a block, and one of
    /// OUT. `are_shards` says whether the objects of IN, and those of OUT, have an index.
    pub(super) fn index_bytes(&self, are_shards: [bool; 2]) -> u64 {
        /// The bytes per subchunk of IN, for its extent, until its block is made.
        const KEPT: u64 = 24;
        /// The bytes per subchunk of IN, while the index of its shard is read and decoded.
        const READ: u64 = 64;
        /// The bytes per subchunk of OUT, for its place in IN, its extent, and its entry in the index.
        const WRITTEN: u64 = 144;
        let product = |extents: &mut dyn Iterator<Item = u64>| extents.fold(1, u64::saturating_mul);
        let of_input = product(&mut self.input.counts.iter().copied());
        let of_output = product(&mut self.output.counts.iter().copied());
        let shards = product(&mut (0..self.cells.len()).map(|axis| {
            let cells = self.block[axis].saturating_mul(self.output.counts[axis]);
            let count = self.input.counts[axis];
            // A block may begin within a shard of IN.
            let more = u64::from(!cells.is_multiple_of(count));
            (cells.div_ceil(count) + more).min(self.input.grid[axis])
        }));
        let kept = shards.saturating_mul(of_input).saturating_mul(KEPT);
        let read = kept.saturating_add(of_input.saturating_mul(READ));
        let written = of_output.saturating_mul(WRITTEN);
        let [reads, writes] = are_shards.map(u64::from);
        (read * reads).saturating_add(written * writes)
    }

    /// Returns the pieces into which subchunks of the objects `stored` of IN go, in order, for `threads`
    /// threads.
    pub(super) fn pieces(&self, stored: &[u64], threads: usize) -> Vec<BlockPiece> {
        let mut blocks: Vec<u64> = stored
            .iter()
            .flat_map(|&number| self.blocks_of(number))
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        let objects = volume(&self.block).unwrap_or(u64::MAX);
        let enough = 4 * threads.max(1) as u64;
        let len = if blocks.len() as u64 >= enough {
            objects
        } else {
            objects.div_ceil(enough).max(1)
        };
        let pieces = blocks.into_iter().flat_map(|block| {
            (0..objects.div_ceil(len)).map(move |piece| BlockPiece {
                block,
                objects: piece * len..objects.min((piece + 1) * len),
            })
        });
        pieces.collect()
    }

    /// Returns the blocks in which an object of IN has subchunks.
    fn blocks_of(&self, number: u64) -> Vec<u64> {
        let indices = indices_of(number, &self.input.grid);
        let touched: Vec<Range<u64>> = (0..self.cells.len())
            .map(|axis| {
                let count = self.input.counts[axis];
                let first = indices[axis] * count;
                let end = (first + count).min(self.cells[axis]);
                let cells = self.block[axis] * self.output.counts[axis];
                first / cells..end.div_ceil(cells)
            })
            .collect();
        let extents: Vec<u64> = touched
            .iter()
            .map(|range| range.end - range.start)
            .collect();
        (0..volume(&extents).unwrap_or(0))
            .map(|within| {
                let within = indices_of(within, &extents);
                let axes = touched.iter().zip(within);
                let block: Vec<u64> = axes.map(|(range, at)| range.start + at).collect();
                number_of(&block, &self.blocks)
            })
            .collect()
    }

    /// Returns the indices of each object of OUT in a piece.
    pub(super) fn objects(&self, piece: &BlockPiece) -> impl Iterator<Item = Vec<u64>> {
        let block = indices_of(piece.block, &self.blocks);
        piece.objects.clone().filter_map(move |within| {
            let within = indices_of(within, &self.block);
            let object: Vec<u64> = (0..within.len())
                .map(|axis| block[axis] * self.block[axis] + within[axis])
                .collect();
            let is_there = object.iter().zip(&self.output.grid).all(|(i, n)| i < n);
            is_there.then_some(object)
        })
    }

    /// Returns, for each subchunk of an object of OUT in C order, the position of the object of IN that has
    /// it, and the position of the subchunk in that object; `None` for a subchunk beyond the end of the
    /// array.
    pub(super) fn sources(&self, object: &[u64]) -> impl Iterator<Item = Option<(u64, u64)>> {
        let first: Vec<u64> = object
            .iter()
            .zip(&self.output.counts)
            .map(|(index, count)| index * count)
            .collect();
        let subchunks = volume(&self.output.counts).unwrap_or(0);
        let mut within = vec![0; first.len()];
        (0..subchunks).map(move |number| {
            if number > 0 {
                advance(&mut within, &self.output.counts);
            }
            let (mut from, mut inside) = (0, 0);
            for axis in 0..first.len() {
                let cell = first[axis] + within[axis];
                if cell >= self.cells[axis] {
                    return None;
                }
                let count = self.input.counts[axis];
                from = from * self.input.grid[axis] + cell / count;
                inside = inside * count + cell % count;
            }
            Some((from, inside))
        })
    }
}

/// Moves `indices` to the next box of a grid of `counts`, in C order.
fn advance(indices: &mut [u64], counts: &[u64]) {
    for (index, &count) in indices.iter_mut().zip(counts).rev() {
        *index += 1;
        if *index < count {
            return;
        }
        *index = 0;
    }
}

fn quotients(extents: &[u64], divisors: &[u64]) -> Vec<u64> {
    let axes = extents.iter().zip(divisors);
    axes.map(|(extent, divisor)| extent.div_ceil(*divisor))
        .collect()
}

fn volume(extents: &[u64]) -> Option<u64> {
    extents
        .iter()
        .try_fold(1_u64, |volume, &extent| volume.checked_mul(extent))
}

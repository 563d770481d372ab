//! Chooses the shards of the output to work on: those in which the input has chunks, and those that are
//! stored.
//!
//! All other shards have only the fill value in both arrays, and are neither read nor written.

use std::ops::Range;

use zarrs::array::ArraySubset;
use zarrs_cuda::maintenance::Shards;

use super::arrays::{Input, OutputArray};
use crate::chunks::Chunks;
use crate::failure::Failure;
use crate::grid::{Grid, Listed, add_covered};
use crate::open::Opened;
use crate::shapes::volume;

/// The shards of the output to work on.
pub(super) struct Covered<'a> {
    output: &'a OutputArray,
    grid: Grid,
    /// The positions of the shards in the grid, sorted; `None` for all shards, because no listing tells the
    /// stored chunks.
    positions: Option<Vec<u128>>,
    /// The positions that this run works on; of `positions`, only these are kept.
    within: Range<u128>,
}

impl<'a> Covered<'a> {
    /// Lists the output, and chooses the shards.
    ///
    /// # Errors
    /// The output cannot be listed as a whole, or the output has more shards than can be numbered.
    pub(super) fn of(
        opened: &Opened,
        chunks: &Chunks,
        input: &Input,
        output: &'a OutputArray,
    ) -> Result<Self, Failure> {
        let grid = Grid::of(output)?;
        let mut covered = Self {
            output,
            within: 0..grid.len(),
            grid,
            positions: None,
        };
        if input.fill_value() != output.fill_value() {
            return Ok(covered);
        }
        let mut listed = Listed::default();
        if add_covered(&mut listed, output, opened, chunks.indices(), &covered.grid)?.is_err() {
            return Ok(covered);
        }
        if let Some(failure) = listed.failures.into_iter().next() {
            return Err(failure);
        }
        let stored = Shards::of(output)?.stored()?;
        let stored = stored
            .iter()
            .filter_map(|(shard, _)| covered.grid.position(shard));
        let mut positions = listed.positions;
        positions.extend(stored);
        positions.sort_unstable();
        positions.dedup();
        covered.positions = Some(positions);
        Ok(covered)
    }

    /// Keeps only the shards at the positions `within`.
    pub(super) fn within(mut self, within: Range<u128>) -> Self {
        if let Some(positions) = &mut self.positions {
            positions.retain(|position| within.contains(position));
        }
        let len = self.grid.len();
        self.within = within.start.min(len)..within.end.min(len);
        self
    }

    /// Returns the number of shards to work on.
    pub(super) fn len(&self) -> u128 {
        match &self.positions {
            Some(positions) => positions.len() as u128,
            None => self.within.end.saturating_sub(self.within.start),
        }
    }

    /// Returns the position of each shard in the grid, and the number of its elements within the array.
    pub(super) fn sizes(&self) -> impl Iterator<Item = (u128, u64)> + Clone {
        self.regions()
            .map(|(position, _, region)| (position, region.num_elements()))
    }

    /// Returns the indices of each shard, and its region within the array.
    pub(super) fn shards(&self) -> impl Iterator<Item = (Vec<u64>, ArraySubset)> {
        self.regions().map(|(_, indices, region)| (indices, region))
    }

    /// Returns the position of each shard in the grid, its indices, and its region within the array.
    pub(super) fn regions(&self) -> impl Iterator<Item = (u128, Vec<u64>, ArraySubset)> + Clone {
        (0..self.len()).filter_map(|number| {
            let position = match &self.positions {
                Some(positions) => *positions.get(usize::try_from(number).ok()?)?,
                None => self.within.start + number,
            };
            let indices = self.grid.indices(position);
            let region = self.output.chunk_subset_bounded(&indices).ok()?; // it is in the grid
            Some((position, indices, region))
        })
    }

    /// Returns the number of elements in these shards.
    pub(super) fn elements(&self) -> u64 {
        if self.positions.is_none() && self.within == (0..self.grid.len()) {
            return volume(self.output.shape());
        }
        let regions = self.shards().map(|(_, region)| region.num_elements());
        regions.fold(0, u64::saturating_add)
    }
}

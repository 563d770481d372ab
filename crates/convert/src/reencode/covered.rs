//! Chooses the shards of the output to work on: those in which the input has chunks, and those that are
//! stored.
//!
//! All other shards have only the fill value in both arrays, and are neither read nor written.

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

    /// Returns the number of shards to work on.
    pub(super) fn len(&self) -> u128 {
        match &self.positions {
            Some(positions) => positions.len() as u128,
            None => self.grid.len(),
        }
    }

    /// Returns the indices of each shard, and its region within the array.
    pub(super) fn shards(&self) -> impl Iterator<Item = (Vec<u64>, ArraySubset)> {
        (0..self.len()).filter_map(|number| {
            let position = match &self.positions {
                Some(positions) => *positions.get(usize::try_from(number).ok()?)?,
                None => number,
            };
            let indices = self.grid.indices(position);
            let region = self.output.chunk_subset_bounded(&indices).ok()?; // it is in the grid
            Some((indices, region))
        })
    }

    /// Returns the number of elements in these shards.
    pub(super) fn elements(&self) -> u64 {
        match &self.positions {
            Some(_) => {
                let regions = self.shards().map(|(_, region)| region.num_elements());
                regions.fold(0, u64::saturating_add)
            }
            None => volume(self.output.shape()),
        }
    }
}

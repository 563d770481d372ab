//! The grid of the shards of an array, and the shards that a listing finds.

use zarrs::array::Array;

use crate::failure::Failure;
use crate::open::Opened;
use crate::stored::{self, Keys};
use crate::words::shape_text;

/// The grid of the shards of an array.
#[derive(Clone, Debug)]
pub struct Grid(pub Vec<u64>);

impl Grid {
    /// Returns the grid of the shards of `array`.
    ///
    /// # Errors
    /// The grid has more shards than a `u128` can number.
    pub fn of<S: ?Sized>(array: &Array<S>) -> Result<Self, Failure> {
        let counts = array.chunk_grid_shape();
        let mut volume = Some(1_u128);
        for &count in counts.iter().filter(|count| **count > 0) {
            volume = volume.and_then(|volume| volume.checked_mul(u128::from(count)));
        }
        if volume.is_none() {
            return Err(Failure::failed(format!(
                "a grid of {} shards has more of them than can be numbered",
                shape_text(counts)
            )));
        }
        Ok(Self(counts.to_vec()))
    }

    /// Returns the number of shards along each axis.
    pub fn counts(&self) -> &[u64] {
        &self.0
    }

    /// Returns the number of shards.
    pub fn len(&self) -> u128 {
        let counts = self.0.iter().map(|&count| u128::from(count));
        counts.fold(1, u128::saturating_mul)
    }

    /// Returns the indices of the shard at `position`, in C order.
    pub fn indices(&self, mut position: u128) -> Vec<u64> {
        let mut indices = vec![0; self.0.len()];
        for (index, &count) in indices.iter_mut().zip(&self.0).rev() {
            let count = u128::from(count.max(1));
            // The remainder is less than `count`, which fits 64 bits.
            *index = u64::try_from(position % count).unwrap_or(0);
            position /= count;
        }
        indices
    }

    /// Returns the position of a shard in C order; `None` if the grid has no shard with these indices.
    pub fn position(&self, indices: &[u64]) -> Option<u128> {
        if indices.len() != self.0.len() {
            return None;
        }
        let mut position = 0_u128;
        for (&index, &count) in indices.iter().zip(&self.0) {
            (index < count).then_some(())?;
            position = position
                .checked_mul(u128::from(count))?
                .checked_add(u128::from(index))?;
        }
        Some(position)
    }
}

/// Returns the position in C order of the box with these indices, in a grid with `grid` boxes along each
/// axis.
pub fn number_of(indices: &[u64], grid: &[u64]) -> u64 {
    let axes = indices.iter().zip(grid);
    axes.fold(0, |number, (index, extent)| number * extent + index)
}

/// Returns the indices of the box with this position in C order, in a grid with `grid` boxes along each axis.
pub fn indices_of(number: u64, grid: &[u64]) -> Vec<u64> {
    let mut rest = number;
    let axes = grid.iter().rev().map(|&extent| {
        let index = rest % extent.max(1);
        rest /= extent.max(1);
        index
    });
    let mut indices: Vec<u64> = axes.collect();
    indices.reverse();
    indices
}

/// The shards of an array that a listing has found.
#[derive(Default)]
pub struct Listed {
    /// The positions of the stored shards in the grid, in any order.
    pub positions: Vec<u128>,
    /// The number of stored shards outside of the grid.
    pub outside: u64,
    /// A failure for each directory that cannot be read.
    pub failures: Vec<Failure>,
}

/// Returns the shards of `opened` that a listing finds, or the reason why its store cannot be listed.
pub fn listed(opened: &Opened, grid: &Grid) -> Result<Result<Listed, String>, Failure> {
    let array = &opened.array;
    let keys = Keys::new(array.chunk_key_encoding(), &grid.0);
    if let Some(why) = cannot_list(opened, &keys) {
        return Ok(Err(why));
    }
    let mut listed = Listed::default();
    listed.failures = stored::objects(opened, |object| {
        let Some(indices) = keys.parse(object.key) else {
            return;
        };
        // A directory in the place of a shard counts as a shard, so that the work on it fails.
        match grid.position(&indices) {
            Some(position) => listed.positions.push(position),
            None => listed.outside += 1,
        }
    })?;
    Ok(Ok(listed))
}

/// The number of collected positions at which duplicates are first removed.
const FEW: usize = 1 << 16;

/// Adds to `all` the shards of `one` in which the array `other` has chunks, or returns the reason why they
/// are not known. `chunks` are the chunks of `other` that an earlier listing found. With them, there is no
/// second listing, which would miss a chunk that is gone by now.
pub fn add_covered<S: ?Sized>(
    all: &mut Listed,
    one: &Array<S>,
    other: &Opened,
    chunks: Option<impl Iterator<Item = Vec<u64>>>,
    grid: &Grid,
) -> Result<Result<(), String>, Failure> {
    let array = &other.array;
    let keys = Keys::new(array.chunk_key_encoding(), array.chunk_grid_shape());
    if let Some(why) = cannot_list(other, &keys) {
        return Ok(Err(why));
    }
    let mut failed = None;
    let mut tidy_at = FEW;
    let mut add = |chunk: &[u64]| {
        let region = array.chunk_subset_bounded(chunk);
        let shards = region.and_then(|region| Ok(one.chunks_in_array_subset(&region)?));
        match shards {
            Ok(Some(shards)) => {
                for shard in &shards.indices() {
                    let position = grid.position(&shard);
                    // Chunks that follow one another often lie in the same shard.
                    if position.is_some() && all.positions.last() != position.as_ref() {
                        all.positions.extend(position);
                    }
                    // A shard may cover very many chunks, whose positions are equal.
                    if all.positions.len() >= tidy_at {
                        all.positions.sort_unstable();
                        all.positions.dedup();
                        tidy_at = all.positions.len().saturating_mul(2).max(FEW);
                    }
                }
            }
            Ok(None) => {}
            Err(error) => failed = Some(format!("{}: {error}", array.chunk_key(chunk))),
        }
    };
    let failures = match chunks {
        Some(chunks) => {
            chunks.for_each(|chunk| add(&chunk));
            Vec::new()
        }
        None => stored::objects(other, |object| {
            if let Some(chunk) = keys.in_grid(object.key) {
                add(&chunk);
            }
        })?,
    };
    if let Some(error) = failed {
        return Err(Failure::failed(format!(
            "cannot tell which shards have elements of the chunk {error}"
        )));
    }
    all.failures.extend(failures);
    Ok(Ok(()))
}

/// Returns the reason why a listing cannot find the chunks of an array; `None` if it can.
pub fn cannot_list(opened: &Opened, keys: &Keys<'_>) -> Option<String> {
    if let Some(reason) = opened.has_no_listing() {
        return Some(reason);
    }
    (!keys.are_known()).then(|| "the keys of its chunks do not spell out their indices".to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zarrs::array::{ArrayBuilder, data_type};
    use zarrs::storage::store::MemoryStore;

    use super::*;

    #[test]
    fn positions_are_in_c_order() {
        let grid = Grid(vec![2, 3]);
        assert_eq!(grid.len(), 6);
        for position in 0..6 {
            assert_eq!(grid.position(&grid.indices(position)), Some(position));
        }
        assert_eq!(grid.indices(4), [1, 1]);
        for wrong in [&[2, 0][..], &[0, 3], &[0], &[0, 0, 0]] {
            assert_eq!(grid.position(wrong), None);
        }
        let large = Grid(vec![u64::MAX, u64::MAX]);
        let last = vec![u64::MAX - 1, u64::MAX - 1];
        let position = large.position(&last).unwrap();
        assert_eq!((position + 1, large.indices(position)), (large.len(), last));
    }

    #[test]
    fn grids_that_cannot_be_numbered_are_refused() {
        let array = |shape: Vec<u64>| {
            let rank = shape.len();
            ArrayBuilder::new(shape, vec![1; rank], data_type::uint8(), 0_u8)
                .build(Arc::new(MemoryStore::new()), "/")
                .unwrap()
        };
        assert!(Grid::of(&array(vec![u64::MAX; 2])).is_ok());
        assert!(Grid::of(&array(vec![1 << 43; 3])).is_err());
        assert!(Grid::of(&array(vec![1 << 60, 0, 1 << 60])).is_ok());
    }
}

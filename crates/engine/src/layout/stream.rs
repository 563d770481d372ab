//! The grid of an array that grows along its first axis: its slices, epochs, batches and shard epochs.
//!
//! A *slice* is all elements at one index of the first axis. An *epoch* is all subchunks at one index of that
//! axis, which are `subchunk[0]` slices. A *shard epoch* is all shards at one index of that axis, which are
//! `shard[0] / subchunk[0]` epochs. A *batch* is the epochs that are encoded together: some epochs of one
//! shard epoch, or several whole shard epochs.
//!
//! ```text
//! subchunks along axis d > 0:   ceil(extent[d] / subchunk[d])             (the document's tile_count)
//! shards along axis d > 0:      ceil(subchunks[d] / per_shard[d])         (shard_count)
//! subchunks of an epoch:        M = product over d > 0 of subchunks[d]
//! shards in flight:             S = product over d > 0 of shards[d]
//! ```
//!
//! The coordinates of the subchunks of a batch are lifted to (shard, within) along each axis, and subchunks
//! are ordered by all shard coordinates first. A shard at the edge of the array has fewer subchunks than a
//! full one, but they form a box. So each shard's part of a batch is a box in C order.

use std::fmt;

use super::grid::GridError;
use super::permutation::PermutationError;
use super::{ShardPermutation, SubchunkGrid, c_order};

/// An array that grows along its first axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamGrid {
    /// The grid of subchunks in a shard.
    shard: SubchunkGrid,
    /// The number of elements of the array along each axis except for the first.
    inner: Vec<usize>,
    slice_bytes: usize,
    epoch_bytes: usize,
}

/// The reason why an array cannot be written as a stream of slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamGridError {
    /// The array has no axis.
    NoAxis,
    /// The array and its shards have different ranks.
    Rank { array: usize, shard: usize },
    /// An extent is zero: there are no elements in a slice.
    Empty { axis: usize },
    /// A batch of this number of epochs has more bytes than this machine can address.
    TooLarge { epochs: usize },
}

impl fmt::Display for StreamGridError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAxis => f.write_str("an array without axes has none to append along"),
            Self::Rank { array, shard } => write!(
                f,
                "the array has {array} dimensions and its shards have {shard}"
            ),
            Self::Empty { axis } => write!(
                f,
                "the array has no elements along axis {axis}, so its slices are empty"
            ),
            Self::TooLarge { epochs } => write!(
                f,
                "{epochs} epochs together are more bytes than this machine can address"
            ),
        }
    }
}

impl std::error::Error for StreamGridError {}

impl StreamGrid {
    /// Returns the grid for shards of `shard`. `inner` are the extents of the array except for the first, in
    /// elements.
    ///
    /// # Errors
    /// A [`StreamGridError`] if the shapes do not fit, or if slices are empty or too large for this machine.
    pub fn new(shard: SubchunkGrid, inner: &[u64]) -> Result<Self, StreamGridError> {
        let too_large = StreamGridError::TooLarge { epochs: 1 };
        let rank = shard.shard().len();
        if rank == 0 {
            return Err(StreamGridError::NoAxis);
        }
        if inner.len() + 1 != rank {
            return Err(StreamGridError::Rank {
                array: inner.len() + 1,
                shard: rank,
            });
        }
        if let Some(axis) = inner.iter().position(|&extent| extent == 0) {
            return Err(StreamGridError::Empty { axis: axis + 1 });
        }
        let inner = inner
            .iter()
            .map(|&extent| usize::try_from(extent).ok())
            .collect::<Option<Vec<_>>>()
            .ok_or(too_large.clone())?;
        // Check the sizes of padded slices: engines may keep whole subchunks in memory.
        let padded = std::iter::zip(&inner, &shard.subchunk()[1..])
            .try_fold(shard.element_size(), |bytes, (&extent, &subchunk)| {
                bytes.checked_mul(extent.checked_next_multiple_of(subchunk)?)
            })
            .and_then(|bytes| bytes.checked_mul(shard.subchunk()[0]))
            .filter(|&bytes| isize::try_from(bytes).is_ok());
        if padded.is_none() {
            return Err(too_large);
        }
        // These products cannot overflow: they are at most the padded sizes, which were checked.
        let slice_bytes = inner.iter().product::<usize>() * shard.element_size();
        let epoch_bytes = slice_bytes * shard.subchunk()[0];
        Ok(Self {
            shard,
            inner,
            slice_bytes,
            epoch_bytes,
        })
    }

    /// Returns the grid of subchunks in a shard.
    pub fn shard(&self) -> &SubchunkGrid {
        &self.shard
    }

    /// Returns the number of elements along each axis except for the first.
    pub(crate) fn inner(&self) -> &[usize] {
        &self.inner
    }

    /// Returns the number of bytes of one slice.
    pub fn slice_bytes(&self) -> usize {
        self.slice_bytes
    }

    /// Returns the number of slices in an epoch.
    pub fn epoch_slices(&self) -> usize {
        self.shard.subchunk()[0]
    }

    /// Returns the number of bytes of an epoch.
    pub fn epoch_bytes(&self) -> usize {
        self.epoch_bytes
    }

    /// Returns the number of epochs in a shard epoch.
    pub fn epochs_per_shard(&self) -> usize {
        self.shard.counts()[0]
    }

    /// Returns the number of slices in a shard epoch.
    pub fn shard_slices(&self) -> usize {
        self.shard.shard()[0]
    }

    /// Returns the number of subchunks along each axis except for the first.
    pub fn subchunks(&self) -> Vec<usize> {
        self.per_axis(&self.shard.subchunk()[1..])
    }

    /// Returns the number of subchunks in an epoch.
    pub fn subchunks_per_epoch(&self) -> usize {
        self.subchunks().iter().product()
    }

    /// Returns the number of shards along each axis except for the first.
    pub fn shards(&self) -> Vec<usize> {
        self.per_axis(&self.shard.shard()[1..])
    }

    /// Returns the number of shards in a shard epoch, which are written at the same time.
    pub fn shards_per_epoch(&self) -> usize {
        self.shards().iter().product()
    }

    fn per_axis(&self, extents: &[usize]) -> Vec<usize> {
        std::iter::zip(&self.inner, extents)
            .map(|(all, one)| all.div_ceil(*one))
            .collect()
    }

    /// Returns the largest number of epochs, at most `epochs` but at least 1, with which no batch crosses the
    /// border of a shard epoch: a divisor of a shard epoch, or several whole shard epochs.
    pub fn whole_batch(&self, epochs: usize) -> usize {
        let per_shard = self.epochs_per_shard();
        if epochs >= per_shard {
            return epochs / per_shard * per_shard;
        }
        // Divisors come in pairs, and one of each pair is at most the square root.
        let mut best = 1;
        let pairs = (1..=per_shard.isqrt()).filter(|divisor| per_shard.is_multiple_of(*divisor));
        for divisor in pairs.flat_map(|small| [small, per_shard / small]) {
            if divisor <= epochs && divisor > best {
                best = divisor;
            }
        }
        best
    }

    /// Returns the number of subchunks in a batch of `epochs`, and the number of shards of which it has
    /// parts; `None` if a number is too large.
    pub(crate) fn batch_counts(&self, epochs: usize) -> Option<(usize, usize)> {
        let subchunks = self.subchunks_per_epoch().checked_mul(epochs)?;
        let shard_epochs = epochs.div_ceil(self.epochs_per_shard());
        Some((
            subchunks,
            self.shards_per_epoch().checked_mul(shard_epochs)?,
        ))
    }

    /// Returns the grid of a batch of `epochs`: at most one shard epoch, or several whole shard epochs and
    /// perhaps a short last one.
    ///
    /// # Errors
    /// [`StreamGridError::TooLarge`] if this machine cannot address the batch.
    pub fn batch(&self, epochs: usize) -> Result<BatchGrid, StreamGridError> {
        BatchGrid::new(self, epochs)
    }

    /// Returns the number of subchunks of a batch of `epochs` along each axis.
    pub(crate) fn batch_subchunks(&self, epochs: usize) -> Vec<usize> {
        let mut counts = vec![epochs];
        counts.extend(self.subchunks());
        counts
    }

    /// Returns the number of subchunks of a shard in a batch of `epochs`, along each axis. If a batch is
    /// shorter than a shard, epochs of other batches are left out.
    pub(crate) fn batch_subchunks_per_shard(&self, epochs: usize) -> Vec<usize> {
        let mut per_shard = self.shard.counts().to_vec();
        per_shard[0] = per_shard[0].min(epochs);
        per_shard
    }

    /// Returns the places of the subchunks of a batch of `epochs`, among the slots of its shards.
    ///
    /// # Errors
    /// There are too many slots.
    pub(crate) fn batch_permutation(
        &self,
        epochs: usize,
    ) -> Result<ShardPermutation, PermutationError> {
        let counts = self.batch_subchunks(epochs);
        ShardPermutation::new(&counts, &self.batch_subchunks_per_shard(epochs))
    }

    /// Returns the grid of a batch of `epochs` as if it were one shard: its slices, padded to whole
    /// subchunks.
    ///
    /// # Errors
    /// This machine cannot address the padded batch.
    pub(crate) fn padded_batch(&self, epochs: usize) -> Result<SubchunkGrid, GridError> {
        let subchunk = self.shard.subchunk().iter().map(|&extent| extent as u64);
        let subchunk: Vec<u64> = subchunk.collect();
        let shape: Vec<u64> = std::iter::zip(self.batch_subchunks(epochs), &subchunk)
            .map(|(count, extent)| count as u64 * extent)
            .collect();
        SubchunkGrid::new(&shape, &subchunk, self.shard.element_size())
    }
}

/// The places of the subchunks of a batch, in shard-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchGrid {
    epochs: usize,
    /// The parts of the batch, in C order of their shards.
    parts: Vec<ShardPart>,
    subchunks: usize,
}

/// The part of a batch in one shard: a box of subchunks, in C order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPart {
    /// The coordinates of the shard. The first one is relative to the first shard of the batch.
    pub shard: Vec<usize>,
    /// The number of subchunks along each axis.
    pub counts: Vec<usize>,
    /// The number of subchunks of the batch in earlier parts.
    pub(crate) first: usize,
}

impl ShardPart {
    /// Returns the number of subchunks.
    pub fn len(&self) -> usize {
        self.counts.iter().product()
    }
}

impl BatchGrid {
    fn new(grid: &StreamGrid, epochs: usize) -> Result<Self, StreamGridError> {
        let too_large = || StreamGridError::TooLarge { epochs };
        let all = grid
            .subchunks_per_epoch()
            .checked_mul(epochs)
            .ok_or_else(too_large)?;
        let bytes = all.checked_mul(grid.shard.subchunk_bytes());
        bytes
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(too_large)?;
        let mut subchunks = vec![epochs];
        subchunks.extend(grid.subchunks());
        let per_shard = grid.shard.counts();
        let shards: Vec<usize> = std::iter::zip(&subchunks, per_shard)
            .map(|(all, one)| all.div_ceil(*one))
            .collect();
        let mut parts = Vec::new();
        let mut first = 0;
        for number in 0..shards.iter().product() {
            let shard = c_order::coordinates(number, &shards);
            let counts = (0..shards.len())
                .map(|axis| (subchunks[axis] - shard[axis] * per_shard[axis]).min(per_shard[axis]))
                .collect();
            let part = ShardPart {
                shard,
                counts,
                first,
            };
            first += part.len();
            parts.push(part);
        }
        Ok(Self {
            epochs,
            parts,
            subchunks: all,
        })
    }

    /// Returns the number of epochs in the batch.
    pub fn epochs(&self) -> usize {
        self.epochs
    }

    /// Returns the part of the batch in each shard, in C order of the shards.
    pub fn parts(&self) -> &[ShardPart] {
        &self.parts
    }

    /// Returns the number of subchunks.
    pub(crate) fn subchunks(&self) -> usize {
        self.subchunks
    }

    /// Returns, for each subchunk, its place in shard-major order, and the number of its part. Subchunks are
    /// in C order of (epoch, subchunks of an epoch).
    pub(crate) fn places(&self, grid: &StreamGrid) -> Vec<(usize, usize)> {
        let mut subchunks = vec![self.epochs];
        subchunks.extend(grid.subchunks());
        let per_shard = grid.shard.counts();
        let mut places = vec![(0, 0); self.subchunks];
        for (part_number, part) in self.parts.iter().enumerate() {
            for within in 0..part.len() {
                let at = c_order::coordinates(within, &part.counts)
                    .into_iter()
                    .enumerate();
                let at = at.map(|(axis, at)| part.shard[axis] * per_shard[axis] + at);
                let number = c_order::number(at, subchunks.iter().copied());
                places[number] = (part.first + within, part_number);
            }
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::layout::ShardPermutation;

    fn grid(axes: &[(u64, u64, u64)]) -> StreamGrid {
        let shard: Vec<u64> = axes.iter().map(|(_, sub, per)| sub * per).collect();
        let subchunk: Vec<u64> = axes.iter().map(|(_, sub, _)| *sub).collect();
        let inner: Vec<u64> = axes[1..].iter().map(|(extent, ..)| *extent).collect();
        let shard = SubchunkGrid::new(&shard, &subchunk, 2).expect("divides");
        StreamGrid::new(shard, &inner).expect("fits")
    }

    #[test]
    fn three_by_three_subchunks_in_two_by_two() {
        // Two epochs per shard epoch; 5 × 9 elements in subchunks of 2 × 3, two of each per shard.
        let grid = grid(&[(0, 4, 2), (5, 2, 2), (9, 3, 2)]);
        assert_eq!(grid.subchunks(), [3, 3]);
        assert_eq!(grid.shards(), [2, 2]);
        assert_eq!(
            (grid.subchunks_per_epoch(), grid.shards_per_epoch()),
            (9, 4)
        );
        assert_eq!((grid.slice_bytes(), grid.epoch_bytes()), (90, 360));
        let batch = grid.batch(1).expect("fits");
        let counts: Vec<&[usize]> = batch.parts().iter().map(|p| &p.counts[..]).collect();
        assert_eq!(counts, [[1, 2, 2], [1, 2, 1], [1, 1, 2], [1, 1, 1]]);
        let places: Vec<usize> = batch
            .places(&grid)
            .iter()
            .map(|(place, _)| *place)
            .collect();
        assert_eq!(places, [0, 1, 4, 2, 3, 5, 6, 7, 8]);
    }

    #[test]
    fn batches_keep_to_shard_epochs() {
        let grid = grid(&[(0, 1, 12), (1, 1, 1)]);
        let whole: Vec<usize> = (0..30).map(|epochs| grid.whole_batch(epochs)).collect();
        assert_eq!(whole[..7], [1, 1, 2, 3, 4, 4, 6]);
        assert_eq!(
            (whole[11], whole[12], whole[23], whole[29]),
            (6, 12, 12, 24)
        );
    }

    #[test]
    fn what_cannot_be_a_stream_is_an_error() {
        let shard =
            |rank: usize| SubchunkGrid::new(&vec![2; rank], &vec![1; rank], 2).expect("divides");
        assert_eq!(StreamGrid::new(shard(0), &[]), Err(StreamGridError::NoAxis));
        assert!(matches!(
            StreamGrid::new(shard(3), &[4]),
            Err(StreamGridError::Rank { array: 2, shard: 3 })
        ));
        assert!(matches!(
            StreamGrid::new(shard(3), &[4, 0]),
            Err(StreamGridError::Empty { axis: 2 })
        ));
        assert!(matches!(
            StreamGrid::new(shard(2), &[u64::MAX / 2]),
            Err(StreamGridError::TooLarge { .. })
        ));
        let grid = StreamGrid::new(shard(2), &[4]).expect("fits");
        assert!(grid.batch(usize::MAX / 4).is_err());
    }

    proptest! {
        #![proptest_config(zarrs_cuda_testing::effort::config(128))]

        /// The places are those of the shard permutation, without the slots that nothing fills.
        #[test]
        fn places_are_the_permutation_without_gaps(
            axes in prop::collection::vec((1_u64..20, 1_u64..5, 1_u64..4), 1..4),
            epochs in 1_usize..5,
        ) {
            let grid = grid(&axes);
            let epochs = if epochs > grid.epochs_per_shard() {
                epochs / grid.epochs_per_shard() * grid.epochs_per_shard()
            } else {
                epochs
            };
            let batch = grid.batch(epochs).expect("fits");
            let mut subchunks = vec![epochs];
            subchunks.extend(grid.subchunks());
            let permutation =
                ShardPermutation::new(&subchunks, grid.shard().counts()).expect("small");
            let mut order: Vec<usize> = (0..batch.subchunks()).collect();
            order.sort_by_key(|&number| permutation.place(number));
            let counts = Some((batch.subchunks(), batch.parts().len()));
            prop_assert_eq!(grid.batch_counts(epochs), counts);
            let places = batch.places(&grid);
            for (place, number) in order.into_iter().enumerate() {
                prop_assert_eq!(places[number].0, place);
                let part = &batch.parts()[places[number].1];
                prop_assert!((part.first..part.first + part.len()).contains(&place));
            }
        }
    }
}

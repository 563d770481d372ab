//! The shard permutation: it maps the number of a subchunk to a place in shard-major order.
//!
//! The subchunks of a batch (an epoch, or whole shards) are numbered in C order over all its shards.
//! Lifting each coordinate into (shard, within), and ordering by all the shard coordinates first,
//! brings the subchunks of a shard together, in C order.
//!
//! A shard at the edge has fewer subchunks than a full shard. So places are numbers of *padded slots*, with
//! which every shard has the slots of a full one. 3 × 3 subchunks in shards of 2 × 2 are 9 subchunks in 16
//! padded slots.

use std::fmt;

/// The reason why there is no permutation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PermutationError {
    /// The shapes differ in their number of dimensions.
    Dimensionality { subchunks: usize, per_shard: usize },
    /// A shard has no subchunks along an axis.
    EmptyShard { axis: usize },
    /// There are more than `u32::MAX` padded slots.
    TooMany { subchunks: Vec<usize> },
}

impl fmt::Display for PermutationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dimensionality {
                subchunks,
                per_shard,
            } => write!(
                f,
                "the subchunks have {subchunks} dimensions and their shards have {per_shard}"
            ),
            Self::EmptyShard { axis } => {
                write!(f, "a shard has no subchunks along axis {axis}")
            }
            Self::TooMany { subchunks } => write!(
                f,
                "shards for subchunks of counts {subchunks:?} have more than 2^32 - 1 slots"
            ),
        }
    }
}

impl std::error::Error for PermutationError {}

/// The digit of one axis: it determines the summand of this axis in the place of a subchunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LiftedDigit {
    /// The number of subchunks along the axis.
    pub(crate) extent: u64,
    /// The number of subchunks of a shard along the axis.
    pub(crate) per_shard: u64,
    /// The number of padded slots from one shard to the next along the axis.
    pub(crate) shard_stride: u64,
    /// The number of padded slots from one subchunk to the next within a shard.
    pub(crate) within_stride: u64,
}

/// The place in shard-major order of each subchunk of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPermutation {
    /// The digits of the axes, fastest first, without axes that have one subchunk.
    digits: Vec<LiftedDigit>,
    subchunks: usize,
    padded_slots: usize,
}

impl ShardPermutation {
    /// The most digits of a permutation: each digit at least doubles the number of subchunks, which is at
    /// most `u32::MAX`.
    pub(crate) const MAX_DIGITS: usize = 31;

    /// Returns the permutation for `subchunks` along each axis, slowest axis first. A shard has `per_shard`
    /// subchunks along each axis.
    ///
    /// # Errors
    /// A [`PermutationError`] if the shapes do not fit each other, or if there are too many padded slots.
    pub(crate) fn new(subchunks: &[usize], per_shard: &[usize]) -> Result<Self, PermutationError> {
        if subchunks.len() != per_shard.len() {
            return Err(PermutationError::Dimensionality {
                subchunks: subchunks.len(),
                per_shard: per_shard.len(),
            });
        }
        if let Some(axis) = per_shard.iter().position(|&n| n == 0) {
            return Err(PermutationError::EmptyShard { axis });
        }
        if subchunks.contains(&0) {
            return Ok(Self {
                digits: Vec::new(),
                subchunks: 0,
                padded_slots: 0,
            });
        }
        let too_many = || PermutationError::TooMany {
            subchunks: subchunks.to_vec(),
        };
        let bounded = |a: u64, b: usize| {
            u64::try_from(b)
                .ok()
                .and_then(|b| a.checked_mul(b))
                .filter(|&product| u32::try_from(product).is_ok())
                .ok_or_else(too_many)
        };
        let slots_per_shard = per_shard.iter().try_fold(1, |n, &k| bounded(n, k))?;
        let mut digits = Vec::new();
        let (mut shard_stride, mut within_stride, mut number) = (slots_per_shard, 1, 1);
        for (&extent, &within) in subchunks.iter().zip(per_shard).rev() {
            if extent > 1 {
                digits.push(LiftedDigit {
                    extent: bounded(1, extent)?,
                    per_shard: bounded(1, within)?,
                    shard_stride,
                    within_stride,
                });
            }
            number = bounded(number, extent)?;
            within_stride = bounded(within_stride, within)?;
            shard_stride = bounded(shard_stride, extent.div_ceil(within))?;
        }
        let to_usize = |n: u64| usize::try_from(n).map_err(|_| too_many());
        Ok(Self {
            digits,
            subchunks: to_usize(number)?,
            padded_slots: to_usize(shard_stride)?,
        })
    }

    /// Returns the digit of each axis, fastest first. Axes with one subchunk have no digit.
    pub(crate) fn digits(&self) -> &[LiftedDigit] {
        &self.digits
    }

    /// Returns the number of subchunks.
    pub(crate) fn subchunks(&self) -> usize {
        self.subchunks
    }

    /// Returns the number of slots in all shards, which is above every place.
    pub(crate) fn padded_slots(&self) -> usize {
        self.padded_slots
    }

    /// Returns the padded slot of subchunk `number`, which is less than
    /// [`subchunks`](Self::subchunks): what the kernel computes.
    #[cfg(test)]
    pub(crate) fn place(&self, number: usize) -> usize {
        let (mut number, mut place) = (number as u64, 0);
        for digit in &self.digits {
            let coordinate = number % digit.extent;
            number /= digit.extent;
            place += coordinate / digit.per_shard * digit.shard_stride
                + coordinate % digit.per_shard * digit.within_stride;
        }
        // The place is below the number of padded slots, which is a `usize`.
        usize::try_from(place).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns subchunks along each axis, and subchunks per shard.
    pub(crate) fn shapes() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
        proptest::collection::vec((0usize..6, 1usize..4), 0..5).prop_map(|axes| {
            // No subchunks at all is one case, and not the usual one.
            let empty = axes.iter().all(|&(extent, _)| extent < 2);
            let extent = |e: usize| if empty { e } else { e.max(1) };
            axes.iter().map(|&(e, within)| (extent(e), within)).unzip()
        })
    }

    /// Returns the place of subchunk `number` by the definition: the number of its shard, then its
    /// number within the shard.
    pub(crate) fn naive(subchunks: &[usize], per_shard: &[usize], mut number: usize) -> usize {
        let mut coordinates = vec![0; subchunks.len()];
        for axis in (0..subchunks.len()).rev() {
            coordinates[axis] = number % subchunks[axis];
            number /= subchunks[axis];
        }
        let (mut shard, mut within, mut slots) = (0, 0, 1);
        for axis in 0..subchunks.len() {
            let shards = subchunks[axis].div_ceil(per_shard[axis]);
            shard = shard * shards + coordinates[axis] / per_shard[axis];
            within = within * per_shard[axis] + coordinates[axis] % per_shard[axis];
            slots *= per_shard[axis];
        }
        shard * slots + within
    }

    #[test]
    fn edge_shards_reach_beyond_the_number_of_subchunks() {
        let p = ShardPermutation::new(&[3, 3], &[2, 2]).expect("small");
        assert_eq!((p.subchunks(), p.padded_slots()), (9, 16));
        let places: Vec<_> = (0..9).map(|i| p.place(i)).collect();
        assert_eq!(places, [0, 1, 4, 2, 3, 6, 8, 9, 12]);
    }

    #[test]
    fn one_shard_is_the_identity() {
        let p = ShardPermutation::new(&[3, 4, 5], &[3, 4, 5]).expect("small");
        assert_eq!((p.subchunks(), p.padded_slots()), (60, 60));
        assert!((0..60).all(|i| p.place(i) == i));
    }

    #[test]
    fn zero_dimensions_are_one_subchunk() {
        let p = ShardPermutation::new(&[], &[]).expect("small");
        assert_eq!((p.subchunks(), p.padded_slots(), p.place(0)), (1, 1, 0));
    }

    #[test]
    fn misfits_are_errors() {
        let error = |subchunks: &[usize], per_shard: &[usize]| {
            ShardPermutation::new(subchunks, per_shard).expect_err("must not fit")
        };
        assert!(matches!(
            error(&[1], &[1, 1]),
            PermutationError::Dimensionality { .. }
        ));
        assert!(matches!(
            error(&[1, 1], &[1, 0]),
            PermutationError::EmptyShard { axis: 1 }
        ));
        for (subchunks, per_shard) in [
            (vec![1 << 16, 1 << 16], vec![1, 1]),
            (vec![1, 1], vec![1 << 16, 1 << 16]),
            (vec![usize::MAX], vec![1]),
            (vec![2; 32], vec![1; 32]),
            (vec![(1 << 31) + 1], vec![1 << 31]),
        ] {
            assert!(matches!(
                error(&subchunks, &per_shard),
                PermutationError::TooMany { .. }
            ));
        }
        let most = ShardPermutation::new(&[2; 31], &[1; 31]).expect("2^31 slots");
        assert_eq!(most.digits().len(), ShardPermutation::MAX_DIGITS);
        assert_eq!(most.place((1 << 31) - 1), (1 << 31) - 1);
    }

    proptest! {
        #![proptest_config(zarrs_cuda_testing::effort::config(128))]

        #[test]
        fn places_are_shard_major((subchunks, per_shard) in shapes()) {
            let p = ShardPermutation::new(&subchunks, &per_shard).expect("small");
            prop_assert_eq!(p.subchunks(), subchunks.iter().product::<usize>());
            let mut used = vec![false; p.padded_slots()];
            for number in 0..p.subchunks() {
                let place = p.place(number);
                prop_assert_eq!(place, naive(&subchunks, &per_shard, number));
                prop_assert!(!std::mem::replace(&mut used[place], true), "{} twice", place);
            }
        }
    }
}

//! The regular grid of subchunks in a shard, numbered in C order; the subchunks that a box of elements meets.

use std::fmt;

use super::c_order;

/// The reason why a shard cannot be divided into subchunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GridError {
    /// The shapes differ in their number of dimensions.
    Dimensionality { shard: usize, subchunk: usize },
    /// The extent of a subchunk does not divide the extent of the shard.
    Indivisible {
        axis: usize,
        shard: u64,
        subchunk: u64,
    },
    /// The shard has more bytes, or more subchunks, than this machine can address.
    TooLarge { shard: Vec<u64> },
}

impl fmt::Display for GridError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dimensionality { shard, subchunk } => write!(
                f,
                "the shard has {shard} dimensions and its subchunks have {subchunk}"
            ),
            Self::Indivisible {
                axis,
                shard,
                subchunk,
            } => write!(
                f,
                "invalid subchunk shape: along axis {axis} the subchunk extent {subchunk} does not evenly divide the shard extent {shard}"
            ),
            Self::TooLarge { shard } => write!(
                f,
                "a shard of shape {shard:?} has more bytes than this machine can address"
            ),
        }
    }
}

impl std::error::Error for GridError {}

/// The grid of subchunks in a shard, with `counts[d] * subchunk[d] == shard[d]` elements along each axis.
///
/// All products (elements, bytes, subchunks) are checked once, when the grid is made, so that
/// later arithmetic on them cannot overflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubchunkGrid {
    shard: Vec<usize>,
    subchunk: Vec<usize>,
    counts: Vec<usize>,
    element_size: usize,
    num_subchunks: usize,
    subchunk_bytes: usize,
    shard_bytes: usize,
}

impl SubchunkGrid {
    /// Divides a shard with the extents `shard`, in elements of `element_size` bytes, into subchunks of shape
    /// `subchunk`.
    ///
    /// # Errors
    /// A [`GridError`] if the shapes do not fit each other, or if this machine cannot address the shard.
    pub fn new(shard: &[u64], subchunk: &[u64], element_size: usize) -> Result<Self, GridError> {
        if shard.len() != subchunk.len() {
            return Err(GridError::Dimensionality {
                shard: shard.len(),
                subchunk: subchunk.len(),
            });
        }
        for (axis, (&s, &c)) in shard.iter().zip(subchunk).enumerate() {
            if c == 0 || s % c != 0 {
                return Err(GridError::Indivisible {
                    axis,
                    shard: s,
                    subchunk: c,
                });
            }
        }
        let too_large = || GridError::TooLarge {
            shard: shard.to_vec(),
        };
        // One allocation may have at most `isize::MAX` bytes.
        let product = |factors: &[usize], first: usize| {
            factors
                .iter()
                .try_fold(first, |acc, &n| acc.checked_mul(n))
                .filter(|&n| isize::try_from(n).is_ok())
                .ok_or_else(too_large)
        };
        let to_usize = |extents: &[u64]| {
            extents
                .iter()
                .map(|&n| usize::try_from(n))
                .collect::<Result<Vec<_>, _>>()
                .map_err(|_| too_large())
        };
        let shard_usize = to_usize(shard)?;
        let subchunk = to_usize(subchunk)?;
        let counts: Vec<usize> = shard_usize
            .iter()
            .zip(&subchunk)
            .map(|(s, c)| s / c)
            .collect();
        Ok(Self {
            num_subchunks: product(&counts, 1)?,
            subchunk_bytes: product(&subchunk, element_size)?,
            shard_bytes: product(&shard_usize, element_size)?,
            shard: shard_usize,
            subchunk,
            counts,
            element_size,
        })
    }

    /// Returns the grid of a shard that is one subchunk of this one.
    pub(crate) fn one_subchunk(&self) -> Self {
        Self {
            shard: self.subchunk.clone(),
            subchunk: self.subchunk.clone(),
            counts: vec![1; self.counts.len()],
            num_subchunks: 1,
            shard_bytes: self.subchunk_bytes,
            ..*self
        }
    }

    /// Returns the grid of a shard that has `num_subchunks` of these subchunks along its first axis.
    ///
    /// # Errors
    /// A [`GridError`] if this machine cannot address that shard.
    pub fn stacked(&self, num_subchunks: usize) -> Result<Self, GridError> {
        let to_u64 = |shape: &[usize]| shape.iter().map(|&n| n as u64).collect::<Vec<_>>();
        let subchunk = to_u64(&self.subchunk);
        let mut shard = subchunk.clone();
        // A shard without axes has just one subchunk.
        if let Some(first) = shard.first_mut() {
            *first = first.saturating_mul(num_subchunks as u64);
        }
        Self::new(&shard, &subchunk, self.element_size)
    }

    /// Returns the shard's extents, in elements.
    pub fn shard(&self) -> &[usize] {
        &self.shard
    }

    /// Returns a subchunk's extents, in elements.
    pub fn subchunk(&self) -> &[usize] {
        &self.subchunk
    }

    /// Returns the number of subchunks along each axis.
    pub fn counts(&self) -> &[usize] {
        &self.counts
    }

    /// Returns the size of an element, in bytes.
    pub fn element_size(&self) -> usize {
        self.element_size
    }

    /// Returns the number of subchunks in the shard.
    pub fn num_subchunks(&self) -> usize {
        self.num_subchunks
    }

    /// Returns the size of a decoded subchunk, in bytes.
    pub fn subchunk_bytes(&self) -> usize {
        self.subchunk_bytes
    }

    /// Returns the size of the decoded shard, in bytes.
    pub fn shard_bytes(&self) -> usize {
        self.shard_bytes
    }

    /// Returns the first element of subchunk `number` (C order), as coordinates in the shard.
    pub fn origin(&self, number: usize) -> Vec<usize> {
        let coordinates = c_order::coordinates(number, &self.counts);
        let origin = std::iter::zip(coordinates, &self.subchunk);
        origin.map(|(at, extent)| at * extent).collect()
    }

    /// Returns the number of subchunks from subchunk `number`, included, to the end of its row along the last
    /// axis.
    pub(crate) fn neighbours(&self, number: usize) -> usize {
        let along_last_axis = self.counts.last().copied().unwrap_or(1).max(1);
        along_last_axis - number % along_last_axis
    }

    /// Returns the numbers, in C order, of the subchunks that the box from `start` of shape `shape` meets.
    /// Both are in elements.
    pub fn numbers_in(&self, start: &[usize], shape: &[usize]) -> Vec<usize> {
        if shape.contains(&0) {
            return Vec::new();
        }
        let mut numbers = vec![0];
        for (((start, extent), subchunk), count) in start
            .iter()
            .zip(shape)
            .zip(&self.subchunk)
            .zip(&self.counts)
        {
            let met = start / subchunk..=(start + extent - 1) / subchunk;
            numbers = numbers
                .iter()
                .flat_map(|number| met.clone().map(move |at| number * count + at))
                .collect();
        }
        numbers
    }

    /// Returns the number, in C order, of the subchunk at `coordinates` of the grid of subchunks.
    pub fn number(&self, coordinates: impl IntoIterator<Item = usize>) -> usize {
        c_order::number(coordinates, self.counts.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_origins_are_inverse() {
        let grid = SubchunkGrid::new(&[4, 6, 10], &[2, 3, 5], 2).expect("divides");
        assert_eq!(grid.num_subchunks(), 8);
        for number in 0..grid.num_subchunks() {
            let origin = grid.origin(number);
            let coordinates = origin.iter().zip(grid.subchunk()).map(|(o, c)| o / c);
            assert_eq!(grid.number(coordinates), number);
        }
        assert_eq!(grid.origin(1), [0, 0, 5]);
        assert_eq!(grid.origin(2), [0, 3, 0]);
    }

    #[test]
    fn zero_dimensions_are_one_subchunk() {
        let grid = SubchunkGrid::new(&[], &[], 8).expect("zero dimensions");
        assert_eq!((grid.num_subchunks(), grid.shard_bytes()), (1, 8));
        assert!(grid.origin(0).is_empty());
    }

    #[test]
    fn misfits_are_errors() {
        assert!(matches!(
            SubchunkGrid::new(&[4], &[2, 2], 1),
            Err(GridError::Dimensionality { .. })
        ));
        assert!(matches!(
            SubchunkGrid::new(&[4, 5], &[2, 2], 1),
            Err(GridError::Indivisible { axis: 1, .. })
        ));
        assert!(matches!(
            SubchunkGrid::new(&[1 << 40, 1 << 40], &[1, 1], 1),
            Err(GridError::TooLarge { .. })
        ));
        assert!(matches!(
            SubchunkGrid::new(&[u64::MAX], &[1], 1),
            Err(GridError::TooLarge { .. })
        ));
    }
}

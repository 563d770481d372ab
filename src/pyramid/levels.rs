//! Computes the levels of a pyramid, in integers: their extents, subchunks and shards, and the slice from
//! which each is written.

/// The shapes of a level's array, and how the level is made from the level above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Level {
    /// The number of elements along each axis but the first, which grows.
    pub(super) inner: Vec<u64>,
    pub(super) subchunk: Vec<u64>,
    pub(super) shard: Vec<u64>,
    /// The number of elements of the level above along each axis that make one element of this level: 1 or 2.
    /// For level 0, all are 1.
    pub(super) factors: Vec<u64>,
}

impl Level {
    /// Returns the level below, with its subchunks and shards clipped to its extents.
    fn below(&self, top: &Self, factors: &[u64]) -> Self {
        let halved = std::iter::zip(&self.inner, &factors[1..]);
        let inner: Vec<u64> = halved.map(|(extent, by)| extent.div_ceil(*by)).collect();
        let (mut subchunk, mut shard) = (vec![top.subchunk[0]], vec![top.shard[0]]);
        for (axis, extent) in inner.iter().enumerate() {
            let of_top = (top.subchunk[axis + 1], top.shard[axis + 1]);
            let clipped = of_top.0.min(*extent);
            subchunk.push(clipped);
            shard.push(if clipped < of_top.0 {
                clipped
            } else {
                of_top.1.min(extent.next_multiple_of(clipped))
            });
        }
        Self {
            inner,
            subchunk,
            shard,
            factors: factors.to_vec(),
        }
    }

    /// Returns whether one subchunk covers a slice along the axes that are halved.
    fn fits_one_subchunk(&self, factors: &[u64]) -> bool {
        let axes = self
            .inner
            .iter()
            .zip(&self.subchunk[1..])
            .zip(&factors[1..]);
        let mut divided = axes.filter(|(_, factor)| **factor > 1);
        divided.all(|((extent, subchunk), _)| extent <= subchunk)
    }

    /// Returns the number of slices in a shard.
    pub(super) fn shard_slices(&self) -> u64 {
        self.shard[0]
    }
}

/// More levels than any image has: after so many halvings every extent is 1.
const MOST_LEVELS: usize = 64;

/// Returns `top` and the levels below it: `count` levels or, if `None`, enough that one subchunk covers a
/// slice of the last level.
///
/// # Errors
/// The reason why the image cannot have these levels.
pub(super) fn levels(
    top: &Level,
    factors: &[u64],
    count: Option<usize>,
) -> Result<Vec<Level>, String> {
    if let Some(axis) = factors.iter().position(|factor| !(1..=2).contains(factor)) {
        return Err(format!(
            "axis {axis} has the factor {}: a level has all or half of the elements of the level above along an axis, so factors are 1 and 2",
            factors[axis]
        ));
    }
    let count = match count {
        Some(count) if (1..=MOST_LEVELS).contains(&count) => Some(count),
        Some(count) => {
            return Err(format!(
                "{count} levels were asked for: a pyramid has 1 to {MOST_LEVELS}, with level 0"
            ));
        }
        None if factors[1..].iter().all(|factor| *factor == 1) => {
            return Err("no axis but the first is divided, so that no level has smaller slices than the one above: say how many levels there are".to_owned());
        }
        None => None,
    };
    let mut levels = vec![top.clone()];
    let is_last = |levels: &[Level]| {
        let enough = count.is_some_and(|count| levels.len() == count);
        let fits = |level: &Level| count.is_none() && level.fits_one_subchunk(factors);
        enough || levels.last().is_none_or(fits)
    };
    while !is_last(&levels) {
        let next = levels.last().map(|level| level.below(top, factors));
        levels.extend(next);
    }
    Ok(levels)
}

/// Returns the slice from which on each level is written, if level 0 is written from slice `first` on and
/// `stored` slices of each level are stored. The slice is at the border of a shard, and all slices before it
/// are stored. The slices of the level above from which it is made are stored or written now.
pub(super) fn starts(levels: &[Level], stored: &[u64], first: u64) -> Vec<u64> {
    let mut starts = vec![first];
    for (level, stored) in levels.iter().zip(stored).skip(1) {
        let above = starts[starts.len() - 1] / level.factors[0];
        let shard = level.shard_slices();
        starts.push((*stored).min(above) / shard * shard);
    }
    starts
}

/// Returns the number of slices of each level of an image with `slices` slices of level 0.
pub(super) fn lengths(levels: &[Level], slices: u64) -> Vec<u64> {
    let mut length = slices;
    let halved = levels.iter().map(|level| {
        length = length.div_ceil(level.factors[0]);
        length
    });
    halved.collect()
}

/// Returns the number of slices of each level whose windows are all within the first `slices` slices of level
/// 0.
pub(super) fn whole_windows(levels: &[Level], slices: u64) -> Vec<u64> {
    let mut whole = slices;
    let halved = levels.iter().map(|level| {
        whole /= level.factors[0];
        whole
    });
    halved.collect()
}

/// Returns the fewest slices of level 0 that make whole shards of all levels; `None` if the number overflows.
pub(super) fn block(levels: &[Level]) -> Option<u64> {
    let mut of_one = 1_u64;
    levels.iter().try_fold(1, |block, level| {
        of_one = of_one.checked_mul(level.factors[0])?;
        let shard = of_one.checked_mul(level.shard_slices())?;
        least_common_multiple(block, shard)
    })
}

fn least_common_multiple(a: u64, b: u64) -> Option<u64> {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor.max(1)).checked_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn top(inner: &[u64], subchunk: &[u64], shard: &[u64]) -> Level {
        Level {
            inner: inner.to_vec(),
            subchunk: subchunk.to_vec(),
            shard: shard.to_vec(),
            factors: vec![1; shard.len()],
        }
    }

    #[test]
    fn until_a_level_fits_one_subchunk() {
        let top = top(&[1000, 513], &[16, 64, 64], &[32, 256, 512]);
        let levels = levels(&top, &[2, 2, 2], None).unwrap();
        let inner: Vec<_> = levels.iter().map(|level| level.inner.clone()).collect();
        assert_eq!(
            inner,
            [[1000, 513], [500, 257], [250, 129], [125, 65], [63, 33]]
        );
        assert_eq!(levels[2].shard, [32, 256, 192]);
        assert_eq!(levels[2].subchunk, [16, 64, 64]);
        assert_eq!(
            (&levels[4].subchunk, &levels[4].shard),
            (&vec![16, 63, 33], &vec![32, 63, 33])
        );
    }

    #[test]
    fn refused() {
        let top = top(&[8, 8], &[1, 4, 4], &[1, 4, 4]);
        assert!(
            levels(&top, &[1, 3, 2], None)
                .unwrap_err()
                .contains("axis 1")
        );
        assert!(
            levels(&top, &[2, 1, 1], None)
                .unwrap_err()
                .contains("how many")
        );
        assert!(levels(&top, &[2, 2, 2], Some(0)).is_err());
        assert_eq!(levels(&top, &[2, 1, 1], Some(3)).unwrap().len(), 3);
        assert_eq!(levels(&top, &[2, 2, 2], Some(1)).unwrap(), [top]);
    }

    #[test]
    fn blocks_are_whole_shards_of_all_levels() {
        let top = top(&[8, 8], &[1, 4, 4], &[6, 8, 8]);
        let mut levels = levels(&top, &[2, 2, 2], Some(3)).unwrap();
        assert_eq!(block(&levels), Some(24));
        levels[2].shard[0] = 4;
        assert_eq!(block(&levels), Some(48));
        assert_eq!(lengths(&levels, 13), [13, 7, 4]);
        levels[1].shard[0] = u64::MAX / 2;
        assert_eq!(block(&levels), None);
    }

    #[test]
    fn levels_start_where_all_above_is_there() {
        let top = top(&[8, 8], &[1, 4, 4], &[4, 8, 8]);
        let levels = levels(&top, &[2, 2, 2], Some(3)).unwrap();
        assert_eq!(starts(&levels, &[0, 0, 0], 0), [0, 0, 0]);
        // A level that is ahead, and one that is behind.
        assert_eq!(starts(&levels, &[20, 12, 0], 20), [20, 8, 0]);
        assert_eq!(starts(&levels, &[64, 32, 16], 64), [64, 32, 16]);
        assert_eq!(starts(&levels, &[64, 32, 16], 36), [36, 16, 8]);
    }
}

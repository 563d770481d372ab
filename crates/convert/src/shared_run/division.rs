//! Divides the shards of a run into parts of about as many bytes.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

/// The shard at which a part begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct PartStart {
    /// The number of the array among the arrays of the run.
    pub(crate) array: usize,
    /// The position of the shard in the grid of the array, in C order. It is text, because it may need 128 bits.
    #[serde(with = "text")]
    pub(crate) shard: u128,
}

/// The division of a run into parts.
#[derive(Default)]
pub(crate) struct Division {
    /// The first shard of each part; none if parts are no ranges of shards.
    pub(crate) starts: Vec<PartStart>,
    /// The number of shards of each part; none if parts are no ranges of shards.
    pub(crate) shards: Vec<u64>,
}

impl Division {
    /// Divides a run into `parts` parts. `shards` are all shards of the run, in their order, with the number of bytes
    /// that each takes.
    pub(crate) fn of(
        shards: impl Iterator<Item = (PartStart, u64)> + Clone,
        parts: NonZeroU64,
    ) -> Self {
        let starts = starts(shards.clone(), parts);
        let mut counts = vec![0; starts.len()];
        for (shard, _) in shards {
            let part = starts.partition_point(|start| *start <= shard);
            if let Some(count) = counts.get_mut(part.saturating_sub(1)) {
                *count += 1;
            }
        }
        Self {
            starts,
            shards: counts,
        }
    }
}

/// Returns the first shard of each of `parts` parts. `shards` are all shards of the run, in their order, with the
/// number of bytes that each takes.
fn starts(
    shards: impl Iterator<Item = (PartStart, u64)> + Clone,
    parts: NonZeroU64,
) -> Vec<PartStart> {
    let total = shards
        .clone()
        .fold(0_u128, |sum, (_, bytes)| sum + u128::from(bytes));
    let parts = u128::from(parts.get());
    let mut starts = vec![PartStart { array: 0, shard: 0 }];
    let mut before = 0_u128;
    let mut end = PartStart { array: 0, shard: 0 };
    for (start, bytes) in shards {
        // A shard belongs to the part in whose share its middle lies.
        let middle = 2 * before + u128::from(bytes);
        while (starts.len() as u128) < parts && middle * parts >= 2 * total * starts.len() as u128 {
            starts.push(start);
        }
        before += u128::from(bytes);
        end = PartStart {
            shard: start.shard.saturating_add(1),
            ..start
        };
    }
    // The other parts are empty.
    while (starts.len() as u128) < parts {
        starts.push(end);
    }
    starts
}

/// Numbers as text.
mod text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(number: &u128, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(number)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<u128, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(bytes: &[u64], parts: u64) -> Vec<Vec<u64>> {
        let at = |shard: usize| PartStart {
            array: shard / 3,
            shard: shard as u128 % 3,
        };
        let shards = bytes.iter().enumerate().map(|(n, bytes)| (at(n), *bytes));
        let Division {
            starts,
            shards: counts,
        } = Division::of(shards.clone(), NonZeroU64::new(parts).unwrap());
        assert_eq!(starts.len() as u64, parts);
        assert!(starts.is_sorted());
        let mut all = Vec::new();
        for (number, start) in starts.iter().enumerate() {
            let end = starts.get(number + 1);
            let mine = shards
                .clone()
                .filter(|(at, _)| at >= start && end.is_none_or(|end| at < end));
            let mine: Vec<u64> = mine.map(|(_, bytes)| bytes).collect();
            assert_eq!(mine.len() as u64, counts[number]);
            all.push(mine);
        }
        all
    }

    #[test]
    fn shares_are_about_equal_and_have_each_shard_once() {
        assert_eq!(divided(&[1, 1, 1, 1], 2), [[1, 1], [1, 1]]);
        assert_eq!(divided(&[4, 1, 1, 1, 1], 2), [vec![4], vec![1; 4]]);
        assert_eq!(divided(&[1, 1, 1, 1, 4], 2), [vec![1; 4], vec![4]]);
        assert_eq!(divided(&[], 3), [[0_u64; 0]; 3]);
        assert_eq!(divided(&[0, 0], 1), [[0, 0]]);
        assert_eq!(divided(&[9], 3).concat(), [9]);
        for parts in 1..9 {
            let bytes: Vec<u64> = (0..20).map(|n| n * n % 7 + 1).collect();
            let divided = divided(&bytes, parts);
            assert_eq!(divided.concat(), bytes);
            let total: u64 = bytes.iter().sum();
            for share in divided {
                let share: u64 = share.iter().sum();
                assert!(
                    share.abs_diff(total / parts) <= 7,
                    "{share} of {total} in {parts}"
                );
            }
        }
    }

    #[test]
    fn shards_that_take_nothing_are_in_a_part() {
        for parts in 1..5 {
            assert_eq!(divided(&[0, 0, 5, 0], parts).concat(), [0, 0, 5, 0]);
        }
    }
}

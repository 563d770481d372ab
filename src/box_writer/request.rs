//! Finds the shards that have elements of the boxes of a call.

use std::collections::BTreeMap;

use zarrs::array::{Array, ArraySubset};
use zarrs_storage::StoreKey;

use super::error::BoxWriterErrorKind as Kind;
use super::input::Source;
use crate::reader::request::{self, WantedBox, WantedPart};

/// The boxes of a call that are in one memory, and the memory.
#[derive(Debug)]
pub(super) struct BoxesInMemory<'a> {
    pub(super) boxes: Vec<WantedBox>,
    pub(super) source: Source<'a>,
}

/// A shard that has elements of some boxes.
#[derive(Debug)]
pub(super) struct ShardToWrite {
    /// The coordinates of the shard in the grid of shards.
    pub(super) indices: Vec<u64>,
    pub(super) key: StoreKey,
    /// The parts of boxes in the shard, and the number of the memory that has each.
    pub(super) parts: Vec<(usize, WantedPart)>,
}

impl ShardToWrite {
    /// Returns the box of a part, in elements of the shard.
    pub(super) fn subset(part: &WantedPart) -> ArraySubset {
        let ranges = part.start.iter().zip(&part.shape);
        ArraySubset::from(ranges.map(|(&start, &len)| start as u64..(start + len) as u64))
    }

    /// Returns the part that has all elements of the shard, if there is one.
    pub(super) fn covering(&self, shard: &[u64]) -> Option<&(usize, WantedPart)> {
        match &*self.parts {
            [only @ (_, part)] => {
                let mut extents = part.shape.iter().zip(shard);
                extents
                    .all(|(len, extent)| *len as u64 == *extent)
                    .then_some(only)
            }
            _ => None,
        }
    }
}

/// Returns the shards that have elements of the boxes, in C order.
///
/// # Errors
/// [`BoxWriterErrorKind::Overlap`](crate::writer::BoxWriterErrorKind::Overlap) if two boxes have elements in common;
/// [`BoxWriterErrorKind::Unsupported`](crate::writer::BoxWriterErrorKind::Unsupported) if the grid has no chunks for
/// a box.
pub(super) fn shards<TStorage: ?Sized>(
    array: &Array<TStorage>,
    memories: &[BoxesInMemory<'_>],
) -> Result<Vec<ShardToWrite>, Kind> {
    let mut shards: BTreeMap<Vec<u64>, Vec<(usize, WantedPart)>> = BTreeMap::new();
    for (number, memory) in memories.iter().enumerate() {
        for shard in request::shards(array, &memory.boxes, &memory.source.strides)? {
            let parts = shards.entry(shard.indices).or_default();
            parts.extend(shard.parts.into_iter().map(|part| (number, part)));
        }
    }
    let shards = shards.into_iter().map(|(indices, parts)| {
        let key = array.chunk_key(&indices);
        check_overlaps(&key, &parts)?;
        Ok(ShardToWrite {
            indices,
            key,
            parts,
        })
    });
    shards.collect()
}

/// Checks that no two parts of a shard have elements in common.
///
/// Along the axis on which the parts begin at the most different places, each part is compared with the parts
/// that have begun and not ended.
fn check_overlaps(key: &StoreKey, parts: &[(usize, WantedPart)]) -> Result<(), Kind> {
    let Some((_, first)) = parts.first().filter(|_| parts.len() > 1) else {
        return Ok(());
    };
    let places = |axis: usize| {
        let mut starts: Vec<_> = parts.iter().map(|(_, part)| part.start[axis]).collect();
        starts.sort_unstable();
        starts.dedup();
        starts.len()
    };
    let overlap = |one: &WantedPart, other: &WantedPart| Kind::Overlap {
        key: key.clone(),
        one: one.start.clone(),
        other: other.start.clone(),
    };
    let Some(axis) = (0..first.start.len()).max_by_key(|&axis| places(axis)) else {
        // An array without axes has one element.
        return Err(overlap(first, first));
    };
    let mut sorted: Vec<&WantedPart> = parts.iter().map(|(_, part)| part).collect();
    sorted.sort_by_key(|part| part.start[axis]);
    let mut begun: Vec<&WantedPart> = Vec::new();
    for part in sorted {
        begun.retain(|one| one.start[axis] + one.shape[axis] > part.start[axis]);
        let meets = |one: &&&WantedPart| {
            (0..part.start.len()).all(|d| {
                part.start[d] < one.start[d] + one.shape[d]
                    && one.start[d] < part.start[d] + part.shape[d]
            })
        };
        if let Some(one) = begun.iter().find(meets) {
            return Err(overlap(one, part));
        }
        begun.push(part);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(ranges: &[(usize, usize)]) -> (usize, WantedPart) {
        let part = WantedPart {
            start: ranges.iter().map(|(start, _)| *start).collect(),
            shape: ranges.iter().map(|(_, len)| *len).collect(),
            offset: 0,
        };
        (0, part)
    }

    proptest! {
        #[test]
        fn overlaps_are_found(
            boxes in proptest::collection::vec(
                proptest::collection::vec((0..6_usize, 1..4_usize), 2),
                0..6,
            ),
        ) {
            let parts: Vec<_> = boxes.iter().map(|ranges| part(ranges)).collect();
            let mut counts = std::collections::HashMap::new();
            for ranges in &boxes {
                for i in ranges[0].0..ranges[0].0 + ranges[0].1 {
                    for j in ranges[1].0..ranges[1].0 + ranges[1].1 {
                        *counts.entry((i, j)).or_insert(0) += 1;
                    }
                }
            }
            let overlaps = counts.values().any(|count| *count > 1);
            let key = StoreKey::new("a/c/0").unwrap();
            prop_assert_eq!(check_overlaps(&key, &parts).is_err(), overlaps);
        }
    }
}

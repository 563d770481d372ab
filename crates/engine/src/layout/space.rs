//! Finds the used and the unused bytes of a shard.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::Extent;

/// The bytes of a shard that subchunks use.
#[derive(Debug, Default)]
pub struct Space {
    /// Sorted ranges that neither touch nor overlap. A shard with few updates has few ranges, even with many
    /// subchunks.
    areas: Vec<Range<usize>>,
    overlaps: bool,
    num_stored: usize,
}

impl Space {
    /// Returns the bytes of subchunks with these `extents`.
    pub fn of(extents: impl IntoIterator<Item = Extent>) -> Self {
        let mut areas: Vec<Range<usize>> = Vec::new();
        let mut num_stored = 0;
        let mut is_sorted = true;
        // The area of the previous subchunk: most subchunks directly follow the previous one.
        let mut last = 0..0;
        for extent in extents.into_iter().flatten() {
            num_stored += 1;
            if extent.is_empty() {
                continue;
            }
            if extent.start == last.end {
                last.end = extent.end;
                continue;
            }
            is_sorted &= last.end < extent.start;
            let before = std::mem::replace(&mut last, extent);
            if !before.is_empty() {
                areas.push(before);
            }
        }
        if !last.is_empty() {
            areas.push(last);
        }
        let mut overlaps = false;
        if !is_sorted {
            // A stable sort is fast if the ranges consist of sorted runs.
            areas.sort_by_key(|area| area.start);
            areas.dedup_by(|next, area| {
                overlaps |= next.start < area.end;
                let merges = next.start <= area.end;
                if merges {
                    area.end = area.end.max(next.end);
                }
                merges
            });
        }
        Self {
            areas,
            overlaps,
            num_stored,
        }
    }

    /// Returns whether two subchunks share bytes, which is legal.
    pub fn overlaps(&self) -> bool {
        self.overlaps
    }

    /// Returns how many subchunks are stored.
    pub fn num_stored(&self) -> usize {
        self.num_stored
    }

    /// Returns the number of used bytes. Shared bytes count once.
    pub fn used(&self) -> usize {
        self.areas.iter().map(Range::len).sum()
    }

    /// Returns the position of the first used byte; `usize::MAX` if there is none.
    pub fn start(&self) -> usize {
        self.areas.first().map_or(usize::MAX, |area| area.start)
    }

    /// Returns the end of the last used byte; 0 if there is none.
    pub fn end(&self) -> usize {
        self.areas.last().map_or(0, |area| area.end)
    }

    /// Returns whether `range` has no used bytes except for those of one subchunk, whose extent is `own`. No
    /// subchunks may overlap.
    pub fn is_free(&self, range: &Range<usize>, own: Option<&Range<usize>>) -> bool {
        let common = |other: &Range<usize>| {
            let (start, end) = (range.start.max(other.start), range.end.min(other.end));
            end.saturating_sub(start)
        };
        let first = self.areas.partition_point(|area| area.end <= range.start);
        let areas = self.areas[first..].iter();
        let used: usize = areas
            .take_while(|area| area.start < range.end)
            .map(common)
            .sum();
        used == own.map_or(0, common)
    }

    /// Returns the gaps between used bytes within `limits`.
    pub(crate) fn gaps(&self, limits: Range<usize>) -> Gaps {
        let mut gaps = Gaps::default();
        let mut free_from = limits.start;
        for area in &self.areas {
            gaps.insert(free_from..area.start.min(limits.end));
            free_from = free_from.max(area.end);
        }
        gaps.insert(free_from..limits.end);
        gaps
    }
}

/// The gaps of a shard: unused bytes, which callers take.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    by_start: BTreeMap<usize, usize>,
    by_len: BTreeSet<(usize, usize)>,
}

impl Gaps {
    fn insert(&mut self, gap: Range<usize>) {
        if !gap.is_empty() {
            self.by_start.insert(gap.start, gap.len());
            self.by_len.insert((gap.len(), gap.start));
        }
    }

    fn remove(&mut self, start: usize) -> Option<usize> {
        let len = self.by_start.remove(&start)?;
        self.by_len.remove(&(len, start));
        Some(len)
    }

    /// Takes `len` bytes from the end of the last gap, or otherwise from the smallest gap that is large
    /// enough. Returns their position; `None` if no gap is large enough.
    ///
    /// The end of the last gap is near the other bytes that an update writes, so that a disk works in one
    /// place.
    pub(crate) fn take(&mut self, len: usize) -> Option<usize> {
        let last = self.by_start.last_key_value();
        let last = last.filter(|&(_, &gap)| gap >= len);
        if let Some((&start, &gap)) = last {
            self.remove(start);
            self.insert(start..start + gap - len);
            return Some(start + gap - len);
        }
        let &(gap, start) = self.by_len.range((len, 0)..).next()?;
        self.remove(start);
        self.insert(start + len..start + gap);
        Some(start)
    }

    /// Takes `len` bytes from the gap that begins at `start`. Returns whether the gap has them.
    pub(crate) fn take_at(&mut self, start: usize, len: usize) -> bool {
        if len == 0 {
            return true;
        }
        match self.by_start.get(&start) {
            Some(&gap) if gap >= len => {
                self.remove(start);
                self.insert(start + len..start + gap);
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_and_unused_bytes() {
        let space = Space::of([Some(30..40), None, Some(10..20), Some(50..50)]);
        assert!(!space.overlaps());
        assert_eq!((space.used(), space.start(), space.end()), (20, 10, 40));
        assert_eq!(space.num_stored(), 3);
        assert!(space.is_free(&(20..30), None));
        assert!(!space.is_free(&(19..30), None));
        assert!(space.is_free(&(10..30), Some(&(10..20))));
        assert!(!space.is_free(&(10..31), Some(&(10..20))));
        assert!(!space.is_free(&(10..30), Some(&(30..40))));
        let mut gaps = space.gaps(4..45);
        assert_eq!(gaps.take(5), Some(40));
        assert_eq!(gaps.take(11), None);
        assert_eq!(gaps.take(0), Some(30));
        assert!(gaps.take_at(4, 5));
        assert!(gaps.take_at(20, 4));
        assert!(!gaps.take_at(24, 7));
        assert_eq!(gaps.take(6), Some(24));
        assert_eq!(gaps.take(1), Some(9));
        assert_eq!(gaps.take(1), None);
    }

    #[test]
    fn the_last_gap_comes_first_then_the_smallest() {
        let space = Space::of([Some(10..20), Some(25..30), Some(33..40)]);
        let mut gaps = space.gaps(0..48);
        assert_eq!(gaps.take(5), Some(43));
        assert_eq!(gaps.take(3), Some(40));
        assert_eq!(gaps.take(4), Some(20));
        assert_eq!(gaps.take(6), Some(0));
    }

    #[test]
    fn shared_bytes_count_once() {
        let space = Space::of([Some(0..10), Some(0..10), Some(5..20), Some(6..7)]);
        assert!(space.overlaps());
        assert_eq!((space.used(), space.end()), (20, 20));
        assert!(!Space::of([Some(5..10), Some(0..5), Some(3..3)]).overlaps());
        assert!(Space::of([Some(5..10), Some(0..6)]).overlaps());
    }

    /// Against one flag for each byte.
    #[test]
    fn any_extents() {
        let mut seed = 1_u32;
        let mut below = |n: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((u64::from(seed) * u64::from(n)) >> 32) as usize
        };
        for _ in 0..2000 {
            let mut extents: Vec<Extent> = Vec::new();
            for _ in 0..below(7) {
                let start = below(20);
                let follows = extents
                    .iter()
                    .rev()
                    .flatten()
                    .next()
                    .map(|extent| extent.end);
                let start = follows.filter(|_| below(2) == 0).unwrap_or(start);
                let extent = start..start + below(5);
                extents.push((below(4) > 0).then_some(extent));
            }
            let mut uses = [0; 64];
            for at in extents.iter().flatten().flat_map(Clone::clone) {
                uses[at] += 1;
            }
            let space = Space::of(extents.clone());
            let used = |&at: &usize| uses[at] > 0;
            assert_eq!(space.used(), (0..64).filter(used).count(), "{extents:?}");
            assert_eq!(space.start(), (0..64).find(used).unwrap_or(usize::MAX));
            assert_eq!(space.end(), (0..64).rfind(used).map_or(0, |at| at + 1));
            assert_eq!(space.overlaps(), uses.iter().any(|&uses| uses > 1));
            assert_eq!(space.num_stored(), extents.iter().flatten().count());
            if space.overlaps() {
                continue;
            }
            for start in 0..40 {
                let range = start..start + below(9);
                let own = extents.iter().flatten().next();
                let is_own = |at: usize| own.is_some_and(|own| own.contains(&at));
                let is_free = range.clone().all(|at| uses[at] == 0 || is_own(at));
                assert_eq!(space.is_free(&range, own), is_free, "{extents:?} {range:?}");
            }
        }
    }
}

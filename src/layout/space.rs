//! Which bytes of a shard are used, and which are not.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::Extent;

/// The bytes that subchunks use, by offset.
#[derive(Debug)]
pub(crate) struct Space {
    /// Offset, end and number of every subchunk that has bytes.
    sorted: Vec<(usize, usize, usize)>,
    overlaps: bool,
}

impl Space {
    pub(crate) fn of(extents: &[Extent]) -> Self {
        let mut sorted: Vec<_> = extents
            .iter()
            .enumerate()
            .filter_map(|(number, extent)| {
                let extent = extent.as_ref().filter(|extent| !extent.is_empty())?;
                Some((extent.start, extent.end, number))
            })
            .collect();
        // Nearly always sorted already.
        sorted.sort_unstable();
        let overlaps = sorted.windows(2).any(|pair| pair[1].0 < pair[0].1);
        Self { sorted, overlaps }
    }

    /// Whether two subchunks share bytes. That is legal.
    pub(crate) fn overlaps(&self) -> bool {
        self.overlaps
    }

    /// How many bytes are used. What subchunks share counts once.
    pub(crate) fn used(&self) -> usize {
        let mut end_of_all = 0;
        let mut used = 0;
        for &(start, end, _) in &self.sorted {
            used += end.saturating_sub(start.max(end_of_all));
            end_of_all = end_of_all.max(end);
        }
        used
    }

    /// Where the first used byte is.
    pub(crate) fn start(&self) -> usize {
        self.sorted.first().map_or(usize::MAX, |&(start, ..)| start)
    }

    /// Where the last used byte ends.
    pub(crate) fn end(&self) -> usize {
        self.sorted
            .iter()
            .map(|&(_, end, _)| end)
            .max()
            .unwrap_or(0)
    }

    /// Where the first subchunk behind `offset` begins.
    pub(crate) fn next_start(&self, offset: usize) -> Option<usize> {
        let next = self.sorted.partition_point(|&(start, ..)| start < offset);
        self.sorted.get(next).map(|&(start, ..)| start)
    }

    /// Whether no other subchunk than `number` has bytes in `range`. Nothing may overlap.
    pub(crate) fn is_free(&self, range: &Range<usize>, number: usize) -> bool {
        let first = self
            .sorted
            .partition_point(|&(_, end, _)| end <= range.start);
        self.sorted[first..]
            .iter()
            .take_while(|&&(start, ..)| start < range.end)
            .all(|&(.., other)| other == number)
    }

    /// The unused bytes in `limits`.
    pub(crate) fn gaps(&self, limits: Range<usize>) -> Gaps {
        let mut gaps = Gaps::default();
        let mut free_from = limits.start;
        for &(start, end, _) in &self.sorted {
            gaps.insert(free_from..start.min(limits.end));
            free_from = free_from.max(end);
        }
        gaps.insert(free_from..limits.end);
        gaps
    }
}

/// Unused bytes, which are taken.
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

    /// Take `len` bytes from the end of the last gap, or else from the smallest gap that has them.
    ///
    /// The end of the last gap is near to what else an update writes, so that a disk is busy in one
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

    /// Take `len` bytes from the gap that begins at `start`; whether it has them.
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
        let space = Space::of(&[Some(30..40), None, Some(10..20), Some(50..50)]);
        assert!(!space.overlaps());
        assert_eq!((space.used(), space.end()), (20, 40));
        assert_eq!(space.next_start(20), Some(30));
        assert_eq!(space.next_start(31), None);
        assert!(space.is_free(&(20..30), 9));
        assert!(!space.is_free(&(19..30), 9));
        assert!(space.is_free(&(10..30), 2));
        assert!(!space.is_free(&(10..31), 2));
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
        let space = Space::of(&[Some(10..20), Some(25..30), Some(33..40)]);
        let mut gaps = space.gaps(0..48);
        assert_eq!(gaps.take(5), Some(43));
        assert_eq!(gaps.take(3), Some(40));
        assert_eq!(gaps.take(4), Some(20));
        assert_eq!(gaps.take(6), Some(0));
    }

    #[test]
    fn shared_bytes_count_once() {
        let space = Space::of(&[Some(0..10), Some(0..10), Some(5..20), Some(6..7)]);
        assert!(space.overlaps());
        assert_eq!((space.used(), space.end()), (20, 20));
    }
}

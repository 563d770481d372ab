//! The free ranges of a block of memory. A range is taken where the first free one is long enough.

use std::ops::Range;

/// The unit in which ranges are taken, in bytes: a page.
const UNIT: usize = 4 << 10;

/// The free ranges of a block.
#[derive(Debug)]
pub(in crate::cuda) struct FreeRanges {
    /// The number of bytes of the block.
    len: usize,
    /// The free ranges, in ascending order. None is empty, and no two touch.
    free: Vec<Range<usize>>,
}

impl FreeRanges {
    /// Returns the free ranges of a block of `len` bytes of which nothing is taken. The rest of a page is left out.
    pub(in crate::cuda) fn new(len: usize) -> Self {
        let len = len - len % UNIT;
        let free = [0..len];
        Self {
            len,
            free: free.into_iter().filter(|range| !range.is_empty()).collect(),
        }
    }

    /// Returns the number of bytes that can be taken.
    pub(in crate::cuda) fn len(&self) -> usize {
        self.len
    }

    /// Takes a range of at least `len` bytes; `None` if no free range is so long, or `len` is 0.
    pub(super) fn take(&mut self, len: usize) -> Option<Range<usize>> {
        let len = len.checked_next_multiple_of(UNIT).filter(|len| *len > 0)?;
        let at = self.free.iter().position(|range| range.len() >= len)?;
        let free = &mut self.free[at];
        let taken = free.start..free.start + len;
        free.start = taken.end;
        if free.start == free.end {
            self.free.remove(at);
        }
        Some(taken)
    }

    /// Gives a range back that was taken.
    pub(super) fn give_back(&mut self, range: Range<usize>) {
        let mut at = self.free.partition_point(|free| free.start < range.start);
        self.free.insert(at, range);
        // Ranges that touch become one.
        if at > 0 && self.free[at - 1].end == self.free[at].start {
            at -= 1;
            self.join(at);
        }
        if at + 1 < self.free.len() && self.free[at].end == self.free[at + 1].start {
            self.join(at);
        }
    }

    /// Joins the free range at `at` with the next one, which it touches.
    fn join(&mut self, at: usize) {
        let next = self.free.remove(at + 1);
        self.free[at].end = next.end;
    }

    /// Returns whether the whole block is free.
    pub(super) fn all_free(&self) -> bool {
        self.free.iter().map(Range::len).sum::<usize>() == self.len
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The oracle: one flag for each page, true if the page is taken.
    fn first_fit(taken: &[bool], pages: usize) -> Option<usize> {
        (0..=taken.len().checked_sub(pages)?)
            .find(|first| taken[*first..first + pages].iter().all(|page| !page))
    }

    proptest! {
        /// Takes and gives back in any order, and compares with one flag for each page.
        #[test]
        fn ranges_are_those_of_a_map_of_pages(
            len in 0_usize..30 * UNIT,
            steps in prop::collection::vec((any::<bool>(), 0_usize..9 * UNIT, any::<prop::sample::Index>()), 0..200),
        ) {
            let mut ranges = FreeRanges::new(len);
            let mut taken = vec![false; len / UNIT];
            let mut held: Vec<Range<usize>> = Vec::new();
            for (takes, len, which) in steps {
                if takes {
                    let pages = len.div_ceil(UNIT);
                    let expected = first_fit(&taken, pages).filter(|_| pages > 0);
                    let expected = expected.map(|first| first * UNIT..(first + pages) * UNIT);
                    let found = ranges.take(len);
                    prop_assert_eq!(&found, &expected);
                    if let Some(range) = found {
                        taken[range.start / UNIT..range.end / UNIT].fill(true);
                        held.push(range);
                    }
                } else if !held.is_empty() {
                    let range = held.swap_remove(which.index(held.len()));
                    taken[range.start / UNIT..range.end / UNIT].fill(false);
                    ranges.give_back(range);
                }
                prop_assert_eq!(ranges.all_free(), held.is_empty());
            }
            for range in held {
                ranges.give_back(range);
            }
            prop_assert!(ranges.all_free());
            // The whole block can be taken again.
            let whole = taken.len() * UNIT;
            prop_assert_eq!(ranges.take(whole), (whole > 0).then_some(0..whole));
        }
    }
}

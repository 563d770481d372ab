//! Sets of bytes, as intervals.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of bytes of an allocation.
#[derive(Clone, Debug, Default)]
pub(super) struct Intervals {
    /// First byte to the byte after the last; disjoint, and not adjacent.
    ends: BTreeMap<usize, usize>,
}

impl Intervals {
    pub(super) fn insert(&mut self, bytes: Range<usize>) {
        if bytes.is_empty() {
            return;
        }
        let Range { mut start, mut end } = bytes;
        // From the right: the interval that begins last among those that touch the new one.
        while let Some((&s, &e)) = self.ends.range(..=end).next_back()
            && e >= start
        {
            if s <= start && end <= e {
                return;
            }
            self.ends.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.ends.insert(start, end);
    }

    pub(super) fn remove(&mut self, bytes: Range<usize>) {
        if bytes.is_empty() {
            return;
        }
        while let Some((&s, &e)) = self.ends.range(..bytes.end).next_back()
            && e > bytes.start
        {
            self.ends.remove(&s);
            if s < bytes.start {
                self.ends.insert(s, bytes.start);
            }
            if bytes.end < e {
                self.ends.insert(bytes.end, e);
            }
        }
    }

    /// Returns the parts of `bytes` that are in the set, in order.
    pub(super) fn within(&self, bytes: Range<usize>) -> Vec<Range<usize>> {
        let before = self.ends.range(..bytes.start).next_back();
        let all = before.into_iter().chain(self.ends.range(bytes.clone()));
        let parts = all.map(|(&start, &end)| start.max(bytes.start)..end.min(bytes.end));
        parts.filter(|part| !part.is_empty()).collect()
    }

    /// Returns the parts of `bytes` that are not in the set, in order.
    pub(super) fn gaps(&self, bytes: Range<usize>) -> Vec<Range<usize>> {
        let mut gaps = Vec::new();
        let mut at = bytes.start;
        let before = self.ends.range(..bytes.start).next_back();
        for (&s, &e) in before.into_iter().chain(self.ends.range(bytes.clone())) {
            if at < s {
                gaps.push(at..s);
            }
            at = at.max(e);
        }
        if at < bytes.end {
            gaps.push(at..bytes.end);
        }
        gaps
    }

    /// Returns the first part of `bytes` that is not in the set.
    pub(super) fn first_gap(&self, bytes: Range<usize>) -> Option<Range<usize>> {
        if bytes.is_empty() {
            return None;
        }
        let mut at = bytes.start;
        let before = self.ends.range(..=bytes.start).next_back();
        if let Some((_, &e)) = before {
            at = at.max(e);
        }
        if at >= bytes.end {
            return None;
        }
        // Intervals are not adjacent: another one begins after a gap.
        let end = self
            .ends
            .range(at..bytes.end)
            .next()
            .map_or(bytes.end, |(&s, _)| s);
        Some(at..end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(zarrs_cuda_testing::effort::config(128))]

        /// Compares the intervals with a naive set, which has a flag for each byte.
        #[test]
        fn they_are_sets(
            steps in prop::collection::vec((any::<bool>(), 0..24_usize, 0..8_usize), 0..24),
        ) {
            let mut intervals = Intervals::default();
            let mut naive = [false; 32];
            for (insert, start, len) in steps {
                let bytes = start..start + len;
                naive[bytes.clone()].fill(insert);
                if insert {
                    intervals.insert(bytes.clone());
                } else {
                    intervals.remove(bytes.clone());
                }
                for within in [bytes, 0..32, start..32, 3..start.max(3)] {
                    let of = |ranges: Vec<Range<usize>>| ranges.into_iter().flatten().collect::<Vec<_>>();
                    let (inside, outside): (Vec<usize>, Vec<_>) =
                        within.clone().partition(|byte| naive[*byte]);
                    prop_assert_eq!(of(intervals.within(within.clone())), inside);
                    let gaps = intervals.gaps(within.clone());
                    prop_assert_eq!(intervals.first_gap(within), gaps.first().cloned());
                    prop_assert_eq!(of(gaps), outside);
                }
            }
        }
    }
}

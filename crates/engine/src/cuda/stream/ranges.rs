//! Sets of ranges of a batch's bytes.

use std::ops::Range;

/// A set of ranges in ascending order that do not touch each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<Range<usize>>);

impl Ranges {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Range<usize>> {
        self.0.iter()
    }

    /// Returns whether a range of the set has a byte of `range`.
    pub(super) fn intersects(&self, range: &Range<usize>) -> bool {
        let mut others = self.0.iter();
        others.any(|other| other.start < range.end && range.start < other.end)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn insert(&mut self, mut range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        self.0.retain(|other| {
            let apart = other.end < range.start || range.end < other.start;
            if !apart {
                range = range.start.min(other.start)..range.end.max(other.end);
            }
            apart
        });
        let at = self.0.partition_point(|other| other.start < range.start);
        self.0.insert(at, range);
    }

    pub(super) fn remove(&mut self, range: &Range<usize>) {
        if self.0.is_empty() || range.is_empty() {
            return;
        }
        let keep = |other: Range<usize>| {
            let before = other.start..other.end.min(range.start);
            let after = other.start.max(range.end)..other.end;
            [before, after].into_iter().filter(|part| !part.is_empty())
        };
        self.0 = std::mem::take(&mut self.0)
            .into_iter()
            .flat_map(keep)
            .collect();
    }

    /// Returns the parts of `whole` that no range contains.
    pub(super) fn gaps(&self, whole: Range<usize>) -> Vec<Range<usize>> {
        let mut gaps = Vec::new();
        let mut start = whole.start;
        for range in &self.0 {
            let end = range.start.min(whole.end);
            if start < end {
                gaps.push(start..end);
            }
            start = start.max(range.end);
        }
        if start < whole.end {
            gaps.push(start..whole.end);
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(zarrs_cuda_testing::effort::config(128))]

        #[test]
        fn as_a_set_of_bytes(
            steps in prop::collection::vec((any::<bool>(), 0_usize..40, 0_usize..12), 0..12),
            whole in (0_usize..50, 0_usize..50),
        ) {
            let mut ranges = Ranges::default();
            let mut bytes = [false; 60];
            for (insert, start, len) in steps {
                let range = start..start + len;
                bytes[range.clone()].fill(insert);
                if insert {
                    ranges.insert(range);
                } else {
                    ranges.remove(&range);
                }
            }
            let mut found = [false; 60];
            for range in ranges.iter() {
                prop_assert!(!range.is_empty());
                found[range.clone()].fill(true);
            }
            prop_assert_eq!(found, bytes);
            prop_assert!(ranges.0.windows(2).all(|pair| pair[0].end < pair[1].start));
            let whole = whole.0.min(whole.1)..whole.0.max(whole.1);
            let gaps = ranges.gaps(whole.clone());
            let in_gaps = |at: usize| gaps.iter().any(|gap| gap.contains(&at));
            for (at, present) in bytes.iter().enumerate() {
                prop_assert_eq!(in_gaps(at), whole.contains(&at) && !present);
            }
        }
    }
}

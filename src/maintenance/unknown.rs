//! Finds the bytes of a shard that no index in it refers to.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::shard::sharding::Sharding;
use crate::store::ranges::Merged;
use zarrs_cuda_engine::layout::{RECORD_LEN, Record, fingerprint};

/// The number of ranges that are collected before they are merged: an old shard may have an index from each
/// of its updates.
const FIRST_MERGE: usize = 1 << 17;

/// Returns the number of bytes in the ranges of `object` to which no index in it refers. Ranges that have
/// only zeros do not count.
///
/// Updates leave bytes behind: earlier subchunks, to which an earlier index refers; that index; and records,
/// which say where earlier indices are. Other bytes come from another program, from an update that was
/// interrupted before it wrote its index, or from an update whose index was overwritten since.
pub(super) fn unknown(object: &[u8], shards: &Sharding) -> u64 {
    let index_len = shards.index.len();
    let size = object.len() as u64;
    let mut known = Known::default();
    if let Some(place) = shards.index.range_in(object.len()) {
        known.add_index(object, place, shards);
    }
    let mut earlier = BTreeSet::new();
    for record in Record::all(object, index_len) {
        known.add(record.offset..record.offset.saturating_add(RECORD_LEN as u64));
        earlier.insert((record.old_end, record.old_index));
        earlier.insert((record.new_end, record.new_index));
        // The copy of a rewritten index lies before its record, or behind it.
        let behind = record
            .offset
            .saturating_add((RECORD_LEN + index_len) as u64);
        earlier.extend([record.offset, behind].map(|end| (end, record.new_index)));
    }
    for (end, print) in earlier {
        let place = usize::try_from(end)
            .ok()
            .and_then(|end| Some(end.checked_sub(index_len)?..end));
        let Some(place) = place else { continue };
        let index = object.get(place.clone());
        if index.is_some_and(|index| fingerprint(index) == print) {
            known.add_index(object, place, shards);
        }
    }
    let known = Merged::of(known.ranges);
    let holds_something = |gap: &Range<u64>| {
        let [start, end] = [gap.start, gap.end].map(|at| usize::try_from(at).unwrap_or(usize::MAX));
        let bytes = object.get(start..end).unwrap_or_default();
        bytes.iter().any(|&byte| byte != 0)
    };
    let gaps = known.gaps(size).into_iter().filter(holds_something);
    gaps.map(|gap| gap.end - gap.start).sum()
}

/// The ranges of bytes to which an index refers, and the ranges of the indices.
#[derive(Default)]
struct Known {
    ranges: Vec<Range<u64>>,
    /// The number of ranges that remained after the last merge.
    merged: usize,
}

impl Known {
    fn add(&mut self, range: Range<u64>) {
        self.ranges.push(range);
        if self.ranges.len() >= FIRST_MERGE.max(2 * self.merged) {
            let merged = Merged::of(self.ranges.drain(..));
            self.ranges.extend(merged.iter().cloned());
            self.merged = self.ranges.len();
        }
    }

    /// Adds the range of the index at `place`, and those of its subchunks if all of them lie in `object`.
    fn add_index(&mut self, object: &[u8], place: Range<usize>, shards: &Sharding) {
        let Some(index) = object.get(place.clone()) else {
            return;
        };
        self.add(place.start as u64..place.end as u64);
        if let Ok(entries) = shards.entries(index, object.len() as u64) {
            for extent in entries.iter().flatten() {
                self.add(extent.start as u64..extent.end as u64);
            }
        }
    }
}

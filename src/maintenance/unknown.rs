//! Bytes of a shard that no index in it knows.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::shard::sharding::Sharding;
use crate::store::ranges::Merged;
use zarrs_cuda_engine::layout::{RECORD_LEN, Record, fingerprint};

/// The number of ranges that are kept before they are merged: an old shard may have an index of each of its
/// updates.
const FIRST_MERGE: usize = 1 << 17;

/// Returns the number of bytes of `object` that no index in it knows, and that are not all zeros.
///
/// Updates leave bytes behind: earlier subchunks, which an earlier index knows; that index; records.
/// Records say where earlier indices are. Other bytes were put there by another program, or by an update
/// that was interrupted before its index, or their index was written over since.
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
        // A rewritten index is copied before its record, or behind it.
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

/// Ranges of bytes that an index knows.
#[derive(Default)]
struct Known {
    ranges: Vec<Range<u64>>,
    /// How many were left when they were merged last.
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

    /// Adds the index at `place`, and its subchunks as far as they lie in `object`.
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

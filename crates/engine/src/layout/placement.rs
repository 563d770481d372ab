//! Finds places in a shard for the changed subchunks, the record and the index of an update.
//!
//! `docs/reference/updates.md` has the kinds of updates, and the reasons why they are safe. In short: bytes
//! of the old index's subchunks are only overwritten if the rule says so; an index that is rewritten in place
//! is copied first; an object never gets shorter.

use std::collections::BTreeMap;
use std::ops::Range;

use super::space::{Gaps, Space};
use super::{Extent, RECORD_LEN};

/// The places in a shard that changed subchunks may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementRule {
    /// Subchunks go behind everything in the shard.
    Append,
    /// Subchunks go into unused bytes, or behind everything.
    Reuse,
    /// Subchunks go over their old bytes if they fit there, and otherwise as with `Reuse`.
    InPlace,
    /// Each subchunk goes into its own slot of `size` bytes.
    Slots { size: usize },
}

/// A shard before an update.
#[derive(Clone, Copy, Debug)]
pub struct ShardBeforeUpdate<'a> {
    pub num_subchunks: usize,
    /// The bytes that the subchunks of the shard use; none if the shard is not stored.
    pub space: &'a Space,
    /// The size of the object; 0 if the shard is not stored.
    pub size: usize,
    pub index_len: usize,
    pub index_at_end: bool,
}

/// A changed subchunk.
#[derive(Clone, Debug)]
pub struct ChangedSubchunk {
    pub number: usize,
    /// The extent of the subchunk in the stored shard.
    pub old: Extent,
    /// The new encoded size of the subchunk; `None` if the subchunk is empty.
    pub len: Option<usize>,
    /// Whether the subchunk may overwrite its old bytes, if the rule would do that. A subchunk in a slot has
    /// no other place.
    pub may_overwrite: bool,
}

/// The way in which an update becomes visible to readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// The index does not change.
    DataOnly,
    /// The object grows. A record is written at `record`. The new index, or its copy, becomes the last bytes
    /// of the object, from `index` on. A record lies directly before it: the same record, or a second one.
    Grow { record: usize, index: usize },
    /// The object keeps its size. A record is written at `record`, and a copy of the new index at `copy`.
    Rewrite { record: usize, copy: usize },
}

/// The places of all bytes that an update writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The new extents of the changed subchunks, in the order of the changes.
    pub extents: Vec<Extent>,
    pub commit: Commit,
    /// The size of the object after the update.
    pub size: usize,
}

/// The error that the shard would be larger than this machine can address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

impl ShardBeforeUpdate<'_> {
    /// Returns the position at which the first subchunk may begin.
    fn first(&self) -> usize {
        if self.index_at_end { 0 } else { self.index_len }
    }

    /// Returns the number of bytes that a rewrite of the index needs at the end of an object: the copy of the
    /// new index, the record, and the index if it lies at the end.
    fn reserve(&self) -> usize {
        let indexes = if self.index_at_end { 2 } else { 1 };
        RECORD_LEN + indexes * self.index_len
    }

    /// Returns the range of the old index if it lies at the end; otherwise an empty range.
    fn index_at_end(&self) -> Range<usize> {
        if self.index_at_end {
            self.size.saturating_sub(self.index_len)..self.size
        } else {
            self.size..self.size
        }
    }
}

/// Finds places for the `changes` of the shard `stored`.
pub fn place(
    stored: &ShardBeforeUpdate<'_>,
    changes: &[ChangedSubchunk],
    rule: PlacementRule,
) -> Result<Placement, TooLarge> {
    // If subchunks share bytes, overwriting one subchunk would change another.
    let rule = if stored.space.overlaps() {
        PlacementRule::Append
    } else {
        rule
    };
    let placing = Placing {
        stored,
        space: stored.space,
        changes,
        slots_end: match rule {
            PlacementRule::Slots { size } => size
                .checked_mul(stored.num_subchunks)
                .and_then(|len| len.checked_add(stored.first()))
                .ok_or(TooLarge)?,
            _ => 0,
        },
        rule,
    };
    let within = match rule {
        PlacementRule::Append => None,
        // An append takes one write, and a rewrite of the index two.
        PlacementRule::Reuse if stored.index_at_end => None,
        _ => placing.within(),
    };
    within.map_or_else(|| placing.growing(), Ok)
}

struct Placing<'a> {
    stored: &'a ShardBeforeUpdate<'a>,
    space: &'a Space,
    changes: &'a [ChangedSubchunk],
    rule: PlacementRule,
    /// The end of the last slot; 0 if the rule has no slots.
    slots_end: usize,
}

impl Placing<'_> {
    /// Returns the gaps in `limits`; none if the rule does not use gaps.
    fn gaps(&self, limits: Range<usize>) -> Gaps {
        match self.rule {
            PlacementRule::Append | PlacementRule::Slots { .. } => Gaps::default(),
            PlacementRule::Reuse | PlacementRule::InPlace => self.space.gaps(limits),
        }
    }

    /// Finds places in the object without making it longer; `None` if there is not enough room.
    fn within(&self) -> Option<Placement> {
        let stored = self.stored;
        let reserved_from = stored.size.checked_sub(stored.reserve());
        let end = self.space.end();
        // Keep the bytes at the end free for the record and the copy of the index, if there are enough bytes.
        let limit = reserved_from.unwrap_or(0).max(end);
        let mut free = Free {
            gaps: self.gaps(stored.first()..limit),
            limit,
            slots_limit: limit,
            taken: BTreeMap::new(),
        };
        let mut extents = Vec::with_capacity(self.changes.len());
        for change in self.changes {
            extents.push(match change.len {
                None => None,
                Some(len) => {
                    let start = self.find(change, len, &mut free)?;
                    Some(start..start + len)
                }
            });
        }
        let olds = self.changes.iter().map(|change| &change.old);
        let commit = if extents.iter().eq(olds) {
            Commit::DataOnly
        } else {
            let ends = extents.iter().flatten().map(|extent| extent.end);
            let used = ends.fold(end.max(self.slots_end).max(stored.first()), usize::max);
            let reserved_from = reserved_from.filter(|&reserved| reserved >= used)?;
            if stored.index_at_end {
                let copy = reserved_from;
                let record = copy + stored.index_len;
                Commit::Rewrite { record, copy }
            } else {
                let record = reserved_from;
                let copy = record + RECORD_LEN;
                Commit::Rewrite { record, copy }
            }
        };
        Some(Placement {
            extents,
            commit,
            size: stored.size,
        })
    }

    /// Finds places in an object that becomes longer.
    fn growing(&self) -> Result<Placement, TooLarge> {
        let stored = self.stored;
        let add = |a: usize, b: usize| {
            let sum = a.checked_add(b);
            sum.filter(|&n| isize::try_from(n).is_ok()).ok_or(TooLarge)
        };
        let with_slots = matches!(self.rule, PlacementRule::Slots { .. });
        // If the index is at the end, keep room behind the slots to rewrite it later.
        let room_for_copy = if with_slots && stored.index_at_end {
            stored.index_len
        } else {
            0
        };
        let record = if stored.size == 0 {
            match self.rule {
                PlacementRule::Slots { .. } => add(self.slots_end, room_for_copy)?,
                _ => stored.first(),
            }
        } else {
            stored.size.max(stored.first())
        };
        let behind_record = add(record, RECORD_LEN)?;
        let old_index = stored.index_at_end();
        let limit = old_index.start;
        let mut free = Free {
            gaps: self.gaps(stored.first()..limit),
            limit,
            slots_limit: usize::MAX,
            taken: BTreeMap::new(),
        };
        for busy in [old_index, record..behind_record] {
            free.take(busy);
        }
        let mut extents = Vec::with_capacity(self.changes.len());
        let mut appended_end = behind_record;
        if with_slots {
            appended_end = appended_end.max(self.slots_end);
        }
        let first_appended = appended_end;
        for change in self.changes {
            let Some(len) = change.len else {
                extents.push(None);
                continue;
            };
            let start = if let Some(start) = self.find(change, len, &mut free) {
                start
            } else {
                let room = match self.rule {
                    PlacementRule::Slots { size } => size.max(len),
                    _ => len,
                };
                let start = appended_end;
                appended_end = add(start, room)?;
                start
            };
            extents.push(Some(start..start + len));
        }
        let index = if with_slots {
            let data_end = if appended_end == first_appended {
                self.slots_end
            } else {
                appended_end
            };
            let reserved = add(add(data_end, room_for_copy)?, RECORD_LEN)?;
            if reserved > behind_record {
                // Keep room for a second record, which does not overlap the first one.
                reserved.max(add(behind_record, RECORD_LEN)?)
            } else {
                behind_record
            }
        } else if appended_end == behind_record {
            behind_record
        } else {
            add(appended_end, RECORD_LEN)?
        };
        Ok(Placement {
            extents,
            commit: Commit::Grow { record, index },
            size: add(index, stored.index_len)?,
        })
    }

    /// Returns a place for the `len` bytes of `change` that is not behind everything; `None` if there is
    /// none.
    fn find(&self, change: &ChangedSubchunk, len: usize, free: &mut Free) -> Option<usize> {
        let old = change.old.as_ref().filter(|extent| !extent.is_empty());
        match self.rule {
            PlacementRule::Append => None,
            PlacementRule::Reuse => free.gaps.take(len),
            PlacementRule::InPlace => old
                .filter(|_| change.may_overwrite)
                .filter(|old| {
                    // The subchunk may continue into the gap behind its old bytes.
                    len <= old.len() || free.gaps.take_at(old.end, len - old.len())
                })
                .map(|old| old.start)
                .or_else(|| free.gaps.take(len)),
            PlacementRule::Slots { size } => {
                let size = size.max(len);
                let slot = self.slot(change.number, size);
                let slot = (slot.end <= free.slots_limit && self.space.is_free(&slot, old))
                    .then_some(slot);
                // Keep a subchunk in its old place if that is its slot, or has the size of a slot. An update
                // chose such a place behind everything, because other subchunks were in the slot.
                let here = old.map(|old| old.start..old.start.saturating_add(size));
                let has_room =
                    |here: &Range<usize>| here.end <= free.limit && self.space.is_free(here, old);
                let stay = here
                    .filter(|here| slot.as_ref() == Some(here) || has_room(here))
                    .filter(|here| free.is_free(here));
                let place = stay.or(slot).filter(|place| free.is_free(place))?;
                free.take(place.clone());
                Some(place.start)
            }
        }
    }

    /// Returns the `size` bytes at the beginning of the slot of subchunk `number`.
    fn slot(&self, number: usize, size: usize) -> Range<usize> {
        match self.rule {
            // The product cannot overflow, because the end of the last slot did not.
            PlacementRule::Slots { size: each } => {
                let start = self.stored.first() + number * each;
                start..start.saturating_add(size)
            }
            _ => 0..0,
        }
    }
}

/// The free bytes that an update may use.
struct Free {
    gaps: Gaps,
    /// The end of the free bytes for all subchunks that are not in slots.
    limit: usize,
    /// The end of the free bytes for slots.
    slots_limit: usize,
    /// The ranges that this update uses: the start and the end of each.
    taken: BTreeMap<usize, usize>,
}

impl Free {
    fn is_free(&self, range: &Range<usize>) -> bool {
        let before = self.taken.range(..range.end).next_back();
        before.is_none_or(|(_, &end)| end <= range.start)
    }

    fn take(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.taken.insert(range.start, range.end);
        }
    }
}

#[cfg(test)]
mod tests;

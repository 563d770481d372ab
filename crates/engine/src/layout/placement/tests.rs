//! Random updates of made-up shards: every subchunk keeps its bytes, and what an update may not touch
//! it does not touch.

use zarrs_cuda_testing::effort;

use super::*;

/// `SplitMix64`.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

const WORST: usize = 40;

/// A shard as bytes: each subchunk has a value that fills it, and the index is the byte 255.
struct Simulated {
    index_len: usize,
    index_at_end: bool,
    object: Vec<u8>,
    extents: Vec<Extent>,
    /// The value and size of every subchunk that is not empty.
    expected: Vec<Option<(u8, usize)>>,
}

impl Simulated {
    fn new(subchunks: usize, index_at_end: bool) -> Self {
        Self {
            index_len: subchunks * 16,
            index_at_end,
            object: Vec::new(),
            extents: vec![None; subchunks],
            expected: vec![None; subchunks],
        }
    }

    /// Returns a shard as other software writes it: dense.
    fn dense(subchunks: usize, index_at_end: bool, rng: &mut Rng) -> Self {
        let mut shard = Self::new(subchunks, index_at_end);
        if !index_at_end {
            shard.object.resize(shard.index_len, 255);
        }
        for number in 0..subchunks {
            let (value, len) = (rng.below(200) as u8, 1 + rng.below(WORST));
            let start = shard.object.len();
            shard.object.resize(start + len, value);
            shard.extents[number] = Some(start..start + len);
            shard.expected[number] = Some((value, len));
        }
        if index_at_end {
            let len = shard.object.len() + shard.index_len;
            shard.object.resize(len, 255);
        }
        shard
    }

    fn write(&mut self, range: Range<usize>, value: u8) {
        if self.object.len() < range.end {
            self.object.resize(range.end, 0);
        }
        self.object[range].fill(value);
    }

    /// Updates some subchunks, by the protocol.
    fn update(&mut self, changes: &[(usize, Option<(u8, usize)>)], rule: PlacementRule) -> Commit {
        self.update_over(changes, rule, true)
    }

    /// Returns the same; old bytes of what changes are only overwritten if `may_overwrite`.
    fn update_over(
        &mut self,
        changes: &[(usize, Option<(u8, usize)>)],
        rule: PlacementRule,
        may_overwrite: bool,
    ) -> Commit {
        let changed = |number| changes.iter().find(|&&(n, _)| n == number);
        let new = |number| changed(number).map_or(self.expected[number], |&(_, new)| new);
        if (0..self.extents.len()).all(|number| new(number).is_none()) {
            // A shard without subchunks is erased.
            *self = Self::new(self.extents.len(), self.index_at_end);
            return Commit::DataOnly;
        }
        let old = self.object.clone();
        let old_extents = self.extents.clone();
        let space = Space::of(old_extents.clone());
        let stored = ShardBeforeUpdate {
            num_subchunks: old_extents.len(),
            space: &space,
            size: old.len(),
            index_len: self.index_len,
            index_at_end: self.index_at_end,
        };
        let lens: Vec<ChangedSubchunk> = changes
            .iter()
            .map(|&(number, new)| ChangedSubchunk {
                number,
                old: old_extents[number].clone(),
                len: new.map(|(_, len)| len),
                may_overwrite,
            })
            .collect();
        let placement = place(&stored, &lens, rule).expect("small");
        assert_eq!(placement.extents.len(), changes.len());
        for (&(number, new), extent) in changes.iter().zip(&placement.extents) {
            self.expected[number] = new;
            self.extents[number].clone_from(extent);
            if let Some((value, _)) = new {
                self.write(extent.clone().expect("has a place"), value);
            }
        }
        let index_len = self.index_len;
        let safe = match rule {
            PlacementRule::Append | PlacementRule::Reuse => true,
            PlacementRule::InPlace => !may_overwrite,
            PlacementRule::Slots { .. } => false,
        };
        let index = match placement.commit {
            Commit::DataOnly => {
                assert_eq!(self.extents, old_extents);
                None
            }
            Commit::Grow { record, index } => {
                assert!(record >= old.len(), "the record is in new space");
                self.write(record..record + RECORD_LEN, 254);
                self.write(index - RECORD_LEN..index, 254);
                let second = index - RECORD_LEN;
                let apart = second >= record + RECORD_LEN;
                assert!(second == record || apart, "{record} and {second} overlap");
                self.write(index..index + index_len, 255);
                assert_eq!(index + index_len, placement.size);
                assert_eq!(self.object.len(), placement.size, "ends with its index");
                Some(index)
            }
            Commit::Rewrite { record, copy } => {
                assert_eq!(placement.size, old.len());
                self.write(record..record + RECORD_LEN, 254);
                self.write(copy..copy + index_len, 255);
                assert_eq!(self.object.len(), old.len());
                Some(copy)
            }
        };
        // Before the index is rewritten where it is, the old one and what it leads to are there.
        let mut used_before: Vec<Range<usize>> = Vec::new();
        for (number, extent) in old_extents.iter().enumerate() {
            let touched = changes.iter().any(|&(n, _)| n == number);
            used_before.extend(extent.clone().filter(|_| safe || !touched));
        }
        if !old.is_empty() {
            used_before.push(if self.index_at_end {
                old.len() - index_len..old.len()
            } else {
                0..index_len
            });
        }
        for range in used_before {
            assert_eq!(self.object[range.clone()], old[range], "{placement:?}");
        }
        if let (Some(_), false) = (index, self.index_at_end) {
            self.write(0..index_len, 255);
        }
        self.check();
        placement.commit
    }

    fn check(&self) {
        let stored = Space::of(self.extents.clone());
        assert!(!stored.overlaps());
        for (extent, expected) in self.extents.iter().zip(&self.expected) {
            assert_eq!(
                extent.as_ref().map(Range::len),
                expected.map(|(_, len)| len)
            );
            if let (Some(extent), Some((value, _))) = (extent, expected) {
                assert!(self.object[extent.clone()].iter().all(|byte| byte == value));
            }
        }
        let index = if self.index_at_end {
            self.object.len() - self.index_len..self.object.len()
        } else {
            0..self.index_len
        };
        assert!(self.object[index].iter().all(|&byte| byte == 255));
    }
}

fn change(old: Extent) -> ChangedSubchunk {
    ChangedSubchunk {
        number: 0,
        old,
        len: Some(10),
        may_overwrite: true,
    }
}

const SLOTS: PlacementRule = PlacementRule::Slots { size: WORST };

#[test]
fn every_subchunk_keeps_its_bytes() {
    for seed in effort::seeds(300) {
        let mut rng = Rng(seed);
        let subchunks = 1 + rng.below(12);
        let at_end = rng.below(2) == 0;
        let mut shard = if rng.below(2) == 0 {
            Simulated::new(subchunks, at_end)
        } else {
            Simulated::dense(subchunks, at_end, &mut rng)
        };
        let rules = [
            PlacementRule::Append,
            PlacementRule::Reuse,
            PlacementRule::InPlace,
            SLOTS,
        ];
        let only = rng.below(5);
        for _ in 0..30 {
            let mut changes = Vec::new();
            for number in 0..subchunks {
                if rng.below(3) == 0 {
                    let new = (rng.below(200) as u8, 1 + rng.below(WORST));
                    changes.push((number, (rng.below(4) > 0).then_some(new)));
                }
            }
            let rule = rules.get(only).copied();
            let rule = rule.unwrap_or_else(|| rules[rng.below(4)]);
            shard.update_over(&changes, rule, rng.below(4) > 0);
        }
    }
}

#[test]
fn subchunks_of_one_size_stay_in_place() {
    let mut rng = Rng(1);
    for at_end in [false, true] {
        let mut shard = Simulated::dense(8, at_end, &mut rng);
        for number in 0..8 {
            let Some((_, len)) = shard.expected[number] else {
                continue;
            };
            let size = shard.object.len();
            for rule in [PlacementRule::InPlace, SLOTS] {
                let same = [(number, Some((rng.below(200) as u8, len)))];
                if rule == SLOTS && len < WORST {
                    continue; // Not yet in a slot.
                }
                assert_eq!(shard.update(&same, rule), Commit::DataOnly);
                assert_eq!(shard.object.len(), size);
            }
        }
    }
}

#[test]
fn slots_never_grow_after_the_first_write() {
    for seed in effort::seeds(50) {
        let mut rng = Rng(seed);
        let mut shard = Simulated::new(6, seed % 2 == 0);
        let mut size = 0;
        for _ in 0..50 {
            let (value, len) = (rng.below(200) as u8, 1 + rng.below(WORST));
            let new = (rng.below(4) > 0 || size == 0).then_some((value, len));
            shard.update(&[(rng.below(6), new)], SLOTS);
            if size == 0 {
                size = shard.object.len();
            }
            // Erased, once all are empty.
            assert!([0, size].contains(&shard.object.len()));
        }
    }
}

#[test]
fn slots_of_a_dense_shard_settle() {
    for seed in effort::seeds(25) {
        let mut rng = Rng(seed);
        let mut shard = Simulated::dense(6, seed % 2 == 0, &mut rng);
        let mut sizes = Vec::new();
        for _ in 0..200 {
            let new = (rng.below(200) as u8, 1 + rng.below(WORST));
            shard.update(&[(rng.below(6), Some(new))], SLOTS);
            sizes.push(shard.object.len());
        }
        assert_eq!(sizes[100], sizes[199], "seed {seed}");
    }
}

#[test]
fn rewriting_in_place_settles() {
    for at_end in [false, true] {
        let mut rng = Rng(5);
        let mut shard = Simulated::dense(6, at_end, &mut rng);
        let mut sizes = Vec::new();
        for _ in 0..400 {
            let number = rng.below(6);
            let len = 1 + rng.below(WORST);
            shard.update(&[(number, Some((3, len)))], PlacementRule::InPlace);
            sizes.push(shard.object.len());
        }
        assert_eq!(sizes[200], sizes[399]);
    }
}

#[test]
fn shared_bytes_are_left_alone() {
    let extents = [Some(0..10), Some(5..15), None];
    let space = Space::of(extents.clone());
    let stored = ShardBeforeUpdate {
        num_subchunks: extents.len(),
        space: &space,
        size: 15 + 48,
        index_len: 48,
        index_at_end: true,
    };
    for rule in [
        PlacementRule::Append,
        PlacementRule::Reuse,
        PlacementRule::InPlace,
        SLOTS,
    ] {
        let placement = place(&stored, &[change(extents[0].clone())], rule).expect("small");
        assert_eq!(placement.extents[0], Some(63 + 64..63 + 74));
    }
}

#[test]
fn too_large_is_an_error() {
    let extents = [None, None];
    let space = Space::of(extents.clone());
    let stored = ShardBeforeUpdate {
        num_subchunks: extents.len(),
        space: &space,
        size: isize::MAX as usize - 10,
        index_len: 32,
        index_at_end: true,
    };
    for rule in [
        PlacementRule::Append,
        PlacementRule::Slots {
            size: usize::MAX / 2 + 1,
        },
    ] {
        assert_eq!(place(&stored, &[change(None)], rule), Err(TooLarge));
    }
}

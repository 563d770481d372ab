//! The promises, for updates and recoveries that are torn anywhere.

use std::collections::HashMap;
use std::ops::Range;

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use zarrs::array::codec::ShardingIndexLocation::{End, Start};

use super::super::Diagnosis;
use super::simulator::{Kind, Protocol, Rng, Update, Write, foreign, tear, total, update};

fn kinds() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for location in [Start, End] {
        for big_endian in [false, true] {
            for checksum in [false, true] {
                for subchunks in [1, 2, 4] {
                    kinds.push(Kind {
                        location,
                        big_endian,
                        checksum,
                        subchunks,
                    });
                }
            }
        }
    }
    kinds
}

/// The shards that a torn update may leave behind for readers.
struct Promise<'a> {
    kind: Kind,
    before: Option<Vec<Option<Vec<u8>>>>,
    update: &'a Update,
    /// How many bytes of it were written.
    written: usize,
}

impl Promise<'_> {
    /// Panics unless `object` is one of the shards that may be left.
    fn check(&self, object: Option<&[u8]>) {
        let Self { kind, update, .. } = self;
        let first = update.writes[0].iter().map(|(_, bytes)| bytes.len()).sum();
        let all = total(&update.writes);
        let Some(object) = object else {
            assert_eq!(self.before, None, "a shard was erased");
            assert!(self.written < first, "a shard was erased that is complete");
            return;
        };
        let found = kind.read(object).expect("an index");
        if let Some(before) = &self.before {
            for number in (0..kind.subchunks).filter(|number| !update.touched.contains(number)) {
                assert_eq!(found[number], before[number], "untouched {number}");
            }
        }
        if self.written == all {
            assert_eq!(found, update.after, "what was written");
            return;
        }
        // The sizes tell which index it is: in place, what was touched may be neither old nor new.
        let sizes = |shard: &[Option<Vec<u8>>]| -> Vec<_> {
            let size = |subchunk: &Option<Vec<u8>>| subchunk.as_ref().map(Vec::len);
            shard.iter().map(size).collect()
        };
        let is = |shard: &Vec<Option<Vec<u8>>>| {
            sizes(&found) == sizes(shard) && (update.in_place || found == *shard)
        };
        let is_old = self.before.as_ref().is_some_and(is);
        let may_be_new = self.written >= first || update.protocol == Protocol::DataOnly;
        assert!(is_old || (may_be_new && is(&update.after)), "another shard");
    }
}

/// Returns the write by which recovery repairs `object`, or `None` if recovery erases `object`.
fn repair(kind: Kind, object: &[u8]) -> Result<Option<Write>, String> {
    match kind.diagnose(object) {
        Diagnosis::Intact => Ok(Some(Vec::new())),
        Diagnosis::Undo(write) | Diagnosis::Complete(write) => Ok(Some(write)),
        Diagnosis::Erase => Ok(None),
        Diagnosis::Unrecoverable(reason) => Err(reason),
    }
}

/// Recovers, and checks; then the same where the recovery itself is torn, `depth` times. Torn recoveries leave
/// the same few objects again and again: `tried` has each, and the depth to which it was tried.
fn recover(
    promise: &Promise<'_>,
    object: &[u8],
    depth: usize,
    tried: &mut HashMap<Vec<u8>, usize>,
) -> Option<Vec<u8>> {
    let kind = promise.kind;
    let write = match repair(kind, object) {
        Ok(Some(write)) => [write],
        Ok(None) => {
            promise.check(None);
            return None;
        }
        Err(reason) => {
            // Only here it cannot be told: an index with neither checksum nor leading zeros.
            let grows = matches!(
                promise.update.protocol,
                Protocol::Growing | Protocol::Creating
            );
            assert!(
                kind.big_endian && !kind.checksum && grows && (1..8).contains(&promise.written),
                "{reason}"
            );
            return None;
        }
    };
    let len = total(&write);
    let mut recovered = object.to_vec();
    tear(&mut recovered, &write, len);
    promise.check(Some(&recovered));
    assert_eq!(
        kind.diagnose(&recovered),
        Diagnosis::Intact,
        "a second time"
    );
    if depth > 0 {
        for torn in 1..len {
            let mut object = object.to_vec();
            tear(&mut object, &write, torn);
            if tried.get(&object).is_none_or(|&before| before < depth) {
                tried.insert(object.clone(), depth);
                recover(promise, &object, depth - 1, tried);
            }
        }
    }
    Some(recovered)
}

/// How much is tried.
struct Effort {
    seeds: u32,
    updates: usize,
    scale: usize,
    depth: usize,
}

/// Tries histories of `seeds`: how often each protocol was used.
fn histories(kind: Kind, effort: &Effort, seeds: Range<u64>) -> [usize; 4] {
    let mut seen = [0; 4];
    for seed in seeds {
        let mut rng = Rng(seed);
        let mut object = if rng.one_in(2) {
            foreign(&mut rng, kind, effort.scale)
        } else {
            Vec::new()
        };
        for step in 0..effort.updates {
            let update = update(&mut rng, kind, &object, effort.scale);
            seen[update.protocol as usize] += 1;
            let all = total(&update.writes);
            let goes_on = if rng.one_in(2) {
                all
            } else {
                rng.below(all + 1)
            };
            let mut next = object.clone();
            for written in 0..=all {
                let mut torn = object.clone();
                tear(&mut torn, &update.writes, written);
                if torn.is_empty() {
                    continue;
                }
                let context = format!(
                    "{kind:?} seed {seed} step {step} {:?} written {written} of {all}",
                    update.protocol
                );
                let promise = Promise {
                    kind,
                    before: (!object.is_empty()).then(|| kind.read(&object).unwrap()),
                    update: &update,
                    written,
                };
                let recovered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    recover(&promise, &torn, effort.depth, &mut HashMap::new())
                }));
                let recovered = recovered.unwrap_or_else(|_| panic!("{context}"));
                if written == all {
                    assert_eq!(recovered.as_ref(), Some(&torn), "{context}: a whole shard");
                }
                if written == goes_on {
                    next = recovered.unwrap_or_default();
                }
            }
            object = next;
        }
    }
    seen
}

/// Tries histories until each protocol was used: few seeds may not use a rare one.
fn all_kinds(effort: &Effort) {
    let mut seen = [0; 4];
    let mut seeds = zarrs_cuda_testing::effort::seeds(effort.seeds);
    for _ in 0..32 {
        let kinds = kinds().into_par_iter();
        let each = kinds.map(|kind| histories(kind, effort, seeds.clone()));
        for more in each.collect::<Vec<_>>() {
            for (seen, more) in seen.iter_mut().zip(more) {
                *seen += more;
            }
        }
        if seen.iter().all(|&seen| seen > 0) {
            return;
        }
        seeds = seeds.end..2 * seeds.end - seeds.start;
    }
    panic!("each protocol: {seen:?}");
}

#[test]
fn histories_of_torn_updates() {
    all_kinds(&Effort {
        seeds: 3,
        updates: 5,
        scale: 1,
        depth: 1,
    });
}

#[test]
fn recoveries_that_are_torn_twice() {
    all_kinds(&Effort {
        seeds: 1,
        updates: 3,
        scale: 1,
        depth: 2,
    });
}

/// Offsets and sizes that end in zeros, so that an index which is shifted by a byte still looks like
/// one.
#[test]
fn sizes_that_are_round() {
    all_kinds(&Effort {
        seeds: 2,
        updates: 3,
        scale: 256,
        depth: 0,
    });
}

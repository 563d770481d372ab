//! A shard whose updates are torn: the effects of an update, the remains, and the promises.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use zarrs::array::{ArrayBytes, ArraySubset, Indexer};
use zarrs::storage::WritableStorageTraits;
use zarrs_cuda::WriteStrategy;
use zarrs_cuda::maintenance::{Recovery, RecoveryOutcome, ShardFormat, SubchunkState};

use super::case::{Case, STRATEGIES, Values};
use super::step::{By, Step, What, ranges};
use super::subject::{Change, Setting, Subject, key};
use super::update::{Reads, Unit, Update, below, torn};
use zarrs_cuda_testing::stores::watched::Call;
use zarrs_cuda_testing::{Rng, all_indices};

/// The shard that is updated.
pub(crate) const SHARD: usize = 0;

/// The state of the shard before an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum History {
    /// No shard.
    Nothing,
    /// A shard that zarrs wrote.
    Zarrs,
    /// A shard that zarrs wrote, after this many updates.
    Updates(usize),
    /// A shard that zarrs wrote, after torn updates.
    Torn { recovered: bool },
    /// A shard with its index at the start that zarrs wrote. Bytes that look like an index follow
    /// it.
    Junk,
}

/// The boxes of shape `unit` in `shape`.
fn boxes(shape: &[u64], unit: &[u64]) -> Vec<ArraySubset> {
    let counts: Vec<u64> = shape.iter().zip(unit).map(|(d, c)| d / c).collect();
    let boxes = all_indices(&counts).map(|indices| {
        let ranges = indices.iter().zip(unit);
        let ranges: Vec<_> = ranges.map(|(i, c)| i * c..(i + 1) * c).collect();
        ArraySubset::new_with_ranges(&ranges)
    });
    boxes.collect()
}

/// A shard of one case. Torn objects are put in its place.
pub(crate) struct TornShard {
    pub(crate) subject: Subject,
    format: ShardFormat,
    subchunks: Vec<ArraySubset>,
    units: Vec<ArraySubset>,
    /// The unit of each element of a shard.
    numbers: Vec<usize>,
}

impl TornShard {
    pub(crate) fn new(case: &Case, strategy: WriteStrategy) -> Self {
        let subject = Subject::new(case, Setting::default());
        let array = subject.ours(WriteStrategy::Auto);
        let format = ShardFormat::of(array, &subject.chunk(SHARD)).unwrap();
        let inner = case.chain.name.starts_with("nested") && strategy != WriteStrategy::Slots;
        let unit = if inner {
            case.inner()
        } else {
            case.subchunk.clone()
        };
        let units = boxes(&case.shape, &unit);
        let number = |indices: Vec<u64>| units.iter().position(|u| u.contains(&indices)).unwrap();
        Self {
            format,
            subchunks: boxes(&case.shape, &case.subchunk),
            numbers: all_indices(&case.shape).map(number).collect(),
            units,
            subject,
        }
    }

    pub(crate) fn put(&self, object: Option<&Vec<u8>>) {
        let (store, key) = (&self.subject.store, key(SHARD, &self.subject.case));
        match object {
            Some(object) => store.set(&key, object.clone().into()).unwrap(),
            None => store.erase(&key).unwrap(),
        }
        store.take_calls();
    }

    /// Recovers the shard. Returns the calls to the store, and the report.
    pub(crate) fn recover(&self) -> (Vec<Call>, Recovery) {
        let (store, key) = (&self.subject.store, key(SHARD, &self.subject.case));
        store.take_calls();
        let recovery = zarrs_cuda::recover(&**store, &key, &self.format).unwrap();
        let calls = store.take_calls().into_iter().map(|(_, call)| call);
        (calls.filter(|call| call.steps() > 0).collect(), recovery)
    }

    /// Checks that the report says what was done, and which subchunks our codec can read. (zarrs
    /// also reads some broken subchunks: it ignores the checksum when it reads a part of a shard.)
    pub(crate) fn check_report(&self, calls: &[Call], recovery: &Recovery, what: &str) {
        let wrote = match recovery.outcome {
            RecoveryOutcome::Absent
            | RecoveryOutcome::Intact
            | RecoveryOutcome::Unrecoverable { .. } => false,
            RecoveryOutcome::Undone | RecoveryOutcome::Completed | RecoveryOutcome::Erased => true,
            ref other => panic!("{other}; {what}"),
        };
        assert_eq!(wrote, !calls.is_empty(), "{recovery}: {calls:?}; {what}");
        if self.subject.object(SHARD).is_none() {
            assert!(recovery.subchunks.is_empty(), "{recovery}; {what}");
            return;
        }
        let ours = self.subject.ours(WriteStrategy::Auto);
        let chunk = self.subject.chunk(SHARD);
        for (subset, state) in self.subchunks.iter().zip(&recovery.subchunks) {
            let read = ours.retrieve_chunk_subset::<ArrayBytes>(&chunk, subset);
            let unreadable = matches!(state, SubchunkState::Unreadable { .. });
            assert_eq!(read.is_err(), unreadable, "{subset}: {recovery}; {what}");
        }
        assert_eq!(recovery.subchunks.len(), self.subchunks.len());
    }

    pub(crate) fn units_of(&self, subset: &ArraySubset) -> BTreeSet<usize> {
        let numbers = subset.iter_indices();
        let numbers = numbers.map(|indices| self.numbers[self.subject.case.number(&indices)]);
        numbers.collect()
    }

    /// Splits a decoded shard into units.
    fn divide(&self, shard: &[u8]) -> Vec<Unit> {
        let mut units = vec![Vec::new(); self.units.len()];
        for (number, element) in self.numbers.iter().zip(shard.chunks(2)) {
            units[*number].extend_from_slice(element);
        }
        units
    }

    /// The units as zarrs reads them; `None` for unreadable ones.
    fn read(&self) -> Vec<Option<Unit>> {
        let (array, chunk) = (self.subject.stock(), self.subject.chunk(SHARD));
        let whole = reading(|| array.retrieve_chunk::<ArrayBytes>(&chunk).ok());
        if let Some(whole) = whole {
            return self.divide(&whole).into_iter().map(Some).collect();
        }
        let part =
            |subset: &ArraySubset| reading(|| array.retrieve_chunk_subset(&chunk, subset).ok());
        self.units.iter().map(part).collect()
    }

    /// The state of the units after `update` was torn and recovered.
    pub(crate) fn outcome(&self, update: &Update) -> Vec<Reads> {
        let units = update.before.iter().zip(&update.after);
        let reads = self.read().into_iter().zip(units);
        reads
            .map(|(read, (before, after))| match read {
                Some(read) if read == *before && read == *after => Reads::Same,
                Some(read) if read == *before => Reads::Old,
                Some(read) if read == *after => Reads::New,
                _ => Reads::Lost,
            })
            .collect()
    }

    /// Checks the table of promises, row by row.
    pub(crate) fn check(&self, update: &Update, what: &str) -> Vec<Reads> {
        let outcome = self.outcome(update);
        let units = outcome.iter().zip(&update.touched);
        for (unit, (reads, touched)) in units.enumerate() {
            assert!(
                *touched || *reads == Reads::Same,
                "unit {unit} was not touched: {outcome:?}; {what}"
            );
        }
        if update.is_safe(self.subject.case.chain) {
            assert!(!outcome.contains(&Reads::Lost), "lost: {outcome:?}; {what}");
            let both = outcome.contains(&Reads::Old) && outcome.contains(&Reads::New);
            assert!(!both, "old and new: {outcome:?}; {what}");
        }
        // A reader that verifies checksums notices a loss.
        if self.subject.case.chain.name.contains("crc32c") {
            let (ours, chunk) = (
                self.subject.ours(WriteStrategy::Auto),
                self.subject.chunk(SHARD),
            );
            for (subset, reads) in self.units.iter().zip(&outcome) {
                let read = || ours.retrieve_chunk_subset::<ArrayBytes>(&chunk, subset);
                assert!(
                    *reads != Reads::Lost || read().is_err(),
                    "unnoticed; {what}"
                );
            }
        }
        outcome
    }

    /// Creates a shard with this history, and makes an update.
    pub(crate) fn update(
        &mut self,
        strategy: WriteStrategy,
        history: History,
        rng: &mut Rng,
    ) -> Update {
        self.reset();
        let case = self.subject.case.clone();
        let step = |what, strategy| Step {
            strategy,
            asynchronous: false,
            what,
        };
        if history != History::Nothing {
            let values = Values::Any(rng.next());
            let store = What::Store(SHARD, values, By::Zarrs);
            self.subject
                .apply(&step(store, WriteStrategy::Auto))
                .unwrap();
        }
        let encode = |strategy, rng: &mut Rng| {
            let values = Values::random(rng);
            let ranges = ranges(&case.shape, &case.subchunk, rng);
            step(What::Encode(SHARD, ranges, values), strategy)
        };
        match history {
            History::Nothing | History::Zarrs => {}
            History::Updates(count) => {
                for _ in 0..count {
                    let any = STRATEGIES[below(rng, 4)];
                    self.subject.apply(&encode(any, rng)).unwrap();
                }
            }
            History::Torn { recovered } => {
                let mut tears = 0;
                while tears < 2 {
                    let any = STRATEGIES[below(rng, 4)];
                    let before = self.subject.object(SHARD);
                    let change = self.encode(&encode(any, rng));
                    let steps = change.calls.iter().map(Call::steps).sum::<usize>();
                    let stop = below(rng, steps + 1);
                    self.put(torn(change.old, &change.calls, stop).as_ref());
                    if recovered {
                        self.recover();
                    }
                    // The content that zarrs reads becomes the expected content.
                    if self.adopt() {
                        tears += 1;
                    } else {
                        self.put(before.as_ref());
                        assert!(self.adopt());
                    }
                }
            }
            History::Junk => {
                let mut object = self.subject.object(SHARD).unwrap();
                let index = object[..case.index.size(self.subchunks.len())].to_vec();
                object.extend((0..200).map(|_| rng.byte()));
                object.extend(index);
                self.put(Some(&object));
            }
        }
        loop {
            let step = encode(strategy, rng);
            if let Some(update) = self.update_by(&step) {
                return update;
            }
        }
    }

    /// Applies `step`. Returns `None` if it wrote nothing, so that nothing can be torn.
    pub(crate) fn update_by(&mut self, step: &Step) -> Option<Update> {
        let change = self.encode(step);
        let calls = change.calls.into_iter().filter(|call| call.steps() > 0);
        let calls: Vec<_> = calls.collect();
        if calls.is_empty() {
            return None;
        }
        let mut touched = vec![false; self.units.len()];
        for number in change.written.unwrap() {
            touched[self.numbers[number]] = true;
        }
        Some(Update {
            strategy: step.strategy,
            old: change.old,
            calls,
            before: self.divide(&change.elements.concat()),
            after: self.divide(&self.subject.model[SHARD].concat()),
            touched,
        })
    }

    /// Makes an update. If it is refused because of an earlier torn update, recovers first.
    fn encode(&mut self, step: &Step) -> Change {
        let mut changes = self.subject.apply(step).unwrap_or_else(|error| {
            assert!(error.contains("recover"), "{error}");
            self.recover();
            assert!(self.adopt());
            self.subject.apply(step).unwrap()
        });
        changes.remove(0)
    }

    /// Makes the content that zarrs reads the expected content, if zarrs can read the whole shard.
    fn adopt(&mut self) -> bool {
        let case = &self.subject.case;
        let chunk = self.subject.chunk(SHARD);
        let stock = self.subject.stock();
        let Some(bytes) = reading(|| stock.retrieve_chunk(&chunk).ok()) else {
            return false;
        };
        self.subject.model[SHARD] = case.parse(bytes.into());
        true
    }

    /// Removes the shard.
    fn reset(&mut self) {
        self.put(None);
        let case = &self.subject.case;
        self.subject.model[SHARD] = vec![case.fill(); case.num_elements()];
    }

    /// Overwrites all subchunks that `update` touched, and some others, and reads everything.
    pub(crate) fn update_again(
        &self,
        update: &Update,
        strategy: WriteStrategy,
        seed: u64,
        what: &str,
    ) {
        let case = &self.subject.case;
        let (array, chunk) = (self.subject.ours(strategy), self.subject.chunk(SHARD));
        let options = self.subject.options();
        let mut expected = self.read();
        for (subchunk, subset) in self.subchunks.iter().enumerate() {
            let units = self.units_of(subset);
            let touched = units.iter().any(|unit| update.touched[*unit]);
            if !touched && !(seed + subchunk as u64).is_multiple_of(5) {
                continue;
            }
            let elements = Values::Any(seed).elements(case, subset.num_elements_usize());
            let encoder = array.partial_encoder(&chunk, &options).unwrap();
            let encoded = encoder.partial_encode(subset, &case.to_bytes(&elements), &options);
            encoded.unwrap_or_else(|error| panic!("then {strategy:?}: {error}; {what}"));
            for unit in &units {
                expected[*unit] = Some(Vec::new());
            }
            for (indices, element) in subset.iter_indices().zip(&elements) {
                let unit = &mut expected[self.numbers[case.number(&indices)]];
                unit.get_or_insert_default().extend_from_slice(element);
            }
        }
        assert!(self.read() == expected, "then {strategy:?}; {what}");
    }
}

/// Returns the bytes that `read` reads; `None` on an error or a panic, which zarrs has on some
/// broken shards.
fn reading<'a>(read: impl FnOnce() -> Option<ArrayBytes<'a>>) -> Option<Vec<u8>> {
    let read = catch_unwind(AssertUnwindSafe(read)).ok().flatten()?;
    Some(read.into_fixed().unwrap().into_owned())
}

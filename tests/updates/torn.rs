//! Updates that stop in the middle: after every byte that is written, what is left is recovered, and
//! the promises of `docs/updates.md` are checked by zarrs' own decoder.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use zarrs::array::{Array, ArrayBytes, ArraySubset, Indexer};
use zarrs::storage::WritableStorageTraits;
use zarrs_cuda::{Recovery, RecoveryOutcome, ShardFormat, SubchunkState, WriteStrategy};

use crate::Location;
use crate::case::{Case, Chain, LOCATIONS, STRATEGIES, Values, chain_named};
use crate::common::watched::{Call, Watched};
use crate::common::{Rng, all_indices};
use crate::step::{By, Step, What, ranges};
use crate::subject::{Change, Setting, Subject, key};

/// The shard that is updated.
const SHARD: usize = 0;

/// Up to how many bytes an update may be stopped after every one of them.
const EVERY: usize = 600;

/// The elements of a unit: what is lost or kept as one. That is a subchunk, and a subchunk of an inner
/// shard if that is updated in place.
type Unit = Vec<u8>;

/// An update of a shard, and what it does to the store.
struct Update {
    strategy: WriteStrategy,
    /// The object before it.
    old: Option<Vec<u8>>,
    calls: Vec<Call>,
    /// Each unit before and after it, and whether it is to change it.
    before: Vec<Unit>,
    after: Vec<Unit>,
    touched: Vec<bool>,
}

/// What a unit reads as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    /// As it was, and as it is to be: that is the same.
    Same,
    Old,
    New,
    /// Neither, or not at all.
    Lost,
}

/// How an update changes a shard; every kind has to be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Creates,
    /// Subchunks alone.
    DataOnly,
    Grows,
    /// The index is rewritten where it is.
    Rewrites,
}

impl Update {
    fn steps(&self) -> usize {
        self.calls.iter().map(Call::steps).sum()
    }

    /// The object after so many steps of the update.
    fn torn(&self, steps: usize) -> Option<Vec<u8>> {
        torn(self.old.clone(), &self.calls, steps)
    }

    fn kind(&self, case: &Case) -> Kind {
        let (old, new) = (self.old.as_ref(), self.torn(self.steps()));
        let (Some(old), Some(new)) = (old, new) else {
            return Kind::Creates;
        };
        let len = case.index.size(case.shards().num_subchunks());
        let index = match case.index.location {
            Location::Start => 0..len,
            Location::End => old.len() - len..old.len(),
        };
        if new.len() > old.len() {
            Kind::Grows
        } else if old[index.clone()] == new[index] {
            Kind::DataOnly
        } else {
            Kind::Rewrites
        }
    }

    /// After how many steps to stop: each number for some updates, and for others those near the
    /// borders of what is written and a few more.
    fn stops(&self, rng: &mut Rng) -> BTreeSet<usize> {
        let total = self.steps();
        if total <= EVERY && rng.one_in(4) {
            return (0..=total).collect();
        }
        let mut stops: BTreeSet<usize> = (0..20).map(|_| below(rng, total)).collect();
        let mut near = |border: usize| {
            for step in border.saturating_sub(3)..=(border + 3).min(total) {
                stops.insert(step);
            }
        };
        near(0);
        let mut border = 0;
        for call in &self.calls {
            let Call::Write(ranges) = call else {
                border += call.steps();
                near(border);
                continue;
            };
            for (_, bytes) in ranges {
                // Ranges may hold several things: a record begins or ends 64 bytes from a border.
                near(border);
                near((border + 64).min(total));
                border += bytes.len();
                near(border.saturating_sub(64));
            }
            near(border);
        }
        stops
    }

    /// Whether what was touched must be as it was, or as it was to be.
    fn is_safe(&self, chain: Chain) -> bool {
        match self.strategy {
            WriteStrategy::Append => true,
            WriteStrategy::Auto => !chain.in_place,
            _ => false,
        }
    }
}

fn below(rng: &mut Rng, n: usize) -> usize {
    usize::try_from(rng.below(n as u64)).unwrap()
}

/// An object after so many steps of `calls`.
fn torn(mut object: Option<Vec<u8>>, calls: &[Call], mut steps: usize) -> Option<Vec<u8>> {
    for call in calls {
        let done = steps.min(call.steps());
        call.apply(&mut object, done);
        steps -= done;
    }
    object
}

/// The boxes of one shape in a larger one.
fn boxes(shape: &[u64], unit: &[u64]) -> Vec<ArraySubset> {
    let counts: Vec<u64> = shape.iter().zip(unit).map(|(d, c)| d / c).collect();
    let boxes = all_indices(&counts).map(|indices| {
        let ranges = indices.iter().zip(unit);
        let ranges: Vec<_> = ranges.map(|(i, c)| i * c..(i + 1) * c).collect();
        ArraySubset::new_with_ranges(&ranges)
    });
    boxes.collect()
}

/// A shard of one case, into which torn objects are put.
struct Bench {
    subject: Subject,
    format: ShardFormat,
    subchunks: Vec<ArraySubset>,
    units: Vec<ArraySubset>,
    /// The unit of each element of a shard.
    numbers: Vec<usize>,
}

impl Bench {
    fn new(case: &Case, strategy: WriteStrategy) -> Self {
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

    fn put(&self, object: Option<&Vec<u8>>) {
        let (store, key) = (&self.subject.store, key(SHARD, &self.subject.case));
        match object {
            Some(object) => store.set(&key, object.clone().into()).unwrap(),
            None => store.erase(&key).unwrap(),
        }
        store.take_calls();
    }

    /// Recover the shard, and return what that did to the store, and its report.
    fn recover(&self) -> (Vec<Call>, Recovery) {
        let (store, key) = (&self.subject.store, key(SHARD, &self.subject.case));
        store.take_calls();
        let recovery = zarrs_cuda::recover(&**store, &key, &self.format).unwrap();
        let calls = store.take_calls().into_iter().map(|(_, call)| call);
        (calls.filter(|call| call.steps() > 0).collect(), recovery)
    }

    /// A report says what was done, and what can be read. (zarrs reads some subchunks that are broken:
    /// it does not look at the checksum when it reads a part of a shard.)
    fn check_report(&self, calls: &[Call], recovery: &Recovery, what: &str) {
        let wrote = match recovery.outcome {
            RecoveryOutcome::Absent | RecoveryOutcome::Intact => false,
            RecoveryOutcome::Undone | RecoveryOutcome::Completed | RecoveryOutcome::Erased => true,
            RecoveryOutcome::Unrecoverable { .. } => false,
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

    fn units_of(&self, subset: &ArraySubset) -> BTreeSet<usize> {
        let numbers = subset.iter_indices();
        let numbers = numbers.map(|indices| self.numbers[self.subject.case.number(&indices)]);
        numbers.collect()
    }

    /// The units of a decoded shard.
    fn divide(&self, shard: &[u8]) -> Vec<Unit> {
        let mut units = vec![Vec::new(); self.units.len()];
        for (number, element) in self.numbers.iter().zip(shard.chunks(2)) {
            units[*number].extend_from_slice(element);
        }
        units
    }

    /// What zarrs reads; `None` for units that it cannot read.
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

    /// What the units are after `update` was torn and recovered.
    fn outcome(&self, update: &Update) -> Vec<Reads> {
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

    /// The table of promises, row by row.
    fn check(&self, update: &Update, what: &str) -> Vec<Reads> {
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
        // A loss is noticed where there is a checksum, by who looks at it.
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

    /// Bring about some state, and make an update of it.
    fn update(&mut self, strategy: WriteStrategy, history: History, rng: &mut Rng) -> Update {
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
                    // What zarrs reads then is as good as anything to begin with.
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
            let change = self.encode(&encode(strategy, rng));
            let calls = change.calls.into_iter().filter(|call| call.steps() > 0);
            let calls: Vec<_> = calls.collect();
            if calls.is_empty() {
                continue; // nothing to tear
            }
            let mut touched = vec![false; self.units.len()];
            for number in change.written.unwrap() {
                touched[self.numbers[number]] = true;
            }
            return Update {
                strategy,
                old: change.old,
                calls,
                before: self.divide(&change.elements.concat()),
                after: self.divide(&self.subject.model[SHARD].concat()),
                touched,
            };
        }
    }

    /// Make an update; if it is refused because one was torn before, recover first.
    fn encode(&mut self, step: &Step) -> Change {
        let mut changes = self.subject.apply(step).unwrap_or_else(|error| {
            assert!(error.contains("recover"), "{error}");
            self.recover();
            assert!(self.adopt());
            self.subject.apply(step).unwrap()
        });
        changes.remove(0)
    }

    /// Take what zarrs reads for what must be there, if it reads everything.
    fn adopt(&mut self) -> bool {
        let case = &self.subject.case;
        let chunk = self.subject.chunk(SHARD);
        let stock = self.subject.stock();
        let Some(bytes) = reading(|| stock.retrieve_chunk(&chunk).ok()) else {
            return false;
        };
        self.subject.model[SHARD] = case.from_bytes(bytes.into());
        true
    }

    /// No shard.
    fn reset(&mut self) {
        self.put(None);
        let case = &self.subject.case;
        self.subject.model[SHARD] = vec![case.fill(); case.num_elements()];
    }

    /// Overwrite all subchunks that `update` touched, and some others, and read everything.
    fn update_again(&self, update: &Update, strategy: WriteStrategy, seed: u64, what: &str) {
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

    /// Tear `update` everywhere, and check everything.
    fn tear(&self, update: &Update, rng: &mut Rng, what: &str) {
        let total = update.steps();
        for steps in update.stops(rng) {
            let object = update.torn(steps);
            let what = format!(
                "after {steps} of {total} bytes of {:?}; {what}",
                update.calls
            );
            self.put(object.as_ref());
            let (recovery, report) = self.recover();
            let given_up = matches!(report.outcome, RecoveryOutcome::Unrecoverable { .. });
            assert!(!given_up, "{report}; {what}");
            if steps.is_multiple_of(3) {
                self.check_report(&recovery, &report, &what);
            }
            let recovered = self.subject.object(SHARD);
            let all = self.check(update, &what);
            if steps == 0 || steps == total {
                let wrong = [Reads::New, Reads::Old][usize::from(steps == total)];
                let wrong = all.contains(&wrong) || all.contains(&Reads::Lost);
                assert!(!wrong, "{all:?}; {what}");
                assert!(recovery.is_empty(), "{recovery:?}; {what}");
            }
            // Once more changes nothing.
            self.recover();
            assert_eq!(
                self.subject.object(SHARD),
                recovered,
                "recovered twice; {what}"
            );

            // Recovery may be torn as well.
            let once: usize = recovery.iter().map(Call::steps).sum();
            if once > 0 && (steps.is_multiple_of(7) || steps + 70 > total) {
                for stop in 0..once {
                    self.put(torn(object.clone(), &recovery, stop).as_ref());
                    self.recover();
                    let what = format!("recovery torn after {stop} of {once}; {what}");
                    assert_eq!(self.check(update, &what), all, "{what}");
                }
            }

            // And the shard can be updated.
            if steps.is_multiple_of(11) {
                for strategy in STRATEGIES {
                    if strategy == WriteStrategy::Slots && !self.subject.case.chain.bounded {
                        continue;
                    }
                    self.put(recovered.as_ref());
                    self.update_again(update, strategy, rng.next() >> 1, &what);
                }
            }
        }
    }
}

/// What `read` reads; nothing if it panics, as zarrs does on some broken shards.
fn reading<'a>(read: impl FnOnce() -> Option<ArrayBytes<'a>>) -> Option<Vec<u8>> {
    let read = catch_unwind(AssertUnwindSafe(read)).ok().flatten()?;
    Some(read.into_fixed().unwrap().into_owned())
}

/// What there was before an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum History {
    /// No shard.
    Nothing,
    /// A shard that zarrs wrote.
    Zarrs,
    /// The same, after so many updates.
    Updates(usize),
    /// The same, after updates that were torn.
    Torn { recovered: bool },
    /// The same, and behind it what looks like an index; for those that have theirs at the start.
    Junk,
}

const HISTORIES: [History; 8] = [
    History::Nothing,
    History::Zarrs,
    History::Updates(1),
    History::Updates(3),
    History::Updates(7),
    History::Torn { recovered: false },
    History::Torn { recovered: true },
    History::Junk,
];

/// How many updates are torn of each kind: 1, or what `ZARRS_CUDA_UPDATE_STEPS` says.
fn rounds() -> u64 {
    let rounds = std::env::var("ZARRS_CUDA_UPDATE_STEPS");
    rounds.map_or(1, |rounds| rounds.parse().expect("a number"))
}

/// A shard of two subchunks, so that inner shards of nested sharding have as many.
fn case(chain: &str, location: Location, checksum: bool) -> Case {
    let mut case = Case::new(chain_named(chain), location);
    case.index.checksum = checksum;
    if chain.starts_with("nested") {
        case.shape = vec![8, 4];
    }
    case
}

/// Updates with one strategy, of shards of each kind.
fn tear(strategy: WriteStrategy) {
    crate::common::panics::watch();
    // On one thread: the shards are so small that waking others takes longer than the work.
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    alone.unwrap().install(|| tear_all(strategy));
    crate::common::panics::assert_none("torn updates");
}

fn tear_all(strategy: WriteStrategy) {
    let mut kinds = BTreeSet::new();
    let mut seed = strategy as u64;
    for round in 0..rounds() {
        for chain in ["none", "crc32c", "zstd", "nested", "nested zstd"] {
            for location in LOCATIONS {
                for checksum in [true, false] {
                    let case = case(chain, location, checksum);
                    let mut bench = Bench::new(&case, strategy);
                    for history in HISTORIES {
                        if history == History::Junk && location == Location::End {
                            continue;
                        }
                        seed += 4;
                        let mut rng = Rng(seed);
                        let update = bench.update(strategy, history, &mut rng);
                        let kind = update.kind(&case);
                        kinds.insert((kind, location == Location::End));
                        let what = format!(
                            "{kind:?} with {strategy:?} after {history:?}, of an object of {:?} \
                             bytes, units {:?}; {case:?}, round {round}, seed {seed}",
                            update.old.as_ref().map(Vec::len),
                            update.touched,
                        );
                        bench.tear(&update, &mut rng, &what);
                    }
                }
            }
        }
    }
    // Every kind of update was met that this strategy makes.
    for at_end in [false, true] {
        let mut expected = vec![Kind::Creates, Kind::Grows];
        if strategy != WriteStrategy::Append {
            expected.extend([Kind::DataOnly, Kind::Rewrites]);
        }
        for kind in expected {
            assert!(kinds.contains(&(kind, at_end)), "no {kind:?}: {kinds:?}");
        }
    }
}

#[test]
fn auto() {
    tear(WriteStrategy::Auto);
}

#[test]
fn append() {
    tear(WriteStrategy::Append);
}

#[test]
fn in_place() {
    tear(WriteStrategy::InPlace);
}

#[test]
fn slots() {
    tear(WriteStrategy::Slots);
}

/// A power failure may leave any of the pages that one call wrote, and zeros for others that are new.
/// Then it may not be known what is right; but nothing is made worse.
#[test]
fn pages_in_any_order() {
    crate::common::panics::watch();
    let mut outcomes = [0; 3];
    for seed in 0..200 * rounds() {
        let mut rng = Rng(seed);
        let location = LOCATIONS[below(&mut rng, 2)];
        let case = case(["zstd", "none"][below(&mut rng, 2)], location, true);
        let strategy = WriteStrategy::Append;
        let mut bench = Bench::new(&case, strategy);
        let update = bench.update(strategy, History::Updates(2), &mut rng);
        for _ in 0..10 {
            let what = format!("{:?}; {case:?}, seed {seed}", update.calls);
            let mut object = update.old.clone().unwrap();
            let Call::Write(ranges) = &update.calls[0] else {
                panic!("{what}");
            };
            // A file may also have grown to its new size.
            let grown = rng.one_in(2);
            for (at, bytes) in ranges {
                let mut at = usize::try_from(*at).unwrap();
                for page in bytes.chunks(32) {
                    let end = at + page.len();
                    let written = !rng.one_in(3);
                    if written || grown {
                        object.resize(object.len().max(end), 0);
                    }
                    if written {
                        object[at..end].copy_from_slice(page);
                    }
                    at = end;
                }
            }
            bench.put(Some(&object));
            let (calls, recovery) = bench.recover();
            bench.check_report(&calls, &recovery, &what);
            match recovery.outcome {
                RecoveryOutcome::Unrecoverable { .. } => outcomes[0] += 1,
                RecoveryOutcome::Intact => outcomes[1] += 1,
                _ => outcomes[2] += 1,
            }
            if !matches!(recovery.outcome, RecoveryOutcome::Unrecoverable { .. }) {
                let outcome = bench.outcome(&update);
                let untouched = outcome.iter().zip(&update.touched).filter(|(_, t)| !**t);
                let same = untouched
                    .into_iter()
                    .all(|(reads, _)| *reads == Reads::Same);
                assert!(same, "{recovery}: {outcome:?}; {what}");
            }
        }
    }
    assert!(outcomes.iter().all(|&count| count > 0), "{outcomes:?}");
    crate::common::panics::assert_none("pages in any order");
}

/// What is put together above is what a store is left with that stops.
#[test]
fn stores_that_stop() {
    for strategy in STRATEGIES {
        for location in LOCATIONS {
            let case = case("zstd", location, true);
            let bench = Bench::new(&case, strategy);
            let subject = &bench.subject;
            let (elements, values) = (case.num_elements(), [Values::Any(1), Values::Any(2)]);
            let [old, new] = values.map(|values| case.to_bytes(&values.elements(&case, elements)));
            let (chunk, options) = (subject.chunk(SHARD), subject.options());
            let write = |array: &Array<Watched>| {
                let encoder = array.partial_encoder(&chunk, &options)?;
                let subset = ArraySubset::new_with_shape(case.shape.clone());
                encoder.partial_encode(&subset, &new, &options)?;
                Ok::<_, zarrs::array::ArrayError>(())
            };
            subject.stock().store_chunk(&chunk, old).unwrap();
            let before = subject.object(SHARD);
            subject.store.take_calls();
            write(subject.ours(strategy)).unwrap();
            let calls = subject.store.take_calls().into_iter();
            let calls: Vec<_> = calls.map(|(_, call)| call).collect();
            let total = calls.iter().map(Call::steps).sum::<usize>();
            assert!(total > 100);
            for steps in (0..total).step_by(13) {
                bench.put(before.as_ref());
                subject.store.stop_after(Some(steps));
                assert!(write(subject.ours(strategy)).is_err());
                subject.store.stop_after(None);
                let expected = torn(before.clone(), &calls, steps);
                assert_eq!(
                    subject.object(SHARD),
                    expected,
                    "{strategy:?}, {steps} bytes"
                );
            }
        }
    }
}

/// Without a record there is nothing to go by: whatever it is, it stays.
#[test]
fn shards_without_a_record() {
    for chain in ["none", "zstd", "nested"] {
        for location in LOCATIONS {
            let case = case(chain, location, true);
            let bench = Bench::new(&case, WriteStrategy::Auto);
            let elements = Values::Any(4).elements(&case, case.num_elements());
            let (subject, chunk) = (&bench.subject, bench.subject.chunk(SHARD));
            let bytes = case.to_bytes(&elements);
            subject.stock().store_chunk(&chunk, bytes).unwrap();
            let whole = subject.object(SHARD).unwrap();
            let mut objects: Vec<Vec<u8>> =
                (1..=whole.len()).map(|n| whole[..n].to_vec()).collect();
            for byte in 0..whole.len() {
                let mut object = whole.clone();
                object[byte] ^= 0x10;
                objects.push(object);
            }
            objects.push(whole.repeat(2));
            for object in objects {
                bench.put(Some(&object));
                let (calls, recovery) = bench.recover();
                assert!(calls.is_empty(), "{calls:?}: {recovery}");
            }
            bench.put(None);
            bench.recover();
            assert_eq!(subject.object(SHARD), None);
        }
    }
}

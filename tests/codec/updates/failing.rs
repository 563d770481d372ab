//! Updates of a stored shard, one of whose writes fails after any number of bytes: the encoder undoes them,
//! and zarrs' own decoder reads the shard.

use futures::executor::block_on;
use zarrs::array::{ArrayBytes, ArraySubset};
use zarrs::storage::WritableStorageTraits;
use zarrs_cuda::maintenance::{RecoveryOutcome, ShardFormat};
use zarrs_cuda::{WriteStrategy, recover};

use super::case::{Case, LOCATIONS, STRATEGIES, Values, chain_named};
use super::subject::{Setting, Subject, key};
use zarrs_cuda_testing::stores::watched::Call;

/// Three subchunks of 8 elements.
const SUBCHUNKS: u64 = 3;
const LEN: u64 = 8;

/// How the store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failing {
    /// One write fails.
    Once,
    /// The disk is full, and stays full: no write succeeds.
    Full,
}

struct Trial {
    subject: Subject,
    strategy: WriteStrategy,
    awaited: bool,
}

impl Trial {
    fn store(&self, subset: &ArraySubset, values: Values) -> Result<(), String> {
        let case = &self.subject.case;
        let len = usize::try_from(subset.num_elements()).unwrap();
        let bytes = case.to_bytes(&values.elements(case, len));
        let options = self.subject.options();
        let stored = if self.awaited {
            let array = self.subject.asynchronous(self.strategy);
            block_on(array.async_store_chunk_subset_opt(&[0], subset, bytes, &options))
        } else {
            let array = self.subject.ours(self.strategy);
            array.store_chunk_subset_opt(&[0], subset, bytes, &options)
        };
        stored.map_err(|error| error.to_string())
    }

    /// The bytes of subchunk `number`, or that it cannot be decoded.
    fn read(&self, number: u64) -> Result<Vec<Vec<u8>>, String> {
        let subset = subchunk(number);
        let read = self
            .subject
            .stock()
            .retrieve_chunk_subset::<ArrayBytes>(&[0], &subset);
        let read = read.map_err(|error| error.to_string())?;
        Ok(self.subject.case.parse(read))
    }

    fn recover(&self) -> RecoveryOutcome {
        let format = ShardFormat::of(self.subject.ours(self.strategy), &[0]).unwrap();
        let key = key(0, &self.subject.case);
        let recovery = recover(&*self.subject.store, &key, &format);
        recovery.unwrap().outcome
    }
}

fn subchunk(number: u64) -> ArraySubset {
    ArraySubset::new_with_ranges(&[number * LEN..(number + 1) * LEN])
}

/// Whether the strategy overwrites subchunks where they are.
fn overwrites(case: &Case, strategy: WriteStrategy) -> bool {
    match strategy {
        WriteStrategy::Append => false,
        WriteStrategy::Auto => case.chain.in_place,
        _ => true,
    }
}

/// Updates subchunk 1, and half of subchunk 2, with a write that fails after `steps` bytes. Returns whether
/// it failed, and whether it was undone.
fn fail(trial: &Trial, object: &[u8], steps: usize, failing: Failing) -> (bool, bool) {
    let Trial {
        subject, strategy, ..
    } = trial;
    let case = &subject.case;
    let what = format!(
        "after {steps} bytes, {failing:?}, {strategy:?}, awaited {}: {case:?}",
        trial.awaited
    );
    let place = key(0, case);
    subject.store.set(&place, object.to_vec().into()).unwrap();
    let before: Vec<_> = (0..SUBCHUNKS).map(|n| trial.read(n).unwrap()).collect();
    let update = ArraySubset::new_with_ranges(&[LEN..2 * LEN + LEN / 2]);
    match failing {
        Failing::Once => subject.store.fails_once_after(steps),
        Failing::Full => subject.store.full_after(Some(steps)),
    }
    let stored = trial.store(&update, Values::Any(99));
    subject.store.full_after(None);
    let Err(error) = stored else {
        return (false, false);
    };
    assert!(error.contains("cannot write part of a shard"), "{error}");
    let torn = error.contains("zarrs_cuda::recover");
    let outcome = trial.recover();
    let given_up = matches!(outcome, RecoveryOutcome::Unrecoverable { .. });
    assert!(!given_up, "{outcome:?}; {what}");
    assert!(
        torn || outcome == RecoveryOutcome::Intact,
        "{outcome:?}; {what}"
    );
    // The bytes that are missing of an index may be those that it had.
    let new = Values::Any(99).elements(case, usize::try_from(update.num_elements()).unwrap());
    let is_new = trial
        .read(1)
        .is_ok_and(|read| read[..] == new[..read.len()]);
    assert!(outcome != RecoveryOutcome::Completed || is_new, "{what}");
    if torn && is_new {
        return (true, false);
    }
    assert_eq!(trial.read(0).as_ref(), Ok(&before[0]), "{what}: {error}");
    let all_before = (0..SUBCHUNKS)
        .zip(&before)
        .all(|(n, before)| trial.read(n).as_ref() == Ok(before));
    if error.contains("is as it was before. Write again") {
        assert!(all_before, "{what}: {error}");
        assert_eq!(trial.recover(), RecoveryOutcome::Intact, "{what}");
    }
    assert!(all_before || overwrites(case, *strategy), "{what}: {error}");
    // The shard takes further updates, and they are read.
    let rest = ArraySubset::new_with_ranges(&[LEN..SUBCHUNKS * LEN]);
    trial.store(&rest, Values::Any(100)).unwrap();
    let expected = Values::Any(100).elements(case, usize::try_from(rest.num_elements()).unwrap());
    let read = [trial.read(1).unwrap(), trial.read(2).unwrap()].concat();
    assert_eq!(read, expected, "{what}");
    assert_eq!(trial.read(0).as_ref(), Ok(&before[0]), "{what}");
    assert_eq!(trial.recover(), RecoveryOutcome::Intact, "{what}");
    (true, !torn)
}

#[test]
fn a_failed_update_is_undone() {
    for failing in [Failing::Once, Failing::Full] {
        for chain in ["none", "zstd", "crc32c", "no bound"] {
            for (location, checksum) in LOCATIONS.into_iter().flat_map(|l| [(l, true), (l, false)])
            {
                let mut case = Case {
                    shape: vec![SUBCHUNKS * LEN],
                    subchunk: vec![LEN],
                    ..Case::new(chain_named(chain), location)
                };
                case.index.checksum = checksum;
                for strategy in STRATEGIES {
                    if strategy == WriteStrategy::Slots && !case.chain.bounded {
                        continue;
                    }
                    for (awaited, updates) in [(false, 0), (true, 1), (false, 3)] {
                        try_everywhere(&case, strategy, awaited, updates, failing);
                    }
                }
            }
        }
    }
}

fn try_everywhere(
    case: &Case,
    strategy: WriteStrategy,
    awaited: bool,
    updates: u64,
    failing: Failing,
) {
    let trial = Trial {
        subject: Subject::new(case, Setting::default()),
        strategy,
        awaited,
    };
    let whole = ArraySubset::new_with_ranges(&[0..SUBCHUNKS * LEN]);
    trial.store(&whole, Values::Any(1)).unwrap();
    for update in 0..updates {
        let values = Values::Any(10 + update);
        trial.store(&subchunk(update % SUBCHUNKS), values).unwrap();
    }
    let object = trial.subject.object(0).unwrap();
    let (mut failed, mut undone) = (0, 0);
    for steps in 0.. {
        trial.subject.store.take_calls();
        let (has_failed, is_undone) = fail(&trial, &object, steps, failing);
        if !has_failed {
            let calls = trial.subject.store.take_calls();
            let written: usize = calls.iter().map(|(_, call)| Call::steps(call)).sum();
            assert!(steps > 0 && written >= steps, "{written} {steps}");
            break;
        }
        failed += 1;
        undone += usize::from(is_undone);
    }
    if failing == Failing::Once {
        assert_eq!(failed, undone, "{strategy:?}, {updates} updates, {case:?}");
    }
}

//! Updates that stop in the middle, after every written byte. The remains are recovered, and zarrs'
//! own decoder checks the promises of `docs/reference/updates.md`.

use std::collections::BTreeSet;

use zarrs::array::codec::ShardingIndexLocation;
use zarrs::array::{Array, ArraySubset};
use zarrs_cuda::WriteStrategy;
use zarrs_cuda::maintenance::RecoveryOutcome;

use super::Location;
use zarrs_cuda_testing::effort;

use super::case::{Case, LOCATIONS, STRATEGIES, Values, chain_named};
use super::step::{By, Step, What};
use super::torn_shard::{History, SHARD, TornShard};
use super::update::{Kind, Reads, Update, below, torn};
use zarrs_cuda_testing::Rng;
use zarrs_cuda_testing::stores::watched::{Call, Watched};

/// Tears `update` at many steps, and checks everything.
fn tear_everywhere(shard: &TornShard, update: &Update, rng: &mut Rng, what: &str) {
    let stops = update.stops(rng);
    tear_at(shard, update, stops, rng, what);
}

/// Tears `update` after each of these numbers of steps, and checks everything.
fn tear_at(
    shard: &TornShard,
    update: &Update,
    stops: impl IntoIterator<Item = usize>,
    rng: &mut Rng,
    what: &str,
) {
    let total = update.steps();
    for steps in stops {
        let object = update.torn(steps);
        let what = format!(
            "after {steps} of {total} bytes of {:?}; {what}",
            update.calls
        );
        shard.put(object.as_ref());
        let (recovery, report) = shard.recover();
        let given_up = matches!(report.outcome, RecoveryOutcome::Unrecoverable { .. });
        assert!(!given_up, "{report}; {what}");
        if steps.is_multiple_of(3) {
            shard.check_report(&recovery, &report, &what);
        }
        let recovered = shard.subject.object(SHARD);
        let all = shard.check(update, &what);
        if steps == 0 || steps == total {
            let wrong = [Reads::New, Reads::Old][usize::from(steps == total)];
            let wrong = all.contains(&wrong) || all.contains(&Reads::Lost);
            assert!(!wrong, "{all:?}; {what}");
            assert!(recovery.is_empty(), "{recovery:?}; {what}");
        }
        // A second recovery changes nothing.
        shard.recover();
        assert_eq!(
            shard.subject.object(SHARD),
            recovered,
            "recovered twice; {what}"
        );

        // Recovery may be torn, too.
        let once: usize = recovery.iter().map(Call::steps).sum();
        if once > 0 && (steps.is_multiple_of(7) || steps + 70 > total) {
            for stop in 0..once {
                shard.put(torn(object.clone(), &recovery, stop).as_ref());
                shard.recover();
                let what = format!("recovery torn after {stop} of {once}; {what}");
                assert_eq!(shard.check(update, &what), all, "{what}");
            }
        }

        // The recovered shard can be updated.
        if steps.is_multiple_of(11) {
            for strategy in STRATEGIES {
                if strategy == WriteStrategy::Slots && !shard.subject.case.chain.bounded {
                    continue;
                }
                shard.put(recovered.as_ref());
                shard.update_again(update, strategy, rng.next() >> 1, &what);
            }
        }
    }
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

/// A shard of two subchunks. Nested shards have two inner subchunks as well.
fn case(chain: &str, location: Location, checksum: bool) -> Case {
    let mut case = Case::new(chain_named(chain), location);
    case.index.checksum = checksum;
    if chain.starts_with("nested") {
        case.shape = vec![8, 4];
    }
    case
}

/// Updates with one strategy, of shards of every kind.
fn tear(strategy: WriteStrategy) {
    zarrs_cuda_testing::panics::watch();
    // Uses one thread: the shards are so small that waking other threads takes longer than the
    // work.
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    alone.unwrap().install(|| tear_all(strategy));
    zarrs_cuda_testing::panics::assert_none("torn updates");
}

fn tear_all(strategy: WriteStrategy) {
    let mut kinds = BTreeSet::new();
    let mut seed = (effort::seed() >> 16 << 2) + strategy as u64;
    for round in 0..effort::times(1) {
        for chain in ["none", "crc32c", "zstd", "nested", "nested zstd"] {
            for location in LOCATIONS {
                for checksum in [true, false] {
                    let case = case(chain, location, checksum);
                    let mut shard = TornShard::new(&case, strategy);
                    for history in HISTORIES {
                        if history == History::Junk && location == Location::End {
                            continue;
                        }
                        seed += 4;
                        let mut rng = Rng(seed);
                        let update = shard.update(strategy, history, &mut rng);
                        let kind = update.kind(&case);
                        kinds.insert((kind, location == Location::End));
                        let what = format!(
                            "{kind:?} with {strategy:?} after {history:?}, of an object of {:?} \
                             bytes, units {:?}; {case:?}, round {round}, seed {seed}",
                            update.old.as_ref().map(Vec::len),
                            update.touched,
                        );
                        tear_everywhere(&shard, &update, &mut rng, &what);
                    }
                }
            }
        }
    }
    // Every kind of update that this strategy makes has occurred.
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

/// Half of an inner shard is written. A torn write never loses the other half, even if the inner
/// index changes.
#[test]
fn halves_of_inner_shards() {
    zarrs_cuda_testing::panics::watch();
    let shrinks = [Values::Fill, Values::Constant(5), Values::Any(6)];
    for chain in ["nested", "nested zstd"] {
        for location in LOCATIONS {
            for strategy in [WriteStrategy::Auto, WriteStrategy::InPlace] {
                for values in shrinks {
                    let case = case(chain, location, true);
                    let mut shard = TornShard::new(&case, strategy);
                    let step = |what| Step {
                        strategy,
                        asynchronous: false,
                        what,
                    };
                    let store = step(What::Store(SHARD, Values::Any(7), By::Zarrs));
                    shard.subject.apply(&store).unwrap();
                    let half = step(What::Encode(SHARD, vec![0..2, 0..4], values));
                    let update = shard.update_by(&half).unwrap();
                    assert_eq!(update.touched, [true, false, false, false]);
                    let what = format!("{half:?}; {case:?}");
                    let mut rng = Rng(0);
                    let stops = 0..=update.steps();
                    tear_at(&shard, &update, stops, &mut rng, &what);
                }
            }
        }
    }
    zarrs_cuda_testing::panics::assert_none("halves of inner shards");
}

/// A write to a torn shard before its recovery is refused or harmless. This holds even if a part of
/// an inner shard looks like the index, or half of a new index overwrites an old one.
#[test]
fn writing_to_a_torn_shard() {
    zarrs_cuda_testing::panics::watch();
    let mut mixed_indexes = 0;
    for chain in ["zstd", "nested"] {
        for location in LOCATIONS {
            let interrupted = write_to_torn(&case(chain, location, true), WriteStrategy::Append, 3);
            let looks_alike = chain == "nested" && location == Location::End;
            assert_eq!(interrupted > 0, looks_alike, "{chain}, {location:?}");
            for strategy in [WriteStrategy::InPlace, WriteStrategy::Slots] {
                write_to_torn(&case(chain, location, true), strategy, 3);
                for seed in 0..6 {
                    let case = case(chain, location, false);
                    mixed_indexes += write_to_torn(&case, strategy, seed);
                }
            }
        }
    }
    assert!(mixed_indexes > 0);
    zarrs_cuda_testing::panics::assert_none("writing to torn shards");
}

/// Writes to a shard after every byte of a torn update. Returns how often the write was refused
/// because of the torn update although the index was readable.
fn write_to_torn(case: &Case, strategy: WriteStrategy, seed: u64) -> usize {
    let mut shard = TornShard::new(case, strategy);
    let history = match strategy {
        WriteStrategy::Append => History::Zarrs,
        // With this history the index is rewritten in place.
        _ => History::Updates(2),
    };
    let mut rng = Rng(seed);
    let update = shard.update(strategy, history, &mut rng);
    let (subject, chunk) = (&shard.subject, shard.subject.chunk(SHARD));
    let part = ArraySubset::new_with_shape(case.subchunk.clone());
    let elements = Values::Any(8).elements(case, part.num_elements_usize());
    let bytes = case.to_bytes(&elements);
    let mut interrupted = 0;
    for steps in 1..update.steps() {
        let what = format!("after {steps} of {:?}; {case:?}", update.calls);
        let object = update.torn(steps);
        shard.put(object.as_ref());
        let options = subject.options();
        let array = subject.ours(WriteStrategy::Auto);
        let written = array.store_chunk_subset_opt(&chunk, &part, bytes.clone(), &options);
        if let Err(error) = &written {
            let error = error.to_string();
            assert!(error.contains("zarrs_cuda::recover"), "{error}; {what}");
            interrupted += usize::from(error.contains("update of the shard was interrupted"));
            assert_eq!(subject.object(SHARD), object, "{what}");
        } else if strategy == WriteStrategy::Append {
            let at_start = case.index.location == ShardingIndexLocation::Start;
            assert!(at_start, "not refused; {what}");
        }
        shard.recover();
        let outcome = shard.outcome(&update).into_iter().zip(&update.touched);
        // The first subchunk, which was written, is not checked.
        let mut others = outcome.skip(shard.units_of(&part).len());
        let kept = others.all(|(reads, touched)| *touched || reads == Reads::Same);
        assert!(kept, "{what}");
    }
    interrupted
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

/// A power failure may lose any of the pages that one call wrote, and leave zeros in new ones.
/// Recovery may then not know the right content, but it does no damage.
#[test]
fn pages_in_any_order() {
    zarrs_cuda_testing::panics::watch();
    let mut outcomes = [0; 3];
    for seed in effort::seeds(100) {
        let mut rng = Rng(seed);
        let location = LOCATIONS[below(&mut rng, 2)];
        let case = case(["zstd", "none"][below(&mut rng, 2)], location, true);
        let strategy = WriteStrategy::Append;
        let mut shard = TornShard::new(&case, strategy);
        let update = shard.update(strategy, History::Updates(2), &mut rng);
        let (Some(old), Call::Write(ranges)) = (&update.old, &update.calls[0]) else {
            continue; // the shard is created or erased
        };
        for _ in 0..10 {
            let what = format!("{:?}; {case:?}, seed {seed}", update.calls);
            let mut object = old.clone();
            // The file may have grown to its new size without its content.
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
            shard.put(Some(&object));
            let (calls, recovery) = shard.recover();
            shard.check_report(&calls, &recovery, &what);
            match recovery.outcome {
                RecoveryOutcome::Unrecoverable { .. } => outcomes[0] += 1,
                RecoveryOutcome::Intact => outcomes[1] += 1,
                _ => outcomes[2] += 1,
            }
            if !matches!(recovery.outcome, RecoveryOutcome::Unrecoverable { .. }) {
                let outcome = shard.outcome(&update);
                let untouched = outcome.iter().zip(&update.touched).filter(|(_, t)| !**t);
                let same = untouched
                    .into_iter()
                    .all(|(reads, _)| *reads == Reads::Same);
                assert!(same, "{recovery}: {outcome:?}; {what}");
            }
        }
    }
    assert!(outcomes.iter().all(|&count| count > 0), "{outcomes:?}");
    zarrs_cuda_testing::panics::assert_none("pages in any order");
}

/// Checks that `torn` computes the object that a store has after it stops.
#[test]
fn stores_that_stop() {
    for strategy in STRATEGIES {
        for location in LOCATIONS {
            let case = case("zstd", location, true);
            let shard = TornShard::new(&case, strategy);
            let subject = &shard.subject;
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
                shard.put(before.as_ref());
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

/// Without a record nothing can be recovered: the object stays as it is.
#[test]
fn shards_without_a_record() {
    for chain in ["none", "zstd", "nested"] {
        for location in LOCATIONS {
            let case = case(chain, location, true);
            let shard = TornShard::new(&case, WriteStrategy::Auto);
            let elements = Values::Any(4).elements(&case, case.num_elements());
            let (subject, chunk) = (&shard.subject, shard.subject.chunk(SHARD));
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
                shard.put(Some(&object));
                let (calls, recovery) = shard.recover();
                assert!(calls.is_empty(), "{calls:?}: {recovery}");
            }
            shard.put(None);
            shard.recover();
            assert_eq!(subject.object(SHARD), None);
        }
    }
}

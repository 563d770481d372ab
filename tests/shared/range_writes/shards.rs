//! Arrays with partial updates of shards, in a store that only replaces whole objects. zarrs' own
//! codec reads the results directly from the store.

use std::sync::Arc;

use futures::executor::block_on;
use futures::future::join_all;
use zarrs::array::codec::ShardingIndexLocation as Location;
use zarrs::array::{Array, ArrayBytes, ArraySubset, Indexer};
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{ReadableStorageTraits, StoreKey};
use zarrs_codec::CodecOptions;
use zarrs_cuda::maintenance::{RecoveryOutcome, ShardFormat};
use zarrs_cuda::storage::RangeWrites;
use zarrs_cuda::{Options, WriteStrategy, recover};

use super::waiting::{Waiting, Yields};
use crate::updates::case::{
    Case, Chain, Element, LOCATIONS, NUM_SHARDS, STRATEGIES, Values, chain_named,
};
use zarrs_cuda_testing::Rng;
use zarrs_cuda_testing::stores::faulty::{Fault, Faulty, Operation};
use zarrs_cuda_testing::stores::watched::{Call, Watched};

fn options() -> CodecOptions {
    CodecOptions::default().with_experimental_partial_encoding(true)
}

/// The key of the only shard of a column.
fn key(shard: usize) -> StoreKey {
    StoreKey::new(format!("array/c/{shard}/0")).unwrap()
}

/// Whether the strategy is possible: slots need a chain with a bounded encoded size.
fn is_possible(chain: Chain, strategy: WriteStrategy) -> bool {
    chain.bounded || strategy != WriteStrategy::Slots
}

/// A random box within a shard.
fn part(case: &Case, rng: &mut Rng) -> ArraySubset {
    let ranges: Vec<_> = case
        .shape
        .iter()
        .map(|&extent| {
            let start = rng.below(extent);
            start..start + 1 + rng.below(extent - start)
        })
        .collect();
    ArraySubset::new_with_ranges(&ranges)
}

/// Copies `elements`, which are in the order of `part`, to their places in `model`.
fn patch(case: &Case, model: &mut [Element], part: &ArraySubset, elements: &[Element]) {
    for (indices, element) in part.iter_indices().zip(elements) {
        model[case.number(&indices)].clone_from(element);
    }
}

/// The calls to the store since this was last called, without their keys.
fn calls(store: &Watched) -> Vec<Call> {
    let calls = store.take_calls().into_iter();
    calls.map(|(_, call)| call).collect()
}

/// Updates random parts of random shards, one after the other, and reads everything after each.
fn updates(case: &Case, strategy: WriteStrategy, asynchronous: bool, seed: u64) {
    let whole = Faulty::new(Arc::new(MemoryStore::new())).without_parts();
    let store = Arc::new(Watched::new(Arc::new(whole)));
    let ranges = Arc::new(RangeWrites::new(store.clone()));
    let waiting = Arc::new(Waiting::new(store.clone(), Yields));
    let waiting = Arc::new(RangeWrites::new(waiting));
    let of = || Options::default().with_write_strategy(strategy);
    let (array, array_async) = (case.ours(&ranges, of()), case.ours(&waiting, of()));
    let stock = case.stock(&store);
    let mut rng = Rng(seed);
    let mut model = vec![vec![case.fill(); case.num_elements()]; NUM_SHARDS];
    let mut parts_written = 0;
    for step in 0..12 {
        let shard = usize::try_from(rng.below(NUM_SHARDS as u64)).unwrap();
        let chunk = [shard as u64, 0];
        let part = part(case, &mut rng);
        let values = Values::random(&mut rng);
        let elements = values.elements(case, part.num_elements_usize());
        patch(case, &mut model[shard], &part, &elements);
        let bytes = case.to_bytes(&elements);
        let what = format!("step {step} of {seed}: {strategy:?}, {asynchronous}, {case:?}");
        store.take_calls();
        let existed = store.get(&key(shard)).unwrap().is_some();
        store.take_calls();
        let stored = if asynchronous {
            block_on(array_async.async_store_chunk_subset_opt(&chunk, &part, bytes, &options()))
        } else {
            array.store_chunk_subset_opt(&chunk, &part, bytes, &options())
        };
        stored.unwrap_or_else(|error| panic!("{error}; {what}"));
        let calls = calls(&store);
        let sets = calls
            .iter()
            .filter(|call| matches!(call, Call::Set(_)))
            .count();
        let erased = calls.iter().any(|call| matches!(call, Call::Erase));
        assert!(sets <= 2 && !(erased && sets > 0), "{calls:?}; {what}");
        assert!(
            !calls.iter().any(|call| matches!(call, Call::Write(_))),
            "{calls:?}; {what}"
        );
        if part.num_elements_usize() < case.num_elements() && sets > 0 {
            parts_written += 1;
            if existed {
                // The first set directly follows the last read, which is of the whole object. No
                // read is between two sets.
                let last = calls.iter().rposition(|call| matches!(call, Call::Read(_)));
                let first = calls.iter().position(|call| matches!(call, Call::Set(_)));
                assert_eq!(last.map(|last| last + 1), first, "{calls:?}; {what}");
            }
        }
        for (shard, model) in model.iter().enumerate() {
            let chunk = [shard as u64, 0];
            let read = stock.retrieve_chunk::<ArrayBytes>(&chunk);
            let read = case.parse(read.unwrap_or_else(|error| panic!("{error}; {what}")));
            assert_eq!(read, *model, "zarrs, shard {shard}; {what}");
            let read = if asynchronous {
                block_on(array_async.async_retrieve_chunk::<ArrayBytes>(&chunk))
            } else {
                array.retrieve_chunk::<ArrayBytes>(&chunk)
            };
            assert_eq!(
                case.parse(read.unwrap()),
                *model,
                "ours, shard {shard}; {what}"
            );
        }
    }
    assert!(parts_written > 0, "nothing was updated: {case:?} {seed}");
}

#[test]
fn arrays_read_back_after_updates() {
    let chains = [
        "none",
        "crc32c",
        "zstd",
        "zstd, crc32c",
        "nested",
        "nested zstd",
        "no bound",
        "strings",
    ];
    let mut seed = 0;
    for chain in chains.map(chain_named) {
        for location in LOCATIONS {
            let case = Case::new(chain, location);
            for strategy in STRATEGIES {
                if !is_possible(chain, strategy) {
                    continue;
                }
                for asynchronous in [false, true] {
                    seed += 1;
                    updates(&case, strategy, asynchronous, seed);
                }
            }
        }
    }
}

/// Half of the first subchunk of a shard, and the whole second one.
fn some_subchunks() -> ArraySubset {
    ArraySubset::new_with_ranges(&[0..4, 2..8])
}

/// The requests of one update. Reads are ranges of the object; a set is its new size.
#[test]
fn requests_of_an_update() {
    for (chain, strategy, location, sets) in [
        // In place: only the data are written.
        ("none", WriteStrategy::Auto, Location::End, 1),
        ("none", WriteStrategy::Auto, Location::Start, 1),
        // The data are appended after everything else, with the index.
        ("zstd", WriteStrategy::Auto, Location::End, 1),
        ("zstd", WriteStrategy::Append, Location::End, 1),
        ("none", WriteStrategy::Append, Location::End, 1),
        // The data are appended, and then the index is rewritten.
        ("zstd", WriteStrategy::Auto, Location::Start, 2),
        ("zstd", WriteStrategy::Append, Location::Start, 2),
    ] {
        let case = Case::new(chain_named(chain), location);
        let whole = Faulty::new(Arc::new(MemoryStore::new())).without_parts();
        let store = Arc::new(Watched::new(Arc::new(whole)));
        let ranges = Arc::new(RangeWrites::new(store.clone()));
        let array = case.ours(&ranges, Options::default().with_write_strategy(strategy));
        let all = Values::Any(1).elements(&case, case.num_elements());
        array.store_chunk(&[0, 0], case.to_bytes(&all)).unwrap();
        let size = store.size_key(&key(0)).unwrap().unwrap();
        let part = some_subchunks();
        let new = Values::Any(2).elements(&case, part.num_elements_usize());
        store.take_calls();
        let stored = array.store_chunk_subset_opt(&[0, 0], &part, case.to_bytes(&new), &options());
        stored.unwrap();
        let calls = calls(&store);
        let what = format!("{chain}, {strategy:?}, {location:?}: {calls:?}");
        let is_read = |call: &Call| matches!(call, Call::Read(_));
        let (reads, writes) = calls.split_at(calls.iter().filter(|call| is_read(call)).count());
        assert!(reads.iter().all(is_read), "{what}");
        assert!(
            writes.iter().all(|call| matches!(call, Call::Set(_))),
            "{what}"
        );
        assert_eq!(writes.len(), sets, "{what}");
        // Reads: the index; the subchunk that is partly kept; the index and the bytes around it;
        // the object.
        assert!((4..=5).contains(&reads.len()), "{what}");
        assert!(
            matches!(&reads[reads.len() - 1], Call::Read(all) if *all == [0..size]),
            "{what}"
        );
    }
}

/// An update that stops at any of its calls keeps the promises of `docs/reference/updates.md`. Each
/// call is done as a whole or not at all.
#[test]
fn interrupted_updates() {
    let mut stopped_between = 0;
    for location in LOCATIONS {
        for strategy in STRATEGIES {
            for chain in ["crc32c", "zstd, crc32c"].map(chain_named) {
                let case = Case::new(chain, location);
                let number_of_sets = interrupt(&case, strategy, None);
                for stop in 0..number_of_sets {
                    for fault in [Fault::Refused, Fault::Denied] {
                        interrupt(&case, strategy, Some((stop, fault)));
                        stopped_between += usize::from(stop > 0);
                    }
                }
            }
        }
    }
    assert!(stopped_between > 0, "no update had two calls");
}

/// Updates a shard, and stops at the set with the number in `stop`, if any. Returns the number of
/// sets.
fn interrupt(case: &Case, strategy: WriteStrategy, stop: Option<(usize, Fault)>) -> usize {
    let what = format!("{stop:?}, {strategy:?}, {case:?}");
    let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())).without_parts());
    let ranges = Arc::new(RangeWrites::new(store.clone()));
    let array = case.ours(&ranges, Options::default().with_write_strategy(strategy));
    let old = Values::Few(1).elements(case, case.num_elements());
    array.store_chunk(&[0, 0], case.to_bytes(&old)).unwrap();
    // The new elements compress to another size, so that the index changes if it can.
    let part = some_subchunks();
    let mut new = old.clone();
    let elements = Values::Any(2).elements(case, part.num_elements_usize());
    patch(case, &mut new, &part, &elements);
    let mut sets = 0;
    store.fail(move |request| {
        if request.operation != Operation::Set {
            return None;
        }
        sets += 1;
        stop.and_then(|(at, fault)| (sets == at + 1).then_some(fault))
    });
    let bytes = case.to_bytes(&elements);
    let stored = array.store_chunk_subset_opt(&[0, 0], &part, bytes, &options());
    assert_eq!(stored.is_err(), stop.is_some(), "{what}");
    let requests = store.requests().into_iter();
    let sets = requests
        .filter(|request| request.operation == Operation::Set)
        .count();
    store.work();
    let format = ShardFormat::of(&array, &[0, 0]).unwrap();
    // Recovers through either store.
    let recovery = if sets.is_multiple_of(2) {
        recover(&*ranges, &key(0), &format).unwrap()
    } else {
        recover(&*store, &key(0), &format).unwrap()
    };
    let given_up = matches!(recovery.outcome, RecoveryOutcome::Unrecoverable { .. });
    assert!(!given_up, "{recovery}; {what}");
    check(case, strategy, [&old, &new], &case.stock(&store), &what);
    if stop.is_none() {
        let read = case.stock(&store).retrieve_chunk::<ArrayBytes>(&[0, 0]);
        assert_eq!(case.parse(read.unwrap()), new, "{what}");
    }
    sets
}

/// Checks that every subchunk is old or new, or lost if the strategy may lose it.
fn check(
    case: &Case,
    strategy: WriteStrategy,
    [old, new]: [&Vec<Element>; 2],
    stock: &Array<Faulty<MemoryStore>>,
    what: &str,
) {
    let in_place = case.chain.in_place || strategy != WriteStrategy::Auto;
    let may_lose = in_place && strategy != WriteStrategy::Append;
    let (mut all_old, mut all_new) = (true, true);
    for row in 0..case.shape[0] / case.subchunk[0] {
        for column in 0..case.shape[1] / case.subchunk[1] {
            let (y, x) = (row * case.subchunk[0], column * case.subchunk[1]);
            let subchunk = [y..y + case.subchunk[0], x..x + case.subchunk[1]];
            let subchunk = ArraySubset::new_with_ranges(&subchunk);
            let of = |elements: &[Element]| -> Vec<Element> {
                let numbers = subchunk.iter_indices().map(|indices| case.number(&indices));
                numbers.map(|number| elements[number].clone()).collect()
            };
            let (old, new) = (of(old), of(new));
            match stock.retrieve_chunk_subset::<ArrayBytes>(&[0, 0], &subchunk) {
                Ok(read) => {
                    let read = case.parse(read);
                    assert!(read == old || read == new, "{subchunk}; {what}");
                    all_old &= read == old;
                    all_new &= read == new;
                }
                Err(error) => {
                    assert!(may_lose && old != new, "{error}; {subchunk}; {what}");
                }
            }
        }
    }
    assert!(
        may_lose || all_old || all_new,
        "partly old and partly new; {what}"
    );
}

/// Concurrent updates of different subchunks work if they do not change the index.
#[test]
fn subchunks_of_one_shard_by_many_threads_and_tasks() {
    let case = Case::new(chain_named("none"), Location::End);
    for asynchronous in [false, true] {
        let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())).without_parts());
        let of = || Options::default().with_write_strategy(WriteStrategy::InPlace);
        let array = case.ours(&Arc::new(RangeWrites::new(store.clone())), of());
        let waiting = Arc::new(Waiting::new(store.clone(), Yields));
        let array_async = case.ours(&Arc::new(RangeWrites::new(waiting)), of());
        let mut model = Values::Any(1).elements(&case, case.num_elements());
        array.store_chunk(&[0, 0], case.to_bytes(&model)).unwrap();
        for round in 0..5 {
            let mut writes = Vec::new();
            for row in 0..8 {
                for column in [0, 4, 8] {
                    // A row of four elements.
                    let part = ArraySubset::new_with_ranges(&[row..row + 1, column..column + 4]);
                    let values = Values::Any(1000 * round + 12 * row + column);
                    let elements = values.elements(&case, 4);
                    if row % 4 == round % 4 {
                        patch(&case, &mut model, &part, &elements);
                        writes.push((part, case.to_bytes(&elements)));
                    }
                }
            }
            if asynchronous {
                let writes = writes.into_iter().map(|(part, bytes)| {
                    let array = &array_async;
                    async move {
                        let options = options();
                        array
                            .async_store_chunk_subset_opt(&[0, 0], &part, bytes, &options)
                            .await
                    }
                });
                let stored = block_on(join_all(writes));
                stored.into_iter().collect::<Result<(), _>>().unwrap();
            } else {
                std::thread::scope(|scope| {
                    for (part, bytes) in writes {
                        let array = &array;
                        scope.spawn(move || {
                            array
                                .store_chunk_subset_opt(&[0, 0], &part, bytes, &options())
                                .unwrap();
                        });
                    }
                });
            }
            let read = case.stock(&store).retrieve_chunk::<ArrayBytes>(&[0, 0]);
            assert_eq!(case.parse(read.unwrap()), model, "round {round}");
        }
    }
}

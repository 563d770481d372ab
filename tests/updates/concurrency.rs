//! Two encoders on one shard: a codec cannot lock it, and refuses where it sees that it changed.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use zarrs::array::{Array, ArrayBytes};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::ReadableStorageTraits;
use zarrs::storage::storage_adapter::sync_to_async::SyncToAsyncStorageAdapter;
use zarrs_codec::CodecOptions;
use zarrs_cuda::{Options, WriteStrategy};

use crate::case::{Case, Element, LOCATIONS, STRATEGIES, Values, chain_named};
use crate::common::panics;
use crate::common::watched::Watched;
use crate::step::subset;
use crate::subject::{Inline, Setting, Subject};
use crate::{Location, subject};

fn partially() -> CodecOptions {
    CodecOptions::default().with_experimental_partial_encoding(true)
}

/// Write a subchunk of 8 elements.
fn write<S>(array: &Array<S>, case: &Case, subchunk: u64, seed: u64) -> Result<(), String>
where
    S: zarrs::storage::ReadableWritableStorageTraits + ?Sized + 'static,
{
    let subset = subset(&[8 * subchunk..8 * subchunk + 8]);
    let bytes = case.to_bytes(&Values::Any(seed).elements(case, 8));
    array
        .store_chunk_subset_opt(&[0], &subset, bytes, &partially())
        .map_err(|error| error.to_string())
}

fn read(array: &Array<Watched>, case: &Case, subchunk: u64) -> Vec<Element> {
    let subset = subset(&[8 * subchunk..8 * subchunk + 8]);
    let read = array.retrieve_chunk_subset::<ArrayBytes>(&[0], &subset);
    case.parse(read.unwrap())
}

fn written(case: &Case, seed: u64) -> Vec<Element> {
    Values::Any(seed).elements(case, 8)
}

/// The index of a shard, by hand.
fn index(case: &Case, object: Option<&Vec<u8>>) -> Option<Vec<[u64; 2]>> {
    let num_subchunks = case.shards().num_subchunks();
    object.map(|object| case.index.entries(object, num_subchunks))
}

/// A shard of one chain with four subchunks of `len` elements, the last of them empty.
fn four_subchunks(chain: &str, len: usize) -> (Case, Subject) {
    let case = Case {
        shape: vec![4 * len as u64],
        subchunk: vec![len as u64],
        ..Case::new(chain_named(chain), LOCATIONS[0])
    };
    let subject = Subject::new(&case, Setting::default());
    let stored = (1..=3).flat_map(|seed| Values::Any(seed).elements(&case, len));
    let mut elements: Vec<Element> = stored.collect();
    elements.resize(elements.len() / 3 * 4, case.fill());
    let bytes = case.to_bytes(&elements);
    subject.stock().store_chunk(&[0], bytes).unwrap();
    (case, subject)
}

/// Both compare the index before either writes, which is allowed where the index stays: the subchunk
/// that both write a part of is still one.
#[test]
fn two_writers_of_one_subchunk() {
    // So many that their first and their last element are not written as one.
    const ELEMENTS: usize = 8192;
    const LEN: u64 = ELEMENTS as u64;
    for chain in ["none", "crc32c", "nested"] {
        let (case, subject) = four_subchunks(chain, ELEMENTS);
        let element = |case: &Case, at: u64, seed: u64| {
            let bytes = case.to_bytes(&written(case, seed)[..1]);
            (subset(&[at..at + 1]), bytes)
        };
        let options = Options::default().with_write_strategy(WriteStrategy::InPlace);
        let another = case.ours(&subject.store, options);
        let of_another = element(&case, 2 * LEN - 1, 20);
        subject.store.before_next_write(move || {
            let writing = thread::spawn(move || {
                let (subset, bytes) = of_another;
                another.store_chunk_subset_opt(&[0], &subset, bytes, &partially())
            });
            writing.join().unwrap().unwrap();
        });
        let (at, bytes) = element(&case, LEN, 10);
        let ours = subject.ours(WriteStrategy::InPlace);
        ours.store_chunk_subset_opt(&[0], &at, bytes, &partially())
            .unwrap();
        let all = subset(&[LEN..2 * LEN]);
        let read = subject.stock().retrieve_chunk_subset(&[0], &all);
        let read = case.parse(read.unwrap());
        let old = Values::Any(2).elements(&case, ELEMENTS);
        let last = read.len() - 1;
        assert_eq!(read[0], written(&case, 10)[0], "{chain}: the later one");
        assert_eq!(read[1..last], old[1..last], "{chain}");
        // Not lost where elements are stored as they are.
        let expected = match chain {
            "crc32c" => &old[last],
            _ => &written(&case, 20)[0],
        };
        assert_eq!(read[last], *expected, "{chain}");
    }
}

/// Who leaves the index as it is keeps others from moving subchunks meanwhile.
#[test]
fn nothing_moves_into_what_is_being_written() {
    let (case, subject) = four_subchunks("none", 8);
    let options = Options::default().with_write_strategy(WriteStrategy::InPlace);
    let another = case.ours(&subject.store, options);
    let others = Arc::new(Mutex::new(None));
    let (hooked, spawned) = (case.clone(), others.clone());
    subject.store.before_next_write(move || {
        let writing = thread::spawn(move || {
            // Subchunk 2 becomes empty, and another one takes its bytes.
            let fill = hooked.to_bytes(&vec![hooked.fill(); 8]);
            let two = subset(&[16..24]);
            another
                .store_chunk_subset_opt(&[0], &two, fill, &partially())
                .unwrap();
            write(&another, &hooked, 3, 30).unwrap();
        });
        *spawned.lock().unwrap() = Some(writing);
        // They would be done by now, if they did not have to wait.
        thread::sleep(Duration::from_millis(300));
    });
    write(subject.ours(WriteStrategy::InPlace), &case, 2, 10).unwrap();
    let others = others.lock().unwrap().take().unwrap();
    others.join().unwrap();
    let stock = subject.stock();
    assert_eq!(read(stock, &case, 3), written(&case, 30), "not overwritten");
    assert_eq!(read(stock, &case, 2), vec![case.fill(); 8], "the last one");
    assert_eq!(read(stock, &case, 0), written(&case, 1));
}

/// Between the first look of one at the index and its write, another updates the shard.
#[test]
fn interleaved_updates() {
    let mut refusals = 0;
    for chain in ["none", "zstd", "nested"] {
        for location in LOCATIONS {
            for first in STRATEGIES {
                for second in STRATEGIES {
                    for exists in [false, true] {
                        for asynchronous in [false, true] {
                            let case = Case {
                                shape: vec![32],
                                subchunk: vec![8],
                                ..Case::new(chain_named(chain), location)
                            };
                            let strategies = [first, second];
                            refusals += interleave(&case, strategies, exists, asynchronous);
                        }
                    }
                }
            }
        }
    }
    assert!(refusals > 0);
}

fn interleave(
    case: &Case,
    [first, second]: [WriteStrategy; 2],
    exists: bool,
    asynchronous: bool,
) -> usize {
    let what =
        format!("{first:?} after {second:?}, there {exists}, async {asynchronous}: {case:?}");
    let subject = Subject::new(case, Setting::default());
    let mut before = vec![vec![case.fill(); 8]; 4];
    if exists {
        // All but the last, which is empty.
        let elements = before[..3].iter_mut().zip(5..);
        elements.for_each(|(elements, seed)| *elements = written(case, seed));
        let bytes = case.to_bytes(&before.concat());
        subject.stock().store_chunk(&[0], bytes).unwrap();
    }
    let before_index = index(case, subject.object(0).as_ref());
    let another = case.ours(
        &subject.store,
        Options::default().with_write_strategy(second),
    );
    let meanwhile = Arc::new(Mutex::new(None));
    let (hooked, noted, store) = (case.clone(), meanwhile.clone(), subject.store.clone());
    subject.store.after_next_read(move || {
        write(&another, &hooked, 2, 20).unwrap();
        let object = store.get(&subject::key(0, &hooked)).unwrap();
        let object = object.map(|object| object.to_vec());
        *noted.lock().unwrap() = index(&hooked, object.as_ref());
    });
    let done = if asynchronous {
        let store = SyncToAsyncStorageAdapter::new(subject.store.clone(), Inline);
        let options = Options::default().with_write_strategy(first);
        let array = case.ours(&Arc::new(store), options);
        let (subset, bytes) = (subset(&[0..8]), case.to_bytes(&written(case, 10)));
        let options = partially();
        let storing = array.async_store_chunk_subset_opt(&[0], &subset, bytes, &options);
        block_on(storing).map_err(|error| error.to_string())
    } else {
        write(subject.ours(first), case, 0, 10)
    };
    let stock = subject.stock();
    assert_eq!(read(stock, case, 2), written(case, 20), "lost: {what}");
    for untouched in [1, 3] {
        let elements = &before[usize::try_from(untouched).unwrap()];
        assert_eq!(read(stock, case, untouched), *elements, "{what}");
    }
    match done {
        Ok(()) => {
            // Fine if there was nothing to see: in place, the index stays as it is.
            let unseen = exists && *meanwhile.lock().unwrap() == before_index;
            assert!(unseen, "not refused: {what}");
            assert_eq!(read(stock, case, 0), written(case, 10), "{what}");
            0
        }
        Err(error) => {
            assert!(error.contains("changed"), "{error}; {what}");
            assert_eq!(read(stock, case, 0), before[0], "{what}");
            // It works when it is tried again.
            write(subject.ours(first), case, 0, 11).unwrap();
            assert_eq!(read(stock, case, 0), written(case, 11), "{what}");
            assert_eq!(read(stock, case, 2), written(case, 20), "{what}");
            1
        }
    }
}

/// Updates of 64 different subchunks by one thread for each of `arrays`, and how many of them are not
/// there in the end; and how many were refused, and tried again.
fn lost(strategies: &[Option<WriteStrategy>]) -> (usize, usize) {
    let case = Case {
        shape: vec![8 * 64],
        subchunk: vec![8],
        ..Case::new(chain_named("zstd"), Location::End)
    };
    let directory = tempfile::TempDir::new().unwrap();
    let store = FilesystemStore::new(directory.path()).unwrap();
    let store = Arc::new(Watched::new(Arc::new(store)));
    let stock = case.stock(&store);
    let old = Values::Any(1).elements(&case, 8 * 64);
    stock.store_chunk(&[0], case.to_bytes(&old)).unwrap();
    let arrays = strategies.iter().map(|strategy| match strategy {
        Some(strategy) => {
            let options = Options::default().with_write_strategy(*strategy);
            case.ours(&store, options)
        }
        None => case.stock(&store),
    });
    let arrays: Vec<_> = arrays.collect();
    let update = |array, mine: usize| {
        let mut refusals = 0;
        for subchunk in (mine as u64..64).step_by(arrays.len()) {
            for _attempt in 0..1000 {
                match write(array, &case, subchunk, 100 + subchunk) {
                    Err(error) if error.contains("changed") => refusals += 1,
                    // Anything else is that the shard is broken by now: a loss.
                    Ok(()) | Err(_) => break,
                }
            }
        }
        refusals
    };
    let refusals: usize = thread::scope(|scope| {
        let threads = arrays.iter().enumerate();
        let threads = threads.map(|(mine, array)| scope.spawn(move || update(array, mine)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    let there = |subchunk: &u64| {
        let subset = subset(&[8 * subchunk..8 * subchunk + 8]);
        let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            stock.retrieve_chunk_subset::<ArrayBytes>(&[0], &subset)
        }));
        let read = read.ok().and_then(Result::ok);
        read.is_some_and(|read| case.parse(read) == written(&case, 100 + subchunk))
    };
    (64 - (0..64).filter(there).count(), refusals)
}

/// What is lost when threads of one process update one shard at once: much by zarrs, and nothing by
/// us, where those who are refused try again.
#[test]
fn updates_that_are_lost() {
    panics::watch();
    let alike = [None].into_iter().chain(STRATEGIES.map(Some));
    for strategy in alike {
        assert_eq!(lost(&[strategy]), (0, 0), "{strategy:?}");
        for threads in [2, 4] {
            let (lost, refusals) = lost(&vec![strategy; threads]);
            let who = strategy.map_or("zarrs".to_owned(), |s| format!("{s:?}"));
            println!("{who}, {threads} threads: {lost} of 64 lost, {refusals} refused");
            assert!(strategy.is_none() || lost == 0, "{who}: {lost} lost");
        }
    }
    let (lost, refusals) = lost(&STRATEGIES.map(Some));
    println!("all strategies: {lost} of 64 lost, {refusals} refused");
    assert_eq!(lost, 0, "all strategies");
    panics::assert_none("updates at once");
}

/// Who has read the index before an append sees what was there then, until a compaction.
#[test]
fn readers_beside_an_append() {
    for chain in ["none", "zstd"] {
        for location in LOCATIONS {
            let case = Case {
                shape: vec![32],
                subchunk: vec![8],
                ..Case::new(chain_named(chain), location)
            };
            let subject = Subject::new(&case, Setting::default());
            let old = Values::Any(1).elements(&case, 32);
            let bytes = case.to_bytes(&old);
            subject.stock().store_chunk(&[0], bytes).unwrap();
            let ours = subject.ours(WriteStrategy::Append);
            let readers = [subject.stock(), ours].map(|a| a.partial_decoder(&[0]).unwrap());
            for update in 0..5 {
                write(ours, &case, update % 4, 100 + update).unwrap();
            }
            let whole = subset(&[0..32]);
            for reader in readers {
                let read = reader.partial_decode(&whole, &CodecOptions::default());
                assert_eq!(case.parse(read.unwrap()), old, "{case:?}");
            }
            assert_eq!(read(subject.stock(), &case, 0), written(&case, 104));
        }
    }
}

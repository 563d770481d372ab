//! Encoders of one process on one shard. They take turns, and read the index again if the shard
//! changed.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use zarrs::array::{Array, ArrayBytes};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::byte_range::ByteRangeIterator;
use zarrs::storage::storage_adapter::sync_to_async::{
    SyncToAsyncSpawnBlocking, SyncToAsyncStorageAdapter,
};
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    Bytes, MaybeBytesIterator, OffsetBytesIterator, ReadableStorageTraits, StorageError, StoreKey,
    StorePrefix, WritableStorageTraits, store_set_partial_many,
};
use zarrs_codec::CodecOptions;
use zarrs_cuda::{Options, WriteStrategy};

use super::Location;
use super::case::{Case, Element, LOCATIONS, STRATEGIES, Values, chain_named};
use super::step::subset;
use super::subject::{Inline, Setting, Subject};
use zarrs_cuda_testing::panics;
use zarrs_cuda_testing::stores::watched::Watched;

fn partially() -> CodecOptions {
    CodecOptions::default().with_experimental_partial_encoding(true)
}

/// Writes a subchunk of 8 elements.
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

/// A shard of one chain with four subchunks of `len` elements. The last is empty.
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

/// Two threads write different elements of one subchunk that is updated in place. The second waits
/// for the first, and patches the subchunk that the first wrote.
#[test]
fn two_writers_of_one_subchunk() {
    // In large subchunks the first and last element are written separately, in small ones together.
    for elements in [8192, 8] {
        for chain in ["none", "crc32c", "nested", "zstd"] {
            let len = elements as u64;
            let (case, subject) = four_subchunks(chain, elements);
            let element = |case: &Case, at: u64, seed: u64| {
                let bytes = case.to_bytes(&written(case, seed)[..1]);
                (subset(&[at..at + 1]), bytes)
            };
            let options = Options::default().with_write_strategy(WriteStrategy::InPlace);
            let another = case.ours(&subject.store, options);
            let of_another = element(&case, 2 * len - 1, 20);
            let others = Arc::new(Mutex::new(None));
            let spawned = others.clone();
            subject.store.before_next_write(move || {
                let writing = thread::spawn(move || {
                    let (subset, bytes) = of_another;
                    another.store_chunk_subset_opt(&[0], &subset, bytes, &partially())
                });
                *spawned.lock().unwrap() = Some(writing);
                // The other thread waits. Otherwise it would be done after this pause.
                thread::sleep(Duration::from_millis(100));
            });
            let (at, bytes) = element(&case, len, 10);
            let ours = subject.ours(WriteStrategy::InPlace);
            ours.store_chunk_subset_opt(&[0], &at, bytes, &partially())
                .unwrap();
            let others = others.lock().unwrap().take().unwrap();
            others.join().unwrap().unwrap();
            let all = subset(&[len..2 * len]);
            let read = subject.stock().retrieve_chunk_subset(&[0], &all);
            let read = case.parse(read.unwrap());
            let old = Values::Any(2).elements(&case, elements);
            let last = read.len() - 1;
            assert_eq!(read[0], written(&case, 10)[0], "{chain}");
            assert_eq!(read[1..last], old[1..last], "{chain}");
            assert_eq!(read[last], written(&case, 20)[0], "{chain}");
        }
    }
}

/// A store that writes a range by replacing the whole value.
struct Whole(MemoryStore);

impl ReadableStorageTraits for Whole {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        self.0.get_partial_many(key, ranges)
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.0.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for Whole {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        // The new value overwrites all writes of other threads during this pause.
        thread::sleep(Duration::from_millis(100));
        self.0.set(key, value)
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        ranges: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        store_set_partial_many(self, key, ranges)
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.0.erase(key)
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.0.erase_prefix(prefix)
    }

    fn supports_set_partial(&self) -> bool {
        false
    }
}

/// Two encoders of different subchunks of one size, on a store that cannot write ranges. zarrs
/// creates such an encoder only on the application's request.
#[test]
fn two_encoders_on_a_store_that_writes_no_ranges() {
    let case = Case {
        shape: vec![32],
        subchunk: vec![8],
        ..Case::new(chain_named("none"), LOCATIONS[0])
    };
    let store = Arc::new(Whole(MemoryStore::new()));
    let array = case.ours(&store, Options::default());
    let elements = Values::Any(1).elements(&case, 32);
    array.store_chunk(&[0], case.to_bytes(&elements)).unwrap();
    thread::scope(|scope| {
        for subchunk in [0, 2] {
            let (array, case) = (&array, &case);
            scope.spawn(move || {
                let encoder = array.partial_encoder(&[0], &CodecOptions::default());
                let bytes = case.to_bytes(&written(case, 10 + subchunk));
                let part = subset(&[8 * subchunk..8 * subchunk + 8]);
                let encoder = encoder.unwrap();
                let encoded = encoder.partial_encode(&part, &bytes, &CodecOptions::default());
                encoded.unwrap();
            });
        }
    });
    for (subchunk, seed) in [(0, 10), (2, 12)] {
        let part = subset(&[8 * subchunk..8 * subchunk + 8]);
        let read = array.retrieve_chunk_subset::<ArrayBytes>(&[0], &part);
        let read = case.parse(read.unwrap());
        assert_eq!(read, written(&case, seed), "subchunk {subchunk}");
    }
}

/// An update in place keeps other updates from moving subchunks meanwhile.
#[test]
fn nothing_moves_into_what_is_being_written() {
    let (case, subject) = four_subchunks("none", 8);
    let options = Options::default().with_write_strategy(WriteStrategy::InPlace);
    let another = case.ours(&subject.store, options);
    let others = Arc::new(Mutex::new(None));
    let (hooked, spawned) = (case.clone(), others.clone());
    subject.store.before_next_write(move || {
        let writing = thread::spawn(move || {
            // Subchunk 2 becomes empty, and subchunk 3 takes its place.
            let fill = hooked.to_bytes(&vec![hooked.fill(); 8]);
            let two = subset(&[16..24]);
            another
                .store_chunk_subset_opt(&[0], &two, fill, &partially())
                .unwrap();
            write(&another, &hooked, 3, 30).unwrap();
        });
        *spawned.lock().unwrap() = Some(writing);
        // The other updates wait. Otherwise they would be done after this pause.
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

/// One update reads the index; another updates the shard; then the first wants to write. The first
/// starts again with the new index.
#[test]
fn interleaved_updates() {
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
                            interleave(&case, strategies, exists, asynchronous);
                        }
                    }
                }
            }
        }
    }
}

fn interleave(case: &Case, [first, second]: [WriteStrategy; 2], exists: bool, asynchronous: bool) {
    let what =
        format!("{first:?} after {second:?}, there {exists}, async {asynchronous}: {case:?}");
    let subject = Subject::new(case, Setting::default());
    let mut before = vec![vec![case.fill(); 8]; 4];
    if exists {
        // All subchunks but the last, which is empty.
        let elements = before[..3].iter_mut().zip(5..);
        elements.for_each(|(elements, seed)| *elements = written(case, seed));
        let bytes = case.to_bytes(&before.concat());
        subject.stock().store_chunk(&[0], bytes).unwrap();
    }
    let another = case.ours(
        &subject.store,
        Options::default().with_write_strategy(second),
    );
    let hooked = case.clone();
    subject
        .store
        .after_next_read(move || write(&another, &hooked, 2, 20).unwrap());
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
    assert_eq!(done, Ok(()), "{what}");
    assert_eq!(read(stock, case, 0), written(case, 10), "{what}");
}

/// A subchunk is moved away and back, and has new elements at its old place. An update that patched
/// the old elements must not store them.
#[test]
fn an_index_that_is_as_it_was() {
    for location in LOCATIONS {
        for strategy in STRATEGIES {
            for asynchronous in [false, true] {
                let case = Case {
                    shape: vec![32],
                    subchunk: vec![8],
                    ..Case::new(chain_named("zstd"), location)
                };
                let subject = Subject::new(&case, Setting::default());
                let ours = subject.ours(strategy);
                // The first update moves the subchunk to the end, and the second moves it back.
                for seed in [1, 2, 3] {
                    write(ours, &case, 0, seed).unwrap();
                    write(ours, &case, 1, seed).unwrap();
                }
                let options = Options::default().with_write_strategy(strategy);
                let another = case.ours(&subject.store, options);
                let hooked = case.clone();
                after_second_read(&subject, move || {
                    for seed in [20, 21] {
                        write(&another, &hooked, 0, seed).unwrap();
                    }
                });
                let (at, bytes) = (subset(&[0..1]), case.to_bytes(&written(&case, 10)[..1]));
                if asynchronous {
                    let array = subject.asynchronous(strategy);
                    let options = partially();
                    block_on(array.async_store_chunk_subset_opt(&[0], &at, bytes, &options))
                        .unwrap();
                } else {
                    ours.store_chunk_subset_opt(&[0], &at, bytes, &partially())
                        .unwrap();
                }
                let read = read(subject.stock(), &case, 0);
                let what = format!("{strategy:?}, {location:?}, async {asynchronous}");
                assert_eq!(read[0], written(&case, 10)[0], "{what}");
                assert_eq!(read[1..], written(&case, 21)[1..], "{what}");
            }
        }
    }
}

/// Calls `hook` between the second read from now on, which is the read of a subchunk, and its
/// return.
fn after_second_read(subject: &Subject, hook: impl FnOnce() + Send + 'static) {
    let store = subject.store.clone();
    subject
        .store
        .after_next_read(move || store.after_next_read(hook));
}

/// A store runs the application's other work while it writes. If that work writes to the same
/// shard, it gives up instead of waiting for the outer write.
#[test]
fn a_store_that_calls_rayon() {
    for strategy in STRATEGIES {
        for on_one_thread in [true, false] {
            let case = Case {
                // A shape of its own, so that no other test shares this array's turns.
                shape: vec![40],
                subchunk: vec![8],
                ..Case::new(chain_named("zstd"), Location::End)
            };
            let subject = Subject::new(&case, Setting::default());
            let options = Options::default()
                .with_write_strategy(strategy)
                .with_turn_limit(Duration::from_millis(200));
            let ours = case.ours(&subject.store, options.clone());
            let another = Arc::new(case.ours(&subject.store, options));
            // The first write creates the shard, the second updates it.
            for subchunk in [0, 1] {
                let nested = Arc::new(Mutex::new(None));
                let (noted, hooked) = (nested.clone(), case.clone());
                let another = another.clone();
                subject.store.before_next_write(move || {
                    let write = || write(&another, &hooked, 2, 20);
                    let (written, ()) = rayon::join(write, || ());
                    *noted.lock().unwrap() = Some(written);
                });
                let first = || write(&ours, &case, subchunk, 10);
                if on_one_thread {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(1);
                    pool.build().unwrap().install(first).unwrap();
                } else {
                    first().unwrap();
                }
                let nested = nested.lock().unwrap().take().unwrap();
                let error = nested.unwrap_err();
                assert!(error.contains("Try again"), "{error}");
                assert_eq!(error.contains("on a thread"), on_one_thread, "{error}");
                assert_eq!(read(subject.stock(), &case, subchunk), written(&case, 10));
            }
            write(&another, &case, 2, 20).unwrap();
            assert_eq!(read(subject.stock(), &case, 2), written(&case, 20));
        }
    }
}

/// Each call to the store completes when its future is polled the second time.
struct Later;

impl SyncToAsyncSpawnBlocking for Later {
    async fn spawn_blocking<F, R>(&self, f: F) -> R
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        tokio::task::yield_now().await;
        f()
    }
}

/// A runtime of one thread: one task has the turn and awaits its store, while another blocks the
/// thread. The other gives up in the end, and then both can write.
#[test]
fn a_blocking_write_on_a_runtime_of_one_thread() {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.build().unwrap();
    let mut refused = 0;
    for exists in [false, true] {
        for later in 0..8 {
            let case = Case {
                // A shape of its own, so that no other test shares this array's turns.
                shape: vec![48],
                subchunk: vec![8],
                ..Case::new(chain_named("zstd"), Location::End)
            };
            let subject = Subject::new(&case, Setting::default());
            if exists {
                write(subject.stock(), &case, 3, 3).unwrap();
            }
            let options = Options::default().with_turn_limit(Duration::from_millis(100));
            let blocking = case.ours(&subject.store, options.clone());
            let store = Arc::new(SyncToAsyncStorageAdapter::new(subject.store.clone(), Later));
            let awaited = case.ours(&store, options);
            let (at, bytes) = (subset(&[0..8]), case.to_bytes(&written(&case, 10)));
            let options = partially();
            let awaits = awaited.async_store_chunk_subset_opt(&[0], &at, bytes, &options);
            let blocks = async {
                for _ in 0..later {
                    tokio::task::yield_now().await;
                }
                write(&blocking, &case, 1, 20)
            };
            let (awaited, blocked) = runtime.block_on(async { tokio::join!(awaits, blocks) });
            awaited.unwrap();
            if let Err(error) = blocked {
                assert!(error.contains("Try again"), "{error}");
                refused += 1;
                write(&blocking, &case, 1, 20).unwrap();
            }
            assert_eq!(read(subject.stock(), &case, 0), written(&case, 10));
            assert_eq!(read(subject.stock(), &case, 1), written(&case, 20));
        }
    }
    assert!(refused > 0, "none of them met");
}

/// A future that is dropped while it waits, or while it has the turn, does not block other writes.
#[test]
fn a_write_that_is_dropped() {
    for exists in [false, true] {
        for polls in 0..12 {
            let case = Case {
                // A shape of its own, so that no other test shares this array's turns.
                shape: vec![56],
                subchunk: vec![8],
                ..Case::new(chain_named("zstd"), Location::End)
            };
            let subject = Subject::new(&case, Setting::default());
            if exists {
                write(subject.stock(), &case, 3, 3).unwrap();
            }
            let store = Arc::new(SyncToAsyncStorageAdapter::new(subject.store.clone(), Later));
            let awaited = case.ours(&store, Options::default());
            let options = partially();
            let storing = |subchunk: u64| {
                let bytes = case.to_bytes(&written(&case, 10 + subchunk));
                let at = subset(&[8 * subchunk..8 * subchunk + 8]);
                let (awaited, options) = (&awaited, &options);
                async move {
                    awaited
                        .async_store_chunk_subset_opt(&[0], &at, bytes, options)
                        .await
                }
            };
            let runtime = tokio::runtime::Builder::new_current_thread();
            { runtime }.build().unwrap().block_on(async {
                // Two futures, so that one may wait for the other.
                let (mut first, mut second) = (Box::pin(storing(0)), Box::pin(storing(1)));
                for _ in 0..polls {
                    if futures::poll!(&mut first).is_ready() {
                        return;
                    }
                    if futures::poll!(&mut second).is_ready() {
                        return;
                    }
                }
            });
            write(subject.ours(WriteStrategy::Auto), &case, 2, 12).unwrap();
            assert_eq!(read(subject.stock(), &case, 2), written(&case, 12));
        }
    }
}

/// Updates 64 different subchunks from one thread for each of `strategies`. Returns how many
/// updates were lost, and how many were refused and retried.
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
                    // Any other error means that the shard is broken by now: the update is lost.
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

/// Counts lost updates when threads of one process update one shard at the same time. zarrs loses
/// many. Ours loses none if refused updates are retried.
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

/// A reader that read the index before an append sees the old elements, until a compaction.
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

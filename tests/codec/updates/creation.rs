//! Threads that create one shard together. Each stores its own part of a shard that does not exist.

use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use futures::executor::block_on;
use zarrs::array::{Array, ArrayBytes};
use zarrs::storage::WritableStorageTraits;
use zarrs::storage::storage_adapter::sync_to_async::SyncToAsyncStorageAdapter;
use zarrs::storage::store::MemoryStore;
use zarrs_codec::CodecOptions;
use zarrs_cuda::maintenance::ShardFormat;
use zarrs_cuda::{Options, WriteStrategy, recover};

use zarrs_cuda_testing::effort;

use super::Location;
use super::case::{Case, LOCATIONS, STRATEGIES, Values, chain_named};
use super::step::subset;
use super::subject::{Inline, Setting, Subject, key};
use zarrs_cuda_testing::panics;

/// The number of threads, and of subchunks in a shard: each thread stores one.
const WRITERS: usize = 4;
/// The number of elements in a subchunk.
const LEN: usize = 4;

type AsyncMemory = SyncToAsyncStorageAdapter<MemoryStore, Inline>;

/// How one thread calls the codec.
enum Writer {
    Blocking(Array<MemoryStore>),
    Awaited(Array<AsyncMemory>),
}

impl Writer {
    fn store(&self, case: &Case, subchunk: usize, seed: u64) -> Result<(), String> {
        let start = (subchunk * LEN) as u64;
        let subset = subset(&[start..start + LEN as u64]);
        let bytes = case.to_bytes(&Values::Any(seed).elements(case, LEN));
        let options = CodecOptions::default().with_experimental_partial_encoding(true);
        let stored = match self {
            Self::Blocking(array) => array.store_chunk_subset_opt(&[0], &subset, bytes, &options),
            Self::Awaited(array) => {
                block_on(array.async_store_chunk_subset_opt(&[0], &subset, bytes, &options))
            }
        };
        stored.map_err(|error| error.to_string())
    }
}

/// Which threads use asynchronous stores.
#[derive(Clone, Copy, Debug)]
enum Mode {
    Blocking,
    Awaited,
    Mixed,
}

impl Mode {
    fn awaits(self, thread: usize) -> bool {
        match self {
            Self::Blocking => false,
            Self::Awaited => true,
            Self::Mixed => thread % 2 == 1,
        }
    }
}

/// A subchunk that was stored, and is missing afterwards.
#[derive(Debug)]
#[expect(dead_code, reason = "printed")]
struct Loss {
    trial: u64,
    subchunk: usize,
    read: String,
}

/// Lets threads create a shard `trials` times. Returns every lost subchunk whose write had
/// succeeded.
fn lost(case: &Case, strategies: [WriteStrategy; WRITERS], mode: Mode, trials: u64) -> Vec<Loss> {
    let store = Arc::new(MemoryStore::new());
    let awaited = Arc::new(SyncToAsyncStorageAdapter::new(store.clone(), Inline));
    let stock = case.stock(&store);
    let writers = strategies.iter().enumerate().map(|(thread, strategy)| {
        let options = Options::default().with_write_strategy(*strategy);
        if mode.awaits(thread) {
            Writer::Awaited(case.ours(&awaited, options))
        } else {
            Writer::Blocking(case.ours(&store, options))
        }
    });
    let writers: Vec<_> = writers.collect();
    let seed = |trial: u64, subchunk: usize| 1 + trial * WRITERS as u64 + subchunk as u64;
    let barrier = Barrier::new(WRITERS + 1);
    let errors = Mutex::new(Vec::new());
    let mut losses = Vec::new();
    thread::scope(|scope| {
        for (subchunk, writer) in writers.iter().enumerate() {
            let (barrier, errors) = (&barrier, &errors);
            scope.spawn(move || {
                for trial in 0..trials {
                    barrier.wait();
                    let seed = seed(trial, subchunk);
                    if let Err(error) = writer.store(case, subchunk, seed) {
                        errors.lock().unwrap().push(error);
                    }
                    barrier.wait();
                }
            });
        }
        for trial in 0..trials {
            barrier.wait();
            barrier.wait();
            for subchunk in 0..WRITERS {
                let start = (subchunk * LEN) as u64;
                let subset = subset(&[start..start + LEN as u64]);
                let read = stock.retrieve_chunk_subset::<ArrayBytes>(&[0], &subset);
                let read = read.map(|read| case.parse(read));
                let expected = Values::Any(seed(trial, subchunk)).elements(case, LEN);
                if !read.as_ref().is_ok_and(|read| *read == expected) {
                    let read = format!("{read:?}");
                    losses.push(Loss {
                        trial,
                        subchunk,
                        read,
                    });
                }
            }
            stock.erase_chunk(&[0]).unwrap();
        }
    });
    let errors = errors.into_inner().unwrap();
    assert!(errors.is_empty(), "no write is refused: {errors:?}");
    losses
}

/// A store without room for a whole new shard has no shard afterwards, and the write can be
/// retried.
#[test]
fn a_full_store() {
    for chain in ["none", "zstd"] {
        for location in LOCATIONS {
            for strategy in STRATEGIES {
                for awaited in [false, true] {
                    let case = Case {
                        shape: vec![32],
                        subchunk: vec![8],
                        ..Case::new(chain_named(chain), location)
                    };
                    let room = create_with_little_room(&case, strategy, awaited);
                    assert!(room > 64, "{room} bytes were enough");
                }
            }
        }
    }
}

/// Creates a shard in stores with more and more room. Returns how much was enough.
fn create_with_little_room(case: &Case, strategy: WriteStrategy, awaited: bool) -> usize {
    let bytes = || case.to_bytes(&Values::Any(7).elements(case, 16));
    for room in 0.. {
        let what = format!("{room} bytes, {strategy:?}, awaited {awaited}: {case:?}");
        let subject = Subject::new(case, Setting::default());
        let subset = subset(&[8..24]);
        let create = || {
            let options = subject.options();
            if awaited {
                let array = subject.asynchronous(strategy);
                block_on(array.async_store_chunk_subset_opt(&[0], &subset, bytes(), &options))
            } else {
                let array = subject.ours(strategy);
                array.store_chunk_subset_opt(&[0], &subset, bytes(), &options)
            }
        };
        subject.store.full_after(Some(room));
        let created = create();
        subject.store.full_after(None);
        if created.is_ok() {
            return room;
        }
        let error = created.unwrap_err().to_string();
        if subject.object(0).is_some() {
            // The first write is complete; the second, of the index at the start, failed.
            assert!(case.index.location == Location::Start, "{what}");
            assert!(error.contains("zarrs_cuda::recover"), "{error}; {what}");
            let format = ShardFormat::of(subject.ours(strategy), &[0]).unwrap();
            recover(&*subject.store, &key(0, case), &format).unwrap();
        } else {
            assert!(error.contains("there is no shard"), "{error}; {what}");
            create().unwrap();
        }
        let read = subject.stock().retrieve_chunk_subset(&[0], &subset);
        let expected = Values::Any(7).elements(case, 16);
        assert_eq!(case.parse(read.unwrap()), expected, "{what}");
    }
    unreachable!("a store with room for everything")
}

/// An empty object of another process stays: it may be a shard that is being replaced.
#[test]
fn an_empty_object_is_not_ours_to_erase() {
    for location in LOCATIONS {
        let case = Case::new(chain_named("zstd"), location);
        let subject = Subject::new(&case, Setting::default());
        let key = key(0, &case);
        subject.store.set(&key, Vec::new().into()).unwrap();
        let subset = subset(&[0..4, 0..4]);
        let bytes = case.to_bytes(&Values::Any(7).elements(&case, 16));
        let array = subject.ours(WriteStrategy::Auto);
        let stored = array.store_chunk_subset_opt(&[0, 0], &subset, bytes, &subject.options());
        assert!(stored.unwrap_err().to_string().contains("recover"));
        assert_eq!(subject.object(0), Some(Vec::new()));
    }
}

/// No acknowledged write is lost, in any combination of writers.
#[test]
fn threads_that_create_a_shard() {
    panics::watch();
    let trials = u64::from(effort::times(50));
    let alike = STRATEGIES.map(|strategy| [strategy; WRITERS]);
    for strategies in alike.into_iter().chain([STRATEGIES]) {
        for mode in [Mode::Blocking, Mode::Awaited, Mode::Mixed] {
            for location in LOCATIONS {
                let case = Case {
                    shape: vec![(WRITERS * LEN) as u64],
                    subchunk: vec![LEN as u64],
                    ..Case::new(chain_named("zstd"), location)
                };
                let losses = lost(&case, strategies, mode, trials);
                let what = format!("{strategies:?}, {mode:?}, {location:?}");
                println!("{what}: {} of {trials} lost", losses.len());
                assert!(losses.is_empty(), "{what}: {losses:?}");
            }
        }
    }
    panics::assert_none("creating a shard");
}

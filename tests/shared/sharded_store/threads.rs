//! Concurrent access: writers of one shard do not lose each other's chunks, and readers see whole
//! chunks.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use futures::StreamExt;
use futures::future::join_all;
use zarrs::storage::byte_range::{ByteRange, ByteRangeIterator};
use zarrs::storage::storage_adapter::sync_to_async::SyncToAsyncStorageAdapter;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    AsyncListableStorageTraits, AsyncMaybeBytesIterator, AsyncReadableStorageTraits,
    AsyncWritableStorageTraits, Bytes, ListableStorageTraits, OffsetBytesIterator,
    ReadableStorageTraits, StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix,
    WritableStorageTraits,
};

use super::subject::{Inline, Sharded, key, prefix};
use zarrs_cuda_testing::Rng;

/// A store in memory whose calls take several polls. Writes complete some time later, even if their
/// futures are dropped.
#[derive(Default)]
pub(crate) struct Slow {
    pub(crate) inner: MemoryStore,
    pending: Mutex<VecDeque<(StoreKey, Bytes)>>,
}

impl Slow {
    /// Completes the pending writes.
    pub(crate) fn settle(&self) {
        while let Some((key, value)) = self.pending.lock().unwrap().pop_front() {
            self.inner.set(&key, value).unwrap();
        }
    }

    async fn wait(&self) {
        for _ in 0..2 {
            let mut is_first = true;
            std::future::poll_fn(|context| {
                context.waker().wake_by_ref();
                let poll = if is_first {
                    std::task::Poll::Pending
                } else {
                    std::task::Poll::Ready(())
                };
                is_first = false;
                poll
            })
            .await;
        }
    }
}

#[async_trait::async_trait]
impl AsyncReadableStorageTraits for Slow {
    async fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<AsyncMaybeBytesIterator<'a>, StorageError> {
        self.wait().await;
        let values = self.inner.get_partial_many(key, byte_ranges)?;
        let values = values.map(Iterator::collect::<Vec<_>>);
        Ok(values.map(|values| futures::stream::iter(values).boxed()))
    }

    async fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.wait().await;
        self.inner.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

#[async_trait::async_trait]
impl AsyncWritableStorageTraits for Slow {
    async fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.wait().await;
        self.pending.lock().unwrap().push_back((key.clone(), value));
        self.wait().await;
        self.settle();
        self.wait().await;
        Ok(())
    }

    async fn set_partial_many<'a>(
        &'a self,
        _key: &StoreKey,
        _offset_values: OffsetBytesIterator<'a>,
    ) -> Result<(), StorageError> {
        Err(StorageError::Unsupported("no parts".to_owned()))
    }

    async fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.wait().await;
        self.inner.erase(key)
    }

    async fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.wait().await;
        self.inner.erase_prefix(prefix)
    }

    fn supports_set_partial(&self) -> bool {
        false
    }
}

#[async_trait::async_trait]
impl AsyncListableStorageTraits for Slow {
    async fn list(&self) -> Result<StoreKeys, StorageError> {
        self.inner.list()
    }

    async fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        self.wait().await;
        self.inner.list_prefix(prefix)
    }

    async fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        self.inner.list_dir(prefix)
    }

    async fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        self.inner.size_prefix(prefix)
    }
}

/// A value of chunk `at` that shows whether it is whole: its first byte determines its length and
/// all of its bytes.
fn value(at: u64, round: u64) -> Bytes {
    let first = u8::try_from((at * 31 + round) % 251).unwrap();
    Bytes::from(vec![first; 50 + usize::from(first)])
}

/// Checks that `read` is a value of chunk `at`, of any round.
fn check(at: u64, rounds: u64, read: &[u8]) {
    let values = (0..rounds).map(|round| value(at, round));
    let mut values = values.filter(|value| value[0] == read[0]);
    assert!(
        values.any(|value| value == read),
        "chunk {at}: {} bytes of {}",
        read.len(),
        read[0]
    );
}

const CHUNKS: u64 = 8;

fn chunk(at: u64) -> StoreKey {
    key(&format!("a/c/{at}"))
}

/// Writers of different chunks of the same two shards, readers of all chunks, and a thread that
/// lists.
fn writers_and_readers(index_cache: usize) {
    let sharded = Sharded {
        index_cache,
        ..Sharded::new("/a", &[4])
    };
    for subject in sharded.subjects() {
        let adapter = &*subject.store;
        let many = &*subject.many;
        // Fewer rounds for files, which are synced.
        let rounds = if subject.has_files() { 25 } else { 400 };
        let is_over = AtomicBool::new(false);
        let reads = AtomicUsize::new(0);
        thread::scope(|scope| {
            let writers: Vec<_> = (0..CHUNKS)
                .map(|at| {
                    scope.spawn(move || {
                        for round in 0..rounds {
                            if round % 4 == 3 && round + 1 < rounds {
                                adapter.erase(&chunk(at)).unwrap();
                            }
                            adapter.set(&chunk(at), value(at, round)).unwrap();
                            let read = adapter.get(&chunk(at)).unwrap().unwrap();
                            assert_eq!(read, value(at, round), "nobody else writes it");
                        }
                    })
                })
                .collect();
            for seed in 0..2 {
                let (is_over, reads) = (&is_over, &reads);
                scope.spawn(move || {
                    let mut rng = Rng(seed);
                    while !is_over.load(Ordering::Relaxed) {
                        let at = rng.below(CHUNKS);
                        if let Some(read) = adapter.get(&chunk(at)).unwrap() {
                            check(at, rounds, &read);
                        }
                        let all = (0..CHUNKS).map(|at| (chunk(at), ByteRange::FromStart(0, None)));
                        let all: Vec<_> = all.collect();
                        for (at, read) in (0..).zip(many.get_many(&all).unwrap()) {
                            if let Some(read) = read {
                                check(at, rounds, &read);
                            }
                        }
                        if let Some(size) = adapter.size_key(&chunk(at)).unwrap() {
                            assert!((50..=300).contains(&size));
                        }
                        // Errors are ignored: directories come and go in a file system.
                        let _ = adapter.list_prefix(&prefix("a/c/"));
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let writers: Vec<_> = writers
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .collect();
            is_over.store(true, Ordering::Relaxed);
            assert!(writers.iter().all(Result::is_ok), "{}", subject.name);
        });
        assert!(reads.into_inner() > 0);
        for at in 0..CHUNKS {
            let read = adapter.get(&chunk(at)).unwrap();
            assert_eq!(read.unwrap(), value(at, rounds - 1), "{}", subject.name);
        }
    }
}

#[test]
fn nothing_is_lost_and_nothing_torn() {
    writers_and_readers(1 << 20);
}

#[test]
fn nothing_is_lost_and_nothing_torn_without_indices_that_are_kept() {
    writers_and_readers(0);
}

/// Chunks that are erased by prefix stay erased, while other threads write other chunks of the same
/// shards.
#[test]
fn erased_prefixes_and_writers() {
    let inner = Arc::new(MemoryStore::new());
    let adapter = Sharded::new("/a", &[2, 1]).over(inner);
    let at = |i: u64, j: u64| key(&format!("a/c/{i}/{j}"));
    for round in 0..300 {
        for j in 0..3 {
            adapter.set(&at(0, j), value(0, round)).unwrap();
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                for j in 0..3 {
                    adapter.set(&at(1, j), value(1, round)).unwrap();
                }
            });
            let whole = if round % 2 == 0 { "a/c/0/" } else { "a/c/" };
            adapter.erase_prefix(&prefix(whole)).unwrap();
        });
        for j in 0..3 {
            assert_eq!(adapter.get(&at(0, j)).unwrap(), None, "round {round}");
        }
    }
}

/// A prefix is erased after a writer has read the shard, and before it stores the new one.
#[test]
fn a_prefix_is_erased_within_a_write() {
    let watched = Arc::new(zarrs_cuda_testing::stores::watched::Watched::new(Arc::new(
        MemoryStore::new(),
    )));
    let adapter = Sharded::new("/a", &[2]).over(watched.clone());
    adapter.set(&chunk(0), b"before"[..].into()).unwrap();
    let (started, eraser) = std::sync::mpsc::channel();
    let erasing = adapter.clone();
    watched.after_next_read(move || {
        let eraser = thread::spawn(move || erasing.erase_prefix(&prefix("a/c/")));
        // The eraser waits for its turn. Otherwise it would be done after this pause.
        thread::sleep(std::time::Duration::from_millis(100));
        started.send(eraser).unwrap();
    });
    adapter.set(&chunk(1), b"other"[..].into()).unwrap();
    eraser.recv().unwrap().join().unwrap().unwrap();
    assert_eq!(adapter.list().unwrap(), []);
}

/// A read has two requests. If the shard is replaced between them, the read starts again.
#[test]
fn a_write_between_two_requests() {
    for index_cache in [0, 1 << 20] {
        let watched = Arc::new(zarrs_cuda_testing::stores::watched::Watched::new(Arc::new(
            MemoryStore::new(),
        )));
        let sharded = Sharded {
            index_cache,
            ..Sharded::new("/a", &[2])
        };
        let adapter = sharded.over(watched.clone());
        adapter.set(&chunk(0), b"before"[..].into()).unwrap();
        adapter.set(&chunk(1), b"other"[..].into()).unwrap();
        let writer = adapter.clone();
        watched.after_next_read(move || {
            writer.set(&chunk(0), b"and after"[..].into()).unwrap();
        });
        assert_eq!(adapter.get(&chunk(1)).unwrap().unwrap(), b"other"[..]);
        assert_eq!(adapter.get(&chunk(0)).unwrap().unwrap(), b"and after"[..]);
    }
}

/// The same with tasks of one thread that wait for each other.
#[test]
fn tasks_of_one_thread() {
    for index_cache in [0, 1 << 20] {
        let sharded = Sharded {
            index_cache,
            ..Sharded::new("/a", &[4])
        };
        let adapter = sharded.over(Arc::new(Slow::default()));
        let adapter = &adapter;
        let writers = (0..CHUNKS).map(|at| async move {
            for round in 0..20 {
                AsyncWritableStorageTraits::set(adapter, &chunk(at), value(at, round))
                    .await
                    .unwrap();
                let read = AsyncReadableStorageTraits::get(adapter, &chunk(at))
                    .await
                    .unwrap();
                assert_eq!(read.unwrap(), value(at, round));
            }
        });
        let readers = (0..CHUNKS).map(|at| async move {
            for _ in 0..60 {
                let read = AsyncReadableStorageTraits::get(adapter, &chunk(at))
                    .await
                    .unwrap();
                if let Some(read) = read {
                    check(at, 20, &read);
                }
                AsyncListableStorageTraits::list_prefix(adapter, &prefix("a/"))
                    .await
                    .unwrap();
            }
        });
        futures::executor::block_on(async {
            futures::join!(join_all(writers), join_all(readers));
        });
        for at in 0..CHUNKS {
            let read =
                futures::executor::block_on(AsyncReadableStorageTraits::get(adapter, &chunk(at)));
            assert_eq!(read.unwrap().unwrap(), value(at, 19));
        }
    }
}

/// The futures of an adapter can move between threads.
#[test]
fn tasks_of_many_threads() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .build()
        .unwrap();
    let inner = SyncToAsyncStorageAdapter::new(Arc::new(MemoryStore::new()), Inline);
    let adapter = Arc::new(Sharded::new("/a", &[4]).over(Arc::new(inner)));
    runtime.block_on(async {
        let tasks = (0..CHUNKS).map(|at| {
            let adapter = adapter.clone();
            tokio::spawn(async move {
                for round in 0..50 {
                    let entries = [
                        (chunk(at), value(at, round)),
                        (chunk(at + 100), value(at, round)),
                    ];
                    adapter.async_set_many(entries).await.unwrap();
                    tokio::task::yield_now().await;
                    let wanted = [
                        (chunk(at), ByteRange::FromStart(0, None)),
                        (chunk(at + 100), ByteRange::Suffix(1)),
                    ];
                    let read = adapter.async_get_many(&wanted).await.unwrap();
                    assert_eq!(read[0].as_ref().unwrap(), &value(at, round));
                }
                AsyncWritableStorageTraits::erase(&*adapter, &chunk(at + 100))
                    .await
                    .unwrap();
            })
        });
        for task in join_all(tasks).await {
            task.unwrap();
        }
        let listed = AsyncListableStorageTraits::list(&*adapter).await.unwrap();
        assert_eq!(listed, (0..CHUNKS).map(chunk).collect::<Vec<_>>());
    });
}

//! Stores that read a value in several requests. Like zarrs' object stores, they ask for the size
//! first, and read parts of a value that may be another one by then. Some of their answers are
//! errors or wrong.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zarrs::storage::byte_range::{ByteRange, ByteRangeIterator};
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    Bytes, ListableStorageTraits, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator,
    ReadableStorageTraits, StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix,
    WritableStorageTraits,
};
use zarrs_cuda::storage::SparseShardStore;

use super::stores::Layout;

const SHARD: &str = "group/array/c/0";

type Hook = Box<dyn FnMut() -> Result<(), StorageError> + Send>;

/// The kinds of requests for a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    All,
    Parts,
    Size,
}

/// A store that reads in several requests.
struct Steps {
    inner: Arc<MemoryStore>,
    /// Called between the requests for the shard's size and for its parts.
    between: Mutex<Hook>,
    /// Whether the store reports no size for the shard.
    is_vague: AtomicBool,
    asked: Mutex<Vec<Asked>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Steps {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::new(MemoryStore::new()),
            between: Mutex::new(Box::new(|| Ok(()))),
            is_vague: AtomicBool::new(false),
            asked: Mutex::default(),
        })
    }

    /// Sets the hook that is called between each request for the shard's size and its parts.
    fn between(&self, hook: impl FnMut() -> Result<(), StorageError> + Send + 'static) {
        *lock(&self.between) = Box::new(hook);
        lock(&self.asked).clear();
    }

    fn asks(&self, key: &StoreKey, what: Asked) -> bool {
        let is_shard = key.as_str() == SHARD;
        if is_shard {
            lock(&self.asked).push(what);
        }
        is_shard
    }

    fn count(&self, what: Asked) -> usize {
        lock(&self.asked).iter().filter(|&&a| a == what).count()
    }
}

impl ReadableStorageTraits for Steps {
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes, StorageError> {
        self.asks(key, Asked::All);
        self.inner.get(key)
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        let Some(size) = self.inner.size_key(key)? else {
            return Ok(None);
        };
        let ranges: Vec<_> = byte_ranges
            .map(|range| range.to_range(size))
            .map(|range| ByteRange::FromStart(range.start, Some(range.end - range.start)))
            .collect();
        if self.asks(key, Asked::Parts) {
            lock(&self.between)()?;
        }
        self.inner
            .get_partial_many(key, Box::new(ranges.into_iter()))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        if self.asks(key, Asked::Size) && self.is_vague.load(Ordering::Relaxed) {
            return Ok(None);
        }
        self.inner.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for Steps {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        self.inner.set(key, value)
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator,
    ) -> Result<(), StorageError> {
        self.inner.set_partial_many(key, offset_values)
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        self.inner.erase(key)
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        self.inner.erase_prefix(prefix)
    }

    fn supports_set_partial(&self) -> bool {
        true
    }
}

impl ListableStorageTraits for Steps {
    fn list(&self) -> Result<StoreKeys, StorageError> {
        self.inner.list()
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys, StorageError> {
        self.inner.list_prefix(prefix)
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes, StorageError> {
        self.inner.list_dir(prefix)
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64, StorageError> {
        self.inner.size_prefix(prefix)
    }
}

fn key(key: &str) -> StoreKey {
    StoreKey::new(key).unwrap()
}

fn value_of(at: usize) -> u8 {
    u8::try_from(at + 1).unwrap()
}

fn chunk(at: usize) -> StoreKey {
    key(&format!("group/array/c/{at}"))
}

/// Returns a store with an array of one shard of four subchunks, its adapter, and three shards:
/// with subchunk 1 alone, with the first two, and with all four.
fn subject() -> (Arc<Steps>, Arc<SparseShardStore<Steps>>, [Bytes; 3]) {
    let store = Steps::new();
    let layout = Layout::new(&[32], &[32], &[8]);
    layout.create(&*store.inner);
    let sparse = layout.open(&store);
    let shards = [&[1][..], &[0, 1], &[0, 1, 2, 3]].map(|subchunks| {
        for &at in subchunks {
            sparse
                .set(&chunk(at), vec![value_of(at); 8].into())
                .unwrap();
        }
        sparse.consolidate(&[0]).unwrap().unwrap();
        store.inner.get(&key(SHARD)).unwrap().unwrap()
    });
    (store, sparse, shards)
}

fn listed(sparse: &SparseShardStore<Steps>) -> Result<usize, StorageError> {
    let keys = sparse.list_prefix(&StorePrefix::new("group/array/c/").unwrap())?;
    Ok(keys.len())
}

fn failure() -> StorageError {
    StorageError::Other("503 Slow Down".to_owned())
}

#[test]
fn a_shard_that_is_replaced_between_its_size_and_its_bytes() {
    let (store, sparse, [short, middle, long]) = subject();
    for (before, after) in [(&middle, &long), (&middle, &short), (&long, &middle)] {
        let has = |shard: &Bytes| {
            [&short, &middle, &long]
                .iter()
                .position(|s| *s == shard)
                .unwrap()
        };
        let subchunks = [1, 2, 4];
        for number in 0..3 {
            let replace = || {
                store.inner.set(&key(SHARD), before.clone()).unwrap();
                let (inner, after) = (store.inner.clone(), after.clone());
                let mut request = 0;
                store.between(move || {
                    if request == number {
                        inner.set(&key(SHARD), after.clone())?;
                    }
                    request += 1;
                    Ok(())
                });
            };
            replace();
            assert_eq!(sparse.get(&chunk(1)).unwrap().unwrap(), vec![2; 8]);
            assert_eq!(store.count(Asked::All), 0);
            replace();
            let found = listed(&sparse).unwrap();
            let expected = if number == 0 { after } else { before };
            assert_eq!(found, subchunks[has(expected)]);
            assert_eq!(store.count(Asked::All), 0);
        }
    }
}

/// A shard that is replaced between any two requests is read by one request for the whole object.
#[test]
fn a_shard_that_is_always_replaced() {
    let (store, sparse, [short, _, long]) = subject();
    let replaced = || {
        let inner = store.inner.clone();
        let mut shards = [short.clone(), long.clone()].into_iter().cycle();
        inner.set(&key(SHARD), long.clone()).unwrap();
        store.between(move || inner.set(&key(SHARD), shards.next().unwrap()));
    };
    replaced();
    assert_eq!(sparse.get(&chunk(1)).unwrap().unwrap(), vec![2; 8]);
    assert_eq!(store.count(Asked::All), 1);
    replaced();
    assert!([1, 4].contains(&listed(&sparse).unwrap()));
    assert_eq!(store.count(Asked::All), 1);
    // A damaged or invalid shard is not read as a whole.
    let mut damaged = long.to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    store.inner.set(&key(SHARD), damaged.into()).unwrap();
    store.between(|| Ok(()));
    sparse.get(&chunk(1)).unwrap_err();
    listed(&sparse).unwrap_err();
    assert_eq!(store.count(Asked::All), 0);
    let mut noise = vec![7; 1 << 16];
    noise.extend_from_slice(b"not an index");
    store.inner.set(&key(SHARD), noise.into()).unwrap();
    store.between(|| Ok(()));
    sparse.get(&chunk(1)).unwrap_err();
    listed(&sparse).unwrap_err();
    assert_eq!(store.count(Asked::All), 0);
}

#[test]
fn a_request_that_fails_is_not_one_for_all_of_the_shard() {
    let (store, sparse, _) = subject();
    for number in 0..3 {
        let mut request = 0;
        store.between(move || {
            request += 1;
            if request == number + 1 {
                Err(failure())
            } else {
                Ok(())
            }
        });
        assert_eq!(sparse.get(&chunk(1)).unwrap().unwrap(), vec![2; 8]);
        assert_eq!(store.count(Asked::All), 0);
    }
    assert_eq!(listed(&sparse).unwrap(), 4);
}

/// A shard that exists, but whose size the store does not report, is not taken for a missing one.
#[test]
fn a_store_that_has_no_size() {
    let (store, sparse, [.., long]) = subject();
    sparse.set(&chunk(0), vec![9; 8].into()).unwrap();
    store.is_vague.store(true, Ordering::Relaxed);
    let error = sparse.consolidate(&[0]).unwrap_err().to_string();
    assert!(error.contains("no size: try again"), "{error}");
    assert_eq!(store.inner.get(&key(SHARD)).unwrap().unwrap(), long);
    assert_eq!(sparse.get(&chunk(0)).unwrap().unwrap(), vec![9; 8]);
    store.is_vague.store(false, Ordering::Relaxed);
    sparse.consolidate(&[0]).unwrap().unwrap();
    for at in 0..4 {
        let value = if at == 0 { 9 } else { value_of(at) };
        assert_eq!(sparse.get(&chunk(at)).unwrap().unwrap(), vec![value; 8]);
    }
}

/// If the frame holds all subchunks, the damaged shard is not needed.
#[test]
fn a_damaged_shard_is_replaced_by_its_frame() {
    let (store, sparse, [.., long]) = subject();
    for damaged in [long.slice(..long.len() - 1), Bytes::new()] {
        store.inner.set(&key(SHARD), damaged.clone()).unwrap();
        for at in 0..3 {
            sparse.set(&chunk(at), vec![7; 8].into()).unwrap();
        }
        let error = sparse.consolidate(&[0]).unwrap_err().to_string();
        assert!(error.contains("write all of its 4 subchunks"), "{error}");
        assert_eq!(store.inner.get(&key(SHARD)).unwrap().unwrap(), damaged);
        sparse.set(&chunk(3), vec![8; 8].into()).unwrap();
        let done = sparse.consolidate(&[0]).unwrap().unwrap();
        assert_eq!(
            (done.before, done.after),
            (damaged.len() as u64, long.len() as u64)
        );
        for at in 0..4 {
            let value = if at == 3 { 8 } else { 7 };
            assert_eq!(sparse.get(&chunk(at)).unwrap().unwrap(), vec![value; 8]);
        }
    }
}

/// Torn versions are not packed, and the shard is unchanged.
#[test]
fn a_frame_of_what_cannot_be_packed() {
    let (store, sparse, [.., long]) = subject();
    let frame = |name: &str| key(&format!("{SHARD}.frame/{name}"));
    for foreign in [".DS_Store", ".nfs0001", "00000004.0000000000000001.A.chunk"] {
        store
            .inner
            .set(&frame(foreign), b"x".to_vec().into())
            .unwrap();
    }
    assert_eq!(sparse.pending().unwrap(), [[0]; 0]);
    assert_eq!(sparse.consolidate(&[0]).unwrap(), None);
    // Only reading a version shows whether it is whole.
    let torn = frame("00000003.0000000000000001.A.chunk");
    store.inner.set(&torn, b"x".to_vec().into()).unwrap();
    assert_eq!(sparse.pending().unwrap(), [[0]]);
    let progress = sparse.consolidate_all(&|_| {}).unwrap();
    assert_eq!((progress.shards, progress.sum.invalid), (1, 1));
    let len = long.len() as u64;
    assert_eq!((progress.sum.before, progress.sum.after), (len, len));
    store.inner.erase(&torn).unwrap();
    assert_eq!(sparse.pending().unwrap(), [[0]; 0]);
}

/// An index of more than 16 MiB is only read if the shard is long enough.
#[test]
fn a_short_shard_of_many_subchunks() {
    let store = Steps::new();
    let layout = Layout::new(&[1 << 21], &[1 << 21], &[1]);
    layout.create(&*store.inner);
    let sparse = layout.open(&store);
    store.inner.set(&key(SHARD), vec![0; 10].into()).unwrap();
    store.between(|| panic!("parts are asked for"));
    let error = sparse.get(&chunk(0)).unwrap_err().to_string();
    assert!(error.contains(SHARD), "{error}");
    listed(&sparse).unwrap_err();
    sparse.set(&chunk(0), vec![1].into()).unwrap();
    let error = sparse.consolidate(&[0]).unwrap_err().to_string();
    assert!(error.contains("10 bytes"), "{error}");

    // More subchunks are refused.
    let layout = Layout::new(&[1 << 25], &[1 << 25], &[1]);
    layout.create(&*store.inner);
    let error = SparseShardStore::open(store, layout.path).unwrap_err();
    assert!(error.to_string().contains("33554432 subchunks"), "{error}");
}

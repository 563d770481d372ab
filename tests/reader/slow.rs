//! Stores whose requests take long, fail, or panic.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::storage::byte_range::ByteRangeIterator;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{MaybeBytesIterator, ReadableStorageTraits, StorageError, StoreKey};
use zarrs_cuda::CudaShardingCodecBuilder;
use zarrs_cuda::reader::{ArrayReader, ReaderError};

/// Reads of `inner`, each after `delay`. From the read of number `bad` on each fails, or panics.
#[derive(Debug)]
struct Slow {
    inner: Arc<MemoryStore>,
    delay: Duration,
    bad: usize,
    panics: bool,
    reads: AtomicUsize,
    /// How many are being made, and the most that were.
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Slow {
    fn new(inner: Arc<MemoryStore>, delay: Duration) -> Self {
        Self {
            inner,
            delay,
            bad: usize::MAX,
            panics: false,
            reads: AtomicUsize::new(0),
            now: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        }
    }
}

impl ReadableStorageTraits for Slow {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        let now = 1 + self.now.fetch_add(1, Ordering::SeqCst);
        self.most.fetch_max(now, Ordering::SeqCst);
        std::thread::sleep(self.delay);
        self.now.fetch_sub(1, Ordering::SeqCst);
        if self.reads.fetch_add(1, Ordering::SeqCst) >= self.bad {
            assert!(!self.panics, "a store that panics");
            return Err(StorageError::Other("the store is away".to_string()));
        }
        self.inner.get_partial_many(key, byte_ranges)
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        self.inner.size_key(key)
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

/// 64 shards of 16 uint16, in subchunks of 4.
fn array() -> (Arc<MemoryStore>, Array<MemoryStore>) {
    let store = Arc::new(MemoryStore::new());
    let codec = CudaShardingCodecBuilder::new(vec![4.try_into().unwrap()], &data_type::uint16());
    let mut builder = ArrayBuilder::new(vec![1024], vec![16], data_type::uint16(), 0_u16);
    builder.array_to_bytes_codec(codec.build_arc().unwrap());
    let array = builder.build(store.clone(), "/").unwrap();
    let elements: Vec<u16> = (0..1024).collect();
    array
        .store_array_subset(&array.subset_all(), &elements)
        .unwrap();
    (store, array)
}

/// The goal is 0.8 of the bandwidth of a store that answers 16 requests at once.
#[test]
fn many_requests_wait_at_once() {
    let delay = Duration::from_millis(30);
    let (store, array) = array();
    let slow = Arc::new(Slow::new(store, delay));
    let expected: Vec<u16> = (0..1024).collect();
    // Returns the least share of the bandwidth of two reads.
    let read = || {
        let reader = ArrayReader::builder(&array.with_storage(slow.clone()))
            .build()
            .unwrap();
        let shares = [2 * 64, 64].map(|requests| {
            let begin = Instant::now();
            slow.reads.store(0, Ordering::SeqCst);
            assert_eq!(reader.read::<u16>(&array.subset_all()).unwrap(), expected);
            let seconds = begin.elapsed().as_secs_f64();
            let made = slow.reads.load(Ordering::SeqCst);
            assert_eq!(made, requests, "each index is kept after the first time");
            f64::from(requests as u32) / 16.0 * delay.as_secs_f64() / seconds
        });
        assert!(slow.most.load(Ordering::SeqCst) <= 16);
        let metrics = reader.metrics();
        assert_eq!(metrics.requests, 3 * 64);
        assert!(metrics.waiting >= delay * 3 * 64);
        // Each subchunk but the first of a shard joins the range of the one before, twice.
        assert_eq!(metrics.merges, metrics.subchunks_read - 2 * 64);
        shares[0].min(shares[1])
    };
    // A busy machine may take a try's time.
    let shares: Vec<f64> = (0..5).map(|_| read()).collect();
    assert!(
        shares.iter().any(|share| *share >= 0.8),
        "{shares:?} of the bandwidth"
    );

    // Several shards, or several requests for one shard: the limit is for both together.
    for (subset, memory) in [(0..200, usize::MAX), (0..200, 30), (3..14, 10), (0..40, 10)] {
        let few = ArrayReader::builder(&array.with_storage(slow.clone())).with_requests(3);
        let few = few.with_memory(memory).with_gap(0).build().unwrap();
        slow.most.store(0, Ordering::SeqCst);
        let expected: Vec<u16> = (subset.start as u16..subset.end as u16).collect();
        assert_eq!(few.read::<u16>(&[subset]).unwrap(), expected);
        assert!(slow.most.load(Ordering::SeqCst) <= 3);
    }
}

#[test]
fn a_store_that_fails_is_an_error_at_once() {
    for (bad, panics) in [
        (0, false),
        (1, false),
        (20, false),
        (100, false),
        (0, true),
        (77, true),
    ] {
        let (store, array) = array();
        let mut slow = Slow::new(store, Duration::ZERO);
        (slow.bad, slow.panics) = (bad, panics);
        let slow = Arc::new(slow);
        let reader = ArrayReader::builder(&array.with_storage(slow.clone()))
            .build()
            .unwrap();
        let error = reader.read::<u16>(&array.subset_all()).unwrap_err();
        assert!(matches!(error, ReaderError::Store { .. }), "{error}");
        assert!(error.to_string().contains("c/"), "the key: {error}");
        let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let after = slow.reads.load(Ordering::SeqCst) - bad;
        // Each of the threads may fail once, and look for the index after that.
        assert!(after <= 2 * threads.max(16), "{after} reads after an error");
    }
}

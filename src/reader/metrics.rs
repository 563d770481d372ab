//! Counts of the work of a reader.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts of the work that a reader has done. [`ArrayReader::metrics`](super::ArrayReader::metrics) returns
/// them. All counts stay 0 for an array that [zarrs reads](super::ArrayReader::is_by_zarrs).
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # array.store_array_subset(&array.subset_all(), (0..64 * 64).collect::<Vec<u16>>())?;
/// # let reader = zarrs_cuda::reader::ArrayReader::builder(&array).build()?;
/// let _elements: Vec<u16> = reader.read(&[0..2, 0..64])?;
/// let metrics = reader.metrics();
/// // Whole subchunks are read: smaller ones would fit these boxes better.
/// println!("{} bytes were read for {}", metrics.bytes_read, metrics.bytes_wanted);
/// assert_eq!(metrics.bytes_wanted, 2 * 64 * 2);
/// println!("{} requests took {:?}", metrics.requests, metrics.waiting);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReaderMetrics {
    /// The number of bytes of all elements that calls asked for.
    pub bytes_wanted: u64,
    /// The number of bytes that stores and files returned.
    pub bytes_read: u64,
    /// The number of requests to stores and files. A request reads one or several ranges of a shard, or a
    /// subchunk that is stored beside its shard.
    pub requests: u64,
    /// The number of ranges in all requests. Subchunks that are near each other share a range.
    pub ranges: u64,
    /// The number of subchunks that were read by the same range as another subchunk.
    pub merges: u64,
    /// The sum of the times that requests took. Several requests run at once, so the sum can exceed the real
    /// time.
    pub waiting: Duration,
    /// The number of subchunks whose bytes were requested.
    pub subchunks_read: u64,
    /// The number of shards whose index was kept from an earlier call.
    pub index_hits: u64,
    /// The number of subchunks whose elements were kept from an earlier call.
    pub subchunk_hits: u64,
    /// The number of times that a shard was read again, because it was replaced during the read.
    pub replaced: u64,
    /// The number of subchunks that could not be decoded and became fill values. A shard whose index cannot
    /// be decoded counts once.
    pub damaged: u64,
}

/// The counts of a reader, which its threads update.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) bytes_wanted: AtomicU64,
    pub(super) bytes_read: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) ranges: AtomicU64,
    pub(super) merges: AtomicU64,
    /// The sum of the times that requests took, in nanoseconds.
    waiting: AtomicU64,
    pub(super) subchunks_read: AtomicU64,
    pub(super) index_hits: AtomicU64,
    pub(super) subchunk_hits: AtomicU64,
    pub(super) replaced: AtomicU64,
    pub(super) damaged: AtomicU64,
}

impl Counters {
    /// Adds the time that a request took.
    pub(super) fn waited(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.waiting.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> ReaderMetrics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ReaderMetrics {
            bytes_wanted: read(&self.bytes_wanted),
            bytes_read: read(&self.bytes_read),
            requests: read(&self.requests),
            ranges: read(&self.ranges),
            merges: read(&self.merges),
            waiting: Duration::from_nanos(read(&self.waiting)),
            subchunks_read: read(&self.subchunks_read),
            index_hits: read(&self.index_hits),
            subchunk_hits: read(&self.subchunk_hits),
            replaced: read(&self.replaced),
            damaged: read(&self.damaged),
        }
    }
}

/// Adds `count` to `counter`.
pub(super) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

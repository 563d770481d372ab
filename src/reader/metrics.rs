//! Counts of the work of a reader.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts of the work of a reader until now. [`ArrayReader::metrics`](super::ArrayReader::metrics)
/// returns it. All counts stay 0 for an array that
/// [zarrs reads](super::ArrayReader::is_by_zarrs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReaderMetrics {
    /// Bytes of elements that were asked for.
    pub bytes_wanted: u64,
    /// Bytes that stores and files returned.
    pub bytes_read: u64,
    /// Requests to stores and files: reads of one or several ranges of a shard, or of a subchunk that
    /// lies beside its shard.
    pub requests: u64,
    /// Ranges that were asked for, after near subchunks were merged.
    pub ranges: u64,
    /// Subchunks that were read by the same range as another one.
    pub merges: u64,
    /// The time that requests took, added up: several are made at once.
    pub waiting: Duration,
    /// Subchunks whose bytes were asked for.
    pub subchunks_read: u64,
    /// Shards whose index was kept from an earlier call.
    pub index_hits: u64,
    /// Subchunks whose elements were kept from an earlier call.
    pub subchunk_hits: u64,
    /// Times that a shard was read again, because it was replaced meanwhile.
    pub replaced: u64,
    /// Subchunks that could not be decoded, and became fill values. A shard without an index that can
    /// be decoded counts once.
    pub damaged: u64,
}

/// The counts while they change.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) bytes_wanted: AtomicU64,
    pub(super) bytes_read: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) ranges: AtomicU64,
    pub(super) merges: AtomicU64,
    /// In nanoseconds.
    waiting: AtomicU64,
    pub(super) subchunks_read: AtomicU64,
    pub(super) index_hits: AtomicU64,
    pub(super) subchunk_hits: AtomicU64,
    pub(super) replaced: AtomicU64,
    pub(super) damaged: AtomicU64,
}

impl Counters {
    /// Adds the time of a request.
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

/// Adds to a count.
pub(super) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

//! Counters of the work of the CUDA engine.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::DeviceMetrics;
use super::forks::Process;
use crate::contract::coded_bytes::{CodedBytesCounter, StoredBytes};

/// The most reasons for a fallback to the host that are counted separately.
const MOST_REASONS: usize = 32;

/// A stage whose time on the device is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimedStage {
    ToDevice,
    Scatter,
    Crc32c,
    Shuffle,
    Compress,
    Frame,
    Decompress,
    Aggregate,
    Split,
    Unscatter,
    FromDevice,
}

/// The counters of the engine, in whole numbers. Times are in nanoseconds.
#[derive(Debug, Default)]
pub struct Counters {
    shards_encoded: AtomicU64,
    shards_decoded: AtomicU64,
    batches_encoded: AtomicU64,
    bytes_to_device: AtomicU64,
    bytes_from_device: AtomicU64,
    stages: [AtomicU64; 11],
    lanes_created: AtomicU64,
    lanes_alive: AtomicU64,
    lanes_leaked: AtomicU64,
    lane_waits: AtomicU64,
    lane_wait: AtomicU64,
    lanes_waiting: AtomicU64,
    batches_halved: AtomicU64,
    subchunks_on_host: AtomicU64,
    subchunks_read: AtomicU64,
    subchunks_read_on_host: AtomicU64,
    read_bytes_copied: AtomicU64,
    coded_bytes: CodedBytesCounter,
    batches_checked: AtomicU64,
    mismatches: AtomicU64,
    fallbacks: Mutex<BTreeMap<String, u64>>,
    /// The process that counts. A forked child must not take the lock, because a thread of the parent may
    /// hold the lock for ever.
    process: Process,
}

impl Counters {
    pub(super) fn shard_encoded(&self, bytes: StoredBytes) {
        self.shards_encoded.fetch_add(1, Ordering::Relaxed);
        self.coded_bytes.encoded(bytes);
    }

    pub(super) fn shard_decoded(&self, bytes: StoredBytes) {
        self.shards_decoded.fetch_add(1, Ordering::Relaxed);
        self.coded_bytes.decoded(bytes);
    }

    pub(super) fn batch_encoded(&self, bytes: StoredBytes) {
        self.batches_encoded.fetch_add(1, Ordering::Relaxed);
        self.coded_bytes.encoded(bytes);
    }

    pub(super) fn add_to_device(&self, bytes: usize) {
        self.bytes_to_device
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn add_from_device(&self, bytes: usize) {
        self.bytes_from_device
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn stage(&self, stage: TimedStage, time: Duration) {
        self.stages[stage as usize].fetch_add(nanoseconds(time), Ordering::Relaxed);
    }

    pub(super) fn lane_created(&self) {
        self.lanes_created.fetch_add(1, Ordering::Relaxed);
        self.lanes_alive.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn lane_released(&self) {
        self.lanes_alive.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn lane_leaked(&self) {
        self.lanes_leaked.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn waiting_for_lane(&self) {
        self.lane_waits.fetch_add(1, Ordering::Relaxed);
        self.lanes_waiting.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn waited_for_lane(&self, time: Duration) {
        self.lanes_waiting.fetch_sub(1, Ordering::Relaxed);
        self.lane_wait
            .fetch_add(nanoseconds(time), Ordering::Relaxed);
    }

    pub(super) fn batch_halved(&self) {
        self.batches_halved.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn subchunk_on_host(&self) {
        self.subchunks_on_host.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts `subchunks` stored subchunks whose elements were placed in the memory of a device.
    pub(super) fn read(&self, subchunks: u64, bytes: StoredBytes) {
        self.subchunks_read.fetch_add(subchunks, Ordering::Relaxed);
        self.coded_bytes.decoded(bytes);
    }

    /// Counts a subchunk that the host decoded for the memory of a device.
    pub(super) fn read_on_host(&self) {
        self.subchunks_read_on_host.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts encoded bytes that the host has copied for a read into the memory of a device.
    pub(super) fn copied_for_read(&self, bytes: usize) {
        self.read_bytes_copied
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn batch_checked(&self) {
        self.batches_checked.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn mismatch(&self) {
        self.mismatches.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn fell_back(&self, reason: &str) {
        if self.process.forked() {
            return;
        }
        let mut fallbacks = self
            .fallbacks
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let known = fallbacks.len() < MOST_REASONS || fallbacks.contains_key(reason);
        let reason = if known { reason } else { "other reasons" };
        *fallbacks.entry(reason.to_string()).or_default() += 1;
    }

    /// Returns the number of encoded shards. This also works in a forked child.
    #[cfg(any(test, feature = "fakes"))]
    pub fn encoded(&self) -> u64 {
        self.shards_encoded.load(Ordering::Relaxed)
    }

    /// Returns the metrics since the start of the process; empty in a forked child.
    pub fn snapshot(&self) -> DeviceMetrics {
        if self.process.forked() {
            return DeviceMetrics::default();
        }
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let stage = |stage: TimedStage| Duration::from_nanos(count(&self.stages[stage as usize]));
        DeviceMetrics {
            shards_encoded: count(&self.shards_encoded),
            shards_decoded: count(&self.shards_decoded),
            batches_encoded: count(&self.batches_encoded),
            bytes_to_device: count(&self.bytes_to_device),
            bytes_from_device: count(&self.bytes_from_device),
            to_device: stage(TimedStage::ToDevice),
            scatter: stage(TimedStage::Scatter),
            crc32c: stage(TimedStage::Crc32c),
            shuffle: stage(TimedStage::Shuffle),
            compress: stage(TimedStage::Compress),
            frame: stage(TimedStage::Frame),
            decompress: stage(TimedStage::Decompress),
            aggregate: stage(TimedStage::Aggregate),
            split: stage(TimedStage::Split),
            unscatter: stage(TimedStage::Unscatter),
            from_device: stage(TimedStage::FromDevice),
            lanes_created: count(&self.lanes_created),
            lanes_alive: count(&self.lanes_alive),
            lanes_leaked: count(&self.lanes_leaked),
            lane_waits: count(&self.lane_waits),
            lanes_waiting: count(&self.lanes_waiting),
            lane_wait: Duration::from_nanos(count(&self.lane_wait)),
            batches_halved: count(&self.batches_halved),
            subchunks_on_host: count(&self.subchunks_on_host),
            subchunks_read: count(&self.subchunks_read),
            subchunks_read_on_host: count(&self.subchunks_read_on_host),
            read_bytes_copied: count(&self.read_bytes_copied),
            coded_bytes: self.coded_bytes.snapshot(),
            batches_checked: count(&self.batches_checked),
            mismatches: count(&self.mismatches),
            fallbacks: self
                .fallbacks
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        }
    }
}

#[cfg(test)]
impl Counters {
    /// Holds the lock while `work` runs.
    pub(super) fn while_locked(&self, work: impl FnOnce()) {
        let fallbacks = self.fallbacks.lock();
        work();
        drop(fallbacks);
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

//! What the CUDA engine did, for applications to read.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::device::Process;

/// How many different reasons of fallbacks are kept apart.
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

/// Counters, in whole numbers and nanoseconds.
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
    fallbacks: Mutex<BTreeMap<String, u64>>,
    /// Where is counted: a forked child could find the lock taken for ever.
    process: Process,
}

impl Counters {
    pub(super) fn shard_encoded(&self) {
        self.shards_encoded.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn shard_decoded(&self) {
        self.shards_decoded.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn batch_encoded(&self) {
        self.batches_encoded.fetch_add(1, Ordering::Relaxed);
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

    /// Shards that were encoded, in a forked child too.
    #[cfg(test)]
    pub(super) fn encoded(&self) -> u64 {
        self.shards_encoded.load(Ordering::Relaxed)
    }

    /// What was counted until now; nothing, in a forked child.
    pub fn snapshot(&self) -> Metrics {
        if self.process.forked() {
            return Metrics::default();
        }
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let stage = |stage: TimedStage| Duration::from_nanos(count(&self.stages[stage as usize]));
        Metrics {
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
            fallbacks: self
                .fallbacks
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            // Not of this engine.
            partial_writes: 0,
            compaction_requests: 0,
            compactions: 0,
            writer_waits: 0,
            writer_wait: Duration::ZERO,
        }
    }
}

#[cfg(test)]
impl Counters {
    /// Hold the lock while `work` runs.
    pub(super) fn while_locked(&self, work: impl FnOnce()) {
        let fallbacks = self.fallbacks.lock();
        work();
        drop(fallbacks);
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What this process did until now: on devices, in partial writes, and in [writers](crate::writer).
/// [`metrics`](crate::metrics) returns it. In a forked child the counts of devices are 0, because
/// it uses none.
///
/// Times of stages are the devices' own, taken with events. They add up over lanes that run at the
/// same time: they show where time goes, not how long a shard takes. A *lane* is the set of buffers
/// and streams of one shard in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Shards that were encoded on a device.
    pub shards_encoded: u64,
    /// Shards that were decoded on a device.
    pub shards_decoded: u64,
    /// Batches of streams that were encoded on a device.
    pub batches_encoded: u64,
    /// Bytes that were copied to devices.
    pub bytes_to_device: u64,
    /// Bytes that were copied from devices.
    pub bytes_from_device: u64,
    /// Time of copies to devices.
    pub to_device: Duration,
    /// Time of scattering elements into subchunks.
    pub scatter: Duration,
    /// Time of CRC32C checksums.
    pub crc32c: Duration,
    /// Time of Blosc's shuffles.
    pub shuffle: Duration,
    /// Time of compressors.
    pub compress: Duration,
    /// Time of making frames of the compressors' output.
    pub frame: Duration,
    /// Time of decompressors, and of comparing gzip's checksums.
    pub decompress: Duration,
    /// Time of aggregating encoded subchunks.
    pub aggregate: Duration,
    /// Time of splitting shards into subchunks.
    pub split: Duration,
    /// Time of copying the elements of subchunks back into boxes.
    pub unscatter: Duration,
    /// Time of copies from devices.
    pub from_device: Duration,
    /// Lanes that were made.
    pub lanes_created: u64,
    /// Lanes that are in use or wait for work.
    pub lanes_alive: u64,
    /// Lanes that were given up with some of their memory not freed: the device was broken, or did
    /// not confirm that it was done with the memory.
    pub lanes_leaked: u64,
    /// How often a shard waited for a lane.
    pub lane_waits: u64,
    /// Shards that wait for a lane now.
    pub lanes_waiting: u64,
    /// Time that shards waited for lanes.
    pub lane_wait: Duration,
    /// How often a lane was made smaller because the device had too little memory.
    pub batches_halved: u64,
    /// Subchunks that the host compressed because a device's compressor failed on them.
    pub subchunks_on_host: u64,
    /// Work that went to the host after a device had been chosen, counted by reason: shards and
    /// batches of streams under [`Backend::Auto`](crate::Backend::Auto), and shards with a
    /// compressor that the host decoded although [`device_decode`](crate::Options::device_decode)
    /// was set.
    pub fallbacks: BTreeMap<String, u64>,
    /// Partial writes that updated a shard where it is stored, on any engine.
    pub partial_writes: u64,
    /// Partial writes that left more unused bytes than
    /// [`max_dead_fraction`](crate::Options::max_dead_fraction) allows.
    pub compaction_requests: u64,
    /// Shards that were compacted.
    pub compactions: u64,
    /// How often an append to a [writer](crate::writer) waited for the encoder or the store.
    pub writer_waits: u64,
    /// Time that such appends waited.
    pub writer_wait: Duration,
}

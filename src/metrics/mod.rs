//! Counters of this process, for applications to read.

mod memory_estimate;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

pub use memory_estimate::MemoryEstimate;

/// Counts of the work that this process has done: on devices and the host, in partial writes, and in
/// [writers](crate::writer). [`metrics`](crate::metrics) returns them. In a forked child process the counts
/// of devices are 0, because it uses no device. The work of readers is counted by
/// [`ArrayReader::metrics`](crate::reader::ArrayReader::metrics).
///
/// Times of stages are measured on the devices, with events, if
/// [`Options::with_device_times`](crate::Options::with_device_times) asks for them; otherwise they are 0.
/// They are sums over lanes that run at the same time: they show where time is spent, not how long a shard
/// takes. A *lane* is the set of buffers and streams of one shard in flight.
///
/// `Display` is for people, and may change in any release. It prints a line for each count that is
/// not 0.
///
/// ```
/// let metrics = zarrs_cuda::metrics();
/// for (reason, jobs) in &metrics.fallbacks {
///     eprintln!("the host did {jobs} jobs of a device: {reason}");
/// }
/// for (device, reason) in &metrics.missing_devices {
///     eprintln!("device {device} cannot be used: {reason}");
/// }
/// assert_eq!(metrics.mismatches, 0, "a device returned wrong results");
/// println!("{metrics}"); // everything that happened at all
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// The number of shards that were encoded on a device.
    pub shards_encoded: u64,
    /// The number of shards that were decoded on a device.
    pub shards_decoded: u64,
    /// The number of batches of streams that were encoded on a device.
    pub batches_encoded: u64,
    /// The number of bytes that were copied to devices.
    pub bytes_to_device: u64,
    /// The number of bytes that were copied from devices.
    pub bytes_from_device: u64,
    /// The time of copies to devices.
    pub to_device: Duration,
    /// The time of scattering elements into subchunks.
    pub scatter: Duration,
    /// The time of computing CRC32C checksums.
    pub crc32c: Duration,
    /// The time of Blosc's shuffles.
    pub shuffle: Duration,
    /// The time that compressors took.
    pub compress: Duration,
    /// The time of making frames from the output of compressors.
    pub frame: Duration,
    /// The time that decompressors took, including the comparison of gzip's checksums.
    pub decompress: Duration,
    /// The time of aggregating encoded subchunks.
    pub aggregate: Duration,
    /// The time of splitting shards into subchunks.
    pub split: Duration,
    /// The time of copying the elements of subchunks back into boxes.
    pub unscatter: Duration,
    /// The time of copies from devices.
    pub from_device: Duration,
    /// The number of lanes that were made.
    pub lanes_created: u64,
    /// The number of lanes that are in use or idle now.
    pub lanes_alive: u64,
    /// The number of lanes that were abandoned without freeing all of their memory: the device was broken, or
    /// did not confirm that it was done with the memory.
    pub lanes_leaked: u64,
    /// The number of times that a shard waited for a lane.
    pub lane_waits: u64,
    /// The number of shards that wait for a lane now.
    pub lanes_waiting: u64,
    /// The time that shards waited for lanes.
    pub lane_wait: Duration,
    /// The number of times that a lane was made smaller because the device had too little memory.
    pub batches_halved: u64,
    /// The number of subchunks that the host compressed because the compressor of a device failed on them.
    pub subchunks_on_host: u64,
    /// The number of stored subchunks that were read into the memory of a device.
    pub subchunks_read_to_devices: u64,
    /// The number of these subchunks that the host decoded, because no device may or can.
    pub subchunks_read_by_host: u64,
    /// The number of bytes of encoded subchunks that the host copied on their way to the memory of a device. Bytes
    /// of files are copied only where page-locked memory has no room for them, and where fewer than 32 KiB lie
    /// together. Bytes of other stores are copied once, or twice where much is read between them.
    pub read_bytes_copied: u64,
    /// The decoded bytes that the host encoded. Subchunks that are equal to the fill value are not stored, and do
    /// not count.
    pub host_encode_bytes_in: u64,
    /// The encoded bytes that these became. The ratio of both is the ratio of the host.
    pub host_encode_bytes_out: u64,
    /// The encoded bytes of stored subchunks that the host decoded.
    pub host_decode_bytes_in: u64,
    /// The decoded bytes that these became.
    pub host_decode_bytes_out: u64,
    /// The decoded bytes that devices encoded. Subchunks that are equal to the fill value are not stored, and do
    /// not count.
    pub device_encode_bytes_in: u64,
    /// The encoded bytes that these became. The ratio of both is the ratio of the compressors of devices.
    pub device_encode_bytes_out: u64,
    /// The encoded bytes of stored subchunks that devices decoded.
    pub device_decode_bytes_in: u64,
    /// The decoded bytes that these became.
    pub device_decode_bytes_out: u64,
    /// The number of batches of subchunks whose results were compared with those of the host: see
    /// [`Check`](crate::Check).
    pub batches_checked: u64,
    /// The number of wrong results of devices. A device is not used any more after the first one.
    pub mismatches: u64,
    /// The number of jobs that the host did after a device had been chosen, by reason. A job is a shard or a
    /// batch of a stream under [`Backend::Auto`](crate::Backend::Auto), or a shard with a compressor that the
    /// host decoded although [`device_decode`](crate::Options::device_decode) was set.
    pub fallbacks: BTreeMap<String, u64>,
    /// The devices that a user has named by number and that cannot be used, each with the reason and the
    /// setting that names it. Under [`Backend::Auto`](crate::Backend::Auto) the host does their work. The map
    /// has what was found when devices were looked for.
    pub missing_devices: BTreeMap<usize, String>,
    /// The number of times that the host encoded or decoded subchunks: all or some of a shard, or those of a
    /// batch. The codecs of zarrs that do so in place of the host engine count, and so do index codecs other
    /// than `bytes` and `crc32c`. Copying encoded subchunks, as a consolidation or a compaction does, does
    /// not count.
    pub host_codings: u64,
    /// The number of partial writes that updated a shard where it is stored, on any engine.
    pub partial_writes: u64,
    /// The number of partial writes that left more unused bytes than
    /// [`max_dead_fraction`](crate::Options::max_dead_fraction) allows.
    pub compaction_requests: u64,
    /// The number of shards that were compacted.
    pub compactions: u64,
    /// The number of times that an append to a [writer](crate::writer) waited for the encoder or the store.
    pub writer_waits: u64,
    /// The time that appends to writers waited.
    pub writer_wait: Duration,
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            ("shards encoded on a device", self.shards_encoded),
            ("shards decoded on a device", self.shards_decoded),
            (
                "batches of streams encoded on a device",
                self.batches_encoded,
            ),
            ("bytes copied to devices", self.bytes_to_device),
            ("bytes copied from devices", self.bytes_from_device),
            ("lanes created", self.lanes_created),
            ("lanes alive", self.lanes_alive),
            ("lanes leaked", self.lanes_leaked),
            ("waits for a lane", self.lane_waits),
            ("shards waiting for a lane", self.lanes_waiting),
            ("batches halved for want of memory", self.batches_halved),
            (
                "subchunks compressed by the host instead",
                self.subchunks_on_host,
            ),
            (
                "subchunks read into memory of devices",
                self.subchunks_read_to_devices,
            ),
            (
                "subchunks decoded by the host for devices",
                self.subchunks_read_by_host,
            ),
            (
                "encoded bytes copied on the host for devices",
                self.read_bytes_copied,
            ),
            ("bytes encoded on the host", self.host_encode_bytes_in),
            ("encoded bytes from the host", self.host_encode_bytes_out),
            ("encoded bytes to the host", self.host_decode_bytes_in),
            ("bytes decoded on the host", self.host_decode_bytes_out),
            ("bytes encoded on devices", self.device_encode_bytes_in),
            ("encoded bytes from devices", self.device_encode_bytes_out),
            ("encoded bytes to devices", self.device_decode_bytes_in),
            ("bytes decoded on devices", self.device_decode_bytes_out),
            (
                "batches compared with the results of the host",
                self.batches_checked,
            ),
            ("wrong results of devices", self.mismatches),
            ("codings on the host", self.host_codings),
            ("partial writes", self.partial_writes),
            ("compaction requests", self.compaction_requests),
            ("compactions", self.compactions),
            ("waits of appends", self.writer_waits),
        ];
        let times = [
            ("copies to devices", self.to_device),
            ("scatter", self.scatter),
            ("crc32c", self.crc32c),
            ("shuffle", self.shuffle),
            ("compress", self.compress),
            ("frame", self.frame),
            ("decompress", self.decompress),
            ("aggregate", self.aggregate),
            ("split", self.split),
            ("unscatter", self.unscatter),
            ("copies from devices", self.from_device),
            ("waiting for lanes", self.lane_wait),
            ("waiting of appends", self.writer_wait),
        ];
        let counts = counts.iter().filter(|(_, count)| *count > 0);
        let times = times.iter().filter(|(_, time)| !time.is_zero());
        let fallbacks = self.fallbacks.iter();
        let missing = self.missing_devices.values().cloned();
        let mut lines: Vec<String> = counts
            .map(|(name, count)| format!("{name}: {count}"))
            .chain(times.map(|(name, time)| format!("{name}: {time:.3?}")))
            .chain(fallbacks.map(|(reason, count)| format!("to the host: {count} ({reason})")))
            .chain(missing)
            .collect();
        if lines.is_empty() {
            lines.push("nothing was counted".to_string());
        }
        f.write_str(&lines.join("\n"))
    }
}

/// The counters of the host, of partial writes and of writers. Devices have their own.
pub(crate) mod counters {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use zarrs_cuda_engine::cuda::DeviceMetrics;
    use zarrs_cuda_engine::host;

    use super::Metrics;

    static HOST_CODINGS: AtomicU64 = AtomicU64::new(0);
    static PARTIAL_WRITES: AtomicU64 = AtomicU64::new(0);
    static COMPACTION_REQUESTS: AtomicU64 = AtomicU64::new(0);
    static COMPACTIONS: AtomicU64 = AtomicU64::new(0);
    static WRITER_WAITS: AtomicU64 = AtomicU64::new(0);
    static WRITER_WAIT_NANOSECONDS: AtomicU64 = AtomicU64::new(0);

    /// Counts that a codec of zarrs encoded or decoded subchunks or an index, in place of the host engine.
    pub(crate) fn host_coding() {
        HOST_CODINGS.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn partial_write() {
        PARTIAL_WRITES.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn compaction_request() {
        COMPACTION_REQUESTS.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn compaction() {
        COMPACTIONS.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts that an append waited, and adds the `time` for which it waited.
    pub(crate) fn append_waited(time: Duration) {
        WRITER_WAITS.fetch_add(1, Ordering::Relaxed);
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        WRITER_WAIT_NANOSECONDS.fetch_add(time, Ordering::Relaxed);
    }

    /// Returns the counts of `devices`, with the present counts of the host added. The missing devices are left
    /// out.
    pub(crate) fn add_to(devices: DeviceMetrics) -> Metrics {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (on_host, on_devices) = (host::coded_bytes(), devices.coded_bytes);
        Metrics {
            shards_encoded: devices.shards_encoded,
            shards_decoded: devices.shards_decoded,
            batches_encoded: devices.batches_encoded,
            bytes_to_device: devices.bytes_to_device,
            bytes_from_device: devices.bytes_from_device,
            to_device: devices.to_device,
            scatter: devices.scatter,
            crc32c: devices.crc32c,
            shuffle: devices.shuffle,
            compress: devices.compress,
            frame: devices.frame,
            decompress: devices.decompress,
            aggregate: devices.aggregate,
            split: devices.split,
            unscatter: devices.unscatter,
            from_device: devices.from_device,
            lanes_created: devices.lanes_created,
            lanes_alive: devices.lanes_alive,
            lanes_leaked: devices.lanes_leaked,
            lane_waits: devices.lane_waits,
            lanes_waiting: devices.lanes_waiting,
            lane_wait: devices.lane_wait,
            batches_halved: devices.batches_halved,
            subchunks_on_host: devices.subchunks_on_host,
            subchunks_read_to_devices: devices.subchunks_read,
            subchunks_read_by_host: devices.subchunks_read_on_host,
            read_bytes_copied: devices.read_bytes_copied,
            host_encode_bytes_in: on_host.encode_in,
            host_encode_bytes_out: on_host.encode_out,
            host_decode_bytes_in: on_host.decode_in,
            host_decode_bytes_out: on_host.decode_out,
            device_encode_bytes_in: on_devices.encode_in,
            device_encode_bytes_out: on_devices.encode_out,
            device_decode_bytes_in: on_devices.decode_in,
            device_decode_bytes_out: on_devices.decode_out,
            batches_checked: devices.batches_checked,
            mismatches: devices.mismatches,
            fallbacks: devices.fallbacks,
            missing_devices: BTreeMap::new(),
            host_codings: count(&HOST_CODINGS) + host::codings(),
            partial_writes: count(&PARTIAL_WRITES),
            compaction_requests: count(&COMPACTION_REQUESTS),
            compactions: count(&COMPACTIONS),
            writer_waits: count(&WRITER_WAITS),
            writer_wait: Duration::from_nanos(count(&WRITER_WAIT_NANOSECONDS)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_counted_is_not_shown() {
        let mut metrics = Metrics::default();
        assert_eq!(metrics.to_string(), "nothing was counted");
        metrics.compactions = 2;
        metrics.scatter = Duration::from_millis(3);
        metrics.fallbacks.insert("no memory".to_string(), 1);
        let shown = "compactions: 2\nscatter: 3.000ms\nto the host: 1 (no memory)";
        assert_eq!(metrics.to_string(), shown);
    }
}

//! Metrics of the work on devices.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::contract::CodedBytes;

/// Counters of the work of this process on devices since its start. The times of stages are measured by the
/// devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceMetrics {
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
    /// The time of the compressors.
    pub compress: Duration,
    /// The time of making frames from the compressors' output.
    pub frame: Duration,
    /// The time of the decompressors, and of computing gzip's checksums.
    pub decompress: Duration,
    /// The time of aggregating encoded subchunks.
    pub aggregate: Duration,
    /// The time of splitting shards into encoded subchunks.
    pub split: Duration,
    /// The time of copying the elements of subchunks back into boxes.
    pub unscatter: Duration,
    /// The time of copies from devices.
    pub from_device: Duration,
    /// The number of lanes that were allocated. A lane is everything that one shard in flight, or one stream,
    /// needs on a device.
    pub lanes_created: u64,
    /// The number of lanes that are in use or idle now.
    pub lanes_alive: u64,
    /// The number of lanes whose memory was not freed completely when they ended: the device was broken, or
    /// did not confirm that it no longer used the memory.
    pub lanes_leaked: u64,
    /// The number of times that a shard waited for a lane.
    pub lane_waits: u64,
    /// The number of shards that wait for a lane now.
    pub lanes_waiting: u64,
    /// The time that shards waited for lanes.
    pub lane_wait: Duration,
    /// The number of times that a lane was made smaller because the device had too little memory.
    pub batches_halved: u64,
    /// The number of subchunks that the host compressed because a device's compressor failed on them.
    pub subchunks_on_host: u64,
    /// The number of stored subchunks whose elements were placed in the memory of a device.
    pub subchunks_read: u64,
    /// The number of these subchunks that the host decoded.
    pub subchunks_read_on_host: u64,
    /// The number of bytes of encoded subchunks that the host copied on their way to the memory of a device: to
    /// memory of their own, and to the buffers of a lane. Bytes that were read into page-locked memory are not
    /// copied.
    pub read_bytes_copied: u64,
    /// The bytes of the stored subchunks that devices encoded and decoded, with the subchunks that the host
    /// compressed because a device's compressor failed on them.
    pub coded_bytes: CodedBytes,
    /// The number of batches of subchunks whose results were compared with those of the host.
    pub batches_checked: u64,
    /// The number of wrong results of devices. A device is not used any more after the first one.
    pub mismatches: u64,
    /// The number of shards and batches that the host ran after a device had been chosen, by reason: shards
    /// and batches of streams under `Backend::Auto`, and shards with a compressor that the host decoded
    /// although `device_decode` was set.
    pub fallbacks: BTreeMap<String, u64>,
}

//! Counts of the work on devices.

use std::collections::BTreeMap;
use std::time::Duration;

/// Counts of the work of this process on devices until now. Times of stages are the devices' own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceMetrics {
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
    /// batches of streams under `Backend::Auto`, and shards with a
    /// compressor that the host decoded although `device_decode`
    /// was set.
    pub fallbacks: BTreeMap<String, u64>,
}

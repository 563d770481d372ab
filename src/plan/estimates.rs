//! Estimates the time of a job on the host and on a device.

use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use super::rates::{self, Codec, Direction};
use zarrs_cuda_engine::contract::{Cname, KnownChain, Stage};
use zarrs_cuda_engine::layout::{StreamGrid, SubchunkGrid};

/// The estimated times for the shards of an array, or for a shard epoch of a stream. They are predictions
/// from figures of other machines, and no measurements.
///
/// The estimate of the host assumes that all processors are busy, since zarrs encodes several shards at once.
///
/// `Display` is for people, and may change in any release.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// if let Some(estimates) = zarrs_cuda::explain(&array)?.estimates {
///     println!("{estimates}"); // both times, for people
///     if estimates.device.is_some_and(|device| device < estimates.host) {
///         println!("a device is estimated to be faster");
///     }
/// }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Estimates {
    /// The time on the host.
    pub host: Duration,
    /// The time on a device; `None` if the options use no device, if no device can do the job, or if there is
    /// no figure for its compressor.
    pub device: Option<Duration>,
}

impl Estimates {
    /// Returns whether a device is so much faster that [`Backend::Auto`](crate::Backend::Auto) chooses the
    /// device.
    pub(super) fn prefer_device(&self) -> bool {
        self.device
            .is_some_and(|device| device.as_secs_f64() * rates::MARGIN < self.host.as_secs_f64())
    }
}

impl fmt::Display for Estimates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on the host", in_words(self.host))?;
        match self.device {
            Some(device) => write!(f, ", {} on a device", in_words(device)),
            None => Ok(()),
        }
    }
}

/// Returns `time` with two digits behind the point.
fn in_words(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        _ if seconds < 1e-3 => format!("{:.2} µs", seconds * 1e6),
        _ if seconds < 1.0 => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    }
}

/// A job, as far as its time depends on it: subchunks that are encoded or decoded together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(super) codec: Codec,
    pub(super) level: i32,
    pub(super) direction: Direction,
    pub(super) subchunks: usize,
    pub(super) subchunk_bytes: usize,
}

impl Work {
    /// Returns the work for one shard of `grid`, or `None` if there is no figure for the codecs of `chain`.
    pub(super) fn of_shard(
        grid: &SubchunkGrid,
        chain: &KnownChain,
        direction: Direction,
    ) -> Option<Self> {
        Self::new(chain, direction, grid.num_subchunks(), grid)
    }

    /// Returns the work for one shard epoch of a stream: all shards of it are encoded together.
    pub(super) fn of_stream(grid: &StreamGrid, chain: &KnownChain) -> Option<Self> {
        let subchunks = grid.subchunks_per_epoch();
        let subchunks = subchunks.saturating_mul(grid.epochs_per_shard());
        Self::new(chain, Direction::Encode, subchunks, grid.shard())
    }

    fn new(
        chain: &KnownChain,
        direction: Direction,
        subchunks: usize,
        grid: &SubchunkGrid,
    ) -> Option<Self> {
        let (codec, level) = codec(chain, direction)?;
        Some(Self {
            codec,
            level,
            direction,
            subchunks,
            subchunk_bytes: grid.subchunk_bytes(),
        })
    }
}

/// Returns the codec of `chain` that takes the time, and its level; `None` if there is no figure for it.
fn codec(chain: &KnownChain, direction: Direction) -> Option<(Codec, i32)> {
    let mut compressors = chain.stages.iter().filter(|stage| !stage.is_fixed_size());
    let Some(compressor) = compressors.next() else {
        let has_checksum = !chain.stages.is_empty();
        return Some((
            if has_checksum {
                Codec::Crc32c
            } else {
                Codec::Copy
            },
            0,
        ));
    };
    if compressors.next().is_some() {
        return None;
    }
    match compressor {
        Stage::Zstd { level, .. } => Some((Codec::Zstd, *level)),
        Stage::Gzip { level } => Some((Codec::Gzip, i32::try_from(*level).ok()?)),
        Stage::Blosc(blosc) => match blosc.cname {
            Cname::Lz4 => Some((Codec::BloscLz4, blosc.level.into())),
            // The streams are those of lz4, so that only encoding differs.
            Cname::Lz4Hc if direction == Direction::Decode => {
                Some((Codec::BloscLz4, blosc.level.into()))
            }
            Cname::Zstd => Some((Codec::BloscZstd, blosc.level.into())),
            _ => None,
        },
        Stage::Crc32c => None,
    }
}

/// A device, as far as the time of a job depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceWork {
    pub(super) multiprocessors: usize,
    /// The number of chunks of the job that nvCOMP has in flight at once.
    pub(super) chunks: usize,
}

/// Estimates the time of `work` on the host, which has `processors` processors, and on `device`.
///
/// If everything else is equal, more subchunks never make the host the better place: both times grow in
/// proportion to the bytes, except for a device's start, and except for chunks in flight, of which more are
/// faster.
pub(super) fn estimates(
    work: &Work,
    processors: NonZeroUsize,
    device: Option<DeviceWork>,
) -> Estimates {
    let device = device.and_then(|device| device_seconds(work, processors, device));
    Estimates {
        host: duration(host_seconds(work, processors)),
        device: device.map(duration),
    }
}

fn host_seconds(work: &Work, processors: NonZeroUsize) -> f64 {
    let rate = rates::host(work.codec, work.level, work.direction);
    bytes(work) / (rate * float(processors.get()))
}

/// Adds up the steps of a device: the copies of the host into page-locked memory and out of it, both trips
/// over the bus, and the compressor. In a long job the steps overlap, so the sum is an upper bound. The encoded
/// bytes count like the decoded bytes, as of data that cannot be compressed.
///
/// Without a compressor the copies of the host alone take nearly the time of the host engine, which copies
/// each byte once. So such a job never goes to a device.
fn device_seconds(work: &Work, processors: NonZeroUsize, device: DeviceWork) -> Option<f64> {
    if device.multiprocessors == 0 {
        return None;
    }
    let bytes = bytes(work);
    let compressor = match work.codec {
        Codec::Copy | Codec::Crc32c => 0.0,
        codec => {
            let rate = rates::device(codec)?;
            let share = (float(device.multiprocessors) / rates::MULTIPROCESSORS).min(1.0);
            let in_flight = float(device.chunks.max(1)) * rate.chunk;
            bytes / in_flight.min(rate.most * share)
        }
    };
    let copies = (bytes / rates::STAGE + bytes / rates::FETCH) / float(processors.get());
    Some(rates::START + copies + 2.0 * bytes / rates::BUS + compressor)
}

fn bytes(work: &Work) -> f64 {
    float(work.subchunks.max(1)) * float(work.subchunk_bytes.max(1))
}

#[allow(clippy::cast_precision_loss, reason = "an estimate")]
fn float(number: usize) -> f64 {
    number as f64
}

fn duration(seconds: f64) -> Duration {
    let duration = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    duration.max(Duration::from_nanos(1))
}

#[cfg(test)]
mod tests;

//! Turns the output of a batched compressor into frames that every reader accepts. The kernels are in
//! `frames.cu`.
//!
//! A stream has failed if its status is not zero or its size is impossible. Its subchunk gets no frame, and its
//! outcome tells the host to compress the subchunk. So sizes and statuses may have any values.

mod blosc;
mod gzip;
mod zstd;

pub(crate) use blosc::{BloscFormat, StreamFormat, blosc_bound, frame_blosc};
pub(crate) use gzip::{GZIP_OVERHEAD, frame_gzip};
pub(crate) use zstd::{ZSTD_OVERHEAD, frame_zstd};

use super::spans::{Launch, Most, Slots};
use crate::cuda::driver::{Access, Arg, DeviceSpan, DriverError};

/// The number of threads per block, the same as in the kernels.
const BLOCK: u32 = 256;
/// The number of warps per block.
const WARPS: usize = BLOCK as usize / 32;

/// The sizes by which launches divide their work.
pub(crate) struct FrameTuning {
    /// The number of bytes of a stream that a warp copies at a time, the same as in the kernels.
    piece: usize,
    most: Most,
}

const TUNING: FrameTuning = FrameTuning {
    piece: 8192,
    most: Most::PerMultiprocessor(32),
};

/// The output of a batched compressor: a stream for each chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Streams {
    /// The slots of the streams, one for each stream.
    pub(crate) slots: Slots,
    /// The largest size of a stream in bytes, at most the stride. A larger stream has failed.
    pub(crate) most: usize,
    /// The sizes of the streams in bytes, a `u64` each.
    pub(crate) sizes: DeviceSpan,
    /// The statuses of the streams, an `i32` each: not zero if the compressor failed.
    pub(crate) statuses: DeviceSpan,
}

/// The outcome of a subchunk. The flag of each outcome differs from all others in two bits, and from cleared
/// memory, so that a flipped bit makes no other outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameOutcome {
    /// The subchunk has a frame.
    Framed,
    /// The subchunk has no frame, because a stream failed or a slot has no room.
    Failed,
    /// The subchunk is not stored.
    Empty,
}

impl FrameOutcome {
    /// Returns the outcome with the flag `flag`, as the kernels write it; `None` if there is no such outcome.
    pub(crate) fn of_flag(flag: u32) -> Option<Self> {
        match flag {
            1 => Some(Self::Framed),
            2 => Some(Self::Failed),
            4 => Some(Self::Empty),
            _ => None,
        }
    }
}

/// The frames that the streams become, one for each subchunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompressedFrames {
    /// The slots of the frames, one for each frame.
    pub(crate) slots: Slots,
    /// The sizes of the frames in bytes, a `u64` each; 0 if there is no frame.
    pub(crate) sizes: DeviceSpan,
    /// A `u32` for each subchunk: 1 if the subchunk has a frame, else 0. Later kernels use these as flags of
    /// stored subchunks, so that a missing frame gets no checksum.
    pub(crate) framed: DeviceSpan,
    /// A `u32` for each subchunk: the flag of its [`FrameOutcome`].
    pub(crate) outcomes: DeviceSpan,
}

/// The checked arguments that all kernels for frames have in common.
struct Args {
    streams: DeviceSpan,
    stream_sizes: DeviceSpan,
    statuses: DeviceSpan,
    stored: Arg<'static>,
    frames: DeviceSpan,
    sizes: DeviceSpan,
    framed: DeviceSpan,
    outcomes: DeviceSpan,
}

impl Args {
    /// Checks the places and sizes of the kernels' device buffers, for subchunks of `blocks` compressed streams
    /// each.
    fn new(
        launch: &Launch<'_>,
        streams: Streams,
        blocks: usize,
        stored: Option<DeviceSpan>,
        frames: CompressedFrames,
    ) -> Result<Self, DriverError> {
        let (chunks, count) = (streams.slots.count, frames.slots.count);
        launch.require(count.checked_mul(blocks) == Some(chunks), || {
            format!("{chunks} streams are not those of {count} frames with {blocks} each")
        })?;
        let (most, stride) = (streams.most, streams.slots.stride);
        launch.require((1..=stride).contains(&most), || {
            format!("slots of {stride} bytes are not those of streams of up to {most}")
        })?;
        let all = Self {
            streams: launch.slots("streams", streams.slots)?,
            stream_sizes: launch.elements("sizes of streams", streams.sizes, chunks, 8, 8)?,
            statuses: launch.elements("statuses", streams.statuses, chunks, 4, 4)?,
            stored: match stored {
                Some(stored) => {
                    let stored = launch.elements("flags", stored, count, 4, 4)?;
                    Arg::Span(stored, Access::Read)
                }
                None => Arg::Null,
            },
            frames: launch.slots("frames", frames.slots)?,
            sizes: launch.elements("sizes", frames.sizes, count, 8, 8)?,
            framed: launch.elements("flags of frames", frames.framed, count, 4, 4)?,
            outcomes: launch.elements("outcomes", frames.outcomes, count, 4, 4)?,
        };
        all.apart(launch, "streams", all.streams)?;
        Ok(all)
    }

    /// Returns an error if the span `other` overlaps the frames.
    fn apart(&self, launch: &Launch<'_>, what: &str, other: DeviceSpan) -> Result<(), DriverError> {
        let apart = self.frames.memory != other.memory
            || self.frames.offset + self.frames.len <= other.offset
            || other.offset + other.len <= self.frames.offset;
        launch.require(apart, || format!("the frames overlap the {what}"))
    }
}

/// Returns the number of warps that have work, if each of `count` streams has up to `bytes` bytes.
fn pieces(count: usize, bytes: usize) -> usize {
    count.saturating_mul(bytes.div_ceil(TUNING.piece).max(1))
}

#[cfg(test)]
pub(crate) mod tests;

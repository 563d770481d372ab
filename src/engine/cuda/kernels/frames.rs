//! What a batched compressor wrote, to frames that every reader accepts: `frames.cu`.
//!
//! A stream that failed, by its status or by a size that cannot be, makes its subchunk fail: that one
//! has no frame, and a flag that says so, for the host to compress it. So sizes and statuses may be
//! anything.

mod blosc;
mod gzip;
mod zstd;

pub(crate) use blosc::{BloscFormat, StreamFormat, blosc_bound, frame_blosc};
pub(crate) use gzip::{GZIP_OVERHEAD, frame_gzip};
pub(crate) use zstd::{ZSTD_OVERHEAD, frame_zstd};

use super::spans::{Launch, Most, Slots};
use crate::engine::cuda::driver::{Access, Arg, DeviceSpan, DriverError};

/// Threads per block, as in the kernels.
const BLOCK: u32 = 256;
/// Warps per block.
const WARPS: usize = BLOCK as usize / 32;

/// How the launches are cut.
pub(crate) struct Tuning {
    /// Bytes of a stream that a warp copies at a time, as in the kernels.
    piece: usize,
    most: Most,
}

const TUNING: Tuning = Tuning {
    piece: 8192,
    most: Most::PerMultiprocessor(32),
};

/// What a batched compressor wrote: a stream for each chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Streams {
    /// A slot for each stream.
    pub(crate) slots: Slots,
    /// Bytes of a stream at most: one that has more has failed. At most the stride.
    pub(crate) most: usize,
    /// Their sizes in bytes, a `u64` each.
    pub(crate) sizes: DeviceSpan,
    /// An `i32` each: not zero if the compressor failed.
    pub(crate) statuses: DeviceSpan,
}

/// What the streams become: a frame for each subchunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frames {
    /// A slot for each frame.
    pub(crate) slots: Slots,
    /// Their sizes in bytes, a `u64` each; 0 if there is no frame.
    pub(crate) sizes: DeviceSpan,
    /// A `u32` each: 1 if there is a frame, else 0. What comes behind takes these for flags of what is
    /// stored: a checksum of no frame is none.
    pub(crate) framed: DeviceSpan,
    /// A `u32` each: 1 if there is no frame because a stream failed or a slot has no room, else 0.
    pub(crate) failed: DeviceSpan,
}

/// The arguments that all of the kernels take, checked.
struct Args {
    streams: DeviceSpan,
    stream_sizes: DeviceSpan,
    statuses: DeviceSpan,
    stored: Arg<'static>,
    frames: DeviceSpan,
    sizes: DeviceSpan,
    framed: DeviceSpan,
    failed: DeviceSpan,
}

impl Args {
    /// The spans of subchunks with `blocks` streams each.
    fn new(
        launch: &Launch<'_>,
        streams: Streams,
        blocks: usize,
        stored: Option<DeviceSpan>,
        frames: Frames,
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
            failed: launch.elements("results", frames.failed, count, 4, 4)?,
        };
        all.apart(launch, "streams", all.streams)?;
        Ok(all)
    }

    /// An error if `other` overlaps the frames.
    fn apart(&self, launch: &Launch<'_>, what: &str, other: DeviceSpan) -> Result<(), DriverError> {
        let apart = self.frames.memory != other.memory
            || self.frames.offset + self.frames.len <= other.offset
            || other.offset + other.len <= self.frames.offset;
        launch.require(apart, || format!("the frames overlap the {what}"))
    }
}

/// How many warps a launch has work for, if each of `count` streams has up to `bytes` bytes.
fn pieces(count: usize, bytes: usize) -> usize {
    count.saturating_mul(bytes.div_ceil(TUNING.piece).max(1))
}

#[cfg(test)]
pub(crate) mod tests;

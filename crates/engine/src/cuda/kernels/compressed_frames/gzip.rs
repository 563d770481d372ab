//! Makes gzip members of raw deflate streams.

use super::{Args, BLOCK, CompressedFrames, Streams, TUNING, WARPS, pieces};
use crate::cuda::driver::{Access, Arg, DeviceSpan, Driver, DriverError, StreamId};
use crate::cuda::kernels::spans::Launch;

/// The number of bytes by which a gzip member is longer than its deflate stream.
pub(crate) const GZIP_OVERHEAD: usize = 18;

/// Enqueues a kernel that makes a gzip member of each stream. A stream is a raw deflate stream of
/// `bytes` bytes of content. The content's CRC-32 (a `u32` each) is in `checksums`. There is one
/// stream for each frame. A subchunk whose flag in `stored` (a `u32` each) is zero gets no frame,
/// and its stream is ignored.
///
/// The contents of the streams are not checked.
///
/// # Errors
/// A span is too short or misaligned, slots overlap or do not match, or the driver fails.
///
/// # Safety
/// The caller keeps the rules that the module `driver` lists.
pub(crate) unsafe fn frame_gzip(
    driver: &dyn Driver,
    stream: StreamId,
    streams: Streams,
    (bytes, checksums): (usize, DeviceSpan),
    stored: Option<DeviceSpan>,
    frames: CompressedFrames,
) -> Result<(), DriverError> {
    let launch = Launch {
        driver,
        stream,
        kernel: "frame_gzip",
    };
    let spans = Args::new(&launch, streams, 1, stored, frames)?;
    let count = frames.slots.count;
    let checksums = launch.elements("checksums", checksums, count, 4, 4)?;
    if count == 0 {
        return Ok(());
    }
    let args = [
        Arg::Span(spans.streams, Access::Read),
        Arg::U64(streams.slots.stride as u64),
        Arg::U64(streams.most as u64),
        Arg::Span(spans.stream_sizes, Access::Read),
        Arg::Span(spans.statuses, Access::Read),
        spans.stored,
        Arg::U64(bytes as u64),
        Arg::Span(checksums, Access::Read),
        Arg::U64(count as u64),
        Arg::Span(spans.frames, Access::Write),
        Arg::U64(frames.slots.stride as u64),
        Arg::Span(spans.sizes, Access::Write),
        Arg::Span(spans.framed, Access::Write),
        Arg::Span(spans.outcomes, Access::Write),
    ];
    let grid = launch.grid(pieces(count, streams.most), WARPS, TUNING.most);
    // SAFETY: the kernel reads no stream that is longer than its slot, and writes no member that
    // is. All other spans have an element for each stream or member.
    unsafe { launch.run(grid, BLOCK, &args) }
}

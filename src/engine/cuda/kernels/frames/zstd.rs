//! Zstandard frames that have the content size.

use super::{Args, BLOCK, Frames, Streams, TUNING, WARPS, pieces};
use crate::engine::cuda::driver::{Access, Arg, DeviceSpan, Driver, DriverError, StreamId};
use crate::engine::cuda::kernels::spans::Launch;

/// How many bytes longer than its stream a frame may be: the content size of 8 bytes.
pub(crate) const ZSTD_OVERHEAD: usize = 8;

/// Copy each of the streams, which are Zstandard frames of `bytes` bytes of content, with a header
/// that has the content size. There is a stream for each frame. Those of subchunks whose flag in
/// `stored`, a `u32` each, is zero are ignored, and have no frame.
///
/// A stream that is not exactly one frame, that needs a dictionary or has another content size, counts
/// as failed. What is within its blocks is not looked at.
///
/// # Errors
/// A span that is too short or misaligned, slots that overlap or do not match, no content, and
/// whatever the driver says.
///
/// # Safety
/// The rules of the driver.
pub(crate) unsafe fn frame_zstd(
    driver: &dyn Driver,
    stream: StreamId,
    streams: Streams,
    bytes: usize,
    stored: Option<DeviceSpan>,
    frames: Frames,
) -> Result<(), DriverError> {
    let launch = Launch {
        driver,
        stream,
        kernel: "frame_zstd",
    };
    launch.require(bytes > 0, || "a frame without content".to_owned())?;
    let spans = Args::new(&launch, streams, 1, stored, frames)?;
    let count = frames.slots.count;
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
        Arg::U64(count as u64),
        Arg::Span(spans.frames, Access::Write),
        Arg::U64(frames.slots.stride as u64),
        Arg::Span(spans.sizes, Access::Write),
        Arg::Span(spans.framed, Access::Write),
        Arg::Span(spans.failed, Access::Write),
    ];
    let grid = launch.grid(pieces(count, streams.most), WARPS, TUNING.most);
    // SAFETY: the kernel takes no stream that is longer than its slot, and writes no frame that is.
    // There is an element for each of them in all the others.
    unsafe { launch.run(grid, BLOCK, &args) }
}

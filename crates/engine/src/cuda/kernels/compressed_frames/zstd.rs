//! Rewrites Zstandard frames so that their headers contain the content size.

use super::{Args, BLOCK, CompressedFrames, Streams, TUNING, WARPS, pieces};
use crate::cuda::driver::{Access, Arg, DeviceSpan, Driver, DriverError, StreamId};
use crate::cuda::kernels::spans::Launch;

/// The most bytes by which a frame is longer than the compressor's stream: a content size of 8 bytes.
pub(crate) const ZSTD_OVERHEAD: usize = 8;

/// Enqueues a kernel that copies each stream, with a header that contains the content size. A stream is a
/// Zstandard frame of `bytes` bytes of content. There is one stream for each frame. A subchunk whose flag in
/// `stored` (a `u32` each) is zero gets no frame, and its stream is ignored.
///
/// A stream counts as failed if it is not exactly one frame, needs a dictionary, or has another
/// content size. The contents of its blocks are not checked.
///
/// # Errors
/// A span is too short or misaligned, slots overlap or do not match, there is no content, or the
/// driver fails.
///
/// # Safety
/// The caller keeps the rules that the module `driver` lists.
pub(crate) unsafe fn frame_zstd(
    driver: &dyn Driver,
    stream: StreamId,
    streams: Streams,
    bytes: usize,
    stored: Option<DeviceSpan>,
    frames: CompressedFrames,
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
        Arg::Span(spans.outcomes, Access::Write),
    ];
    let grid = launch.grid(pieces(count, streams.most), WARPS, TUNING.most);
    // SAFETY: the kernel reads no stream that is longer than its slot, and writes no frame that is.
    // All other spans have an element for each stream or frame.
    unsafe { launch.run(grid, BLOCK, &args) }
}

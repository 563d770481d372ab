//! Shard bytes to subchunk slots: `split.cu`.

use super::spans::{Launch, Slots};
use crate::engine::cuda::driver::{Access, Arg, DeviceSpan, Driver, DriverError, StreamId};

/// Threads per block, as in the kernel.
const BLOCK: u32 = 256;

/// How the launch is cut.
struct Tuning {
    /// Bytes of a slot that a warp writes at a time, as in the kernel.
    piece: usize,
    /// Blocks per multiprocessor.
    waves: u32,
}

const TUNING: Tuning = Tuning {
    piece: 4096,
    waves: 32,
};

/// Copy `sizes[i]` bytes from `offsets[i]` of `shards` on to the begin of slot `i`. Both are `u64`s,
/// one for each slot. A size of zero means that there is nothing to copy, and what has no room in
/// `shards` or in a slot is not copied, either; the rest of the slot is left alone.
///
/// # Errors
/// A span that is too short or misaligned (`shards` begins at a multiple of 16), and whatever the
/// driver says.
///
/// # Safety
/// The rules of the driver.
pub(crate) unsafe fn split(
    driver: &dyn Driver,
    stream: StreamId,
    shards: DeviceSpan,
    offsets: DeviceSpan,
    sizes: DeviceSpan,
    slots: Slots,
) -> Result<(), DriverError> {
    let launch = Launch {
        driver,
        stream,
        kernel: "split",
    };
    let shards = launch.elements("shards", shards, shards.len, 1, 16)?;
    let offsets = launch.elements("offsets", offsets, slots.count, 8, 8)?;
    let sizes = launch.elements("sizes", sizes, slots.count, 8, 8)?;
    let span = launch.slots("slots", slots)?;
    if span.len == 0 {
        return Ok(());
    }
    let args = [
        Arg::Span(shards, Access::Read),
        Arg::U64(shards.len as u64),
        Arg::Span(offsets, Access::Read),
        Arg::Span(sizes, Access::Read),
        Arg::Span(span, Access::Write),
        Arg::U64(slots.stride as u64),
        Arg::U64(slots.count as u64),
    ];
    let pieces = slots
        .count
        .saturating_mul(slots.stride.div_ceil(TUNING.piece));
    let grid = launch.grid(pieces, BLOCK as usize / 32, TUNING.waves);
    // SAFETY: the kernel checks each extent against the lengths of the shards and of a slot.
    unsafe { launch.run(grid, BLOCK, &args) }
}

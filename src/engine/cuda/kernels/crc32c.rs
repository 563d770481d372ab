//! CRC-32C of every subchunk: `crc32c.cu`.

use super::spans::{Launch, Lengths, Slots};
use crate::engine::cuda::driver::{Access, Arg, DeviceSpan, Driver, DriverError, StreamId};

/// Threads per block, as in the kernel.
const BLOCK: u32 = 256;
/// Warps per block.
const WARPS: usize = BLOCK as usize / 32;
/// The bytes of a checksum.
pub(crate) const CHECKSUM: usize = 4;

/// How the launch is cut.
struct Tuning {
    /// Blocks per multiprocessor; each fills 16 KiB of tables first.
    waves: u32,
    /// Warps per multiprocessor below which several share a subchunk.
    warps: usize,
    /// Bytes per warp below which no further warp helps.
    bytes: usize,
}

const TUNING: Tuning = Tuning {
    waves: 8,
    warps: 32,
    bytes: 4096,
};

/// Append its CRC-32C, little-endian, to what each slot holds, and add 4 to each of `lengths`.
/// Slots whose flag in `present`, a `u32` each, is zero are left alone, and so are their lengths.
///
/// # Errors
/// A span that is too short or misaligned, no room behind [`Lengths::All`], and whatever the driver
/// says.
///
/// # Safety
/// The rules of the driver. Each of [`Lengths::Each`] is at most the stride less 4.
pub(crate) unsafe fn append(
    driver: &dyn Driver,
    stream: StreamId,
    slots: Slots,
    lengths: Lengths,
    present: Option<DeviceSpan>,
) -> Result<(), DriverError> {
    let launch = Launch {
        driver,
        stream,
        kernel: "crc32c_append",
    };
    // SAFETY: what the caller promises.
    unsafe { run(launch, slots, lengths, present, None) }
}

/// Compare the CRC-32C of what each slot holds, without its last 4 bytes of checksum, with these:
/// `lengths` counts the bytes before the checksum. `bad`, a `u32` each, becomes 1 where they differ
/// and else 0, also for slots whose flag in `present` is zero.
///
/// # Errors
/// As for [`append`].
///
/// # Safety
/// As for [`append`].
pub(crate) unsafe fn verify(
    driver: &dyn Driver,
    stream: StreamId,
    slots: Slots,
    lengths: Lengths,
    present: Option<DeviceSpan>,
    bad: DeviceSpan,
) -> Result<(), DriverError> {
    let launch = Launch {
        driver,
        stream,
        kernel: "crc32c_verify",
    };
    // SAFETY: what the caller promises.
    unsafe { run(launch, slots, lengths, present, Some(bad)) }
}

/// # Safety
/// As for [`append`].
unsafe fn run(
    launch: Launch<'_>,
    slots: Slots,
    lengths: Lengths,
    present: Option<DeviceSpan>,
    bad: Option<DeviceSpan>,
) -> Result<(), DriverError> {
    let span = launch.slots("slots", slots)?;
    let (access, lengths_access) = match bad {
        Some(_) => (Access::Read, Access::Read),
        None => (Access::Update, Access::Update),
    };
    let (sizes, length) = match lengths {
        Lengths::Each(sizes) => {
            let sizes = launch.elements("lengths", sizes, slots.count, 8, 8)?;
            (Arg::Span(sizes, lengths_access), 0)
        }
        Lengths::All(length) => {
            let room = slots.stride.checked_sub(CHECKSUM);
            launch.require(room.is_some_and(|room| length <= room), || {
                format!(
                    "a slot of {} bytes has no room for {length} and a checksum",
                    slots.stride
                )
            })?;
            (Arg::Null, length)
        }
    };
    let present = match present {
        Some(present) => {
            let present = launch.elements("flags", present, slots.count, 4, 4)?;
            Arg::Span(present, Access::Read)
        }
        None => Arg::Null,
    };
    let bad = match bad {
        Some(bad) => {
            let bad = launch.elements("results", bad, slots.count, 4, 4)?;
            Some(Arg::Span(bad, Access::Write))
        }
        None => None,
    };
    if slots.count == 0 {
        return Ok(());
    }
    let team = team(&launch, slots);
    let mut args = vec![
        Arg::Span(span, access),
        Arg::U64(slots.stride as u64),
        Arg::U64(slots.count as u64),
        sizes,
        Arg::U64(length as u64),
        present,
        Arg::U32(team),
    ];
    args.extend(bad);
    let grid = launch.grid(slots.count, WARPS / team as usize, TUNING.waves);
    // SAFETY: every slot with its checksum lies within the span: the stride has room for all lengths,
    // or the caller promises it. There is an element for each slot in all the others.
    unsafe { launch.run(grid, BLOCK, &args) }
}

/// How many warps share a subchunk: a power of two, at most [`WARPS`].
fn team(launch: &Launch<'_>, slots: Slots) -> u32 {
    let wanted = launch.driver.device().multiprocessors as usize * TUNING.warps;
    let mut team = 1;
    while team < WARPS
        && slots.count.saturating_mul(team) < wanted
        && slots.stride / (2 * team) >= TUNING.bytes
    {
        team *= 2;
    }
    u32::try_from(team).unwrap_or(1)
}

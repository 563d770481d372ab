//! Packs subchunks into dense shards, in three passes. The kernels are in `aggregate.cu`.

use super::spans::{Launch, Lengths, Most, Slots};
use crate::cuda::driver::{Access, Arg, DeviceSpan, Driver, DriverError, StreamId};
use crate::layout::ShardPermutation;

/// The number of threads per block, the same as in the kernels.
const BLOCK: u32 = 256;

/// The sizes by which launches divide their work.
pub struct AggregateTuning {
    /// The number of sizes that a block scans at a time, the same as in the kernels.
    scan_tile: usize,
    /// The most sizes that one block scans alone, in one launch instead of three.
    scan_alone: usize,
    /// The fewest bytes that a block gathers, the same number as in the kernel.
    gather_bytes: usize,
    gather_most: Most,
    permute_most: Most,
}

const TUNING: AggregateTuning = AggregateTuning {
    scan_tile: 2048,
    scan_alone: 16 * 1024,
    gather_bytes: 32 * 1024,
    gather_most: Most::PerMultiprocessor(32),
    permute_most: Most::PerMultiprocessor(16),
};

/// A digit of a [`Lifting`].
#[repr(C)]
#[derive(Clone, Copy)]
struct LiftingDigit {
    extent: u64,
    per_shard: u64,
    shard_stride: u64,
    within_stride: u64,
}

/// The permutation of subchunks, in the format of the kernel's argument.
#[repr(C)]
struct Lifting {
    digit_count: u64,
    digits: [LiftingDigit; ShardPermutation::MAX_DIGITS],
}

const _: () = assert!(size_of::<Lifting>() == 8 + 31 * 32 && align_of::<Lifting>() == 8);

impl Lifting {
    fn new(permutation: &ShardPermutation) -> Self {
        let none = LiftingDigit {
            extent: 1,
            per_shard: 1,
            shard_stride: 0,
            within_stride: 0,
        };
        let mut digits = [none; ShardPermutation::MAX_DIGITS];
        for (to, from) in digits.iter_mut().zip(permutation.digits()) {
            *to = LiftingDigit {
                extent: from.extent,
                per_shard: from.per_shard,
                shard_stride: from.shard_stride,
                within_stride: from.within_stride,
            };
        }
        Self {
            digit_count: permutation.digits().len() as u64,
            digits,
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the structure is `u64`s throughout, without padding.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

/// Pass 1: for each subchunk `i`, writes its size to `permuted[P(i)]` (`u64`s) and `i` to `source[P(i)]`
/// (`u32`s), where P is the permutation. A subchunk whose flag in `present` (a `u32` each) is zero is not
/// stored: its size is zero. Padded slots without a subchunk have size zero, too.
///
/// # Errors
/// A span is too short or misaligned, or the driver fails.
///
/// # Safety
/// The caller keeps the rules that the module `driver` lists.
pub(crate) unsafe fn permute_sizes(
    driver: &dyn Driver,
    stream: StreamId,
    permutation: &ShardPermutation,
    sizes: Lengths,
    present: Option<DeviceSpan>,
    permuted: DeviceSpan,
    source: DeviceSpan,
) -> Result<(), DriverError> {
    let launch = Launch {
        driver,
        stream,
        kernel: "permute_sizes",
    };
    let most = TUNING.permute_most;
    // SAFETY: this function has the same requirements, which its caller keeps.
    unsafe { permute_sizes_as(launch, permutation, sizes, present, permuted, source, most) }
}

/// [`permute_sizes`], in a launch of at most `most` thread blocks.
///
/// # Safety
/// As for [`permute_sizes`].
unsafe fn permute_sizes_as(
    launch: Launch<'_>,
    permutation: &ShardPermutation,
    sizes: Lengths,
    present: Option<DeviceSpan>,
    permuted: DeviceSpan,
    source: DeviceSpan,
    most: Most,
) -> Result<(), DriverError> {
    let (subchunks, padded_slots) = (permutation.subchunks(), permutation.padded_slots());
    let permuted = launch.elements("permuted sizes", permuted, padded_slots, 8, 8)?;
    let source = launch.elements("sources", source, padded_slots, 4, 4)?;
    let (sizes, size) = match sizes {
        Lengths::Each(sizes) => {
            let sizes = launch.elements("sizes", sizes, subchunks, 8, 8)?;
            (Arg::Span(sizes, Access::Read), 0)
        }
        Lengths::All(size) => (Arg::Null, size),
    };
    let present = match present {
        Some(present) => {
            let present = launch.elements("flags", present, subchunks, 4, 4)?;
            Arg::Span(present, Access::Read)
        }
        None => Arg::Null,
    };
    if subchunks == 0 {
        return Ok(());
    }
    if padded_slots > subchunks {
        // SAFETY: this function has the same requirements, which its caller keeps.
        unsafe {
            launch.driver.fill(launch.stream, permuted, 0)?;
            launch.driver.fill(launch.stream, source, 0)?;
        }
    }
    let lifting = Lifting::new(permutation);
    let args = [
        Arg::Struct(lifting.bytes()),
        Arg::U64(subchunks as u64),
        sizes,
        Arg::U64(size as u64),
        present,
        Arg::Span(permuted, Access::Write),
        Arg::Span(source, Access::Write),
    ];
    let grid = launch.grid(subchunks, BLOCK as usize, most);
    // SAFETY: the spans that are read have an element for each subchunk. The places of the
    // permutation are below the number of padded slots. The spans that are written have an element
    // for each padded slot.
    unsafe { launch.run(grid, BLOCK, &args) }
}

/// Returns the number of bytes of scratch memory that [`scan`] needs for `count` sizes.
pub(crate) fn scan_scratch_bytes(count: usize) -> usize {
    (count.div_ceil(TUNING.scan_tile) + 1) * 8
}

/// Pass 2: `offsets[k]` becomes the sum of the first `k` of `count` `sizes`, for `k` from 0 to `count`. So
/// there is one more offset than there are sizes. Offsets and sizes are `u64`s. `offsets` may begin at the
/// first byte of `sizes`.
///
/// # Errors
/// A span is too short or misaligned, `offsets` overlap `sizes` in any other way, or the driver
/// fails.
///
/// # Safety
/// The caller keeps the rules that the module `driver` lists.
pub(crate) unsafe fn scan(
    driver: &dyn Driver,
    stream: StreamId,
    sizes: DeviceSpan,
    offsets: DeviceSpan,
    scratch: DeviceSpan,
    count: usize,
) -> Result<(), DriverError> {
    // SAFETY: this function has the same requirements, which its caller keeps.
    unsafe {
        scan_as(
            driver,
            stream,
            sizes,
            offsets,
            scratch,
            count,
            TUNING.scan_alone,
        )
    }
}

/// [`scan`], in a launch of one thread block if there are at most `alone` sizes.
///
/// # Safety
/// As for [`scan`].
unsafe fn scan_as(
    driver: &dyn Driver,
    stream: StreamId,
    sizes: DeviceSpan,
    offsets: DeviceSpan,
    scratch: DeviceSpan,
    count: usize,
    alone: usize,
) -> Result<(), DriverError> {
    let kernel = |kernel| Launch {
        driver,
        stream,
        kernel,
    };
    let (whole, sums, add) = (
        kernel("scan_whole"),
        kernel("scan_sums"),
        kernel("scan_add"),
    );
    let sizes = whole.elements("sizes", sizes, count, 8, 8)?;
    let offsets = whole.elements("offsets", offsets, count.saturating_add(1), 8, 8)?;
    let in_place = sizes.memory == offsets.memory && sizes.offset == offsets.offset;
    let apart = sizes.memory != offsets.memory
        || sizes.offset + sizes.len <= offsets.offset
        || offsets.offset + offsets.len <= sizes.offset;
    whole.require(in_place || apart, || {
        "the offsets overlap the sizes and do not begin with them".to_owned()
    })?;
    let tiles = count.div_ceil(TUNING.scan_tile);
    let scratch = whole.elements("scratch", scratch, tiles + 1, 8, 8)?;
    let (input, output) = if in_place {
        // Every thread reads its sizes before it writes their offsets to the same places.
        let all = DeviceSpan {
            len: count * 8,
            ..offsets
        };
        (
            Arg::Span(all, Access::Update),
            Arg::Span(offsets, Access::Write),
        )
    } else {
        (
            Arg::Span(sizes, Access::Read),
            Arg::Span(offsets, Access::Write),
        )
    };
    let number = Arg::U64(count as u64);
    if count <= alone {
        // SAFETY: the spans have `count` and `count + 1` elements.
        return unsafe { whole.run(1, BLOCK, &[input, number, output]) };
    }
    let blocks = u32::try_from(tiles).unwrap_or(u32::MAX);
    whole.require(blocks < 1 << 31, || format!("{count} sizes are too many"))?;
    let tile_sums = DeviceSpan {
        len: tiles * 8,
        ..scratch
    };
    // SAFETY: the spans have `count` and `count + 1` elements. The scratch has an element for each tile, and
    // one more.
    unsafe {
        let from = Arg::Span(sizes, Access::Read);
        sums.run(
            blocks,
            BLOCK,
            &[from, number, Arg::Span(tile_sums, Access::Write)],
        )?;
        let (from, to) = (
            Arg::Span(tile_sums, Access::Update),
            Arg::Span(scratch, Access::Write),
        );
        whole.run(1, BLOCK, &[from, Arg::U64(tiles as u64), to])?;
        add.run(
            blocks,
            BLOCK,
            &[input, number, Arg::Span(scratch, Access::Read), output],
        )
    }
}

/// Pass 3: copies run `j` from the beginning of slot `source[j]` to `dense`, from `offsets[j]` up
/// to `offsets[j + 1]`. There are `runs` sources (`u32`s) and `runs + 1` offsets (`u64`s). Nothing
/// is written behind the last offset.
///
/// # Errors
/// A span is too short or misaligned (`dense` begins at a multiple of 16), or the driver fails.
///
/// # Safety
/// The caller keeps the rules that the module `driver` lists. The offsets begin at zero and do not decrease,
/// no run is longer than a slot, and the source of each run that is not empty is a slot.
pub unsafe fn gather(
    driver: &dyn Driver,
    stream: StreamId,
    slots: Slots,
    source: DeviceSpan,
    offsets: DeviceSpan,
    runs: usize,
    dense: DeviceSpan,
) -> Result<(), DriverError> {
    let launch = Launch {
        driver,
        stream,
        kernel: "gather",
    };
    let most = TUNING.gather_most;
    // SAFETY: this function has the same requirements, which its caller keeps.
    unsafe { gather_as(launch, slots, source, offsets, runs, dense, most) }
}

/// [`gather`], in a launch of at most `most` thread blocks.
///
/// # Safety
/// As for [`gather`].
unsafe fn gather_as(
    launch: Launch<'_>,
    slots: Slots,
    source: DeviceSpan,
    offsets: DeviceSpan,
    runs: usize,
    dense: DeviceSpan,
    most: Most,
) -> Result<(), DriverError> {
    let span = launch.slots("slots", slots)?;
    let source = launch.elements("sources", source, runs, 4, 4)?;
    let offsets = launch.elements("offsets", offsets, runs.saturating_add(1), 8, 8)?;
    let dense = launch.elements("dense bytes", dense, dense.len, 1, 16)?;
    if runs == 0 || dense.len == 0 {
        return Ok(());
    }
    let args = [
        Arg::Span(span, Access::Read),
        Arg::U64(slots.stride as u64),
        Arg::Span(source, Access::Read),
        Arg::Span(offsets, Access::Read),
        Arg::U64(runs as u64),
        Arg::Span(dense, Access::Write),
        Arg::U64(dense.len as u64),
    ];
    let grid = launch.grid(dense.len, TUNING.gather_bytes, most);
    // SAFETY: the kernel writes at most up to the end of `dense`. It reads only bytes that the
    // caller promises to be in slots.
    unsafe { launch.run(grid, BLOCK, &args) }
}

#[cfg(test)]
pub(crate) mod tests;

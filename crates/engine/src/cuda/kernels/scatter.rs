//! Copies slabs into subchunk slots and back: `scatter.cu`, `unscatter.cu`.

use std::fmt;

use super::fast_division::FastDivision;
use super::spans::Launch;
use crate::cuda::driver::{Access, Arg, DeviceSpan, Driver, DriverError, StreamId};
use crate::layout::{Lift, LiftDigit};

/// Threads per block, as in the kernels.
const BLOCK: u32 = 256;
/// Units that a block of the plain kernels moves, as in the kernels.
const UNITS_PER_BLOCK: usize = 1024;
/// The widest unit, in bytes.
const WIDEST: usize = 16;
/// The granularity of transfers from and to global memory, in bytes.
const SECTOR: usize = 32;

/// The largest numbers of digits. A digit has at least 2 values. The product of the digits is below
/// 2³¹, or at most the number of units of a tile.
const MAX_DIGITS: usize = 32;
const MAX_TILE_DIGITS: usize = 12;
const MAX_GRID_DIGITS: usize = 32;

/// The names of the kernels: scatter and unscatter, by the exponent of the unit.
const PLAIN: [[&str; 2]; 5] = [
    ["scatter_1", "unscatter_1"],
    ["scatter_2", "unscatter_2"],
    ["scatter_4", "unscatter_4"],
    ["scatter_8", "unscatter_8"],
    ["scatter_16", "unscatter_16"],
];
const TILED: [[&str; 2]; 5] = [
    ["scatter_tile_1", "unscatter_tile_1"],
    ["scatter_tile_2", "unscatter_tile_2"],
    ["scatter_tile_4", "unscatter_tile_4"],
    ["scatter_tile_8", "unscatter_tile_8"],
    ["scatter_tile_16", "unscatter_tile_16"],
];

/// The limits of tiles, by the exponent of the unit: the desired number of units that are
/// consecutive in a slot, the most units of a tile, and the units for which the tile's shared
/// memory has room, as in the kernels.
const TILES: [(usize, usize, usize); 5] = [
    (64, 4096, 5120),
    (64, 4096, 5120),
    (32, 1024, 1152),
    (32, 1024, 1152),
    (16, 256, 320),
];

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UnitDigit {
    extent: u32,
    magic: u32,
    shift: u32,
    within: u32,
    slot: u32,
}

#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
struct LiftParameters {
    slot_stride: u64,
    units: u32,
    within: u32,
    digit_count: u32,
    swap: u32,
    period: u32,
    period_magic: u32,
    period_shift: u32,
    zero: u32,
    digits: [UnitDigit; MAX_DIGITS],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TileDigit {
    extent: u32,
    magic: u32,
    shift: u32,
    step: u32,
    slot: u32,
    shared: u32,
    split: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct GridDigit {
    extent: u32,
    magic: u32,
    shift: u32,
    slab: u32,
    within: u32,
    slot: u32,
    split: u32,
    last: u32,
}

#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
struct TileParameters {
    slot_stride: u64,
    units: u32,
    within: u32,
    swap: u32,
    slab_digit_count: u32,
    slot_digit_count: u32,
    grid_digit_count: u32,
    slab_leap_digit: u32,
    slab_leap: u32,
    slot_leap_digit: u32,
    slot_leap: u32,
    slab_digits: [TileDigit; MAX_TILE_DIGITS],
    slot_digits: [TileDigit; MAX_TILE_DIGITS],
    grid_digits: [GridDigit; MAX_GRID_DIGITS],
}

const _: () = assert!(
    size_of::<LiftParameters>() == 40 + MAX_DIGITS * 20 && align_of::<LiftParameters>() == 8
);
const _: () = assert!(
    size_of::<TileParameters>() == 48 + 2 * MAX_TILE_DIGITS * 28 + MAX_GRID_DIGITS * 32
        && align_of::<TileParameters>() == 8
);

/// The kernels to launch, with their parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kernels {
    /// For runs of several units, or of single units that tiles cannot transpose.
    Plain(Box<LiftParameters>),
    /// For runs of one unit whose neighbours in the slot lie elsewhere in the slab.
    Tiled(Box<TileParameters>),
}

/// A plan to scatter one slab into its slots, and to gather the slab from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scatter {
    kernels: Kernels,
    /// In bytes.
    unit: usize,
    blocks: u32,
    /// Bytes of the fill pattern that are read.
    pattern: usize,
    slab_len: usize,
    first_slot: usize,
    last_slot: usize,
    slot_stride: usize,
    /// The end of the last byte that is touched in a slot.
    end: usize,
}

/// Why a slab cannot be scattered on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterError {
    /// The fill value does not have the size of an element.
    FillValue { got: usize, expected: usize },
    /// A unit does not hold whole groups of bytes to swap.
    Swap { swap: usize, unit: usize },
    /// The slab, or a subchunk, has more units than the kernels can count.
    TooLarge { bytes: usize, unit: usize },
}

impl fmt::Display for ScatterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FillValue { got, expected } => write!(
                f,
                "a fill value of {got} bytes is not an element of {expected} bytes"
            ),
            Self::Swap { swap, unit } => write!(
                f,
                "groups of {swap} bytes cannot be swapped in units of {unit} bytes"
            ),
            Self::TooLarge { bytes, unit } => write!(
                f,
                "{bytes} bytes are too many for a launch in units of {unit} bytes"
            ),
        }
    }
}

impl std::error::Error for ScatterError {}

impl Scatter {
    /// Plans the scatter of the slab of `lift`. Every group of `swap` bytes is reversed between
    /// slab and slots; 1 reverses nothing. `fill_value` has the byte order of the slab.
    pub fn new(lift: &Lift, swap: usize, fill_value: &[u8]) -> Result<Self, ScatterError> {
        let element_size = lift.element_size();
        if fill_value.len() != element_size {
            return Err(ScatterError::FillValue {
                got: fill_value.len(),
                expected: element_size,
            });
        }
        let unit = widest_unit(lift);
        if !swap.is_power_of_two() || swap > unit {
            return Err(ScatterError::Swap { swap, unit });
        }
        let slots = lift.last_slot() - lift.first_slot();
        let too_large = |bytes| ScatterError::TooLarge { bytes, unit };
        // Fast division needs numbers of units below 2³¹ on the slab's side. The kernels use the
        // largest `u32` for no slot.
        if lift.slab_len() / unit >= 1 << 31 {
            return Err(too_large(lift.slab_len()));
        }
        if u32::try_from(lift.end() / unit).is_err() || slots >= u32::MAX as usize {
            return Err(too_large(lift.end().max(slots)));
        }
        let (kernels, blocks) = if let Some((parameters, blocks)) = tiled(lift, unit, swap) {
            (Kernels::Tiled(Box::new(parameters)), blocks)
        } else {
            let parameters = plain(lift, unit, swap)?;
            let blocks = (lift.slab_len() / unit).div_ceil(UNITS_PER_BLOCK);
            (
                Kernels::Plain(Box::new(parameters)),
                number(blocks).ok_or(too_large(lift.slab_len()))?,
            )
        };
        Ok(Self {
            kernels,
            unit,
            blocks,
            pattern: period(element_size, unit) * unit,
            slab_len: lift.slab_len(),
            first_slot: lift.first_slot(),
            last_slot: lift.last_slot(),
            slot_stride: lift.slot_stride(),
            end: lift.end(),
        })
    }

    /// Returns the fill value as kernels read it: repeated to a multiple of the widest unit. The
    /// result serves all slabs with this fill value, and is at most 16 times as long as the value.
    pub fn fill_pattern(fill_value: &[u8]) -> Vec<u8> {
        fill_value.repeat(WIDEST / gcd(fill_value.len(), WIDEST))
    }

    /// Enqueues a scatter of `slab` into `slots`, which begins with slot 0 of the batch. `flags`,
    /// if any, begins with the `u32` of slot 0. `fill` begins with the
    /// [pattern](Self::fill_pattern). If a slot gets an element that is not the fill value, the
    /// slot's flag is set to 1. Other flags are unchanged.
    ///
    /// Reads `slab` and `fill`. Updates the flags of the slots that the slab touches, and writes
    /// those slots. Bytes of the slots for which the slab has no element are unchanged.
    ///
    /// # Errors
    /// A span is too short or misaligned, or the driver fails.
    ///
    /// # Safety
    /// The caller keeps the rules of the driver.
    pub unsafe fn enqueue_scatter(
        &self,
        driver: &dyn Driver,
        stream: StreamId,
        slab: DeviceSpan,
        slots: DeviceSpan,
        flags: Option<DeviceSpan>,
        fill: DeviceSpan,
    ) -> Result<(), DriverError> {
        let access = [Access::Read, Access::Write, Access::Update];
        // SAFETY: the caller promises the same.
        unsafe { self.launch(0, driver, stream, (slab, slots, flags, fill), access) }
    }

    /// Enqueues the inverse: gathers `slab` from `slots`. If `present` is given, subchunks whose
    /// flag is 0 yield the fill value.
    ///
    /// Reads the slots that the slab touches, their flags and `fill`, and writes `slab`.
    ///
    /// # Errors
    /// As [`enqueue_scatter`](Self::enqueue_scatter).
    ///
    /// # Safety
    /// The caller keeps the rules of the driver.
    pub unsafe fn enqueue_unscatter(
        &self,
        driver: &dyn Driver,
        stream: StreamId,
        slots: DeviceSpan,
        slab: DeviceSpan,
        present: Option<DeviceSpan>,
        fill: DeviceSpan,
    ) -> Result<(), DriverError> {
        let access = [Access::Write, Access::Read, Access::Read];
        // SAFETY: the caller promises the same.
        unsafe { self.launch(1, driver, stream, (slab, slots, present, fill), access) }
    }

    /// # Safety
    /// The caller keeps the rules of the driver.
    unsafe fn launch(
        &self,
        direction: usize,
        driver: &dyn Driver,
        stream: StreamId,
        (slab, slots, flags, fill): (DeviceSpan, DeviceSpan, Option<DeviceSpan>, DeviceSpan),
        [slab_access, slots_access, flags_access]: [Access; 3],
    ) -> Result<(), DriverError> {
        let exponent = self.unit.trailing_zeros() as usize;
        let (names, parameters) = match &self.kernels {
            Kernels::Plain(parameters) => (&PLAIN, bytes_of_lift(parameters)),
            Kernels::Tiled(parameters) => (&TILED, bytes_of_tile(parameters)),
        };
        let launch = Launch {
            driver,
            stream,
            kernel: names[exponent][direction],
        };
        let slab = launch.elements("the slab", slab, self.slab_len, 1, self.unit)?;
        // `Lift` guarantees that these products do not overflow: they are within the batch.
        let begin = self.first_slot * self.slot_stride;
        let end = self.last_slot * self.slot_stride + self.end;
        let slots = launch.elements("the slots", slots, end, 1, self.unit)?;
        let (flags, fill) = match flags {
            Some(flags) => {
                let flags = launch.elements("the flags", flags, self.last_slot + 1, 4, 4)?;
                let fill = launch.elements("the fill value", fill, self.pattern, 1, self.unit)?;
                (
                    Arg::Span(after(flags, self.first_slot * 4), flags_access),
                    Arg::Span(fill, Access::Read),
                )
            }
            None => (Arg::Null, Arg::Null),
        };
        let args = [
            Arg::Struct(parameters),
            Arg::Span(slab, slab_access),
            Arg::Span(after(slots, begin), slots_access),
            flags,
            fill,
        ];
        // SAFETY: the caller keeps the rules of the driver. The digits count each unit of the slab
        // once, and `slab` has as many units. The digits' steps add up to at most the last slot,
        // and to the end of the slab in that slot. `slots` reaches up to there. There is a flag for
        // each slot up to the last one, and `fill` holds a period of units. All addresses are
        // aligned to the unit: the steps and the spans' offsets are multiples of the unit.
        unsafe { launch.run(self.blocks, BLOCK, &args) }
    }
}

fn after(span: DeviceSpan, bytes: usize) -> DeviceSpan {
    DeviceSpan {
        memory: span.memory,
        offset: span.offset + bytes,
        len: span.len - bytes,
    }
}

fn bytes_of_lift(parameters: &LiftParameters) -> &[u8] {
    let len = size_of::<LiftParameters>();
    // SAFETY: the structure is one `u64` and then `u32`s throughout: 40 bytes, and 20 for each
    // digit. As asserted above, these are all of its bytes, so that there is no padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(parameters).cast(), len) }
}

fn bytes_of_tile(parameters: &TileParameters) -> &[u8] {
    let len = size_of::<TileParameters>();
    // SAFETY: as above: 48 bytes, 28 for each digit of a tile and 32 for each of the grid.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(parameters).cast(), len) }
}

/// Returns the widest unit that divides the run, all strides and the offset.
fn widest_unit(lift: &Lift) -> usize {
    let steps = lift.digits().iter().map(|digit| digit.stride);
    let all = steps.fold(lift.run() | lift.slot_stride() | lift.offset(), |a, b| {
        a | b
    });
    1 << all.trailing_zeros().min(WIDEST.trailing_zeros())
}

fn gcd(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Returns the number of units after which a pattern of elements repeats.
fn period(element_size: usize, unit: usize) -> usize {
    element_size / gcd(element_size, unit)
}

/// Converts a number for the kernels. Numbers of units of the slab are below 2³¹.
fn number(n: usize) -> Option<u32> {
    u32::try_from(n).ok()
}

/// Returns magic and shift for a digit. The kernels do not divide by 1.
fn division(extent: usize) -> (u32, u32) {
    FastDivision::new(extent).map_or((0, 0), |by| (by.magic, by.shift))
}

/// Returns the parameters of the plain kernels.
fn plain(lift: &Lift, unit: usize, swap: usize) -> Result<LiftParameters, ScatterError> {
    let too_large = |bytes| ScatterError::TooLarge { bytes, unit };
    let of_run = LiftDigit {
        extent: lift.run() / unit,
        stride: unit,
        slot_step: 0,
    };
    let mut digits = [UnitDigit::default(); MAX_DIGITS];
    let mut count = 0;
    // The kernels need at least one digit, even for a single unit.
    let of_run = (of_run.extent > 1 || lift.digits().is_empty()).then_some(&of_run);
    for digit in lift.digits().iter().chain(of_run) {
        let to = digits.get_mut(count).ok_or(too_large(lift.slab_len()))?;
        let (magic, shift) = division(digit.extent);
        *to = UnitDigit {
            extent: number(digit.extent).ok_or(too_large(digit.extent))?,
            magic,
            shift,
            within: number(digit.stride / unit).ok_or(too_large(digit.stride))?,
            slot: number(digit.slot_step).ok_or(too_large(digit.slot_step))?,
        };
        count += 1;
    }
    let period = period(lift.element_size(), unit);
    let (period_magic, period_shift) = division(period);
    let number = |n: usize| number(n).ok_or(too_large(n));
    Ok(LiftParameters {
        slot_stride: lift.slot_stride() as u64,
        units: number(lift.slab_len() / unit)?,
        within: number(lift.offset() / unit)?,
        digit_count: number(count)?,
        swap: number(swap)?,
        period: number(period)?,
        period_magic,
        period_shift,
        zero: 0,
        digits,
    })
}

/// A digit of the slab, cut into tiles.
#[derive(Clone, Copy, Debug)]
struct Cut {
    extent: usize,
    /// Units of the slab from one value to the next.
    slab: usize,
    /// Units within a slot from one value to the next.
    within: usize,
    slot: usize,
    /// Values in a tile.
    tile: usize,
    /// Units of the tile's shared memory from one value to the next.
    shared: usize,
}

/// Returns the parameters of the tiled kernels and the number of tiles, or `None` if these kernels
/// do not apply. They need a run of one unit, and the next unit in the slot must be the slab's,
/// too.
fn tiled(lift: &Lift, unit: usize, swap: usize) -> Option<(TileParameters, u32)> {
    let turns = |digit: &LiftDigit| digit.slot_step == 0 && digit.stride == unit;
    if lift.run() != unit || !lift.digits().iter().any(turns) {
        return None;
    }
    let mut cuts: Vec<Cut> = Vec::with_capacity(lift.digits().len());
    let mut slab = 1;
    for digit in lift.digits().iter().rev() {
        cuts.push(Cut {
            extent: digit.extent,
            slab,
            within: digit.stride / unit,
            slot: digit.slot_step,
            tile: 1,
            shared: 0,
        });
        slab *= digit.extent;
    }
    cuts.reverse();
    let units = cut(&mut cuts, unit);
    tile_parameters(lift, &cuts, unit, units, swap)
}

/// Chooses the tile: first as long as is useful in the order of a slot, then as long as possible in
/// the order of the slab. Returns the tile's number of units.
///
/// At most one digit from each side is cut in the middle.
fn cut(cuts: &mut [Cut], unit: usize) -> usize {
    let (side, most, room) = TILES[unit.trailing_zeros() as usize];
    let mut by_slot: Vec<usize> = (0..cuts.len()).filter(|&d| cuts[d].slot == 0).collect();
    by_slot.sort_by_key(|&d| cuts[d].within);
    let mut total = 1;
    for d in by_slot {
        cuts[d].tile = part(cuts[d].extent, side / total, total * unit);
        total *= cuts[d].tile;
        if cuts[d].tile < cuts[d].extent {
            break;
        }
    }
    let mut row = 1;
    let mut first_of_row = cuts.len();
    while first_of_row > 0 {
        let cut = &mut cuts[first_of_row - 1];
        // `total` excludes this digit, so that a digit that is cut already can grow.
        total /= cut.tile;
        cut.tile = part(cut.extent, most / total, row * unit).max(cut.tile);
        total *= cut.tile;
        row *= cut.tile;
        first_of_row -= 1;
        if cut.tile < cut.extent {
            break;
        }
    }
    // Neighbouring units of a slot are an odd number of words apart in the tile's shared memory. So
    // their threads use different banks. Rows of the slab are also an odd number of words apart,
    // unless they are so short that a warp takes several.
    let word = unit.max(4);
    let odd = |units: usize| {
        (units..units + 2 * word)
            .find(|units| (units * unit).is_multiple_of(word) && units * unit / word % 2 == 1)
            .unwrap_or(units)
    };
    for pad in [true, false] {
        let mut next = 1;
        for (d, cut) in cuts.iter_mut().enumerate().rev() {
            if cut.tile > 1 {
                let row = d >= first_of_row && next * unit < 128;
                cut.shared = if pad && !row { odd(next) } else { next };
                next = cut.shared * cut.tile;
            }
        }
        if next <= room {
            break;
        }
    }
    total
}

/// Returns how many of `extent` consecutive values of `bytes` bytes to take: all of them, or at
/// most `most`, in whole sectors if possible.
fn part(extent: usize, most: usize, bytes: usize) -> usize {
    if extent <= most {
        return extent;
    }
    let sector = SECTOR / gcd(bytes, SECTOR);
    if most >= sector {
        most - most % sector
    } else {
        most.max(1)
    }
}

fn tile_parameters(
    lift: &Lift,
    cuts: &[Cut],
    unit: usize,
    units: usize,
    swap: usize,
) -> Option<(TileParameters, u32)> {
    let mut parameters = TileParameters {
        slot_stride: lift.slot_stride() as u64,
        units: number(units)?,
        within: number(lift.offset() / unit)?,
        swap: number(swap)?,
        slab_digit_count: 0,
        slot_digit_count: 0,
        grid_digit_count: 0,
        slab_leap_digit: 0,
        slab_leap: 0,
        slot_leap_digit: 0,
        slot_leap: 0,
        slab_digits: [TileDigit::default(); MAX_TILE_DIGITS],
        slot_digits: [TileDigit::default(); MAX_TILE_DIGITS],
        grid_digits: [GridDigit::default(); MAX_GRID_DIGITS],
    };
    let (mut in_tile, mut tiles, mut splits) = (Vec::new(), 1_usize, 0);
    for cut in cuts {
        let count = cut.extent.div_ceil(cut.tile);
        let last = cut.extent - (count - 1) * cut.tile;
        let mut split = 0;
        if last < cut.tile {
            splits += 1;
            split = splits;
        }
        if cut.tile > 1 {
            in_tile.push((cut, split));
        }
        if count > 1 {
            let (magic, shift) = division(count);
            *parameters
                .grid_digits
                .get_mut(parameters.grid_digit_count as usize)? = GridDigit {
                extent: number(count)?,
                magic,
                shift,
                slab: number(cut.slab * cut.tile)?,
                within: number(cut.within * cut.tile)?,
                slot: number(cut.slot * cut.tile)?,
                split,
                last: number(last)?,
            };
            parameters.grid_digit_count += 1;
            tiles *= count;
        }
    }
    if splits > 2 {
        return None;
    }
    if parameters.grid_digit_count == 0 {
        parameters.grid_digits[0].extent = 1;
        parameters.grid_digit_count = 1;
    }
    let digit = |cut: &Cut, split, step, slot| {
        let (magic, shift) = division(cut.tile);
        Some(TileDigit {
            extent: number(cut.tile)?,
            magic,
            shift,
            step: number(step)?,
            slot: number(slot)?,
            shared: number(cut.shared)?,
            split,
        })
    };
    for (to, (cut, split)) in parameters.slab_digits.iter_mut().zip(&in_tile) {
        *to = digit(cut, *split, cut.slab, 0)?;
    }
    in_tile.sort_by_key(|(cut, _)| std::cmp::Reverse((cut.slot, cut.within)));
    for (to, (cut, split)) in parameters.slot_digits.iter_mut().zip(&in_tile) {
        *to = digit(cut, *split, cut.within, cut.slot)?;
    }
    if in_tile.len() > MAX_TILE_DIGITS {
        return None;
    }
    parameters.slab_digit_count = number(in_tile.len())?;
    parameters.slot_digit_count = parameters.slab_digit_count;
    let digits = in_tile.len();
    if let Some((digit, by)) = leap(&parameters.slab_digits[..digits]) {
        (parameters.slab_leap_digit, parameters.slab_leap) = (number(digit)?, by);
    }
    if let Some((digit, by)) = leap(&parameters.slot_digits[..digits]) {
        (parameters.slot_leap_digit, parameters.slot_leap) = (number(digit)?, by);
    }
    // There are at most as many tiles as units.
    Some((parameters, number(tiles)?))
}

/// Returns the number of the only digit in which the units of a thread differ, if there is one, and
/// the difference from one unit to the next. The units of a thread are [`BLOCK`] apart in a turn.
fn leap(digits: &[TileDigit]) -> Option<(usize, u32)> {
    let units = u32::try_from(UNITS_PER_BLOCK).ok()?;
    let mut faster = 1; // values of the digits that are faster
    for (number, digit) in digits.iter().enumerate().rev() {
        if !BLOCK.is_multiple_of(faster) {
            return None;
        }
        // A turn begins at a multiple of its units. The slowest digit never overflows.
        let turn = units / faster;
        if number == 0 || digit.extent.is_multiple_of(turn) {
            return Some((number, BLOCK / faster));
        }
        faster *= digit.extent;
    }
    None
}

#[cfg(test)]
pub(crate) mod tests;

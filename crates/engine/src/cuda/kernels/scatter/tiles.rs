//! The parameters of the tiled kernels: how a slab is cut into tiles.

use super::super::units::{division, gcd, number};
use super::parameters::{
    MAX_GRID_DIGITS, MAX_TILE_DIGITS, TileDigit, TileNumberDigit, TileParameters,
};
use super::{BLOCK, UNITS_PER_BLOCK};
use crate::layout::{Lift, LiftDigit};

/// The granularity of transfers from and to global memory, in bytes.
pub(super) const SECTOR: usize = 32;

/// The limits of tiles, by the exponent of the unit's size: the desired number of units that are consecutive
/// in a slot, the most units of a tile, and the number of units for which the tile's shared memory has room,
/// the same as in the kernels.
const TILES: [(usize, usize, usize); 5] = [
    (64, 4096, 5120),
    (64, 4096, 5120),
    (32, 1024, 1152),
    (32, 1024, 1152),
    (16, 256, 320),
];

/// A digit of the units of a slab, whose values are cut into tiles.
#[derive(Clone, Copy, Debug)]
struct CutDigit {
    extent: usize,
    /// The number of units of the slab from one value of the digit to the next.
    slab: usize,
    /// The number of units within a slot from one value of the digit to the next.
    within: usize,
    slot: usize,
    /// The number of values of this coordinate (a digit of the mixed-radix number of a unit; a unit is the up to
    /// 16 bytes that the kernels copy at once) in a tile.
    tile: usize,
    /// The number of units of the tile's shared memory from one value of this coordinate to the next.
    shared: usize,
}

/// Returns the parameters of the tiled kernels and the number of tiles. `None` if these kernels cannot be
/// used: they need runs of one unit, and the next unit in the slot must be in the same slab.
pub(super) fn tiled(lift: &Lift, unit: usize, swap: usize) -> Option<(TileParameters, u32)> {
    let turns = |digit: &LiftDigit| digit.slot_step == 0 && digit.stride == unit;
    if lift.run() != unit || !lift.digits().iter().any(turns) {
        return None;
    }
    let mut cuts: Vec<CutDigit> = Vec::with_capacity(lift.digits().len());
    let mut slab = 1;
    for digit in lift.digits().iter().rev() {
        cuts.push(CutDigit {
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

/// Chooses the size of tiles: first as long as is useful in the order of a slot, then as long as possible in
/// the order of the slab. Returns the number of units of a tile.
///
/// At most one digit from each order is cut in the middle.
fn cut(cuts: &mut [CutDigit], unit: usize) -> usize {
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
        // `total` excludes this digit, so that the tile can grow along a digit that is cut already.
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

/// Returns the number of values, of `bytes` bytes each, to put into a tile: all of `extent` consecutive
/// values, or at most `most`, in whole sectors if possible.
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
    cuts: &[CutDigit],
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
        grid_digits: [TileNumberDigit::default(); MAX_GRID_DIGITS],
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
                .get_mut(parameters.grid_digit_count as usize)? = TileNumberDigit {
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
    let digit = |cut: &CutDigit, split, step, slot| {
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

/// If the units of a thread differ in only one digit, returns the index of this digit, and the difference of
/// its values from one unit to the next. In each turn, the units of a thread are [`BLOCK`] apart.
fn leap(digits: &[TileDigit]) -> Option<(usize, u32)> {
    let units = u32::try_from(UNITS_PER_BLOCK).ok()?;
    let mut faster = 1; // values of the digits that are faster
    for (number, digit) in digits.iter().enumerate().rev() {
        if !BLOCK.is_multiple_of(faster) {
            return None;
        }
        // A turn is one round of a block, and begins at a multiple of `units`. The slowest digit never
        // overflows.
        let turn = units / faster;
        if number == 0 || digit.extent.is_multiple_of(turn) {
            return Some((number, BLOCK / faster));
        }
        faster *= digit.extent;
    }
    None
}

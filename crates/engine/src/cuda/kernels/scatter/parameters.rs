//! The parameters of the kernels `scatter` and `unscatter`, in the layout that the kernels read.

/// The most digits of a slab in the plain kernels, of a tile, and of the number of a tile. A digit has at
/// least 2 values. The product of the extents is below 2³¹, or at most the number of units of a tile.
pub(super) const MAX_DIGITS: usize = 32;

pub(super) const MAX_TILE_DIGITS: usize = 12;

pub(super) const MAX_GRID_DIGITS: usize = 32;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnitDigit {
    pub(super) extent: u32,
    pub(super) magic: u32,
    pub(super) shift: u32,
    pub(super) within: u32,
    pub(super) slot: u32,
}

#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LiftParameters {
    pub(super) slot_stride: u64,
    pub(super) units: u32,
    pub(super) within: u32,
    pub(super) digit_count: u32,
    pub(super) swap: u32,
    pub(super) period: u32,
    pub(super) period_magic: u32,
    pub(super) period_shift: u32,
    pub(super) zero: u32,
    pub(super) digits: [UnitDigit; MAX_DIGITS],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TileDigit {
    pub(super) extent: u32,
    pub(super) magic: u32,
    pub(super) shift: u32,
    pub(super) step: u32,
    pub(super) slot: u32,
    pub(super) shared: u32,
    pub(super) split: u32,
}

/// A digit of the number of a tile, in mixed radix. `slab` and `within` are steps from one tile to the next
/// in units, and `slot` is the same step in slots.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TileNumberDigit {
    pub(super) extent: u32,
    pub(super) magic: u32,
    pub(super) shift: u32,
    pub(super) slab: u32,
    pub(super) within: u32,
    pub(super) slot: u32,
    pub(super) split: u32,
    pub(super) last: u32,
}

#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TileParameters {
    pub(super) slot_stride: u64,
    pub(super) units: u32,
    pub(super) within: u32,
    pub(super) swap: u32,
    pub(super) slab_digit_count: u32,
    pub(super) slot_digit_count: u32,
    pub(super) grid_digit_count: u32,
    pub(super) slab_leap_digit: u32,
    pub(super) slab_leap: u32,
    pub(super) slot_leap_digit: u32,
    pub(super) slot_leap: u32,
    pub(super) slab_digits: [TileDigit; MAX_TILE_DIGITS],
    pub(super) slot_digits: [TileDigit; MAX_TILE_DIGITS],
    pub(super) grid_digits: [TileNumberDigit; MAX_GRID_DIGITS],
}

const _: () = assert!(
    size_of::<LiftParameters>() == 40 + MAX_DIGITS * 20 && align_of::<LiftParameters>() == 8
);

const _: () = assert!(
    size_of::<TileParameters>() == 48 + 2 * MAX_TILE_DIGITS * 28 + MAX_GRID_DIGITS * 32
        && align_of::<TileParameters>() == 8
);

pub(super) fn bytes_of_lift(parameters: &LiftParameters) -> &[u8] {
    let len = size_of::<LiftParameters>();
    // SAFETY: the structure is one `u64` and then `u32`s throughout: 40 bytes, and 20 for each
    // digit. As asserted above, these are all of its bytes, so that there is no padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(parameters).cast(), len) }
}

pub(super) fn bytes_of_tile(parameters: &TileParameters) -> &[u8] {
    let len = size_of::<TileParameters>();
    // SAFETY: as in `bytes_of_lift`: 48 bytes, 28 for each digit of a tile and 32 for each digit of a tile's
    // number.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(parameters).cast(), len) }
}

//! The units that kernels copy, and conversions of numbers for kernels.

use super::fast_division::FastDivision;
use crate::layout::Lift;

/// The size of the widest unit, in bytes.
pub(super) const WIDEST: usize = 16;

/// Returns the size of the widest unit that divides the run, all strides and the offset.
pub(super) fn widest_unit(lift: &Lift) -> usize {
    let steps = lift.digits().iter().map(|digit| digit.stride);
    let all = steps.fold(lift.run() | lift.slot_stride() | lift.offset(), |a, b| {
        a | b
    });
    1 << all.trailing_zeros().min(WIDEST.trailing_zeros())
}

pub(super) fn gcd(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Returns the number of units after which a repeated element begins at a unit again.
pub(super) fn period(element_size: usize, unit: usize) -> usize {
    element_size / gcd(element_size, unit)
}

/// Converts `n` for the kernels; `None` if it does not fit. Numbers of units of the slab are below 2³¹.
pub(super) fn number(n: usize) -> Option<u32> {
    u32::try_from(n).ok()
}

/// Returns the magic number and the shift that divide by `extent`; zeros for 1, by which the kernels do not
/// divide.
pub(super) fn division(extent: usize) -> (u32, u32) {
    FastDivision::new(extent).map_or((0, 0), |by| (by.magic, by.shift))
}

//! The unit of a copy, and numbers of units.

use crate::cuda::kernels::fast_division::FastDivision;
use crate::layout::Lift;

/// The widest unit, in bytes.
pub(super) const WIDEST: usize = 16;

/// Returns the widest unit that divides the run, all strides and the offset.
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

/// Returns the number of units after which a pattern of elements repeats.
pub(super) fn period(element_size: usize, unit: usize) -> usize {
    element_size / gcd(element_size, unit)
}

/// Converts a number for the kernels. Numbers of units of the slab are below 2³¹.
pub(super) fn number(n: usize) -> Option<u32> {
    u32::try_from(n).ok()
}

/// Returns magic and shift for a digit. The kernels do not divide by 1.
pub(super) fn division(extent: usize) -> (u32, u32) {
    FastDivision::new(extent).map_or((0, 0), |by| (by.magic, by.shift))
}

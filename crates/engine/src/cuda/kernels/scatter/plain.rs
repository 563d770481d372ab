//! Computes the parameters of the plain kernels.

use super::super::units::{division, number, period};
use super::ScatterError;
use super::parameters::{LiftParameters, MAX_DIGITS, UnitDigit};
use crate::layout::{Lift, LiftDigit};

/// Returns the parameters of the plain kernels for the slab of `lift`.
pub(super) fn plain(lift: &Lift, unit: usize, swap: usize) -> Result<LiftParameters, ScatterError> {
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

//! Division by a number that is known before a launch, as a multiplication and a shift.

/// The constants that divide any number below 2³¹ by a divisor. The quotient is the upper half of
/// the product with `magic`, shifted right by `shift`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FastDivision {
    pub(super) magic: u32,
    pub(super) shift: u32,
}

impl FastDivision {
    /// Returns the constants for a divisor of 2 to 2³¹ − 1, and `None` for all other divisors.
    ///
    /// With s the number of bits of `divisor − 1`, so that 2ˢ⁻¹ < divisor ≤ 2ˢ, `magic` is
    /// 2³¹⁺ˢ / divisor, rounded up by less than 1. For n below 2³¹ that adds less than
    /// n / 2³¹⁺ˢ ≤ 2⁻ˢ ≤ 1 / divisor to the quotient, too little to reach the next integer.
    pub(super) fn new(divisor: usize) -> Option<Self> {
        let divisor = u32::try_from(divisor).ok()?;
        if !(2..1 << 31).contains(&divisor) {
            return None;
        }
        let bits = u32::BITS - (divisor - 1).leading_zeros();
        let magic = (1_u64 << (31 + bits)).div_ceil(u64::from(divisor));
        Some(Self {
            magic: u32::try_from(magic).ok()?,
            shift: bits - 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Divides as the kernels do.
    fn divide(n: u32, by: FastDivision) -> u32 {
        let product = u64::from(n) * u64::from(by.magic);
        u32::try_from(product >> 32).expect("32 bits") >> by.shift
    }

    const LAST: u32 = (1 << 31) - 1;

    fn check(divisor: u32) {
        let by = FastDivision::new(divisor as usize).expect("a divisor");
        let most = LAST / divisor;
        for quotient in [0, 1, 2, most / 2, most - 1, most] {
            let first = quotient * divisor;
            for n in [first.saturating_sub(1), first, first.saturating_add(1)] {
                if n <= LAST {
                    assert_eq!(divide(n, by), n / divisor, "{n} / {divisor}");
                }
            }
        }
        assert_eq!(divide(LAST, by), LAST / divisor, "2^31 - 1 / {divisor}");
    }

    #[test]
    fn every_small_divisor_and_those_around_powers_of_two() {
        (2..20_000).for_each(check);
        for bits in 2..31 {
            for divisor in (1 << bits) - 2..=(1_u32 << bits) + 2 {
                check(divisor.max(2));
            }
        }
        for divisor in [LAST - 2, LAST - 1, LAST] {
            check(divisor);
        }
    }

    #[test]
    fn what_is_no_divisor() {
        for divisor in [0, 1, 1 << 31, 1 << 32, usize::MAX] {
            assert_eq!(FastDivision::new(divisor), None);
        }
    }

    proptest! {
        #![proptest_config(zarrs_cuda_testing::effort::config(5000))]

        #[test]
        fn any_number_by_any_divisor(n in 0..=LAST, divisor in 2..=LAST, shift in 0_u32..30) {
            let divisor = (divisor >> shift).max(2);
            check(divisor);
            let by = FastDivision::new(divisor as usize).expect("a divisor");
            prop_assert_eq!(divide(n, by), n / divisor);
        }
    }
}

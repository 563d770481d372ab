//! Pseudorandom numbers.

use std::ops::Range;

/// Pseudorandom numbers, the same in every run (`SplitMix64`).
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`, which must not be zero.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A nonempty range within `0..n`. `n` must not be zero.
    pub fn range(&mut self, n: u64) -> Range<u64> {
        let start = self.below(n);
        start..start + 1 + self.below(n - start)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// The numbers below `n` in random order.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for last in (1..n).rev() {
            let other = usize::try_from(self.below(last as u64 + 1)).unwrap();
            order.swap(last, other);
        }
        order
    }
}

//! Reduces many windows side by side, so that the compiler uses vector instructions.

#![allow(
    clippy::inline_always,
    reason = "compiled again, with the instructions that the caller was found to have"
)]

use std::ops::Range;

use half::{bf16, f16};

/// The number of windows that are reduced together.
const LANES: usize = 64;

/// The most elements of a window for which no memory is allocated: those of a window of three axes.
const FEW: usize = 8;

/// The elements at one place in each of `LANES` windows.
pub(super) type Lane<T> = [T; LANES];

/// The rows of the input that become one row of the output.
pub(super) struct Rows<'r> {
    /// The rows in C order, all of the same length.
    pub(super) rows: &'r [&'r [u8]],
    /// The number of elements of each row in a window.
    pub(super) factor: usize,
}

impl Rows<'_> {
    /// Reduces each window to an element of `reduced`.
    #[inline]
    pub(super) fn fold<T: Element, F: Fold<T>>(&self, reduced: &mut [u8]) {
        // For wider elements, AVX2 gains less than a second copy of the code costs in compile time.
        #[cfg(target_arch = "x86_64")]
        if const { T::SIZE <= 4 } && std::arch::is_x86_feature_detected!("avx2") {
            #[target_feature(enable = "avx2")]
            fn with_avx2<T: Element, F: Fold<T>>(rows: &Rows<'_>, reduced: &mut [u8]) {
                rows.fold_here::<T, F>(reduced);
            }
            // SAFETY: the processor has AVX2.
            return unsafe { with_avx2::<T, F>(self, reduced) };
        }
        self.fold_here::<T, F>(reduced);
    }

    #[inline(always)]
    fn fold_here<T: Element, F: Fold<T>>(&self, reduced: &mut [u8]) {
        let zero = [T::default(); LANES];
        let count = self.rows.len() * self.factor;
        // Most windows have few elements. For them, an allocation may take longer than the row.
        let (mut few, mut many) = ([zero; FEW], Vec::new());
        let lanes = if let Some(lanes) = few.get_mut(..count) {
            lanes
        } else {
            many.resize(count, zero);
            &mut many[..]
        };
        let row = self.rows.first().map_or(0, |row| row.len() / T::SIZE);
        let whole = row / self.factor;
        let mut blocks = reduced.chunks_mut(LANES * T::SIZE).enumerate();
        for (number, block) in &mut blocks {
            let first = number * LANES;
            let here = (block.len() / T::SIZE).min(whole.saturating_sub(first));
            let windows = first * self.factor * T::SIZE..(first + here) * self.factor * T::SIZE;
            let mut made = zero;
            let of_pairs = here == LANES && self.factor == 2;
            if !(of_pairs && F::fold_pairs(self.rows, &windows, &mut made)) {
                for (row, lanes) in self.rows.iter().zip(lanes.chunks_mut(self.factor)) {
                    load(&row[windows.clone()], lanes);
                }
                if here > 0 {
                    F::fold(lanes, &mut made);
                }
            }
            if here < block.len() / T::SIZE {
                // If the extent is odd, the last window has only one element of each row.
                let last = (row - 1) * T::SIZE;
                for (row, lane) in self.rows.iter().zip(&mut *lanes) {
                    lane[here] = T::read(&row[last..last + T::SIZE]);
                }
                let mut at_end = zero;
                F::fold(&mut lanes[..self.rows.len()], &mut at_end);
                made[here] = at_end[here];
            }
            if block.len() == LANES * T::SIZE {
                // The compiler knows the number of iterations here, `LANES`.
                for (number, made) in made.into_iter().enumerate() {
                    made.write(&mut block[number * T::SIZE..(number + 1) * T::SIZE]);
                }
                continue;
            }
            for (place, made) in block.chunks_exact_mut(T::SIZE).zip(made) {
                made.write(place);
            }
        }
    }
}

/// Divides the elements of a row among `lanes`: one lane, or two lanes in turns.
#[inline(always)]
fn load<T: Element>(row: &[u8], lanes: &mut [Lane<T>]) {
    match lanes {
        [one] => {
            for (element, place) in row.chunks_exact(T::SIZE).zip(one) {
                *place = T::read(element);
            }
        }
        [one, two] => {
            let places = one.iter_mut().zip(two);
            for (pair, (one, two)) in row.chunks_exact(2 * T::SIZE).zip(places) {
                let (first, second) = pair.split_at(T::SIZE);
                (*one, *two) = (T::read(first), T::read(second));
            }
        }
        _ => {}
    }
}

/// A reduction. It makes one element of each window, and may change `lanes`, whose number is a power of two.
pub(super) trait Fold<T: Element> {
    fn fold(lanes: &mut [Lane<T>], made: &mut Lane<T>);

    /// Reduces windows that have two elements of each row without dividing the rows among lanes. `windows` is
    /// the range of bytes of the windows in each row. Returns false if the reduction cannot do this.
    #[inline(always)]
    fn fold_pairs(_rows: &[&[u8]], _windows: &Range<usize>, _made: &mut Lane<T>) -> bool {
        false
    }
}

/// An element that is read from bytes and written to bytes.
pub(super) trait Element: Copy + Default {
    const SIZE: usize;

    /// Reads an element from `SIZE` bytes.
    fn read(bytes: &[u8]) -> Self;

    fn write(self, bytes: &mut [u8]);
}

/// An element that has an order and a mean.
pub(super) trait Number: Element + PartialEq {
    fn less(self, other: Self) -> Self;

    fn more(self, other: Self) -> Self;

    /// Makes the mean of each window, which has `2.pow(power)` elements.
    fn mean(lanes: &[Lane<Self>], power: u32, made: &mut Lane<Self>);

    /// Makes means without lanes: see [`Fold::fold_pairs`].
    #[inline(always)]
    fn mean_of_pairs(_rows: &[&[u8]], _windows: &Range<usize>, _made: &mut Lane<Self>) -> bool {
        false
    }

    /// Returns whether this element is a NaN.
    fn is_nan(self) -> bool {
        false
    }

    /// Returns the NaN that every reduction gives.
    fn nan() -> Self {
        Self::default()
    }
}

pub(super) struct Mean;
pub(super) struct Minimum;
pub(super) struct Maximum;
pub(super) struct Median;
pub(super) struct Mode;
pub(super) struct Decimate;

impl<T: Number> Fold<T> for Mean {
    #[inline(always)]
    fn fold(lanes: &mut [Lane<T>], made: &mut Lane<T>) {
        T::mean(lanes, lanes.len().ilog2(), made);
    }

    #[inline(always)]
    fn fold_pairs(rows: &[&[u8]], windows: &Range<usize>, made: &mut Lane<T>) -> bool {
        T::mean_of_pairs(rows, windows, made)
    }
}

impl<T: Number> Fold<T> for Minimum {
    #[inline(always)]
    fn fold(lanes: &mut [Lane<T>], made: &mut Lane<T>) {
        each(lanes, made, T::less);
    }
}

impl<T: Number> Fold<T> for Maximum {
    #[inline(always)]
    fn fold(lanes: &mut [Lane<T>], made: &mut Lane<T>) {
        each(lanes, made, T::more);
    }
}

#[inline(always)]
fn each<T: Number>(lanes: &[Lane<T>], made: &mut Lane<T>, of: impl Fn(T, T) -> T) {
    if let Some((first, rest)) = lanes.split_first() {
        *made = *first;
        for lane in rest {
            for (made, element) in made.iter_mut().zip(lane) {
                *made = of(*made, *element);
            }
        }
        // A window of one element gives the same NaN, too.
        for made in made {
            *made = if made.is_nan() { T::nan() } else { *made };
        }
    }
}

impl<T: Number> Fold<T> for Median {
    #[inline(always)]
    fn fold(lanes: &mut [Lane<T>], made: &mut Lane<T>) {
        let mut is_nan = [false; LANES];
        for lane in &*lanes {
            for (is_nan, element) in is_nan.iter_mut().zip(lane) {
                *is_nan |= element.is_nan();
            }
        }
        sort(lanes);
        let middle = lanes.len() / 2;
        let (middle, power) = if middle == 0 {
            (&lanes[..1], 0)
        } else {
            (&lanes[middle - 1..=middle], 1)
        };
        T::mean(middle, power, made);
        for (made, is_nan) in made.iter_mut().zip(is_nan) {
            *made = if is_nan { T::nan() } else { *made };
        }
    }
}

/// Sorts the elements of each window by Batcher's odd-even merge sort, whose comparisons do not depend on the
/// elements.
#[inline(always)]
fn sort<T: Number>(lanes: &mut [Lane<T>]) {
    let count = lanes.len();
    let mut merged = 1;
    while merged < count {
        let mut step = merged;
        while step > 0 {
            let mut start = step % merged;
            while start + step < count {
                for at in start..(start + step).min(count - step) {
                    if at / (2 * merged) == (at + step) / (2 * merged) {
                        exchange(lanes, at, at + step);
                    }
                }
                start += 2 * step;
            }
            step /= 2;
        }
        merged *= 2;
    }
}

/// Exchanges the elements of two lanes where the second element is smaller.
#[inline(always)]
fn exchange<T: Number>(lanes: &mut [Lane<T>], one: usize, two: usize) {
    let (before, behind) = lanes.split_at_mut(two);
    for (a, b) in before[one].iter_mut().zip(&mut behind[0]) {
        (*a, *b) = (a.less(*b), a.more(*b));
    }
}

impl<T: Element + PartialEq> Fold<T> for Mode {
    #[inline(always)]
    fn fold(lanes: &mut [Lane<T>], made: &mut Lane<T>) {
        let mut most = [0_u16; LANES];
        for lane in &*lanes {
            let mut count = [0_u16; LANES];
            for other in &*lanes {
                for ((count, a), b) in count.iter_mut().zip(lane).zip(other) {
                    *count += u16::from(a == b);
                }
            }
            for (((made, most), element), count) in
                made.iter_mut().zip(&mut most).zip(lane).zip(count)
            {
                if count > *most {
                    (*made, *most) = (*element, count);
                }
            }
        }
    }
}

impl<T: Element> Fold<T> for Decimate {
    #[inline(always)]
    fn fold(lanes: &mut [Lane<T>], made: &mut Lane<T>) {
        if let Some(first) = lanes.first() {
            *made = *first;
        }
    }
}

macro_rules! element {
    ($($type:ty),*) => {$(
        impl Element for $type {
            const SIZE: usize = size_of::<$type>();

            #[inline(always)]
            fn read(bytes: &[u8]) -> Self {
                let mut copy = [0; size_of::<$type>()];
                copy.copy_from_slice(bytes);
                Self::from_ne_bytes(copy)
            }

            #[inline(always)]
            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}

element!(
    u8, i8, u16, i16, u32, i32, u64, i64, u128, bf16, f16, f32, f64
);

/// Divides `sums` by `2.pow(power)`, where `power` is not 0, and rounds half to even.
macro_rules! divide {
    ($type:ty, $wide:ty, $sums:expr, $power:expr, $made:expr) => {
        let power = $power;
        let half: $wide = (1 << (power - 1)) - 1;
        for (made, sum) in $made.iter_mut().zip($sums) {
            // Exactly half is rounded up if the integer below is odd.
            let mean = (sum + half + ((sum >> power) & 1)) >> power;
            *made = mean as $type;
        }
    };
}

macro_rules! integer {
    ($($type:ty, $wide:ty $(, $pair:ty)?;)*) => {$(
        impl Number for $type {
            #[inline(always)]
            fn less(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn more(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            fn mean(lanes: &[Lane<Self>], power: u32, made: &mut Lane<Self>) {
                let mut sums: Lane<$wide> = [0; LANES];
                for lane in lanes {
                    for (sum, element) in sums.iter_mut().zip(lane) {
                        *sum += <$wide>::from(*element);
                    }
                }
                if power == 0 {
                    *made = lanes[0];
                    return;
                }
                divide!($type, $wide, sums, power, made);
            }
            $(

            #[inline(always)]
            fn mean_of_pairs(rows: &[&[u8]], windows: &Range<usize>, made: &mut Lane<Self>) -> bool {
                let mut sums: Lane<$wide> = [0; LANES];
                for row in rows {
                    let (pairs, _) = row[windows.clone()].as_chunks();
                    for (sum, pair) in sums.iter_mut().zip(pairs) {
                        // The order of the two elements in the integer does not matter for their sum.
                        let pair = <$pair>::from_ne_bytes(*pair);
                        let other = (pair >> <$type>::BITS) as $type;
                        *sum += <$wide>::from(pair as $type) + <$wide>::from(other);
                    }
                }
                divide!($type, $wide, sums, (2 * rows.len()).ilog2(), made);
                true
            }
            )?
        }
    )*};
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "a mean is between the elements"
)]
#[allow(clippy::cast_sign_loss, reason = "a mean is between the elements")]
mod integers {
    use super::{LANES, Lane, Number, Range};

    integer! {
        u8, u32, u16; i8, i32, i16; u16, u32, u32; i16, i32, i32; u32, u64, u64; i32, i64, i64;
        u64, u128; i64, i128;
    }
}

macro_rules! float {
    ($($type:ty, $bits:ty, $nan:expr, $to:expr, $from:expr;)*) => {$(
        impl Number for $type {
            #[inline(always)]
            fn less(self, other: Self) -> Self {
                if self == other {
                    // Equal numbers may only differ in the sign of zero.
                    Self::from_bits(self.to_bits() | other.to_bits())
                } else if self < other || self.is_nan() {
                    self
                } else {
                    other
                }
            }

            #[inline(always)]
            fn more(self, other: Self) -> Self {
                if self == other {
                    Self::from_bits(self.to_bits() & other.to_bits())
                } else if self > other || self.is_nan() {
                    self
                } else {
                    other
                }
            }

            #[inline(always)]
            fn mean(lanes: &[Lane<Self>], power: u32, made: &mut Lane<Self>) {
                let (to, from): (fn(Self) -> f64, fn(f64) -> Self) = ($to, $from);
                let mut sums: Lane<f64> = lanes[0].map(to);
                for lane in &lanes[1..] {
                    for (sum, element) in sums.iter_mut().zip(lane) {
                        *sum += to(*element);
                    }
                }
                let count = f64::from(1_u32 << power);
                for (made, sum) in made.iter_mut().zip(sums) {
                    let mean = from(sum / count);
                    *made = if mean.is_nan() { Self::nan() } else { mean };
                }
            }

            #[inline(always)]
            fn is_nan(self) -> bool {
                self != self
            }

            #[inline(always)]
            fn nan() -> Self {
                let bits: $bits = $nan;
                Self::from_bits(bits)
            }
        }
    )*};
}

#[allow(clippy::cast_possible_truncation, reason = "rounded once")]
#[allow(clippy::eq_op, reason = "NaN is not equal to itself")]
#[allow(clippy::float_cmp, reason = "exact, and of zeros")]
mod floats {
    use super::{Lane, Number, bf16, f16};

    /// Returns `wide` as `f32`, rounded to odd. Rounding that again, to 16 bits, gives the same result as
    /// rounding `wide` once. `from_f64` of the crate `half` does not.
    #[inline(always)]
    fn to_odd(wide: f64) -> f32 {
        let near = wide as f32;
        let back = f64::from(near);
        if back == wide || wide.is_nan() {
            return near;
        }
        let is_beyond = back.abs() > wide.abs();
        f32::from_bits((near.to_bits() - u32::from(is_beyond)) | 1)
    }

    float! {
        bf16, u16, 0x7FC0, |x| x.to_f64(), |x| bf16::from_f32(to_odd(x));
        f16, u16, 0x7E00, |x| x.to_f64(), |x| f16::from_f32(to_odd(x));
        f32, u32, 0x7FC0_0000, |x| f64::from(x), |x| x as f32;
        f64, u64, 0x7FF8_0000_0000_0000, |x| x, |x| x;
    }
}

/// A complex number. Its mean consists of the mean of the real parts and that of the imaginary parts.
#[derive(Clone, Copy, Default)]
pub(super) struct Complex<T>([T; 2]);

impl<T: Element> Element for Complex<T> {
    const SIZE: usize = 2 * T::SIZE;

    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        let (real, imaginary) = bytes.split_at(T::SIZE);
        Self([T::read(real), T::read(imaginary)])
    }

    #[inline(always)]
    fn write(self, bytes: &mut [u8]) {
        let (real, imaginary) = bytes.split_at_mut(T::SIZE);
        self.0[0].write(real);
        self.0[1].write(imaginary);
    }
}

impl<T: Number> Fold<Complex<T>> for Mean {
    #[inline(always)]
    fn fold(lanes: &mut [Lane<Complex<T>>], made: &mut Lane<Complex<T>>) {
        for part in 0..2 {
            let mut mean = [T::default(); LANES];
            let parts: Vec<Lane<T>> = lanes
                .iter()
                .map(|lane| lane.map(|element| element.0[part]))
                .collect();
            T::mean(&parts, lanes.len().ilog2(), &mut mean);
            for (made, mean) in made.iter_mut().zip(mean) {
                made.0[part] = mean;
            }
        }
    }
}

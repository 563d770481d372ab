//! The data types of numbers, named as in numpy, and arithmetic with numpy's precision.

use std::fmt;

use half::f16;
use zarrs::array::{DataType, data_type};

/// The byte order of an element, from the name of its data type in numpy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    Little,
    Big,
    /// No order: an element has one byte.
    None,
}

impl ByteOrder {
    /// Returns the byte order in the name of a data type such as `<f8`, whose elements have `size` bytes.
    pub fn of(name: &str, size: usize) -> Self {
        match name.as_bytes().first() {
            _ if size == 1 => Self::None,
            Some(b'>') => Self::Big,
            Some(b'=' | b'|') if cfg!(target_endian = "big") => Self::Big,
            _ => Self::Little,
        }
    }
}

impl ByteOrder {
    /// Returns whether elements of this order have their bytes in another order than those of this machine.
    pub(crate) fn is_foreign(self) -> bool {
        let native = if cfg!(target_endian = "big") {
            Self::Big
        } else {
            Self::Little
        };
        self != Self::None && self != native
    }
}

/// A data type of numpy, of integers or floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    kind: Kind,
    pub size: usize,
    pub order: ByteOrder,
}

/// Writes the name of the data type in numpy, without the byte order.
impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Signed => 'i',
            Kind::Unsigned => 'u',
            Kind::Float => 'f',
        };
        write!(f, "{kind}{}", self.size)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Signed,
    Unsigned,
    Float,
}

impl Number {
    /// Parses a name such as `<f8`, `u1` or `|i1`.
    pub fn parse(name: &str) -> Result<Self, String> {
        let unknown =
            || format!("`{name}` is not a data type of integers or floats, such as \"<f4\"");
        let short = name.trim_start_matches(['<', '>', '|', '=']);
        let (kind, size) = match short {
            "i1" => (Kind::Signed, 1),
            "i2" => (Kind::Signed, 2),
            "i4" => (Kind::Signed, 4),
            "i8" => (Kind::Signed, 8),
            "u1" => (Kind::Unsigned, 1),
            "u2" => (Kind::Unsigned, 2),
            "u4" => (Kind::Unsigned, 4),
            "u8" => (Kind::Unsigned, 8),
            "f2" => (Kind::Float, 2),
            "f4" => (Kind::Float, 4),
            "f8" => (Kind::Float, 8),
            _ => return Err(unknown()),
        };
        if name.len() > short.len() + 1 {
            return Err(unknown());
        }
        let order = ByteOrder::of(name, size);
        Ok(Self { kind, size, order })
    }

    pub fn data_type(self) -> DataType {
        match (self.kind, self.size) {
            (Kind::Signed, 1) => data_type::int8(),
            (Kind::Signed, 2) => data_type::int16(),
            (Kind::Signed, 4) => data_type::int32(),
            (Kind::Signed, _) => data_type::int64(),
            (Kind::Unsigned, 1) => data_type::uint8(),
            (Kind::Unsigned, 2) => data_type::uint16(),
            (Kind::Unsigned, 4) => data_type::uint32(),
            (Kind::Unsigned, _) => data_type::uint64(),
            (Kind::Float, 2) => data_type::float16(),
            (Kind::Float, 4) => data_type::float32(),
            (Kind::Float, _) => data_type::float64(),
        }
    }

    /// Returns the data type in which numpy calculates with an array of this data type and a number of
    /// Python.
    pub(crate) fn precision(self) -> Precision {
        match (self.kind, self.size) {
            (Kind::Float, 2) => Precision::Half,
            (Kind::Float, 4) => Precision::Single,
            _ => Precision::Double,
        }
    }

    /// Returns an element in native byte order as a `float64`. Integers beyond 2⁵³ are rounded, as in numpy.
    #[allow(
        clippy::cast_lossless,
        clippy::cast_precision_loss,
        reason = "as numpy does"
    )]
    pub(crate) fn read(self, element: &[u8]) -> f64 {
        macro_rules! number {
            ($type:ty) => {
                element
                    .try_into()
                    .map_or(0.0, |bytes| <$type>::from_ne_bytes(bytes) as f64)
            };
        }
        match (self.kind, self.size) {
            (Kind::Signed, 1) => number!(i8),
            (Kind::Signed, 2) => number!(i16),
            (Kind::Signed, 4) => number!(i32),
            (Kind::Signed, _) => number!(i64),
            (Kind::Unsigned, 1) => number!(u8),
            (Kind::Unsigned, 2) => number!(u16),
            (Kind::Unsigned, 4) => number!(u32),
            (Kind::Unsigned, _) => number!(u64),
            (Kind::Float, 2) => element
                .try_into()
                .map_or(0.0, |bytes| f16::from_ne_bytes(bytes).to_f64()),
            (Kind::Float, 4) => number!(f32),
            (Kind::Float, _) => number!(f64),
        }
    }

    /// Appends `element` of the data type `from`, converted as numpy's `astype` does; both are in native byte
    /// order. Integers become integers modulo the number of their values.
    ///
    /// Returns whether numpy's result is the same on each processor: not if an integer cannot be the float.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "as numpy does"
    )]
    pub(crate) fn cast(self, from: Self, element: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(integer) = from.integer(element) else {
            return self.write(from.read(element), out);
        };
        match (self.kind, self.size) {
            (Kind::Float, 2) => out.extend(f16::from_f32(integer as f32).to_ne_bytes()),
            (Kind::Float, 4) => out.extend((integer as f32).to_ne_bytes()),
            (Kind::Float, _) => out.extend((integer as f64).to_ne_bytes()),
            (_, 1) => out.extend((integer as u8).to_ne_bytes()),
            (_, 2) => out.extend((integer as u16).to_ne_bytes()),
            (_, 4) => out.extend((integer as u32).to_ne_bytes()),
            (_, _) => out.extend((integer as u64).to_ne_bytes()),
        }
        true
    }

    /// Returns an element in native byte order as an integer; `None` if this is a data type of floats.
    fn integer(self, element: &[u8]) -> Option<i128> {
        macro_rules! number {
            ($type:ty) => {
                element
                    .try_into()
                    .map_or(0, |bytes| i128::from(<$type>::from_ne_bytes(bytes)))
            };
        }
        Some(match (self.kind, self.size) {
            (Kind::Float, _) => return None,
            (Kind::Signed, 1) => number!(i8),
            (Kind::Signed, 2) => number!(i16),
            (Kind::Signed, 4) => number!(i32),
            (Kind::Signed, _) => number!(i64),
            (Kind::Unsigned, 1) => number!(u8),
            (Kind::Unsigned, 2) => number!(u16),
            (Kind::Unsigned, 4) => number!(u32),
            (Kind::Unsigned, _) => number!(u64),
        })
    }

    /// Replaces each element of `elements`, in native byte order, by the sum of all up to it. Integers wrap
    /// around, and floats are rounded after each addition, as by numpy's `cumsum`.
    pub(crate) fn accumulate(self, elements: &mut [u8]) {
        macro_rules! sums {
            ($type:ty, $add:expr) => {{
                let mut sum: Option<$type> = None;
                let (elements, _) = elements.as_chunks_mut::<{ size_of::<$type>() }>();
                for element in elements {
                    let next = <$type>::from_ne_bytes(*element);
                    let total = sum.map_or(next, |sum| $add(sum, next));
                    *element = total.to_ne_bytes();
                    sum = Some(total);
                }
            }};
        }
        match (self.kind, self.size) {
            (Kind::Float, 2) => sums!(f16, |sum: f16, next: f16| {
                f16::from_f32(sum.to_f32() + next.to_f32())
            }),
            (Kind::Float, 4) => sums!(f32, |sum: f32, next: f32| sum + next),
            (Kind::Float, _) => sums!(f64, |sum: f64, next: f64| sum + next),
            (_, 1) => sums!(u8, u8::wrapping_add),
            (_, 2) => sums!(u16, u16::wrapping_add),
            (_, 4) => sums!(u32, u32::wrapping_add),
            (_, _) => sums!(u64, u64::wrapping_add),
        }
    }

    /// Returns the data type in which numpy calculates with elements of both data types.
    pub(crate) fn promoted(self, other: Self) -> Self {
        let native = |kind, size| Self {
            kind,
            size,
            order: ByteOrder::None,
        };
        // The smallest float with all integers of one byte, of two, or nearly all of more.
        let float = |number: Self| match (number.kind, number.size) {
            (Kind::Float, size) => size,
            (_, size) => (2 * size).min(8),
        };
        match (self.kind, other.kind) {
            (kind, others) if kind == others => native(kind, self.size.max(other.size)),
            (Kind::Float, _) | (_, Kind::Float) => {
                native(Kind::Float, float(self).max(float(other)))
            }
            _ => {
                let (signed, unsigned) = if self.kind == Kind::Signed {
                    (self.size, other.size)
                } else {
                    (other.size, self.size)
                };
                match signed.max(2 * unsigned) {
                    size @ ..=8 => native(Kind::Signed, size),
                    _ => native(Kind::Float, 8),
                }
            }
        }
    }

    /// Returns whether this is a data type of floats.
    pub(crate) fn is_float(self) -> bool {
        self.kind == Kind::Float
    }

    /// Appends `value` in native byte order. Integers are truncated, and saturate.
    ///
    /// Returns whether the data type has this value. If it has not, numpy's result depends on the processor.
    #[allow(
        clippy::cast_lossless,
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "checked, and told"
    )]
    pub(crate) fn write(self, value: f64, out: &mut Vec<u8>) -> bool {
        macro_rules! integer {
            ($type:ty) => {{
                out.extend((value as $type).to_ne_bytes());
                let whole = value.trunc();
                whole >= <$type>::MIN as f64 && whole < <$type>::MAX as f64 + 1.0
            }};
        }
        match (self.kind, self.size) {
            (Kind::Signed, 1) => integer!(i8),
            (Kind::Signed, 2) => integer!(i16),
            (Kind::Signed, 4) => integer!(i32),
            (Kind::Signed, _) => integer!(i64),
            (Kind::Unsigned, 1) => integer!(u8),
            (Kind::Unsigned, 2) => integer!(u16),
            (Kind::Unsigned, 4) => integer!(u32),
            (Kind::Unsigned, _) => integer!(u64),
            (Kind::Float, size) => {
                match size {
                    2 => out.extend(half(value).to_ne_bytes()),
                    4 => out.extend((value as f32).to_ne_bytes()),
                    _ => out.extend(value.to_ne_bytes()),
                }
                true
            }
        }
    }
}

/// Returns `value` rounded to a half. `f16::from_f64` may round twice, and its software drops half of the bits.
#[allow(
    clippy::cast_possible_truncation,
    clippy::float_cmp,
    reason = "the bits that are lost count"
)]
fn half(value: f64) -> f16 {
    let single = value as f32;
    let rounded = f64::from(single);
    if !single.is_finite() || rounded == value {
        return f16::from_f32(single);
    }
    // Truncate, and set the last bit: then the second rounding knows that bits were lost.
    let away = u32::from(rounded.abs() > value.abs());
    f16::from_f32(f32::from_bits((single.to_bits() - away) | 1))
}

/// The precision in which the codec calculates.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Precision {
    Half,
    Single,
    Double,
}

impl Precision {
    /// Returns `(value - offset) * scale`, rounded to an integer.
    #[allow(clippy::cast_possible_truncation, reason = "the precision of numpy")]
    pub(crate) fn encoded(self, value: f64, scale: f64, offset: f64) -> f64 {
        match self {
            Self::Half => {
                let [value, scale, offset] = [value, scale, offset].map(f16::from_f64);
                f64::from(f32::from((value - offset) * scale).round_ties_even())
            }
            Self::Single => {
                let [value, scale, offset] = [value, scale, offset].map(|number| number as f32);
                f64::from(((value - offset) * scale).round_ties_even())
            }
            Self::Double => ((value - offset) * scale).round_ties_even(),
        }
    }

    /// Returns `value / scale + offset`.
    #[allow(clippy::cast_possible_truncation, reason = "the precision of numpy")]
    pub(crate) fn decoded(self, value: f64, scale: f64, offset: f64) -> f64 {
        match self {
            Self::Half => {
                let [value, scale, offset] = [value, scale, offset].map(f16::from_f64);
                f64::from(value / scale + offset)
            }
            Self::Single => {
                let [value, scale, offset] = [value, scale, offset].map(|number| number as f32);
                f64::from(value / scale + offset)
            }
            Self::Double => value / scale + offset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(name: &str) -> Number {
        Number::parse(name).unwrap()
    }

    #[test]
    fn promotions_are_those_of_numpy() {
        for (a, b, both) in [
            ("i1", "i4", "i4"),
            ("u2", "u8", "u8"),
            ("i1", "u1", "i2"),
            ("i8", "u4", "i8"),
            ("i1", "u8", "f8"),
            ("f2", "u1", "f2"),
            ("f2", "i2", "f4"),
            ("f4", "u2", "f4"),
            ("f4", "i4", "f8"),
            ("f2", "f8", "f8"),
        ] {
            for (a, b) in [(a, b), (b, a)] {
                assert_eq!(parsed(a).promoted(parsed(b)).to_string(), both, "{a} {b}");
            }
        }
    }

    #[test]
    fn integers_are_converted_as_a_whole() {
        let cast = |from: &str, element: &[u8], to: &str| {
            let mut out = Vec::new();
            (parsed(to).cast(parsed(from), element, &mut out), out)
        };
        let large = (1_i64 << 62) + 1;
        let same = (true, large.to_ne_bytes().to_vec());
        assert_eq!(cast("i8", &large.to_ne_bytes(), "u8"), same);
        assert_eq!(cast("i8", &large.to_ne_bytes(), "i1"), (true, vec![1]));
        assert_eq!(cast("i1", &[255], "u2"), (true, vec![255, 255]));
        let nan = f32::NAN.to_ne_bytes();
        assert!(!cast("f4", &nan, "i8").0);
    }

    #[test]
    fn halves_are_rounded_once() {
        let [eps, tiny] = [2_f64.powi(-10), 2_f64.powi(-40)];
        for (value, rounded) in [
            (1.0 + eps / 2.0, 1.0),
            (1.0 + eps / 2.0 + tiny, 1.0 + eps),
            (1.0 + eps / 2.0 - tiny, 1.0),
            (1.0 + 1.5 * eps - tiny, 1.0 + eps),
            (-1.0 - eps / 2.0 - tiny, -1.0 - eps),
            (1e300, f64::INFINITY),
            (-65_519.999_999_999, -65504.0),
            (2_f64.powi(-25), 0.0),
            (2_f64.powi(-25) * (1.0 + tiny), 2_f64.powi(-24)),
            (1e-300, 0.0),
        ] {
            let half = half(value).to_f64();
            assert_eq!(half.to_bits(), rounded.to_bits(), "{value}: {half}");
        }
    }

    #[test]
    fn sums_wrap_around() {
        let mut bytes = vec![200, 100, 5];
        parsed("u1").accumulate(&mut bytes);
        assert_eq!(bytes, [200, 44, 49]);
    }
}

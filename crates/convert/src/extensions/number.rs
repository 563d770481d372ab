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

    /// Returns whether both data types are the same, except perhaps for the byte order.
    pub fn is_alike(self, other: Self) -> bool {
        self.kind == other.kind && self.size == other.size
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
    pub(super) fn precision(self) -> Precision {
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
    pub(super) fn read(self, element: &[u8]) -> f64 {
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
    pub(super) fn write(self, value: f64, out: &mut Vec<u8>) -> bool {
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
                    2 => out.extend(f16::from_f64(value).to_ne_bytes()),
                    4 => out.extend((value as f32).to_ne_bytes()),
                    _ => out.extend(value.to_ne_bytes()),
                }
                true
            }
        }
    }
}

/// The precision in which the codec calculates.
#[derive(Clone, Copy, Debug)]
pub(super) enum Precision {
    Half,
    Single,
    Double,
}

impl Precision {
    /// Returns `(value - offset) * scale`, rounded to an integer.
    #[allow(clippy::cast_possible_truncation, reason = "the precision of numpy")]
    pub(super) fn encoded(self, value: f64, scale: f64, offset: f64) -> f64 {
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
    pub(super) fn decoded(self, value: f64, scale: f64, offset: f64) -> f64 {
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

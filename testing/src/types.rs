//! Every data type of a fixed size that zarrs has.

use std::num::{NonZeroU32, NonZeroU64};

use zarrs::array::data_type::NumpyTimeUnit;
use zarrs::array::{DataType, data_type};
use zarrs::plugin::ExtensionName;

use crate::Rng;

/// A data type, and which bytes are valid values of it.
#[derive(Clone, Debug)]
pub struct Type {
    pub data_type: DataType,
    /// How many bits of each byte are used.
    bits: u32,
    /// Whether the highest used bit is a sign that fills the unused bits.
    signed: bool,
}

impl Type {
    fn new(data_type: DataType) -> Self {
        Self::of_bits(data_type, 8)
    }

    fn of_bits(data_type: DataType, bits: u32) -> Self {
        Self {
            data_type,
            bits,
            signed: false,
        }
    }

    fn of_signed_bits(data_type: DataType, bits: u32) -> Self {
        Self {
            signed: true,
            ..Self::of_bits(data_type, bits)
        }
    }

    /// The type of `data_type`.
    pub fn of(data_type: &DataType) -> Self {
        fixed()
            .into_iter()
            // The sizes must be compared, too: raw types of all sizes are equal.
            .find(|t| t.data_type == *data_type && Some(t.size()) == data_type.fixed_size())
            .unwrap()
    }

    pub fn size(&self) -> usize {
        self.data_type.fixed_size().unwrap()
    }

    /// Turns `bytes` into valid values of this type.
    pub fn normalise(&self, bytes: &mut [u8]) {
        if self.bits == 8 {
            return;
        }
        let mask = (1_u8 << self.bits) - 1;
        for byte in bytes {
            *byte &= mask;
            if self.signed && *byte >> (self.bits - 1) == 1 {
                *byte |= !mask;
            }
        }
    }

    /// A random value.
    pub fn element(&self, rng: &mut Rng) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..self.size()).map(|_| rng.byte()).collect();
        self.normalise(&mut bytes);
        bytes
    }

    /// The name of this type for `fixedscaleoffset`, if that codec supports it.
    pub fn numpy(&self) -> Option<&'static str> {
        let name = self.data_type.name_v3()?;
        let names = [
            ("int16", "<i2"),
            ("int32", "<i4"),
            ("int64", "<i8"),
            ("uint8", "u1"),
            ("uint16", "<u2"),
            ("uint32", "<u4"),
            ("uint64", "<u8"),
            ("float32", "<f4"),
            ("float64", "<f8"),
        ];
        let numpy = names.iter().find(|(n, _)| *n == name);
        numpy.map(|(_, numpy)| *numpy)
    }
}

/// All data types of a fixed size.
pub fn fixed() -> Vec<Type> {
    let unit = NonZeroU32::MIN.saturating_add(9);
    let mut types = vec![
        Type::of_bits(data_type::bool(), 1),
        Type::of_signed_bits(data_type::int2(), 2),
        Type::of_signed_bits(data_type::int4(), 4),
        Type::of_bits(data_type::uint2(), 2),
        Type::of_bits(data_type::uint4(), 4),
        Type::of_bits(data_type::float4_e2m1fn(), 4),
        Type::of_bits(data_type::float6_e2m3fn(), 6),
        Type::of_bits(data_type::float6_e3m2fn(), 6),
        Type::of_bits(data_type::complex_float4_e2m1fn(), 4),
        Type::of_bits(data_type::complex_float6_e2m3fn(), 6),
        Type::of_bits(data_type::complex_float6_e3m2fn(), 6),
    ];
    types.extend(
        [
            data_type::int8(),
            data_type::int16(),
            data_type::int32(),
            data_type::int64(),
            data_type::uint8(),
            data_type::uint16(),
            data_type::uint32(),
            data_type::uint64(),
            data_type::bfloat16(),
            data_type::float16(),
            data_type::float32(),
            data_type::float64(),
            data_type::float8_e3m4(),
            data_type::float8_e4m3(),
            data_type::float8_e4m3b11fnuz(),
            data_type::float8_e4m3fnuz(),
            data_type::float8_e5m2(),
            data_type::float8_e5m2fnuz(),
            data_type::float8_e8m0fnu(),
            data_type::complex64(),
            data_type::complex128(),
            data_type::complex_bfloat16(),
            data_type::complex_float16(),
            data_type::complex_float32(),
            data_type::complex_float64(),
            data_type::complex_float8_e3m4(),
            data_type::complex_float8_e4m3(),
            data_type::complex_float8_e4m3b11fnuz(),
            data_type::complex_float8_e4m3fnuz(),
            data_type::complex_float8_e5m2(),
            data_type::complex_float8_e5m2fnuz(),
            data_type::complex_float8_e8m0fnu(),
            data_type::raw_bits(1),
            data_type::raw_bits(3),
            data_type::raw_bits(16),
            data_type::raw_bits(700),
            data_type::numpy_datetime64(NumpyTimeUnit::Nanosecond, unit),
            data_type::numpy_timedelta64(NumpyTimeUnit::Day, unit),
            data_type::fixed_length_utf32(NonZeroU64::MIN.saturating_add(11)).unwrap(),
        ]
        .map(Type::new),
    );
    types
}

/// The data type with this name in metadata.
pub fn named(name: &str) -> Type {
    fixed()
        .into_iter()
        .find(|t| t.data_type.name_v3().is_some_and(|n| n == name))
        .unwrap()
}

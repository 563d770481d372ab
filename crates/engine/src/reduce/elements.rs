//! The data types of elements, and the reductions that each supports.

use half::{bf16, f16};

use super::Reduction;
use super::fold::{Complex, Decimate, Maximum, Mean, Median, Minimum, Mode, Rows};

/// The data type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    BFloat16,
    Float16,
    Float32,
    Float64,
    Complex64,
    Complex128,
    /// Any other data type whose elements have this number of bytes: 1, 2, 4, 8 or 16.
    Bytes(usize),
}

impl Elements {
    /// Returns the size of an element in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::Int8 | Self::UInt8 => 1,
            Self::Int16 | Self::UInt16 | Self::BFloat16 | Self::Float16 => 2,
            Self::Int32 | Self::UInt32 | Self::Float32 => 4,
            Self::Int64 | Self::UInt64 | Self::Float64 | Self::Complex64 => 8,
            Self::Complex128 => 16,
            Self::Bytes(size) => size,
        }
    }

    /// Returns whether elements of this data type have the reduction.
    pub fn can(self, reduction: Reduction) -> bool {
        match reduction {
            Reduction::Mode | Reduction::Decimate => matches!(self.size(), 1 | 2 | 4 | 8 | 16),
            Reduction::Mean => !matches!(self, Self::Bytes(_)),
            Reduction::Minimum | Reduction::Maximum | Reduction::Median => {
                !matches!(self, Self::Bytes(_) | Self::Complex64 | Self::Complex128)
            }
        }
    }

    /// Reduces the windows of `rows` to elements, which become `reduced`.
    pub(super) fn reduce(self, reduction: Reduction, rows: &Rows<'_>, reduced: &mut [u8]) {
        macro_rules! of_numbers {
            ($fold:ident) => {
                match self {
                    Self::Bool | Self::UInt8 => rows.fold::<u8, $fold>(reduced),
                    Self::Int8 => rows.fold::<i8, $fold>(reduced),
                    Self::Int16 => rows.fold::<i16, $fold>(reduced),
                    Self::Int32 => rows.fold::<i32, $fold>(reduced),
                    Self::Int64 => rows.fold::<i64, $fold>(reduced),
                    Self::UInt16 => rows.fold::<u16, $fold>(reduced),
                    Self::UInt32 => rows.fold::<u32, $fold>(reduced),
                    Self::UInt64 => rows.fold::<u64, $fold>(reduced),
                    Self::BFloat16 => rows.fold::<bf16, $fold>(reduced),
                    Self::Float16 => rows.fold::<f16, $fold>(reduced),
                    Self::Float32 => rows.fold::<f32, $fold>(reduced),
                    Self::Float64 => rows.fold::<f64, $fold>(reduced),
                    // The reducer refused these data types when it was made.
                    Self::Complex64 | Self::Complex128 | Self::Bytes(_) => {}
                }
            };
        }
        macro_rules! of_bits {
            ($fold:ident) => {
                match self.size() {
                    1 => rows.fold::<u8, $fold>(reduced),
                    2 => rows.fold::<u16, $fold>(reduced),
                    4 => rows.fold::<u32, $fold>(reduced),
                    8 => rows.fold::<u64, $fold>(reduced),
                    _ => rows.fold::<u128, $fold>(reduced),
                }
            };
        }
        match (reduction, self) {
            (Reduction::Mean, Self::Complex64) => rows.fold::<Complex<f32>, Mean>(reduced),
            (Reduction::Mean, Self::Complex128) => rows.fold::<Complex<f64>, Mean>(reduced),
            (Reduction::Mean, _) => of_numbers!(Mean),
            (Reduction::Minimum, _) => of_numbers!(Minimum),
            (Reduction::Maximum, _) => of_numbers!(Maximum),
            (Reduction::Median, _) => of_numbers!(Median),
            (Reduction::Mode, _) => of_bits!(Mode),
            (Reduction::Decimate, _) => of_bits!(Decimate),
        }
    }
}

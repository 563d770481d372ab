//! A naive oracle of reductions: it reduces one window at a time, in exact integers or wide floats.

#![allow(clippy::cast_precision_loss, reason = "counts of few elements")]

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Strategy;

use super::{Elements, Reduction};
use crate::layout::c_order;

/// All data types of elements.
pub const KINDS: [Elements; 18] = [
    Elements::Bool,
    Elements::Int8,
    Elements::Int16,
    Elements::Int32,
    Elements::Int64,
    Elements::UInt8,
    Elements::UInt16,
    Elements::UInt32,
    Elements::UInt64,
    Elements::BFloat16,
    Elements::Float16,
    Elements::Float32,
    Elements::Float64,
    Elements::Complex64,
    Elements::Complex128,
    Elements::Bytes(1),
    Elements::Bytes(4),
    Elements::Bytes(16),
];
/// Returns the element that a window becomes. It computes with exact integers, or with wide floats that are
/// rounded once.
pub(super) fn of_window(kind: Elements, reduction: Reduction, window: &[Vec<u8>]) -> Vec<u8> {
    match reduction {
        Reduction::Decimate => return window[0].clone(),
        Reduction::Mode => {
            let count = |one: &Vec<u8>| window.iter().filter(|other| *other == one).count();
            let most = window.iter().map(count).max().expect("some");
            return window
                .iter()
                .find(|one| count(one) == most)
                .expect("one")
                .clone();
        }
        _ => {}
    }
    macro_rules! integers {
        ($type:ty) => {{
            let mut values: Vec<i128> = window
                .iter()
                .map(|bytes| {
                    i128::from(<$type>::from_ne_bytes(bytes[..].try_into().expect("size")))
                })
                .collect();
            let made = of_integers(reduction, &mut values);
            <$type>::try_from(made)
                .expect("between")
                .to_ne_bytes()
                .to_vec()
        }};
    }
    macro_rules! floats {
        ($type:ty, $bytes:expr) => {{
            let values: Vec<f64> = $bytes
                .map(|bytes: &[u8]| {
                    f64::from(<$type>::from_ne_bytes(bytes.try_into().expect("size")))
                })
                .collect();
            let made = of_floats(reduction, values);
            let made = if made.is_nan() {
                <$type>::NAN
            } else {
                narrow(made)
            };
            made.to_ne_bytes().to_vec()
        }};
    }
    let whole = || window.iter().map(Vec::as_slice);
    match kind {
        Elements::Bool | Elements::UInt8 => integers!(u8),
        Elements::Int8 => integers!(i8),
        Elements::Int16 => integers!(i16),
        Elements::Int32 => integers!(i32),
        Elements::Int64 => integers!(i64),
        Elements::UInt16 => integers!(u16),
        Elements::UInt32 => integers!(u32),
        Elements::UInt64 => integers!(u64),
        Elements::BFloat16 => floats!(bf16, whole()),
        Elements::Float16 => floats!(f16, whole()),
        Elements::Float32 => floats!(f32, whole()),
        Elements::Float64 => floats!(f64, whole()),
        Elements::Complex64 => [
            floats!(f32, whole().map(|bytes| &bytes[..4])),
            floats!(f32, whole().map(|bytes| &bytes[4..])),
        ]
        .concat(),
        Elements::Complex128 => [
            floats!(f64, whole().map(|bytes| &bytes[..8])),
            floats!(f64, whole().map(|bytes| &bytes[8..])),
        ]
        .concat(),
        Elements::Bytes(_) => unreachable!("bytes have no order"),
    }
}

trait Narrow {
    fn narrow(wide: f64) -> Self;
}

impl Narrow for f64 {
    fn narrow(wide: f64) -> Self {
        wide
    }
}

impl Narrow for f32 {
    #[allow(clippy::cast_possible_truncation)]
    fn narrow(wide: f64) -> Self {
        wide as f32
    }
}

/// Returns the bits of the 16-bit float that is nearest to `wide`, among the neighbours of `near`. Of two
/// equally near floats, it returns the even one.
fn nearest(wide: f64, near: u16, value: impl Fn(u16) -> f64) -> u16 {
    if !wide.is_finite() {
        return near;
    }
    let around = [near.wrapping_sub(1), near, near.wrapping_add(1)];
    let around = around.into_iter().filter(|bits| value(*bits).is_finite());
    around
        .min_by(|a, b| {
            let [far_a, far_b] = [*a, *b].map(|bits| (value(bits) - wide).abs());
            far_a.total_cmp(&far_b).then((a & 1).cmp(&(b & 1)))
        })
        .expect("finite numbers are between finite ones")
}

impl Narrow for f16 {
    fn narrow(wide: f64) -> Self {
        let near = f16::from_f64(wide).to_bits();
        f16::from_bits(nearest(wide, near, |bits| f16::from_bits(bits).to_f64()))
    }
}

impl Narrow for bf16 {
    fn narrow(wide: f64) -> Self {
        let near = bf16::from_f64(wide).to_bits();
        bf16::from_bits(nearest(wide, near, |bits| bf16::from_bits(bits).to_f64()))
    }
}

fn narrow<T: Narrow>(wide: f64) -> T {
    T::narrow(wide)
}

fn of_integers(reduction: Reduction, values: &mut [i128]) -> i128 {
    values.sort_unstable();
    let middle = values.len() / 2;
    match reduction {
        Reduction::Minimum => values[0],
        Reduction::Maximum => values[values.len() - 1],
        Reduction::Median if values.len() > 1 => half_even(values[middle - 1] + values[middle], 2),
        _ => half_even(values.iter().sum(), values.len() as i128),
    }
}

fn half_even(sum: i128, count: i128) -> i128 {
    let (below, rest) = (sum.div_euclid(count), sum.rem_euclid(count));
    match (2 * rest).cmp(&count) {
        std::cmp::Ordering::Less => below,
        std::cmp::Ordering::Greater => below + 1,
        std::cmp::Ordering::Equal => below + (below & 1),
    }
}

fn of_floats(reduction: Reduction, mut values: Vec<f64>) -> f64 {
    if values.iter().any(|value| value.is_nan()) {
        return f64::NAN;
    }
    let mean = |values: &[f64]| {
        let sum = values[1..].iter().fold(values[0], |sum, value| sum + value);
        sum / values.len() as f64
    };
    if reduction == Reduction::Mean {
        return mean(&values);
    }
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match reduction {
        Reduction::Minimum => values[0],
        Reduction::Maximum => values[values.len() - 1],
        _ if values.len() == 1 => values[0],
        _ => mean(&values[middle - 1..=middle]),
    }
}

/// Returns a strategy for `count` elements. Most of them have one of a few values, so that there are ties;
/// some of these values are error-prone. The other elements are random.
pub fn elements(kind: Elements, count: usize) -> impl Strategy<Value = Vec<u8>> {
    let size = kind.size();
    let float = |bits: &[u64], width: usize| -> Vec<Vec<u8>> {
        bits.iter()
            .map(|bits| bits.to_le_bytes()[..width].to_vec())
            .collect()
    };
    let f64s = [
        0.0,
        -0.0,
        1.5,
        -2.25,
        f64::MAX,
        f64::MIN_POSITIVE,
        f64::INFINITY,
        -f64::INFINITY,
    ];
    let of_f64: Vec<u64> = f64s
        .iter()
        .map(|value| value.to_bits())
        .chain([0xFFF8_0000_0000_0001, 1])
        .collect();
    let of_f32: Vec<u64> = [
        0.0,
        -0.0,
        1.5,
        -2.25,
        f32::MAX,
        f32::INFINITY,
        1e-45,
        16_777_217.0,
    ]
    .iter()
    .map(|value: &f32| u64::from(value.to_bits()))
    .chain([0xFF80_0001])
    .collect();
    let special: Vec<Vec<u8>> = match kind {
        Elements::Bool => vec![vec![0], vec![1]],
        Elements::Float64 => float(&of_f64, 8),
        Elements::Complex128 => float(&of_f64, 8)
            .into_iter()
            .map(|part| [part, 0.5_f64.to_ne_bytes().to_vec()].concat())
            .collect(),
        Elements::Float32 => float(&of_f32, 4),
        Elements::Complex64 => float(&of_f32, 4)
            .into_iter()
            .map(|part| [0.5_f32.to_ne_bytes().to_vec(), part].concat())
            .collect(),
        Elements::Float16 => float(
            // 8, 2⁻⁸ and 2⁻²²: the mean with zeros is just above the middle of two numbers.
            &[
                0, 0x8000, 0x3C00, 0x3C01, 0x7BFF, 0x7C00, 0xFE01, 1, 0x4800, 0x1C00, 4,
            ],
            2,
        ),
        Elements::BFloat16 => float(
            // 8, 2⁻⁵ and 2⁻³⁰: the mean with zeros is just above the middle of two numbers.
            &[
                0, 0x8000, 0x3F80, 0x3F81, 0x7F7F, 0x7F80, 0xFFC1, 1, 0x4100, 0x3D00, 0x3080,
            ],
            2,
        ),
        _ => [0x00, 0x01, 0x7F, 0x80, 0xFF]
            .iter()
            .map(|byte| vec![*byte; size])
            .chain([[&[1][..], &vec![0; size - 1]].concat()])
            .collect(),
    };
    let random: BoxedStrategy<Vec<u8>> = if kind == Elements::Bool {
        select(special.clone()).boxed()
    } else {
        prop::collection::vec(any::<u8>(), size).boxed()
    };
    let one = prop_oneof![3 => select(special), 2 => random];
    prop::collection::vec(one, count).prop_map(|elements| elements.concat())
}

/// Returns the elements of the window at `at`, in C order.
pub(super) fn window(
    slices: &[Vec<u8>],
    size: usize,
    shape: &[usize],
    factors: &[usize],
    at: &[usize],
) -> Vec<Vec<u8>> {
    let mut places = vec![0];
    for ((extent, factor), at) in shape.iter().zip(factors).zip(at) {
        let inside = at * factor..((at + 1) * factor).min(*extent);
        places = places
            .iter()
            .flat_map(|before| inside.clone().map(move |at| before * extent + at))
            .collect();
    }
    let of = |slice: &Vec<u8>, place: usize| slice[place * size..][..size].to_vec();
    slices
        .iter()
        .flat_map(|slice| places.iter().map(move |place| of(slice, *place)))
        .collect()
}

/// Returns `array`, an array of `shape`, reduced along all of its axes, and its new shape.
pub fn reduced(
    kind: Elements,
    reduction: Reduction,
    array: &[u8],
    shape: &[usize],
    factors: &[usize],
) -> (Vec<usize>, Vec<u8>) {
    let reduced_shape: Vec<usize> = shape
        .iter()
        .zip(factors)
        .map(|(extent, factor)| extent.div_ceil(*factor))
        .collect();
    let array = [array.to_vec()];
    let windows = (0..reduced_shape.iter().product()).map(|number| {
        let at = c_order::coordinates(number, &reduced_shape);
        window(&array, kind.size(), shape, factors, &at)
    });
    let elements = windows.map(|window| of_window(kind, reduction, &window));
    let elements = elements.collect::<Vec<_>>().concat();
    (reduced_shape, elements)
}

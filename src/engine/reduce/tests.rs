//! Against an oracle that takes one window at a time, in the widest numbers.

#![allow(clippy::cast_precision_loss, reason = "counts of few elements")]

use std::num::NonZeroUsize;

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Strategy;

use super::{Elements, Reducer, Reduction};
use crate::layout::c_order;

pub(crate) const KINDS: [Elements; 18] = [
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
/// Exact integers, or floating point numbers and how they are rounded.
fn oracle(kind: Elements, reduction: Reduction, window: &[Vec<u8>]) -> Vec<u8> {
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

/// The nearest of some numbers around `near`, by their bits. Of two that are as near, the even one.
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

/// Of few values, so that there are ties, and of those at which something could go wrong.
pub(crate) fn elements(kind: Elements, count: usize) -> impl Strategy<Value = Vec<u8>> {
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
            // 8, 2⁻⁵ and 2⁻³⁰, as above.
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

/// The kind, the reduction, the shape of a slice, the factors, and one or two slices.
fn cases() -> impl Strategy<Value = (Elements, Reduction, Vec<usize>, Vec<usize>, Vec<Vec<u8>>)> {
    let axes = prop_oneof![
        4 => prop::collection::vec((1_usize..6, 1_usize..3), 0..4).boxed(),
        // Rows of more than all lanes.
        1 => (1_usize..3, 1_usize..3, 1_usize..300, 1_usize..3)
            .prop_map(|(rows, a, row, b)| vec![(rows, a), (row, b)])
            .boxed(),
    ];
    (
        select(&KINDS[..]),
        select(&Reduction::ALL[..]),
        axes,
        1_usize..3,
    )
        .prop_flat_map(|(kind, reduction, axes, count)| {
            let (shape, factors): (Vec<_>, Vec<_>) = axes.into_iter().unzip();
            let slice = elements(kind, shape.iter().product());
            let slices = prop::collection::vec(slice, count);
            (
                Just(kind),
                Just(reduction),
                Just(shape),
                Just(factors),
                slices,
            )
        })
}

/// The elements of the window at `at`, in C order.
fn window(
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

/// An array of `shape` reduced along all its axes, and the shape that it has then.
pub(crate) fn reduced(
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
    let elements = windows.map(|window| oracle(kind, reduction, &window));
    let elements = elements.collect::<Vec<_>>().concat();
    (reduced_shape, elements)
}

#[test]
fn reducers_agree_with_one_window_at_a_time() {
    let config = zarrs_cuda_testing::effort::config(3000);
    proptest!(config, |((kind, reduction, shape, factors, slices) in cases())| {
        let reducer = Reducer::new(reduction, kind, &shape, &factors);
        prop_assert_eq!(reducer.is_ok(), kind.can(reduction));
        let Ok(reducer) = reducer else { return Ok(()) };
        let reduced_shape: Vec<usize> = shape.iter().zip(&factors).map(|(e, f)| e.div_ceil(*f)).collect();
        let count: usize = reduced_shape.iter().product();
        let size = kind.size();
        let given: Vec<&[u8]> = slices.iter().map(Vec::as_slice).collect();
        let mut reduced = vec![0xA5; reducer.reduced_bytes()];
        prop_assert_eq!(reduced.len(), count * size);
        let threads = NonZeroUsize::new(2).expect("two");
        reducer.reduce(&given, &mut reduced, threads).expect("sizes are right");
        for (number, made) in reduced.chunks(size).enumerate() {
            let at = c_order::coordinates(number, &reduced_shape);
            let window = window(&slices, size, &shape, &factors, &at);
            let expected = oracle(kind, reduction, &window);
            prop_assert_eq!(made, &expected[..], "{:?} of {:?}", reduction, window);
        }
    });
}

#[test]
fn what_cannot_be_reduced_is_refused() {
    let reducer = |reduction, kind, factors: &[usize]| {
        Reducer::new(reduction, kind, &vec![4; factors.len()], factors).map(|_| ())
    };
    assert!(reducer(Reduction::Median, Elements::Complex64, &[2]).is_err());
    assert!(reducer(Reduction::Mean, Elements::Bytes(4), &[2]).is_err());
    assert!(reducer(Reduction::Mode, Elements::Bytes(3), &[2]).is_err());
    assert!(reducer(Reduction::Mean, Elements::UInt8, &[3]).is_err());
    assert!(reducer(Reduction::Mean, Elements::UInt8, &[0]).is_err());
    assert!(reducer(Reduction::Mean, Elements::UInt8, &[2; 8]).is_err());
    assert_eq!(reducer(Reduction::Mean, Elements::UInt8, &[2; 7]), Ok(()));
    let reducer = Reducer::new(Reduction::Mean, Elements::UInt8, &[4], &[2]).expect("fine");
    let one = NonZeroUsize::MIN;
    assert!(reducer.reduce(&[&[0; 3]], &mut [0; 2], one).is_err());
    assert!(reducer.reduce(&[&[0; 4]], &mut [0; 3], one).is_err());
    assert!(reducer.reduce(&[], &mut [0; 2], one).is_err());
}

#[test]
fn means_of_short_floats_are_rounded_once() {
    let threads = NonZeroUsize::MIN;
    let mean = |kind, window: [u16; 8]| {
        let bytes: Vec<u8> = window.iter().flat_map(|bits| bits.to_ne_bytes()).collect();
        let reducer = Reducer::new(Reduction::Mean, kind, &[2, 2], &[2, 2]).expect("numbers");
        let mut reduced = [0; 2];
        let slices = [&bytes[..8], &bytes[8..]];
        let done = reducer.reduce(&slices, &mut reduced, threads);
        done.expect("sizes are right");
        u16::from_ne_bytes(reduced)
    };
    // 8, 2⁻⁸ and 2⁻²²: just above the middle of 1 and the next number, and the middle in 32 bits.
    let of_f16 = mean(Elements::Float16, [0x4800, 0x1C00, 4, 0, 0, 0, 0, 0]);
    assert_eq!(of_f16, 0x3C01);
    // 8, 2⁻⁵ and 2⁻³⁰.
    let of_bf16 = mean(Elements::BFloat16, [0x4100, 0x3D00, 0x3080, 0, 0, 0, 0, 0]);
    assert_eq!(of_bf16, 0x3F81);
}

//! Against an oracle that takes one window at a time, in the widest numbers.

use std::num::NonZeroUsize;

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Strategy;

use super::{Elements, Reducer, Reduction};

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
pub(crate) const REDUCTIONS: [Reduction; 6] = [
    Reduction::Mean,
    Reduction::Minimum,
    Reduction::Maximum,
    Reduction::Median,
    Reduction::Mode,
    Reduction::Decimate,
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

impl Narrow for f16 {
    fn narrow(wide: f64) -> Self {
        nearest(wide, f16::from_f64(wide).to_bits(), |bits| {
            f16::from_bits(bits).to_f64()
        })
        .map_or(f16::from_f64(wide), f16::from_bits)
    }
}

impl Narrow for bf16 {
    fn narrow(wide: f64) -> Self {
        nearest(wide, bf16::from_f64(wide).to_bits(), |bits| {
            bf16::from_bits(bits).to_f64()
        })
        .map_or(bf16::from_f64(wide), bf16::from_bits)
    }
}

/// The nearest of the floats around `near`, or the even one of two. The crate `half` is off by one
/// where it rounds twice.
fn nearest(wide: f64, near: u16, widen: impl Fn(u16) -> f64) -> Option<u16> {
    if !wide.is_finite() || wide == 0.0 {
        return None;
    }
    let around = near.saturating_sub(1)..=near.saturating_add(1);
    let around = around.filter(|bits| bits >> 15 == near >> 15 && widen(*bits).is_finite());
    around.min_by(|a, b| {
        let [x, y] = [a, b].map(|bits| (widen(*bits) - wide).abs());
        x.total_cmp(&y).then((a & 1).cmp(&(b & 1)))
    })
}

/// The mean is a bit above a tie of two floats of 16 bits, which 32 bits do not show.
#[test]
fn a_mean_is_rounded_once() {
    let tiny = f16::from_bits(1);
    let window = [2.0, 2.0 + 1.0 / 512.0, tiny.to_f64(), 0.0].map(f16::from_f64);
    let slice: Vec<u8> = window.iter().flat_map(|one| one.to_ne_bytes()).collect();
    let reducer = Reducer::new(Reduction::Mean, Elements::Float16, &[2, 2], &[2, 2]);
    let mut made = [0; 2];
    reducer
        .expect("can")
        .reduce(&[&slice], &mut made, NonZeroUsize::MIN)
        .expect("reduces");
    assert_eq!(f16::from_ne_bytes(made).to_f64(), 1.0 + 1.0 / 1024.0);
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
        Elements::Float16 => float(&[0, 0x8000, 0x3C00, 0x3C01, 0x7BFF, 0x7C00, 0xFE01, 1], 2),
        Elements::BFloat16 => float(&[0, 0x8000, 0x3F80, 0x3F81, 0x7F7F, 0x7F80, 0xFFC1, 1], 2),
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
        select(&REDUCTIONS[..]),
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
            let mut at = vec![0; shape.len()];
            let mut rest = number;
            for (at, extent) in at.iter_mut().zip(&reduced_shape).rev() {
                *at = rest % extent;
                rest /= extent;
            }
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

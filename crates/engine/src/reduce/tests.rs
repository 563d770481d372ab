//! Against an oracle that takes one window at a time, in the widest numbers.

use std::num::NonZeroUsize;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Strategy;

use super::oracle::{KINDS, elements, of_window, window};
use super::{Elements, Reducer, Reduction};
use crate::layout::c_order;

/// Returns the kind, the reduction, the shape of a slice, the factors, and one or two slices.
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
            let expected = of_window(kind, reduction, &window);
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

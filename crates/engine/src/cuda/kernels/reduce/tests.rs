//! Against the host's reductions.

use std::num::NonZeroUsize;

use proptest::prelude::*;
use proptest::sample::select;
use zarrs_cuda_testing::effort;

use super::super::spans::sub_span;
use super::super::spans::testing::*;
use super::super::testing::run as on;
use super::*;
use crate::cuda::driver::simulation::Simulation;
use crate::reduce::oracle::{KINDS, elements};

/// Slices, and how they are padded.
#[derive(Clone, Debug)]
struct Case {
    elements: Elements,
    reduction: Reduction,
    shape: Vec<usize>,
    factors: Vec<usize>,
    above: Vec<usize>,
    below: Vec<usize>,
    /// Slices of a window.
    per_window: usize,
    windows: usize,
    /// Where the first slice of each window is: with the second, or elsewhere.
    kept: bool,
    slices: Vec<Vec<u8>>,
}

impl Case {
    fn reducer(&self) -> Reducer {
        Reducer::new(self.reduction, self.elements, &self.shape, &self.factors).expect("can")
    }

    fn reduced(&self) -> Vec<usize> {
        let axes = self.shape.iter().zip(&self.factors);
        axes.map(|(extent, factor)| extent.div_ceil(*factor))
            .collect()
    }

    fn padded_bytes(&self, padded: &[usize]) -> usize {
        padded.iter().product::<usize>() * self.elements.size()
    }

    /// Puts a slice of `shape` into one that is `padded`.
    fn pad(&self, slice: &[u8], shape: &[usize], padded: &[usize], to: &mut [u8]) {
        let size = self.elements.size();
        for (number, element) in slice.chunks(size).enumerate() {
            let (mut rest, mut place, mut step) = (number, 0, size);
            for (extent, padded) in shape.iter().zip(padded).rev() {
                place += rest % extent * step;
                rest /= extent;
                step *= padded;
            }
            to[place..place + size].copy_from_slice(element);
        }
    }

    fn check(&self, driver: &dyn Driver) {
        let (above, below) = (
            self.padded_bytes(&self.above),
            self.padded_bytes(&self.below),
        );
        let reducer = self.reducer();
        let plan = Reduce::new(&reducer, &self.above, &self.below).expect("fits");
        let mut given = noise(1, above * self.slices.len());
        for (slice, to) in self.slices.iter().zip(given.chunks_mut(above)) {
            self.pad(slice, &self.shape, &self.above, to);
        }
        let mut made = vec![0xcc; below * self.windows];
        let mut expected = made.clone();
        let threads = NonZeroUsize::MIN;
        for (window, to) in self
            .slices
            .chunks(self.per_window)
            .zip(expected.chunks_mut(below))
        {
            let window: Vec<&[u8]> = window.iter().map(Vec::as_slice).collect();
            let mut slice = vec![0; reducer.reduced_bytes()];
            reducer
                .reduce(&window, &mut slice, threads)
                .expect("reduces");
            self.pad(&slice, &self.reduced(), &self.below, to);
        }
        let mut elsewhere = given.clone();
        on(
            driver,
            &mut [&mut given, &mut elsewhere, &mut made],
            |stream, spans| {
                let first = spans[usize::from(self.kept)];
                let second =
                    (self.per_window == 2).then(|| sub_span(spans[0], above..spans[0].len));
                let windows = ReduceWindows {
                    first,
                    second,
                    slices: self.per_window,
                    count: self.windows,
                };
                // SAFETY: the spans cover the buffers.
                unsafe { plan.enqueue(driver, stream, windows, spans[2]) }
            },
        )
        .expect("launches");
        let wrong = std::iter::zip(&made, &expected).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "{self:?}");
    }
}

/// Axes: an extent, a factor, and what each level is padded to multiples of.
fn axes() -> impl Strategy<Value = Vec<[usize; 4]>> {
    let axis = |extent: std::ops::Range<usize>, factors: std::ops::Range<usize>| {
        let axis = (extent, factors, 1_usize..5, 1_usize..5);
        axis.prop_map(|(extent, factor, above, below)| [extent, factor, above, below])
    };
    prop_oneof![
        4 => prop::collection::vec(axis(1..7, 1..3), 0..4),
        // Windows that do not fit registers.
        1 => prop::collection::vec(axis(1..4, 2..3), 3..8),
        // Rows of several blocks.
        1 => (axis(1..4, 1..3), axis(250..1200, 1..3)).prop_map(|(a, b)| vec![a, b]),
    ]
}

fn cases() -> impl Strategy<Value = Case> {
    let kinds = (select(&KINDS[..]), select(&Reduction::ALL[..]));
    let kinds = kinds.prop_filter("can", |(elements, reduction)| elements.can(*reduction));
    (kinds, axes(), 1_usize..3, 1_usize..4, any::<bool>()).prop_flat_map(
        |((kind, reduction), axes, per_window, windows, kept)| {
            let shape: Vec<usize> = axes.iter().map(|axis| axis[0]).collect();
            let count = per_window * windows;
            let slice = elements(kind, shape.iter().product());
            prop::collection::vec(slice, count).prop_map(move |slices| Case {
                elements: kind,
                reduction,
                factors: axes.iter().map(|axis| axis[1]).collect(),
                above: axes.iter().map(|a| a[0].next_multiple_of(a[2])).collect(),
                below: axes
                    .iter()
                    .map(|a| a[0].div_ceil(a[1]).next_multiple_of(a[3]))
                    .collect(),
                shape: shape.clone(),
                per_window,
                windows,
                kept,
                slices,
            })
        },
    )
}

pub(crate) fn check_reduce(driver: &dyn Driver, tries: u32) {
    effort::property(tries, &cases(), |case| {
        case.check(driver);
        Ok(())
    });
}

#[test]
fn windows_become_what_the_host_makes_of_them() {
    check_reduce(&Simulation::eager(), 400);
}

/// Every kernel, with windows of every number of axes.
pub(crate) fn check_every_kernel(driver: &dyn Driver) {
    for (elements, reduction) in KINDS
        .iter()
        .flat_map(|kind| Reduction::ALL.map(|r| (*kind, r)))
    {
        if !elements.can(reduction) {
            continue;
        }
        for halved in 0..5 {
            let shape: Vec<usize> = (0..4).map(|axis| 3 + axis % 2).collect();
            let bytes = shape.iter().product::<usize>() * elements.size();
            let slices = (0..2).map(|seed| {
                let mut bytes = noise(seed, bytes);
                if elements == Elements::Bool {
                    for byte in &mut bytes {
                        *byte &= 1;
                    }
                }
                bytes
            });
            let case = Case {
                elements,
                reduction,
                factors: (0..4)
                    .map(|axis| if axis < halved { 2 } else { 1 })
                    .rev()
                    .collect(),
                above: vec![3, 4, 3, 4],
                below: vec![4; 4],
                per_window: 1 + halved % 2,
                windows: 2 - halved % 2,
                kept: false,
                slices: slices.collect(),
                shape,
            };
            case.check(driver);
        }
    }
}

#[test]
fn every_kernel_has_every_number_of_axes() {
    check_every_kernel(&Simulation::eager());
}

fn plan(kind: Elements, shape: &[usize], factors: &[usize]) -> Reduce {
    let reducer = Reducer::new(Reduction::Mean, kind, shape, factors).expect("can");
    let below: Vec<usize> = shape
        .iter()
        .zip(factors)
        .map(|(e, f)| e.div_ceil(*f))
        .collect();
    Reduce::new(&reducer, shape, &below).expect("fits")
}

/// Each byte is read once, and written once, in whole sectors.
#[test]
fn pairs_are_loaded_together() {
    let driver = counting();
    for kind in [
        Elements::UInt8,
        Elements::UInt16,
        Elements::Float32,
        Elements::Float64,
    ] {
        for factors in [[2, 2], [1, 2], [2, 1]] {
            let case = Case {
                elements: kind,
                reduction: Reduction::Mean,
                shape: vec![32, 512],
                factors: factors.to_vec(),
                above: vec![32, 512],
                below: vec![32 / factors[0], 512 / factors[1]],
                per_window: 2,
                windows: 1,
                kept: false,
                slices: (0..2)
                    .map(|seed| noise(seed, 32 * 512 * kind.size()))
                    .collect(),
            };
            case.check(&driver);
            let (moved, ideal) = sectors(&driver);
            let bytes =
                32 * 512 * kind.size() * 2 + 32 * 512 / factors[0] / factors[1] * kind.size();
            assert_eq!(moved, ideal, "{kind:?} {factors:?}");
            assert_eq!(moved, (bytes / 32) as u64, "{kind:?} {factors:?}");
        }
    }
}

#[test]
fn wrong_geometry_is_an_error() {
    let driver = Simulation::eager();
    let plan = plan(Elements::UInt16, &[4, 6], &[2, 2]);
    // Slices of 48 bytes become slices of 12.
    for (first, second, to) in [
        ((0, 95), None, (0, 24)),
        ((0, 96), None, (0, 23)),
        ((1, 96), None, (0, 24)),
        ((0, 96), None, (3, 24)),
        ((0, 144), Some((48, 95)), (0, 24)),
        ((0, 143), Some((48, 144)), (0, 24)),
    ] {
        let mut buffers = [vec![0; 256], vec![0; 256]];
        let [above, below] = &mut buffers;
        let error = on(&driver, &mut [above, below], |stream, spans| {
            let span = |number: usize, (offset, len): (usize, usize)| DeviceSpan {
                offset,
                len,
                ..spans[number]
            };
            let windows = ReduceWindows {
                first: span(0, first),
                second: second.map(|second| span(0, second)),
                slices: 1 + usize::from(second.is_some()),
                count: 2,
            };
            // SAFETY: nothing is launched.
            unsafe { plan.enqueue(&driver, stream, windows, span(1, to)) }
        })
        .expect_err("does not fit");
        assert!(
            error.to_string().starts_with("launching reduce_mean_2"),
            "{error}"
        );
    }
    let reducer = Reducer::new(Reduction::Mean, Elements::UInt8, &[4, 6], &[2, 2]).expect("can");
    for (above, below) in [
        (&[4, 5][..], &[2, 3][..]),
        (&[4, 6], &[2, 2]),
        (&[4], &[2, 3]),
        (&[4, 6], &[2, 3, 1]),
        (&[usize::MAX, 6], &[2, 3]),
    ] {
        assert_eq!(
            Reduce::new(&reducer, above, below),
            Err(ReduceError::Padding)
        );
    }
    let shape = [1 << 16, 1 << 16];
    let reducer = Reducer::new(Reduction::Mean, Elements::UInt8, &shape, &[1, 1]).expect("can");
    let error = Reduce::new(&reducer, &shape, &shape).expect_err("too many");
    assert!(error.to_string().contains("4294967296 elements"), "{error}");
}

//! Compares `place` with copies of one element after the other, on any driver.

use proptest::prelude::*;
use proptest::sample::select;
use zarrs_cuda_testing::effort;

use super::super::scatter::SlabScatter;
use super::super::spans::testing::{counting, noise, sectors, slots};
use super::super::testing::run as on;
use super::*;
use crate::cuda::driver::simulation::Simulation;

/// Where a box begins and ends in its subchunk, along each axis.
type Ranges = Vec<(usize, usize)>;

/// Boxes of subchunks, and an array of elements.
#[derive(Clone, Debug)]
struct Case {
    subchunk: Vec<usize>,
    element_size: usize,
    swap: usize,
    order: Vec<usize>,
    /// The number of bytes of a slot behind its subchunk.
    padding: usize,
    slots: usize,
    /// The order of the axes in the array, the slowest first, and the elements between the rows of each axis.
    array_order: Vec<usize>,
    gaps: Vec<usize>,
    /// The elements in front of the array's first one.
    offset: usize,
    /// The slot and the ranges of each box.
    boxes: Vec<(Option<usize>, Ranges)>,
    seed: u64,
}

fn strides(extents: &[usize], order: &[usize], gaps: &[usize], element_size: usize) -> Vec<usize> {
    let mut strides = vec![0; extents.len()];
    let mut step = element_size;
    for &axis in order.iter().rev() {
        strides[axis] = step;
        step *= extents[axis] + gaps[axis];
    }
    strides
}

impl Case {
    fn layout(&self) -> PlaceLayout {
        let none = vec![0; self.order.len()];
        let in_subchunk = self.subchunk.iter().product::<usize>() * self.element_size;
        PlaceLayout {
            element_size: self.element_size,
            swap: self.swap,
            slot_stride: in_subchunk.next_multiple_of(16) + self.padding * 16,
            slot_strides: strides(&self.subchunk, &self.order, &none, self.element_size),
            array_strides: strides(
                &self.array_shape(),
                &self.array_order,
                &self.gaps,
                self.element_size,
            ),
        }
    }

    /// Returns the shape of the array: it has a subchunk for each box, along the first axis.
    fn array_shape(&self) -> Vec<usize> {
        let mut shape = self.subchunk.clone();
        if let Some(first) = shape.first_mut() {
            *first *= self.boxes.len().max(1);
        }
        shape
    }

    fn placed(&self, layout: &PlaceLayout) -> Vec<PlacedBox> {
        let mut first = 0;
        let boxes = self.boxes.iter().map(|(slot, ranges)| {
            let shape: Vec<usize> = ranges.iter().map(|(start, end)| end - start).collect();
            let stride = layout.array_strides.first().copied().unwrap_or(0);
            let target = self.offset * self.element_size + first * stride;
            first += shape.first().copied().unwrap_or(0);
            PlacedBox {
                slot: *slot,
                start: ranges.iter().map(|(start, _)| *start).collect(),
                shape,
                target,
            }
        });
        boxes.collect()
    }

    fn check(&self, driver: &dyn Driver) -> Result<(), TestCaseError> {
        let layout = self.layout();
        let boxes = self.placed(&layout);
        let fill_value = noise(self.seed ^ 1, self.element_size);
        let mut slot_bytes = noise(self.seed, layout.slot_stride * self.slots);
        let shape = self.array_shape();
        let steps = std::iter::zip(&shape, &layout.array_strides);
        let last: usize = steps.map(|(extent, stride)| (extent - 1) * stride).sum();
        let mut array = vec![0xcc; last + (1 + self.offset) * self.element_size];
        let mut expected = array.clone();
        for placed in &boxes {
            copy_each(&layout, placed, &slot_bytes, &fill_value, &mut expected);
        }
        let plan = PlacePlan::new(&layout, &boxes, 0).expect("planned");
        let most = table_bytes(boxes.len(), shape.len()).expect("fits");
        prop_assert!(plan.table.len() <= most, "{} of {most}", plan.table.len());
        let mut fill = SlabScatter::fill_pattern(&fill_value);
        let mut table = plan.table.clone();
        let buffers = &mut [&mut table, &mut slot_bytes, &mut fill, &mut array];
        on(driver, buffers, |stream, spans| {
            let slots = slots(spans[1], layout.slot_stride, self.slots);
            // SAFETY: the spans are those of the plan.
            unsafe { plan.enqueue(driver, stream, (spans[0], slots), spans[2], spans[3]) }
        })
        .expect("launches");
        prop_assert!(array == expected, "wrong elements of {self:?}");
        Ok(())
    }
}

/// Copies a box, one element after the other.
fn copy_each(
    layout: &PlaceLayout,
    placed: &PlacedBox,
    slots: &[u8],
    fill_value: &[u8],
    array: &mut [u8],
) {
    let mut index = vec![0; placed.shape.len()];
    if placed.shape.contains(&0) {
        return;
    }
    loop {
        let (mut from, mut to) = (placed.slot.unwrap_or(0) * layout.slot_stride, placed.target);
        for (axis, at) in index.iter().enumerate() {
            from += (placed.start[axis] + at) * layout.slot_strides[axis];
            to += at * layout.array_strides[axis];
        }
        let to = &mut array[to..to + layout.element_size];
        if placed.slot.is_some() {
            to.copy_from_slice(&slots[from..from + layout.element_size]);
            to.chunks_mut(layout.swap).for_each(<[u8]>::reverse);
        } else {
            to.copy_from_slice(fill_value);
        }
        let mut axis = index.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            if index[axis] < placed.shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let extent = prop_oneof![3 => 1..6usize, 1 => select(vec![8, 16, 31, 32, 33])];
    let element_size = prop_oneof![
        3 => select(vec![1, 2, 4, 8, 16]),
        2 => 1..21usize,
        1 => select(vec![24, 32, 48, 100]),
    ];
    let subchunk = proptest::collection::vec(extent, 0..4);
    (subchunk, element_size)
        .prop_flat_map(|(subchunk, element_size)| {
            let rank = subchunk.len();
            let order: Vec<usize> = (0..rank).collect();
            let orders = || prop_oneof![Just(order.clone()), Just(order.clone()).prop_shuffle()];
            let gap = prop_oneof![2 => Just(0usize), 1 => 1..20usize];
            let one_box = subchunk.iter().map(|&extent| {
                let part = (0..extent).prop_flat_map(move |start| (Just(start), start..=extent));
                prop_oneof![Just((0, extent)), part]
            });
            let one_box = (
                proptest::option::weighted(0.8, 0..5usize),
                one_box.collect::<Vec<_>>(),
            );
            (
                (
                    Just(subchunk),
                    Just(element_size),
                    select(vec![1, 2, 4, 8, 16]),
                ),
                (orders(), orders()),
                (0..3usize, proptest::collection::vec(gap, rank), 0..4usize),
                proptest::collection::vec(one_box, 0..6),
                any::<u64>(),
            )
        })
        .prop_map(
            |(
                (subchunk, element_size, swap),
                (order, array_order),
                (padding, gaps, offset),
                boxes,
                seed,
            )| {
                let is_scalar = subchunk.is_empty();
                Case {
                    // Groups lie within an element.
                    swap: if element_size % swap == 0 { swap } else { 1 },
                    subchunk,
                    element_size,
                    order,
                    padding,
                    slots: 5,
                    array_order,
                    gaps,
                    offset,
                    // The boxes of an array without axes would have one place.
                    boxes: boxes
                        .into_iter()
                        .take(if is_scalar { 1 } else { 6 })
                        .collect(),
                    seed,
                }
            },
        )
}

pub(crate) fn check_place(driver: &dyn Driver, tries: u32) {
    effort::property(tries, &cases(), |case| case.check(driver));
    // Full and ragged blocks, one box and many, rows and planes; elements of every size, in every byte order.
    for (number, (subchunk, boxes)) in [
        (vec![1023], 1),
        (vec![1024], 2),
        (vec![1025], 3),
        (vec![3000], 2),
        (vec![7], 300),
        (vec![3, 21, 35], 3),
        (vec![5, 16, 16], 2),
    ]
    .into_iter()
    .enumerate()
    {
        for (element_size, swap) in [
            (1, 1),
            (2, 1),
            (2, 2),
            (3, 1),
            (4, 2),
            (4, 4),
            (8, 1),
            (8, 2),
            (8, 4),
            (8, 8),
            (12, 4),
            (16, 1),
            (16, 2),
            (16, 4),
            (16, 8),
            (16, 16),
            (24, 8),
        ] {
            let rank = subchunk.len();
            let gap = [0, 1, 16][(number + element_size + swap) % 3];
            let whole = || subchunk.iter().map(|&extent| (0, extent)).collect();
            let case = Case {
                subchunk: subchunk.clone(),
                element_size,
                swap,
                order: (0..rank).collect(),
                padding: number % 2,
                slots: boxes,
                array_order: (0..rank).collect(),
                gaps: (0..rank)
                    .map(|axis| if axis == rank - 1 { gap } else { 0 })
                    .collect(),
                offset: number % 3,
                boxes: (0..boxes)
                    .map(|slot| ((slot % 3 != 1).then_some(slot), whole()))
                    .collect(),
                seed: 7 + element_size as u64,
            };
            case.check(driver).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

#[test]
fn boxes_go_to_their_places() {
    check_place(&Simulation::eager(), 300);
}

fn layout(element_size: usize, slot: &[usize], array: &[usize]) -> PlaceLayout {
    PlaceLayout {
        element_size,
        swap: 1,
        slot_stride: 4096,
        slot_strides: slot.to_vec(),
        array_strides: array.to_vec(),
    }
}

fn placed(start: &[usize], shape: &[usize], target: usize) -> PlacedBox {
    PlacedBox {
        slot: Some(1),
        start: start.to_vec(),
        shape: shape.to_vec(),
        target,
    }
}

/// Returns the digits and the unit of one box.
fn described(layout: &PlaceLayout, placed: &PlacedBox, address: u64) -> (Vec<usize>, usize) {
    let part = Part::new(layout, placed, address).expect("described");
    let part = part.expect("has elements");
    let extents = part.digits.iter().map(|digit| digit.extent);
    (extents.collect(), part.unit)
}

#[test]
fn axes_without_gaps_are_one_digit_of_wide_units() {
    let layout = layout(2, &[64, 2], &[64, 2]);
    let whole = placed(&[0, 0], &[32, 32], 0);
    assert_eq!(described(&layout, &whole, 0), (vec![2048], 16));
    // A column of eight elements; one that begins at the third element; an odd one; an odd address.
    assert_eq!(
        described(&layout, &placed(&[0, 8], &[32, 8], 0), 0),
        (vec![32, 16], 16)
    );
    assert_eq!(
        described(&layout, &placed(&[0, 2], &[32, 8], 0), 0),
        (vec![32, 16], 4)
    );
    assert_eq!(
        described(&layout, &placed(&[0, 0], &[32, 7], 0), 0),
        (vec![32, 14], 2)
    );
    assert_eq!(described(&layout, &whole, 8), (vec![2048], 8));
}

#[test]
fn the_fastest_axis_of_the_array_is_the_last_digit() {
    // The array has the axes in the other order.
    let layout = layout(4, &[128, 4], &[4, 256]);
    let whole = placed(&[0, 0], &[16, 8], 0);
    assert_eq!(described(&layout, &whole, 0), (vec![8, 16, 4], 4));
}

#[test]
fn boxes_that_cannot_be_placed() {
    let good = layout(4, &[4], &[4]);
    let plan = |layout: &PlaceLayout, placed: PlacedBox, address| {
        PlacePlan::new(layout, &[placed], address).map(|plan| plan.launches.len())
    };
    assert_eq!(plan(&good, placed(&[0], &[8], 0), 0), Ok(1));
    assert_eq!(plan(&good, placed(&[0], &[0], 0), 0), Ok(0), "no elements");
    assert_eq!(
        plan(&good, placed(&[0, 0], &[8, 8], 0), 0),
        Err(PlaceError::Rank)
    );
    let swapping = PlaceLayout { swap: 4, ..good };
    let unit = 2;
    assert_eq!(
        plan(&swapping, placed(&[0], &[8], 2), 0),
        Err(PlaceError::Swap { swap: 4, unit })
    );
    assert_eq!(
        plan(&swapping, placed(&[0], &[8], 0), 2),
        Err(PlaceError::Swap { swap: 4, unit })
    );
    let vast = layout(1, &[1 << 62, 1], &[1 << 62, 1]);
    assert_eq!(
        plan(&vast, placed(&[0, 0], &[5, 1], 0), 0),
        Err(PlaceError::TooLarge)
    );
    let many = layout(1, &[1], &[1]);
    assert_eq!(
        plan(&many, placed(&[0], &[1 << 31], 1), 0),
        Err(PlaceError::TooLarge),
        "units of a byte"
    );
}

/// A span that is too short is an error, and nothing is launched.
#[test]
fn wrong_geometry_is_an_error() {
    let driver = Simulation::eager();
    let layout = layout(4, &[4], &[4]);
    let plan = PlacePlan::new(&layout, &[placed(&[0], &[8], 16)], 0).expect("planned");
    for (table, slot_bytes, fill, array) in [
        (63, 8192, 16, 48),
        (64, 4096, 16, 48),
        (64, 8192, 15, 48),
        (64, 8192, 16, 47),
    ] {
        let [mut table, mut slot_bytes, mut fill, mut array] =
            [table, slot_bytes, fill, array].map(|len| vec![0; len]);
        let count = slot_bytes.len() / 4096;
        let buffers = &mut [&mut table, &mut slot_bytes, &mut fill, &mut array];
        let error = on(&driver, buffers, |stream, spans| {
            let slots = slots(spans[1], 4096, count);
            // SAFETY: nothing is launched.
            unsafe { plan.enqueue(&driver, stream, (spans[0], slots), spans[2], spans[3]) }
        })
        .expect_err("too short");
        assert!(
            error.to_string().starts_with("launching place_16"),
            "{error}"
        );
    }
}

/// Whole subchunks are moved once, beside the table.
#[test]
fn elements_are_moved_once() {
    let driver = counting();
    let case = Case {
        subchunk: vec![32, 32, 32],
        element_size: 2,
        swap: 1,
        order: vec![0, 1, 2],
        padding: 0,
        slots: 2,
        array_order: vec![0, 1, 2],
        gaps: vec![0, 0, 32],
        offset: 0,
        boxes: vec![(Some(0), vec![(0, 32); 3]), (Some(1), vec![(0, 32); 3])],
        seed: 3,
    };
    case.check(&driver)
        .unwrap_or_else(|error| panic!("{error}"));
    let (moved, _) = sectors(&driver);
    let least = 2 * 2 * (32 * 32 * 32 * 2) / 32;
    let percent = moved * 100 / least;
    assert!(
        (100..=125).contains(&percent),
        "{moved} sectors for {least}"
    );
}

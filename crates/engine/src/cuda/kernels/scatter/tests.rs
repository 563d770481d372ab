//! Compares scatter and unscatter with copies of one element after the other, on any driver. Counts
//! the sectors that they move, on the simulated driver.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use zarrs_cuda_testing::effort;

use super::super::spans::testing::{counting, noise, to_u32s, u32s};
use super::super::testing::run as on;
use super::tiles::SECTOR;
use super::*;
use crate::cuda::driver::simulation::{AccessCount, Simulation, kernel};
use crate::layout::{LiftBatch, LiftSlab};

/// A slab of a batch.
#[derive(Clone, Debug)]
struct Geometry {
    counts: Vec<usize>,
    subchunk: Vec<usize>,
    element_size: usize,
    order: Vec<usize>,
    slot_stride: usize,
    start: Vec<usize>,
    shape: Vec<usize>,
}

impl Geometry {
    /// Returns a slab that is the whole batch, with slots as short as possible.
    fn whole(counts: &[usize], subchunk: &[usize], element_size: usize, order: &[usize]) -> Self {
        let len = subchunk.iter().product::<usize>() * element_size;
        Self {
            counts: counts.to_vec(),
            subchunk: subchunk.to_vec(),
            element_size,
            order: order.to_vec(),
            slot_stride: len.next_multiple_of(16),
            start: vec![0; counts.len()],
            shape: std::iter::zip(counts, subchunk)
                .map(|(a, b)| a * b)
                .collect(),
        }
    }

    fn lift(&self) -> Lift {
        let batch = LiftBatch {
            counts: &self.counts,
            subchunk: &self.subchunk,
            element_size: self.element_size,
            order: &self.order,
            slot_stride: self.slot_stride,
        };
        let slab = LiftSlab {
            start: &self.start,
            shape: &self.shape,
        };
        Lift::new(&batch, &slab).expect("a slab of the batch")
    }

    fn slots(&self) -> usize {
        self.counts.iter().product()
    }

    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the slot of each element of the slab, and the offset in the slot.
    fn places(&self) -> Vec<(usize, usize)> {
        let mut index = self.start.clone();
        let mut places = Vec::with_capacity(self.elements());
        for _ in 0..self.elements() {
            let (mut slot, mut element) = (0, 0);
            for (axis, index) in index.iter().enumerate() {
                slot = slot * self.counts[axis] + index / self.subchunk[axis];
            }
            for &axis in &self.order {
                element = element * self.subchunk[axis] + index[axis] % self.subchunk[axis];
            }
            places.push((slot, element * self.element_size));
            for axis in (0..index.len()).rev() {
                index[axis] += 1;
                if index[axis] < self.start[axis] + self.shape[axis] {
                    break;
                }
                index[axis] = self.start[axis];
            }
        }
        places
    }
}

fn geometries() -> impl Strategy<Value = Geometry> {
    let extent = prop_oneof![
        4 => 1..7usize,
        1 => select(vec![8, 16, 31, 32, 33, 64, 97]),
    ];
    let axis = (1..5usize, extent, any::<bool>(), any::<[Index; 2]>());
    let element_size = prop_oneof![
        3 => select(vec![1, 2, 4, 8, 16]),
        2 => 1..21usize,
        1 => select(vec![24, 32, 48, 100]),
    ];
    let slot = (0..3usize, any::<bool>());
    (proptest::collection::vec(axis, 0..6), element_size, slot)
        .prop_flat_map(|(axes, element_size, slot)| {
            let order: Vec<usize> = (0..axes.len()).collect();
            // Half of the orders are C order.
            let order = prop_oneof![Just(order.clone()), Just(order).prop_shuffle()];
            (Just(axes), Just(element_size), Just(slot), order)
        })
        .prop_map(|(axes, element_size, (padding, aligned), order)| {
            let mut geometry = Geometry::whole(&[], &[], element_size, &order);
            let mut bytes = element_size;
            for (mut count, mut extent, whole, [a, b]) in axes {
                if bytes * count * extent > 200_000 {
                    (count, extent) = (1, 2);
                }
                bytes *= count * extent;
                let (start, shape) = if whole {
                    let first = a.index(count);
                    (first * extent, (1 + b.index(count - first)) * extent)
                } else {
                    let first = a.index(extent);
                    (b.index(count) * extent + first, 1 + b.index(extent - first))
                };
                geometry.counts.push(count);
                geometry.subchunk.push(extent);
                geometry.start.push(start);
                geometry.shape.push(shape);
            }
            let len = geometry.subchunk.iter().product::<usize>() * element_size;
            geometry.slot_stride = if aligned {
                len.next_multiple_of(16) + padding * 16
            } else {
                len + padding
            };
            geometry
        })
}

/// The content of a slab, in relation to the fill value.
#[derive(Clone, Copy, Debug)]
enum Content {
    Noise,
    Fill,
    /// The fill value, but for one bit.
    Almost(u64),
    /// Some slots hold only the fill value.
    Some(u64),
}

#[derive(Clone, Debug)]
struct Case {
    geometry: Geometry,
    swap: usize,
    fill: Vec<u8>,
    content: Content,
    flags: bool,
    /// Where spans begin in their allocations.
    offset: usize,
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let content = prop_oneof![
        Just(Content::Noise),
        Just(Content::Fill),
        any::<u64>().prop_map(Content::Almost),
        any::<u64>().prop_map(Content::Some),
    ];
    let rest = (content, 0..6u32, 0..3usize, any::<bool>(), any::<u64>());
    (geometries(), rest).prop_map(|(geometry, (content, swap, fill, flags, seed))| {
        let size = geometry.element_size;
        let fill = match fill {
            0 => vec![0; size],
            // Minus zero, as a big-endian or little-endian number.
            1 => {
                let mut fill = vec![0; size];
                fill[if seed.is_multiple_of(2) { 0 } else { size - 1 }] = 0x80;
                fill
            }
            _ => noise(seed ^ 1, size),
        };
        // Groups of bytes that divide an element and the stride of slots.
        let whole = (size | geometry.slot_stride).trailing_zeros().min(4);
        Case {
            geometry,
            swap: 1 << swap.min(whole),
            fill,
            content,
            flags,
            offset: seed as usize % 3 * 16,
            seed,
        }
    })
}

fn swapped(bytes: &[u8], group: usize) -> Vec<u8> {
    bytes
        .chunks(group)
        .flat_map(|group| group.iter().rev().copied())
        .collect()
}

/// Returns `offset` bytes of noise, and then `bytes`.
fn behind(offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut all = noise(offset as u64, offset);
    all.extend_from_slice(bytes);
    all
}

fn part(span: DeviceSpan, offset: usize) -> DeviceSpan {
    after(span, offset)
}

fn same(what: &str, got: &[u8], expected: &[u8], case: &Case) -> Result<(), TestCaseError> {
    let wrong = std::iter::zip(got, expected).position(|(a, b)| a != b);
    prop_assert!(
        got.len() == expected.len() && wrong.is_none(),
        "{} differ at byte {:?} of {}, in {:?}",
        what,
        wrong,
        expected.len(),
        case
    );
    Ok(())
}

impl Case {
    fn scatter(&self) -> SlabScatter {
        SlabScatter::new(&self.geometry.lift(), self.swap, &self.fill).expect("within the limits")
    }

    fn slab(&self, places: &[(usize, usize)]) -> Vec<u8> {
        let size = self.geometry.element_size;
        let mut slab = self.fill.repeat(places.len());
        match self.content {
            Content::Noise => noise(self.seed, slab.len()),
            Content::Fill => slab,
            Content::Almost(bit) => {
                let bit =
                    usize::try_from(bit % (slab.len() as u64 * 8)).expect("a bit of the slab");
                slab[bit / 8] ^= 1 << (bit % 8);
                slab
            }
            Content::Some(seed) => {
                let chosen = noise(seed, self.geometry.slots());
                for (element, (slot, within)) in slab.chunks_mut(size).zip(places) {
                    if chosen[*slot] & 1 == 1 && (within / size).is_multiple_of(7) {
                        element.copy_from_slice(&noise(seed ^ *within as u64, size));
                    }
                }
                slab
            }
        }
    }

    fn check_scatter(&self, driver: &dyn Driver) -> Result<(), TestCaseError> {
        let (geometry, offset) = (&self.geometry, self.offset);
        let size = geometry.element_size;
        let places = geometry.places();
        let slab = self.slab(&places);
        let before = noise(!self.seed, geometry.slots() * geometry.slot_stride);
        let mut expected = before.clone();
        // Flags that are raised already stay as they are.
        let flags: Vec<u32> = noise(self.seed, geometry.slots())
            .iter()
            .map(|&dice| if dice < 16 { 5 } else { 0 })
            .collect();
        let mut expected_flags = flags.clone();
        for (element, (slot, within)) in slab.chunks(size).zip(&places) {
            let to = slot * geometry.slot_stride + within;
            expected[to..to + size].copy_from_slice(&swapped(element, self.swap));
            if self.flags && element != self.fill && expected_flags[*slot] == 0 {
                expected_flags[*slot] = 1;
            }
        }
        let mut buffers = [
            behind(offset, &slab),
            behind(offset, &before),
            behind(offset, &u32s(&flags)),
            behind(offset, &SlabScatter::fill_pattern(&self.fill)),
        ];
        let [a, b, c, d] = &mut buffers;
        on(driver, &mut [a, b, c, d], |stream, spans| {
            let [slab, slots, flags, fill] = [0, 1, 2, 3].map(|i| part(spans[i], offset));
            // SAFETY: the spans cover the buffers.
            unsafe {
                let flags = self.flags.then_some(flags);
                self.scatter()
                    .enqueue_scatter(driver, stream, slab, slots, flags, fill)
            }
        })
        .map_err(|error| TestCaseError::fail(format!("{error}, in {self:?}")))?;
        same("slots", &buffers[1], &behind(offset, &expected), self)?;
        prop_assert_eq!(to_u32s(&buffers[2][offset..]), expected_flags, "{:?}", self);
        same("slabs", &buffers[0][offset..], &slab, self)
    }

    fn check_unscatter(&self, driver: &dyn Driver) -> Result<(), TestCaseError> {
        let (geometry, offset) = (&self.geometry, self.offset);
        let size = geometry.element_size;
        let places = geometry.places();
        let slots = noise(self.seed, geometry.slots() * geometry.slot_stride);
        // Any number but 0 means that a subchunk is present.
        let present: Vec<u32> = noise(!self.seed, geometry.slots())
            .iter()
            .map(|&dice| u32::from(dice & 1) << (dice % 31))
            .collect();
        let mut expected = Vec::with_capacity(places.len() * size);
        for (slot, within) in &places {
            if self.flags && present[*slot] == 0 {
                expected.extend_from_slice(&self.fill);
            } else {
                let from = slot * geometry.slot_stride + within;
                expected.extend(swapped(&slots[from..from + size], self.swap));
            }
        }
        // Bytes behind the slab, which must not change.
        expected.extend_from_slice(&[0xcc; 32]);
        let mut buffers = [
            behind(offset, &vec![0xcc; expected.len()]),
            behind(offset, &slots),
            behind(offset, &u32s(&present)),
            behind(offset, &SlabScatter::fill_pattern(&self.fill)),
        ];
        let [a, b, c, d] = &mut buffers;
        on(driver, &mut [a, b, c, d], |stream, spans| {
            let [slab, slots, present, fill] = [0, 1, 2, 3].map(|i| part(spans[i], offset));
            // SAFETY: the spans cover the buffers.
            unsafe {
                let present = self.flags.then_some(present);
                self.scatter()
                    .enqueue_unscatter(driver, stream, slots, slab, present, fill)
            }
        })
        .map_err(|error| TestCaseError::fail(format!("{error}, in {self:?}")))?;
        same("slabs", &buffers[0], &behind(offset, &expected), self)?;
        same("slots", &buffers[1][offset..], &slots, self)
    }
}

pub(crate) fn check_scatter(driver: &dyn Driver, tries: u32) {
    effort::property(tries, &cases(), |case| case.check_scatter(driver));
}

pub(crate) fn check_unscatter(driver: &dyn Driver, tries: u32) {
    effort::property(tries, &cases(), |case| case.check_unscatter(driver));
}

/// Checks shapes that fill tiles and blocks completely or partly.
pub(crate) fn check_shapes(driver: &dyn Driver) {
    let shapes: [(&[usize], &[usize], &[usize]); 14] = [
        (&[1, 1], &[100, 100], &[1, 0]),
        // Tiles in a row: their numbers have one digit.
        (&[1, 1], &[600, 4], &[1, 0]),
        (&[1, 1], &[3, 700], &[1, 0]),
        (&[2, 3], &[64, 32], &[1, 0]),
        (&[1, 7], &[67, 5], &[1, 0]),
        (&[3, 40], &[33, 1], &[0, 1]),
        (&[2, 2, 2], &[16, 16, 16], &[2, 1, 0]),
        (&[1, 3, 2], &[9, 13, 17], &[2, 0, 1]),
        (&[1, 1, 2], &[32, 4, 40], &[1, 2, 0]),
        (&[2, 1, 3], &[5, 70, 6], &[0, 2, 1]),
        (&[2, 2, 30], &[4, 4, 4], &[2, 1, 0]),
        (&[1, 2, 30], &[32, 9, 2], &[0, 1, 2]),
        (&[2, 2, 2, 2], &[3, 5, 7, 4], &[3, 1, 2, 0]),
        (&[5000], &[3], &[0]),
    ];
    for (number, (counts, subchunk, order)) in shapes.into_iter().enumerate() {
        for size in [1, 2, 3, 4, 6, 8, 12, 16, 17] {
            let seed = (number * 100 + size) as u64;
            let whole = 1 << (size | 16).trailing_zeros();
            // All of an element swapped with flags, and without; and groups of its bytes.
            for (swap, flags) in [
                (whole, true),
                (whole, false),
                (whole.min(2 << (number % 3)), false),
            ] {
                let case = Case {
                    geometry: Geometry::whole(counts, subchunk, size, order),
                    swap,
                    fill: noise(seed ^ 1, size),
                    content: Content::Some(seed),
                    flags,
                    offset: 0,
                    seed,
                };
                let checked = case
                    .check_scatter(driver)
                    .and_then(|()| case.check_unscatter(driver));
                checked.unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }
}

#[test]
fn slabs_go_into_slots() {
    check_scatter(&Simulation::eager(), 200);
}

#[test]
fn slots_go_into_slabs() {
    check_unscatter(&Simulation::eager(), 200);
}

#[test]
fn tiles_and_blocks_are_full_or_not() {
    check_shapes(&Simulation::eager());
}

fn plan(geometry: &Geometry) -> SlabScatter {
    let fill = vec![0; geometry.element_size];
    SlabScatter::new(&geometry.lift(), 1, &fill).expect("within the limits")
}

/// Returns whether a slab is transposed in tiles, and in which units.
fn chosen(geometry: &Geometry) -> (bool, usize) {
    let scatter = plan(geometry);
    (matches!(scatter.kernels, Kernels::Tiled(_)), scatter.unit)
}

#[test]
fn which_kernel() {
    let cube = |size, order: &[usize]| Geometry::whole(&[2, 8, 8], &[32, 32, 32], size, order);
    for (size, unit) in [
        (1, 16),
        (2, 16),
        (3, 16),
        (4, 16),
        (7, 16),
        (16, 16),
        (20, 16),
    ] {
        assert_eq!(chosen(&cube(size, &[0, 1, 2])), (false, unit));
    }
    for (size, tiled, unit) in [
        (1, true, 1),
        (2, true, 2),
        (4, true, 4),
        (8, true, 8),
        (16, true, 16),
        // A run of one element, whose size is not that of a unit.
        (3, false, 1),
        (6, false, 2),
        (12, false, 4),
        (24, false, 8),
        (48, false, 16),
    ] {
        assert_eq!(chosen(&cube(size, &[2, 1, 0])), (tiled, unit), "{size}");
    }
    // The order leaves rows contiguous.
    assert_eq!(chosen(&cube(2, &[1, 0, 2])), (false, 16));
    // Rows of a subchunk that are so short that they limit the unit.
    let narrow = |last| Geometry::whole(&[4, 64], &[32, last], 2, &[0, 1]);
    assert_eq!(chosen(&narrow(1)), (true, 2));
    assert_eq!(chosen(&narrow(2)), (true, 4));
    assert_eq!(chosen(&narrow(8)), (true, 16));
    assert_eq!(chosen(&narrow(3)), (false, 2));
    // The stride of slots limits the unit, too.
    let mut odd = narrow(16);
    odd.slot_stride += 2;
    assert_eq!(chosen(&odd), (false, 2));
    // A scalar, and a subchunk of one element.
    assert_eq!(chosen(&Geometry::whole(&[], &[], 8, &[])), (false, 8));
    assert_eq!(chosen(&Geometry::whole(&[9], &[1], 8, &[0])), (false, 8));
}

/// Returns the worst number of threads of a warp that access different words of one bank of shared
/// memory, when a full tile is processed in the order of the slots.
fn bank_conflicts(scatter: &SlabScatter) -> usize {
    let Kernels::Tiled(parameters) = &scatter.kernels else {
        panic!("not tiled");
    };
    let digits = &parameters.slot_digits[..parameters.slot_digit_count as usize];
    let shared = |mut number: usize| {
        let mut at = 0;
        for digit in digits.iter().rev() {
            at += number % digit.extent as usize * digit.shared as usize;
            number /= digit.extent as usize;
        }
        at * scatter.unit
    };
    // A warp accesses wider units in several turns, of 128 bytes each.
    let lanes = 128 / scatter.unit.max(4);
    let mut worst = 0;
    for first in (0..parameters.units as usize).step_by(lanes) {
        let mut words: Vec<usize> = (first..first + lanes)
            .flat_map(|number| {
                let begin = shared(number);
                begin / 4..(begin + scatter.unit).div_ceil(4)
            })
            .collect();
        words.sort_unstable();
        words.dedup();
        let mut banks = [0; 32];
        for word in words {
            banks[word % 32] += 1;
        }
        worst = worst.max(banks.into_iter().max().unwrap_or(0));
    }
    worst
}

#[test]
fn threads_of_a_warp_meet_different_banks() {
    for size in [1, 2, 4, 8, 16] {
        for extent in [32, 64] {
            for order in [&[2, 1, 0], &[1, 2, 0], &[0, 2, 1], &[2, 0, 1]] {
                let geometry = Geometry::whole(&[1, 4, 4], &[extent, extent, extent], size, order);
                assert_eq!(
                    bank_conflicts(&plan(&geometry)),
                    1,
                    "{size} {extent} {order:?}"
                );
            }
        }
    }
}

#[test]
fn units_of_a_thread_differ_in_one_digit() {
    let leaps = |geometry: &Geometry| {
        let scatter = plan(geometry);
        let Kernels::Tiled(parameters) = &scatter.kernels else {
            panic!("not tiled");
        };
        [parameters.slab_leap, parameters.slot_leap].map(|by| by > 0)
    };
    for size in [1, 2, 4, 8, 16] {
        for extent in [32, 64] {
            for order in [&[2, 1, 0], &[1, 2, 0], &[0, 2, 1], &[2, 0, 1]] {
                let geometry = Geometry::whole(&[1, 4, 4], &[extent, extent, extent], size, order);
                assert_eq!(leaps(&geometry), [true; 2], "{size} {extent} {order:?}");
            }
        }
    }
    // 35 rows of 33 units: a thread's units are not a whole number of rows apart.
    let odd = Geometry::whole(&[1, 1], &[33, 35], 2, &[1, 0]);
    assert_eq!(leaps(&odd), [false; 2]);
}

/// Returns the sectors that the loads of a launch move, and its stores, and the fewest possible.
fn moved(geometry: &Geometry, inverse: bool) -> [(u64, u64); 2] {
    let driver = counting();
    let scatter = plan(geometry);
    let mut slab = noise(1, geometry.elements() * geometry.element_size);
    let mut slots = noise(2, geometry.slots() * geometry.slot_stride);
    on(&driver, &mut [&mut slab, &mut slots], |stream, spans| {
        let (slab, slots) = (spans[0], spans[1]);
        // SAFETY: the spans cover the buffers.
        unsafe {
            if inverse {
                scatter.enqueue_unscatter(&driver, stream, slots, slab, None, slab)
            } else {
                scatter.enqueue_scatter(&driver, stream, slab, slots, None, slab)
            }
        }
    })
    .expect("launches");
    let counts = driver.sectors();
    [false, true].map(|write| {
        let counts = counts.iter().filter(|count| count.write == write);
        counts.fold((0, 0), |(sectors, ideal), count| {
            (sectors + count.sectors, ideal + count.ideal)
        })
    })
}

/// Checks that loads and stores each move at most `percent` of the ideal, in both directions.
fn check_moved(geometry: &Geometry, percent: u64) {
    let ideal = (geometry.elements() * geometry.element_size / SECTOR) as u64;
    for inverse in [false, true] {
        for (sectors, least) in moved(geometry, inverse) {
            assert_eq!(least, ideal);
            assert!(
                sectors * 100 <= ideal * percent && sectors >= ideal,
                "{sectors} sectors for {ideal}, inverse: {inverse}, {geometry:?}"
            );
        }
    }
}

#[test]
fn sectors_of_c_order() {
    let cube = |extent| Geometry::whole(&[1, 2, 4], &[extent; 3], 2, &[0, 1, 2]);
    check_moved(&cube(32), 100);
    check_moved(&cube(16), 100);
}

#[test]
fn sectors_of_a_transposing_order() {
    for size in [1, 2, 4, 8, 16] {
        for order in [&[2, 1, 0], &[1, 2, 0], &[0, 2, 1], &[2, 0, 1]] {
            let geometry = Geometry::whole(&[1, 2, 4], &[32, 32, 32], size, order);
            check_moved(&geometry, 100);
        }
    }
    // Narrow subchunks: tiles are as long as a row of them.
    check_moved(
        &Geometry::whole(&[2, 2, 16], &[8, 8, 8], 2, &[2, 1, 0]),
        100,
    );
    check_moved(
        &Geometry::whole(&[2, 2, 64], &[16, 16, 2], 2, &[0, 1, 2]),
        100,
    );
}

/// Returns what a launch with flags moves. All flags are `flag` before.
fn counts_with_flags(geometry: &Geometry, inverse: bool, flag: u32) -> Vec<AccessCount> {
    let driver = counting();
    let scatter = plan(geometry);
    let mut slab = noise(1, geometry.elements() * geometry.element_size);
    let mut slots = noise(2, geometry.slots() * geometry.slot_stride);
    let mut flags = u32s(&vec![flag; geometry.slots()]);
    let mut fill = SlabScatter::fill_pattern(&vec![0; geometry.element_size]);
    let buffers = &mut [&mut slab, &mut slots, &mut flags, &mut fill];
    on(&driver, buffers, |stream, spans| {
        let &[slab, slots, flags, fill] = spans else {
            panic!("{} spans", spans.len());
        };
        // SAFETY: the spans cover the buffers.
        unsafe {
            if inverse {
                scatter.enqueue_unscatter(&driver, stream, slots, slab, Some(flags), fill)
            } else {
                scatter.enqueue_scatter(&driver, stream, slab, slots, Some(flags), fill)
            }
        }
    })
    .expect("launches");
    driver.sectors()
}

/// Returns the sectors that a launch with flags moves, in percent of reading and writing the box
/// once. All flags are `flag` before.
fn percent_with_flags(geometry: &Geometry, inverse: bool, flag: u32) -> u64 {
    let counts = counts_with_flags(geometry, inverse, flag);
    let sectors: u64 = counts.iter().map(|count| count.sectors).sum();
    sectors * 100 / (2 * geometry.elements() * geometry.element_size / SECTOR) as u64
}

/// However many warps and lanes meet a slot at the same time: one store, and nothing atomic.
#[test]
fn a_warp_raises_a_flag_with_one_store() {
    let cases = [
        Geometry::whole(&[1], &[5000], 16, &[0]),
        Geometry::whole(&[2, 3, 4], &[5, 4, 6], 16, &[0, 1, 2]),
        Geometry::whole(&[1, 2, 4], &[32; 3], 2, &[0, 1, 2]),
        Geometry::whole(&[700], &[3], 1, &[0]),
        Geometry::whole(&[1, 2, 4], &[32; 3], 2, &[2, 1, 0]),
        Geometry::whole(&[2, 2, 64], &[16, 16, 2], 4, &[0, 1, 2]),
    ];
    for geometry in cases {
        let (is_tile, unit) = chosen(&geometry);
        let name = format!("scatter_{}{unit}", if is_tile { "tile_" } else { "" });
        let kernel = kernel(&name).expect("a kernel");
        let lines = |part: &str| -> Vec<u32> {
            let lines = kernel
                .instructions()
                .filter(|(_, text)| text.contains(part));
            lines.map(|(line, _)| line).collect()
        };
        assert_eq!(lines("atom."), [0; 0]);
        assert_eq!(lines("red.global"), [0; 0]);
        let flags = lines("st.volatile.");
        let counts = counts_with_flags(&geometry, false, 0);
        let stores: u64 = counts
            .iter()
            .filter(|count| flags.contains(&count.line))
            .map(|count| count.accesses)
            .sum();
        let slots = geometry.slots() as u64;
        // Two warps may find the flag of the slot that they share at the same time.
        assert_eq!(stores, slots, "{geometry:?}");
    }
}

#[test]
fn sectors_with_flags() {
    let plain = Geometry::whole(&[1, 2, 4], &[32; 3], 2, &[0, 1, 2]);
    // A warp loads a sector of flags for every 16 of the slab, and of the fill value for every 64.
    for flag in [0, 1] {
        let percent = percent_with_flags(&plain, false, flag);
        assert!((103..=104).contains(&percent), "{percent} %");
    }
    assert_eq!(percent_with_flags(&plain, true, 1), 103);
    // Slots of absent subchunks are not read. The fill value is: a sector for every 16 stored.
    assert_eq!(percent_with_flags(&plain, true, 0), 56);
    // A warp transposes 64 bytes at a time. Scatter reads a flag when a thread first meets a slot,
    // unscatter reads one for each unit.
    let tiled = Geometry::whole(&[1, 2, 4], &[32; 3], 2, &[2, 1, 0]);
    for (inverse, flag, most) in [
        (false, 0, 105),
        (false, 1, 105),
        (true, 0, 77),
        (true, 1, 127),
    ] {
        let percent = percent_with_flags(&tiled, inverse, flag);
        assert!(percent <= most, "{percent} %, inverse: {inverse}, {flag}");
    }
}

#[test]
fn wrong_geometry_is_an_error() {
    let geometry = Geometry::whole(&[2, 2], &[4, 4], 2, &[0, 1]);
    let lift = geometry.lift();
    let fill = ScatterError::FillValue {
        got: 3,
        expected: 2,
    };
    assert_eq!(SlabScatter::new(&lift, 1, &[0; 3]), Err(fill));
    for swap in [0, 3, 32] {
        let error = ScatterError::Swap { swap, unit: 8 };
        assert_eq!(SlabScatter::new(&lift, swap, &[0; 2]), Err(error));
    }

    // More than 2³¹ bytes, in units of one.
    let huge = Geometry::whole(&[1 << 16, 2], &[1 << 8, 129], 1, &[0, 1]);
    let error = SlabScatter::new(&huge.lift(), 1, &[0]).expect_err("too large");
    assert!(
        matches!(error, ScatterError::TooLarge { unit: 1, .. }),
        "{error}"
    );

    // The most digits that there can be: none can be merged with the next.
    let order: Vec<usize> = (0..15).collect();
    let deep = Geometry::whole(&[2; 15], &[2; 15], 1, &order);
    let parameters = plain(&deep.lift(), 1, 1).expect("within the limits");
    assert_eq!((parameters.digit_count, parameters.units), (30, 1 << 30));
    assert_eq!(chosen(&deep), (true, 2));

    let driver = Simulation::eager();
    let scatter = SlabScatter::new(&lift, 2, &[0; 2]).expect("within the limits");
    let launch = |change: &dyn Fn(&mut [DeviceSpan; 4])| {
        let mut bytes: [_; 4] = std::array::from_fn(|_| vec![0; 256]);
        let [a, b, c, d] = &mut bytes;
        let mut result = Ok(());
        on(&driver, &mut [a, b, c, d], |stream, spans| {
            let mut spans = [0, 1, 2, 3].map(|i| spans[i]);
            for (span, len) in spans.iter_mut().zip([128, 128, 16, 8]) {
                span.len = len;
            }
            change(&mut spans);
            let [slab, slots, flags, fill] = spans;
            // SAFETY: the spans cover the buffers.
            result = unsafe {
                scatter
                    .enqueue_scatter(&driver, stream, slab, slots, Some(flags), fill)
                    .and_then(|()| {
                        scatter.enqueue_unscatter(&driver, stream, slots, slab, Some(flags), fill)
                    })
            };
            Ok(())
        })
        .expect("no launch");
        result
    };
    launch(&|_| ()).expect("fits");
    for wrong in 0..4 {
        let error = launch(&|spans| spans[wrong].len -= 1).expect_err("too short");
        assert!(
            error.to_string().starts_with("launching scatter_"),
            "{error}"
        );
        let error = launch(&|spans| spans[wrong].offset += 2).expect_err("misaligned");
        assert!(error.to_string().contains("not a multiple"), "{error}");
    }
}

//! The registers of a warp.

use crate::ptx::instruction::LANES;
use crate::ptx::kernel::{Kernel, Special};

/// A register of 32 bits in each lane.
pub(super) type Narrow = [u32; LANES];
/// A register of 64 bits in each lane.
pub(super) type Wide = [u64; LANES];

/// All lanes.
pub(super) const ALL: u32 = u32::MAX;

/// The registers of a warp. A predicate is a bit for each lane.
#[derive(Debug)]
pub(super) struct Warp {
    pub(super) predicates: Vec<u32>,
    pub(super) narrow: Vec<Narrow>,
    pub(super) wide: Vec<Wide>,
}

impl Warp {
    /// The registers of a warp, with the constants of `kernel`.
    pub(super) fn new(kernel: &Kernel) -> Self {
        let registers = &kernel.registers;
        let mut warp = Self {
            predicates: vec![0; registers.predicates],
            narrow: vec![[0; LANES]; registers.narrow],
            wide: vec![[0; LANES]; registers.wide],
        };
        for (register, value) in &registers.constant_predicates {
            warp.predicates[usize::from(*register)] = if *value { ALL } else { 0 };
        }
        for (register, value) in &registers.constants {
            warp.narrow[usize::from(*register)] = [*value; LANES];
        }
        for (register, value) in &registers.wide_constants {
            warp.wide[usize::from(*register)] = [*value; LANES];
        }
        warp
    }

    /// Begin as warp `number` of a block of a grid. Other registers keep what was in them.
    pub(super) fn begin(&mut self, kernel: &Kernel, number: usize, block: u32, grid: u32) {
        let first = (number * LANES) as u32;
        for (register, special) in &kernel.registers.specials {
            self.narrow[usize::from(*register)] = match special {
                Special::Thread => std::array::from_fn(|lane| first + lane as u32),
                Special::Block => [block; LANES],
                Special::BlockSize => [kernel.threads; LANES],
                Special::BlockCount => [grid; LANES],
            };
        }
    }

    /// Set register `d` in the lanes of `mask`.
    #[inline(always)]
    pub(super) fn set_narrow(&mut self, d: u16, mask: u32, values: Narrow) {
        blend(&mut self.narrow[usize::from(d)], mask, values);
    }

    #[inline(always)]
    pub(super) fn set_wide(&mut self, d: u16, mask: u32, values: Wide) {
        blend(&mut self.wide[usize::from(d)], mask, values);
    }

    #[inline(always)]
    pub(super) fn set_predicate(&mut self, d: u16, mask: u32, values: u32) {
        let to = &mut self.predicates[usize::from(d)];
        *to = *to & !mask | values & mask;
    }
}

/// Set the lanes of `mask` to `values`.
#[inline(always)]
pub(super) fn blend<T: Copy>(to: &mut [T; LANES], mask: u32, values: [T; LANES]) {
    if mask == ALL {
        *to = values;
        return;
    }
    for lane in 0..LANES {
        if mask >> lane & 1 != 0 {
            to[lane] = values[lane];
        }
    }
}

/// The lanes in `mask`.
pub(super) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        if lane == u32::BITS {
            return None;
        }
        mask &= mask - 1;
        Some(lane as usize)
    })
}

/// The lanes in `mask`, for people: `0-3, 7`.
pub(super) fn list(mask: u32) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for lane in lanes(mask) {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == lane => *last = lane,
            _ => runs.push((lane, lane)),
        }
    }
    let runs = runs.iter().map(|(first, last)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    });
    runs.collect::<Vec<_>>().join(", ")
}

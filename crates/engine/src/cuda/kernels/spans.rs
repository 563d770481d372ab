//! The checks of the arguments before every launch: spans are long enough, and aligned.

use std::ops::Range;

use crate::cuda::driver::{Arg, DeviceSpan, Dims, Driver, DriverError, Fault, StreamId};

/// Subchunk slots: `count` slots, one every `stride` bytes from the beginning of `span`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    pub span: DeviceSpan,
    /// The number of bytes from one slot to the next, a multiple of 16.
    pub stride: usize,
    pub count: usize,
}

impl Slots {
    /// Returns the slots with the numbers `range`.
    pub(crate) fn part(self, range: &Range<usize>) -> Self {
        Self {
            span: sub_span(
                self.span,
                range.start * self.stride..range.end * self.stride,
            ),
            count: range.len(),
            ..self
        }
    }

    /// Returns the span of the slots' bytes. The field `span` may be longer.
    pub(crate) fn filled(self) -> DeviceSpan {
        DeviceSpan {
            len: self.stride * self.count,
            ..self.span
        }
    }
}

/// Returns the bytes `range` of a span. The range must lie within the span.
pub(crate) fn sub_span(span: DeviceSpan, range: Range<usize>) -> DeviceSpan {
    DeviceSpan {
        offset: span.offset + range.start,
        len: range.len(),
        ..span
    }
}

/// The number of bytes that each slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// A span with a `u64` for each slot.
    Each(DeviceSpan),
    /// The same length for all slots.
    All(usize),
}

/// The largest number of blocks of a launch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Most {
    PerMultiprocessor(u32),
    /// A number for the whole device, so that even little work takes several rounds on any device.
    #[cfg(test)]
    InAll(u32),
}

/// A launch of `kernel`, whose arguments are being checked.
#[derive(Clone, Copy)]
pub(super) struct Launch<'a> {
    pub(super) driver: &'a dyn Driver,
    pub(super) stream: StreamId,
    pub(super) kernel: &'static str,
}

impl Launch<'_> {
    /// Returns an error unless `condition` holds.
    pub(super) fn require(
        &self,
        condition: bool,
        reason: impl FnOnce() -> String,
    ) -> Result<(), DriverError> {
        if condition {
            return Ok(());
        }
        Err(DriverError {
            operation: format!("launching {}", self.kernel),
            device: Some(self.driver.device().ordinal),
            fault: Fault::Refused,
            reason: reason(),
        })
    }

    /// Returns the span of the first `count` elements of `size` bytes of `span`. Checks that `span` has so
    /// many elements, and begins at a multiple of `align`. Allocations begin at multiples of 256.
    pub(super) fn elements(
        &self,
        what: &str,
        span: DeviceSpan,
        count: usize,
        size: usize,
        align: usize,
    ) -> Result<DeviceSpan, DriverError> {
        let needed = count.checked_mul(size).filter(|&len| len <= span.len);
        self.require(needed.is_some(), || {
            format!(
                "{what} has {} bytes, and not {count} of {size} bytes each",
                span.len
            )
        })?;
        self.require(span.offset.is_multiple_of(align), || {
            format!(
                "{what} begins at byte {}, which is not a multiple of {align}",
                span.offset
            )
        })?;
        let len = needed.unwrap_or(0);
        Ok(DeviceSpan { len, ..span })
    }

    /// Checks `slots`, and returns the span of their bytes.
    pub(super) fn slots(&self, what: &str, slots: Slots) -> Result<DeviceSpan, DriverError> {
        self.require(slots.stride.is_multiple_of(16), || {
            format!(
                "{what} are {} bytes apart, which is not a multiple of 16",
                slots.stride
            )
        })?;
        self.elements(what, slots.span, slots.count, slots.stride, 16)
    }

    /// Returns the number of blocks for `units` units, of which a block processes `per_block` at a time, but
    /// at most `most`. The kernel processes the remaining units in further rounds.
    pub(super) fn grid(&self, units: usize, per_block: usize, most: Most) -> u32 {
        let most = match most {
            Most::PerMultiprocessor(blocks) => {
                self.driver.device().multiprocessors.clamp(1, 1 << 12) * blocks
            }
            #[cfg(test)]
            Most::InAll(blocks) => blocks,
        };
        u32::try_from(units.div_ceil(per_block)).map_or(most, |blocks| blocks.clamp(1, most))
    }

    /// Launches the kernel with `grid` blocks of `block` threads.
    ///
    /// # Safety
    /// As for [`Driver::launch`].
    pub(super) unsafe fn run(
        self,
        grid: u32,
        block: u32,
        args: &[Arg<'_>],
    ) -> Result<(), DriverError> {
        // SAFETY: this function has the same requirements, which its caller keeps.
        unsafe {
            self.driver
                .launch(self.stream, self.kernel, Dims { grid, block }, args)
        }
    }
}

#[cfg(test)]
pub(super) mod testing {
    //! Helpers for the kernels' tests.

    use super::*;
    use crate::cuda::driver::simulation::{AccessCount, Config, Simulation};
    use proptest::prelude::*;

    pub(in crate::cuda::kernels) fn u64s(numbers: &[u64]) -> Vec<u8> {
        numbers.iter().flat_map(|n| n.to_ne_bytes()).collect()
    }

    pub(in crate::cuda::kernels) fn u32s(numbers: &[u32]) -> Vec<u8> {
        numbers.iter().flat_map(|n| n.to_ne_bytes()).collect()
    }

    pub(in crate::cuda::kernels) fn to_u64s(bytes: &[u8]) -> Vec<u64> {
        let (words, []) = bytes.as_chunks() else {
            panic!("{} bytes", bytes.len());
        };
        words.iter().map(|&word| u64::from_ne_bytes(word)).collect()
    }

    pub(in crate::cuda::kernels) fn to_u32s(bytes: &[u8]) -> Vec<u32> {
        let (words, []) = bytes.as_chunks() else {
            panic!("{} bytes", bytes.len());
        };
        words.iter().map(|&word| u32::from_ne_bytes(word)).collect()
    }

    /// Returns pseudo-random bytes.
    pub(in crate::cuda::kernels) fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut state = seed;
        let mut byte = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        };
        (0..len).map(|_| byte()).collect()
    }

    pub(in crate::cuda::kernels) fn slots(span: DeviceSpan, stride: usize, count: usize) -> Slots {
        Slots {
            span,
            stride,
            count,
        }
    }

    /// Either `otherwise`, or so few blocks that they take several rounds.
    pub(in crate::cuda::kernels) fn few_or(otherwise: Most) -> impl Strategy<Value = Most> {
        proptest::sample::select(vec![Most::InAll(1), Most::InAll(3), otherwise])
    }

    /// Returns a simulation that counts sectors.
    pub(in crate::cuda::kernels) fn counting() -> Simulation {
        Simulation::new(Config {
            sectors: true,
            checks_each: true,
            ..Config::default()
        })
    }

    /// Returns the sectors that the last kernel moved, and the fewest possible.
    pub(in crate::cuda::kernels) fn sectors(simulation: &Simulation) -> (u64, u64) {
        let counts: Vec<AccessCount> = simulation.sectors();
        assert!(!counts.is_empty(), "nothing was counted");
        counts.iter().fold((0, 0), |(moved, ideal), count| {
            (moved + count.sectors, ideal + count.ideal)
        })
    }
}

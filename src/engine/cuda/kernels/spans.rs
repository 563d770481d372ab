//! What every launch checks before it runs: spans are long enough, and aligned.

use crate::engine::cuda::driver::{Arg, DeviceSpan, Dims, Driver, DriverError, Fault, StreamId};

/// Subchunk slots: `count` of them, one every `stride` bytes from the begin of `span` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    pub(crate) span: DeviceSpan,
    /// A multiple of 16.
    pub(crate) stride: usize,
    pub(crate) count: usize,
}

/// How many bytes each slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lengths {
    /// A `u64` for each slot.
    Each(DeviceSpan),
    /// The same for all.
    All(usize),
}

/// A launch of `kernel` that is being put together.
#[derive(Clone, Copy)]
pub(super) struct Launch<'a> {
    pub(super) driver: &'a dyn Driver,
    pub(super) stream: StreamId,
    pub(super) kernel: &'static str,
}

impl Launch<'_> {
    /// An error unless `condition` holds.
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

    /// The first `count` elements of `size` bytes of `span`, which begins at a multiple of `align`.
    /// (Allocations begin at multiples of 256.)
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

    /// The bytes of `slots`.
    pub(super) fn slots(&self, what: &str, slots: Slots) -> Result<DeviceSpan, DriverError> {
        self.require(slots.stride.is_multiple_of(16), || {
            format!(
                "{what} are {} bytes apart, which is not a multiple of 16",
                slots.stride
            )
        })?;
        self.elements(what, slots.span, slots.count, slots.stride, 16)
    }

    /// Enough blocks for `units`, of which a block does `per_block` at a time, and at most `waves`
    /// times the multiprocessors. The kernel does what is left in further rounds.
    pub(super) fn grid(&self, units: usize, per_block: usize, waves: u32) -> u32 {
        let most = self.driver.device().multiprocessors.clamp(1, 1 << 12) * waves;
        u32::try_from(units.div_ceil(per_block)).map_or(most, |blocks| blocks.clamp(1, most))
    }

    /// Run it.
    ///
    /// # Safety
    /// As for [`Driver::launch`].
    pub(super) unsafe fn run(
        self,
        grid: u32,
        block: u32,
        args: &[Arg<'_>],
    ) -> Result<(), DriverError> {
        // SAFETY: what the caller promises.
        unsafe {
            self.driver
                .launch(self.stream, self.kernel, Dims { grid, block }, args)
        }
    }
}

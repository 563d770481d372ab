//! The block of slabs of a device, allocated and freed, and the slabs of one read. They are beside the lanes and their
//! budget.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{DeviceLimits, Devices};
use crate::cuda::device::Device;
use crate::cuda::driver::{DriverError, PinnedUse};
use crate::cuda::slabs::free_ranges::FreeRanges;
use crate::cuda::slabs::{Block, PinnedSlab, SlabPool};
use crate::cuda::uses::Uses;

/// The number by which the budget of page-locked memory is divided to get the size of the block, and the most bytes of a
/// block.
const SHARE: (usize, usize) = (4, 256 << 20);

/// The page-locked memory of a device for the encoded bytes of one read, until it is dropped.
pub struct ReadSlabs {
    devices: Arc<Devices>,
    device: Arc<Device>,
    /// The time for which idle memory is kept; `None` for ever.
    idle: Option<Duration>,
}

impl fmt::Debug for ReadSlabs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slabs of CUDA device {}", self.device.info().ordinal)
    }
}

impl Devices {
    /// Begins a read on the device `ordinal`, and returns its slabs. The caller holds no lane, and no thread waits for it:
    /// the driver may block while page-locked memory is allocated.
    ///
    /// # Errors
    /// There is no such device, or it cannot be used.
    pub(in crate::cuda) fn slabs_of_read(
        &self,
        ordinal: usize,
        limits: &DeviceLimits,
    ) -> Result<Option<ReadSlabs>, DriverError> {
        let device = self.numbered(ordinal)?.clone();
        let Some(devices) = self.this.upgrade() else {
            return Ok(None);
        };
        // The read ends when this is dropped, also after a panic.
        let slabs = ReadSlabs {
            devices,
            device,
            idle: limits.idle,
        };
        begin_read(&slabs.device, limits.pinned_memory);
        Ok(Some(slabs))
    }

    /// Frees the page-locked memory for encoded bytes that is to be freed at `now`, and that no read uses; without a time,
    /// all that no read uses.
    pub(super) fn free_slabs(&self, now: Option<Instant>) {
        for device in &self.devices {
            free_block(device, now);
        }
    }
}

/// Begins a read on a device whose budget of page-locked memory has `budget` bytes. Allocates the block if there is none.
/// A thread that comes while another one allocates the block does not wait.
fn begin_read(device: &Device, budget: usize) {
    let (divisor, most) = SHARE;
    let free = FreeRanges::new((budget / divisor).min(most));
    let (pool, len) = (device.slabs(), free.len());
    if !pool.begin(len) {
        return;
    }
    let allocated = device.enter().and_then(|entered| {
        let allocated = device.near(|| device.driver().allocate_pinned(len, PinnedUse::Both));
        let allocated = device.watch(allocated);
        drop(entered);
        allocated
    });
    match allocated {
        Ok(memory) => pool.allocated(Some(Block { memory, free })),
        Err(error) => {
            pool.allocated(None);
            tracing::warn!(%error, bytes = len, "no page-locked memory for encoded bytes, which the host copies more often");
        }
    }
}

/// Frees the block of a device if no read uses it, and if it is to be freed at `now`; without a time, in any case.
fn free_block(device: &Device, now: Option<Instant>) {
    if device.unusable().is_some() {
        return;
    }
    let Some(memory) = device.slabs().take_block(now) else {
        return;
    };
    let freed = device.enter().and_then(|entered| {
        // SAFETY: there is no slab of the block, and none will be taken. A lane that copies from a slab keeps it until the
        // copy is complete.
        let freed = device.watch(unsafe { device.driver().free_pinned(memory) });
        drop(entered);
        freed
    });
    if let Err(error) = freed {
        device.slabs().lose_block();
        tracing::warn!(%error, "freeing page-locked memory for encoded bytes");
    }
}

impl ReadSlabs {
    /// Returns page-locked memory of `len` bytes; `None` if there is no room for it now. The caller reads into other memory
    /// then, from which the bytes are copied on the host. Calls no function of the driver, and waits for nothing. Any
    /// number of threads may call this at once.
    pub fn take(&self, len: usize) -> Option<PinnedSlab> {
        // The use begins before the check, so that no device is ended in between.
        let of_device = Uses::begin(&self.devices.uses);
        // A forked child ends here, before it takes a lock.
        if self.device.unusable().is_some() || self.devices.check_open().is_err() {
            return None;
        }
        SlabPool::take(self.device.slabs(), len, of_device)
    }
}

impl Drop for ReadSlabs {
    fn drop(&mut self) {
        if self.devices.process.forked() {
            return;
        }
        let until = self.idle.and_then(|idle| Instant::now().checked_add(idle));
        self.device.slabs().end(until);
        if let Some(until) = until {
            let state = self.devices.lock();
            self.devices.call_janitor(until);
            drop(state);
        }
    }
}

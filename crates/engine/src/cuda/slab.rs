//! Slabs: page-locked memory into which the threads of a reader read encoded bytes, and from which a lane copies the
//! bytes to the device.
//!
//! A slab lives apart from the lanes, because a reader fills it while no lane is held. Its memory is used again, or freed,
//! only when no device reads it: a lane [keeps](KeptSlabs) each slab from which it copies until the host has seen the end of
//! the copy, or until the streams of the lane are empty. If the streams cannot be waited for, the slab is lost, and counts
//! against the budget for ever. `lanes/slabs.rs` has the budget.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::device::Device;
use super::driver::{Access, DriverError, PinnedMemory, PinnedSpan, PinnedUse};
use super::lanes::Devices;

/// An allocation of page-locked memory, which is freed on drop.
#[derive(Debug)]
pub(super) struct PinnedBlock {
    device: Arc<Device>,
    /// The memory; `None` after it was freed or lost.
    memory: Option<PinnedMemory>,
    len: usize,
}

impl PinnedBlock {
    /// Allocates `len` bytes near the device, all of them 0. The device's context is current on this thread.
    pub(super) fn allocate(device: &Arc<Device>, len: usize) -> Result<Self, DriverError> {
        let allocated = device.near(|| device.driver().allocate_pinned(len, PinnedUse::Both));
        let block = Self {
            memory: Some(device.watch(allocated)?),
            device: device.clone(),
            len,
        };
        let memory = block.begin_write()?;
        // SAFETY: the allocation has `len` bytes, which nothing else uses yet.
        unsafe { memory.0.as_ptr().write_bytes(0, len) };
        Ok(block)
    }

    /// Declares that the host is about to write the memory, which no device uses. The device's context is current on this
    /// thread.
    pub(super) fn begin_write(&self) -> Result<PinnedMemory, DriverError> {
        let Some(memory) = self.memory else {
            return Err(DriverError {
                operation: "writing page-locked memory".to_string(),
                device: Some(self.device.info().ordinal),
                fault: super::driver::Fault::Refused,
                reason: "it was given back".to_string(),
            });
        };
        let span = PinnedSpan {
            memory,
            offset: 0,
            len: self.len,
        };
        let declared = self.device.driver().host_access(span, Access::Write);
        self.device.watch(declared).map(|()| memory)
    }

    /// Returns the number of allocated bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the memory can be used again.
    pub(super) fn is_usable(&self) -> bool {
        self.memory.is_some() && self.device.unusable().is_none()
    }

    /// Leaves the memory alone for ever.
    pub(super) fn lose(&mut self) {
        self.memory = None;
    }

    /// Frees the memory, which no device uses. Returns false if it is lost: the device is not usable, or refuses.
    pub(super) fn free(&mut self) -> bool {
        let Some(memory) = self.memory.take() else {
            return false;
        };
        let device = &self.device;
        if device.unusable().is_some() {
            return false;
        }
        let freed = device.enter().and_then(|entered| {
            // SAFETY: the slab that had the memory is gone, and no device reads it any more.
            let freed = device.watch(unsafe { device.driver().free_pinned(memory) });
            drop(entered);
            freed
        });
        if let Err(error) = &freed {
            tracing::warn!(%error, lost = self.len, "freeing page-locked memory");
        }
        freed.is_ok()
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        self.free();
    }
}

/// Page-locked memory for encoded bytes. On drop, it is used for other bytes, or freed later.
pub struct PinnedSlab {
    devices: Arc<Devices>,
    /// The index of the device among `devices`.
    index: usize,
    /// The memory; `None` only during the drop.
    block: Option<PinnedBlock>,
    /// The number of bytes that were asked for, of which the block may have more.
    len: usize,
    /// Whether a device may read the memory for ever.
    is_lost: AtomicBool,
    /// The time for which idle memory is kept; `None` for ever.
    idle: Option<Duration>,
}

impl fmt::Debug for PinnedSlab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of page-locked memory", self.len)
    }
}

impl PinnedSlab {
    /// Returns the first `len` bytes of `block` as a slab. All of its bytes were written, and no device uses them.
    pub(super) fn new(
        devices: Arc<Devices>,
        index: usize,
        (block, len): (PinnedBlock, usize),
        idle: Option<Duration>,
    ) -> Self {
        Self {
            devices,
            index,
            len: len.min(block.len()),
            block: Some(block),
            is_lost: AtomicBool::new(false),
            idle,
        }
    }

    fn memory(&self) -> Option<PinnedMemory> {
        self.block.as_ref().and_then(|block| block.memory)
    }

    /// Returns the bytes to fill. Before, they have any content.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let Some(memory) = self.memory() else {
            return &mut [];
        };
        // SAFETY: the allocation has at least `len` bytes, all of which were written. No device uses them before this
        // borrow ends, because lanes copy only from shared slabs.
        unsafe { std::slice::from_raw_parts_mut(memory.0.as_ptr(), self.len) }
    }

    /// Returns the span of the bytes `range`; `None` if there are fewer.
    fn span(&self, range: Range<usize>) -> Option<PinnedSpan> {
        let memory = self.memory()?;
        (range.start <= range.end && range.end <= self.len).then(|| PinnedSpan {
            memory,
            offset: range.start,
            len: range.len(),
        })
    }
}

impl AsRef<[u8]> for PinnedSlab {
    fn as_ref(&self) -> &[u8] {
        self.memory().map_or(&[], |memory| {
            // SAFETY: as in `bytes_mut`. Devices read the memory, and never write it.
            unsafe { std::slice::from_raw_parts(memory.0.as_ptr(), self.len) }
        })
    }
}

impl Drop for PinnedSlab {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            let is_lost = *self.is_lost.get_mut();
            let idle = self.idle;
            self.devices
                .take_back_slab(self.index, block, is_lost, idle);
        }
    }
}

/// The slabs from which a lane copies, each with the number of the group of buffers to which.
#[derive(Debug, Default)]
pub(super) struct KeptSlabs(Mutex<Vec<(usize, Arc<PinnedSlab>)>>);

impl KeptSlabs {
    fn lock(&self) -> MutexGuard<'_, Vec<(usize, Arc<PinnedSlab>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps `slab`, and returns the span of its bytes `range`; `None` if there are fewer.
    pub(super) fn keep(
        &self,
        group: usize,
        slab: &Arc<PinnedSlab>,
        range: Range<usize>,
    ) -> Option<PinnedSpan> {
        let span = slab.span(range)?;
        self.lock().push((group, slab.clone()));
        Some(span)
    }

    /// Gives the slabs of a group back. The copies from them are complete.
    pub(super) fn give_back(&self, group: usize) {
        let is_of_group = |kept: &mut (usize, Arc<PinnedSlab>)| kept.0 == group;
        let kept: Vec<_> = self.lock().extract_if(.., is_of_group).collect();
        // The drop of a slab takes another lock.
        drop(kept);
    }

    /// Gives all slabs back. The copies from them are complete.
    pub(super) fn give_all_back(&self) {
        let kept = std::mem::take(&mut *self.lock());
        drop(kept);
    }

    /// Loses all slabs: the device may read them for ever. Takes no lock.
    pub(super) fn lose_all(&mut self) {
        let kept = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (_, slab) in std::mem::take(kept) {
            slab.is_lost.store(true, Ordering::Relaxed);
        }
    }
}

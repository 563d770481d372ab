//! The slabs of a device, beside its lanes and within the same budget of page-locked memory.
//!
//! Subchunks that wait for a lane hold slabs. So nothing waits for a slab, and a lane that reads waits for no slab:
//!
//! - Slabs have at most [`most_of_slabs`] of the budget, and lanes that read have the rest at most.
//! - Other lanes wait until slabs are given back, because the reads that hold the slabs go on. While any lane is waited
//!   for, nobody gets a slab.
//! - A reader that gets no slab reads into other memory, from which the bytes are copied once more.

use std::time::{Duration, Instant};

use super::pool::{DeviceLanes, SETBACK, add};
use super::{DeviceLimits, Devices};
use crate::contract::BufferBytes;
use crate::cuda::slab::{PinnedBlock, PinnedSlab};

/// The part of a budget that slabs do not share: what a small lane takes.
const OF_LANES: usize = 8 << 20;

/// The least number of bytes of a slab.
const LEAST: usize = 4 << 10;

/// A slab that nobody uses.
#[derive(Debug)]
struct IdleSlab {
    block: PinnedBlock,
    /// The time at which the slab is freed; `None` if it is kept.
    until: Option<Instant>,
}

/// The slabs of one device.
#[derive(Debug, Default)]
pub(super) struct Slabs {
    /// The longest idle first.
    idle: Vec<IdleSlab>,
    /// The bytes of all slabs until they are freed, including idle ones.
    pub(super) bytes: usize,
    /// The time at which an allocation last failed.
    failed: Option<Instant>,
}

/// Returns the most bytes of slabs in a budget of `pinned` bytes.
pub(super) fn most_of_slabs(pinned: usize) -> usize {
    pinned.saturating_sub(OF_LANES) / 2
}

/// Returns the size of a new slab for `len` bytes: an eighth longer at most, so that it suits others, too.
fn size_for(len: usize) -> Option<usize> {
    let step = len.checked_next_power_of_two()? / 16;
    len.checked_next_multiple_of(step.max(LEAST))
}

impl Slabs {
    /// Takes the shortest idle slab for `len` bytes that is not much longer.
    fn reuse(&mut self, len: usize) -> Option<PinnedBlock> {
        let most = len.saturating_mul(2).max(LEAST);
        let fitting = self.idle.iter().enumerate();
        let fitting = fitting.filter(|(_, idle)| (len..=most).contains(&idle.block.len()));
        let (at, _) = fitting.min_by_key(|(_, idle)| idle.block.len())?;
        Some(self.idle.remove(at).block)
    }

    /// Takes the idle slabs that are to be freed at `now`; all of them without a time.
    pub(super) fn take_idle(&mut self, now: Option<Instant>) -> Vec<PinnedBlock> {
        let is_due = |idle: &mut IdleSlab| {
            now.is_none_or(|now| idle.until.is_some_and(|until| until <= now))
        };
        let taken = self.idle.extract_if(.., is_due);
        taken.map(|idle| idle.block).collect()
    }

    /// Returns the time at which the next idle slab is to be freed.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.idle.iter().filter_map(|idle| idle.until).min()
    }
}

impl DeviceLanes {
    /// Takes the longest idle slabs that must be freed for a slab of `size` bytes; `None` if this is not enough.
    fn room_for_slab(&mut self, size: usize, budget: usize) -> Option<Vec<PinnedBlock>> {
        let most = most_of_slabs(budget).min(budget.saturating_sub(self.used.pinned));
        let over = |freed: usize| (self.slabs.bytes - freed).saturating_add(size) > most;
        let (mut freed, mut count) = (0, 0);
        while over(freed) {
            freed += self.slabs.idle.get(count)?.block.len();
            count += 1;
        }
        let taken = self.slabs.idle.drain(..count);
        Some(taken.map(|idle| idle.block).collect())
    }

    /// Counts a slab of `len` bytes no more. If it was not freed, its memory counts as leaked.
    fn slab_is_gone(&mut self, len: usize, is_freed: bool) {
        self.slabs.bytes -= len;
        if !is_freed {
            let pinned = len;
            let lost = BufferBytes {
                pinned,
                ..BufferBytes::default()
            };
            add(&mut self.used, lost);
            add(&mut self.leaked, lost);
        }
    }
}

impl Devices {
    /// Returns a slab of `len` bytes for the first device that `limits` allow; `None` if there is no room for it now, or no
    /// memory, or the device is not usable. Does not wait. The caller reads into other memory then.
    pub(in crate::cuda) fn slab(&self, limits: &DeviceLimits, len: usize) -> Option<PinnedSlab> {
        // A forked child ends here, before it takes a lock.
        let index = *self.usable(limits).ok()?.first()?;
        let this = self.this.upgrade()?;
        let device = &self.devices[index];
        let size = size_for(len).filter(|_| len > 0)?;
        let mut state = self.lock();
        if self.counters.is_lane_waited_for() {
            return None;
        }
        let of_device = &mut state[index];
        let mut block = of_device.slabs.reuse(len);
        let mut in_the_way = Vec::new();
        if block.is_none() {
            let failed = of_device.slabs.failed;
            if failed.is_some_and(|failed| failed.elapsed() < SETBACK) {
                return None;
            }
            in_the_way = of_device.room_for_slab(size, limits.pinned_memory)?;
            // The memory counts before it is allocated.
            of_device.slabs.bytes += size;
        }
        drop(state);
        self.free_slabs(in_the_way.into_iter().map(|block| (index, block)));
        let is_new = block.is_none();
        let ready = device.enter().and_then(|entered| {
            if let Some(block) = &block {
                block.begin_write()?;
            } else {
                block = Some(PinnedBlock::allocate(device, size)?);
            }
            drop(entered);
            Ok(())
        });
        let error = match (ready, block) {
            (Ok(()), Some(block)) => {
                return Some(PinnedSlab::new(this, index, (block, len), limits.idle));
            }
            (ready, block) => {
                self.free_slabs(block.map(|block| (index, block)));
                ready.err()
            }
        };
        tracing::debug!(?error, "no page-locked memory for encoded bytes");
        let mut state = self.lock();
        let slabs = &mut state[index].slabs;
        slabs.failed = Some(Instant::now());
        if is_new {
            slabs.bytes -= size;
        }
        drop(state);
        self.changed.notify_all();
        None
    }

    /// Frees slabs that were taken out of the pool. Each counts until it is freed. Lost memory stays counted for ever.
    pub(super) fn free_slabs(&self, blocks: impl IntoIterator<Item = (usize, PinnedBlock)>) {
        let mut is_any = false;
        for (index, mut block) in blocks {
            is_any = true;
            let (len, is_freed) = (block.len(), block.free());
            self.lock()[index].slab_is_gone(len, is_freed);
        }
        if is_any {
            self.changed.notify_all();
        }
    }

    /// Takes the idle slabs of all devices that are to be freed at `now`; all of them without a time. Returns each with
    /// the index of its device.
    pub(super) fn take_idle_slabs(
        state: &mut [DeviceLanes],
        now: Option<Instant>,
    ) -> Vec<(usize, PinnedBlock)> {
        let of_devices = state.iter_mut().enumerate();
        let taken = of_devices.flat_map(|(index, of_device)| {
            let blocks = of_device.slabs.take_idle(now);
            blocks.into_iter().map(move |block| (index, block))
        });
        taken.collect()
    }

    /// Keeps the memory of a slab that nobody uses any more. If it `is_lost`, or the device is not usable, leaves it alone
    /// for ever. Calls no function of the driver.
    pub(in crate::cuda) fn take_back_slab(
        &self,
        index: usize,
        mut block: PinnedBlock,
        is_lost: bool,
        idle: Option<Duration>,
    ) {
        if self.process.forked() {
            block.lose();
            return;
        }
        let mut state = self.lock();
        if is_lost || self.check_open().is_err() || !block.is_usable() {
            block.lose();
            state[index].slab_is_gone(block.len(), false);
        } else {
            let until = idle.and_then(|idle| Instant::now().checked_add(idle));
            state[index].slabs.idle.push(IdleSlab { block, until });
            if let Some(until) = until {
                self.call_janitor(until);
            }
        }
        drop(state);
        self.changed.notify_all();
    }
}

//! The lanes of one device, and the memory that they take.

use std::time::{Duration, Instant};

use super::DeviceLimits;
use crate::contract::BufferBytes;
use crate::cuda::arena::Capacity;
use crate::cuda::lane::Lane;

/// The time for which a failure of a device is remembered. After the device ran out of memory, its new lanes
/// are kept smaller. After any other failure, the device is tried last.
const SETBACK: Duration = Duration::from_secs(10);

/// A lane that no shard and no stream uses.
#[derive(Debug)]
pub(super) struct IdleLane {
    pub(super) lane: Lane,
    /// The time at which the lane is freed; `None` if it is never freed.
    pub(super) until: Option<Instant>,
}

/// The lanes of one device.
#[derive(Debug, Default)]
pub(super) struct DeviceLanes {
    /// Idle lanes, the longest idle first.
    pub(super) idle: Vec<IdleLane>,
    /// The number of lanes that are in use or being allocated.
    pub(super) active: usize,
    /// The bytes of memory of all lanes until they are freed, including idle lanes and leaked memory.
    pub(super) used: BufferBytes,
    /// The part of `used` that was leaked and is never freed.
    pub(super) leaked: BufferBytes,
    /// The default budget of device memory, in bytes; `None` until the device was asked for its free memory.
    pub(super) default_budget: Option<usize>,
    /// The time at which an allocation last ran out of memory, and the most device memory, in bytes, of a new
    /// lane since then.
    pub(super) lowered: Option<(Instant, usize)>,
    /// The time at which an allocation of a lane last failed for another reason than a lack of memory.
    pub(super) failed: Option<Instant>,
}

impl DeviceLanes {
    /// Returns the most memory that one lane may take: the budget less the leaked memory.
    pub(super) fn left(&self, budget: BufferBytes) -> BufferBytes {
        BufferBytes {
            device: budget.device.saturating_sub(self.leaked.device),
            pinned: budget.pinned.saturating_sub(self.leaked.pinned),
            ..budget
        }
    }

    /// Returns whether one more lane of capacity `need` stays within the budget after `freed` bytes are
    /// freed.
    fn fits(&self, need: Capacity, budget: BufferBytes, freed: BufferBytes) -> bool {
        let within = |used: usize, freed: usize, need, budget| {
            let sum = used.saturating_sub(freed).checked_add(need);
            sum.is_some_and(|sum| sum <= budget)
        };
        let need = need.takes();
        within(self.used.device, freed.device, need.device, budget.device)
            && within(self.used.pinned, freed.pinned, need.pinned, budget.pinned)
    }

    /// Takes the idle lane with the least device memory that has room for `need`. Returns `None` if no idle
    /// lane has room.
    pub(super) fn take_idle(&mut self, need: Capacity) -> Option<Lane> {
        let (position, _) = self
            .idle
            .iter()
            .enumerate()
            .filter(|(_, idle)| idle.lane.capacity().holds(&need))
            .min_by_key(|(_, idle)| idle.lane.capacity().device)?;
        Some(self.idle.remove(position).lane)
    }

    /// Returns the number of idle lanes, the longest idle first, that must be freed so that one more lane
    /// stays within the budget. `None` if freeing all idle lanes is not enough.
    pub(super) fn in_the_way(&self, need: Capacity, budget: BufferBytes) -> Option<usize> {
        let mut freed = BufferBytes::default();
        for (count, IdleLane { lane, .. }) in self.idle.iter().enumerate() {
            if self.fits(need, budget, freed) {
                return Some(count);
            }
            add(&mut freed, lane.capacity().takes());
        }
        self.fits(need, budget, freed).then_some(self.idle.len())
    }

    /// Returns the most device memory of a new lane, in bytes, if the device ran out of memory lately;
    /// `usize::MAX` otherwise.
    pub(super) fn lowered(&self, now: Instant) -> usize {
        match self.lowered {
            Some((since, most)) if now.saturating_duration_since(since) < SETBACK => most,
            _ => usize::MAX,
        }
    }

    fn failed_lately(&self, now: Instant) -> bool {
        self.failed
            .is_some_and(|since| now.saturating_duration_since(since) < SETBACK)
    }
}

pub(super) fn add(sum: &mut BufferBytes, more: BufferBytes) {
    sum.device += more.device;
    sum.pinned += more.pinned;
}

pub(super) fn subtract(sum: &mut BufferBytes, less: BufferBytes) {
    sum.device -= less.device;
    sum.pinned -= less.pinned;
}

/// Returns the budget of a device under `limits`; `None` if the device has to be asked for its free memory.
pub(super) fn known_budget(of_device: &DeviceLanes, limits: &DeviceLimits) -> Option<BufferBytes> {
    let device = limits.device_memory.or(of_device.default_budget)?;
    Some(BufferBytes {
        device,
        pinned: limits.pinned_memory,
        ..BufferBytes::default()
    })
}

/// Returns the order in which to try the devices. Devices that failed lately come last. The other devices are
/// ordered by `load`, then by whether they lately ran out of memory, then by number.
pub(super) fn in_order(
    state: &[DeviceLanes],
    usable: &[usize],
    load: impl Fn(&DeviceLanes) -> usize,
) -> Vec<usize> {
    let now = Instant::now();
    let mut order = usable.to_vec();
    order.sort_by_key(|&index| {
        let of_device = &state[index];
        let lowered = of_device.lowered(now) < usize::MAX;
        (of_device.failed_lately(now), load(of_device), lowered)
    });
    order
}

/// Takes the lanes that were idle for too long out of the pool, and returns each with the index of its
/// device.
pub(super) fn take_long_idle(state: &mut [DeviceLanes]) -> Vec<(usize, Lane)> {
    let now = Instant::now();
    let mut taken = Vec::new();
    for (index, of_device) in state.iter_mut().enumerate() {
        let idle = std::mem::take(&mut of_device.idle);
        for idle in idle {
            if idle.until.is_some_and(|until| until <= now) {
                taken.push((index, idle.lane));
            } else {
                of_device.idle.push(idle);
            }
        }
    }
    taken
}

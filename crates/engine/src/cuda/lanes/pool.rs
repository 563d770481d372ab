//! The lanes of one device, and their memory.

use std::time::{Duration, Instant};

use super::DeviceLimits;
use crate::contract::BufferBytes;
use crate::cuda::arena::Capacity;
use crate::cuda::lane::Lane;

/// How long the setbacks of a device are remembered. After it ran out of memory, new lanes there
/// are kept smaller. After any other failure, it is tried last.
const SETBACK: Duration = Duration::from_secs(10);

/// A lane that nobody uses.
#[derive(Debug)]
pub(super) struct IdleLane {
    pub(super) lane: Lane,
    /// When it is freed; `None` for never.
    pub(super) until: Option<Instant>,
}

/// The lanes of one device.
#[derive(Debug, Default)]
pub(super) struct DeviceLanes {
    /// Idle lanes, the longest idle first.
    pub(super) idle: Vec<IdleLane>,
    /// The number of lanes that are in use or being allocated.
    pub(super) active: usize,
    /// The memory of all lanes until they are freed, including idle lanes and leaked memory.
    pub(super) used: BufferBytes,
    /// The part of `used` that was leaked and is never freed.
    pub(super) leaked: BufferBytes,
    /// The default budget of device memory, in bytes; `None` before the device was asked.
    pub(super) default_budget: Option<usize>,
    /// When an allocation last ran out of memory, and the most device memory of a new lane since
    /// then.
    pub(super) lowered: Option<(Instant, usize)>,
    /// When the device last failed, other than by a lack of memory, before a lane was allocated.
    pub(super) failed: Option<Instant>,
}

impl DeviceLanes {
    /// Returns the most that one lane may take: the budget without the leaked memory.
    pub(super) fn left(&self, budget: BufferBytes) -> BufferBytes {
        BufferBytes {
            device: budget.device.saturating_sub(self.leaked.device),
            pinned: budget.pinned.saturating_sub(self.leaked.pinned),
            ..budget
        }
    }

    /// Returns whether one more lane of capacity `need` stays within the budget once `freed` is
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

    /// Takes the idle lane with the least device memory that has room for `need`.
    pub(super) fn take_idle(&mut self, need: Capacity) -> Option<Lane> {
        let (position, _) = self
            .idle
            .iter()
            .enumerate()
            .filter(|(_, idle)| idle.lane.capacity().holds(&need))
            .min_by_key(|(_, idle)| idle.lane.capacity().device)?;
        Some(self.idle.remove(position).lane)
    }

    /// Returns how many idle lanes, the longest idle first, must be freed so that one more lane
    /// stays within the budget. `None` if freeing all of them is not enough.
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

    /// Returns the most device memory of a new lane if memory ran out lately; `usize::MAX`
    /// otherwise.
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

/// Returns the budget of a device under `limits`, if it is known without asking the device.
pub(super) fn known_budget(of_device: &DeviceLanes, limits: &DeviceLimits) -> Option<BufferBytes> {
    let device = limits.device_memory.or(of_device.default_budget)?;
    Some(BufferBytes {
        device,
        pinned: limits.pinned_memory,
        ..BufferBytes::default()
    })
}

/// Returns the order in which to try devices. Devices that failed lately come last. The others are
/// ordered by `load`, then whether they lately ran out of memory, then by number.
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

/// Takes the lanes that were idle for too long out of the pool.
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

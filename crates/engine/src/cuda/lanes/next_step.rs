//! The choice of the next step towards a lane on one device.
//!
//! ```text
//! full := the largest lane within the budget, below the sizes that failed in this request
//! the budget is too small for any lane: never
//! an idle lane has room for `full`: use this lane
//! size := the largest lane for which the device had memory lately, or else `full`
//! an idle lane has room for `size`: use this lane
//! freeing the n longest idle lanes makes room for `size` in the budget: allocate, after freeing these lanes
//! otherwise: wait
//! ```

use std::sync::Arc;
use std::time::Instant;

use super::pool::DeviceLanes;
use crate::contract::BufferBytes;
use crate::cuda::lane::Lane;
use crate::cuda::sizing::Sizing;

/// A function that sizes a lane for a memory budget. The error is the reason why the budget is too small.
pub(in crate::cuda) type SizesLane<'a> = &'a dyn Fn(BufferBytes) -> Result<Arc<Sizing>, String>;

/// The next step to get a lane on one device.
pub(super) enum LaneStep {
    Use(Box<Lane>, Arc<Sizing>),
    /// Allocate a new lane, after the idle lanes in the list are freed.
    Allocate(Arc<Sizing>, Vec<Lane>),
    Wait,
    /// The device cannot hold any lane for this request. The text is the reason.
    Never(String),
}

/// The progress of a request on one device.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttemptOnDevice {
    /// The most device memory to allocate, in bytes: less than the size of an attempt that ran out of memory.
    pub(super) most: usize,
    pub(super) outcome: AttemptOutcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptOutcome {
    /// The device was not tried yet, or is to be tried again with a smaller lane.
    Open,
    /// The device ran out of memory, but may have enough for a smaller lane.
    OutOfMemory,
    /// The device is not tried again.
    Failed,
}

/// Returns the next step for a request on one device. Takes the idle lanes that this step uses or frees out
/// of the pool.
pub(super) fn next_step(
    of_device: &mut DeviceLanes,
    plan: SizesLane<'_>,
    tried: AttemptOnDevice,
    budget: BufferBytes,
    now: Instant,
) -> LaneStep {
    let left = of_device.left(budget);
    let within = |most: usize| {
        let device = left.device.min(most);
        plan(BufferBytes { device, ..left })
    };
    let full = match within(tried.most) {
        Ok(sizing) => sizing,
        Err(reason) => return LaneStep::Never(reason),
    };
    if let Some(lane) = of_device.take_idle(full.capacity) {
        return LaneStep::Use(Box::new(lane), full);
    }
    // Limit the lane to the size for which the device had memory lately. If no lane is so small, try the full
    // size.
    let sizing = within(tried.most.min(of_device.lowered(now))).unwrap_or(full);
    let need = sizing.capacity;
    if let Some(lane) = of_device.take_idle(need) {
        return LaneStep::Use(Box::new(lane), sizing);
    }
    match of_device.in_the_way(need, budget) {
        Some(count) => {
            let in_the_way = of_device.idle.drain(..count).map(|idle| idle.lane);
            LaneStep::Allocate(sizing, in_the_way.collect())
        }
        None => LaneStep::Wait,
    }
}

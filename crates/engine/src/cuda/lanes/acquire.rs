//! Acquires a lane: on the first device that has an idle lane, or the memory for a new lane.
//!
//! ```text
//! repeat
//!     choose the usable devices; there is none: return the error
//!     free the lanes that were idle for too long, and begin again
//!     for each usable device that was not given up, the one with the fewest lanes in use first
//!         its budget is not known: ask the device, and begin again
//!         next step (`next_step.rs`)
//!             use       return the idle lane
//!             allocate  count the memory, free the idle lanes in the way, allocate, return the lane
//!                       out of memory: free the idle lanes of the device, and allocate again;
//!                           nothing to free, or an idle lane serves the next size: out of memory
//!                       another failure: give the device up
//!                       begin again
//!             wait      lanes in use take up the budget
//!             never     give the device up
//!     some device has to be waited for: sleep until a lane is returned or freed
//!     some device was out of memory: ask these devices for smaller lanes
//!     otherwise: return the last error
//! ```

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::acquired::AcquiredLane;
use super::next_step::{AttemptOnDevice, AttemptOutcome, LaneStep, SizesLane, next_step};
use super::pool::{add, in_order, known_budget, subtract, take_long_idle};
use super::{DeviceLimits, Devices};
use crate::contract::{BufferBytes, EngineError};
use crate::cuda::arena::Capacity;
use crate::cuda::driver::Fault;
use crate::cuda::lane::Lane;
use crate::cuda::sizing::Sizing;

/// A request for a lane, and the request's progress.
struct LaneRequest<'a> {
    pub(super) plan: SizesLane<'a>,
    pub(super) limits: &'a DeviceLimits,
    /// The progress of the request on each device.
    pub(super) tried: Vec<AttemptOnDevice>,
    /// The error of the device that was tried last.
    pub(super) last: Option<EngineError>,
    pub(super) waiting: Option<Instant>,
}

impl LaneRequest<'_> {
    fn failed(&mut self, index: usize, error: EngineError) {
        self.tried[index].outcome = AttemptOutcome::Failed;
        self.last = Some(error);
    }
}

impl Devices {
    /// Acquires a lane that `plan` has sized for the budget of its device. Blocks until a lane is available.
    /// The caller holds no other lane.
    ///
    /// # Errors
    /// No device that `limits` allows is usable or has enough memory.
    pub(in crate::cuda) fn acquire(
        &self,
        plan: SizesLane<'_>,
        limits: &DeviceLimits,
    ) -> Result<(AcquiredLane<'_>, Arc<Sizing>), EngineError> {
        let open = AttemptOnDevice {
            most: usize::MAX,
            outcome: AttemptOutcome::Open,
        };
        let mut request = LaneRequest {
            plan,
            limits,
            tried: vec![open; self.devices.len()],
            last: None,
            waiting: None,
        };
        let acquired = self.acquire_or_wait(&mut request);
        if let Some(since) = request.waiting {
            self.counters.waited_for_lane(since.elapsed());
        }
        acquired
    }

    fn acquire_or_wait(
        &self,
        request: &mut LaneRequest<'_>,
    ) -> Result<(AcquiredLane<'_>, Arc<Sizing>), EngineError> {
        'again: loop {
            let usable = match self.usable(request.limits) {
                Ok(usable) => usable,
                Err(error) => {
                    // The error after which the last device was broken says more.
                    return Err(request.last.take().unwrap_or(EngineError::Device(error)));
                }
            };
            let now = Instant::now();
            let mut state = self.lock();
            let long_idle = take_long_idle(&mut state);
            if !long_idle.is_empty() {
                drop(state);
                self.free(long_idle);
                continue;
            }
            let mut wait = false;
            for index in in_order(&state, &usable, |of_device| of_device.active) {
                let of_device = &mut state[index];
                if request.tried[index].outcome != AttemptOutcome::Open {
                    continue;
                }
                let Some(budget) = known_budget(of_device, request.limits) else {
                    drop(state);
                    if let Err(error) = self.budget(index, request.limits) {
                        request.failed(index, EngineError::Device(error));
                    }
                    continue 'again;
                };
                match next_step(of_device, request.plan, request.tried[index], budget, now) {
                    LaneStep::Use(lane, sizing) => {
                        of_device.active += 1;
                        drop(state);
                        return Ok((self.acquired(index, *lane, request.limits), sizing));
                    }
                    LaneStep::Allocate(sizing, in_the_way) => {
                        let need = sizing.capacity;
                        of_device.active += 1;
                        add(&mut of_device.used, need.takes());
                        drop(state);
                        self.free(in_the_way.into_iter().map(|lane| (index, lane)).collect());
                        if let Some(lane) = self.allocate(index, need, request) {
                            return Ok((self.acquired(index, lane, request.limits), sizing));
                        }
                        continue 'again;
                    }
                    LaneStep::Wait => wait = true,
                    LaneStep::Never(reason) => {
                        request.failed(index, EngineError::Unsuitable(reason));
                    }
                }
            }
            if wait {
                if request.waiting.is_none() {
                    request.waiting = Some(Instant::now());
                    self.counters.waiting_for_lane();
                }
                // Another thread uses or frees a lane, and that thread does not wait for this one.
                drop(
                    self.changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner),
                );
                continue;
            }
            drop(state);
            // Every device was tried. Try smaller lanes on the devices that ran out of memory.
            let mut smaller = false;
            for tried in &mut request.tried {
                if tried.outcome == AttemptOutcome::OutOfMemory {
                    tried.outcome = AttemptOutcome::Open;
                    smaller = true;
                }
            }
            if !smaller {
                return Err(request.last.take().unwrap_or_else(|| {
                    EngineError::Unsuitable("there is no CUDA device".to_string())
                }));
            }
            tracing::debug!("no device has the memory, trying smaller batches");
            self.counters.batch_halved();
        }
    }

    fn acquired(&self, index: usize, mut lane: Lane, limits: &DeviceLimits) -> AcquiredLane<'_> {
        lane.set_timeout(limits.timeout);
        AcquiredLane {
            devices: self,
            index,
            lane: Some(lane),
            reusable: false,
            idle: limits.idle,
        }
    }

    /// Allocates a lane whose memory is counted already. If the device is out of memory, its idle lanes are
    /// and its spare memory are freed and the allocation is tried again. The idle lanes are kept if one of them is large enough for
    /// the smaller lane that is tried next. Returns `None` on failure; the error is then in `request`.
    fn allocate(
        &self,
        index: usize,
        need: Capacity,
        request: &mut LaneRequest<'_>,
    ) -> Option<Lane> {
        let device = &self.devices[index];
        let plan = request.plan;
        let mut spare_is_freed = false;
        loop {
            let (error, leaked, entered) = match device.enter() {
                Ok(entered) => match Lane::new(device, need, request.limits.timeout) {
                    Ok(lane) => {
                        self.counters.lane_created();
                        return Some(lane);
                    }
                    Err((error, leaked)) => (error, leaked, Some(entered)),
                },
                Err(error) => (error, BufferBytes::default(), None),
            };
            let no_memory = error.fault == Fault::OutOfMemory && entered.is_some();
            drop(entered);
            let mut state = self.lock();
            let of_device = &mut state[index];
            let smaller = need.device.checked_sub(1).filter(|_| no_memory);
            let smaller = smaller.and_then(|most| {
                let budget = known_budget(of_device, request.limits)?;
                let budget = of_device.left(budget);
                let device = most.min(budget.device);
                let sizing = plan(BufferBytes { device, ..budget }).ok()?;
                Some((most, sizing.capacity))
            });
            let one_will_do = smaller.is_some_and(|(_, capacity)| {
                let mut idle = of_device.idle.iter();
                idle.any(|idle| idle.lane.capacity().holds(&capacity))
            });
            if no_memory && leaked == BufferBytes::default() && !one_will_do {
                let idle = std::mem::take(&mut of_device.idle);
                if !idle.is_empty() {
                    drop(state);
                    self.free(idle.into_iter().map(|idle| (index, idle.lane)).collect());
                    continue;
                }
                if !spare_is_freed && device.retired().holds_memory() {
                    spare_is_freed = true;
                    drop(state);
                    self.free_spare(device);
                    continue;
                }
            }
            of_device.active -= 1;
            subtract(&mut of_device.used, need.takes());
            add(&mut of_device.used, leaked);
            add(&mut of_device.leaked, leaked);
            if no_memory {
                let most = smaller.map_or(need.device, |(most, _)| most);
                of_device.lowered = Some((Instant::now(), most));
            } else {
                of_device.failed = Some(Instant::now());
            }
            drop(state);
            if leaked != BufferBytes::default() {
                self.counters.lane_leaked();
            }
            self.changed.notify_all();
            tracing::debug!(%error, "no lane on this device");
            request.failed(index, EngineError::Device(error));
            if let Some((most, _)) = smaller {
                request.tried[index] = AttemptOnDevice {
                    most,
                    outcome: AttemptOutcome::OutOfMemory,
                };
            }
            return None;
        }
    }
}

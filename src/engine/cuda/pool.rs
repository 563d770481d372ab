//! The lanes of all devices, under their budgets.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::copiers::Copiers;
use super::device::Device;
use super::driver::{Driver, DriverError, Fault};
use super::lane::{Capacity, Lane};
use super::metrics::Counters;
use super::sizing::MemoryEstimate;

/// A lane that nobody used for this long is given up.
const IDLE: Duration = Duration::from_secs(10);

/// The share of the free memory of a device that lanes take, unless the options say otherwise.
const DEFAULT_SHARE: usize = 4;

/// What one set of options allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The ordinals of the devices; `None` for all.
    pub(crate) devices: Option<Vec<usize>>,
    /// Bytes per device; `None` for a quarter of what is free when the first lane is made.
    pub(crate) device_memory: Option<usize>,
    /// Bytes for each device.
    pub(crate) pinned_memory: usize,
}

/// The devices of this process and their lanes.
#[derive(Debug)]
pub(crate) struct Devices {
    devices: Vec<Arc<Device>>,
    state: Mutex<Vec<State>>,
    /// A lane was returned, or given up, or a device was quarantined.
    changed: Condvar,
    pub(super) copiers: Copiers,
    pub(crate) counters: Counters,
    /// Whether a thread waits to give up idle lanes. Changes under the lock of the state.
    janitor: AtomicBool,
    gone: Arc<Gone>,
    this: Weak<Self>,
}

/// Tells the janitor that there is nothing left to give up.
#[derive(Debug, Default)]
struct Gone {
    gone: Mutex<bool>,
    changed: Condvar,
}

impl Gone {
    /// Wait for `time`, or until it is so.
    fn wait(&self, time: Duration) {
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(gone, time, |gone| !*gone));
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        *self
            .gone
            .gone
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.gone.changed.notify_all();
    }
}

/// The lanes of one device.
#[derive(Debug, Default)]
struct State {
    /// Lanes that wait for work, and since when.
    idle: Vec<(Instant, Lane)>,
    /// Lanes in use, and being allocated.
    active: usize,
    /// Taken by all lanes, idle ones among them.
    used: MemoryEstimate,
    /// What the device would give by default, once it was asked.
    default_budget: Option<usize>,
}

/// What to do about a lane, decided under the lock and done outside.
enum Decision {
    Use(Lane),
    Allocate,
    Wait,
}

impl Devices {
    pub(crate) fn new(drivers: Vec<Arc<dyn Driver>>) -> Arc<Self> {
        let devices: Vec<_> = drivers
            .into_iter()
            .map(|driver| Arc::new(Device::new(driver)))
            .collect();
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            janitor: AtomicBool::new(false),
            gone: Arc::default(),
            state: Mutex::new(devices.iter().map(|_| State::default()).collect()),
            devices,
            changed: Condvar::new(),
            copiers: Copiers::default(),
            counters: Counters::default(),
        })
    }

    /// The devices that `limits` names and that can be used.
    ///
    /// # Errors
    /// There is none: why.
    fn usable(&self, limits: &Limits) -> Result<Vec<usize>, DriverError> {
        let mut reason = match &limits.devices {
            Some(named) => format!(
                "the options name devices {named:?}, and there are {}",
                self.devices.len()
            ),
            None => "there is no CUDA device".to_string(),
        };
        let mut usable = Vec::new();
        for (index, device) in self.devices.iter().enumerate() {
            let ordinal = device.info().ordinal;
            if limits
                .devices
                .as_ref()
                .is_some_and(|named| !named.contains(&ordinal))
            {
                continue;
            }
            match device.unusable() {
                None => usable.push(index),
                Some(why) => reason = why,
            }
        }
        if usable.is_empty() {
            return Err(DriverError {
                operation: "choosing a CUDA device".to_string(),
                device: None,
                fault: Fault::Unavailable,
                reason,
            });
        }
        Ok(usable)
    }

    /// What a lane may take on any of the devices that `limits` names.
    ///
    /// # Errors
    /// There is no such device, or it does not answer.
    pub(super) fn budget(&self, limits: &Limits) -> Result<MemoryEstimate, DriverError> {
        let mut most = 0;
        for index in self.usable(limits)? {
            most = most.max(self.device_budget(index, limits)?);
        }
        Ok(MemoryEstimate {
            device: most,
            pinned: limits.pinned_memory,
        })
    }

    fn device_budget(&self, index: usize, limits: &Limits) -> Result<usize, DriverError> {
        if let Some(bytes) = limits.device_memory {
            return Ok(bytes);
        }
        if let Some(bytes) = self.lock()[index].default_budget {
            return Ok(bytes);
        }
        let device = &self.devices[index];
        let entered = device.enter()?;
        let free = device.watch(device.driver().free_memory());
        drop(entered);
        let budget = free? / DEFAULT_SHARE;
        Ok(*self.lock()[index].default_budget.get_or_insert(budget))
    }

    /// A lane of at least `need`, when there is one. The caller holds no other lane.
    ///
    /// # Errors
    /// No device that `limits` names can be used, or has the memory.
    pub(super) fn acquire(
        &self,
        need: Capacity,
        limits: &Limits,
    ) -> Result<Acquired<'_>, DriverError> {
        let mut waiting: Option<Instant> = None;
        let acquired = self.acquire_or_wait(need, limits, &mut waiting);
        if let Some(since) = waiting {
            self.counters.waited_for_lane(since.elapsed());
        }
        acquired
    }

    fn acquire_or_wait(
        &self,
        need: Capacity,
        limits: &Limits,
        waiting: &mut Option<Instant>,
    ) -> Result<Acquired<'_>, DriverError> {
        loop {
            let mut candidates = Vec::new();
            for index in self.usable(limits)? {
                let budget = self.device_budget(index, limits)?;
                if need.device <= budget && need.pinned() <= limits.pinned_memory {
                    candidates.push((index, budget));
                }
            }
            if candidates.is_empty() {
                return Err(DriverError {
                    operation: format!(
                        "taking {} bytes of device memory and {} of page-locked memory for a lane",
                        need.device,
                        need.pinned()
                    ),
                    device: None,
                    fault: Fault::OutOfMemory,
                    reason: "the budget of no device has that much".to_string(),
                });
            }
            let mut dropped = Vec::new();
            let mut state = self.lock();
            take_long_idle(&mut state, &mut dropped);
            // The device with the least to do.
            candidates.sort_by_key(|(index, _)| state[*index].active);
            let mut decision = (candidates[0].0, Decision::Wait);
            for &(index, budget) in &candidates {
                let of_device = &mut state[index];
                if let Some(lane) = take_idle(of_device, need) {
                    decision = (index, Decision::Use(lane));
                    break;
                }
                while !fits(of_device.used, need, budget, limits.pinned_memory)
                    && let Some((_, lane)) = of_device.idle.pop()
                {
                    forget(of_device, &lane);
                    dropped.push(lane);
                }
                if fits(of_device.used, need, budget, limits.pinned_memory) {
                    decision = (index, Decision::Allocate);
                    break;
                }
            }
            let (index, decision) = decision;
            match decision {
                Decision::Use(lane) => {
                    state[index].active += 1;
                    drop(state);
                    self.free(dropped);
                    return Ok(self.acquired(index, lane));
                }
                Decision::Allocate => {
                    state[index].active += 1;
                    state[index].used.device += need.device;
                    state[index].used.pinned += need.pinned();
                    drop(state);
                    self.free(dropped);
                    let lane = self.allocate(index, need)?;
                    return Ok(self.acquired(index, lane));
                }
                Decision::Wait => {
                    if waiting.is_none() {
                        *waiting = Some(Instant::now());
                        self.counters.waiting_for_lane();
                    }
                    if dropped.is_empty() {
                        // Somebody has a lane, and does not wait for anything of ours.
                        drop(
                            self.changed
                                .wait(state)
                                .unwrap_or_else(PoisonError::into_inner),
                        );
                    } else {
                        drop(state);
                    }
                    self.free(dropped);
                }
            }
        }
    }

    fn acquired(&self, index: usize, lane: Lane) -> Acquired<'_> {
        Acquired {
            devices: self,
            index,
            lane: Some(lane),
            reusable: false,
        }
    }

    /// Allocate a lane that is accounted for already. When the device has no memory, idle lanes are
    /// given up for it.
    fn allocate(&self, index: usize, need: Capacity) -> Result<Lane, DriverError> {
        let device = &self.devices[index];
        loop {
            let error = match Lane::new(device, need) {
                Ok(lane) => {
                    self.counters.lane_created();
                    return Ok(lane);
                }
                Err(error) => error,
            };
            let mut state = self.lock();
            let of_device = &mut state[index];
            let idle: Vec<Lane> = of_device.idle.drain(..).map(|(_, lane)| lane).collect();
            for lane in &idle {
                forget(of_device, lane);
            }
            if error.fault != Fault::OutOfMemory || idle.is_empty() {
                of_device.active -= 1;
                of_device.used.device -= need.device;
                of_device.used.pinned -= need.pinned();
                drop(state);
                self.free(idle);
                self.changed.notify_all();
                return Err(error);
            }
            drop(state);
            self.free(idle);
        }
    }

    /// See to it that idle lanes are given up in time. Called under the lock.
    fn call_janitor(&self) {
        if self.janitor.swap(true, Ordering::Relaxed) {
            return;
        }
        let (devices, gone) = (self.this.clone(), self.gone.clone());
        let janitor = std::thread::Builder::new()
            .name("zarrs_cuda idle lanes".to_string())
            .spawn(move || {
                loop {
                    gone.wait(IDLE);
                    let Some(devices) = devices.upgrade() else {
                        return;
                    };
                    if !devices.give_up_long_idle() {
                        return;
                    }
                }
            });
        if let Err(error) = janitor {
            // They are given up when a lane is next asked for.
            tracing::debug!(%error, "no thread to give up idle lanes");
            self.janitor.store(false, Ordering::Relaxed);
        }
    }

    /// Give up the lanes that nobody used for a while. Whether any other lane is idle; if not, the
    /// janitor leaves.
    fn give_up_long_idle(&self) -> bool {
        let mut dropped = Vec::new();
        let mut state = self.lock();
        take_long_idle(&mut state, &mut dropped);
        let more = state.iter().any(|of_device| !of_device.idle.is_empty());
        self.janitor.store(more, Ordering::Relaxed);
        drop(state);
        self.free(dropped);
        more
    }

    /// Give the memory of all idle lanes back. Lanes in use stay.
    pub(crate) fn release_idle(&self) {
        let mut dropped = Vec::new();
        for of_device in self.lock().iter_mut() {
            let idle: Vec<Lane> = of_device.idle.drain(..).map(|(_, lane)| lane).collect();
            for lane in &idle {
                forget(of_device, lane);
            }
            dropped.extend(idle);
        }
        self.free(dropped);
    }

    /// Free lanes that are out of the pool already.
    fn free(&self, lanes: Vec<Lane>) {
        for lane in lanes {
            drop(lane);
            self.counters.lane_released();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether one more lane stays within the budget.
fn fits(used: MemoryEstimate, need: Capacity, device: usize, pinned: usize) -> bool {
    let within =
        |used: usize, need: usize, budget| used.checked_add(need).is_some_and(|sum| sum <= budget);
    within(used.device, need.device, device) && within(used.pinned, need.pinned(), pinned)
}

/// Take the lanes that nobody used for a while out of the pool.
fn take_long_idle(state: &mut [State], dropped: &mut Vec<Lane>) {
    let now = Instant::now();
    for of_device in state {
        let idle = std::mem::take(&mut of_device.idle);
        for (since, lane) in idle {
            if now.saturating_duration_since(since) < IDLE {
                of_device.idle.push((since, lane));
            } else {
                forget(of_device, &lane);
                dropped.push(lane);
            }
        }
    }
}

/// The smallest idle lane that has room for `need`.
fn take_idle(state: &mut State, need: Capacity) -> Option<Lane> {
    let (position, _) = state
        .idle
        .iter()
        .enumerate()
        .filter(|(_, (_, lane))| lane.capacity().holds(&need))
        .min_by_key(|(_, (_, lane))| lane.capacity().device)?;
    Some(state.idle.swap_remove(position).1)
}

/// The memory of `lane` is not counted any more.
fn forget(state: &mut State, lane: &Lane) {
    state.used.device -= lane.capacity().device;
    state.used.pinned -= lane.capacity().pinned();
}

/// A lane that is in use until this is dropped. It goes back to the pool if it is
/// [reusable](Self::reusable), and is freed otherwise.
#[derive(Debug)]
pub(super) struct Acquired<'a> {
    devices: &'a Devices,
    index: usize,
    lane: Option<Lane>,
    reusable: bool,
}

impl Acquired<'_> {
    pub(super) fn lane(&mut self) -> Result<&mut Lane, DriverError> {
        self.lane.as_mut().ok_or(DriverError {
            operation: "using a lane".to_string(),
            device: Some(self.index),
            fault: Fault::Refused,
            reason: "it was returned already".to_string(),
        })
    }

    /// Everything that was put into the lane has completed.
    pub(super) fn reusable(&mut self) {
        self.reusable = true;
    }
}

impl Drop for Acquired<'_> {
    fn drop(&mut self) {
        let Some(lane) = self.lane.take() else { return };
        let mut dropped = Vec::new();
        {
            let mut state = self.devices.lock();
            let of_device = &mut state[self.index];
            of_device.active -= 1;
            if self.reusable && lane.device().unusable().is_none() {
                of_device.idle.push((Instant::now(), lane));
                self.devices.call_janitor();
            } else {
                forget(of_device, &lane);
                dropped.push(lane);
            }
            take_long_idle(&mut state, &mut dropped);
        }
        self.devices.free(dropped);
        self.devices.changed.notify_all();
    }
}

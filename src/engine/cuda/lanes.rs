//! The lanes of all devices, under their budgets.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::arena::Capacity;
use super::copiers::Copiers;
use super::counters::Counters;
use super::device::{Device, Process};
use super::driver::{Driver, DriverError, Fault};
use super::kept::Kept;
use super::lane::Lane;
use super::sizing::{KindQuestion, ShardKind, Sizing};
use crate::MemoryEstimate;
use crate::engine::EngineError;

/// A lane that nobody used for this long is given up.
const IDLE: Duration = Duration::from_secs(10);

/// How long a device is believed to have no more memory than it had, and one that failed before a
/// lane was made is the last to be tried.
const SETBACK: Duration = Duration::from_secs(10);

/// The share of the free memory of a device that lanes take, unless the options say otherwise.
const DEFAULT_SHARE: usize = 4;

/// What one set of options allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The ordinals of the devices; `None` for all.
    pub devices: Option<Vec<usize>>,
    /// Bytes per device; `None` for a quarter of what is free when the first lane is made.
    pub device_memory: Option<usize>,
    /// Bytes for each device.
    pub pinned_memory: usize,
}

/// The devices of this process and their lanes.
#[derive(Debug)]
pub struct Devices {
    devices: Vec<Arc<Device>>,
    state: Mutex<Vec<State>>,
    /// A lane was returned, or given up, or a device was quarantined.
    changed: Condvar,
    pub copiers: Copiers,
    pub(crate) counters: Counters,
    /// What shards of some kinds are to these devices.
    pub(super) kinds: Kept<KindQuestion, Arc<ShardKind>>,
    /// Whether a thread waits to give up idle lanes. Changes under the lock of the state.
    janitor: AtomicBool,
    gone: Arc<Gone>,
    process: Process,
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
        if self.process.forked() {
            return;
        }
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
    /// Taken by all lanes, until they are freed: idle ones among them, and what is leaked.
    used: MemoryEstimate,
    /// Of that, what will never be free again.
    leaked: MemoryEstimate,
    /// What the device would give by default, once it was asked.
    default_budget: Option<usize>,
    /// A new lane takes no more than this, since when: there was no memory for a larger one.
    lowered: Option<(Instant, usize)>,
    /// When the device last failed before a lane was made, other than for want of memory.
    failed: Option<Instant>,
}

impl State {
    /// What one lane may take, of a budget.
    fn left(&self, budget: MemoryEstimate) -> MemoryEstimate {
        MemoryEstimate {
            device: budget.device.saturating_sub(self.leaked.device),
            pinned: budget.pinned.saturating_sub(self.leaked.pinned),
            ..budget
        }
    }

    /// Whether one more lane stays within the budget, if `freed` is given back first.
    fn fits(&self, need: Capacity, budget: MemoryEstimate, freed: MemoryEstimate) -> bool {
        let within = |used: usize, freed: usize, need, budget| {
            let sum = used.saturating_sub(freed).checked_add(need);
            sum.is_some_and(|sum| sum <= budget)
        };
        let need = need.takes();
        within(self.used.device, freed.device, need.device, budget.device)
            && within(self.used.pinned, freed.pinned, need.pinned, budget.pinned)
    }

    /// The smallest idle lane that has room for `need`.
    fn take_idle(&mut self, need: Capacity) -> Option<Lane> {
        let (position, _) = self
            .idle
            .iter()
            .enumerate()
            .filter(|(_, (_, lane))| lane.capacity().holds(&need))
            .min_by_key(|(_, (_, lane))| lane.capacity().device)?;
        Some(self.idle.remove(position).1)
    }

    /// How many idle lanes must be freed so that one more stays within the budget: those that
    /// have waited longest, which are first. `None` if all of them would not do.
    fn in_the_way(&self, need: Capacity, budget: MemoryEstimate) -> Option<usize> {
        let mut freed = MemoryEstimate::default();
        for (count, (_, lane)) in self.idle.iter().enumerate() {
            if self.fits(need, budget, freed) {
                return Some(count);
            }
            add(&mut freed, lane.capacity().takes());
        }
        self.fits(need, budget, freed).then_some(self.idle.len())
    }

    /// The most that a new lane may take, if that is less than the budget.
    fn lowered(&self, now: Instant) -> usize {
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

fn add(sum: &mut MemoryEstimate, more: MemoryEstimate) {
    sum.device += more.device;
    sum.pinned += more.pinned;
}

fn subtract(sum: &mut MemoryEstimate, less: MemoryEstimate) {
    sum.device -= less.device;
    sum.pinned -= less.pinned;
}

/// What the lane for a shard has to be, if it may take so much; or why that is too little.
pub(super) type Plan<'a> = &'a dyn Fn(MemoryEstimate) -> Result<Arc<Sizing>, String>;

/// What is to be done about a lane on one device.
enum Step {
    Use(Lane, Arc<Sizing>),
    /// When the lanes are freed.
    Allocate(Arc<Sizing>, Vec<Lane>),
    Wait,
    /// The device cannot have such a lane: why.
    Never(String),
}

/// A lane that is looked for.
struct Request<'a> {
    plan: Plan<'a>,
    limits: &'a Limits,
    /// For each device.
    tried: Vec<Tried>,
    /// Why the device that was tried last cannot have it.
    last: Option<EngineError>,
    waiting: Option<Instant>,
}

/// What came of a device so far.
#[derive(Clone, Copy, Debug)]
struct Tried {
    /// What the lane may take: less than what there was no memory for.
    most: usize,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// None yet.
    Open,
    /// There was no memory, but there may be for a smaller lane.
    OutOfMemory,
    /// Nothing more to try.
    Failed,
}

impl Request<'_> {
    fn failed(&mut self, index: usize, error: EngineError) {
        self.tried[index].outcome = Outcome::Failed;
        self.last = Some(error);
    }
}

impl Devices {
    pub fn new(drivers: Vec<Arc<dyn Driver>>) -> Arc<Self> {
        let devices: Vec<_> = drivers
            .into_iter()
            .map(|driver| Arc::new(Device::new(driver)))
            .collect();
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            janitor: AtomicBool::new(false),
            gone: Arc::default(),
            process: Process::default(),
            state: Mutex::new(devices.iter().map(|_| State::default()).collect()),
            devices,
            changed: Condvar::new(),
            copiers: Copiers::default(),
            counters: Counters::default(),
            kinds: Kept::default(),
        })
    }

    /// The devices that `limits` names and that can be used. Takes no lock: this is where a forked
    /// child is turned away.
    ///
    /// # Errors
    /// There is none, or one that is named does not exist: why.
    fn usable(&self, limits: &Limits) -> Result<Vec<usize>, DriverError> {
        let unavailable = |reason| DriverError {
            operation: "choosing a CUDA device".to_string(),
            device: None,
            fault: Fault::Unavailable,
            reason,
        };
        let ordinals: Vec<usize> = self.devices.iter().map(|d| d.info().ordinal).collect();
        let named = limits.devices.as_deref().unwrap_or(&ordinals);
        if let Some(absent) = named.iter().find(|named| !ordinals.contains(named)) {
            return Err(unavailable(format!(
                "the options name CUDA device {absent}, and those that can be used are {ordinals:?}"
            )));
        }
        let mut reason = match &limits.devices {
            Some(_) => "the options name no CUDA device".to_string(),
            None => "there is no CUDA device".to_string(),
        };
        let mut usable = Vec::new();
        for (index, device) in self.devices.iter().enumerate() {
            if !named.contains(&device.info().ordinal) {
                continue;
            }
            match device.unusable() {
                None => usable.push(index),
                Some(why) => reason = why,
            }
        }
        if usable.is_empty() {
            return Err(unavailable(reason));
        }
        Ok(usable)
    }

    /// That there is a device to ask. Takes no lock.
    ///
    /// # Errors
    /// There is none: why.
    pub(super) fn check_usable(&self, limits: &Limits) -> Result<(), DriverError> {
        self.usable(limits).map(|_| ())
    }

    /// What `plan` makes of the budget of the first device for which it makes something. No other
    /// device is asked for its budget, which takes a context there.
    ///
    /// # Errors
    /// There is no such device: why the last one is none.
    pub fn first<T>(
        &self,
        limits: &Limits,
        plan: impl Fn(MemoryEstimate) -> Result<T, String>,
    ) -> Result<T, EngineError> {
        self.on_first(limits, |_, budget| {
            plan(budget).map_err(EngineError::Unsuitable)
        })
    }

    /// What `make` makes on the first device where it can, within its budget. No other device is
    /// asked for its budget, which takes a context there.
    ///
    /// # Errors
    /// There is no such device: why the last one is none.
    pub(super) fn on_first<T>(
        &self,
        limits: &Limits,
        make: impl Fn(&Arc<Device>, MemoryEstimate) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let usable = self.usable(limits).map_err(EngineError::Device)?;
        let order = in_order(&self.lock(), &usable, |_| 0);
        let mut last = None;
        for index in order {
            let budget = self.budget(index, limits).map_err(EngineError::Device);
            match budget.and_then(|budget| make(&self.devices[index], budget)) {
                Ok(made) => return Ok(made),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| EngineError::Unsuitable("there is no CUDA device".to_string())))
    }

    /// What `work` returns, with the context of the first device current that has one.
    ///
    /// # Errors
    /// There is no such device: why the last one is none.
    pub(super) fn with_context<T>(
        &self,
        limits: &Limits,
        work: impl FnOnce() -> T,
    ) -> Result<T, DriverError> {
        let usable = self.usable(limits)?;
        let order = in_order(&self.lock(), &usable, |_| 0);
        let mut last = None;
        for index in order {
            match self.devices[index].enter() {
                Ok(entered) => {
                    let result = work();
                    drop(entered);
                    return Ok(result);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| DriverError {
            operation: "choosing a CUDA device".to_string(),
            device: None,
            fault: Fault::Unavailable,
            reason: "there is no CUDA device".to_string(),
        }))
    }

    /// What `limits` allow on a device, which is asked if need be.
    fn budget(&self, index: usize, limits: &Limits) -> Result<MemoryEstimate, DriverError> {
        if let Some(budget) = known_budget(&self.lock()[index], limits) {
            return Ok(budget);
        }
        let device = &self.devices[index];
        let free = device.enter().and_then(|entered| {
            let free = device.watch(device.driver().free_memory());
            drop(entered);
            free
        });
        let mut state = self.lock();
        let of_device = &mut state[index];
        match free {
            Ok(free) => {
                let device = of_device.default_budget.get_or_insert(free / DEFAULT_SHARE);
                Ok(MemoryEstimate {
                    device: *device,
                    pinned: limits.pinned_memory,
                    ..MemoryEstimate::default()
                })
            }
            Err(error) => {
                of_device.failed = Some(Instant::now());
                Err(error)
            }
        }
    }

    /// A lane for what `plan` makes of the budget of its device, when there is one. The caller
    /// holds no other lane.
    ///
    /// # Errors
    /// No device that `limits` names can be used, or has the memory.
    pub(super) fn acquire(
        &self,
        plan: Plan<'_>,
        limits: &Limits,
    ) -> Result<(Acquired<'_>, Arc<Sizing>), EngineError> {
        let open = Tried {
            most: usize::MAX,
            outcome: Outcome::Open,
        };
        let mut request = Request {
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
        request: &mut Request<'_>,
    ) -> Result<(Acquired<'_>, Arc<Sizing>), EngineError> {
        'again: loop {
            let usable = match self.usable(request.limits) {
                Ok(usable) => usable,
                Err(error) => {
                    // What broke the last of them says more.
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
                if request.tried[index].outcome != Outcome::Open {
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
                    Step::Use(lane, sizing) => {
                        of_device.active += 1;
                        drop(state);
                        return Ok((self.acquired(index, lane), sizing));
                    }
                    Step::Allocate(sizing, in_the_way) => {
                        let need = sizing.capacity;
                        of_device.active += 1;
                        add(&mut of_device.used, need.takes());
                        drop(state);
                        self.free(in_the_way.into_iter().map(|lane| (index, lane)).collect());
                        if let Some(lane) = self.allocate(index, need, request) {
                            return Ok((self.acquired(index, lane), sizing));
                        }
                        continue 'again;
                    }
                    Step::Wait => wait = true,
                    Step::Never(reason) => {
                        request.failed(index, EngineError::Unsuitable(reason));
                    }
                }
            }
            if wait {
                if request.waiting.is_none() {
                    request.waiting = Some(Instant::now());
                    self.counters.waiting_for_lane();
                }
                // Somebody has a lane, or frees one, and does not wait for anything of ours.
                drop(
                    self.changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner),
                );
                continue;
            }
            drop(state);
            // Every device was tried. Now with less, where there was no memory.
            let mut smaller = false;
            for tried in &mut request.tried {
                if tried.outcome == Outcome::OutOfMemory {
                    tried.outcome = Outcome::Open;
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

    fn acquired(&self, index: usize, lane: Lane) -> Acquired<'_> {
        Acquired {
            devices: self,
            index,
            lane: Some(lane),
            reusable: false,
        }
    }

    /// Allocate a lane that is accounted for already. When the device has no memory, idle lanes
    /// are given up for it, unless one of them will do for the smaller lane that is tried next.
    /// `None` if there is no lane; `request` then knows why.
    fn allocate(&self, index: usize, need: Capacity, request: &mut Request<'_>) -> Option<Lane> {
        let device = &self.devices[index];
        let plan = request.plan;
        loop {
            let (error, leaked, entered) = match device.enter() {
                Ok(entered) => match Lane::new(device, need) {
                    Ok(lane) => {
                        self.counters.lane_created();
                        return Some(lane);
                    }
                    Err((error, leaked)) => (error, leaked, Some(entered)),
                },
                Err(error) => (error, MemoryEstimate::default(), None),
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
                let sizing = plan(MemoryEstimate { device, ..budget }).ok()?;
                Some((most, sizing.capacity))
            });
            let one_will_do = smaller.is_some_and(|(_, capacity)| {
                let mut idle = of_device.idle.iter();
                idle.any(|(_, lane)| lane.capacity().holds(&capacity))
            });
            if no_memory && leaked == MemoryEstimate::default() && !one_will_do {
                let idle = std::mem::take(&mut of_device.idle);
                if !idle.is_empty() {
                    drop(state);
                    self.free(idle.into_iter().map(|(_, lane)| (index, lane)).collect());
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
            if leaked != MemoryEstimate::default() {
                self.counters.lane_leaked();
            }
            self.changed.notify_all();
            tracing::debug!(%error, "no lane on this device");
            request.failed(index, EngineError::Device(error));
            if let Some((most, _)) = smaller {
                request.tried[index] = Tried {
                    most,
                    outcome: Outcome::OutOfMemory,
                };
            }
            return None;
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
                let mut time = IDLE;
                loop {
                    gone.wait(time);
                    let Some(devices) = devices.upgrade() else {
                        return;
                    };
                    match devices.give_up_long_idle() {
                        Some(next) => time = next,
                        None => return,
                    }
                }
            });
        if let Err(error) = janitor {
            // They are given up when a lane is next asked for.
            tracing::debug!(%error, "no thread to give up idle lanes");
            self.janitor.store(false, Ordering::Relaxed);
        }
    }

    /// Give up the lanes that nobody used for a while. The time until the next is to be given up;
    /// `None` if no other is idle: the janitor leaves.
    fn give_up_long_idle(&self) -> Option<Duration> {
        let mut state = self.lock();
        let long_idle = take_long_idle(&mut state);
        let idle = state.iter().flat_map(|of_device| &of_device.idle);
        let oldest = idle.map(|(since, _)| *since).min();
        self.janitor.store(oldest.is_some(), Ordering::Relaxed);
        drop(state);
        self.free(long_idle);
        oldest.map(|since| IDLE.saturating_sub(since.elapsed()))
    }

    /// Give the memory of all idle lanes back. Lanes in use stay.
    pub fn release_idle(&self) {
        if self.process.forked() {
            return;
        }
        let mut idle = Vec::new();
        for (index, of_device) in self.lock().iter_mut().enumerate() {
            idle.extend(of_device.idle.drain(..).map(|(_, lane)| (index, lane)));
        }
        self.free(idle);
    }

    /// Free lanes that are out of the pool already. Each counts until it is freed, and what is
    /// leaked of it counts for ever.
    fn free(&self, lanes: Vec<(usize, Lane)>) {
        if lanes.is_empty() {
            return;
        }
        for (index, lane) in lanes {
            let taken = lane.capacity().takes();
            let leaked = lane.close();
            self.counters.lane_released();
            if leaked != MemoryEstimate::default() {
                self.counters.lane_leaked();
            }
            let mut state = self.lock();
            let of_device = &mut state[index];
            subtract(&mut of_device.used, taken);
            add(&mut of_device.used, leaked);
            add(&mut of_device.leaked, leaked);
        }
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Devices {
    /// Hold the lock while `work` runs.
    pub(super) fn while_locked(&self, work: impl FnOnce()) {
        let state = self.lock();
        work();
        drop(state);
    }

    /// What is taken on all devices.
    pub(super) fn used(&self) -> MemoryEstimate {
        let mut used = MemoryEstimate::default();
        for of_device in self.lock().iter() {
            add(&mut used, of_device.used);
        }
        used
    }
}

/// What `limits` allow on a device, if it need not be asked.
fn known_budget(of_device: &State, limits: &Limits) -> Option<MemoryEstimate> {
    let device = limits.device_memory.or(of_device.default_budget)?;
    Some(MemoryEstimate {
        device,
        pinned: limits.pinned_memory,
        ..MemoryEstimate::default()
    })
}

/// In which order devices are tried: by `load`, then whether there was memory, then by number; those
/// that failed lately last.
fn in_order(state: &[State], usable: &[usize], load: impl Fn(&State) -> usize) -> Vec<usize> {
    let now = Instant::now();
    let mut order = usable.to_vec();
    order.sort_by_key(|&index| {
        let of_device = &state[index];
        let lowered = of_device.lowered(now) < usize::MAX;
        (of_device.failed_lately(now), load(of_device), lowered)
    });
    order
}

/// What a device can do for a request.
fn next_step(
    of_device: &mut State,
    plan: Plan<'_>,
    tried: Tried,
    budget: MemoryEstimate,
    now: Instant,
) -> Step {
    let left = of_device.left(budget);
    let within = |most: usize| {
        let device = left.device.min(most);
        plan(MemoryEstimate { device, ..left })
    };
    let full = match within(tried.most) {
        Ok(sizing) => sizing,
        Err(reason) => return Step::Never(reason),
    };
    if let Some(lane) = of_device.take_idle(full.capacity) {
        return Step::Use(lane, full);
    }
    // As large as there was memory for; if there is nothing so small, it is tried all the same.
    let sizing = within(tried.most.min(of_device.lowered(now))).unwrap_or(full);
    let need = sizing.capacity;
    if let Some(lane) = of_device.take_idle(need) {
        return Step::Use(lane, sizing);
    }
    match of_device.in_the_way(need, budget) {
        Some(count) => {
            let in_the_way = of_device.idle.drain(..count).map(|(_, lane)| lane);
            Step::Allocate(sizing, in_the_way.collect())
        }
        None => Step::Wait,
    }
}

/// Take the lanes that nobody used for a while out of the pool.
fn take_long_idle(state: &mut [State]) -> Vec<(usize, Lane)> {
    let now = Instant::now();
    let mut taken = Vec::new();
    for (index, of_device) in state.iter_mut().enumerate() {
        let idle = std::mem::take(&mut of_device.idle);
        for (since, lane) in idle {
            if now.saturating_duration_since(since) < IDLE {
                of_device.idle.push((since, lane));
            } else {
                taken.push((index, lane));
            }
        }
    }
    taken
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
            device: Some(self.devices.devices[self.index].info().ordinal),
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
        if self.reusable && lane.device().unusable().is_none() {
            let mut state = self.devices.lock();
            let of_device = &mut state[self.index];
            of_device.active -= 1;
            of_device.idle.push((Instant::now(), lane));
            self.devices.call_janitor();
        } else {
            self.devices.free(vec![(self.index, lane)]);
            self.devices.lock()[self.index].active -= 1;
        }
        self.devices.changed.notify_all();
    }
}

//! The lanes of all devices, under their budgets.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::arena::Capacity;
use super::copiers::Copiers;
use super::counters::Counters;
use super::device::{Device, Process};
use super::driver::{DeviceInfo, Driver, DriverError, Fault};
use super::kept::Kept;
use super::lane::Lane;
use super::numa;
use super::sizing::{KindQuestion, ShardKind, Sizing};
use crate::contract::BufferBytes;
use crate::contract::EngineError;

/// How long the setbacks of a device are remembered. After it ran out of memory, new lanes there
/// are kept smaller. After any other failure, it is tried last.
const SETBACK: Duration = Duration::from_secs(10);

/// The default budget of a device is its free memory divided by this.
const DEFAULT_SHARE: usize = 4;

/// The devices and the memory that one set of options allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The ordinals of the devices; `None` for all.
    pub devices: Option<Vec<usize>>,
    /// Bytes per device; `None` for a quarter of the memory that is free when the budget is first
    /// needed.
    pub device_memory: Option<usize>,
    /// Bytes of pinned memory per device.
    pub pinned_memory: usize,
    /// A lane that was idle for so long is freed; `None` for never.
    pub idle: Option<Duration>,
}

/// The devices of this process and their lanes.
#[derive(Debug)]
pub struct Devices {
    devices: Vec<Arc<Device>>,
    state: Mutex<Vec<State>>,
    /// Notified when a lane is returned or freed, or could not be allocated.
    changed: Condvar,
    /// The copiers of devices without a node.
    pub copiers: Copiers,
    pub counters: Counters,
    /// A cache of the prepared kinds of shards.
    pub(super) kinds: Kept<KindQuestion, Arc<ShardKind>>,
    /// Whether the thread that frees idle lanes is running. Changes only under the lock of `state`.
    janitor: AtomicBool,
    rest: Arc<Rest>,
    process: Process,
    this: Weak<Self>,
}

/// When the janitor looks for idle lanes.
#[derive(Debug, Default)]
struct Rest {
    alarm: Mutex<Alarm>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Alarm {
    /// The [`Devices`] were dropped.
    gone: bool,
    next: Option<Instant>,
}

impl Rest {
    fn lock(&self) -> MutexGuard<'_, Alarm> {
        self.alarm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the janitor at `time`, if it would sleep longer.
    fn wake_at(&self, time: Instant) {
        let mut alarm = self.lock();
        if alarm.next.is_none_or(|next| time < next) {
            alarm.next = Some(time);
            self.changed.notify_all();
        }
    }

    fn wake_for_ever(&self) {
        self.lock().gone = true;
        self.changed.notify_all();
    }

    /// Blocks until it is time, or the [`Devices`] are dropped.
    fn wait(&self) {
        let mut alarm = self.lock();
        while !alarm.gone {
            let now = Instant::now();
            let time = match alarm.next {
                Some(next) if next <= now => {
                    alarm.next = None;
                    return;
                }
                Some(next) => next - now,
                None => Duration::from_mins(1),
            };
            let waited = self.changed.wait_timeout(alarm, time);
            alarm = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        if self.process.forked() {
            return;
        }
        self.rest.wake_for_ever();
    }
}

/// A lane that nobody uses.
#[derive(Debug)]
struct Idle {
    lane: Lane,
    /// When it is freed; `None` for never.
    until: Option<Instant>,
}

/// The lanes of one device.
#[derive(Debug, Default)]
struct State {
    /// Idle lanes, the longest idle first.
    idle: Vec<Idle>,
    /// The number of lanes that are in use or being allocated.
    active: usize,
    /// The memory of all lanes until they are freed, including idle lanes and leaked memory.
    used: BufferBytes,
    /// The part of `used` that was leaked and is never freed.
    leaked: BufferBytes,
    /// The default budget of device memory, in bytes; `None` before the device was asked.
    default_budget: Option<usize>,
    /// When an allocation last ran out of memory, and the most device memory of a new lane since
    /// then.
    lowered: Option<(Instant, usize)>,
    /// When the device last failed, other than by a lack of memory, before a lane was allocated.
    failed: Option<Instant>,
}

impl State {
    /// The most that one lane may take: the budget without the leaked memory.
    fn left(&self, budget: BufferBytes) -> BufferBytes {
        BufferBytes {
            device: budget.device.saturating_sub(self.leaked.device),
            pinned: budget.pinned.saturating_sub(self.leaked.pinned),
            ..budget
        }
    }

    /// Whether one more lane of capacity `need` stays within the budget once `freed` is freed.
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
    fn take_idle(&mut self, need: Capacity) -> Option<Lane> {
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
    fn in_the_way(&self, need: Capacity, budget: BufferBytes) -> Option<usize> {
        let mut freed = BufferBytes::default();
        for (count, Idle { lane, .. }) in self.idle.iter().enumerate() {
            if self.fits(need, budget, freed) {
                return Some(count);
            }
            add(&mut freed, lane.capacity().takes());
        }
        self.fits(need, budget, freed).then_some(self.idle.len())
    }

    /// The most device memory of a new lane if memory ran out lately; `usize::MAX` otherwise.
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

fn add(sum: &mut BufferBytes, more: BufferBytes) {
    sum.device += more.device;
    sum.pinned += more.pinned;
}

fn subtract(sum: &mut BufferBytes, less: BufferBytes) {
    sum.device -= less.device;
    sum.pinned -= less.pinned;
}

/// Sizes a lane for a memory budget, or says why the budget is too small.
pub(super) type Plan<'a> = &'a dyn Fn(BufferBytes) -> Result<Arc<Sizing>, String>;

/// The next step to get a lane on one device.
enum Step {
    Use(Lane, Arc<Sizing>),
    /// Allocate a new lane, after freeing these idle lanes.
    Allocate(Arc<Sizing>, Vec<Lane>),
    Wait,
    /// The device cannot hold such a lane; the reason.
    Never(String),
}

/// A request for a lane, and its progress.
struct Request<'a> {
    plan: Plan<'a>,
    limits: &'a Limits,
    /// The progress on each device.
    tried: Vec<Tried>,
    /// The error of the device that was tried last.
    last: Option<EngineError>,
    waiting: Option<Instant>,
}

/// The progress of a request on one device.
#[derive(Clone, Copy, Debug)]
struct Tried {
    /// The most device memory to allocate, in bytes: less than an attempt that ran out of memory.
    most: usize,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Not tried yet, or to be tried again with a smaller lane.
    Open,
    /// There was no memory, but there may be for a smaller lane.
    OutOfMemory,
    /// The device is not tried again.
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
        Self::on_machine(drivers, Path::new(numa::SYSFS))
    }

    /// Returns the devices of `drivers`, on the machine that `sysfs` describes.
    pub(super) fn on_machine(drivers: Vec<Arc<dyn Driver>>, sysfs: &Path) -> Arc<Self> {
        let addresses: Vec<_> = drivers.iter().map(|driver| driver.device().pci).collect();
        let nodes = numa::nodes(sysfs, &addresses);
        let devices: Vec<_> = std::iter::zip(drivers, nodes)
            .map(|(driver, node)| Arc::new(Device::new(driver, node)))
            .collect();
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            janitor: AtomicBool::new(false),
            rest: Arc::default(),
            process: Process::default(),
            state: Mutex::new(devices.iter().map(|_| State::default()).collect()),
            devices,
            changed: Condvar::new(),
            copiers: Copiers::default(),
            counters: Counters::default(),
            kinds: Kept::default(),
        })
    }

    /// The copiers for a device.
    pub(super) fn copiers_of<'a>(&'a self, device: &'a Device) -> &'a Copiers {
        device.node().map_or(&self.copiers, |node| &node.copiers)
    }

    /// Returns the devices that `limits` allows and that are usable. Takes no lock, so that a
    /// forked child gets an error here instead of a deadlock.
    ///
    /// # Errors
    /// No device is usable, or `limits` names a device that does not exist.
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

    /// The most multiprocessors of a device that `limits` allows and that is usable; 0 if there is
    /// no such device. Takes no lock.
    pub(super) fn multiprocessors(&self, limits: &Limits) -> usize {
        let usable = self.usable(limits).unwrap_or_default();
        let of_device = |index: usize| self.devices[index].info().multiprocessors;
        usable.into_iter().map(of_device).max().unwrap_or(0) as usize
    }

    /// Compiles the kernels for the usable devices that `limits` allows.
    ///
    /// # Errors
    /// No device is usable, or one could not compile the kernels; the first such error, after all
    /// devices were tried.
    pub fn warm_up(&self, limits: &Limits) -> Result<(), DriverError> {
        let mut result = Ok(());
        for index in self.usable(limits)? {
            let device = &self.devices[index];
            let compiled = device.enter().and_then(|entered| {
                let compiled = device.watch(device.driver().compile());
                drop(entered);
                compiled
            });
            result = result.and(compiled);
        }
        result
    }

    /// Returns a description of the work that the first shard on a device waits for. Returns `None`
    /// if everything is ready. Takes no lock.
    pub(super) fn first_wait(&self, limits: &Limits) -> Option<String> {
        let usable = self.usable(limits).ok()?;
        let uncompiled = |index: usize| self.devices[index].driver().uncompiled();
        let most = usable.into_iter().map(uncompiled).max()?;
        (most > 0).then(|| {
            format!(
                "the driver compiles the kernels that it needs, from up to {most} files: `zarrs_cuda::warm_up` does that ahead"
            )
        })
    }

    /// Returns the driver's description of each device. Takes no lock.
    pub fn infos(&self) -> impl Iterator<Item = &DeviceInfo> {
        self.devices.iter().map(|device| device.info())
    }

    /// Checks that a device is usable. Takes no lock.
    pub(super) fn check_usable(&self, limits: &Limits) -> Result<(), DriverError> {
        self.usable(limits).map(|_| ())
    }

    /// Returns the result of `plan` for the budget of the first device for which `plan` succeeds.
    /// No other device is asked for its budget, since that needs a CUDA context there.
    ///
    /// # Errors
    /// No device is usable, or `plan` fails for all; the error of the last one.
    pub fn first<T>(
        &self,
        limits: &Limits,
        plan: impl Fn(BufferBytes) -> Result<T, String>,
    ) -> Result<T, EngineError> {
        self.on_first(limits, |_, budget| {
            plan(budget).map_err(EngineError::Unsuitable)
        })
    }

    /// Returns the result of `make` for the first device, with its budget, for which `make`
    /// succeeds. No other device is asked for its budget, since that needs a CUDA context there.
    ///
    /// # Errors
    /// No device is usable, or `make` fails for all; the error of the last one.
    pub(super) fn on_first<T>(
        &self,
        limits: &Limits,
        make: impl Fn(&Arc<Device>, BufferBytes) -> Result<T, EngineError>,
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

    /// Runs `work` with the CUDA context of the first device that can be entered.
    ///
    /// # Errors
    /// No device can be entered; the error of the last one.
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

    /// Returns the budget of a device under `limits`. Asks the device for its free memory if the
    /// budget is not known yet.
    fn budget(&self, index: usize, limits: &Limits) -> Result<BufferBytes, DriverError> {
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
                Ok(BufferBytes {
                    device: *device,
                    pinned: limits.pinned_memory,
                    ..BufferBytes::default()
                })
            }
            Err(error) => {
                of_device.failed = Some(Instant::now());
                Err(error)
            }
        }
    }

    /// Acquires a lane that `plan` has sized for the budget of its device. Blocks until there is
    /// one. The caller holds no other lane.
    ///
    /// # Errors
    /// No device that `limits` allows is usable or has enough memory.
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
                    // The error that broke the last of the devices says more.
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
                        return Ok((self.acquired(index, lane, request.limits), sizing));
                    }
                    Step::Allocate(sizing, in_the_way) => {
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
                // Another thread uses or frees a lane, and does not wait for this thread.
                drop(
                    self.changed
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner),
                );
                continue;
            }
            drop(state);
            // Every device was tried. Try smaller lanes where memory ran out.
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

    fn acquired(&self, index: usize, lane: Lane, limits: &Limits) -> Acquired<'_> {
        Acquired {
            devices: self,
            index,
            lane: Some(lane),
            reusable: false,
            idle: limits.idle,
        }
    }

    /// Allocates a lane whose memory is counted already. If the device is out of memory, its idle
    /// lanes are freed and the allocation is tried again. They are kept if one of them is large
    /// enough for the smaller lane that is tried next. Returns `None` on failure; `request` then
    /// has the error.
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
                request.tried[index] = Tried {
                    most,
                    outcome: Outcome::OutOfMemory,
                };
            }
            return None;
        }
    }

    /// Starts the thread that frees idle lanes, unless it runs already, and lets it look at `time`.
    /// Called under the lock of `state`.
    fn call_janitor(&self, time: Instant) {
        self.rest.wake_at(time);
        if self.janitor.swap(true, Ordering::Relaxed) {
            return;
        }
        let (devices, rest) = (self.this.clone(), self.rest.clone());
        let janitor = std::thread::Builder::new()
            .name("zarrs_cuda idle lanes".to_string())
            .spawn(move || {
                loop {
                    rest.wait();
                    let Some(devices) = devices.upgrade() else {
                        return;
                    };
                    if !devices.give_up_long_idle() {
                        return;
                    }
                }
            });
        if let Err(error) = janitor {
            // Idle lanes are freed at the next request for a lane instead.
            tracing::debug!(%error, "no thread to give up idle lanes");
            self.janitor.store(false, Ordering::Relaxed);
        }
    }

    /// Frees the lanes that were idle for too long. Returns whether another one will be; otherwise
    /// the janitor ends.
    fn give_up_long_idle(&self) -> bool {
        let mut state = self.lock();
        let long_idle = take_long_idle(&mut state);
        let idle = state.iter().flat_map(|of_device| &of_device.idle);
        let next = idle.filter_map(|idle| idle.until).min();
        if let Some(next) = next {
            self.rest.wake_at(next);
        }
        self.janitor.store(next.is_some(), Ordering::Relaxed);
        drop(state);
        self.free(long_idle);
        next.is_some()
    }

    /// Frees all idle lanes. Lanes in use stay.
    pub fn release_idle(&self) {
        if self.process.forked() {
            return;
        }
        let mut idle = Vec::new();
        for (index, of_device) in self.lock().iter_mut().enumerate() {
            idle.extend(of_device.idle.drain(..).map(|idle| (index, idle.lane)));
        }
        self.free(idle);
    }

    /// Frees lanes that were taken out of the pool. Each counts as used until it is freed. Memory
    /// that is leaked stays counted for ever.
    fn free(&self, lanes: Vec<(usize, Lane)>) {
        if lanes.is_empty() {
            return;
        }
        for (index, lane) in lanes {
            let taken = lane.capacity().takes();
            let leaked = lane.close();
            self.counters.lane_released();
            if leaked != BufferBytes::default() {
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

    /// The memory that is used on all devices.
    pub(super) fn used(&self) -> BufferBytes {
        let mut used = BufferBytes::default();
        for of_device in self.lock().iter() {
            add(&mut used, of_device.used);
        }
        used
    }
}

/// Returns the budget of a device under `limits`, if it is known without asking the device.
fn known_budget(of_device: &State, limits: &Limits) -> Option<BufferBytes> {
    let device = limits.device_memory.or(of_device.default_budget)?;
    Some(BufferBytes {
        device,
        pinned: limits.pinned_memory,
        ..BufferBytes::default()
    })
}

/// Returns the order in which to try devices. Devices that failed lately come last. The others are
/// ordered by `load`, then whether they lately ran out of memory, then by number.
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

/// Returns the next step for a request on one device. Takes the idle lanes of that step out of the
/// pool.
fn next_step(
    of_device: &mut State,
    plan: Plan<'_>,
    tried: Tried,
    budget: BufferBytes,
    now: Instant,
) -> Step {
    let left = of_device.left(budget);
    let within = |most: usize| {
        let device = left.device.min(most);
        plan(BufferBytes { device, ..left })
    };
    let full = match within(tried.most) {
        Ok(sizing) => sizing,
        Err(reason) => return Step::Never(reason),
    };
    if let Some(lane) = of_device.take_idle(full.capacity) {
        return Step::Use(lane, full);
    }
    // Limit the lane to the size for which there was memory. If no lane is so small, try the full
    // size.
    let sizing = within(tried.most.min(of_device.lowered(now))).unwrap_or(full);
    let need = sizing.capacity;
    if let Some(lane) = of_device.take_idle(need) {
        return Step::Use(lane, sizing);
    }
    match of_device.in_the_way(need, budget) {
        Some(count) => {
            let in_the_way = of_device.idle.drain(..count).map(|idle| idle.lane);
            Step::Allocate(sizing, in_the_way.collect())
        }
        None => Step::Wait,
    }
}

/// Takes the lanes that were idle for too long out of the pool.
fn take_long_idle(state: &mut [State]) -> Vec<(usize, Lane)> {
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

/// A lane in use. On drop, the lane goes back to the pool if it is [reusable](Self::reusable), and
/// is freed otherwise.
#[derive(Debug)]
pub(super) struct Acquired<'a> {
    devices: &'a Devices,
    index: usize,
    lane: Option<Lane>,
    reusable: bool,
    /// How long the lane may be idle afterwards.
    idle: Option<Duration>,
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

    /// Marks the lane as reusable: every operation in it has completed.
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
            let until = self.idle.and_then(|idle| Instant::now().checked_add(idle));
            of_device.idle.push(Idle { lane, until });
            if let Some(until) = until {
                self.devices.call_janitor(until);
            }
        } else {
            self.devices.free(vec![(self.index, lane)]);
            self.devices.lock()[self.index].active -= 1;
        }
        self.devices.changed.notify_all();
    }
}

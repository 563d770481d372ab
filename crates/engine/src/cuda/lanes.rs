//! The budget of memory of each device, and the lanes of all devices under their budgets.
//!
//! | file | content |
//! |---|---|
//! | `pool` | the lanes of one device, and the memory that they take |
//! | `next_step` | the choice of the next step towards a lane on one device |
//! | `acquire` | the steps from a request to a lane: begins with a list of them |
//! | `acquired` | a lane in use, which goes back to the pool on drop |
//! | `janitor` | the thread that frees idle lanes and slabs, and spare memory |
//! | `read_slabs` | page-locked memory for encoded bytes, beside the lanes: allocated, freed, and taken for a read |
//! | `shut_down` | the end of the use of all devices, before the process ends |

mod acquire;
mod acquired;
mod janitor;
mod next_step;
mod pool;
#[allow(unsafe_code)]
mod read_slabs;
mod shut_down;

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::copiers::Copiers;
use super::counters::Counters;
use super::device::Device;
use super::driver::{DeviceInfo, Driver, DriverError, Fault, Found};
use super::forks::Process;
use super::freeing::retire;
use super::lane::Lane;
use super::numa;
use super::recent_answers::RecentAnswers;
use super::retired::{RetiredMemory, SpareMemory};
use super::sizing::{KindQuestion, ShardKind};
use super::uses::Uses;
use crate::contract::{BufferBytes, EngineError};
use janitor::JanitorRest;
use pool::{DeviceLanes, add, in_order, known_budget, subtract};
pub use read_slabs::ReadSlabs;
pub(super) use shut_down::shut_down_error;

/// The number by which the free memory of a device is divided to get the default budget.
const DEFAULT_DIVISOR: usize = 4;

/// The longest wait for memory that was dropped, if a device has too little.
const FREED: Duration = Duration::from_secs(2);

/// The largest default budget of a device: a guest leaves the memory to the application.
const LARGEST_DEFAULT: usize = 2 << 30;

/// The devices that one set of options allows, and the limits of their memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// The ordinals of the devices that may be used; `None` for all devices.
    pub devices: Option<Vec<usize>>,
    /// The number of bytes of device memory, for each device; `None` for 2 GiB, or a quarter of the memory
    /// that is free when the budget is first needed if that is less.
    pub device_memory: Option<usize>,
    /// The number of bytes of pinned memory of lanes, for each device. Reads have a quarter of this number for encoded
    /// bytes, at most 256 MiB, which lanes do not share.
    pub pinned_memory: usize,
    /// The time after which an idle lane is freed; `None` if it is never freed.
    pub idle: Option<Duration>,
    /// The time after which a device that does not finish is put in quarantine.
    pub timeout: Duration,
}

impl DeviceLimits {
    /// The default of [`timeout`](Self::timeout).
    pub const TIMEOUT: Duration = Duration::from_mins(1);
}

impl Default for DeviceLimits {
    fn default() -> Self {
        Self {
            devices: None,
            device_memory: None,
            pinned_memory: 0,
            idle: None,
            timeout: Self::TIMEOUT,
        }
    }
}

/// The devices of this process and their lanes.
#[derive(Debug)]
pub struct Devices {
    devices: Vec<Arc<Device>>,
    /// The reasons why the other devices of this process cannot be used. Each names its device.
    refused: Vec<DriverError>,
    state: Mutex<Vec<DeviceLanes>>,
    /// Notified when a lane is returned or freed, or when an allocation of a lane has failed.
    changed: Condvar,
    /// The copiers of devices without a node.
    pub copiers: Copiers,
    pub counters: Counters,
    /// A cache of the prepared kinds of shards.
    pub(super) kinds: RecentAnswers<KindQuestion, Arc<ShardKind>>,
    /// Whether the thread that frees idle lanes is running. The value changes only under the lock of `state`.
    janitor: AtomicBool,
    rest: Arc<JanitorRest>,
    /// Whether the devices begin no new work ([`shut_down`](Self::shut_down)).
    shut_down: AtomicBool,
    pub(super) uses: Arc<Uses>,
    process: Process,
    this: Weak<Self>,
}

impl Drop for Devices {
    fn drop(&mut self) {
        if self.process.forked() {
            return;
        }
        self.rest.wake_for_ever();
        self.free_slabs(None);
    }
}

impl Devices {
    pub fn new(drivers: Vec<Arc<dyn Driver>>) -> Arc<Self> {
        Self::of_process(Found {
            drivers,
            refused: Vec::new(),
        })
    }

    /// Returns the devices that were found for this process.
    pub(super) fn of_process(found: Found) -> Arc<Self> {
        Self::on_machine(found, Path::new(numa::SYSFS))
    }

    /// Returns the devices of `found`, on the machine that `sysfs` describes.
    pub(super) fn on_machine(found: Found, sysfs: &Path) -> Arc<Self> {
        let Found { drivers, refused } = found;
        let addresses: Vec<_> = drivers.iter().map(|driver| driver.device().pci).collect();
        let nodes = numa::nodes(sysfs, &addresses);
        let uses = Arc::<Uses>::default();
        let devices: Vec<_> = std::iter::zip(drivers, nodes)
            .map(|(driver, node)| Arc::new(Device::new(driver, node, uses.clone())))
            .collect();
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            janitor: AtomicBool::new(false),
            rest: Arc::default(),
            shut_down: AtomicBool::new(false),
            uses,
            process: Process::default(),
            state: Mutex::new(devices.iter().map(|_| DeviceLanes::default()).collect()),
            devices,
            refused,
            changed: Condvar::new(),
            copiers: Copiers::default(),
            counters: Counters::default(),
            kinds: RecentAnswers::default(),
        })
    }

    /// Returns the copiers for a device.
    pub(super) fn copiers_of<'a>(&'a self, device: &'a Device) -> &'a Copiers {
        device.node().map_or(&self.copiers, |node| &node.copiers)
    }

    fn refused(&self, ordinal: usize) -> Option<&DriverError> {
        let mut refused = self.refused.iter();
        refused.find(|error| error.device == Some(ordinal))
    }

    /// Returns the reason why the device `ordinal` is not among these devices. Takes no lock.
    pub fn why_missing(&self, ordinal: usize) -> String {
        if let Some(error) = self.refused(ordinal) {
            return error.to_string();
        }
        let ordinals: Vec<usize> = self.infos().map(|info| info.ordinal).collect();
        format!("there is no CUDA device {ordinal}: the devices that can be used are {ordinals:?}")
    }

    /// Returns whether this process does not use the device `ordinal` any more because the device hangs, or because its
    /// context is broken. Takes no lock.
    pub fn has_failed(&self, ordinal: usize) -> bool {
        let mut devices = self.devices.iter();
        devices.any(|device| device.info().ordinal == ordinal && device.has_failed())
    }

    /// Returns the indices of the usable devices that `limits` allows. Takes no lock, so that a forked child
    /// gets an error here instead of a deadlock.
    ///
    /// # Errors
    /// No device is usable, the devices were shut down, or `limits` names a device that does not exist.
    fn usable(&self, limits: &DeviceLimits) -> Result<Vec<usize>, DriverError> {
        self.check_open()?;
        let unavailable = |reason| DriverError {
            operation: "choosing a CUDA device".to_string(),
            device: None,
            fault: Fault::Unavailable,
            reason,
        };
        let ordinals: Vec<usize> = self.devices.iter().map(|d| d.info().ordinal).collect();
        let named = limits.devices.as_deref().unwrap_or(&ordinals);
        if let Some(absent) = named.iter().find(|named| !ordinals.contains(named)) {
            let refused = self.refused(*absent).cloned();
            return Err(refused.unwrap_or_else(|| unavailable(self.why_missing(*absent))));
        }
        let mut reason = match &limits.devices {
            Some(_) => "no CUDA device was named".to_string(),
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

    /// Returns the device with the number `ordinal`. Takes no lock.
    ///
    /// # Errors
    /// There is no such device, or it cannot be used. The error has the reason.
    pub(super) fn numbered(&self, ordinal: usize) -> Result<&Arc<Device>, DriverError> {
        let limits = DeviceLimits {
            devices: Some(vec![ordinal]),
            ..DeviceLimits::default()
        };
        let usable = self.usable(&limits)?;
        Ok(&self.devices[usable[0]])
    }

    /// Returns the numbers of the usable devices that `limits` allows. Takes no lock.
    ///
    /// # Errors
    /// No device is usable, or `limits` names a device that does not exist.
    pub(super) fn usable_numbers(&self, limits: &DeviceLimits) -> Result<Vec<usize>, DriverError> {
        let usable = self.usable(limits)?.into_iter();
        Ok(usable
            .map(|index| self.devices[index].info().ordinal)
            .collect())
    }

    /// Returns the largest number of multiprocessors among the usable devices that `limits` allows; 0 if
    /// there is no such device. Takes no lock.
    pub(super) fn multiprocessors(&self, limits: &DeviceLimits) -> usize {
        let usable = self.usable(limits).unwrap_or_default();
        let of_device = |index: usize| self.devices[index].info().multiprocessors;
        usable.into_iter().map(of_device).max().unwrap_or(0) as usize
    }

    /// Returns whether the context of each usable device that `limits` allows exists. Takes no lock.
    pub(super) fn have_contexts(&self, limits: &DeviceLimits) -> bool {
        let usable = self.usable(limits).unwrap_or_default();
        let has_context = |index: usize| self.devices[index].driver().has_context();
        usable.into_iter().all(has_context)
    }

    /// Compiles the kernels for the usable devices that `limits` allows.
    ///
    /// # Errors
    /// No device is usable, or a device could not compile the kernels. The error is the first one, after all
    /// devices were tried.
    pub fn warm_up(&self, limits: &DeviceLimits) -> Result<(), DriverError> {
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

    /// Returns a description of the work that the first shard on a device waits for: kernels to compile.
    /// Returns `None` if nothing is left to do. Takes no lock.
    pub(super) fn first_wait(&self, limits: &DeviceLimits) -> Option<String> {
        let usable = self.usable(limits).ok()?;
        let uncompiled = |index: usize| self.devices[index].driver().uncompiled();
        let most = usable.into_iter().map(uncompiled).max()?;
        (most > 0).then(|| {
            format!(
                "the driver compiles the kernels that it needs, from up to {most} files: `zarrs_cuda::warm_up` does that ahead"
            )
        })
    }

    /// Returns the properties of each device, as the driver reports them. Takes no lock.
    pub fn infos(&self) -> impl Iterator<Item = &DeviceInfo> {
        self.devices.iter().map(|device| device.info())
    }

    /// Checks that a device that `limits` allows is usable. Takes no lock.
    pub(super) fn check_usable(&self, limits: &DeviceLimits) -> Result<(), DriverError> {
        self.usable(limits).map(|_| ())
    }

    /// Returns the result of `plan` for the budget of the first device for which `plan` succeeds. The later
    /// devices are not asked for their budgets, since that needs a CUDA context on each.
    ///
    /// # Errors
    /// No device is usable, or `plan` fails for all devices. The error is that of the last device.
    pub fn first<T>(
        &self,
        limits: &DeviceLimits,
        plan: impl Fn(BufferBytes) -> Result<T, String>,
    ) -> Result<T, EngineError> {
        self.on_first(limits, |_, budget| {
            plan(budget).map_err(EngineError::Unsuitable)
        })
    }

    /// Returns the result of `make` for the first device, with its budget, for which `make` succeeds. The
    /// later devices are not asked for their budgets, since that needs a CUDA context on each.
    ///
    /// # Errors
    /// No device is usable, or `make` fails for all devices. The error is that of the last device.
    pub(super) fn on_first<T>(
        &self,
        limits: &DeviceLimits,
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

    /// Runs `work` while the CUDA context of a device is current on this thread: the first device whose
    /// context can be made current.
    ///
    /// # Errors
    /// The context of no device can be made current. The error is that of the last device.
    pub(super) fn with_context<T>(
        &self,
        limits: &DeviceLimits,
        work: impl FnOnce(usize) -> T,
    ) -> Result<T, DriverError> {
        let usable = self.usable(limits)?;
        let order = in_order(&self.lock(), &usable, |_| 0);
        let mut last = None;
        for index in order {
            match self.devices[index].enter() {
                Ok(entered) => {
                    let result = work(self.devices[index].info().ordinal);
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

    /// Returns the budget of a device under `limits`. Asks the device for its free memory if its default
    /// budget is needed and not known yet.
    fn budget(&self, index: usize, limits: &DeviceLimits) -> Result<BufferBytes, DriverError> {
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
                let device = of_device
                    .default_budget
                    .get_or_insert((free / DEFAULT_DIVISOR).min(LARGEST_DEFAULT));
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

    /// Frees all idle lanes and slabs, and lets a thread free the spare memory. Lanes and slabs in use stay.
    pub fn release_idle(&self) {
        if self.process.forked() {
            return;
        }
        self.retire_spare(None);
        self.release_idle_lanes();
    }

    /// Frees all idle lanes and slabs.
    fn release_idle_lanes(&self) {
        self.free_slabs(None);
        let mut idle = Vec::new();
        for (index, of_device) in self.lock().iter_mut().enumerate() {
            idle.extend(of_device.idle.drain(..).map(|idle| (index, idle.lane)));
        }
        self.free(idle);
    }

    /// Keeps spare memory of a device. A thread frees it if there is too much. If the devices are shut down, it is leaked.
    pub(super) fn keep_spare(&self, device: &Arc<Device>, spare: SpareMemory) {
        if self.check_open().is_err() || device.unusable().is_some() {
            return;
        }
        let until = spare.until;
        if let Some(too_much) = device.retired().keep(spare) {
            retire(device, [too_much.into()]);
        } else if let Some(until) = until {
            let state = self.lock();
            self.call_janitor(until);
            drop(state);
        }
    }

    /// Lets a thread free the spare memory of a device, and waits a while for this and for memory that was dropped.
    pub(super) fn free_spare(&self, device: &Arc<Device>) {
        self.retire_spare(None);
        device.retired().wait(FREED);
    }

    /// Lets a thread free the spare memory that is due at `now`; all of it without a time.
    fn retire_spare(&self, now: Option<Instant>) {
        for device in &self.devices {
            if device.unusable().is_none() {
                let spare = device.retired().take_spare(now);
                retire(device, spare.into_iter().map(RetiredMemory::from));
            }
        }
    }

    /// Frees lanes that were taken out of the pool. Each lane counts as used until it is freed. Leaked memory
    /// stays counted for ever.
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

    fn lock(&self) -> MutexGuard<'_, Vec<DeviceLanes>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Devices {
    /// Holds the locks while `work` runs.
    pub(super) fn while_locked(&self, work: impl FnOnce()) {
        let state = self.lock();
        let slabs: Vec<_> = (self.devices.iter())
            .map(|device| device.slabs().locked())
            .collect();
        work();
        drop((state, slabs));
    }

    /// Returns the memory that is used on all devices.
    pub(super) fn used(&self) -> BufferBytes {
        let mut used = BufferBytes::default();
        for of_device in self.lock().iter() {
            add(&mut used, of_device.used);
        }
        used
    }
}

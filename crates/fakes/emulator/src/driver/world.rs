//! The state of a process: devices, handles, and the contexts of each thread.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::{env, process};

use super::capture::{self, Captures};
use super::codes::{self, Code};
use super::config::{Config, Inject, Machine};
use super::device::{Device, Recorded};
use super::{Failure, IN_HOST_FUNCTION, wrong};
use crate::Module;
use crate::device::Kind;

/// An object that a handle denotes.
#[derive(Clone)]
pub(super) enum Object {
    /// The primary context of a device.
    Context(usize),
    Stream(Stream),
    Event(Event),
    Module(usize, Arc<Module>),
    /// A kernel: its device, its module, and its number there.
    Function(usize, Arc<Module>, usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) device: usize,
    pub(super) number: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) device: usize,
    pub(super) takes_time: bool,
    pub(super) recorded: Option<Recorded>,
    /// The capture in which it was last recorded.
    pub(super) captured: Option<u64>,
}

/// The first handle. Handles are never used twice, and are no addresses of memory.
const FIRST: u64 = 0x5000_0000_0000;
/// The distance of two handles.
const STEP: u64 = 16;

#[derive(Default)]
pub(super) struct World {
    pub(super) is_initialized: bool,
    pub(super) devices: Vec<Device>,
    pub(super) captures: Captures,
    /// How often each function without a device was called.
    calls: HashMap<&'static str, usize>,
    objects: HashMap<u64, Object>,
    handles: u64,
    /// The default streams: of each device (`None`), and of each thread and device.
    defaults: HashMap<(usize, Option<ThreadId>), Stream>,
    violations: Vec<(Option<usize>, String)>,
    /// Whether a violation ends the process.
    is_fatal: bool,
}

static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// The process that initialised the driver; 0 if none did.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The contexts that are current on a thread, the top one last.
#[derive(Default)]
struct Stack(RefCell<Vec<u64>>);

impl Drop for Stack {
    fn drop(&mut self) {
        let left = self.0.borrow();
        if let Some(top) = left.last()
            && !thread::panicking()
            && !is_forked()
        {
            let message = format!("a thread ended with {} contexts on its stack", left.len());
            with_world(|world| {
                let device = match world.objects.get(top) {
                    Some(Object::Context(device)) => Some(*device),
                    _ => None,
                };
                world.violated(device, "a thread", &message);
            });
        }
    }
}

thread_local! {
    static STACK: Stack = Stack::default();
    pub(super) static MODE: Cell<u32> = const { Cell::new(capture::GLOBAL) };
}

pub(super) fn is_forked() -> bool {
    let first = PROCESS.load(Ordering::Relaxed);
    first != 0 && first != process::id()
}

fn lock() -> MutexGuard<'static, Option<World>> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_world<T>(function: impl FnOnce(&mut World) -> T) -> T {
    function(lock().get_or_insert_default())
}

/// The device to which a call belongs.
#[derive(Clone, Copy)]
pub(super) enum Of {
    /// None; and it works before `cuInit`.
    Nothing,
    /// None.
    Driver,
    /// The device with this number.
    Device(i32),
    /// The device of the context that is current.
    Current,
    /// The device of a context, even if the context is broken.
    Context(u64),
    /// The device of the context that is current, even if the context is broken.
    Top,
}

/// Runs a call of the function `name`, and returns its code.
pub(super) fn call(
    name: &'static str,
    of: Of,
    body: impl FnOnce(&mut World, usize) -> Result<(), Failure>,
) -> Code {
    // This comes first: in a forked child another thread of the parent may hold the lock for ever.
    if is_forked() {
        return codes::NOT_INITIALIZED;
    }
    if IN_HOST_FUNCTION.get() {
        // The lock is taken by the call that runs the function.
        eprintln!("emulated driver: {name} was called by a function of the host");
        return codes::NOT_PERMITTED;
    }
    with_world(|world| {
        let (device, result) = match world.admit(name, of) {
            Ok(device) => {
                let result = body(world, device.unwrap_or(0));
                (device, result)
            }
            Err((device, failure)) => (device, Err(failure)),
        };
        if let Some(device) = device {
            for message in std::mem::take(&mut world.devices[device].wrongs) {
                world.violated(Some(device), name, &message);
            }
        }
        match result {
            Ok(()) => codes::SUCCESS,
            Err(Failure { code, message }) => {
                if let Some(message) = message {
                    world.violated(device, name, &message);
                }
                code
            }
        }
    })
}

impl World {
    /// Finds the device of a call, and counts the call there.
    fn admit(
        &mut self,
        name: &'static str,
        of: Of,
    ) -> Result<Option<usize>, (Option<usize>, Failure)> {
        let none = |failure: Failure| (None, failure);
        if !self.is_initialized && !matches!(of, Of::Nothing) {
            return wrong(codes::NOT_INITIALIZED, "cuInit was not called").map_err(none);
        }
        let device = match of {
            Of::Nothing | Of::Driver => {
                let count = self.calls.entry(name).or_default();
                let now = *count;
                *count += 1;
                // Only the environment injects these.
                let mut faults = machine().faults.into_iter();
                let fault = faults.find(|fault| fault.function == name && fault.call == now);
                let code = fault.map(|fault| fault.code);
                return code.map_or(Ok(None), |code| Err(none(code.into())));
            }
            Of::Device(number) => usize::try_from(number)
                .ok()
                .filter(|number| *number < self.devices.len())
                .ok_or_else(|| none(codes::INVALID_DEVICE.into()))?,
            Of::Current | Of::Top => self.current().map_err(none)?,
            Of::Context(context) => self.device_of(context).map_err(none)?,
        };
        let is_usable = matches!(of, Of::Context(_) | Of::Top);
        let admitted = self.devices[device].admit(name, is_usable);
        admitted.map_err(|failure| (Some(device), failure))?;
        Ok(Some(device))
    }

    /// Returns the device of the context that is current on this thread.
    fn current(&self) -> Result<usize, Failure> {
        Self::top().map_or_else(
            || {
                wrong(
                    codes::INVALID_CONTEXT,
                    "no context is current on this thread",
                )
            },
            |context| self.device_of(context),
        )
    }

    fn device_of(&self, context: u64) -> Result<usize, Failure> {
        match self.get(context, "context")? {
            Object::Context(device) => Ok(*device),
            _ => wrong(
                codes::INVALID_CONTEXT,
                &format!("{context:#x} is no context"),
            ),
        }
    }

    fn violated(&mut self, device: Option<usize>, name: &str, message: &str) {
        let message = format!("{name}: {message}");
        eprintln!("emulated driver: {message}");
        if self.is_fatal {
            process::abort();
        }
        self.violations.push((device, message));
    }

    /// Initialises the driver. In a process without devices of tests, the environment says what there
    /// is.
    pub(super) fn initialize(&mut self) -> Result<(), Failure> {
        if self.is_initialized {
            return Ok(());
        }
        let machine = machine();
        if machine.devices.is_empty() {
            return Err(codes::NO_DEVICE.into());
        }
        for config in machine.devices {
            let device = Device::new(config, machine.faults.clone());
            self.devices.push(device);
        }
        self.is_fatal = true;
        self.start();
        Ok(())
    }

    fn start(&mut self) {
        self.is_initialized = true;
        PROCESS.store(process::id(), Ordering::Relaxed);
    }

    pub(super) fn insert(&mut self, object: Object) -> u64 {
        let handle = FIRST + STEP * self.handles;
        self.handles += 1;
        self.objects.insert(handle, object);
        handle
    }

    /// Returns the object of a handle on a device. `kind` names it in the message.
    pub(super) fn get(&self, handle: u64, kind: &str) -> Result<&Object, Failure> {
        self.objects.get(&handle).map_or_else(
            || {
                let is_old = handle >= FIRST && (handle - FIRST) / STEP < self.handles;
                let why = if is_old {
                    "was destroyed"
                } else {
                    "never existed"
                };
                wrong(
                    codes::INVALID_HANDLE,
                    &format!("the {kind} {handle:#x} {why}"),
                )
            },
            Ok,
        )
    }

    pub(super) fn remove(&mut self, handle: u64) {
        self.objects.remove(&handle);
    }

    /// Returns the stream of a handle, which belongs to `device`. 0, 1 and 2 are default streams.
    pub(super) fn stream(&mut self, handle: u64, device: usize) -> Result<Stream, Failure> {
        if handle <= 2 {
            let thread = (handle == 2).then(|| thread::current().id());
            if let Some(stream) = self.defaults.get(&(device, thread)) {
                return Ok(*stream);
            }
            let number = self.devices[device].create_stream();
            let stream = Stream { device, number };
            self.defaults.insert((device, thread), stream);
            return Ok(stream);
        }
        match self.get(handle, "stream")? {
            Object::Stream(stream) if stream.device == device => Ok(*stream),
            Object::Stream(stream) => {
                let message = format!(
                    "a stream of device {} is used in the context of device {device}",
                    stream.device
                );
                wrong(codes::INVALID_HANDLE, &message)
            }
            _ => wrong(codes::INVALID_HANDLE, &format!("{handle:#x} is no stream")),
        }
    }

    /// Returns the event of a handle, which belongs to `device`.
    pub(super) fn event(&mut self, handle: u64, device: usize) -> Result<&mut Event, Failure> {
        match self.get(handle, "event")? {
            Object::Event(event) if event.device != device => {
                let message = format!(
                    "an event of device {} is used in the context of device {device}",
                    event.device
                );
                return wrong(codes::INVALID_HANDLE, &message);
            }
            _ => {}
        }
        match self.objects.get_mut(&handle) {
            Some(Object::Event(event)) => Ok(event),
            _ => wrong(codes::INVALID_HANDLE, &format!("{handle:#x} is no event")),
        }
    }

    /// Checks a call that captures of streams may prohibit.
    pub(super) fn allow(&mut self) -> Result<(), Failure> {
        let allowed = self.captures.allow(MODE.get(), thread::current().id());
        allowed.map_err(Into::into)
    }

    /// Makes a context current on this thread.
    pub(super) fn push(context: u64) {
        STACK.with(|stack| stack.0.borrow_mut().push(context));
    }

    /// Undoes the last push of this thread. Returns its context.
    pub(super) fn pop() -> Option<u64> {
        STACK.with(|stack| stack.0.borrow_mut().pop())
    }

    /// Returns the context that is current on this thread.
    pub(super) fn top() -> Option<u64> {
        STACK.with(|stack| stack.0.borrow().last().copied())
    }

    fn count(&self, device: usize, is_kind: impl Fn(&Object) -> Option<usize>) -> usize {
        let of = self.objects.values().filter_map(is_kind);
        of.filter(|of| *of == device).count()
    }
}

/// Returns what the environment says that there is.
fn machine() -> Machine {
    let settings = env::var("ZARRS_CUDA_EMULATED").unwrap_or_default();
    Machine::parse(&settings).unwrap_or_else(|error| {
        eprintln!("{error}");
        process::abort();
    })
}

/// Returns the version of the driver: 1000 × major + 10 × minor.
pub(super) fn version() -> i32 {
    machine().version
}

/// Adds a device, and returns its number. The driver is initialised then.
///
/// # Panics
/// The driver of this process took its devices from the environment.
#[must_use]
pub fn add(config: Config) -> usize {
    with_world(|world| {
        assert!(
            !world.is_fatal,
            "this process has the devices of its environment"
        );
        world.start();
        world.devices.push(Device::new(config, Vec::new()));
        world.devices.len() - 1
    })
}

/// Lets a call of a function on a device fail.
pub fn inject(device: usize, fault: Inject) {
    with_world(|world| world.devices[device].faults.push(fault));
}

/// Returns how often each function was called on a device.
#[must_use]
pub fn calls(device: usize) -> Vec<(&'static str, usize)> {
    with_world(|world| {
        let calls = &world.devices[device].calls;
        let mut calls: Vec<_> = calls.iter().map(|(name, count)| (*name, *count)).collect();
        calls.sort_unstable();
        calls
    })
}

/// Returns what was done wrong on a device so far.
#[must_use]
pub fn violations(device: usize) -> Vec<String> {
    with_world(|world| {
        let own = world
            .violations
            .iter()
            .filter(|(of, _)| *of == Some(device));
        own.map(|(_, message)| message.clone()).collect()
    })
}

/// The numbers of the objects that exist on a device now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Allocations of device memory.
    pub device_allocations: usize,
    /// Allocations of pinned memory.
    pub pinned_allocations: usize,
    /// Streams.
    pub streams: usize,
    /// Events.
    pub events: usize,
}

/// Returns what there is on a device now.
#[must_use]
pub fn live(device: usize) -> Live {
    with_world(|world| {
        let memory = &world.devices[device].memory;
        Live {
            device_allocations: memory.count(Kind::Device),
            pinned_allocations: memory.count(Kind::Pinned),
            streams: world.count(device, |object| match object {
                Object::Stream(stream) => Some(stream.device),
                _ => None,
            }),
            events: world.count(device, |object| match object {
                Object::Event(event) => Some(event.device),
                _ => None,
            }),
        }
    })
}

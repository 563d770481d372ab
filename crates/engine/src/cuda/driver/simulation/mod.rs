//! A device that is simulated: it needs no GPU, and catches what hardware hides.
//!
//! Every operation declares the bytes that it reads and writes. Two that conflict (they share a
//! byte, and one writes it) must be ordered by streams, events and the host's waits. That is judged
//! when an operation is enqueued, whatever runs when, so a missing order is found on the first run.
//! So are bytes that are read and were never written, spans that leave their allocation, memory
//! that is used after it was freed or freed while in use, events that were never recorded, and
//! kernels that write what they did not declare. Each is recorded as a [`Violation`], and the call
//! fails. Beside that, operations run in an order of choice ([`Schedule`]), and faults can be
//! injected.
//!
//! The simulation does not see a missing order among the threads of the host, because it treats
//! them as one party. It does not see bytes of pinned memory that the host touches without
//! [`host_access`](Driver::host_access). It does not measure time: its clock counts operations.
//! Kernels run one at a time.

mod answers;
mod clocks;
mod faults;
mod guard;
mod intervals;
mod kernels;
mod modules;
mod state;
#[cfg(test)]
mod tests;
mod trace;

use std::collections::BTreeSet;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

pub use self::faults::{Counts, Inject};
pub use self::kernels::AccessCount;
#[cfg(test)]
pub(crate) use self::modules::kernel;
use self::state::{Failure, SimulationState};
use self::trace::Trace;
use super::{
    Access, Arg, DeviceInfo, DeviceMemory, DeviceSpan, Dims, Driver, DriverError, EventId, Fault,
    LibraryCall, MemoryAt, PciAddress, PinnedMemory, PinnedSpan, PinnedUse, Rows, RowsShape, Site,
    Span, StreamId,
};
pub use zarrs_cuda_emulator::device::{Kind, Schedule};

/// The settings of a simulated device.
#[derive(Clone, Debug)]
pub struct Config {
    pub ordinal: usize,
    pub schedule: Schedule,
    /// Bytes of device memory.
    pub memory: usize,
    pub multiprocessors: u32,
    /// The most bytes from one row to the next in a copy of rows.
    pub largest_pitch: usize,
    pub pci: Option<PciAddress>,
    /// Bytes of pinned memory.
    pub pinned: usize,
    /// The site at which operations do nothing.
    pub removed: Option<Site>,
    /// The device hangs as soon as the host waits at this site, and the wait never ends.
    pub hangs_at: Option<Site>,
    pub faults: Vec<Inject>,
    /// Keep how many sectors each access of the last kernel moved.
    pub sectors: bool,
    /// Seed of what is in memory that was not written.
    pub poison: u64,
    /// Whether to keep a trace of the operations. This needs [`Schedule::Eager`].
    pub trace: bool,
    /// Check each launch of a kernel in full, also where many before it were alike.
    pub checks_each: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ordinal: 0,
            schedule: Schedule::Eager,
            memory: 1 << 30,
            multiprocessors: 4,
            largest_pitch: i32::MAX as usize,
            pci: None,
            pinned: 1 << 30,
            removed: None,
            hangs_at: None,
            faults: Vec::new(),
            sectors: false,
            poison: 0x5eed,
            trace: false,
            checks_each: false,
        }
    }
}

/// A rule of the seam.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Conflicting accesses are ordered.
    Order,
    /// Bytes that are read were written.
    Uninitialised,
    /// Spans are within their allocations.
    Bounds,
    /// Objects that are used exist, and objects that are freed are not in use.
    Lifetime,
    /// Events that are waited for were recorded, and events that are timed have happened.
    Event,
    /// Streams that the application captures are left alone.
    Capture,
    /// The context is current; and not touched once it is broken.
    Context,
    /// Kernels and libraries write what they declared.
    Guard,
    /// Kernels keep the rules that their emulator checks.
    Kernel,
    /// Lengths, dimensions.
    Argument,
}

/// A rule that was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    pub rule: Rule,
    /// The operation that broke the rule, and how.
    pub message: String,
}

/// The resources that are in use now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    pub device_allocations: usize,
    /// The bytes of device memory, rounded up to the alignment.
    pub device_bytes: usize,
    pub pinned_allocations: usize,
    pub pinned_bytes: usize,
    pub streams: usize,
    pub events: usize,
    /// Times that threads have entered and not left.
    pub entered: usize,
}

/// A simulated device.
pub struct Simulation {
    info: DeviceInfo,
    state: Mutex<SimulationState>,
    on_free: OnceLock<Box<dyn Fn() + Send + Sync>>,
    on_allocate: OnceLock<Box<dyn Fn(Kind) + Send + Sync>>,
}

/// The kind of a call, which decides how faults affect the call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKind {
    /// Tells the simulation something; a driver does not hear of it.
    Declare,
    Use,
    /// Must not be called on a broken context.
    Free,
}

impl Simulation {
    pub fn new(config: Config) -> Self {
        Self {
            info: DeviceInfo {
                ordinal: config.ordinal,
                name: "simulated device".to_owned(),
                compute_capability: (9, 0),
                total_memory: config.memory,
                multiprocessors: config.multiprocessors,
                largest_pitch: config.largest_pitch,
                pci: config.pci,
            },
            state: Mutex::new(SimulationState::new(config)),
            on_free: OnceLock::new(),
            on_allocate: OnceLock::new(),
        }
    }

    /// Everything runs as soon as it is enqueued, and each launch is checked in full.
    pub fn eager() -> Self {
        Self::new(Config {
            checks_each: true,
            ..Config::default()
        })
    }

    /// Returns the rules that were broken so far.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }

    /// Returns all sites that were used so far.
    pub fn sites(&self) -> BTreeSet<Site> {
        self.lock().sites.clone()
    }

    /// Returns the sites at which the host has waited so far.
    pub fn waits(&self) -> BTreeSet<Site> {
        self.lock().waits.clone()
    }

    /// Returns the resources that are in use now.
    pub fn live(&self) -> Live {
        let state = self.lock();
        Live {
            device_allocations: state.memory.count(Kind::Device),
            device_bytes: state.memory.used(Kind::Device),
            pinned_allocations: state.memory.count(Kind::Pinned),
            pinned_bytes: state.memory.used(Kind::Pinned),
            streams: state.live_streams(),
            events: state.live_events(),
            entered: state.current.values().sum(),
        }
    }

    /// Returns the most bytes of a kind that were allocated at a time.
    pub fn peak(&self, kind: Kind) -> usize {
        self.lock().memory.peak(kind)
    }

    /// Returns how many bytes the host has read of memory that it only writes: on a GPU that is
    /// slow.
    pub fn uploads_read(&self) -> usize {
        self.lock().uploads_read
    }

    /// Returns how many bytes of pinned memory there are now that the host only writes.
    pub fn for_uploads(&self) -> usize {
        let state = self.lock();
        let all = state.memory.live().map(|(_, allocation)| allocation);
        let uploads = all.filter(|allocation| allocation.known.is_for_uploads);
        uploads.map(|allocation| allocation.block.len()).sum()
    }

    /// Returns how often each was asked for so far.
    pub fn counts(&self) -> Counts {
        self.lock().faults.counts
    }

    /// Injects another fault; its number is from the beginning, see [`counts`](Self::counts).
    pub fn inject(&self, fault: Inject) {
        self.lock().faults.injected.push(fault);
    }

    /// Returns the operations that failed once, because that was injected.
    pub fn failed(&self) -> Vec<String> {
        self.lock().faults.failed.clone()
    }

    /// Lets the device have this much memory from now on, as if other processes took the rest.
    pub fn set_memory(&self, bytes: usize) {
        self.lock().config.memory = bytes;
    }

    /// Lets the device hang: it completes nothing any more but what is in streams of applications, and what
    /// this waits for.
    pub fn hang(&self) {
        self.lock().hang();
    }

    /// Returns whether the device hangs.
    pub fn hangs(&self) -> bool {
        self.lock().hangs()
    }

    /// Lets the operations of a stream wait, or run again.
    pub fn stall(&self, stream: StreamId, is_stalled: bool) {
        self.lock().stall(stream, is_stalled);
    }

    /// Lets the application capture a stream of its own into a graph from now on, or no more.
    pub fn capture(&self, stream: StreamId, is_captured: bool) {
        let captured = &mut self.lock().captured;
        if is_captured {
            captured.insert(stream.0);
        } else {
            captured.remove(&stream.0);
        }
    }

    /// Lets `hook` run whenever device memory is about to be freed.
    pub fn on_free(&self, hook: impl Fn() + Send + Sync + 'static) {
        assert!(self.on_free.set(Box::new(hook)).is_ok(), "there is one");
    }

    /// Lets `hook` run whenever memory of some kind is about to be allocated, on the thread that
    /// asks.
    pub fn on_allocate(&self, hook: impl Fn(Kind) + Send + Sync + 'static) {
        let set = self.on_allocate.set(Box::new(hook));
        assert!(set.is_ok(), "there is one");
    }

    /// Lets the device write wrong bytes, and report no error. After each operation, `alter` gets the name of
    /// the kernel or of the library's function (`up`, `down` or `within` for a copy, by its direction; `fill`),
    /// the number of a span that the operation writes, the bytes of the span before the operation, and its
    /// bytes now, which `alter` may change.
    pub fn alter(&self, alter: impl FnMut(&str, usize, &[u8], &mut [u8]) + Send + 'static) {
        self.lock().alter = Some(Box::new(alter));
    }

    /// Returns the counts of each access to global memory in the last kernel that ran, if
    /// [`Config::sectors`] is set.
    pub fn sectors(&self) -> Vec<AccessCount> {
        self.lock().sectors.clone()
    }

    /// Returns the steps that were asked of the device so far, if [`Config::trace`] is set. Each
    /// step is a line.
    pub fn trace(&self) -> String {
        let state = self.lock();
        state.trace.as_ref().map(Trace::lines).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, SimulationState> {
        // A library function that panics leaves the state as it is before or after it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what a call does, and turns its failure into an error of `operation`.
    fn run<T>(
        &self,
        call: CallKind,
        operation: fmt::Arguments<'_>,
        function: impl FnOnce(&mut SimulationState) -> Result<T, Failure>,
    ) -> Result<T, DriverError> {
        let mut state = self.lock();
        if let Some(trace) = &mut state.trace {
            trace.enter();
        }
        let result = Self::admit(&mut state, call, operation).and_then(|()| function(&mut state));
        // An operation can fail after the call that enqueued it. A later call reports this failure,
        // but a call that frees does not: its caller would not know whether the call had freed.
        let result = match (result, call) {
            (Ok(value), CallKind::Use) => state.failed.take().map_or(Ok(value), Err),
            (result, _) => result,
        };
        let result = self.report(&mut state, operation, result);
        if let Some(trace) = &mut state.trace {
            trace.leave();
        }
        result
    }

    /// Checks the context, and counts the call.
    fn admit(
        state: &mut SimulationState,
        call: CallKind,
        operation: fmt::Arguments<'_>,
    ) -> Result<(), Failure> {
        if !state.current.contains_key(&thread::current().id()) {
            let message = "the context is not current on this thread".to_owned();
            return Err(Failure::Violation(Rule::Context, message));
        }
        if let Some(reason) = state.faults.broken {
            if call == CallKind::Free {
                let message = format!("the context is broken, nothing may be freed: {reason}");
                state.violations.push(Violation {
                    rule: Rule::Context,
                    message,
                });
            }
        } else if call != CallKind::Declare {
            state.faults.operation(operation)?;
        }
        state.faults.check()
    }

    fn would_hang(&self, site: Site) -> DriverError {
        DriverError {
            operation: format!("wait without a limit ({})", site.0),
            device: Some(self.info.ordinal),
            fault: Fault::Refused,
            reason: "the device hangs".to_owned(),
        }
    }

    fn report<T>(
        &self,
        state: &mut SimulationState,
        operation: fmt::Arguments<'_>,
        result: Result<T, Failure>,
    ) -> Result<T, DriverError> {
        result.map_err(|failure| {
            let operation = operation.to_string();
            let (fault, reason) = match failure {
                Failure::Fault(fault, reason) => (fault, reason),
                Failure::Violation(rule, message) => {
                    let reason = format!("simulation: {message}");
                    let message = format!("{operation}: {message}");
                    state.violations.push(Violation { rule, message });
                    (Fault::Refused, reason)
                }
            };
            DriverError {
                operation,
                device: Some(self.info.ordinal),
                fault,
                reason,
            }
        })
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Simulation");
        debug.field("ordinal", &self.info.ordinal);
        debug.finish_non_exhaustive()
    }
}

impl Driver for Simulation {
    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn has_context(&self) -> bool {
        true
    }

    fn enter(&self) -> Result<(), DriverError> {
        let mut state = self.lock();
        let operation = format_args!("enter the context");
        let faults = &mut state.faults;
        let result = faults.check().and_then(|()| faults.enter(operation));
        if result.is_ok() {
            *state.current.entry(thread::current().id()).or_default() += 1;
        }
        self.report(&mut state, operation, result)
    }

    fn leave(&self) -> Result<(), DriverError> {
        let mut state = self.lock();
        let thread = thread::current().id();
        let result = match state.current.get_mut(&thread) {
            Some(1) => {
                state.current.remove(&thread);
                Ok(())
            }
            Some(times) => {
                *times -= 1;
                Ok(())
            }
            None => {
                let message = "the context is not current on this thread".to_owned();
                Err(Failure::Violation(Rule::Context, message))
            }
        };
        self.report(&mut state, format_args!("leave the context"), result)
    }

    fn free_memory(&self) -> Result<usize, DriverError> {
        self.run(
            CallKind::Use,
            format_args!("ask for the free memory"),
            |state| {
                Ok(state
                    .config
                    .memory
                    .saturating_sub(state.memory.used(Kind::Device)))
            },
        )
    }

    fn allocate(&self, len: usize) -> Result<DeviceMemory, DriverError> {
        let operation = format_args!("allocate {len} bytes of device memory");
        self.run(CallKind::Use, operation, |state| {
            state.allocate(len, Kind::Device).map(DeviceMemory)
        })
    }

    unsafe fn free(&self, memory: DeviceMemory) -> Result<(), DriverError> {
        if let Some(hook) = self.on_free.get() {
            hook();
        }
        let operation = format_args!("free the device memory at {:#x}", memory.0);
        self.run(CallKind::Free, operation, |state| {
            state.free(memory.0, Kind::Device)
        })
    }

    fn allocate_pinned(&self, len: usize, pinned: PinnedUse) -> Result<PinnedMemory, DriverError> {
        if let Some(hook) = self.on_allocate.get() {
            hook(Kind::Pinned);
        }
        let operation = format_args!("allocate {len} bytes of pinned memory");
        self.run(CallKind::Use, operation, |state| {
            let address = state.allocate(len, Kind::Pinned)?;
            if let Some(allocation) = state.memory.get_mut(address) {
                allocation.known.is_for_uploads = pinned == PinnedUse::ToDevice;
            }
            let first = NonNull::new(ptr::with_exposed_provenance_mut(address as usize));
            first.map(PinnedMemory).ok_or_else(|| {
                let message = "an allocation begins at address 0".to_owned();
                Failure::Violation(Rule::Bounds, message)
            })
        })
    }

    unsafe fn free_pinned(&self, memory: PinnedMemory) -> Result<(), DriverError> {
        let operation = format_args!("free the pinned memory at {:?}", memory.0);
        self.run(CallKind::Free, operation, |state| {
            state.free(memory.0.addr().get() as u64, Kind::Pinned)
        })
    }

    fn create_stream(&self) -> Result<StreamId, DriverError> {
        self.run(CallKind::Use, format_args!("create a stream"), |state| {
            Ok(state.create_stream())
        })
    }

    fn destroy_stream(&self, stream: StreamId) -> Result<(), DriverError> {
        let operation = format_args!("destroy stream {}", stream.0);
        self.run(CallKind::Free, operation, |state| {
            state.destroy_stream(stream)
        })
    }

    fn create_event(&self, timed: bool) -> Result<EventId, DriverError> {
        self.run(CallKind::Use, format_args!("create an event"), |state| {
            Ok(state.create_event(timed))
        })
    }

    fn destroy_event(&self, event: EventId) -> Result<(), DriverError> {
        let operation = format_args!("destroy event {}", event.0);
        self.run(CallKind::Free, operation, |state| {
            state.destroy_event(event)
        })
    }

    fn record(&self, event: EventId, stream: StreamId, site: Site) -> Result<(), DriverError> {
        let operation = format_args!(
            "record event {} in stream {} ({})",
            event.0, stream.0, site.0
        );
        self.run(CallKind::Use, operation, |state| {
            state.record(event, stream, site)
        })
    }

    /// The application's streams are other streams of the simulation: a handle is the number.
    unsafe fn record_in(&self, event: EventId, stream: u64, site: Site) -> Result<(), DriverError> {
        let operation = format_args!("record event {} in stream {stream} ({})", event.0, site.0);
        self.run(CallKind::Use, operation, |state| {
            state.check_not_captured(stream)?;
            state.applications.insert(StreamId(stream));
            state.record(event, StreamId(stream), site)
        })
    }

    unsafe fn copy_rows_in(
        &self,
        stream: u64,
        shape: RowsShape,
        from: Rows,
        to: Rows,
    ) -> Result<(), DriverError> {
        let operation = format_args!("copy {shape:?}: {from:?} to {to:?} in stream {stream}");
        self.run(CallKind::Use, operation, |state| {
            state.check_not_captured(stream)?;
            state.copy_rows(StreamId(stream), shape, from, to)
        })
    }

    unsafe fn is_captured(&self, stream: u64) -> Result<bool, DriverError> {
        let operation = format_args!("ask whether stream {stream} is captured");
        self.run(CallKind::Use, operation, |state| {
            Ok(state.captured.contains(&stream))
        })
    }

    fn event_handle(&self, event: EventId) -> Result<u64, DriverError> {
        Ok(event.0)
    }

    /// The application's memory is other memory of the simulation.
    fn adopt(&self, pointer: u64, len: usize) -> Result<DeviceSpan, DriverError> {
        let operation = format_args!("look for {len} bytes of device memory at {pointer:#x}");
        self.run(CallKind::Declare, operation, |state| {
            state.find(pointer, len).map(|(memory, offset)| DeviceSpan {
                memory,
                offset,
                len,
            })
        })
    }

    fn memory_at(&self, pointer: u64) -> Result<MemoryAt, DriverError> {
        let operation = format_args!("look for device memory at {pointer:#x}");
        let device = self.info.ordinal;
        self.run(CallKind::Declare, operation, |state| {
            let bytes = state.allocation_at(pointer)?;
            Ok(MemoryAt { device, bytes })
        })
    }

    fn wait(&self, stream: StreamId, event: EventId, site: Site) -> Result<(), DriverError> {
        let operation = format_args!(
            "wait in stream {} for event {} ({})",
            stream.0, event.0, site.0
        );
        self.run(CallKind::Use, operation, |state| {
            state.wait(stream, event, site)
        })
    }

    fn query_event(&self, event: EventId) -> Result<bool, DriverError> {
        let operation = format_args!("query event {}", event.0);
        self.run(CallKind::Use, operation, |state| state.query(event))
    }

    /// Lets the device work until the event has happened, unless the device hangs.
    fn poll(&self, event: EventId, site: Site) -> Result<bool, DriverError> {
        let operation = format_args!("synchronise with event {} ({})", event.0, site.0);
        self.run(CallKind::Use, operation, |state| state.poll(event, site))
    }

    fn mark(&self, stream: StreamId, site: Site) -> Result<(), DriverError> {
        let operation = format_args!("mark the end of stream {} ({})", stream.0, site.0);
        self.run(CallKind::Declare, operation, |state| state.mark(stream))
    }

    /// Lets the device work until the stream has reached its mark, unless the device hangs.
    fn poll_stream(&self, stream: StreamId, site: Site) -> Result<bool, DriverError> {
        let operation = format_args!("synchronise with stream {} ({})", stream.0, site.0);
        self.run(CallKind::Use, operation, |state| {
            state.poll_stream(stream, site)
        })
    }

    /// Fails on a device that hangs, so that a test does not.
    fn synchronize_context(&self) -> Result<(), DriverError> {
        let operation = format_args!("synchronise with the context");
        self.run(
            CallKind::Use,
            operation,
            SimulationState::synchronize_context,
        )
    }

    /// Fails on a device that hangs, so that a test does not.
    fn synchronize(&self, event: EventId, site: Site) -> Result<(), DriverError> {
        self.poll(event, site)?
            .then_some(())
            .ok_or_else(|| self.would_hang(site))
    }

    /// Fails on a device that hangs, so that a test does not.
    fn synchronize_stream(&self, stream: StreamId, site: Site) -> Result<(), DriverError> {
        self.poll_stream(stream, site)?
            .then_some(())
            .ok_or_else(|| self.would_hang(site))
    }

    fn elapsed(&self, begin: EventId, end: EventId) -> Result<Duration, DriverError> {
        let operation = format_args!("time from event {} to event {}", begin.0, end.0);
        self.run(CallKind::Use, operation, |state| state.elapsed(begin, end))
    }

    unsafe fn copy(&self, stream: StreamId, from: Span, to: Span) -> Result<(), DriverError> {
        let operation = format_args!("copy {from:?} to {to:?} in stream {}", stream.0);
        self.run(CallKind::Use, operation, |state| {
            state.copy(stream, from, to)
        })
    }

    unsafe fn copy_rows(
        &self,
        stream: StreamId,
        shape: RowsShape,
        from: Rows,
        to: Rows,
    ) -> Result<(), DriverError> {
        let stream_ = stream.0;
        let operation = format_args!("copy {shape:?}: {from:?} to {to:?} in stream {stream_}");
        self.run(CallKind::Use, operation, |state| {
            state.copy_rows(stream, shape, from, to)
        })
    }

    unsafe fn fill(&self, stream: StreamId, span: DeviceSpan, byte: u8) -> Result<(), DriverError> {
        let operation = format_args!("fill {span:?} in stream {}", stream.0);
        self.run(CallKind::Use, operation, |state| {
            state.fill(stream, Span::Device(span), byte)
        })
    }

    fn compile(&self) -> Result<(), DriverError> {
        self.run(
            CallKind::Use,
            format_args!("compile the kernels"),
            |state| {
                state.compiled = true;
                Ok(())
            },
        )
    }

    /// Kernels need no compiling here, so only [`compile`](Driver::compile) changes the number.
    fn uncompiled(&self) -> usize {
        usize::from(!self.lock().compiled)
    }

    unsafe fn launch(
        &self,
        stream: StreamId,
        name: &'static str,
        dims: Dims,
        args: &[Arg<'_>],
    ) -> Result<(), DriverError> {
        let Dims { grid, block } = dims;
        let operation = format_args!("launch {name}<{grid}, {block}> in stream {}", stream.0);
        self.run(CallKind::Use, operation, |state| {
            state.launch(stream, name, dims, args)
        })
    }

    unsafe fn call(
        &self,
        stream: StreamId,
        name: &'static str,
        accesses: &[(Span, Access)],
        function: LibraryCall,
    ) -> Result<(), DriverError> {
        let operation = format_args!("call {name} in stream {}", stream.0);
        self.run(CallKind::Use, operation, |state| {
            state.call(stream, name, accesses, function)
        })
    }

    fn host_access(&self, span: PinnedSpan, access: Access) -> Result<(), DriverError> {
        let operation = format_args!("{access:?} by the host of {span:?}");
        self.run(CallKind::Declare, operation, |state| {
            state.host_access(Span::Pinned(span), access)
        })
    }

    fn discard(&self, span: Span) -> Result<(), DriverError> {
        let operation = format_args!("discard {span:?}");
        self.run(CallKind::Declare, operation, |state| state.discard(span))
    }
}

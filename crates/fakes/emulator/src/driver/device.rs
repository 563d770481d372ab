//! A device of the emulated driver: its memory, and the work in its streams.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, OnceLock};

use super::codes::{self, Code};
use super::config::{Config, Inject};
use super::{Failure, wrong};
use crate::device::{Kind, Memory, Scheduler, Task, Ticket, granules, host};
use crate::{Access, Argument, Buffer, Module, Options, Order, launch};

/// Nanoseconds on the device.
type Time = u64;

/// The last record of an event.
#[derive(Clone, Debug)]
pub(super) struct Recorded {
    pub(super) ticket: Ticket,
    /// When it happened.
    pub(super) time: Arc<OnceLock<Time>>,
}

/// A function of the host, and its argument.
#[derive(Clone, Copy)]
pub(super) struct HostFunction {
    pub(super) function: unsafe extern "C" fn(*mut c_void),
    pub(super) data: *mut c_void,
}

// SAFETY: the application promises that any thread may call the function.
unsafe impl Send for HostFunction {}

/// The kind of memory at the two ends of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) from: Kind,
    pub(super) to: Kind,
}

/// How many rows are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowsShape {
    pub(super) planes: usize,
    /// The rows of a plane.
    pub(super) rows: usize,
    /// The bytes of a row.
    pub(super) row: usize,
}

/// Where rows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    /// The address of the first row.
    pub(super) first: u64,
    /// Bytes from one row to the next.
    pub(super) pitch: usize,
    /// Rows from one plane to the next.
    pub(super) height: usize,
}

impl Rows {
    /// Returns the bytes from the begin of the first row to the end of the last one; `None` if there
    /// are too many to count. There is at least one row, with at least one byte.
    pub(super) fn span(&self, shape: RowsShape) -> Option<usize> {
        (shape.planes - 1)
            .checked_mul(self.height)?
            .checked_add(shape.rows - 1)?
            .checked_mul(self.pitch)?
            .checked_add(shape.row)
    }

    /// Returns where each row begins, in bytes from the first row.
    pub(super) fn starts(&self, shape: RowsShape) -> impl Iterator<Item = usize> + use<> {
        let Self { pitch, height, .. } = *self;
        (0..shape.planes)
            .flat_map(move |plane| (0..shape.rows).map(move |row| (plane * height + row) * pitch))
    }
}

/// Work in a stream.
pub(super) enum Action {
    Copy {
        ends: Ends,
        from: u64,
        to: u64,
        len: usize,
    },
    CopyRows {
        ends: Ends,
        shape: RowsShape,
        from: Rows,
        to: Rows,
    },
    Fill {
        to: u64,
        len: usize,
        byte: u8,
    },
    Launch {
        module: Arc<Module>,
        /// The number of the kernel in the module.
        kernel: usize,
        grid: u32,
        threads: u32,
        /// The value of each parameter.
        arguments: Vec<Vec<u8>>,
    },
    Host(HostFunction),
    Record(Arc<OnceLock<Time>>),
    Wait(Arc<OnceLock<Time>>),
}

/// An [`Action`], and when the host enqueued it.
pub(super) struct Work {
    enqueued: Time,
    action: Action,
}

pub(super) struct Device {
    pub(super) config: Config,
    pub(super) memory: Memory<()>,
    /// The handle of the primary context, if it was retained.
    pub(super) context: Option<u64>,
    /// The code that every call returns since the context broke.
    pub(super) broken: Option<Code>,
    pub(super) faults: Vec<Inject>,
    /// How often each function was called.
    pub(super) calls: HashMap<&'static str, usize>,
    /// The messages about the errors of tasks, found while the device ran them.
    pub(super) wrongs: Vec<String>,
    scheduler: Scheduler<Work>,
    /// When the last task of each stream that has run ended.
    times: Vec<Time>,
    /// When the host last waited for something.
    now: Time,
    launches: u64,
}

impl Device {
    pub(super) fn new(config: Config, faults: Vec<Inject>) -> Self {
        let mut scheduler = Scheduler::new(config.schedule);
        if let Some(operations) = config.hangs_after {
            scheduler.hang_after(operations);
        }
        Self {
            memory: Memory::new(config.seed),
            scheduler,
            config,
            faults,
            context: None,
            broken: None,
            calls: HashMap::new(),
            wrongs: Vec::new(),
            times: Vec::new(),
            now: 0,
            launches: 0,
        }
    }

    /// Counts a call. The error is the code of the fault that was injected, or of the one that broke
    /// the context, unless the function `is_usable` then.
    pub(super) fn admit(&mut self, function: &'static str, is_usable: bool) -> Result<(), Failure> {
        let count = self.calls.entry(function).or_default();
        let now = *count;
        *count += 1;
        if let Some(code) = self.broken
            && !is_usable
        {
            return Err(code.into());
        }
        let fault = self
            .faults
            .iter()
            .find(|fault| fault.function == function && fault.call == now);
        match fault.map(|fault| fault.code) {
            Some(code) => {
                if codes::STICKY.contains(&code) {
                    self.broken = Some(code);
                }
                Err(code.into())
            }
            None => Ok(()),
        }
    }

    pub(super) fn free_bytes(&self, kind: Kind) -> usize {
        let all = match kind {
            Kind::Device => self.config.memory,
            Kind::Pinned => self.config.pinned,
        };
        all.saturating_sub(self.memory.used(kind))
    }

    pub(super) fn allocate(&mut self, len: usize, kind: Kind) -> Result<u64, Failure> {
        if len == 0 {
            return wrong(codes::INVALID_VALUE, "an allocation has at least 1 byte");
        }
        if granules(len, kind) > self.free_bytes(kind) {
            return Err(codes::OUT_OF_MEMORY.into());
        }
        let memory = self.memory.allocate(len, kind);
        memory.ok_or(codes::OUT_OF_MEMORY.into())
    }

    pub(super) fn free(&mut self, address: u64, kind: Kind) -> Result<(), Failure> {
        match self.memory.get(address) {
            Some(allocation) if allocation.kind == kind => {}
            Some(allocation) => {
                let message = format!("{} is freed as {kind}", allocation.kind);
                return wrong(codes::INVALID_VALUE, &message);
            }
            None => return wrong(codes::INVALID_VALUE, &self.memory.absent(address)),
        }
        let broken = self.memory.get(address).and_then(|a| a.block.broken_zone());
        self.memory.free(address);
        match broken {
            Some(at) => wrong(
                codes::INVALID_VALUE,
                &format!("byte {at} of the {kind} at {address:#x} was written, which is outside"),
            ),
            None => Ok(()),
        }
    }

    /// Returns where bytes of one allocation are, for the host.
    pub(super) fn bytes(&self, address: u64, len: usize, kind: Kind) -> Result<*mut u8, Failure> {
        let found = self.memory.containing(address).and_then(|(first, offset)| {
            let allocation = self.memory.get(first)?;
            let left = allocation.block.len().checked_sub(offset);
            let is_inside = allocation.kind == kind && left.is_some_and(|left| len <= left);
            is_inside.then(|| allocation.block.at(offset))
        });
        found.map_or_else(
            || {
                let message = format!("{len} bytes at {address:#x} are in no {kind} of the device");
                wrong(codes::INVALID_VALUE, &message)
            },
            Ok,
        )
    }

    /// Returns the number of a new stream.
    pub(super) fn create_stream(&mut self) -> usize {
        self.times.push(self.now);
        self.scheduler.create()
    }

    pub(super) fn is_idle(&self, stream: usize) -> bool {
        self.scheduler.queue(stream).is_idle()
    }

    /// Enqueues work. Runs what the schedule runs now.
    pub(super) fn enqueue(
        &mut self,
        stream: usize,
        after: Option<Ticket>,
        action: Action,
    ) -> Ticket {
        let work = Work {
            enqueued: self.now,
            action,
        };
        let ticket = self.scheduler.push(stream, Task { after, work });
        for _ in 0..self.scheduler.steps() {
            if !self.step(None) {
                break;
            }
        }
        ticket
    }

    pub(super) fn record(&mut self, stream: usize) -> Recorded {
        let time = Arc::new(OnceLock::new());
        let ticket = self.enqueue(stream, None, Action::Record(Arc::clone(&time)));
        Recorded { ticket, time }
    }

    pub(super) fn wait(&mut self, stream: usize, recorded: &Recorded) {
        let action = Action::Wait(Arc::clone(&recorded.time));
        self.enqueue(stream, Some(recorded.ticket), action);
    }

    /// Returns whether an event has happened. Each call lets the device do something.
    pub(super) fn query(&mut self, recorded: &Recorded) -> bool {
        if !self.scheduler.is_done(recorded.ticket) {
            self.step(Some(recorded.ticket));
        }
        let is_done = self.scheduler.is_done(recorded.ticket);
        if is_done {
            self.happened(recorded);
        }
        is_done
    }

    /// Returns when the event has happened. On a device that hangs, never returns.
    pub(super) fn synchronize(&mut self, recorded: &Recorded) {
        self.run_until(recorded.ticket);
        self.happened(recorded);
    }

    /// Returns when all work of the stream has run.
    pub(super) fn drain(&mut self, stream: usize) {
        let time = self.scheduler.queue(stream).enqueued();
        let ticket = Ticket { stream, time };
        self.run_until(ticket);
        self.now = self.now.max(self.times[stream]);
    }

    /// Returns when all work of every stream has run.
    pub(super) fn drain_all(&mut self) {
        for stream in 0..self.times.len() {
            self.drain(stream);
        }
    }

    /// Runs tasks until a place is reached. On a device that hangs, blocks for ever, as a driver does.
    fn run_until(&mut self, ticket: Ticket) {
        while !self.scheduler.is_done(ticket) {
            if !self.step(Some(ticket)) {
                std::thread::park();
            }
        }
    }

    fn happened(&mut self, recorded: &Recorded) {
        self.now = self.now.max(recorded.time.get().copied().unwrap_or(0));
    }

    /// Runs a task. Returns `false` if there is none.
    fn step(&mut self, ticket: Option<Ticket>) -> bool {
        let Some((stream, work)) = self.scheduler.take(ticket) else {
            return false;
        };
        let mut time = self.times[stream].max(work.enqueued);
        match &work.action {
            Action::Record(happened) => {
                // Each record has its own.
                let _ = happened.set(time);
            }
            Action::Wait(happened) => time = time.max(happened.get().copied().unwrap_or(0)),
            action => {
                time += duration(action);
                // On a broken device nothing happens.
                if self.broken.is_none()
                    && let Err(message) = self.run(action)
                {
                    self.broken = Some(codes::ILLEGAL_ADDRESS);
                    self.wrongs.push(message);
                }
            }
        }
        self.times[stream] = time;
        true
    }

    /// Does the work of a task.
    fn run(&mut self, action: &Action) -> Result<(), String> {
        let bytes = |address, len, kind| {
            let found = self.bytes(address, len, kind);
            found.map_err(|failure| failure.message.unwrap_or_default())
        };
        match action {
            Action::Copy {
                ends,
                from,
                to,
                len,
            } => {
                let source = bytes(*from, *len, ends.from)?;
                let target = bytes(*to, *len, ends.to)?;
                // SAFETY: both are within live allocations. The caller of the driver promises that
                // the host does not use pinned memory meanwhile.
                unsafe { ptr::copy(source, target, *len) };
            }
            Action::CopyRows {
                ends,
                shape,
                from,
                to,
            } => {
                let first = |rows: &Rows, kind| {
                    bytes(rows.first, rows.span(*shape).unwrap_or(usize::MAX), kind)
                };
                let (source, target) = (first(from, ends.from)?, first(to, ends.to)?);
                for (from, to) in std::iter::zip(from.starts(*shape), to.starts(*shape)) {
                    // SAFETY: as above: the rows are within the spans from the first to the last.
                    unsafe { ptr::copy(source.add(from), target.add(to), shape.row) };
                }
            }
            Action::Fill { to, len, byte } => {
                let target = bytes(*to, *len, Kind::Device)?;
                // SAFETY: as above.
                unsafe { target.write_bytes(*byte, *len) };
            }
            Action::Launch {
                module,
                kernel,
                grid,
                threads,
                arguments,
            } => {
                let buffers: Vec<Buffer> = self
                    .memory
                    .live()
                    .filter(|(_, allocation)| allocation.kind == Kind::Device)
                    .map(|(address, allocation)| Buffer {
                        address,
                        len: allocation.block.len(),
                        host: host(address),
                        access: Access::Update,
                    })
                    .collect();
                let arguments: Vec<_> = arguments.iter().map(|bytes| Argument(bytes)).collect();
                let order = if self.launches.is_multiple_of(8) {
                    Order::Random(self.config.seed ^ self.launches)
                } else {
                    Order::Apart
                };
                self.launches += 1;
                let options = Options {
                    order,
                    limit: 1 << 30,
                    ..Options::default()
                };
                let kernel = &module.kernels()[*kernel];
                // SAFETY: the buffers are live allocations, and work runs one at a time.
                unsafe { launch(kernel, *grid, *threads, &arguments, &buffers, options) }?;
            }
            Action::Host(HostFunction { function, data }) => {
                let _running = super::HostFunctionRuns::new();
                // SAFETY: the application promised that the function may be called.
                unsafe { function(*data) };
            }
            Action::Record(_) | Action::Wait(_) => {}
        }
        Ok(())
    }
}

/// Returns how long work takes: about as long as on a GPU, and always the same.
fn duration(action: &Action) -> Time {
    let bytes = match action {
        Action::Copy { len, .. } | Action::Fill { len, .. } => *len as Time,
        Action::CopyRows { shape, .. } => (shape.planes * shape.rows * shape.row) as Time,
        _ => 0,
    };
    2_000 + bytes / 25
}

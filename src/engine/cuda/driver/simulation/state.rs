//! The device: its memory, streams and events, and the host's view of them.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::Duration;

use super::clocks::{Clock, Label, Stamp, Touch};
use super::faults::Faults;
use super::guard::{Guard, Place};
use super::kernels::{self, AccessCount, Argument};
use super::memory::{Allocation, Kind, Memory, granules};
use super::schedule::{Scheduler, Task, Ticket};
use super::{Config, Rule, Violation};
use crate::engine::cuda::driver::{
    Access, Arg, DeviceMemory, Dims, EventId, Fault, LibraryCall, Site, Span, StreamId,
};

/// Why a call fails.
pub(super) enum Failure {
    Fault(Fault, String),
    /// A rule is broken.
    Violation(Rule, String),
}

fn violation<T>(rule: Rule, message: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Violation(rule, message.into()))
}

/// Nanoseconds on the simulated device.
type Time = u64;

struct Stream {
    id: StreamId,
    destroyed: bool,
    /// What is before the next operation.
    clock: Clock,
    /// When the last operation that has run ended.
    time: Time,
}

/// An event, as it was last recorded.
struct Recorded {
    ticket: Ticket,
    clock: Clock,
    /// When it happened.
    time: Arc<OnceLock<Time>>,
}

/// What a stream does.
struct Work {
    /// When it was enqueued.
    enqueued: Time,
    /// The bytes that it reads and writes.
    places: Vec<Place>,
    action: Action,
}

enum Action {
    /// From the first place to the second.
    Copy,
    /// Of the only place.
    Fill(u8),
    Launch {
        name: &'static str,
        dims: Dims,
        arguments: Vec<Argument>,
    },
    Call {
        name: &'static str,
        function: LibraryCall,
    },
    Record(Arc<OnceLock<Time>>),
    Wait(Arc<OnceLock<Time>>),
}

pub(super) struct State {
    pub(super) config: Config,
    pub(super) faults: Faults,
    pub(super) memory: Memory,
    pub(super) violations: Vec<Violation>,
    pub(super) sites: BTreeSet<Site>,
    pub(super) sectors: Vec<AccessCount>,
    /// How often each thread has entered.
    pub(super) current: HashMap<ThreadId, usize>,
    /// What went wrong in an operation that ran after the call that enqueued it.
    pub(super) failed: Option<Failure>,
    scheduler: Scheduler<Work>,
    streams: Vec<Stream>,
    events: HashMap<EventId, Option<Recorded>>,
    /// Streams and events that were created.
    created: u64,
    /// What the host has waited for.
    host: Clock,
    host_time: Time,
}

impl State {
    pub(super) fn new(config: Config) -> Self {
        Self {
            faults: Faults {
                injected: config.faults.clone(),
                ..Faults::default()
            },
            memory: Memory::new(config.poison),
            violations: Vec::new(),
            sites: BTreeSet::new(),
            sectors: Vec::new(),
            current: HashMap::new(),
            failed: None,
            scheduler: Scheduler::new(config.schedule),
            streams: Vec::new(),
            events: HashMap::new(),
            created: 0,
            host: Clock::default(),
            host_time: 0,
            config,
        }
    }

    pub(super) fn live_streams(&self) -> usize {
        self.streams.iter().filter(|s| !s.destroyed).count()
    }

    pub(super) fn live_events(&self) -> usize {
        self.events.len()
    }

    /// Enter a site; `false` if it is the one that was removed.
    fn site(&mut self, site: Site) -> bool {
        self.sites.insert(site);
        self.config.removed != Some(site)
    }

    // Memory

    pub(super) fn allocate(&mut self, len: usize, kind: Kind) -> Result<NonNull<u8>, Failure> {
        if len == 0 {
            return violation(Rule::Argument, "an allocation has at least 1 byte");
        }
        if !self.faults.allocation(kind) {
            return Err(Failure::Fault(
                Fault::OutOfMemory,
                "out of memory (injected)".into(),
            ));
        }
        let capacity = match kind {
            Kind::Device => self.config.memory,
            Kind::Pinned => self.config.pinned,
        };
        let free = capacity.saturating_sub(self.memory.used(kind));
        let fits = granules(len, kind) <= free;
        let memory = if fits {
            self.memory.allocate(len, kind)
        } else {
            None
        };
        memory.ok_or_else(|| {
            let reason = format!("out of memory: {free} bytes of {kind} are free");
            Failure::Fault(Fault::OutOfMemory, reason)
        })
    }

    pub(super) fn free(&mut self, address: u64, kind: Kind) -> Result<(), Failure> {
        let allocation = self.allocation(address, kind)?;
        let whole = 0..allocation.block.len();
        if let Some(earlier) = allocation.history.conflict(&whole, true, &self.host) {
            let message = self.unordered(earlier, allocation, None);
            return violation(Rule::Lifetime, format!("freed while in use: {message}"));
        }
        let broken = allocation.block.broken_zone();
        let number = allocation.number;
        self.memory.free(address);
        match broken {
            Some(at) => violation(
                Rule::Guard,
                format!(
                    "byte {at} of {kind} {number} was written, which has {} bytes",
                    whole.end
                ),
            ),
            None => Ok(()),
        }
    }

    fn allocation(&self, address: u64, kind: Kind) -> Result<&Allocation, Failure> {
        match self.memory.get(address) {
            Some(allocation) if allocation.kind == kind => Ok(allocation),
            Some(allocation) => violation(
                Rule::Lifetime,
                format!("{} {} is no {kind}", allocation.kind, allocation.number),
            ),
            None => violation(Rule::Lifetime, self.memory.absent(address)),
        }
    }

    fn place(&self, span: Span, access: Access) -> Result<Place, Failure> {
        let (address, kind, offset, len) = match span {
            Span::Device(s) => (s.memory.0, Kind::Device, s.offset, s.len),
            Span::Pinned(s) => (
                s.memory.0.addr().get() as u64,
                Kind::Pinned,
                s.offset,
                s.len,
            ),
        };
        let allocation = self.allocation(address, kind)?;
        let size = allocation.block.len();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(Place {
                address,
                bytes: offset..end,
                access,
            }),
            _ => violation(
                Rule::Bounds,
                format!(
                    "{len} bytes from {offset} on of {kind} {} of {size} bytes",
                    allocation.number
                ),
            ),
        }
    }

    /// Check an access by somebody who has waited as far as `clock`: `None` is the host.
    fn check(&self, place: &Place, by: Option<(&Clock, StreamId)>) -> Result<(), Failure> {
        if place.bytes.is_empty() {
            return Ok(());
        }
        let Some(allocation) = self.memory.get(place.address) else {
            return violation(Rule::Lifetime, self.memory.absent(place.address));
        };
        let clock = by.map_or(&self.host, |(clock, _)| clock);
        let writes = place.access != Access::Read;
        if let Some(earlier) = allocation.history.conflict(&place.bytes, writes, clock) {
            let message = self.unordered(earlier, allocation, by.map(|(_, stream)| stream));
            return violation(
                Rule::Order,
                format!(
                    "it {}, but {message}",
                    touches(place.access, &place.bytes, allocation)
                ),
            );
        }
        if place.access != Access::Write
            && let Some(gap) = allocation.written.first_gap(place.bytes.clone())
        {
            return violation(
                Rule::Uninitialised,
                format!(
                    "it {}, of which {gap:?} were never written",
                    touches(place.access, &place.bytes, allocation)
                ),
            );
        }
        Ok(())
    }

    /// Says which edge is missing.
    fn unordered(&self, earlier: &Touch, allocation: &Allocation, by: Option<StreamId>) -> String {
        let stream = self.streams[earlier.stamp.stream].id.0;
        let Label { what, name } = earlier.label;
        let touched = touches(earlier.access, &earlier.bytes, allocation);
        let missing = match by {
            Some(StreamId(by)) => {
                format!(
                    "stream {by} has not waited for an event recorded in stream {stream} after it"
                )
            }
            None => format!("the host has not synchronised with stream {stream} after it"),
        };
        let time = earlier.stamp.time;
        format!("{what}{name} (operation {time} of stream {stream}) {touched}, and {missing}")
    }

    pub(super) fn host_access(&mut self, span: Span, access: Access) -> Result<(), Failure> {
        let place = self.place(span, access)?;
        self.check(&place, None)?;
        if access != Access::Read
            && let Some(allocation) = self.memory.get_mut(place.address)
        {
            allocation.written.insert(place.bytes);
        }
        Ok(())
    }

    pub(super) fn discard(&mut self, span: Span) -> Result<(), Failure> {
        let place = self.place(span, Access::Write)?;
        self.check(&place, None)?;
        if let Some(allocation) = self.memory.get_mut(place.address) {
            allocation.written.remove(place.bytes.clone());
        }
        if let Some(allocation) = self.memory.get(place.address) {
            allocation.block.poison(place.bytes, &self.memory.poison);
        }
        Ok(())
    }

    // Streams and events

    pub(super) fn create_stream(&mut self) -> StreamId {
        self.created += 1;
        let id = StreamId(self.created);
        // The component of a stream that is gone can count on, once the host knows all of it.
        let free = self
            .streams
            .iter()
            .enumerate()
            .position(|(number, stream)| {
                let queue = self.scheduler.queue(number);
                let last = Stamp {
                    stream: number,
                    time: queue.enqueued(),
                };
                stream.destroyed && queue.is_idle() && self.host.knows(last)
            });
        let stream = Stream {
            id,
            destroyed: false,
            clock: self.host.clone(),
            time: self.host_time,
        };
        if let Some(number) = free {
            self.scheduler.renew(number);
            self.streams[number] = stream;
        } else {
            self.scheduler.create();
            self.streams.push(stream);
        }
        id
    }

    fn stream(&self, id: StreamId) -> Result<usize, Failure> {
        let found = self.streams.iter().position(|s| s.id == id && !s.destroyed);
        found.map_or_else(
            || violation(Rule::Lifetime, format!("there is no stream {}", id.0)),
            Ok,
        )
    }

    pub(super) fn destroy_stream(&mut self, stream: StreamId) -> Result<(), Failure> {
        let stream = self.stream(stream)?;
        self.streams[stream].destroyed = true;
        Ok(())
    }

    pub(super) fn create_event(&mut self) -> EventId {
        self.created += 1;
        let id = EventId(self.created);
        self.events.insert(id, None);
        id
    }

    fn event(&self, event: EventId) -> Result<&Recorded, Failure> {
        match self.events.get(&event) {
            Some(Some(recorded)) => Ok(recorded),
            Some(None) => violation(Rule::Event, format!("event {} was never recorded", event.0)),
            None => violation(Rule::Lifetime, format!("there is no event {}", event.0)),
        }
    }

    pub(super) fn destroy_event(&mut self, event: EventId) -> Result<(), Failure> {
        match self.events.remove(&event) {
            Some(_) => Ok(()),
            None => violation(Rule::Lifetime, format!("there is no event {}", event.0)),
        }
    }

    pub(super) fn record(
        &mut self,
        event: EventId,
        stream: StreamId,
        site: Site,
    ) -> Result<(), Failure> {
        let number = self.stream(stream)?;
        if !self.events.contains_key(&event) {
            return violation(Rule::Lifetime, format!("there is no event {}", event.0));
        }
        if !self.site(site) {
            return Ok(());
        }
        let time = Arc::new(OnceLock::new());
        let ticket = self.push(number, None, Vec::new(), Action::Record(Arc::clone(&time)));
        let clock = self.streams[number].clock.clone();
        self.events.insert(
            event,
            Some(Recorded {
                ticket,
                clock,
                time,
            }),
        );
        self.enqueued();
        Ok(())
    }

    pub(super) fn wait(
        &mut self,
        stream: StreamId,
        event: EventId,
        site: Site,
    ) -> Result<(), Failure> {
        let number = self.stream(stream)?;
        if !self.site(site) {
            return Ok(());
        }
        let recorded = self.event(event)?;
        let ticket = recorded.ticket;
        let clock = recorded.clock.clone();
        let action = Action::Wait(Arc::clone(&recorded.time));
        self.streams[number].clock.join(&clock);
        self.push(number, Some(ticket), Vec::new(), action);
        self.enqueued();
        Ok(())
    }

    pub(super) fn query(&mut self, event: EventId) -> Result<bool, Failure> {
        let ticket = self.event(event)?.ticket;
        // Let whoever asks again and again get an answer under every schedule.
        if !self.scheduler.is_done(ticket) {
            self.step(Some(ticket));
        }
        let done = self.scheduler.is_done(ticket);
        if done {
            self.happened(event)?;
        }
        Ok(done)
    }

    pub(super) fn synchronize(&mut self, event: EventId, site: Site) -> Result<(), Failure> {
        if !self.site(site) {
            return Ok(());
        }
        let ticket = self.event(event)?.ticket;
        self.run_until(ticket);
        self.happened(event)
    }

    /// The host knows that the event has happened.
    fn happened(&mut self, event: EventId) -> Result<(), Failure> {
        let recorded = self.event(event)?;
        let (clock, time) = (recorded.clock.clone(), recorded.time.get().copied());
        self.host.join(&clock);
        self.host_time = self.host_time.max(time.unwrap_or(0));
        Ok(())
    }

    pub(super) fn synchronize_stream(
        &mut self,
        stream: StreamId,
        site: Site,
    ) -> Result<(), Failure> {
        let number = self.stream(stream)?;
        if !self.site(site) {
            return Ok(());
        }
        self.run_until(Ticket {
            stream: number,
            time: self.scheduler.queue(number).enqueued(),
        });
        self.host.join(&self.streams[number].clock);
        self.host_time = self.host_time.max(self.streams[number].time);
        Ok(())
    }

    pub(super) fn elapsed(&self, begin: EventId, end: EventId) -> Result<Duration, Failure> {
        let time = |event| match self.event(event)?.time.get() {
            Some(time) => Ok(*time),
            None => violation(Rule::Event, format!("event {} has not happened", event.0)),
        };
        Ok(Duration::from_nanos(
            time(end)?.saturating_sub(time(begin)?),
        ))
    }

    // Operations

    pub(super) fn copy(&mut self, stream: StreamId, from: Span, to: Span) -> Result<(), Failure> {
        let places = [
            self.place(from, Access::Read)?,
            self.place(to, Access::Write)?,
        ];
        let [from, to] = &places;
        if from.bytes.len() != to.bytes.len() {
            return violation(Rule::Argument, "the spans have different lengths");
        }
        if from.address == to.address
            && from.bytes.start < to.bytes.end
            && to.bytes.start < from.bytes.end
        {
            return violation(Rule::Argument, "the spans overlap");
        }
        let label = Label {
            what: "a copy",
            name: "",
        };
        self.enqueue(stream, label, places.into(), Action::Copy)
    }

    pub(super) fn fill(&mut self, stream: StreamId, span: Span, byte: u8) -> Result<(), Failure> {
        let place = self.place(span, Access::Write)?;
        let label = Label {
            what: "a fill",
            name: "",
        };
        self.enqueue(stream, label, vec![place], Action::Fill(byte))
    }

    pub(super) fn launch(
        &mut self,
        stream: StreamId,
        name: &'static str,
        dims: Dims,
        args: &[Arg<'_>],
    ) -> Result<(), Failure> {
        if dims.grid == 0 || dims.grid > i32::MAX.cast_unsigned() {
            return violation(Rule::Argument, format!("a grid of {} blocks", dims.grid));
        }
        if dims.block == 0 || dims.block > 1024 || !dims.block.is_multiple_of(32) {
            return violation(Rule::Argument, format!("blocks of {} threads", dims.block));
        }
        let mut places = Vec::new();
        for arg in args {
            if let Arg::Span(span, access) = arg {
                places.push(self.place(Span::Device(*span), *access)?);
            }
        }
        if !self.faults.launch() {
            return Err(Failure::Fault(
                Fault::Refused,
                "the launch was refused (injected)".into(),
            ));
        }
        let label = Label {
            what: "kernel ",
            name,
        };
        let action = Action::Launch {
            name,
            dims,
            arguments: args.iter().map(Argument::new).collect(),
        };
        self.enqueue(stream, label, places, action)
    }

    pub(super) fn call(
        &mut self,
        stream: StreamId,
        name: &'static str,
        accesses: &[(Span, Access)],
        function: LibraryCall,
    ) -> Result<(), Failure> {
        let places = accesses
            .iter()
            .map(|(span, access)| self.place(*span, *access));
        let places = places.collect::<Result<_, _>>()?;
        if !self.faults.launch() {
            return Err(Failure::Fault(
                Fault::Refused,
                "the call was refused (injected)".into(),
            ));
        }
        let label = Label {
            what: "library call ",
            name,
        };
        self.enqueue(stream, label, places, Action::Call { name, function })
    }

    /// Put an operation into a stream, if it is ordered and what it reads was written.
    fn enqueue(
        &mut self,
        stream: StreamId,
        label: Label,
        places: Vec<Place>,
        action: Action,
    ) -> Result<(), Failure> {
        let number = self.stream(stream)?;
        self.streams[number].clock.join(&self.host);
        let clock = &self.streams[number].clock;
        for place in &places {
            self.check(place, Some((clock, stream)))?;
        }
        let touched = places.clone();
        let ticket = self.push(number, None, places, action);
        let stamp = Stamp {
            stream: number,
            time: ticket.time,
        };
        for Place {
            address,
            bytes,
            access,
        } in touched
        {
            if let Some(allocation) = self.memory.get_mut(address) {
                if access != Access::Read {
                    allocation.written.insert(bytes.clone());
                }
                let touch = Touch {
                    stamp,
                    label,
                    bytes,
                    access,
                };
                allocation
                    .history
                    .enter(&touch, &self.streams[number].clock, &self.host);
            }
        }
        self.enqueued();
        Ok(())
    }

    /// Put work into a stream, and say where it is.
    fn push(
        &mut self,
        stream: usize,
        after: Option<Ticket>,
        places: Vec<Place>,
        action: Action,
    ) -> Ticket {
        let work = Work {
            enqueued: self.host_time,
            places,
            action,
        };
        self.scheduler.push(stream, Task { after, work });
        let time = self.scheduler.queue(stream).enqueued();
        let stamp = Stamp { stream, time };
        self.streams[stream].clock.join(&self.host);
        self.streams[stream].clock.include(stamp);
        Ticket { stream, time }
    }

    // Running

    /// Run what the schedule runs now that something was enqueued.
    fn enqueued(&mut self) {
        for _ in 0..self.scheduler.steps() {
            if !self.step(None) {
                break;
            }
        }
    }

    fn run_until(&mut self, ticket: Ticket) {
        while !self.scheduler.is_done(ticket) && self.step(Some(ticket)) {}
    }

    /// Run an operation; `false` if there is none.
    fn step(&mut self, ticket: Option<Ticket>) -> bool {
        let Some((stream, work)) = self.scheduler.take(ticket) else {
            return false;
        };
        let Work {
            enqueued,
            places,
            action,
        } = work;
        let mut time = self.streams[stream].time.max(enqueued);
        match action {
            Action::Record(happened) => {
                // Recorded once: each record has its own.
                let _ = happened.set(time);
            }
            Action::Wait(happened) => time = time.max(happened.get().copied().unwrap_or(0)),
            action => {
                time += duration(&places, &action);
                if let Err((rule, message)) = self.act(&places, action) {
                    let reason = format!("simulation: {message}");
                    self.failed = Some(Failure::Fault(Fault::Refused, reason));
                    if let Some(rule) = rule {
                        self.violations.push(Violation { rule, message });
                    }
                }
            }
        }
        self.streams[stream].time = time;
        true
    }

    /// Do what an operation does; all that it names is live, or was freed in violation of the
    /// rules. An error without a rule is a library's own.
    fn act(&mut self, places: &[Place], action: Action) -> Result<(), (Option<Rule>, String)> {
        if let Some(gone) = places.iter().find(|p| self.memory.get(p.address).is_none()) {
            return Err((Some(Rule::Lifetime), self.memory.absent(gone.address)));
        }
        let at = |place: &Place| {
            self.memory
                .get(place.address)
                .map(|a| a.block.at(place.bytes.start))
        };
        match action {
            Action::Copy => {
                if let [from, to] = places
                    && let (Some(source), Some(target)) = (at(from), at(to))
                {
                    // SAFETY: both spans are within live allocations and of the same length, and
                    // do not overlap: checked when the copy was enqueued. The clocks have shown
                    // that neither the host nor another operation uses them now.
                    unsafe { std::ptr::copy_nonoverlapping(source, target, from.bytes.len()) };
                }
            }
            Action::Fill(byte) => {
                if let [place] = places
                    && let Some(target) = at(place)
                {
                    // SAFETY: as above.
                    unsafe { target.write_bytes(byte, place.bytes.len()) };
                }
            }
            Action::Launch {
                name,
                dims,
                arguments,
            } => {
                let guard = Guard::new(&self.memory, places);
                // SAFETY: as above; that the arguments are what the kernel takes is promised by
                // whoever launched it.
                let ran = unsafe { kernels::run(name, dims, &arguments, self.config.sectors) };
                let kept = guard.check(&self.memory);
                let broke = |rule, message| (Some(rule), format!("kernel {name}: {message}"));
                let counts = ran.map_err(|m| broke(Rule::Kernel, m))?;
                kept.map_err(|m| broke(Rule::Guard, m))?;
                if self.config.sectors {
                    self.sectors = counts;
                }
            }
            Action::Call { name, function } => {
                let guard = Guard::new(&self.memory, places);
                let ran = function(std::ptr::null_mut());
                let kept = guard.check(&self.memory);
                kept.map_err(|m| (Some(Rule::Guard), format!("library call {name}: {m}")))?;
                ran.map_err(|m| (None, format!("library call {name}: {m}")))?;
            }
            Action::Record(_) | Action::Wait(_) => {}
        }
        Ok(())
    }

    /// The address of pinned memory, or of device memory, as the memory knows it.
    pub(super) fn device_memory(first: NonNull<u8>) -> DeviceMemory {
        DeviceMemory(first.as_ptr().expose_provenance() as u64)
    }
}

fn touches(access: Access, bytes: &Range<usize>, allocation: &Allocation) -> impl fmt::Display {
    let verb = match access {
        Access::Read => "reads",
        Access::Write => "writes",
        Access::Update => "updates",
    };
    format!(
        "{verb} bytes {bytes:?} of {} {}",
        allocation.kind, allocation.number
    )
}

/// About what a GPU takes.
fn duration(places: &[Place], action: &Action) -> Time {
    let bytes: usize = places.iter().map(|p| p.bytes.len()).sum();
    let bytes_per_microsecond = match action {
        Action::Copy => 50_000, // each byte counts twice
        _ => 1_000_000,
    };
    2_000 + bytes as u64 * 1_000 / bytes_per_microsecond
}

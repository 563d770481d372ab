//! The device: its memory, streams and events, and the host's view of them.

mod access;
mod operations;
mod running;
mod streams;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;

use serde_json::Value;
use zarrs_cuda_emulator::device::{Memory, Scheduler, Ticket};

use super::clocks::{Clock, History};
use super::faults::Faults;
use super::guard::AccessedBytes;
use super::intervals::Intervals;
use super::kernels::{AccessCount, Argument};
use super::trace::Trace;
use super::{Config, Rule, Violation};
use crate::cuda::driver::{Dims, EventId, Fault, LibraryCall, Site, StreamId};

/// A function that changes the bytes that an operation has written: see [`Simulation::alter`].
///
/// [`Simulation::alter`]: super::Simulation::alter
pub(super) type Alter = Box<dyn FnMut(&str, usize, &[u8], &mut [u8]) + Send>;

/// Why a call fails.
pub(super) enum Failure {
    Fault(Fault, String),
    /// A rule is broken.
    Violation(Rule, String),
}

fn violation<T>(rule: Rule, message: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Violation(rule, message.into()))
}

/// The uses of an allocation by operations.
#[derive(Debug, Default)]
pub(super) struct Uses {
    /// The operations that touched it.
    pub(super) history: History,
    /// The bytes that were written, when everything that is enqueued has run.
    pub(super) written: Intervals,
    /// Whether the host only writes it, and the device only reads it.
    pub(super) is_for_uploads: bool,
}

/// Nanoseconds on the simulated device, on which each operation takes a microsecond.
type Time = u64;

struct Stream {
    id: StreamId,
    destroyed: bool,
    /// The operations that happen before the next operation of the stream.
    clock: Clock,
    /// When the last operation that has run ended.
    time: Time,
}

/// An event, and its last record.
struct Event {
    timed: bool,
    recorded: Option<Recorded>,
}

/// A record of an event.
struct Recorded {
    ticket: Ticket,
    clock: Clock,
    /// When it happened.
    time: Arc<OnceLock<Time>>,
}

/// The work of one operation in a stream.
struct OperationWork {
    /// When it was enqueued.
    enqueued: Time,
    /// The bytes that it reads and writes.
    places: Vec<AccessedBytes>,
    action: Action,
}

enum Action {
    /// Copies each place of the first half to the place at the same position of the second half.
    Copy,
    /// Fills the only place.
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

pub(super) struct SimulationState {
    pub(super) config: Config,
    pub(super) faults: Faults,
    pub(super) memory: Memory<Uses>,
    pub(super) violations: Vec<Violation>,
    pub(super) sites: BTreeSet<Site>,
    /// The sites at which the host has waited so far.
    pub(super) waits: BTreeSet<Site>,
    pub(super) sectors: Vec<AccessCount>,
    pub(super) trace: Option<Trace>,
    /// Whether the kernels were compiled ahead.
    pub(super) compiled: bool,
    /// How many kernels ran.
    pub(super) launches: u64,
    /// Bytes that the host has read of memory for uploads.
    pub(super) uploads_read: usize,
    /// How often each thread has entered.
    pub(super) current: HashMap<ThreadId, usize>,
    /// The failure of an operation that ran after the call that enqueued it.
    pub(super) failed: Option<Failure>,
    pub(super) alter: Option<Alter>,
    scheduler: Scheduler<OperationWork>,
    streams: Vec<Stream>,
    events: HashMap<EventId, Event>,
    /// The streams in which the engine has recorded events for an application's work.
    pub(super) applications: BTreeSet<StreamId>,
    /// The application's streams that are being captured into a graph.
    pub(super) captured: BTreeSet<u64>,
    /// Streams and events that were created.
    created: u64,
    /// The operations that the host has waited for.
    host: Clock,
    host_time: Time,
}

impl SimulationState {
    pub(super) fn new(config: Config) -> Self {
        Self {
            faults: Faults {
                injected: config.faults.clone(),
                ..Faults::default()
            },
            memory: Memory::new(config.poison),
            violations: Vec::new(),
            sites: BTreeSet::new(),
            waits: BTreeSet::new(),
            sectors: Vec::new(),
            trace: config.trace.then(Trace::default),
            compiled: false,
            launches: 0,
            uploads_read: 0,
            current: HashMap::new(),
            failed: None,
            alter: None,
            scheduler: Scheduler::new(config.schedule),
            streams: Vec::new(),
            events: HashMap::new(),
            applications: BTreeSet::new(),
            captured: BTreeSet::new(),
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

    /// Adds a step to the trace, if there is one.
    fn note(&mut self, operation: impl FnOnce() -> Value) {
        if let Some(trace) = &mut self.trace {
            trace.add(operation());
        }
    }

    /// Enters a site; `false` if it is the one that was removed.
    fn site(&mut self, site: Site) -> bool {
        self.sites.insert(site);
        self.config.removed != Some(site)
    }
}

//! The parts of a writer that its threads share.
//!
//! | who | takes | gives |
//! |---|---|---|
//! | the caller's thread | an input of the engine, when one is free | full batches, to `batches` |
//! | a step of encoding, one at a time | `batches` | work on shards, to `shards` |
//! | steps of storing, some at a time | work on shards | buffers back to the engine; the finished extent |
//!
//! All state is under one lock, which no thread holds while encoding, storing or copying. A thread that
//! changes the state, or gives a buffer back, notifies `signal`, and waiting threads look again. Work
//! that fails is put back, and nothing new is begun until the caller tries again.
//!
//! A change that makes steps possible calls [workers](super::workers) for them (`staff.rs`), as many as the writer may
//! have. A worker leaves in the same lock in which it finds no step, so no step is left behind. Encoding
//! that lacks a buffer ends, and goes on when one comes back, which may be on any thread, also one that has
//! locks of a store: then nothing of the state is locked.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use zarrs::array::Array;
use zarrs_storage::{StorageError, StoreKey};

use super::cuts::Cutting;
use super::error::WriterError;
use super::explanation::WriterExplanation;
use super::late_lease::LateLease;
use super::report::Progress;
use super::sink::{Length, ShardSink};
use super::stored_bytes::StoredBytes;
use crate::shard::stream::ShardEncoding;
use zarrs_cuda_engine::contract::stream::{BatchInput, Returned};
use zarrs_cuda_engine::layout::{BatchGrid, StreamGrid, c_order};

/// The parts of a writer's shared state that do not change.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) encoding: ShardEncoding,
    pub(crate) grid: StreamGrid,
    /// The array without its store. The array gives the keys of shards.
    pub(crate) array: Array<()>,
    pub(crate) engine: &'static str,
    pub(crate) explanation: WriterExplanation,
    /// The first slice of the stream, at the border of a shard.
    pub(crate) start: u64,
    /// The number of stored slices from `start` on that were read back: the stream has them before the slices
    /// that are appended.
    pub(crate) read_back: u64,
    /// Whether every batch consists of whole shards.
    pub(crate) whole_shards: bool,
    pub(crate) sink: Box<dyn ShardSink>,
    pub(crate) length: Arc<dyn Length>,
    /// The cuts of the image, which are made before a shard is replaced.
    pub(crate) cutting: Cutting,
    /// The lease that the writer takes before a shard extends the array.
    pub(crate) extending: Weak<LateLease>,
    /// The number of shards that are stored at once.
    pub(crate) store_threads: usize,
    pub(crate) metadata_interval: Duration,
    pub(crate) on_progress: Option<ProgressCallback>,
}

impl Setup {
    /// Returns the first slice that is appended.
    pub(crate) fn first(&self) -> u64 {
        self.start + self.read_back
    }

    /// Returns how many of the `bytes` of the stream were appended, and not read back.
    pub(crate) fn appended(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(
            self.read_back
                .saturating_mul(self.grid.slice_bytes() as u64),
        )
    }

    /// Lets the array's length cover `slices`, whose shards are stored. First makes sure that the names of
    /// these shards outlast a power failure.
    pub(crate) fn cover(&self, slices: u64) -> Result<(), StorageError> {
        self.sink.sync_names()?;
        self.length.grow(slices)
    }
}

/// The application's function, called when a shard was stored or the metadata were written.
#[derive(Clone)]
pub(crate) struct ProgressCallback(pub(crate) Arc<dyn Fn(&Progress) + Send + Sync>);

impl fmt::Debug for ProgressCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressCallback")
    }
}

/// A shard of the stream: its index along the first axis, and its number, in C order, among those
/// with that index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ShardId {
    pub(crate) outer: u64,
    pub(crate) inner: usize,
}

/// A full batch, or the last batch, which may be short.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The number of batches that come before this one.
    pub(crate) number: u64,
    /// The index of the batch's first epoch, counted from the start of the array.
    pub(crate) first_epoch: u64,
    pub(crate) grid: Arc<BatchGrid>,
}

/// One item in the queue of the encoder.
#[derive(Debug)]
pub(crate) enum Item {
    Batch(Batch, Box<dyn BatchInput>),
    /// The end of the stream: no batch follows, and the open shards can be completed.
    End,
}

/// A step of storing a shard. The steps are done in order.
#[derive(Debug)]
pub(crate) enum Work {
    /// Store the whole shard.
    Set(StoredBytes),
    /// Erase the shard, because all of it is the fill value.
    Erase,
    /// Write pieces of the shard, each at its offset. `first` says that no piece was written before.
    Write {
        pieces: Vec<(u64, StoredBytes)>,
        first: bool,
    },
    /// Complete the shard, all pieces of which are written.
    Complete,
}

impl Work {
    /// Returns the name of the step for an error message.
    pub(crate) fn doing(&self) -> &'static str {
        match self {
            Self::Set(_) => "store the shard",
            Self::Erase => "erase the empty shard",
            Self::Write { .. } => "write to the temporary of the shard",
            Self::Complete => "complete the shard",
        }
    }
}

/// A shard with steps of storing that are not done.
#[derive(Debug)]
pub(crate) struct Storing {
    pub(crate) key: StoreKey,
    pub(crate) work: VecDeque<Work>,
    /// Whether a thread does a step of this shard now.
    pub(crate) busy: bool,
    /// Whether any piece of this shard was written.
    pub(crate) begun: bool,
}

/// The reason why no new step begins until the caller tries again.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    Store {
        doing: &'static str,
        key: StoreKey,
        source: Arc<StorageError>,
    },
    Encode {
        first: u64,
        last: u64,
        source: Arc<dyn Error + Send + Sync>,
    },
}

#[derive(Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, which other threads look at"
)]
pub(crate) struct State {
    pub(crate) batches: VecDeque<Item>,
    /// The shards that have work, or of which a part was written.
    pub(crate) shards: BTreeMap<ShardId, Storing>,
    /// The shards that have work and that no thread works on.
    pub(crate) ready: VecDeque<ShardId>,
    pub(crate) failure: Option<Failure>,
    /// The reason why the writer can never go on; `None` if it can.
    pub(crate) broken: Option<String>,
    /// Whether the writer was given up, and its queued work dropped.
    pub(crate) aborted: bool,
    /// The first slice behind the stream; `None` while more slices may come.
    pub(crate) end: Option<u64>,
    /// Whether everything was encoded, up to the end of the stream.
    pub(crate) ended: bool,
    /// The first shard epoch that is not finished.
    pub(crate) first_unfinished: u64,
    pub(crate) finished_of: BTreeMap<u64, usize>,
    /// Whether a thread writes the array's metadata now.
    pub(crate) growing: bool,
    pub(crate) grown: Instant,
    /// Whether the metadata are to be written now, without waiting for their interval.
    pub(crate) grow_now: bool,
    /// The end of the slices that the metadata are to cover as soon as all of these slices are stored.
    pub(crate) promised: u64,
    /// The number of tasks that store, with and without a step.
    pub(crate) storing: usize,
    /// The number of tasks that store and do a step now.
    pub(crate) working: usize,
    /// Whether the timer waits for the time at which the metadata are to be written.
    pub(crate) is_timed: bool,
    /// Whether the timer waits to find out whether the writer rests.
    pub(crate) is_resting: bool,
    /// The progress, whose appended bytes include the slices that were read back.
    pub(crate) progress: Progress,
}

/// The parts of a writer that its threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) setup: Setup,
    state: Mutex<State>,
    /// The lock that is held while the application's callback runs.
    pub(crate) telling: Mutex<()>,
    pub(crate) signal: Arc<Returned>,
    /// Whether the store has kept a page-locked buffer. From then on, the store gets copies.
    pub(crate) store_keeps: AtomicBool,
    staff: OnceLock<Box<dyn Calls>>,
}

/// Calls threads for the work of a writer.
pub(crate) trait Calls: fmt::Debug + Send + Sync {
    /// Counts in `state` the threads that are needed, and returns a function that calls them. The caller runs
    /// it after it has unlocked the state. `None` if no thread is needed.
    fn needed(&self, shared: &Shared, state: &mut State) -> Option<Box<dyn FnOnce() + '_>>;

    /// Ends the work: no step begins any more, and steps that have begun are waited for.
    fn close(&self);

    /// Returns whether the work has ended.
    fn is_closed(&self) -> bool;
}

impl Shared {
    pub(crate) fn new(setup: Setup, covered: u64, signal: Arc<Returned>) -> Arc<Self> {
        let shard_slices = setup.grid.shard_slices() as u64;
        let progress = Progress {
            finished_slices: setup.first(),
            covered_slices: covered,
            ..Progress::default()
        };
        Arc::new(Self {
            state: Mutex::new(State {
                batches: VecDeque::new(),
                shards: BTreeMap::new(),
                ready: VecDeque::new(),
                failure: None,
                broken: None,
                aborted: false,
                end: None,
                ended: false,
                first_unfinished: setup.start / shard_slices,
                finished_of: BTreeMap::new(),
                growing: false,
                grown: Instant::now(),
                grow_now: false,
                promised: 0,
                storing: 0,
                working: 0,
                is_timed: false,
                is_resting: false,
                progress,
            }),
            telling: Mutex::default(),
            setup,
            signal,
            store_keeps: AtomicBool::new(false),
            staff: OnceLock::new(),
        })
    }

    /// Sets the staff that calls threads for the work. The caller sets it once, before there is work.
    pub(crate) fn employ(&self, staff: Box<dyn Calls>) {
        let _ = self.staff.set(staff);
    }

    /// Ends the work of the writer: no step begins any more, and steps that have begun are waited for.
    /// Buffers that are not in use are freed.
    pub(crate) fn close(&self) {
        if let Some(staff) = self.staff.get() {
            staff.close();
        }
    }

    /// Returns whether the work of the writer has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.staff.get().is_some_and(|staff| staff.is_closed())
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, notifies waiting threads, and calls threads for the steps that are possible now.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, calls) = {
            let mut state = self.lock();
            let result = change(&mut state);
            let staff = self.staff.get();
            (
                result,
                staff.and_then(|staff| staff.needed(self, &mut state)),
            )
        };
        self.signal.notify();
        if let Some(call) = calls {
            call();
        }
        result
    }

    /// Notes that the writer can never go on, for this `reason`.
    pub(crate) fn break_down(&self, reason: String) {
        tracing::error!(reason, "a writer cannot go on");
        self.change(|state| {
            state.broken.get_or_insert(reason);
        });
    }

    /// Gives a shard more steps of storing.
    pub(crate) fn add_work(&self, id: ShardId, work: impl IntoIterator<Item = Work>) {
        self.change(|state| {
            let storing = state.shards.entry(id).or_insert_with(|| Storing {
                key: self.key_of(id),
                work: VecDeque::new(),
                busy: false,
                begun: false,
            });
            let had_work = storing.busy || !storing.work.is_empty();
            storing.work.extend(work);
            if !had_work && !storing.work.is_empty() {
                state.ready.push_back(id);
            }
        });
    }

    /// Returns the key of a shard.
    pub(crate) fn key_of(&self, id: ShardId) -> StoreKey {
        let inner = c_order::coordinates(id.inner, &self.setup.grid.shards());
        let inner = inner.into_iter().map(|at| at as u64);
        let indices: Vec<u64> = std::iter::once(id.outer).chain(inner).collect();
        self.setup.array.chunk_key(&indices)
    }

    /// Notes that a shard is stored, and how many slices are finished now.
    pub(crate) fn finish_shard(&self, state: &mut State, id: ShardId) {
        state.shards.remove(&id);
        *state.finished_of.entry(id.outer).or_default() += 1;
        let shards = self.setup.grid.shards_per_epoch();
        let slices = self.setup.grid.shard_slices() as u64;
        while state.finished_of.get(&state.first_unfinished) == Some(&shards) {
            state.finished_of.remove(&state.first_unfinished);
            state.first_unfinished += 1;
            let finished = state.first_unfinished.saturating_mul(slices);
            state.progress.finished_slices = finished.min(state.end.unwrap_or(u64::MAX));
        }
    }

    /// Returns the error that `state` has for the caller; `None` if there is none.
    pub(crate) fn error(state: &State) -> Option<WriterError> {
        let finished_slices = state.progress.finished_slices;
        if let Some(reason) = &state.broken {
            return Some(WriterError::Broken {
                reason: reason.clone(),
                finished_slices,
            });
        }
        Some(match state.failure.clone()? {
            Failure::Store { doing, key, source } => WriterError::Store {
                doing,
                key,
                finished_slices,
                source,
            },
            Failure::Encode {
                first,
                last,
                source,
            } => WriterError::Encode {
                first,
                last,
                finished_slices,
                source,
            },
        })
    }

    /// Returns whether the store has failed, and whether everything that was given to the threads is stored.
    pub(crate) fn has_failed(&self) -> (bool, bool) {
        let state = self.lock();
        let has_failed = matches!(state.failure, Some(Failure::Store { .. }));
        (has_failed, state.is_idle() && !self.must_grow(&state))
    }

    /// Forgets a failure, so that the failed steps are tried again.
    pub(crate) fn try_again(&self) {
        self.change(|state| {
            state.failure = None;
            let idle = state
                .shards
                .iter()
                .filter(|(_, storing)| !storing.busy && !storing.work.is_empty());
            state.ready = idle.map(|(id, _)| *id).collect();
        });
    }

    /// Returns whether the array's metadata do not cover all finished slices yet.
    pub(crate) fn must_grow(&self, state: &State) -> bool {
        let finished = state.progress.finished_slices;
        finished > state.progress.covered_slices && finished > self.setup.first()
    }

    /// Returns the end of the slices of the stream. A slice that was appended in part counts.
    pub(crate) fn end(&self) -> u64 {
        let taken = self.lock().progress.appended_bytes;
        let slices = taken.div_ceil(self.setup.grid.slice_bytes() as u64);
        self.setup.start + slices
    }

    /// Returns the progress of the writer, from `state`.
    pub(crate) fn snapshot(&self, state: &State) -> Progress {
        let slice = self.setup.grid.slice_bytes() as u64;
        let waiting = |storing: &&Storing| storing.busy || !storing.work.is_empty();
        let bytes = self.setup.appended(state.progress.appended_bytes);
        let appended = bytes / slice;
        // A reader finds slices that are both stored and covered.
        let progress = &state.progress;
        let kept = progress.finished_slices.min(progress.covered_slices);
        Progress {
            appended_bytes: bytes,
            appended_slices: appended,
            at_risk: (self.setup.first() + appended).saturating_sub(kept),
            batches_waiting: state.batches.len(),
            shards_waiting: state.shards.values().filter(waiting).count(),
            ..state.progress
        }
    }

    /// Returns the progress of the writer.
    pub(crate) fn progress(&self) -> Progress {
        self.snapshot(&self.lock())
    }
}

impl State {
    /// Returns whether everything that was given to the threads is stored.
    pub(crate) fn is_idle(&self) -> bool {
        self.batches.is_empty()
            && self.progress.batches_encoding == 0
            && self.shards.values().all(|s| !s.busy && s.work.is_empty())
    }
}

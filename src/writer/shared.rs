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

/// The part that does not change.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) encoding: ShardEncoding,
    pub(crate) grid: StreamGrid,
    /// The array without its store: it names shards.
    pub(crate) array: Array<()>,
    pub(crate) engine: &'static str,
    pub(crate) explanation: WriterExplanation,
    /// The first slice of the stream.
    pub(crate) start: u64,
    /// Whether every batch has whole shards.
    pub(crate) whole_shards: bool,
    pub(crate) sink: Box<dyn ShardSink>,
    pub(crate) length: Arc<dyn Length>,
    /// Made before a shard is replaced.
    pub(crate) cutting: Cutting,
    /// Taken before a shard extends the array.
    pub(crate) extending: Weak<LateLease>,
    /// How many shards are stored at once.
    pub(crate) store_threads: usize,
    pub(crate) metadata_interval: Duration,
    pub(crate) on_progress: Option<ProgressCallback>,
}

impl Setup {
    /// Lets the array's length cover `slices`, whose shards are stored. Their names outlast a power failure
    /// before the length does.
    pub(crate) fn cover(&self, slices: u64) -> Result<(), StorageError> {
        self.sink.sync_names()?;
        self.length.grow(slices)
    }
}

/// The function to call when a shard was stored.
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

/// A full batch, or a last one that may be short.
#[derive(Debug)]
pub(crate) struct Batch {
    /// How many batches come before it.
    pub(crate) number: u64,
    /// The index of its first epoch, counted from the start of the array.
    pub(crate) first_epoch: u64,
    pub(crate) grid: Arc<BatchGrid>,
}

/// An item of work for encoding.
#[derive(Debug)]
pub(crate) enum Item {
    Batch(Batch, Box<dyn BatchInput>),
    /// No other batch comes: open shards are complete.
    End,
}

/// A step of storing a shard. The steps are done in order.
#[derive(Debug)]
pub(crate) enum Work {
    /// Store all of it.
    Set(StoredBytes),
    /// Erase it: all of it is the fill value.
    Erase,
    /// Write pieces of it, each at its offset; the first ones of it, maybe.
    Write {
        pieces: Vec<(u64, StoredBytes)>,
        first: bool,
    },
    /// All of it is written.
    Complete,
}

impl Work {
    /// For a person.
    pub(crate) fn doing(&self) -> &'static str {
        match self {
            Self::Set(_) => "store the shard",
            Self::Erase => "erase the empty shard",
            Self::Write { .. } => "write to the temporary of the shard",
            Self::Complete => "complete the shard",
        }
    }
}

/// A shard that is not finished.
#[derive(Debug)]
pub(crate) struct Storing {
    pub(crate) key: StoreKey,
    pub(crate) work: VecDeque<Work>,
    /// Whether a thread does some of it.
    pub(crate) busy: bool,
    /// Whether anything was written of it.
    pub(crate) begun: bool,
}

/// Why nothing new is begun.
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
    /// Shards with work, and those whose temporaries have begun.
    pub(crate) shards: BTreeMap<ShardId, Storing>,
    /// Shards with work that no thread does.
    pub(crate) ready: VecDeque<ShardId>,
    pub(crate) failure: Option<Failure>,
    /// Why the writer cannot go on, ever.
    pub(crate) broken: Option<String>,
    /// Everything is dropped.
    pub(crate) aborted: bool,
    /// The first slice behind the stream, once that is known.
    pub(crate) end: Option<u64>,
    /// Whether encoding has come to the end.
    pub(crate) ended: bool,
    /// The first shard epoch that is not finished, and how many shards are in those from there on.
    pub(crate) first_unfinished: u64,
    pub(crate) finished_of: BTreeMap<u64, usize>,
    /// Whether a thread writes metadata.
    pub(crate) growing: bool,
    pub(crate) grown: Instant,
    /// Metadata is to be written now.
    pub(crate) grow_now: bool,
    /// Metadata are to be written as soon as all slices below this one are stored.
    pub(crate) promised: u64,
    /// Tasks that store.
    pub(crate) storing: usize,
    /// Tasks that store and do a step.
    pub(crate) working: usize,
    /// Whether the timer looks when the metadata are to be written.
    pub(crate) is_timed: bool,
    /// Whether the timer looks whether the writer rests.
    pub(crate) is_resting: bool,
    pub(crate) progress: Progress,
}

/// The parts of a writer that its threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) setup: Setup,
    state: Mutex<State>,
    /// Held while the application's callback runs.
    pub(crate) telling: Mutex<()>,
    pub(crate) signal: Arc<Returned>,
    /// Whether a page-locked buffer was kept by the store: it gets copies from then on.
    pub(crate) store_keeps: AtomicBool,
    staff: OnceLock<Box<dyn Calls>>,
}

/// Calls threads for the work of a writer.
pub(crate) trait Calls: fmt::Debug + Send + Sync {
    /// Counts the threads that `state` needs, in it. The result calls them, when the state is not locked.
    fn needed(&self, shared: &Shared, state: &mut State) -> Option<Box<dyn FnOnce() + '_>>;

    /// Ends the work: nothing more is begun, and what has begun is waited for.
    fn close(&self);

    /// Whether the work has ended.
    fn is_closed(&self) -> bool;
}

impl Shared {
    pub(crate) fn new(setup: Setup, covered: u64, signal: Arc<Returned>) -> Arc<Self> {
        let shard_slices = setup.grid.shard_slices() as u64;
        let progress = Progress {
            finished_slices: setup.start,
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

    /// Sets what calls threads for the work. To be set once, before there is work.
    pub(crate) fn employ(&self, staff: Box<dyn Calls>) {
        let _ = self.staff.set(staff);
    }

    /// Ends the work of the writer: nothing more is begun, and what has begun is waited for. Buffers that are
    /// not in use are freed.
    pub(crate) fn close(&self) {
        if let Some(staff) = self.staff.get() {
            staff.close();
        }
    }

    /// Whether the work of the writer has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.staff.get().is_some_and(|staff| staff.is_closed())
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, notifies waiting threads, and calls threads for what there is to do now.
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

    /// The writer cannot go on.
    pub(crate) fn break_down(&self, reason: String) {
        tracing::error!(reason, "a writer cannot go on");
        self.change(|state| {
            state.broken.get_or_insert(reason);
        });
    }

    /// Give a shard work.
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

    /// Where a shard is stored.
    pub(crate) fn key_of(&self, id: ShardId) -> StoreKey {
        let inner = c_order::coordinates(id.inner, &self.setup.grid.shards());
        let inner = inner.into_iter().map(|at| at as u64);
        let indices: Vec<u64> = std::iter::once(id.outer).chain(inner).collect();
        self.setup.array.chunk_key(&indices)
    }

    /// A shard is stored: how far the stored slices reach now.
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

    /// The error of `state` for the caller, if there is one.
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

    /// Whether the store has failed, and whether everything that was given to the threads is stored.
    pub(crate) fn has_failed(&self) -> (bool, bool) {
        let state = self.lock();
        let has_failed = matches!(state.failure, Some(Failure::Store { .. }));
        (has_failed, state.is_idle() && !self.must_grow(&state))
    }

    /// Forgets a failure, so that everything is tried again.
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

    /// Whether the array's metadata has to be written.
    pub(crate) fn must_grow(&self, state: &State) -> bool {
        let finished = state.progress.finished_slices;
        finished > state.progress.covered_slices && finished > self.setup.start
    }

    /// The end of the slices that were appended. A part of a slice counts.
    pub(crate) fn end(&self) -> u64 {
        let appended = self.lock().progress.appended_bytes;
        let slices = appended.div_ceil(self.setup.grid.slice_bytes() as u64);
        self.setup.start + slices
    }

    /// How far the writer is, in `state`.
    pub(crate) fn snapshot(&self, state: &State) -> Progress {
        let slice = self.setup.grid.slice_bytes() as u64;
        let waiting = |storing: &&Storing| storing.busy || !storing.work.is_empty();
        let appended = state.progress.appended_bytes / slice;
        // A reader finds what is stored and covered.
        let progress = &state.progress;
        let kept = progress.finished_slices.min(progress.covered_slices);
        Progress {
            appended_slices: appended,
            at_risk: (self.setup.start + appended).saturating_sub(kept),
            batches_waiting: state.batches.len(),
            shards_waiting: state.shards.values().filter(waiting).count(),
            ..state.progress
        }
    }

    /// How far the writer is.
    pub(crate) fn progress(&self) -> Progress {
        self.snapshot(&self.lock())
    }
}

impl State {
    /// Whether everything that was given to the threads is stored.
    pub(crate) fn is_idle(&self) -> bool {
        self.batches.is_empty()
            && self.progress.batches_encoding == 0
            && self.shards.values().all(|s| !s.busy && s.work.is_empty())
    }
}

//! Calls threads for the work of a writer, and asks the timer to look at the writer later.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::encoding::{self, Encoding};
use super::shared::{Calls, Failure, Shared, State};
use super::storing;
use super::timer::{Look, TIMER};
use super::visits::Visits;
use super::workers::{ENCODING, STORING, Task};
use zarrs_cuda_engine::process::account::Debtor;
use zarrs_cuda_engine::process::crew::PATIENCE;

/// Calls threads for a writer, at most as many as the writer may have.
#[derive(Debug)]
struct Staff {
    this: Weak<Self>,
    writer: Weak<Shared>,
    /// The encoding of the writer; `None` after the writer's end. The task that encodes holds the lock.
    encoding: Mutex<Option<Encoding>>,
    depth: usize,
    called: Arc<Called>,
    visits: Arc<Visits>,
    /// The part of the staff that the timer asks whether metadata are due.
    growth: Arc<Growth>,
    rest: Arc<Rest>,
    /// The pools of the writer's buffers on the host.
    pools: Vec<Arc<dyn Debtor>>,
    /// The identifier of the process whose threads do the work.
    process: u32,
}

/// Whether a thread was called to encode, and whether the last one lacked a buffer.
#[derive(Debug, Default)]
struct Called {
    /// Whether a task that encodes was queued or runs.
    is_called: AtomicBool,
    /// Whether the last task ended because a buffer was missing.
    is_starved: AtomicBool,
}

/// The metadata of a writer, which the timer has written when they are due.
#[derive(Debug)]
struct Growth {
    writer: Weak<Shared>,
    visits: Arc<Visits>,
}

impl Look for Growth {
    fn look(self: Arc<Self>) -> Option<Duration> {
        let _visit = self.visits.enter()?;
        let shared = self.writer.upgrade()?;
        shared.change(|state| state.is_timed = false);
        None
    }
}

/// A writer that gives lent buffers back when its state has not changed for a while.
#[derive(Debug)]
struct Rest {
    writer: Weak<Shared>,
    visits: Arc<Visits>,
    pools: Vec<Arc<dyn Debtor>>,
    /// The number of changes of the state when the timer last looked.
    seen: AtomicU64,
}

impl Look for Rest {
    fn look(self: Arc<Self>) -> Option<Duration> {
        let _visit = self.visits.enter()?;
        let shared = self.writer.upgrade()?;
        let changes = shared.signal.count();
        if self.seen.swap(changes, Ordering::Relaxed) != changes {
            return Some(PATIENCE);
        }
        shared.lock().is_resting = false;
        self.pools.iter().for_each(|pool| pool.give_back());
        None
    }
}

/// A task of a thread of the process: the steps of one writer.
struct OfWriter {
    writer: Weak<Shared>,
    staff: Weak<Staff>,
    visits: Arc<Visits>,
    encodes: bool,
}

impl Task for OfWriter {
    fn step(&mut self) -> bool {
        // The visit is dropped last: the end of the writer waits until no thread uses the writer.
        let Some(_visit) = self.visits.enter() else {
            return false;
        };
        let Some(shared) = self.writer.upgrade() else {
            return false;
        };
        if self.encodes {
            let staff = self.staff.upgrade();
            staff.is_some_and(|staff| staff.encode(&shared))
        } else {
            storing::step(&shared)
        }
    }
}

/// The threads and the looks of the timer that a writer needs.
struct Needed {
    encodes: bool,
    stores: usize,
    /// The time until the metadata are to be written; `None` if the timer need not look.
    later: Option<Duration>,
    /// Whether the timer is to check later whether the writer rests.
    rests: bool,
}

/// Lets `shared` call threads for its work, with `encoding` and the pools of its buffers on the host.
pub(super) fn employ(shared: &Arc<Shared>, encoding: Encoding, pools: Vec<Arc<dyn Debtor>>) {
    let (writer, visits) = (Arc::downgrade(shared), Arc::new(Visits::default()));
    let staff = Arc::new_cyclic(|this: &Weak<Staff>| Staff {
        this: this.clone(),
        depth: encoding.depth(),
        encoding: Mutex::new(Some(encoding)),
        called: Arc::default(),
        growth: Arc::new(Growth {
            writer: writer.clone(),
            visits: visits.clone(),
        }),
        rest: Arc::new(Rest {
            writer: writer.clone(),
            visits: visits.clone(),
            pools: pools.clone(),
            seen: AtomicU64::new(0),
        }),
        pools,
        visits,
        writer,
        process: std::process::id(),
    });
    staff.call_when_fed(shared);
    shared.employ(Box::new(staff));
}

impl Calls for Arc<Staff> {
    fn needed(&self, shared: &Shared, state: &mut State) -> Option<Box<dyn FnOnce() + '_>> {
        // In a forked child, the threads of this writer do not exist: they are in the parent.
        if self.process != std::process::id() {
            return None;
        }
        let starved = self.called.is_starved.load(Ordering::SeqCst);
        let encodes = encoding::has_step(state, self.depth, !starved)
            && !self.called.is_called.swap(true, Ordering::SeqCst);
        let coming = state.storing - state.working;
        let stores = storing::steps(shared, state)
            .saturating_sub(coming)
            .min(shared.setup.store_threads.saturating_sub(state.storing));
        state.storing += stores;
        let due = storing::due(shared, state).filter(|due| !due.is_zero() && !state.is_timed);
        state.is_timed |= due.is_some();
        let rests =
            !state.is_resting && state.is_idle() && self.pools.iter().any(|pool| pool.has_lent());
        state.is_resting |= rests;
        let needed = Needed {
            encodes,
            stores,
            later: due,
            rests,
        };
        let is_needed = encodes || stores > 0 || due.is_some() || rests;
        is_needed.then(|| -> Box<dyn FnOnce() + '_> { Box::new(move || self.call(&needed)) })
    }

    fn close(&self) {
        self.visits.close();
        // The encoding is dropped without the lock: its buffers then go back to their pools, which calls this
        // staff.
        let encoding = self.encoding().take();
        drop(encoding);
        self.pools.iter().for_each(|pool| pool.free_all());
    }

    fn is_closed(&self) -> bool {
        self.visits.is_closed()
    }
}

impl Staff {
    /// Lets encoding go on when a buffer that it lacked comes back.
    fn call_when_fed(&self, shared: &Shared) {
        let (staff, visits) = (self.this.clone(), self.visits.clone());
        let (called, process) = (self.called.clone(), self.process);
        shared.signal.call(move || {
            let lacked = called.is_starved.swap(false, Ordering::SeqCst);
            if !lacked || process != std::process::id() {
                return;
            }
            let Some(_visit) = visits.enter() else {
                return;
            };
            if !called.is_called.swap(true, Ordering::SeqCst)
                && let Some(staff) = staff.upgrade()
            {
                staff.call_encoding();
            }
        });
    }

    fn call(&self, calls: &Needed) {
        let Some(shared) = self.writer.upgrade() else {
            return;
        };
        if calls.encodes {
            self.call_encoding();
        }
        for _ in 0..calls.stores {
            let task = self.task(false);
            if let Err(error) = STORING.get().call(task, shared.setup.store_threads) {
                shared.lock().storing -= 1;
                self.lacks_threads("start a thread that stores shards, and", error);
            }
        }
        if calls.rests {
            let rest: Arc<dyn Look> = self.rest.clone();
            if TIMER.get().watch(Arc::downgrade(&rest), PATIENCE).is_err() {
                shared.lock().is_resting = false;
            }
        }
        if let Some(later) = calls.later {
            let growth: Arc<dyn Look> = self.growth.clone();
            if let Err(error) = TIMER.get().watch(Arc::downgrade(&growth), later) {
                shared.lock().is_timed = false;
                tracing::warn!(%error, "no timer: the metadata of an array are not stored before its writer is flushed");
            }
        }
    }

    /// Calls a thread that encodes. The caller has made sure that no other thread was called to encode.
    fn call_encoding(&self) {
        if let Err(error) = ENCODING.get().call(self.task(true), 1) {
            self.called.is_called.store(false, Ordering::SeqCst);
            self.lacks_threads("start a thread that encodes slices, and", error);
        }
    }

    fn task(&self, encodes: bool) -> Box<dyn Task> {
        Box::new(OfWriter {
            writer: self.writer.clone(),
            staff: self.this.clone(),
            visits: self.visits.clone(),
            encodes,
        })
    }

    /// Notes that no thread can be started. The caller may try again.
    fn lacks_threads(&self, doing: &'static str, error: std::io::Error) {
        tracing::warn!(%error, "a writer lacks threads");
        let Some(shared) = self.writer.upgrade() else {
            return;
        };
        shared.lock().failure.get_or_insert(Failure::Store {
            doing,
            key: zarrs::node::meta_key_v3(shared.setup.array.path()),
            source: Arc::new(error.into()),
        });
        shared.signal.notify();
    }

    fn encoding(&self) -> MutexGuard<'_, Option<Encoding>> {
        self.encoding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the next step of encoding, if there is one. Returns whether another step may follow.
    fn encode(&self, shared: &Shared) -> bool {
        let mut encoding = self.encoding();
        let Some(encoding) = encoding.as_mut() else {
            return false;
        };
        let Some(step) = self.next(shared, encoding) else {
            return false;
        };
        if catch_unwind(AssertUnwindSafe(|| encoding.run(shared, step))).is_err() {
            shared.break_down("a codec panicked while it encoded a batch".to_string());
        }
        true
    }

    /// Returns the next step of `encoding`. If it returns `None`, the task that encodes ends.
    fn next(&self, shared: &Shared, encoding: &mut Encoding) -> Option<encoding::Step> {
        let Called {
            is_called,
            is_starved,
        } = &*self.called;
        let mut is_ready = encoding.prepare(&shared.setup);
        loop {
            let mut state = shared.lock();
            is_starved.store(false, Ordering::SeqCst);
            let step = encoding::next(&mut state, self.depth, is_ready);
            if step.is_some() {
                return step;
            }
            is_called.store(false, Ordering::SeqCst);
            let lacks = state.progress.batches_encoding > 0 && !is_ready;
            is_starved.store(lacks, Ordering::SeqCst);
            drop(state);
            // From now on, a buffer that comes back calls a thread. A buffer may have come back before that.
            is_ready = lacks && encoding.prepare(&shared.setup);
            if !is_ready || is_called.swap(true, Ordering::SeqCst) {
                return None;
            }
        }
    }
}

//! Queues codecs: the encoders of this process that write to one shard do so one after the other.
//!
//! A codec is not told the key of the shard that it writes. So a turn takes [names](Name) that all
//! encoders of one shard share: the index that they read, or, where there is no shard yet, the array's codec,
//! shard shape, data type and fill value. Encoders of different shards that share a name wait for
//! each other, too. That costs time and nothing else.
//!
//! 1. All names of a turn are taken at once. An encoder that has a turn waits for no other, so two
//!    encoders never wait for each other.
//! 2. Blocking and awaited encoders wait in one line, the first come first.
//! 3. No encoder waits longer than its limit. A thread that has a turn already does not wait at all:
//!    its store may run other work of the application while it writes, and a turn that such work
//!    waited for might be the thread's own. Both end in a refusal ([`NoTurn`]).
//! 4. A forked child has a line of its own: the threads that had turns are not there.
//!
//! The locks of adapters (`key_locks.rs`) could not be built of this queue: the writers of adapters know the key,
//! wait without a limit, and may wait for one store while they hold a lock of another.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::file_turns::Scope;
use zarrs_cuda_engine::process::per_process::PerProcess;

#[cfg(feature = "async")]
mod clock;
#[cfg(test)]
mod tests;

/// A name that the encoders of one shard have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Name {
    /// The hash of the index that an encoder has read. Equal indices have equal hashes.
    Index(u64),
    /// The hash of the shard's index, and the remainder that the numbers of some of its subchunks have in
    /// common.
    Subchunks(u64, usize),
    /// The fingerprint of an array, for a shard that is not stored. Each open of an array gives the same
    /// fingerprint.
    Absent(u64),
    /// The fingerprint of an array. Every encoder that writes to a shard of this array takes this name.
    Writers(u64),
}

/// The mode in which a name is taken: whether other encoders may have the same name at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Shared,
    Alone,
}

/// A name that an encoder takes, and the mode in which it takes it.
pub(crate) type NameToTake = (Name, Mode);

/// The reason why an encoder got no turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoTurn {
    /// The turn did not come within the limit.
    Late,
    /// The thread has another turn already, or polls a future that has one.
    Nested,
}

/// The names that encoders have taken, and the encoders that wait.
#[derive(Default)]
struct Line {
    /// For each taken name, the number of encoders that share it; `None` if one encoder has it alone.
    taken: HashMap<Name, Option<usize>>,
    waiting: VecDeque<Waiting>,
    next_ticket: u64,
    #[cfg(feature = "async")]
    clock_runs: bool,
}

struct Waiting {
    ticket: u64,
    names: Arc<[NameToTake]>,
    /// Whether the encoder has got its names, and has not noticed it yet.
    has_turn: bool,
    waker: Waker,
    /// The time at which the clock has to wake an awaited encoder.
    #[cfg(feature = "async")]
    alarm: Option<Instant>,
}

/// The line of one process, whose encoders wait for each other.
struct Process {
    id: u32,
    line: Mutex<Line>,
    #[cfg(feature = "async")]
    alarms: std::sync::Condvar,
}

impl Process {
    /// Returns the line of this process. A forked child does not use the line of its parent, whose lock a
    /// thread may have held during the fork.
    fn this() -> &'static Self {
        static THIS: PerProcess<Process> = PerProcess::new(Process::new);
        THIS.get()
    }

    fn new() -> Self {
        Self {
            id: std::process::id(),
            line: Mutex::default(),
            #[cfg(feature = "async")]
            alarms: std::sync::Condvar::new(),
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    fn is_free(&self, names: &[NameToTake]) -> bool {
        names.iter().all(|(name, mode)| match self.taken.get(name) {
            None => true,
            Some(Some(_)) => *mode == Mode::Shared,
            Some(None) => false,
        })
    }

    fn take(&mut self, names: &[NameToTake]) {
        for (name, mode) in names {
            match mode {
                Mode::Alone => drop(self.taken.insert(*name, None)),
                Mode::Shared => {
                    let shared = self.taken.entry(*name).or_insert(Some(0));
                    *shared = shared.map(|count| count + 1);
                }
            }
        }
    }

    /// Gives `names` back. Returns the encoders to wake, as [`serve`](Self::serve) does.
    #[must_use]
    fn release(&mut self, names: &[NameToTake]) -> Vec<Waker> {
        for (name, _) in names {
            if let Some(Some(count)) = self.taken.get_mut(name)
                && *count > 1
            {
                *count -= 1;
            } else {
                self.taken.remove(name);
            }
        }
        self.serve()
    }

    /// Takes the names of every encoder that need not wait any longer. Returns the wakers of these encoders.
    /// The caller wakes them without the lock, because a waker is the application's code.
    #[must_use]
    fn serve(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        // The names of encoders that came before. Later encoders must not overtake them again and again.
        let mut wanted = Line::default();
        let mut waiting = std::mem::take(&mut self.waiting);
        for one in waiting.iter_mut().filter(|one| !one.has_turn) {
            if self.is_free(&one.names) && wanted.is_free(&one.names) {
                self.take(&one.names);
                one.has_turn = true;
                woken.push(one.waker.clone());
            } else {
                wanted.want(&one.names);
            }
        }
        self.waiting = waiting;
        woken
    }

    /// Takes `names` as [`take`](Self::take) does, also names that other encoders have taken.
    fn want(&mut self, names: &[NameToTake]) {
        for taken @ (name, _) in names {
            if self.taken.get(name) != Some(&None) {
                self.take(&[*taken]);
            }
        }
    }

    /// Returns whether an encoder that takes `names` could begin at once.
    fn would_serve(&self, names: &[NameToTake]) -> bool {
        let mut wanted = Line::default();
        for one in self.waiting.iter().filter(|one| !one.has_turn) {
            wanted.want(&one.names);
        }
        self.is_free(names) && wanted.is_free(names)
    }
}

thread_local! {
    /// The number of turns that this thread has, including the turns of futures that the thread polls.
    static TURNS: Cell<usize> = const { Cell::new(0) };
}

/// Marks this thread as one that must not wait for a turn, until this value is dropped.
struct Busy(PhantomData<*const ()>);

impl Busy {
    fn new() -> Self {
        TURNS.set(TURNS.get() + 1);
        Self(PhantomData)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        TURNS.set(TURNS.get() - 1);
    }
}

/// A turn of an encoder, which ends when this value is dropped.
pub(crate) struct Turn {
    process: &'static Process,
    names: Arc<[NameToTake]>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        // A forked child must not touch the lock of its parent's line when it drops a turn of its parent.
        if self.process.id == std::process::id() {
            let woken = self.process.line().release(&self.names);
            woken.iter().for_each(Waker::wake_by_ref);
        }
    }
}

/// The wait for a turn. When it is dropped, the encoder leaves the line.
struct Taking {
    process: &'static Process,
    names: Arc<[NameToTake]>,
    limit: Duration,
    since: Instant,
    ticket: Option<u64>,
    #[cfg_attr(
        not(feature = "async"),
        allow(dead_code, reason = "no wait is awaited")
    )]
    is_awaited: bool,
}

impl Taking {
    fn new(names: &[NameToTake], limit: Duration, is_awaited: bool) -> Self {
        Self {
            process: Process::this(),
            names: names.into(),
            limit,
            since: Instant::now(),
            ticket: None,
            is_awaited,
        }
    }

    /// Returns how long the encoder may still wait.
    fn left(&self) -> Duration {
        self.limit.saturating_sub(self.since.elapsed())
    }

    fn poll(&mut self, waker: &Waker) -> Poll<Result<Turn, NoTurn>> {
        if self.process.id != std::process::id() {
            // A forked child waits in the line of its own process.
            self.process = Process::this();
            self.ticket = None;
        }
        // Old wakers are dropped after the lock is released, because a waker is the application's code.
        let (_removed, _old, woken);
        let mut line = self.process.line();
        // The time is read under the lock: the clock wakes only the waker that is in the line when the time
        // has come.
        let left = self.left();
        let turn = || Turn {
            process: self.process,
            names: Arc::clone(&self.names),
        };
        if let Some(ticket) = self.ticket {
            let place = line.waiting.iter().position(|one| one.ticket == ticket);
            let Some(place) = place else {
                return Poll::Ready(Err(NoTurn::Late));
            };
            if line.waiting[place].has_turn {
                _removed = line.waiting.remove(place);
                self.ticket = None;
                return Poll::Ready(Ok(turn()));
            }
            if left.is_zero() {
                _removed = line.waiting.remove(place);
                self.ticket = None;
                // Other encoders may have waited only for this one.
                woken = line.serve();
                drop(line);
                woken.iter().for_each(Waker::wake_by_ref);
                return Poll::Ready(Err(NoTurn::Late));
            }
            _old = std::mem::replace(&mut line.waiting[place].waker, waker.clone());
            return Poll::Pending;
        }
        if line.would_serve(&self.names) {
            line.take(&self.names);
            return Poll::Ready(Ok(turn()));
        }
        if TURNS.get() > 0 {
            return Poll::Ready(Err(NoTurn::Nested));
        }
        if left.is_zero() {
            return Poll::Ready(Err(NoTurn::Late));
        }
        #[cfg(feature = "async")]
        if self.is_awaited && !clock::runs(self.process, &mut line) {
            // Without a clock, the wait would not end at its limit.
            return Poll::Ready(Err(NoTurn::Late));
        }
        let ticket = line.next_ticket;
        line.next_ticket += 1;
        line.waiting.push_back(Waiting {
            ticket,
            names: Arc::clone(&self.names),
            has_turn: false,
            waker: waker.clone(),
            #[cfg(feature = "async")]
            alarm: self
                .is_awaited
                .then(|| self.since.checked_add(self.limit))
                .flatten(),
        });
        self.ticket = Some(ticket);
        #[cfg(feature = "async")]
        if self.is_awaited {
            self.process.alarms.notify_one();
        }
        Poll::Pending
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        if self.process.id != std::process::id() {
            return;
        }
        let mut line = self.process.line();
        let place = line.waiting.iter().position(|one| one.ticket == ticket);
        let removed = place.and_then(|place| line.waiting.remove(place));
        let woken = match &removed {
            Some(removed) if removed.has_turn => line.release(&removed.names),
            Some(_) => line.serve(),
            None => Vec::new(),
        };
        drop(line);
        woken.iter().for_each(Waker::wake_by_ref);
    }
}

/// A waker that unparks a thread.
pub(super) struct Unpark(pub(super) Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A turn of an encoder whose calls block its thread.
pub(crate) struct BlockingTurn {
    // The files are unlocked before another encoder of this process gets its turn.
    _files: Scope,
    _turn: Turn,
    _busy: Busy,
}

/// Blocks until `names` are taken, for at most `limit`.
pub(super) fn take_blocking(names: &[NameToTake], limit: Duration) -> Result<BlockingTurn, NoTurn> {
    let mut taking = Taking::new(names, limit, false);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(turn) = taking.poll(&waker) {
            return turn.map(|turn| BlockingTurn {
                _files: Scope::new(taking.since, limit),
                _turn: turn,
                _busy: Busy::new(),
            });
        }
        thread::park_timeout(taking.left());
    }
}

/// Waits until `names` are taken, for at most `limit`. While the encoder has the turn, it awaits everything
/// through [`during`].
#[cfg(feature = "async")]
pub(super) async fn take_awaited(names: &[NameToTake], limit: Duration) -> Result<Turn, NoTurn> {
    let mut taking = Taking::new(names, limit, true);
    std::future::poll_fn(|context| taking.poll(context.waker())).await
}

/// Awaits `work` for an encoder that may have a turn. If it has one, the thread that polls `work` is refused
/// other turns for which it would have to wait.
pub(crate) async fn during<R, T>(turn: Option<&R>, work: impl Future<Output = T>) -> T {
    if turn.is_none() {
        return work.await;
    }
    let mut work = pin!(work);
    std::future::poll_fn(|context| {
        let _busy = Busy::new();
        work.as_mut().poll(context)
    })
    .await
}

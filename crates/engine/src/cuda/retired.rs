//! The memory of a device that its owners do not use any more.
//!
//! Memory whose last use is not known is freed by a thread ([`freeing`](super::freeing)). Memory whose last use is
//! marked by an event is spare: it is used again when the event has happened.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::driver::{DeviceMemory, EventId};

/// The most spare allocations of a device, and the most bytes of them.
const MOST_SPARE: (usize, usize) = (16, 2 << 30);

/// The bytes that spare memory may have beyond twice the bytes that are wanted.
const SLACK: usize = 1 << 20;

/// Memory that nothing uses any more after an event.
#[derive(Debug)]
pub(super) struct SpareMemory {
    pub(super) memory: DeviceMemory,
    pub(super) len: usize,
    pub(super) after: EventId,
    /// The time at which the memory is freed; `None` if it is kept.
    pub(super) until: Option<Instant>,
}

/// Memory that waits to be freed, and the event of spare memory.
#[derive(Debug)]
pub(super) struct RetiredMemory {
    pub(super) memory: DeviceMemory,
    pub(super) event: Option<EventId>,
}

impl From<SpareMemory> for RetiredMemory {
    fn from(spare: SpareMemory) -> Self {
        Self {
            memory: spare.memory,
            event: Some(spare.after),
        }
    }
}

/// The memory that waits to be freed, and the spare memory.
#[derive(Debug, Default)]
pub(super) struct Retired {
    list: Mutex<RetiredList>,
    /// Notified when a thread has freed memory, or has ended.
    freed: Condvar,
}

#[derive(Debug, Default)]
struct RetiredList {
    memory: Vec<RetiredMemory>,
    /// Whether a thread is freeing memory.
    is_freed: bool,
    /// The oldest first.
    spare: Vec<SpareMemory>,
}

impl Retired {
    fn lock(&self) -> MutexGuard<'_, RetiredList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds `memory`. Calls `start` if no thread is freeing memory; `start` returns whether it has started one.
    pub(super) fn add(
        &self,
        memory: impl IntoIterator<Item = RetiredMemory>,
        start: impl FnOnce() -> bool,
    ) {
        let mut list = self.lock();
        list.memory.extend(memory);
        if !list.is_freed && !list.memory.is_empty() {
            // Without a thread, the next call tries again.
            list.is_freed = start();
        }
    }

    /// Gives `memory` back, which the calling thread could not free. That thread ends.
    pub(super) fn give_back(&self, mut memory: Vec<RetiredMemory>) {
        let mut list = self.lock();
        list.memory.append(&mut memory);
        list.is_freed = false;
        self.freed.notify_all();
    }

    /// Returns whether there is spare memory, or a thread is freeing memory.
    pub(super) fn holds_memory(&self) -> bool {
        let list = self.lock();
        list.is_freed || !list.spare.is_empty()
    }

    /// Waits at most `time` while a thread is freeing memory.
    pub(super) fn wait(&self, time: Duration) {
        let list = self.lock();
        let waited = self
            .freed
            .wait_timeout_while(list, time, |list| list.is_freed);
        drop(waited);
    }

    /// Takes all memory that waits to be freed. If there is none, the thread that called this ends.
    pub(super) fn take(&self) -> Option<Vec<RetiredMemory>> {
        let mut list = self.lock();
        list.is_freed = !list.memory.is_empty();
        self.freed.notify_all();
        list.is_freed.then(|| std::mem::take(&mut list.memory))
    }

    /// Keeps `spare`. Gives it back if there is too much spare memory already.
    pub(super) fn keep(&self, spare: SpareMemory) -> Option<SpareMemory> {
        let mut list = self.lock();
        let bytes: usize = list.spare.iter().map(|spare| spare.len).sum();
        let (most, most_bytes) = MOST_SPARE;
        if list.spare.len() >= most || bytes.saturating_add(spare.len) > most_bytes {
            return Some(spare);
        }
        list.spare.push(spare);
        None
    }

    /// Takes spare memory of at least `len` bytes, and not many more, whose event has happened. `has_happened` may call
    /// the driver, so it is called without the lock, which drops of memory take.
    pub(super) fn reuse(
        &self,
        len: usize,
        has_happened: impl Fn(EventId) -> bool,
    ) -> Option<SpareMemory> {
        let most = len.saturating_mul(2).saturating_add(SLACK);
        let is_fitting = |spare: &mut SpareMemory| (len..=most).contains(&spare.len);
        let mut fitting: Vec<_> = self.lock().spare.extract_if(.., is_fitting).collect();
        // The smallest, and the oldest of these.
        let mut order: Vec<usize> = (0..fitting.len()).collect();
        order.sort_by_key(|at| fitting[*at].len);
        let found = order
            .into_iter()
            .find(|at| has_happened(fitting[*at].after));
        let found = found.map(|at| fitting.remove(at));
        let mut list = self.lock();
        list.spare.splice(0..0, fitting);
        found
    }

    /// Takes the spare memory that is to be freed at `now`; all of it without a time.
    pub(super) fn take_spare(&self, now: Option<Instant>) -> Vec<SpareMemory> {
        let is_due = |spare: &mut SpareMemory| {
            now.is_none_or(|now| spare.until.is_some_and(|until| until <= now))
        };
        self.lock().spare.extract_if(.., is_due).collect()
    }

    /// Returns the time at which the next spare memory is to be freed.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.lock().spare.iter().filter_map(|s| s.until).min()
    }
}

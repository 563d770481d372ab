//! The memory of a device that its owners do not use any more.
//!
//! Memory whose last use is not known is freed by a thread ([`freeing`](super::freeing)). Memory whose last use is
//! marked by an event is spare: it is used again when the event has happened.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::driver::{DeviceMemory, EventId};

/// The most spare allocations of a device.
const MOST_SPARE: usize = 4;

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

    /// Keeps `spare`. Returns the oldest spare memory if there is too much of it.
    pub(super) fn keep(&self, spare: SpareMemory) -> Option<SpareMemory> {
        let mut list = self.lock();
        list.spare.push(spare);
        (list.spare.len() > MOST_SPARE).then(|| list.spare.remove(0))
    }

    /// Takes spare memory of at least `len` bytes, and not many more, whose event has happened.
    pub(super) fn reuse(
        &self,
        len: usize,
        has_happened: impl Fn(EventId) -> bool,
    ) -> Option<SpareMemory> {
        let most = len.saturating_mul(2).saturating_add(SLACK);
        let mut list = self.lock();
        let fitting =
            list.spare.iter().enumerate().filter(|(_, spare)| {
                (len..=most).contains(&spare.len) && has_happened(spare.after)
            });
        let (at, _) = fitting.min_by_key(|(_, spare)| spare.len)?;
        Some(list.spare.remove(at))
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

//! The memory of a device that its owners have dropped, and that a thread frees.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::driver::DeviceMemory;

/// The memory that waits to be freed.
#[derive(Debug, Default)]
pub(super) struct Retired {
    list: Mutex<RetiredList>,
    /// Notified when a thread has freed memory, or has ended.
    freed: Condvar,
}

#[derive(Debug, Default)]
struct RetiredList {
    memory: Vec<DeviceMemory>,
    /// Whether a thread is freeing memory.
    is_freed: bool,
}

impl Retired {
    fn lock(&self) -> MutexGuard<'_, RetiredList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds `memory`. Calls `start` if no thread is freeing memory; `start` returns whether it has started one.
    pub(super) fn add(&self, memory: DeviceMemory, start: impl FnOnce() -> bool) {
        let mut list = self.lock();
        list.memory.push(memory);
        if !list.is_freed {
            // Without a thread, the next call tries again.
            list.is_freed = start();
        }
    }

    /// Gives `memory` back, which the calling thread could not free. That thread ends.
    pub(super) fn give_back(&self, mut memory: Vec<DeviceMemory>) {
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

    /// Takes all memory. If there is none, the thread that called this ends.
    pub(super) fn take(&self) -> Option<Vec<DeviceMemory>> {
        let mut list = self.lock();
        list.is_freed = !list.memory.is_empty();
        self.freed.notify_all();
        list.is_freed.then(|| std::mem::take(&mut list.memory))
    }
}

//! The memory of a device that its owners have dropped, and that a thread frees.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::driver::DeviceMemory;

/// The memory that waits to be freed.
#[derive(Debug, Default)]
pub(super) struct Retired(Mutex<RetiredList>);

#[derive(Debug, Default)]
struct RetiredList {
    memory: Vec<DeviceMemory>,
    /// Whether a thread is freeing memory.
    is_freed: bool,
}

impl Retired {
    fn lock(&self) -> MutexGuard<'_, RetiredList> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Takes all memory. If there is none, the thread that called this ends.
    pub(super) fn take(&self) -> Option<Vec<DeviceMemory>> {
        let mut list = self.lock();
        list.is_freed = !list.memory.is_empty();
        list.is_freed.then(|| std::mem::take(&mut list.memory))
    }
}

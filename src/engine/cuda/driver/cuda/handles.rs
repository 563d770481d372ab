//! What the driver made for us, by number.

use crate::engine::cuda::driver::DriverError;
use cudarc::driver::sys::{CUfunc_st, CUmod_st};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A pointer that the driver made up, and that only the driver looks behind.
#[derive(Debug)]
pub(super) struct Handle<T>(pub(super) *mut T);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

// SAFETY: nothing is accessed through it here, and the driver's functions may be called with it
// from any thread: "the CUDA driver API is thread-safe".
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

/// The kernels of a device that were asked for.
#[derive(Debug, Default)]
pub(super) struct Kernels(pub(super) Mutex<Loaded>);

/// With the errors, because what does not compile now never will, and trying takes long.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) modules: HashMap<&'static str, Result<Handle<CUmod_st>, DriverError>>,
    pub(super) kernels: HashMap<&'static str, Handle<CUfunc_st>>,
}

/// Streams or events. A number is never given twice, so that none can stand for what is gone.
#[derive(Debug)]
pub(super) struct Handles<T> {
    table: Mutex<Table<T>>,
}

#[derive(Debug)]
struct Table<T> {
    next: u64,
    live: HashMap<u64, Arc<T>>,
}

impl<T> Handles<T> {
    pub(super) fn new() -> Self {
        let (next, live) = (1, HashMap::new());
        let table = Mutex::new(Table { next, live });
        Self { table }
    }

    pub(super) fn insert(&self, value: T) -> u64 {
        let mut table = lock(&self.table);
        let number = table.next;
        table.next += 1;
        table.live.insert(number, Arc::new(value));
        number
    }

    /// It cannot be destroyed before what is returned is dropped.
    pub(super) fn get(&self, number: u64) -> Option<Arc<T>> {
        lock(&self.table).live.get(&number).cloned()
    }

    /// Take it out, to be destroyed. `None` if it is not there, or another thread is using it.
    pub(super) fn remove(&self, number: u64) -> Option<T> {
        let mut table = lock(&self.table);
        match Arc::try_unwrap(table.live.remove(&number)?) {
            Ok(value) => Some(value),
            Err(in_use) => {
                table.live.insert(number, in_use);
                None
            }
        }
    }
}

/// Nothing here is left half-done by a panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_or_gone_cannot_be_destroyed() {
        let handles = Handles::new();
        let first = handles.insert('a');
        let in_use = handles.get(first);
        assert_eq!(in_use.as_deref(), Some(&'a'));
        assert_eq!(handles.remove(first), None);
        drop(in_use);
        assert_eq!(handles.remove(first), Some('a'));
        assert_eq!(handles.remove(first), None);
        assert_ne!(handles.insert('b'), first);
        assert!(handles.get(first).is_none());
    }
}

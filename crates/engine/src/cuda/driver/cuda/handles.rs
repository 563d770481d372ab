//! Handles of objects that the driver created, and tables that map numbers to the objects.

use crate::cuda::driver::DriverError;
use cudarc::driver::sys::{CUfunc_st, CUmod_st};
use std::{
    collections::HashMap,
    sync::atomic::AtomicUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// An opaque pointer from the driver. Only the driver dereferences it.
#[derive(Debug)]
pub(super) struct Handle<T>(pub(super) *mut T);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

// SAFETY: this crate accesses nothing through the pointer. Any thread may pass the pointer to the
// driver's functions: "the CUDA driver API is thread-safe".
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as for `Send`.
unsafe impl<T> Sync for Handle<T> {}

/// The kernels of a device that were loaded so far.
#[derive(Debug, Default)]
pub(super) struct Kernels {
    pub(super) loaded: Mutex<Loaded>,
    /// The number of modules in `loaded`, for readers that must not wait while a module is compiled.
    pub(super) modules: AtomicUsize,
}

/// The loaded modules and kernels. The errors of modules are kept, too: a module that does not compile now
/// never compiles, and each attempt takes long.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) modules: HashMap<&'static str, Result<Handle<CUmod_st>, DriverError>>,
    pub(super) kernels: HashMap<&'static str, Handle<CUfunc_st>>,
}

/// A table of streams or events. Numbers are never reused, so that the number of a destroyed object
/// cannot denote another one.
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

    /// Returns the object with the number `number`, or `None` if there is none. The object cannot be
    /// destroyed before the result is dropped.
    pub(super) fn get(&self, number: u64) -> Option<Arc<T>> {
        lock(&self.table).live.get(&number).cloned()
    }

    /// Removes the object with the number `number`, for the caller to destroy. Returns `None` if there is no
    /// object with this number, or if another thread is using it.
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

/// Locks a mutex. Poisoning is ignored, because no panic leaves the data here half-changed.
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

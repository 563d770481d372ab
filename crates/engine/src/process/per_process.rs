//! Values that a forked child must not share with its parent.

use std::fmt;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value of each process. A forked child gets another one when it first asks: the threads behind the
/// value of its parent are not in the child, and its locks may be held for ever.
pub struct PerProcess<T> {
    make: fn() -> T,
    /// With the process that it belongs to.
    value: AtomicPtr<(u32, T)>,
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}

impl<T: Send + Sync> PerProcess<T> {
    /// Returns a value that `make` makes when it is first needed.
    pub const fn new(make: fn() -> T) -> Self {
        Self {
            make,
            value: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Returns the value of this process.
    pub fn get(&self) -> &T {
        let this = std::process::id();
        loop {
            let known = self.value.load(Ordering::Acquire);
            // SAFETY: null, or a value that is dropped with `self` at the earliest.
            if let Some((process, value)) = unsafe { known.as_ref() }
                && *process == this
            {
                return value;
            }
            let made = Box::into_raw(Box::new((this, (self.make)())));
            // The value of the parent is never dropped: this copy of the parent may be using it.
            let stored =
                self.value
                    .compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire);
            if stored.is_err() {
                // SAFETY: made above, and not stored.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let known = *self.value.get_mut();
        // SAFETY: null, or stored by `get`; nothing borrows from `self` any more.
        if let Some((process, _)) = unsafe { known.as_ref() }
            && *process == std::process::id()
        {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(known) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_gets_the_same_value() {
        let value = PerProcess::new(Vec::<u8>::new);
        let address = |value: &Vec<u8>| std::ptr::from_ref(value).addr();
        let first = std::thread::scope(|scope| {
            let threads = [(); 8].map(|()| scope.spawn(|| address(value.get())));
            threads.map(|thread| thread.join().expect("no panic"))
        });
        assert!(first.iter().all(|found| *found == address(value.get())));
    }
}

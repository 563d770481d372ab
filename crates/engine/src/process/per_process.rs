//! Values that a forked child must not share with its parent.

use std::fmt;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that each process has for itself. A forked child makes another value when it first needs one: the
/// child does not have the threads behind its parent's value, and the locks in that value may be held for
/// ever.
pub struct PerProcess<T> {
    make: fn() -> T,
    /// The value, and the identifier of the process to which it belongs.
    value: AtomicPtr<(u32, T)>,
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}

impl<T: Send + Sync> PerProcess<T> {
    /// Makes a holder whose value `make` makes when it is first needed.
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
            // SAFETY: the pointer is null, or leads to a value that lives at least as long as `self`.
            if let Some((process, value)) = unsafe { known.as_ref() }
                && *process == this
            {
                return value;
            }
            let made = Box::into_raw(Box::new((this, (self.make)())));
            // A child never drops the value of its parent: code that was running at the fork may be using it.
            let stored =
                self.value
                    .compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire);
            if stored.is_err() {
                // SAFETY: `made` was made above, and was not stored.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let known = *self.value.get_mut();
        // SAFETY: the pointer is null, or was stored by `get`. Nothing borrows from `self` any more.
        if let Some((process, _)) = unsafe { known.as_ref() }
            && *process == std::process::id()
        {
            // SAFETY: `get` stored the pointer, and nothing borrows from `self` any more.
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

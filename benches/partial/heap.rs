//! How much heap memory is in use.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator with a counter.
struct Counted;

#[global_allocator]
static COUNTED: Counted = Counted;

fn allocated(len: usize) {
    let in_use = IN_USE.fetch_add(len, Ordering::Relaxed) + len;
    if in_use > PEAK.load(Ordering::Relaxed) {
        PEAK.fetch_max(in_use, Ordering::Relaxed);
    }
}

fn freed(len: usize) {
    IN_USE.fetch_sub(len, Ordering::Relaxed);
}

// SAFETY: each call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        freed(layout.size());
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        allocated(new_size);
        freed(layout.size());
        // SAFETY: the caller upholds the contract.
        unsafe { System.realloc(memory, layout, new_size) }
    }
}

/// Runs `f`. Returns by how many bytes the memory in use grew at most, and the result of `f`.
pub(crate) fn peak<T>(f: impl FnOnce() -> T) -> (usize, T) {
    let before = IN_USE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = f();
    (PEAK.load(Ordering::Relaxed).saturating_sub(before), result)
}

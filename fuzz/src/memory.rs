//! How much memory is asked for at once.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Notes the largest allocation.
struct Watching;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Watching = Watching;

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Do something, and fail if it allocates more than `limit` bytes at once. Targets run one at a time
/// in a process: allocations of all threads count.
pub(crate) fn limited<T>(limit: usize, what: &str, act: impl FnOnce() -> T) -> T {
    LARGEST.store(0, Ordering::Relaxed);
    let result = act();
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(
        largest <= limit,
        "{what}: {largest} bytes were allocated at once, {limit} are justified"
    );
    result
}

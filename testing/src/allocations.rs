//! Observes how much memory a program allocates at once.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// An allocator that records the largest allocation. For a program's `#[global_allocator]`.
#[derive(Debug)]
pub struct Watching;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `System`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `System`.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `System`.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Forgets all allocations until now.
pub fn reset() {
    LARGEST.store(0, Ordering::Relaxed);
}

/// Returns the size of the largest allocation since [`reset`], of all threads, in bytes.
pub fn largest() -> usize {
    LARGEST.load(Ordering::Relaxed)
}

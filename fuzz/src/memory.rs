//! Limits how much memory is allocated at once.

use zarrs_cuda_testing::allocations::{self, Watching};

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// Runs `act`, and fails if it allocates more than `limit` bytes at once. Allocations of all
/// threads count, so only one target may run at a time in a process.
pub(crate) fn limited<T>(limit: usize, what: &str, act: impl FnOnce() -> T) -> T {
    allocations::reset();
    let result = act();
    let largest = allocations::largest();
    assert!(
        largest <= limit,
        "{what}: {largest} bytes were allocated at once, {limit} are justified"
    );
    result
}

//! How much memory is asked for at once.

use zarrs_cuda_testing::allocations::{self, Watching};

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// Do something, and fail if it allocates more than `limit` bytes at once. Targets run one at a time
/// in a process: allocations of all threads count.
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

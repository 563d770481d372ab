//! Memory that is at hand when the clock starts.

use std::hint::black_box;

/// Touch `bytes` of memory and give them back, so that what is measured next finds them where the kernel
/// has them. Under a hypervisor that takes back what a guest does not use (free page reporting),
/// touching a page that was taken back is some ten times slower than touching a free one: whoever
/// needs more memory than the one before pays for both.
pub(crate) fn warm(bytes: u64) {
    /// No system has smaller ones.
    const PAGE: usize = 4096;
    let mut memory = vec![0_u8; usize::try_from(bytes).unwrap_or(0)];
    for page in memory.chunks_mut(PAGE) {
        page[0] = 1;
    }
    black_box(&memory);
}

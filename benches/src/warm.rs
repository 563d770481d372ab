//! Prepares memory before the clock starts.

use std::io;

use memmap2::MmapMut;

use crate::Result;

/// More memory than any contender needs beside the stored values.
const BUFFERS: u64 = 1 << 30;

/// Touches as much memory as storing `bytes` of values needs, on huge pages if the system has them,
/// and frees it. The next measurement then finds the memory in the kernel's free lists.
///
/// A hypervisor may reclaim memory that a guest does not use (free page reporting). Touching a
/// reclaimed page can be ten times slower than touching a free one. A contender that needs more
/// memory than the previous one would then pay for both.
pub fn warm(bytes: u64) -> Result<()> {
    touch((bytes + BUFFERS).try_into()?)?;
    Ok(())
}

/// Touches `bytes` of memory and frees it.
pub fn touch(bytes: usize) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    /// No system has smaller pages.
    const PAGE: usize = 4096;
    let mut memory = MmapMut::map_anon(bytes)?;
    // A kernel without huge pages returns an error, which is ignored.
    #[cfg(target_os = "linux")]
    memory.advise(memmap2::Advice::HugePage).ok();
    for page in memory.chunks_mut(PAGE) {
        page[0] = 1;
    }
    Ok(())
}

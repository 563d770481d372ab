//! Memory that is at hand when the clock starts.

use std::error::Error;

use memmap2::MmapMut;

/// More than any contender has of memory beside the values that are stored.
const BUFFERS: u64 = 1 << 30;

/// Touch as much memory as storing `bytes` of values takes, on huge pages where the system has them,
/// and give it back, so that what is measured next finds it where the kernel has it. Under a
/// hypervisor that takes back what a guest does not use (free page reporting), touching a page that was
/// taken back can be ten times slower than touching a free one: whoever needs more memory than the one
/// before would pay for both.
pub(crate) fn warm(bytes: u64) -> Result<(), Box<dyn Error>> {
    /// No system has smaller ones.
    const PAGE: usize = 4096;
    let mut memory = MmapMut::map_anon((bytes + BUFFERS).try_into()?)?;
    // A kernel that has none says that there is no such advice.
    #[cfg(target_os = "linux")]
    memory.advise(memmap2::Advice::HugePage).ok();
    for page in memory.chunks_mut(PAGE) {
        page[0] = 1;
    }
    Ok(())
}

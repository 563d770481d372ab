//! Slabs: page-locked memory into which the threads of a reader read encoded bytes, and from which a lane copies the
//! bytes to the device.
//!
//! A device has one block of page-locked memory, and slabs are ranges of the block. The block is allocated by the thread
//! that calls for a read, before it starts other threads, and freed like an idle lane. In between, a slab is taken and
//! given back without the driver, and nothing ever waits: not for a slab, and not for the block. Lanes have a budget of
//! their own, so that a lane waits for no slab either. A reader that gets no slab reads into other memory, from which the
//! host copies the bytes.
//!
//! Before the bytes of a slab are written again, the device has read them: a lane [keeps](KeptSlabs) each slab from which
//! it copies until the host has seen the end of the copy, or until the streams of the lane are empty. If the streams
//! cannot be waited for, the slab is lost, and the block is never freed. A device in quarantine needs no other care: its
//! block stays allocated for ever, and nobody uses what the device still reads from it.

pub(super) mod free_ranges;

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::free_ranges::FreeRanges;
use super::driver::{PinnedMemory, PinnedSpan};
use super::forks::Process;
use super::uses::Use;

/// The time after a failure for which nobody tries again to allocate the block.
const SETBACK: Duration = Duration::from_secs(10);

/// The block of page-locked memory of a device.
#[derive(Debug, Default)]
pub(super) struct SlabPool {
    state: Mutex<PoolState>,
    process: Process,
}

#[derive(Debug, Default)]
struct PoolState {
    block: Option<Block>,
    /// The number of reads under way, which may take slabs.
    reads: usize,
    /// Whether a thread is allocating the block.
    is_allocating: bool,
    /// Whether the memory of the block was lost, so that there is no other block.
    is_lost: bool,
    /// The time at which an allocation last failed.
    failed: Option<Instant>,
    /// The time at which the block is freed, unless a read begins; `None` if it is kept.
    until: Option<Instant>,
}

/// A block of page-locked memory, and its free ranges.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) memory: PinnedMemory,
    pub(super) free: FreeRanges,
}

impl PoolState {
    /// Returns whether there is a block, of which no slab is taken and no read is under way.
    fn is_idle(&self) -> bool {
        let mut block = self.block.iter();
        self.reads == 0 && block.any(|block| block.free.all_free())
    }
}

impl SlabPool {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a read. Returns whether the caller is to allocate the block, which would have `len` bytes.
    pub(super) fn begin(&self, len: usize) -> bool {
        let mut state = self.lock();
        state.reads += 1;
        let has_failed = (state.failed).is_some_and(|since| since.elapsed() < SETBACK);
        let is_missing = state.block.is_none() && !state.is_allocating && !state.is_lost;
        let allocates = len > 0 && is_missing && !has_failed;
        state.is_allocating |= allocates;
        allocates
    }

    /// Keeps the block that the caller was to allocate; `None` if the allocation has failed.
    pub(super) fn allocated(&self, block: Option<Block>) {
        let mut state = self.lock();
        state.is_allocating = false;
        state.failed = block.is_none().then(Instant::now);
        state.block = block;
    }

    /// Ends a read. The block may be freed at the time `until` if no other read has begun; `None` if it is kept.
    pub(super) fn end(&self, until: Option<Instant>) {
        let mut state = self.lock();
        state.reads -= 1;
        state.until = until;
    }

    /// Takes a slab of `len` bytes; `None` if the block has no room for it now, or there is no block. The slab is a use
    /// of the device.
    pub(super) fn take(this: &Arc<Self>, len: usize, of_device: Use) -> Option<PinnedSlab> {
        let mut state = this.lock();
        let block = state.block.as_mut()?;
        let range = block.free.take(len)?;
        Some(PinnedSlab {
            memory: block.memory,
            range,
            len,
            is_declared: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            pool: this.clone(),
            _use: of_device,
        })
    }

    fn give_back(&self, range: Range<usize>) {
        if let Some(block) = &mut self.lock().block {
            block.free.give_back(range);
        }
    }

    /// Takes the block, from which there is no slab, if no read is under way, and if it is to be freed at `now`; without a
    /// time, in any case.
    pub(super) fn take_block(&self, now: Option<Instant>) -> Option<PinnedMemory> {
        let mut state = self.lock();
        let is_due = now.is_none_or(|now| state.until.is_some_and(|until| until <= now));
        let is_idle = state.is_idle();
        let block = state.block.take_if(|_| is_idle && is_due);
        block.map(|block| block.memory)
    }

    /// Lets there be no other block, because the memory of the last one could not be freed.
    pub(super) fn lose_block(&self) {
        self.lock().is_lost = true;
    }

    /// Returns the time at which the block is to be freed.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let state = self.lock();
        state.until.filter(|_| state.is_idle())
    }
}

#[cfg(test)]
impl SlabPool {
    /// Holds the lock until the result is dropped.
    pub(super) fn locked(&self) -> impl Sized + use<'_> {
        self.lock()
    }
}

/// Page-locked memory for encoded bytes. On drop, it is used for other bytes.
pub struct PinnedSlab {
    /// The block, and the range of the slab in it, of which the first `len` bytes were asked for.
    memory: PinnedMemory,
    range: Range<usize>,
    len: usize,
    /// Whether a lane has declared that the host has written the slab.
    is_declared: AtomicBool,
    /// Whether a device may read the slab for ever.
    is_lost: AtomicBool,
    pool: Arc<SlabPool>,
    /// The end of the process waits for the slab, because the driver takes the memory away then.
    _use: Use,
}

impl fmt::Debug for PinnedSlab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of page-locked memory", self.len)
    }
}

impl PinnedSlab {
    fn first(&self) -> *mut u8 {
        // SAFETY: the range is in the block, which is not freed before the slab is dropped.
        unsafe { self.memory.0.as_ptr().add(self.range.start) }
    }

    /// Returns the bytes to fill. Before, they have any content.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the range has at least `len` bytes, which are mapped pages with some content. Only this slab has the
        // range, and no device uses it before this borrow ends, because lanes copy only from shared slabs.
        unsafe { std::slice::from_raw_parts_mut(self.first(), self.len) }
    }

    /// Returns the span of the bytes `range`; `None` if there are fewer.
    pub(super) fn span(&self, range: Range<usize>) -> Option<PinnedSpan> {
        (range.start <= range.end && range.end <= self.len).then(|| PinnedSpan {
            memory: self.memory,
            offset: self.range.start + range.start,
            len: range.len(),
        })
    }

    /// Returns the span that the host has written, on the first call only.
    pub(super) fn to_declare(&self) -> Option<PinnedSpan> {
        let is_declared = self.is_declared.swap(true, Ordering::Relaxed);
        self.span(0..self.len).filter(|_| !is_declared)
    }
}

impl AsRef<[u8]> for PinnedSlab {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as in `bytes_mut`. Devices read the memory, and never write it.
        unsafe { std::slice::from_raw_parts(self.first(), self.len) }
    }
}

impl Drop for PinnedSlab {
    fn drop(&mut self) {
        // A forked child takes no lock.
        if !*self.is_lost.get_mut() && !self.pool.process.forked() {
            self.pool.give_back(self.range.clone());
        }
    }
}

/// The slabs from which a lane copies, each with the number of the group of buffers to which.
#[derive(Debug, Default)]
pub(super) struct KeptSlabs(Mutex<Vec<(usize, Arc<PinnedSlab>)>>);

impl KeptSlabs {
    fn lock(&self) -> MutexGuard<'_, Vec<(usize, Arc<PinnedSlab>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn keep(&self, group: usize, slab: &Arc<PinnedSlab>) {
        self.lock().push((group, slab.clone()));
    }

    /// Gives the slabs of a group back. The copies from them are complete.
    pub(super) fn give_back(&self, group: usize) {
        let is_of_group = |kept: &mut (usize, Arc<PinnedSlab>)| kept.0 == group;
        let kept: Vec<_> = self.lock().extract_if(.., is_of_group).collect();
        // The drop of a slab takes another lock.
        drop(kept);
    }

    /// Gives all slabs back. The copies from them are complete.
    pub(super) fn give_all_back(&self) {
        let kept = std::mem::take(&mut *self.lock());
        drop(kept);
    }

    /// Loses all slabs: the device may read them for ever. Takes no lock of a slab's pool.
    pub(super) fn lose_all(&mut self) {
        let kept = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (_, slab) in std::mem::take(kept) {
            slab.is_lost.store(true, Ordering::Relaxed);
        }
    }
}

//! A device that completes every operation at once and computes nothing. Benchmarks count the engine's calls
//! with it, and measure the engine's own time.
//!
//! Copies and kernels do nothing. The only bytes that the device writes are the offsets of a scan: every
//! subchunk has the same encoded size, as without a compressor and without empty subchunks.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{
    Access, Arg, DeviceInfo, DeviceMemory, DeviceSpan, Dims, Driver, DriverError, EventId, Fault,
    LibraryCall, MemoryAt, PinnedMemory, PinnedSpan, PinnedUse, Rows, RowsShape, Site, Span,
    StreamId,
};

/// The alignment of allocations, in bytes, which the driver promises.
const ALIGNMENT: usize = 4096;

/// The number of calls of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    pub copies: u64,
    pub fills: u64,
    pub launches: u64,
    pub records: u64,
    pub waits: u64,
    pub queries: u64,
    pub synchronisations: u64,
    /// Calls that ask for the time between two events.
    pub times: u64,
    /// Events that were created, and the number of timed events among them.
    pub events: u64,
    pub timed_events: u64,
}

impl Calls {
    /// Returns the number of all calls, without the calls that create events.
    pub fn all(&self) -> u64 {
        self.copies
            + self.fills
            + self.launches
            + self.records
            + self.waits
            + self.queries
            + self.synchronisations
            + self.times
    }
}

/// A device that completes every operation at once and computes nothing.
pub struct InstantDevice {
    info: DeviceInfo,
    /// The number of bytes of an encoded subchunk.
    encoded: u64,
    state: Mutex<InstantState>,
    next: AtomicU64,
}

#[derive(Default)]
struct InstantState {
    calls: Calls,
    /// The pinned allocations, by address.
    pinned: HashMap<usize, Layout>,
    /// The places to which scans have written offsets.
    offsets: HashSet<(DeviceMemory, usize)>,
}

impl fmt::Debug for InstantDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InstantDevice").finish_non_exhaustive()
    }
}

impl InstantDevice {
    /// Returns a device that encodes every subchunk to `encoded` bytes.
    pub fn new(encoded: usize) -> Self {
        Self {
            info: DeviceInfo {
                ordinal: 0,
                name: "a device that completes at once".to_owned(),
                compute_capability: (9, 0),
                total_memory: 64 << 30,
                multiprocessors: 132,
                largest_pitch: i32::MAX as usize,
                pci: None,
            },
            encoded: encoded as u64,
            state: Mutex::default(),
            next: AtomicU64::new(1),
        }
    }

    /// Returns the number of calls since the device was created.
    pub fn calls(&self) -> Calls {
        self.lock().calls
    }

    fn lock(&self) -> MutexGuard<'_, InstantState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, kind: impl FnOnce(&mut Calls) -> &mut u64) {
        *kind(&mut self.lock().calls) += 1;
    }

    fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn out_of_memory(&self, len: usize) -> DriverError {
        DriverError {
            operation: format!("allocate {len} bytes of pinned memory"),
            device: Some(self.info.ordinal),
            fault: Fault::OutOfMemory,
            reason: "the host has no memory left".to_owned(),
        }
    }
}

impl Driver for InstantDevice {
    fn device(&self) -> &DeviceInfo {
        &self.info
    }

    fn has_context(&self) -> bool {
        true
    }

    fn enter(&self) -> Result<(), DriverError> {
        Ok(())
    }

    fn leave(&self) -> Result<(), DriverError> {
        Ok(())
    }

    fn free_memory(&self) -> Result<usize, DriverError> {
        Ok(self.info.total_memory)
    }

    /// Returns memory that has addresses, but no bytes behind them.
    fn allocate(&self, _: usize) -> Result<DeviceMemory, DriverError> {
        Ok(DeviceMemory(self.id() << 44))
    }

    unsafe fn free(&self, _: DeviceMemory) -> Result<(), DriverError> {
        Ok(())
    }

    fn allocate_pinned(&self, len: usize, _: PinnedUse) -> Result<PinnedMemory, DriverError> {
        let none = |_| self.out_of_memory(len);
        let layout = Layout::from_size_align(len.max(1), ALIGNMENT).map_err(none)?;
        // SAFETY: the layout has a size.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or_else(|| self.out_of_memory(len))?;
        // The system maps the pages of pinned memory when the memory is allocated.
        for page in (0..len).step_by(ALIGNMENT) {
            // SAFETY: the byte lies within the allocation.
            unsafe { start.as_ptr().add(page).write_volatile(0) };
        }
        self.lock().pinned.insert(start.as_ptr().addr(), layout);
        Ok(PinnedMemory(start))
    }

    unsafe fn free_pinned(&self, memory: PinnedMemory) -> Result<(), DriverError> {
        if let Some(layout) = self.lock().pinned.remove(&memory.0.as_ptr().addr()) {
            // SAFETY: allocated with this layout; the caller promises that nothing uses it.
            unsafe { dealloc(memory.0.as_ptr(), layout) };
        }
        Ok(())
    }

    fn create_stream(&self) -> Result<StreamId, DriverError> {
        Ok(StreamId(self.id()))
    }

    fn destroy_stream(&self, _: StreamId) -> Result<(), DriverError> {
        Ok(())
    }

    fn create_event(&self, timed: bool) -> Result<EventId, DriverError> {
        self.count(|calls| &mut calls.events);
        if timed {
            self.count(|calls| &mut calls.timed_events);
        }
        Ok(EventId(self.id()))
    }

    fn destroy_event(&self, _: EventId) -> Result<(), DriverError> {
        Ok(())
    }

    fn record(&self, _: EventId, _: StreamId, _: Site) -> Result<(), DriverError> {
        self.count(|calls| &mut calls.records);
        Ok(())
    }

    unsafe fn record_in(&self, _: EventId, _: u64, _: Site) -> Result<(), DriverError> {
        self.count(|calls| &mut calls.records);
        Ok(())
    }

    unsafe fn copy_rows_in(
        &self,
        _: u64,
        shape: RowsShape,
        from: Rows,
        to: Rows,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller keeps the same requirements.
        unsafe { self.copy_rows(StreamId(0), shape, from, to) }
    }

    unsafe fn is_captured(&self, _: u64) -> Result<bool, DriverError> {
        self.count(|calls| &mut calls.queries);
        Ok(false)
    }

    fn event_handle(&self, event: EventId) -> Result<u64, DriverError> {
        Ok(event.0)
    }

    fn adopt(&self, pointer: u64, len: usize) -> Result<DeviceSpan, DriverError> {
        Ok(DeviceSpan {
            memory: DeviceMemory(pointer),
            offset: 0,
            len,
        })
    }

    /// Every address is in memory of this device, which is as large as addresses are.
    fn memory_at(&self, _: u64) -> Result<MemoryAt, DriverError> {
        let (device, bytes) = (self.info.ordinal, 0..u64::MAX);
        Ok(MemoryAt { device, bytes })
    }

    fn wait(&self, _: StreamId, _: EventId, _: Site) -> Result<(), DriverError> {
        self.count(|calls| &mut calls.waits);
        Ok(())
    }

    fn query_event(&self, _: EventId) -> Result<bool, DriverError> {
        self.count(|calls| &mut calls.queries);
        Ok(true)
    }

    fn poll(&self, _: EventId, _: Site) -> Result<bool, DriverError> {
        self.count(|calls| &mut calls.synchronisations);
        Ok(true)
    }

    fn mark(&self, _: StreamId, _: Site) -> Result<(), DriverError> {
        Ok(())
    }

    fn poll_stream(&self, _: StreamId, _: Site) -> Result<bool, DriverError> {
        self.count(|calls| &mut calls.synchronisations);
        Ok(true)
    }

    fn synchronize_context(&self) -> Result<(), DriverError> {
        Ok(())
    }

    fn elapsed(&self, _: EventId, _: EventId) -> Result<Duration, DriverError> {
        self.count(|calls| &mut calls.times);
        Ok(Duration::ZERO)
    }

    unsafe fn copy(&self, _: StreamId, from: Span, to: Span) -> Result<(), DriverError> {
        let mut state = self.lock();
        state.calls.copies += 1;
        if let (Span::Device(from), Span::Pinned(to)) = (from, to)
            && state.offsets.contains(&(from.memory, from.offset))
        {
            for number in 0..to.len / 8 {
                let offset = number as u64 * self.encoded;
                // SAFETY: within the span, which the caller vouches for.
                unsafe {
                    let place = to.memory.0.as_ptr().add(to.offset + 8 * number);
                    place.copy_from_nonoverlapping(offset.to_le_bytes().as_ptr(), 8);
                }
            }
        }
        Ok(())
    }

    unsafe fn copy_rows(
        &self,
        _: StreamId,
        _: RowsShape,
        _: Rows,
        _: Rows,
    ) -> Result<(), DriverError> {
        self.count(|calls| &mut calls.copies);
        Ok(())
    }

    unsafe fn fill(&self, _: StreamId, _: DeviceSpan, _: u8) -> Result<(), DriverError> {
        self.count(|calls| &mut calls.fills);
        Ok(())
    }

    fn compile(&self) -> Result<(), DriverError> {
        Ok(())
    }

    fn uncompiled(&self) -> usize {
        0
    }

    unsafe fn launch(
        &self,
        _: StreamId,
        name: &'static str,
        _: Dims,
        args: &[Arg<'_>],
    ) -> Result<(), DriverError> {
        let mut state = self.lock();
        state.calls.launches += 1;
        if name.starts_with("scan")
            && let Some(Arg::Span(offsets, Access::Write)) = args.last()
        {
            state.offsets.insert((offsets.memory, offsets.offset));
        }
        Ok(())
    }

    unsafe fn call(
        &self,
        _: StreamId,
        _: &'static str,
        _: &[(Span, Access)],
        _: LibraryCall,
    ) -> Result<(), DriverError> {
        self.count(|calls| &mut calls.launches);
        Ok(())
    }

    fn host_access(&self, _: PinnedSpan, _: Access) -> Result<(), DriverError> {
        Ok(())
    }

    fn discard(&self, _: Span) -> Result<(), DriverError> {
        Ok(())
    }
}

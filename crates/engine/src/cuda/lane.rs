//! A lane: everything that one shard in flight needs on a device.
//!
//! ```text
//! caller's memory          pinned memory                       device memory
//!
//!                        +--- pinned_in --------+           +--- memory ------------------+
//!  elements, or          | ring of slabs        |   `up`    | ring of slabs               |
//!  encoded bytes ======> | fill value           | --------> | fill value                  |
//!                        | tables of batches    |           | batches: encoded bytes,     |
//!                        +----------------------+           |     sizes, offsets, tables  |
//!                        +--- pinned_out -------+  `down`   | workspaces: slots,          | <--- kernels, in
//!  encoded bytes, or     | ring of pieces       | <-------- |     compressor's buffers    |     `kernel_streams`
//!  elements      <====== | answers of batches   | <-------- |     (one for each stream    |
//!                        +----------------------+ `answers` |     of kernels)             |
//!                                                           +-----------------------------+
//!  ====>  copiers: threads of the host          ---->  copies: one stream each
//!
//!  events: `untimed` events order the streams and the host, `timed` events also take the time
//! ```

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::application::LentMemory;
use super::arena::{Capacity, Region};
use super::device::Device;
use super::driver::{
    Access, DeviceMemory, DeviceSpan, Driver, DriverError, EventId, Fault, PinnedMemory,
    PinnedSpan, PinnedUse, Site, Span, StreamId,
};
use super::slabs::{KeptSlabs, PinnedSlab};
use super::waits::{Awaited, WaitLimit};
use crate::contract::BufferBytes;

/// The byte that fills answers before a device, or nvCOMP on it, writes them. The filled values are no valid
/// offset, size or flag, and no success.
pub(super) const NO_ANSWER: u8 = 0xff;

/// The synchronisation with a lane's streams before the lane is freed.
const GIVE_UP: Site = Site("give up a lane: its streams are empty before its memory is freed");

/// The events of a lane, by kind: untimed or timed.
#[derive(Clone, Debug, Default)]
pub(super) struct Events {
    /// Events that order operations, and do not take the time of a record.
    pub(super) untimed: Vec<EventId>,
    /// Events that take the time of each record.
    pub(super) timed: Vec<EventId>,
}

impl Events {
    /// Returns the events that take the time if `timed`, or else the untimed events.
    pub(super) fn of(&mut self, timed: bool) -> &mut Vec<EventId> {
        if timed {
            &mut self.timed
        } else {
            &mut self.untimed
        }
    }

    /// Keeps only the events for which `keep` is true.
    pub(super) fn retain(&mut self, keep: impl Fn(EventId) -> bool) {
        for events in [&mut self.untimed, &mut self.timed] {
            events.retain(|event| keep(*event));
        }
    }
}

/// The streams, events, pinned memory and device memory of one shard in flight.
///
/// Copies in both directions and kernels have separate streams, so that they overlap. Memory is one
/// allocation of each kind; `sizing` divides it. Dropping a lane drains its streams and frees everything.
/// Memory that the device may still use is leaked on purpose: everything if the device is quarantined, for
/// example because it does not drain the streams in time, and the memory if a stream cannot be drained.
#[derive(Debug)]
pub(super) struct Lane {
    device: Arc<Device>,
    /// The number of the lane in this process.
    number: u64,
    capacity: Capacity,
    memory: Option<DeviceMemory>,
    pinned_in: Option<PinnedMemory>,
    pinned_out: Option<PinnedMemory>,
    /// Pinned memory that was allocated after the lane, each allocation with its length in bytes.
    later: Vec<(PinnedMemory, usize)>,
    /// The slabs from which the lane copies.
    kept: KeptSlabs,
    /// In this order: the stream of copies to the device, the stream of copies of shards or elements from
    /// the device, the stream of the answers of batches (`answer.rs`), and the streams of kernels.
    streams: Vec<StreamId>,
    /// All events of the lane, both in use and free.
    events: Mutex<Events>,
    /// The limit of each wait of the host for the lane, without the time of an application's work.
    timeout: Duration,
    /// The memory that applications lend to the lane; `None` if the lane reads none.
    lent: Option<Arc<LentMemory>>,
    /// Whether [`give_up`](Self::give_up) was called.
    closed: bool,
}

impl Lane {
    /// Allocates a lane. The device's context is current on this thread ([`Driver::enter`]).
    ///
    /// # Errors
    /// The driver's error, and how many bytes were leaked, because the device may still use them.
    pub(super) fn new(
        device: &Arc<Device>,
        capacity: Capacity,
        timeout: Duration,
    ) -> Result<Self, (DriverError, BufferBytes)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut lane = Self {
            device: device.clone(),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            capacity,
            memory: None,
            pinned_in: None,
            pinned_out: None,
            later: Vec::new(),
            kept: KeptSlabs::default(),
            streams: Vec::new(),
            events: Mutex::default(),
            timeout,
            lent: None,
            closed: false,
        };
        let allocated = device.near(|| lane.allocate());
        match device.watch(allocated) {
            Ok(()) => Ok(lane),
            Err(error) => Err((error, lane.close())),
        }
    }

    fn allocate(&mut self) -> Result<(), DriverError> {
        let device = self.device.clone();
        let driver = device.driver();
        let uploads = if self.capacity.reads_uploads {
            PinnedUse::Both
        } else {
            PinnedUse::ToDevice
        };
        self.memory = Some(driver.allocate(self.capacity.device.max(1))?);
        self.pinned_in = Some(driver.allocate_pinned(self.capacity.pinned_in.max(1), uploads)?);
        self.pinned_out =
            Some(driver.allocate_pinned(self.capacity.pinned_out.max(1), PinnedUse::FromDevice)?);
        for _ in 0..3 + self.capacity.kernel_streams.max(1) {
            self.streams.push(driver.create_stream()?);
        }
        Ok(())
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Sets the limit of each wait of the host for the lane.
    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Lets the lane read memory that applications lend.
    pub(super) fn set_lent(&mut self, lent: Arc<LentMemory>) {
        self.lent = Some(lent);
    }

    fn limit(&self) -> WaitLimit<'_> {
        WaitLimit {
            time: self.timeout,
            lent: self.lent.as_deref(),
        }
    }

    /// Returns the lane for use, with undefined content of its memory. The device's context is current on
    /// this thread.
    pub(super) fn start(&self) -> Result<Running<'_>, DriverError> {
        let running = self.running()?;
        let driver = running.driver;
        let Capacity {
            device: len,
            pinned_in,
            pinned_out,
            ..
        } = self.capacity;
        let whole = |len| Region { offset: 0, len };
        driver.discard(Span::Device(running.device(whole(len))))?;
        driver.discard(Span::Pinned(running.pinned_in(whole(pinned_in))))?;
        driver.discard(Span::Pinned(running.pinned_out(whole(pinned_out))))?;
        Ok(running)
    }

    /// Returns the lane for use, with unchanged content of its memory. The device's context is current on
    /// this thread.
    ///
    /// # Errors
    /// The lane was not allocated completely.
    pub(super) fn running(&self) -> Result<Running<'_>, DriverError> {
        let (device, driver) = (&*self.device, self.device.driver());
        let [up, down, answers, kernel_streams @ ..] = &self.streams[..] else {
            return Err(self.incomplete());
        };
        if kernel_streams.len() < self.capacity.kernel_streams.max(1) {
            return Err(self.incomplete());
        }
        let (Some(memory), Some(pinned_in), Some(pinned_out)) =
            (self.memory, self.pinned_in, self.pinned_out)
        else {
            return Err(self.incomplete());
        };
        Ok(Running {
            device,
            limit: self.limit(),
            driver,
            number: self.number,
            up: *up,
            kernel_streams,
            down: *down,
            answers: *answers,
            events: &self.events,
            kept: &self.kept,
            memory,
            pinned_in,
            pinned_out,
        })
    }

    fn incomplete(&self) -> DriverError {
        DriverError {
            operation: "starting a lane".to_string(),
            device: Some(self.device.info().ordinal),
            fault: Fault::Refused,
            reason: "the lane was not allocated completely".to_string(),
        }
    }

    /// Frees the lane, and returns the bytes of memory that were leaked.
    pub(super) fn close(mut self) -> BufferBytes {
        self.give_up()
    }

    /// Returns the two pinned allocations: for copies to the device, and for copies from the device.
    ///
    /// # Errors
    /// The lane was not allocated completely.
    pub(super) fn pinned(&self) -> Result<[PinnedMemory; 2], DriverError> {
        match (self.pinned_in, self.pinned_out) {
            (Some(pinned_in), Some(pinned_out)) => Ok([pinned_in, pinned_out]),
            _ => Err(self.incomplete()),
        }
    }

    /// Lets the lane free `memory`, of `len` bytes each, with its own memory.
    pub(super) fn adopt(&mut self, memory: Vec<PinnedMemory>, len: usize) {
        self.later
            .extend(memory.into_iter().map(|memory| (memory, len)));
    }

    /// Returns the bytes of memory that the lane has allocated at present.
    fn held(&self) -> BufferBytes {
        let pinned = |memory: Option<PinnedMemory>, len| memory.map_or(0, |_| len);
        BufferBytes {
            device: self.memory.map_or(0, |_| self.capacity.device),
            pinned: pinned(self.pinned_in, self.capacity.pinned_in)
                + pinned(self.pinned_out, self.capacity.pinned_out)
                + self.later.iter().map(|(_, len)| len).sum::<usize>(),
            ..BufferBytes::default()
        }
    }

    /// Frees everything that can be freed, on the first call only. Returns the bytes of memory that were
    /// leaked.
    pub(super) fn give_up(&mut self) -> BufferBytes {
        // A quarantine of the device was logged when it began.
        if !std::mem::replace(&mut self.closed, true) && self.device.unusable().is_none() {
            self.give_up_usable();
        }
        self.kept.lose_all();
        self.held()
    }

    fn give_up_usable(&mut self) {
        let device = self.device.clone();
        let freed = device.enter().and_then(|entered| {
            let freed = self.free();
            drop(entered);
            freed
        });
        if let Err(error) = freed {
            tracing::warn!(%error, leaked = %self.held(), "freeing a lane");
        }
    }

    /// Frees everything except memory that a stream may still use. Tries to free each part, and returns the
    /// first error.
    fn free(&mut self) -> Result<(), DriverError> {
        let device = self.device.clone();
        let driver = device.driver();
        let mut first = Ok(());
        let mut keep = |result: Result<(), DriverError>| {
            let result = device.watch(result);
            let done = result.is_ok();
            if first.is_ok() {
                first = result;
            }
            done
        };
        // A broken device takes no more calls of the driver.
        let usable = || device.unusable().is_none();
        let mut empty = true;
        let limit = self.limit();
        for &stream in &self.streams {
            let awaited = Awaited::Stream(stream);
            empty &= usable() && keep(device.wait(awaited, GIVE_UP, limit));
        }
        if let Some(lent) = self.lent.as_ref().filter(|_| usable()) {
            lent.close();
        }
        let Events { untimed, timed } = std::mem::take(&mut *lock(&self.events));
        for event in untimed.into_iter().chain(timed) {
            if usable() {
                keep(driver.destroy_event(event));
            }
        }
        for stream in self.streams.drain(..) {
            if usable() {
                keep(driver.destroy_stream(stream));
            }
        }
        if !empty {
            return first;
        }
        self.kept.give_all_back();
        for pinned in [&mut self.pinned_in, &mut self.pinned_out] {
            let Some(memory) = *pinned else { continue };
            if !usable() {
                return first;
            }
            // SAFETY: nothing is in flight, because the synchronisation with every stream has succeeded. The
            // lane owns the memory, and nothing borrows the lane.
            if keep(unsafe { driver.free_pinned(memory) }) {
                *pinned = None;
            }
        }
        for (memory, len) in std::mem::take(&mut self.later) {
            // SAFETY: as above: `StreamLane` has ended the use of the memory.
            if !usable() || !keep(unsafe { driver.free_pinned(memory) }) {
                self.later.push((memory, len));
            }
        }
        if let Some(memory) = self.memory
            && usable()
        {
            // SAFETY: as for the pinned memory.
            if keep(unsafe { driver.free(memory) }) {
                self.memory = None;
            }
        }
        first
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.give_up();
    }
}

fn lock(events: &Mutex<Events>) -> MutexGuard<'_, Events> {
    events.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lane in use, on a thread on which its device's context is current.
#[derive(Clone, Copy)]
pub struct Running<'a> {
    device: &'a Device,
    limit: WaitLimit<'a>,
    pub(super) driver: &'a dyn Driver,
    /// The number of the lane in this process.
    pub(super) number: u64,
    /// The stream of copies to the device.
    pub(super) up: StreamId,
    /// The CUDA streams that run kernels.
    pub(super) kernel_streams: &'a [StreamId],
    /// The stream of copies from the device.
    pub(super) down: StreamId,
    /// The stream of the copies from the device of the answers of batches: offsets of encoded subchunks, and
    /// failures of the compressor (`answer.rs`).
    pub(super) answers: StreamId,
    events: &'a Mutex<Events>,
    /// The slabs from which the lane copies.
    pub(super) kept: &'a KeptSlabs,
    memory: DeviceMemory,
    pinned_in: PinnedMemory,
    pinned_out: PinnedMemory,
}

impl fmt::Debug for Running<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

impl<'a> Running<'a> {
    /// Blocks this thread until the last record of `event` has happened.
    ///
    /// # Errors
    /// The errors of the driver, and of a device that does not finish in time.
    pub(super) fn synchronize(&self, event: EventId, site: Site) -> Result<(), DriverError> {
        self.device.wait(Awaited::Event(event), site, self.limit)
    }

    /// Blocks this thread until the last record of `event` has happened, but not after `stop` has returned
    /// true. Returns whether the record has happened.
    ///
    /// # Errors
    /// The errors of [`synchronize`](Self::synchronize).
    pub(super) fn synchronize_unless(
        &self,
        event: EventId,
        site: Site,
        stop: &dyn Fn() -> bool,
    ) -> Result<bool, DriverError> {
        let awaited = Awaited::Event(event);
        self.device.wait_unless(awaited, site, self.limit, stop)
    }

    /// Blocks this thread until all operations that are in `stream` now have completed.
    ///
    /// # Errors
    /// The errors of the driver, and of a device that does not finish in time.
    pub(super) fn synchronize_stream(
        &self,
        stream: StreamId,
        site: Site,
    ) -> Result<(), DriverError> {
        self.device.wait(Awaited::Stream(stream), site, self.limit)
    }

    /// Returns the device.
    pub(super) fn device_of(&self) -> &'a Device {
        self.device
    }

    /// Returns all events of the lane.
    pub(super) fn events(&self) -> Events {
        lock(self.events).clone()
    }

    /// Creates one more event for the lane. The event takes the time of each record if it is `timed`.
    pub(super) fn new_event(&self, timed: bool) -> Result<EventId, DriverError> {
        let event = self.driver.create_event(timed)?;
        lock(self.events).of(timed).push(event);
        Ok(event)
    }

    /// Returns the span of `region` in device memory.
    pub(super) fn device(&self, region: Region) -> DeviceSpan {
        DeviceSpan {
            memory: self.memory,
            offset: region.offset,
            len: region.len,
        }
    }

    /// Returns the span of `region` in the pinned memory for copies to the device.
    pub(super) fn pinned_in(&self, region: Region) -> PinnedSpan {
        PinnedSpan {
            memory: self.pinned_in,
            offset: region.offset,
            len: region.len,
        }
    }

    /// Returns the span of `region` in the pinned memory for copies from the device.
    pub(super) fn pinned_out(&self, region: Region) -> PinnedSpan {
        PinnedSpan {
            memory: self.pinned_out,
            offset: region.offset,
            len: region.len,
        }
    }

    /// Enqueues a copy between device memory and pinned memory of this lane.
    pub(super) fn copy(&self, stream: StreamId, from: Span, to: Span) -> Result<(), DriverError> {
        // SAFETY: the spans belong to the lane, which synchronises its streams before it frees the memory.
        // `write` and `read` keep the host off the spans meanwhile.
        unsafe { self.driver.copy(stream, from, to) }
    }

    /// Enqueues a copy of the bytes `range` of `slab` to device memory of this lane, for the batches in a group of
    /// buffers. The lane [keeps](Self::kept) the slab until the group's slabs are given back.
    pub(super) fn copy_of_slab(
        &self,
        stream: StreamId,
        (slab, range): (&Arc<PinnedSlab>, Range<usize>),
        to: DeviceSpan,
        group: usize,
    ) -> Result<(), DriverError> {
        let Some(from) = slab.span(range) else {
            return Err(DriverError {
                operation: "copying from a slab".to_string(),
                device: Some(self.driver.device().ordinal),
                fault: Fault::Refused,
                reason: "it has fewer bytes".to_string(),
            });
        };
        if let Some(written) = slab.to_declare() {
            self.driver.host_access(written, Access::Write)?;
        }
        self.kept.keep(group, slab);
        // SAFETY: the lane keeps the slab, and no thread writes a slab that is shared. If the lane cannot tell that the copy
        // is complete, the slab is lost, and its memory is not used again.
        unsafe { (self.driver).copy(stream, Span::Pinned(from), Span::Device(to)) }
    }

    /// Enqueues a fill of a region of device memory with zeros.
    pub(super) fn zero(&self, stream: StreamId, region: Region) -> Result<(), DriverError> {
        self.fill(stream, region, 0)
    }

    /// Enqueues a fill of a region of device memory with `byte`.
    pub(super) fn fill(
        &self,
        stream: StreamId,
        region: Region,
        byte: u8,
    ) -> Result<(), DriverError> {
        // SAFETY: as in `copy`.
        unsafe { self.driver.fill(stream, self.device(region), byte) }
    }

    /// Returns the address of a span of pinned memory that the host is about to write.
    pub(super) fn write(&self, span: PinnedSpan) -> Result<*mut u8, DriverError> {
        self.driver.host_access(span, Access::Write)?;
        // SAFETY: the span is a region of the lane's allocation.
        Ok(unsafe { span.memory.0.as_ptr().add(span.offset) })
    }

    /// Writes `values` to pinned memory, and returns the part of `span` that they fill.
    pub(super) fn write_values<const N: usize>(
        &self,
        mut span: PinnedSpan,
        values: impl ExactSizeIterator<Item = [u8; N]>,
    ) -> Result<PinnedSpan, DriverError> {
        span.len = span.len.min(values.len() * N);
        let to = self.write(span)?;
        for (i, value) in values.take(span.len / N).enumerate() {
            // SAFETY: the bytes lie below `span.len`, in memory that the host may write now.
            unsafe { to.add(i * N).copy_from_nonoverlapping(value.as_ptr(), N) };
        }
        Ok(span)
    }

    /// Fills a span of pinned memory with [`NO_ANSWER`], before an answer of the device is copied there. So no
    /// answer of an earlier batch is left if the copy is lost.
    pub(super) fn clear_answer(&self, span: PinnedSpan) -> Result<(), DriverError> {
        let to = self.write(span)?;
        // SAFETY: `write` returns the address of `span.len` bytes that the host may write now.
        unsafe { to.write_bytes(NO_ANSWER, span.len) };
        Ok(())
    }

    /// Returns the bytes of a span of pinned memory that the device has written.
    pub(super) fn read(&self, span: PinnedSpan) -> Result<&[u8], DriverError> {
        self.driver.host_access(span, Access::Read)?;
        // SAFETY: the span is a region of the lane's allocation. The host has synchronised with the device's
        // writes, which the simulation checks here. The device does not write again before another call,
        // which comes after this borrow, enqueues a write.
        Ok(
            unsafe {
                std::slice::from_raw_parts(span.memory.0.as_ptr().add(span.offset), span.len)
            },
        )
    }
}

//! A lane: everything that one shard in flight needs on a device.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use super::device::Device;
use super::driver::{
    Access, DeviceMemory, DeviceSpan, Driver, DriverError, EventId, Fault, PinnedMemory,
    PinnedSpan, PinnedUse, Site, Span, StreamId,
};
use super::sizing::{Region, Sizing};

/// A lane is given up: everything in its streams completes first.
const GIVE_UP: Site = Site("give up a lane: its streams are empty before its memory is freed");

/// What a lane's allocations hold, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capacity {
    pub(super) device: usize,
    pub(super) pinned_in: usize,
    pub(super) pinned_out: usize,
}

impl Capacity {
    pub(super) fn of(sizing: &Sizing) -> Self {
        Self {
            device: sizing.device,
            pinned_in: sizing.pinned_in,
            pinned_out: sizing.pinned_out,
        }
    }

    pub(super) fn pinned(&self) -> usize {
        self.pinned_in + self.pinned_out
    }

    /// Whether a lane of this capacity has room for one of `other`.
    pub(super) fn holds(&self, other: &Self) -> bool {
        self.device >= other.device
            && self.pinned_in >= other.pinned_in
            && self.pinned_out >= other.pinned_out
    }
}

/// Streams, events, pinned and device memory of one shard in flight.
///
/// Three streams, so that copies in both directions and kernels overlap. Memory is one allocation
/// of each kind; [`Sizing`] divides it. Dropping a lane empties its streams and frees everything,
/// unless the device is quarantined: then all is leaked.
#[derive(Debug)]
pub(super) struct Lane {
    device: Arc<Device>,
    capacity: Capacity,
    memory: Option<DeviceMemory>,
    pinned_in: Option<PinnedMemory>,
    pinned_out: Option<PinnedMemory>,
    /// To the device, on it, and from it.
    streams: Vec<StreamId>,
    /// All of them, whatever they stand for.
    events: RefCell<Vec<EventId>>,
}

impl Lane {
    /// Allocate a lane.
    ///
    /// # Errors
    /// The driver's. What was allocated is freed.
    pub(super) fn new(device: &Arc<Device>, capacity: Capacity) -> Result<Self, DriverError> {
        let entered = device.enter()?;
        let mut lane = Self {
            device: device.clone(),
            capacity,
            memory: None,
            pinned_in: None,
            pinned_out: None,
            streams: Vec::new(),
            events: RefCell::default(),
        };
        let allocated = lane.allocate();
        drop(entered);
        device.watch(allocated)?;
        Ok(lane)
    }

    fn allocate(&mut self) -> Result<(), DriverError> {
        let device = self.device.clone();
        let driver = device.driver();
        self.memory = Some(driver.allocate(self.capacity.device.max(1))?);
        self.pinned_in =
            Some(driver.allocate_pinned(self.capacity.pinned_in.max(1), PinnedUse::ToDevice)?);
        self.pinned_out =
            Some(driver.allocate_pinned(self.capacity.pinned_out.max(1), PinnedUse::FromDevice)?);
        for _ in 0..3 {
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

    /// The lane as whoever has entered the device uses it, with memory that holds nothing.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn start(&self) -> Result<Running<'_>, DriverError> {
        let driver = self.device.driver();
        let &[up, compute, down] = &self.streams[..] else {
            return Err(self.incomplete());
        };
        let (Some(memory), Some(pinned_in), Some(pinned_out)) =
            (self.memory, self.pinned_in, self.pinned_out)
        else {
            return Err(self.incomplete());
        };
        let running = Running {
            driver,
            up,
            compute,
            down,
            events: &self.events,
            memory,
            pinned_in,
            pinned_out,
        };
        let Capacity {
            device: len,
            pinned_in,
            pinned_out,
        } = self.capacity;
        let whole = |len| Region { offset: 0, len };
        driver.discard(Span::Device(running.device(whole(len))))?;
        driver.discard(Span::Pinned(running.pinned_in(whole(pinned_in))))?;
        driver.discard(Span::Pinned(running.pinned_out(whole(pinned_out))))?;
        Ok(running)
    }

    fn incomplete(&self) -> DriverError {
        DriverError {
            operation: "starting a lane".to_string(),
            device: Some(self.device.info().ordinal),
            fault: Fault::Refused,
            reason: "the lane was not allocated completely".to_string(),
        }
    }

    /// Free everything; the first error, after all was tried.
    fn free(&mut self) -> Result<(), DriverError> {
        let driver = self.device.driver();
        let mut first = Ok(());
        let mut keep = |result: Result<(), DriverError>| {
            let result = self.device.watch(result);
            if first.is_ok() {
                first = result;
            }
            // A broken device takes no more calls.
            self.device.unusable().is_none()
        };
        for &stream in &self.streams {
            if !keep(driver.synchronize_stream(stream, GIVE_UP)) {
                return first;
            }
        }
        for event in self.events.take() {
            if !keep(driver.destroy_event(event)) {
                return first;
            }
        }
        for stream in self.streams.drain(..) {
            if !keep(driver.destroy_stream(stream)) {
                return first;
            }
        }
        for pinned in [self.pinned_in.take(), self.pinned_out.take()] {
            let Some(pinned) = pinned else { continue };
            // SAFETY: nothing is in flight, the streams were synchronised; the lane owned it, and
            // nobody has borrowed the lane.
            let freed = unsafe { driver.free_pinned(pinned) };
            if !keep(freed) {
                return first;
            }
        }
        if let Some(memory) = self.memory.take() {
            // SAFETY: as above.
            keep(unsafe { driver.free(memory) });
        }
        first
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let device = self.device.clone();
        if device.unusable().is_some() {
            return;
        }
        let freed = device.enter().and_then(|entered| {
            let freed = self.free();
            drop(entered);
            freed
        });
        if let Err(error) = freed {
            tracing::warn!(%error, "freeing a lane");
        }
    }
}

/// A lane in use, on a thread that has entered its device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running<'a> {
    pub(super) driver: &'a dyn Driver,
    /// The stream of copies to the device.
    pub(super) up: StreamId,
    /// The stream of kernels.
    pub(super) compute: StreamId,
    /// The stream of copies from the device.
    pub(super) down: StreamId,
    events: &'a RefCell<Vec<EventId>>,
    memory: DeviceMemory,
    pinned_in: PinnedMemory,
    pinned_out: PinnedMemory,
}

impl Running<'_> {
    /// The events of the lane.
    pub(super) fn events(&self) -> Vec<EventId> {
        self.events.borrow().clone()
    }

    /// One more event.
    pub(super) fn new_event(&self) -> Result<EventId, DriverError> {
        let event = self.driver.create_event()?;
        self.events.borrow_mut().push(event);
        Ok(event)
    }

    /// Device memory.
    pub(super) fn device(&self, region: Region) -> DeviceSpan {
        DeviceSpan {
            memory: self.memory,
            offset: region.offset,
            len: region.len,
        }
    }

    /// Pinned memory, to the device.
    pub(super) fn pinned_in(&self, region: Region) -> PinnedSpan {
        PinnedSpan {
            memory: self.pinned_in,
            offset: region.offset,
            len: region.len,
        }
    }

    /// Pinned memory, from the device.
    pub(super) fn pinned_out(&self, region: Region) -> PinnedSpan {
        PinnedSpan {
            memory: self.pinned_out,
            offset: region.offset,
            len: region.len,
        }
    }

    /// Copy between device and pinned memory of this lane.
    pub(super) fn copy(&self, stream: StreamId, from: Span, to: Span) -> Result<(), DriverError> {
        // SAFETY: the spans are the lane's, which synchronises its streams before it frees them.
        // That the host keeps off them meanwhile is what `write` and `read` are for.
        unsafe { self.driver.copy(stream, from, to) }
    }

    /// Zero device memory of this lane.
    pub(super) fn zero(&self, stream: StreamId, region: Region) -> Result<(), DriverError> {
        // SAFETY: as in `copy`.
        unsafe { self.driver.fill(stream, self.device(region), 0) }
    }

    /// The address of pinned memory that the host will write.
    pub(super) fn write(&self, span: PinnedSpan) -> Result<*mut u8, DriverError> {
        self.driver.host_access(span, Access::Write)?;
        // SAFETY: the span is a region of the lane's allocation.
        Ok(unsafe { span.memory.0.as_ptr().add(span.offset) })
    }

    /// Write `values` to pinned memory, and return the span that they fill.
    pub(super) fn write_values<const N: usize>(
        &self,
        mut span: PinnedSpan,
        values: impl ExactSizeIterator<Item = [u8; N]>,
    ) -> Result<PinnedSpan, DriverError> {
        span.len = span.len.min(values.len() * N);
        let to = self.write(span)?;
        for (i, value) in values.take(span.len / N).enumerate() {
            // SAFETY: below `span.len`, of memory that the host may write now.
            unsafe { to.add(i * N).copy_from_nonoverlapping(value.as_ptr(), N) };
        }
        Ok(span)
    }

    /// The bytes of pinned memory that the device has written.
    pub(super) fn read(&self, span: PinnedSpan) -> Result<&[u8], DriverError> {
        self.driver.host_access(span, Access::Read)?;
        // SAFETY: the span is a region of the lane's allocation; what the device wrote was
        // synchronised with, which the simulation checks here, and it does not write again before
        // it is told to, which takes another call after this borrow.
        Ok(
            unsafe {
                std::slice::from_raw_parts(span.memory.0.as_ptr().add(span.offset), span.len)
            },
        )
    }
}

impl Region {
    /// The first `len` bytes, and what is behind them.
    pub(super) fn split_at(self, len: usize) -> (Self, Self) {
        (self.part(0..len), self.part(len..self.len))
    }

    /// A part of the region; the part of it that exists, if it ends beyond.
    pub(super) fn part(self, range: Range<usize>) -> Self {
        let start = range.start.min(self.len);
        Self {
            offset: self.offset + start,
            len: range.end.clamp(start, self.len) - start,
        }
    }
}

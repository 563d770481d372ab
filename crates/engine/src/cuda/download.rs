//! Copies bytes that an application has on a device to the host.
//!
//! ```text
//! wait on the device for the application's stream
//! for each piece: copy it to one half of pinned memory
//!                 while the caller takes the piece before from the other half
//! ```

use std::sync::Arc;
use std::time::Duration;

use super::application::{LentMemory, check_not_captured};
use super::device::Device;
use super::driver::{
    Access, DriverError, EventId, Fault, PinnedMemory, PinnedSpan, PinnedUse, Site, Span, StreamId,
};
use super::kernels::spans::sub_span;
use super::lanes::Devices;
use super::waits::{Awaited, WaitLimit};
use crate::contract::EngineError;
use crate::contract::stream::DeviceBytes;

/// The most bytes that are copied at once: half of the pinned memory.
const PIECE: usize = 4 << 20;

/// The refusal of a stream that is being captured.
const CAPTURED: &str = "the stream of the data is being captured into a graph, which a copy to the host would break: append before the capture begins, or after it has ended";

const MADE: Site = Site("record: the application has made the bytes of a download");
const MADE_WAIT: Site = Site("wait: a download for the application's bytes");
const COPIED: Site = Site("record: a piece of a download was copied");
const COPIED_HOST: Site = Site("synchronise: a piece of a download before it is read");
const GIVE_UP: Site = Site("synchronise: a download before its memory is freed");

/// The stream, events and pinned memory for downloads from one device.
#[derive(Debug)]
pub struct Download {
    device: Arc<Device>,
    stream: StreamId,
    /// The event after which the application has made the bytes.
    made: EventId,
    /// The events after which the halves of the pinned memory are written.
    copied: [EventId; 2],
    pinned: PinnedMemory,
    /// The bytes of the application that the device may still read.
    lent: Arc<LentMemory>,
    /// The time after which a wait for the device fails.
    timeout: Duration,
}

impl Devices {
    /// Returns a download from the device with the number `ordinal`, whose waits for the device fail after
    /// `timeout`.
    ///
    /// # Errors
    /// There is no such device, or it failed, or there is no memory. The error has the reason.
    pub fn download(&self, ordinal: usize, timeout: Duration) -> Result<Download, EngineError> {
        let device = self.numbered(ordinal).map_err(EngineError::Device)?;
        let entered = device.enter().map_err(EngineError::Device)?;
        let made = device.watch(Download::allocate(device, timeout));
        drop(entered);
        made.map_err(EngineError::Device)
    }
}

impl Download {
    fn allocate(device: &Arc<Device>, timeout: Duration) -> Result<Self, DriverError> {
        let driver = device.driver();
        let stream = driver.create_stream()?;
        let mut events = Vec::new();
        let made = (0..3)
            .try_for_each(|_| driver.create_event(false).map(|event| events.push(event)))
            .and_then(|()| driver.allocate_pinned(2 * PIECE, PinnedUse::FromDevice));
        match (made, events.as_slice()) {
            (Ok(pinned), &[made, first, second]) => Ok(Self {
                device: device.clone(),
                stream,
                made,
                copied: [first, second],
                pinned,
                lent: LentMemory::new(),
                timeout,
            }),
            (made, _) => {
                for event in events {
                    driver.destroy_event(event)?;
                }
                driver.destroy_stream(stream)?;
                Err(made.err().unwrap_or_else(|| DriverError {
                    operation: "making a copier to the host".to_string(),
                    device: Some(device.info().ordinal),
                    fault: Fault::Refused,
                    reason: "events are missing".to_string(),
                }))
            }
        }
    }

    /// Calls `take` with the bytes, piece by piece, in order. When this returns, the device has read all bytes
    /// that it will read, unless the error says that the device is lost.
    ///
    /// # Errors
    /// The error of `take`, or of the device by `failed`. The later pieces are not taken.
    ///
    /// # Safety
    /// The requirements of [`DeviceBytes`].
    pub unsafe fn read<E>(
        &self,
        bytes: &DeviceBytes,
        failed: impl Fn(EngineError) -> E,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if bytes.len == 0 {
            return Ok(());
        }
        let of_device = |error| failed(EngineError::Device(error));
        let entered = self.device.enter().map_err(of_device)?;
        // SAFETY: this function has the same requirements, which its caller keeps.
        unsafe { check_not_captured(&self.device, bytes.stream, CAPTURED) }.map_err(&failed)?;
        let mut result = Ok(());
        let starts: Vec<usize> = (0..bytes.len).step_by(PIECE).collect();
        // SAFETY: as above.
        let mut copied = unsafe { self.begin(bytes, &starts) };
        for number in 0..starts.len() {
            let piece = copied.and_then(|()| self.piece(bytes, &starts, number));
            let piece = match self.device.watch(piece) {
                Ok(piece) => piece,
                Err(error) => {
                    result = Err(of_device(error));
                    break;
                }
            };
            // SAFETY: the piece is in the pinned memory, was written by the copy that has ended, and the next
            // copy to this half begins after `take` has returned.
            let piece = unsafe {
                let start = self.pinned.0.as_ptr().add(piece.offset);
                std::slice::from_raw_parts(start, piece.len)
            };
            if let Err(error) = take(piece) {
                result = Err(error);
                break;
            }
            copied = self.copy(bytes, &starts, number + 2);
        }
        if result.is_err() {
            // The device may still read the application's bytes.
            let (device, all) = (&self.device, Awaited::Stream(self.stream));
            let drained = device.wait(all, GIVE_UP, self.limit());
            if let Err(error) = self.device.watch(drained) {
                tracing::warn!(%error, "a copy of an application's bytes to the host did not end");
                drop(entered);
                return result;
            }
        }
        self.lent.drained();
        drop(entered);
        result
    }

    /// Lets the stream wait for the application, and enqueues the first two pieces.
    ///
    /// # Safety
    /// The requirements of [`DeviceBytes`].
    unsafe fn begin(&self, bytes: &DeviceBytes, starts: &[usize]) -> Result<(), DriverError> {
        let driver = self.device.driver();
        // The event of an earlier read is free again, and is this one.
        let _ = self.lent.free_event();
        // SAFETY: this function has the same requirements, which its caller keeps.
        unsafe { driver.record_in(self.made, bytes.stream, MADE)? };
        let lent = bytes.pointer..bytes.pointer.saturating_add(bytes.len as u64);
        self.lent.lend(lent, self.made);
        driver.wait(self.stream, self.made, MADE_WAIT)?;
        self.copy(bytes, starts, 0)?;
        self.copy(bytes, starts, 1)
    }

    /// Enqueues the copy of piece `number`, if there is such a piece.
    fn copy(
        &self,
        bytes: &DeviceBytes,
        starts: &[usize],
        number: usize,
    ) -> Result<(), DriverError> {
        let Some(&start) = starts.get(number) else {
            return Ok(());
        };
        let driver = self.device.driver();
        let to = self.half(bytes, start, number);
        let given = driver.adopt(bytes.pointer, bytes.len)?;
        let from = sub_span(given, start..start + to.len);
        // SAFETY: the pinned memory lives until the stream is drained, and nothing else uses this half: the
        // piece that was in it was taken. The application keeps its bytes until `read` has returned.
        unsafe { driver.copy(self.stream, Span::Device(from), Span::Pinned(to))? };
        driver.record(self.copied[number % 2], self.stream, COPIED)
    }

    /// Waits for piece `number`, and returns where it lies.
    fn piece(
        &self,
        bytes: &DeviceBytes,
        starts: &[usize],
        number: usize,
    ) -> Result<PinnedSpan, DriverError> {
        self.device.wait(
            Awaited::Event(self.copied[number % 2]),
            COPIED_HOST,
            self.limit(),
        )?;
        let span = self.half(bytes, starts[number], number);
        self.device.driver().host_access(span, Access::Read)?;
        Ok(span)
    }

    fn limit(&self) -> WaitLimit<'_> {
        WaitLimit {
            time: self.timeout,
            lent: Some(&self.lent),
        }
    }

    /// Returns the pinned memory for the piece `number`, which begins at the byte `start`.
    fn half(&self, bytes: &DeviceBytes, start: usize, number: usize) -> PinnedSpan {
        PinnedSpan {
            memory: self.pinned,
            offset: number % 2 * PIECE,
            len: (bytes.len - start).min(PIECE),
        }
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        // In a forked child, or on a broken device, everything is leaked on purpose.
        let Ok(entered) = self.device.enter() else {
            return;
        };
        let driver = self.device.driver();
        let (device, all) = (&self.device, Awaited::Stream(self.stream));
        let drained = device.wait(all, GIVE_UP, self.limit());
        if self.device.watch(drained).is_ok() {
            self.lent.close();
            // SAFETY: the stream is empty, and nothing else uses the memory.
            let freed = unsafe { driver.free_pinned(self.pinned) };
            let [first, second] = self.copied;
            let events = [self.made, first, second].map(|event| driver.destroy_event(event));
            let stream = driver.destroy_stream(self.stream);
            for result in events.into_iter().chain([stream, freed]) {
                if let Err(error) = self.device.watch(result) {
                    tracing::warn!(%error, "freeing the memory of a copy to the host");
                }
            }
        }
        drop(entered);
    }
}

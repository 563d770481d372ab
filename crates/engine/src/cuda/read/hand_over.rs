//! Elements for memory of an application, behind the work in one of its streams.
//!
//! ```text
//! our lanes             subchunks -> a buffer of ours            the host waits for all of it
//! their stream          what they have enqueued -> copies from the buffer -> what they enqueue later
//! ```
//!
//! So no lane ever waits for the application, and no place is written before all elements of its buffer are right. The
//! buffer is spare memory as soon as the copies are complete. The call waits for the application's streams only if too
//! many bytes are on their way there.
//!
//! | edge | producer | consumer | guards |
//! |---|---|---|---|
//! | [`HANDED_OVER`] | copies (their stream) | the next user of the buffer | the elements in the buffer |

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::CudaReads;
use super::memory::{CAPTURED, DeviceBuffer, record_new};
use crate::contract::{DeviceArray, EngineError};
use crate::cuda::application::{LentMemory, check_not_captured};
use crate::cuda::device::Device;
use crate::cuda::driver::{DriverError, EventId, MemoryAt, Site, Span};
use crate::cuda::kernels::spans::sub_span;
use crate::cuda::rows_box::{RowsBox, RowsCopy};
use crate::cuda::waits::{Awaited, WaitLimit};

const HANDED_OVER: Site = Site("record: elements were copied to an application");
const HANDED_OVER_HOST: Site = Site("synchronise: a buffer for an application");

/// The way of elements to memory of an application, in its streams.
#[derive(Debug)]
pub struct HandOver<'a> {
    reads: &'a CudaReads,
    device: Arc<Device>,
    /// The most bytes that are on their way at a time, unless one buffer has more.
    most: usize,
    /// The buffers whose elements are on their way, the oldest first, each with the event after which they are there.
    on_their_way: VecDeque<(DeviceBuffer, EventId)>,
    /// Whether copies were enqueued whose end is not known, because a record or a wait has failed.
    is_lost: bool,
}

impl CudaReads {
    /// Checks that the `len` bytes from the address `pointer` on are memory of the device.
    ///
    /// # Errors
    /// The reason why they are not.
    pub fn check_memory(&self, pointer: u64, len: usize) -> Result<(), EngineError> {
        let device = self.engine.devices.numbered(self.device)?;
        let entered = device.enter()?;
        let found = device.watch(device.driver().memory_at(pointer));
        drop(entered);
        let wrong = |why: String| {
            Err(EngineError::Unsuitable(format!(
                "{len} bytes at {pointer:#x} are not memory of CUDA device {}: {why}",
                self.device
            )))
        };
        match found {
            Err(error) if device.unusable().is_some() => Err(error.into()),
            Err(error) => wrong(error.reason),
            Ok(MemoryAt { device, .. }) if device != self.device => {
                wrong(format!("they belong to device {device}"))
            }
            Ok(MemoryAt { bytes, .. }) => {
                let room = bytes.end.saturating_sub(pointer);
                if room < len as u64 {
                    return wrong(format!("the allocation there has {room} bytes left"));
                }
                Ok(())
            }
        }
    }

    /// Begins to hand elements over in the application's `streams`. At most `most` bytes are on their way at a time,
    /// unless one buffer has more.
    ///
    /// # Errors
    /// A stream is being captured into a graph, or the device is not usable.
    ///
    /// # Safety
    /// The streams belong to the device's primary context, and are not destroyed during the call.
    pub unsafe fn hand_over(
        &self,
        streams: impl IntoIterator<Item = u64>,
        most: usize,
    ) -> Result<HandOver<'_>, EngineError> {
        let device = self.engine.devices.numbered(self.device)?.clone();
        let entered = device.enter()?;
        let mut each = streams.into_iter();
        let checked = each.try_for_each(|stream| {
            // SAFETY: this function has the same requirements, which its caller keeps.
            unsafe { check_not_captured(&device, stream, CAPTURED) }
        });
        drop(entered);
        checked?;
        Ok(HandOver {
            reads: self,
            device,
            most,
            on_their_way: VecDeque::new(),
            is_lost: false,
        })
    }
}

impl HandOver<'_> {
    /// Returns a buffer of `len` bytes, with any content.
    ///
    /// # Errors
    /// The device is not usable, or has too little memory.
    pub fn buffer(&mut self, len: usize) -> Result<DeviceBuffer, EngineError> {
        let bytes = |this: &Self| -> usize {
            let buffers = this.on_their_way.iter();
            buffers.map(|(buffer, _)| buffer.len()).sum()
        };
        // The application's work may take any time. The copy is part of it.
        let never = || false;
        while !self.on_their_way.is_empty() && bytes(self).saturating_add(len) > self.most {
            self.wait_for_oldest(&never)?;
        }
        loop {
            match self.reads.allocate(len) {
                // The memory of an older buffer may do, or may be freed.
                Err(error) if is_out_of_memory(&error) && !self.on_their_way.is_empty() => {
                    self.wait_for_oldest(&never)?;
                }
                allocated => return allocated,
            }
        }
    }

    /// Waits until all elements that were handed over are in their places, after an error. Waits for the limit of one
    /// wait at most. Returns whether they are there; if not, the device may still write the places.
    pub fn settle(&mut self) -> bool {
        let (begin, limit) = (Instant::now(), self.reads.engine.limits.timeout);
        let is_late = || begin.elapsed() >= limit;
        while !self.is_lost && !self.on_their_way.is_empty() {
            // An error makes the copy a lost one.
            if let Ok(false) = self.wait_for_oldest(&is_late) {
                return false;
            }
        }
        !self.is_lost
    }

    /// Waits until the oldest buffer was copied in the application's stream, or until `stop` returns true. Returns
    /// whether it was copied.
    fn wait_for_oldest(&mut self, stop: &dyn Fn() -> bool) -> Result<bool, EngineError> {
        let Some((_, event)) = self.on_their_way.front() else {
            return Ok(true);
        };
        let event = *event;
        let lent = LentMemory::new();
        lent.lend(0..0, event);
        let limit = WaitLimit {
            time: self.reads.engine.limits.timeout,
            lent: Some(&lent),
        };
        let device = &self.device;
        let waited = device.enter().and_then(|entered| {
            let waited = device.wait_unless(Awaited::Event(event), HANDED_OVER_HOST, limit, stop);
            drop(entered);
            waited
        });
        if let Ok(false) = waited {
            return Ok(false);
        }
        self.is_lost |= waited.is_err();
        if let Some((buffer, _)) = self.on_their_way.pop_front() {
            // The buffer is the next one, unless the wait has failed.
            buffer.spare(event);
        }
        Ok(waited?)
    }

    /// Copies boxes of elements from `buffer` to the application's memory, in its `stream`. Each box has
    /// the offset at which it begins in the buffer, its shape and its strides there, in bytes, and its place.
    ///
    /// # Errors
    /// The errors of the driver. Some of the boxes may have been copied.
    ///
    /// # Safety
    /// The stream belongs to the device's primary context, and is not destroyed during the call. The places are memory
    /// of the device, in which all elements of the boxes lie. The application does not free them
    /// before its stream is through, and nothing else uses them but work that its stream orders.
    pub unsafe fn copy<'p>(
        &mut self,
        stream: u64,
        buffer: DeviceBuffer,
        boxes: impl IntoIterator<Item = (usize, &'p [usize], &'p [usize], &'p DeviceArray)>,
    ) -> Result<(), EngineError> {
        let device = self.device.clone();
        let entered = device.enter()?;
        let size = self.reads.grid.element_size();
        // SAFETY: the caller keeps the requirements of this function.
        let checked = unsafe { check_not_captured(&device, stream, CAPTURED) };
        if let Err(error) = checked {
            drop(entered);
            return Err(error);
        }
        let was_lost = self.is_lost;
        let mut copied = Ok(());
        for (from, shape, strides, to) in boxes {
            let rows = rows(from, (shape, size), strides, &to.strides);
            // SAFETY: the caller keeps the requirements of this function.
            copied = unsafe { self.copy_box(stream, &buffer, &rows, to) };
            if copied.is_err() {
                break;
            }
        }
        // SAFETY: the caller keeps the requirements of this function.
        let event = copied.and_then(|()| unsafe { record_new(&device, stream, HANDED_OVER) });
        drop(entered);
        // After an error, the buffer is dropped, and freed when everything on the device is complete.
        self.on_their_way.push_back((buffer, event?));
        // The event tells when they are complete.
        self.is_lost = was_lost;
        Ok(())
    }

    /// Enqueues the copies of one box, which are lost until an event is recorded behind them.
    ///
    /// # Safety
    /// The requirements of [`copy`](Self::copy).
    unsafe fn copy_box(
        &mut self,
        stream: u64,
        buffer: &DeviceBuffer,
        rows: &RowsBox,
        to: &DeviceArray,
    ) -> Result<(), DriverError> {
        let device = self.device.clone();
        let driver = device.driver();
        let source = driver.adopt(buffer.pointer(), buffer.len())?;
        let target = driver.adopt(to.pointer, to.len)?;
        for RowsCopy { shape, from, to } in rows.copies(driver.device().largest_pitch) {
            let span = |span, bytes| Span::Device(sub_span(span, bytes));
            let from = from.in_span(span(source, from.bytes(shape)));
            let to = to.in_span(span(target, to.bytes(shape)));
            // SAFETY: the buffer lives until the event behind these copies has happened. The caller vouches for the
            // place and the stream.
            let copied = unsafe { driver.copy_rows_in(stream, shape, from, to) };
            device.watch(copied)?;
            self.is_lost = true;
        }
        Ok(())
    }
}

impl Drop for HandOver<'_> {
    fn drop(&mut self) {
        for (buffer, event) in self.on_their_way.drain(..) {
            buffer.spare(event);
        }
    }
}

fn is_out_of_memory(error: &EngineError) -> bool {
    match error {
        EngineError::Device(error) => error.is_out_of_memory(),
        EngineError::OutOfMemory { .. } => true,
        _ => false,
    }
}

/// Returns the rows of a box of elements of `size` bytes, from the offset `from` of a buffer to the begin of a place.
fn rows(
    from: usize,
    (shape, size): (&[usize], usize),
    from_strides: &[usize],
    to_strides: &[usize],
) -> RowsBox {
    let strides = std::iter::zip(from_strides, to_strides);
    let mut axes: Vec<(usize, (&usize, &usize))> =
        std::iter::zip(shape.iter().copied(), strides).collect();
    // The fastest axis comes last, so that few copies suffice.
    axes.sort_by_key(|(_, (_, to))| std::cmp::Reverse(**to));
    let bytes = (size, (&1, &1));
    let axes = || axes.iter().chain([&bytes]);
    RowsBox {
        from,
        to: 0,
        shape: axes().map(|(extent, _)| *extent).collect(),
        from_strides: axes().map(|(_, (from, _))| **from).collect(),
        to_strides: axes().map(|(_, (_, to))| **to).collect(),
    }
}

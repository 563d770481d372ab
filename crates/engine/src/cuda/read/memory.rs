//! Device memory that an output owns, and that any thread may give back: see [`freeing`](crate::cuda::freeing).

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::CudaReads;
use crate::contract::EngineError;
use crate::cuda::application::check_not_captured;
use crate::cuda::device::Device;
use crate::cuda::driver::{DeviceMemory, DriverError, EventId, Site};
use crate::cuda::freeing::retire;
use crate::cuda::lanes::Devices;
use crate::cuda::retired::{RetiredMemory, SpareMemory};

/// The refusal of a stream that is being captured.
pub(super) const CAPTURED: &str = "the stream is being captured into a graph, which would take this work along: call this before the capture begins, or after it has ended";

/// The record of the event after which an application uses memory no more.
const RELEASED: Site = Site("record: the application has used the memory");

/// Memory of a device, which is freed some time after it is dropped.
pub struct DeviceBuffer {
    devices: Arc<Devices>,
    device: Arc<Device>,
    /// The memory; `None` after it was given back.
    memory: Option<DeviceMemory>,
    len: usize,
    /// The number of bytes that are allocated, of which there may be more than `len`.
    allocated: usize,
    /// The time for which spare memory is kept; `None` for ever.
    idle: Option<Duration>,
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device();
        write!(f, "{} bytes of CUDA device {device}", self.len)
    }
}

impl CudaReads {
    /// Returns `len` bytes of the device's memory, with any content. If there is too little memory, frees the idle
    /// lanes and the spare memory, waits a while for memory that was dropped, and tries again.
    ///
    /// # Errors
    /// The device is not usable, or has too little memory.
    pub fn allocate(&self, len: usize) -> Result<DeviceBuffer, EngineError> {
        let devices = &self.engine.devices;
        let device = devices.numbered(self.device)?.clone();
        let (memory, allocated) = match spare_or_new(&device, len) {
            Err(error) if error.is_out_of_memory() => {
                devices.release_idle();
                devices.free_spare(&device);
                spare_or_new(&device, len)
            }
            allocated => allocated,
        }?;
        Ok(DeviceBuffer {
            devices: devices.clone(),
            device,
            memory: Some(memory),
            len,
            allocated,
            idle: self.engine.limits.idle,
        })
    }
}

/// Returns memory of at least `len` bytes, and its size.
fn spare_or_new(device: &Arc<Device>, len: usize) -> Result<(DeviceMemory, usize), DriverError> {
    let (driver, len) = (device.driver(), len.max(1));
    let entered = device.enter()?;
    let has_happened = |event| driver.query_event(event).unwrap_or(false);
    let memory = match device.retired().reuse(len, has_happened) {
        Some(spare) => driver
            .destroy_event(spare.after)
            .map(|()| (spare.memory, spare.len))
            .inspect_err(|_| {
                let (memory, event) = (spare.memory, None);
                retire(device, [RetiredMemory { memory, event }]);
            }),
        None => driver.allocate(len).map(|memory| (memory, len)),
    };
    let memory = device.watch(memory);
    drop(entered);
    memory
}

impl DeviceBuffer {
    /// Returns the number of the device.
    pub fn device(&self) -> usize {
        self.device.info().ordinal
    }

    /// Returns the address of the first byte.
    pub fn pointer(&self) -> u64 {
        self.memory.map_or(0, |memory| memory.0)
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the memory back. It is used again as soon as everything is complete that is in the application's
    /// `stream` now.
    ///
    /// # Errors
    /// The stream is being captured into a graph, or the driver refuses it. The memory is then dropped.
    ///
    /// # Safety
    /// The stream belongs to the device's primary context, and is not destroyed during the call. Everything that uses
    /// the memory is complete, or in this stream now, or in streams for which this stream waits.
    pub unsafe fn release(self, stream: u64) -> Result<(), EngineError> {
        let device = self.device.clone();
        let entered = device.enter()?;
        // SAFETY: this function has the same requirements, which its caller keeps.
        let after = unsafe {
            check_not_captured(&device, stream, CAPTURED)
                .and_then(|()| Ok(record_new(&device, stream, RELEASED)?))
        };
        drop(entered);
        self.spare(after?);
        Ok(())
    }

    /// Keeps the memory as spare memory that nothing uses after `event`. The event is destroyed with it.
    pub(super) fn spare(mut self, after: EventId) {
        let until = self.idle.and_then(|idle| Instant::now().checked_add(idle));
        if let Some(memory) = self.memory.take() {
            let len = self.allocated;
            let spare = SpareMemory {
                memory,
                len,
                after,
                until,
            };
            self.devices.keep_spare(&self.device, spare);
        }
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // A forked child, and a process that ends, free nothing; a device in quarantine is not called any more.
        if let Some(memory) = self.memory.take()
            && self.device.unusable().is_none()
        {
            let event = None;
            retire(&self.device, [RetiredMemory { memory, event }]);
        }
    }
}

/// Records a new event in the application's `stream`. The device's context is current on this thread.
///
/// # Safety
/// The requirements of [`check_not_captured`](crate::cuda::application::check_not_captured).
pub(super) unsafe fn record_new(
    device: &Device,
    stream: u64,
    site: Site,
) -> Result<EventId, DriverError> {
    let driver = device.driver();
    let event = device.watch(driver.create_event(false))?;
    // SAFETY: this function has the same requirements, which its caller keeps.
    let recorded = device.watch(unsafe { driver.record_in(event, stream, site) });
    if recorded.is_err() && device.unusable().is_none() {
        // The first error is the one to report.
        let _ = device.watch(driver.destroy_event(event));
    }
    recorded.map(|()| event)
}

//! Device memory that an output owns, and that any thread may give back.
//!
//! The owner may drop the memory while kernels of an application still use it, on any thread, in any context, after
//! the handlers of the process's end, and in a forked child. So dropping calls no function of the driver and waits
//! for nothing. A thread frees the memory after everything on the device is complete that was enqueued before.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::cuda::device::Device;
use crate::cuda::driver::{DeviceMemory, DriverError};
use crate::cuda::lanes::Devices;

/// The longest wait for memory that was dropped, if a device has too little.
const FREED: Duration = Duration::from_secs(2);

/// Memory of a device, which is freed some time after it is dropped.
pub struct DeviceBuffer {
    device: Arc<Device>,
    memory: DeviceMemory,
    len: usize,
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device();
        write!(f, "{} bytes of CUDA device {device}", self.len)
    }
}

impl DeviceBuffer {
    /// Allocates `len` bytes of the device with the number `ordinal`. If there is too little memory, frees the idle
    /// lanes, waits a while for memory that was dropped, and tries again.
    pub(super) fn new(devices: &Devices, ordinal: usize, len: usize) -> Result<Self, DriverError> {
        let device = devices.numbered(ordinal)?.clone();
        let allocate = || {
            let entered = device.enter()?;
            let memory = device.watch(device.driver().allocate(len.max(1)));
            drop(entered);
            memory
        };
        let memory = match allocate() {
            Err(error) if error.is_out_of_memory() => {
                devices.release_idle();
                device.retired().wait(FREED);
                allocate()
            }
            allocated => allocated,
        }?;
        Ok(Self {
            device,
            memory,
            len,
        })
    }

    /// Returns the number of the device.
    pub fn device(&self) -> usize {
        self.device.info().ordinal
    }

    /// Returns the address of the first byte.
    pub fn pointer(&self) -> u64 {
        self.memory.0
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // A forked child, and a process that ends, free nothing; a device in quarantine is not called any more.
        if self.device.unusable().is_none() {
            retire(&self.device, self.memory);
        }
    }
}

/// Lets a thread free `memory`.
fn retire(device: &Arc<Device>, memory: DeviceMemory) {
    device.retired().add(memory, || {
        let device = device.clone();
        let thread = std::thread::Builder::new().name("zarrs_cuda freeing".to_string());
        thread.spawn(move || free_retired(&device)).is_ok()
    });
}

/// Frees the retired memory of a device, until there is none. After an error, the rest waits for the next drop.
fn free_retired(device: &Device) {
    while let Some(mut memory) = device.retired().take() {
        let freed = device.enter().and_then(|entered| {
            let freed = free_all(device, &mut memory);
            drop(entered);
            freed
        });
        if let Err(error) = freed {
            tracing::warn!(%error, "freeing memory of a device");
            device.retired().give_back(memory);
            return;
        }
    }
}

/// Frees `memory`, from which it removes each piece.
fn free_all(device: &Device, memory: &mut Vec<DeviceMemory>) -> Result<(), DriverError> {
    let driver = device.driver();
    device.watch(driver.synchronize_context())?;
    while let Some(piece) = memory.pop() {
        device.check_usable()?;
        // SAFETY: the owner has dropped the memory before the synchronisation began. The owner's contract is that
        // everything which uses the memory was enqueued by then, and it is complete now.
        device.watch(unsafe { driver.free(piece) })?;
    }
    Ok(())
}

//! Frees the memory of a device that its owners do not use any more.
//!
//! An owner drops memory on any thread, in any context, after the handlers of the process's end, and in a forked
//! child, while kernels of an application are queued that use the memory. So a drop calls no function of the driver
//! and waits for nothing. A thread frees the memory after everything on the device is complete that was enqueued before.

use std::sync::Arc;

use super::device::Device;
use super::driver::DriverError;
use super::retired::RetiredMemory;

/// Lets a thread free `memory`.
pub(super) fn retire(device: &Arc<Device>, memory: impl IntoIterator<Item = RetiredMemory>) {
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
fn free_all(device: &Device, memory: &mut Vec<RetiredMemory>) -> Result<(), DriverError> {
    let driver = device.driver();
    device.watch(driver.synchronize_context())?;
    while let Some(RetiredMemory { memory, event }) = memory.pop() {
        device.check_usable()?;
        // SAFETY: the owner has dropped the memory before the synchronisation began. The owner's contract is that
        // everything which uses the memory was enqueued by then, and it is complete now.
        device.watch(unsafe { driver.free(memory) })?;
        if let Some(event) = event {
            device.watch(driver.destroy_event(event))?;
        }
    }
    Ok(())
}

//! The end of the use of all devices, before the process ends.
//!
//! The CUDA driver shuts down when the process ends. A thread that is in a function of the driver then, or
//! that calls one afterwards, may crash the process or block it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Devices;
use crate::cuda::driver::{DriverError, Fault};
use crate::cuda::uses::Uses;

/// The pause between two looks whether devices are still in use.
const PAUSE: Duration = Duration::from_millis(1);

/// Returns the error for work that a device would begin although the process is about to end.
pub(in crate::cuda) fn shut_down_error() -> DriverError {
    DriverError {
        operation: "choosing a CUDA device".to_string(),
        device: None,
        fault: Fault::Unavailable,
        reason: "the devices were shut down, because the process is about to end".to_string(),
    }
}

impl Devices {
    /// Returns an error if the devices are being shut down, and begin no new work.
    pub(in crate::cuda) fn check_open(&self) -> Result<(), DriverError> {
        if self.shut_down.load(Ordering::SeqCst) {
            return Err(shut_down_error());
        }
        Ok(())
    }

    /// Ends the use of all devices: they begin no new work from now on. Waits at most `time` for lanes in
    /// use, and frees the idle lanes. The rest is leaked. In a forked child, does nothing.
    pub fn shut_down(&self, time: Duration) {
        if self.process.forked() {
            return;
        }
        let begin = Instant::now();
        self.shut_down.store(true, Ordering::SeqCst);
        // A thread that waits for a lane has either seen the change, or is waiting now.
        drop(self.lock());
        self.changed.notify_all();
        self.free_idle_elsewhere();
        let wait_until = |done: &dyn Fn() -> bool| {
            while !done() && begin.elapsed() < time {
                std::thread::sleep(PAUSE.min(time));
            }
        };
        wait_until(&|| self.uses.none() && self.all_freed());
        for device in &self.devices {
            device.end();
        }
        // A thread may have begun a use before the end of the device.
        wait_until(&|| self.uses.none());
    }

    /// Frees the idle lanes and slabs on a thread of its own, because a function of the driver may block. Without a
    /// thread, the lanes are leaked. Spare memory is leaked, because freeing it waits for the application.
    fn free_idle_elsewhere(&self) {
        let Some(devices) = self.this.upgrade() else {
            return;
        };
        // The thread is waited for.
        let freeing = Uses::begin(&self.uses);
        let freeing = std::thread::Builder::new()
            .name("zarrs_cuda shut down".to_string())
            .spawn(move || {
                devices.release_idle_lanes();
                drop(freeing);
            });
        if let Err(error) = freeing {
            tracing::debug!(%error, "no thread to free idle lanes");
        }
    }

    /// Returns whether the memory of all lanes of the pool was freed, except for memory that is leaked.
    fn all_freed(&self) -> bool {
        self.lock()
            .iter()
            .all(|of_device| of_device.used == of_device.leaked)
    }
}

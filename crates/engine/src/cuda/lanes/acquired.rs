//! A lane in use.

use std::time::{Duration, Instant};

use super::Devices;
use super::pool::IdleLane;
use crate::cuda::driver::{DriverError, Fault};
use crate::cuda::lane::Lane;

/// A lane in use. On drop, the lane is returned to the pool if it is [reusable](Self::reusable) and the
/// devices are not shut down. Otherwise it is freed.
#[derive(Debug)]
pub(in crate::cuda) struct AcquiredLane<'a> {
    pub(super) devices: &'a Devices,
    pub(super) index: usize,
    pub(super) lane: Option<Lane>,
    pub(super) reusable: bool,
    /// The time that the lane may be idle in the pool before it is freed; `None` for ever.
    pub(super) idle: Option<Duration>,
}

impl AcquiredLane<'_> {
    pub(in crate::cuda) fn lane(&mut self) -> Result<&mut Lane, DriverError> {
        self.lane.as_mut().ok_or(DriverError {
            operation: "using a lane".to_string(),
            device: Some(self.devices.devices[self.index].info().ordinal),
            fault: Fault::Refused,
            reason: "it was returned already".to_string(),
        })
    }

    /// Marks the lane as reusable, because every operation in it has completed.
    pub(in crate::cuda) fn reusable(&mut self) {
        self.reusable = true;
    }
}

impl Drop for AcquiredLane<'_> {
    fn drop(&mut self) {
        let Some(lane) = self.lane.take() else { return };
        let open = self.devices.check_open().is_ok();
        if self.reusable && open && lane.device().unusable().is_none() {
            let mut state = self.devices.lock();
            let of_device = &mut state[self.index];
            of_device.active -= 1;
            let until = self.idle.and_then(|idle| Instant::now().checked_add(idle));
            of_device.idle.push(IdleLane { lane, until });
            if let Some(until) = until {
                self.devices.call_janitor(until);
            }
        } else {
            self.devices.free(vec![(self.index, lane)]);
            self.devices.lock()[self.index].active -= 1;
        }
        self.devices.changed.notify_all();
    }
}

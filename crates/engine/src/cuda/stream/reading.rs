//! A reduction that reads the slices of another stream, and what waits for it.

use std::sync::Arc;

use super::shared::StreamLane;
use crate::cuda::driver::{DriverError, EventId, Fault, Site};
use crate::cuda::lane::Running;

/// A reduction has read the slices of the level above.
const REDUCED: Site = Site("record: slices of the level above were read by a reduction");
const REDUCED_WAIT: Site = Site("wait: the answer above for the reduction that reads its slices");
const REDUCED_HOST: Site = Site("synchronise: a reduction before its slices are given back");

/// A reduction that reads the slices of an input.
#[derive(Debug)]
pub(super) struct Reading {
    /// The stream below.
    shared: Arc<StreamLane>,
    event: EventId,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.shared.give_reusable(self.event);
    }
}

impl Reading {
    /// Records everything that is now in the stream `up` of the lane of `shared`, which is entered.
    pub(super) fn record(shared: &Arc<StreamLane>, lane: Running<'_>) -> Result<Self, DriverError> {
        let reading = Self {
            event: shared.take_reusable(lane)?,
            shared: shared.clone(),
        };
        lane.driver.record(reading.event, lane.up, REDUCED)?;
        Ok(reading)
    }

    /// Lets the answer of the batch above wait for the reduction. Then its input is not used again
    /// before.
    pub(super) fn order(&self, lane: Running<'_>) -> Result<(), DriverError> {
        lane.driver.wait(lane.answers, self.event, REDUCED_WAIT)
    }

    /// Blocks until the reduction has read its slices.
    ///
    /// # Errors
    /// Nobody knows whether it has.
    pub(super) fn finish(&self) -> Result<(), DriverError> {
        let device = self.shared.device();
        let wait = || {
            let entered = device.enter()?;
            let done = device.driver().synchronize(self.event, REDUCED_HOST);
            drop(entered);
            device.watch(done)
        };
        // Nothing of a broken device is used again. Try a second time: a fault may be transient.
        match wait().or_else(|_| wait()) {
            Err(error) if error.fault != Fault::Sticky => Err(error),
            _ => Ok(()),
        }
    }
}

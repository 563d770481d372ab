//! A reduction that reads the slices of another stream, and the operations that wait for it.

use std::sync::Arc;

use super::shared::StreamLane;
use crate::cuda::driver::{DriverError, EventId, Fault, Site};
use crate::cuda::lane::Running;

/// The record of the event after which a reduction has read the slices of the level above.
const REDUCED: Site = Site("record: slices of the level above were read by a reduction");
const REDUCED_WAIT: Site = Site("wait: the answer above for the reduction that reads its slices");
const REDUCED_HOST: Site = Site("synchronise: a reduction before its slices are given back");

/// A reduction that reads the slices of an input of the level above.
#[derive(Debug)]
pub(super) struct Reading {
    /// The stream of the level below, whose lane runs the reduction.
    shared: Arc<StreamLane>,
    event: EventId,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.shared.give_reusable(self.event);
    }
}

impl Reading {
    /// Records an event behind everything that is now in the stream `up` of the lane of `shared`. The
    /// device's context is current on this thread.
    pub(super) fn record(shared: &Arc<StreamLane>, lane: Running<'_>) -> Result<Self, DriverError> {
        let reading = Self {
            event: shared.take_reusable(lane)?,
            shared: shared.clone(),
        };
        lane.driver.record(reading.event, lane.up, REDUCED)?;
        Ok(reading)
    }

    /// Lets the answer of the batch above wait for the reduction. So the input of that batch is not used
    /// again before the reduction has read it.
    pub(super) fn order(&self, lane: Running<'_>) -> Result<(), DriverError> {
        lane.driver.wait(lane.answers, self.event, REDUCED_WAIT)
    }

    /// Blocks until the reduction has read its slices.
    ///
    /// # Errors
    /// It is unknown whether the reduction has read the slices.
    pub(super) fn finish(&self) -> Result<(), DriverError> {
        let wait = || {
            let (entered, lane) = self.shared.enter_lost()?;
            let done = lane.synchronize(self.event, REDUCED_HOST);
            drop(entered);
            self.shared.device().watch(done)
        };
        // The memory of a broken device is never used again, so this is no error. Try a second time: a fault
        // may be transient.
        match wait().or_else(|_| wait()) {
            Err(error) if error.fault != Fault::Sticky => Err(error),
            _ => Ok(()),
        }
    }
}

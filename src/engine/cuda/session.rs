//! A session: a lane in use, for one shard or one stream, with its buffers and its free events.

use std::cell::RefCell;
use std::fmt::Display;

use super::copiers::{Copiers, Copy};
use super::counters::{Counters, TimedStage};
use super::driver::{DriverError, EventId, Fault, Site, StreamId};
use super::lane::Running;
use super::sizing::{BatchRegions, Sizing};
use crate::engine::Job;
use crate::layout::{Batch, Lift, LiftBatch, LiftSlab, Slab, SubchunkGrid};

/// The byte that fills sizes and statuses before they are written: no valid size, and no success.
pub(super) const NO_ANSWER: u8 = 0xff;

/// The begin and the end of a stage, for the metrics alone.
const STAGE_BEGIN: Site = Site("record: a stage begins, for the metrics");
pub(super) const STAGE_END: Site = Site("record: a stage ends, for the metrics");

/// A stage whose time is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    stage: TimedStage,
    pub(super) begin: EventId,
    pub(super) end: EventId,
}

/// The events of a lane that are free at present.
#[derive(Debug)]
pub struct FreeEvents<'l> {
    lane: Running<'l>,
    free: RefCell<Vec<EventId>>,
}

impl<'l> FreeEvents<'l> {
    pub fn new(lane: Running<'l>) -> Self {
        Self::of(lane, lane.events())
    }

    /// Only the events `free` of the lane; its other events are in use.
    pub(super) fn of(lane: Running<'l>, free: Vec<EventId>) -> Self {
        Self {
            lane,
            free: RefCell::new(free),
        }
    }

    /// Returns the events that are free now.
    pub(super) fn into_free(self) -> Vec<EventId> {
        self.free.into_inner()
    }

    /// Takes a free event, or creates one.
    pub(super) fn take(&self) -> Result<EventId, DriverError> {
        match self.free.borrow_mut().pop() {
            Some(event) => Ok(event),
            None => self.lane.new_event(),
        }
    }

    /// Gives back events for which nothing will wait any more.
    pub(super) fn give(&self, events: impl IntoIterator<Item = EventId>) {
        self.free.borrow_mut().extend(events);
    }
}

/// A lane, its buffers, and the events that are free.
#[derive(Debug)]
pub struct Session<'l> {
    pub lane: Running<'l>,
    pub sizing: &'l Sizing,
    pub events: FreeEvents<'l>,
    pub copiers: &'l Copiers,
    pub counters: &'l Counters,
}

impl Session<'_> {
    /// The buffers of batch `number` of the shard.
    pub(super) fn batch(&self, number: usize) -> &BatchRegions {
        &self.sizing.batches[number % self.sizing.batches.len()]
    }

    /// Returns the digits of a slab: where its elements lie in the slots.
    pub(super) fn lift(
        &self,
        grid: &SubchunkGrid,
        order: &[usize],
        batch: &Batch,
        slab: &Slab,
    ) -> Result<Lift, DriverError> {
        Lift::new(
            &LiftBatch {
                counts: &batch.counts,
                subchunk: grid.subchunk(),
                element_size: grid.element_size(),
                order,
                slot_stride: self.sizing.slot_stride,
            },
            &LiftSlab {
                start: &slab.start,
                shape: &slab.shape,
            },
        )
        .map_err(|error| self.refused("lifting a slab", &error))
    }

    /// Two events for a stage.
    fn timed(&self, stage: TimedStage) -> Result<Timed, DriverError> {
        Ok(Timed {
            stage,
            begin: self.events.take()?,
            end: self.events.take()?,
        })
    }

    /// Records the begin of a stage in `stream`.
    pub(super) fn begin(&self, stream: StreamId, event: EventId) -> Result<(), DriverError> {
        self.lane.driver.record(event, stream, STAGE_BEGIN)
    }

    /// Enqueues `work` in the stream of kernels, as a stage of its own, and adds the stage to
    /// `timed`.
    pub(super) fn run(
        &self,
        stage: TimedStage,
        timed: &mut Vec<Timed>,
        work: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        timed.push(self.run_until(STAGE_END, stage, work)?);
        Ok(())
    }

    /// As [`run`](Self::run), but records the end of the stage under the name `end`, and returns
    /// the stage.
    pub(super) fn run_until(
        &self,
        end: Site,
        stage: TimedStage,
        work: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<Timed, DriverError> {
        let times = self.timed(stage)?;
        self.begin(self.lane.compute, times.begin)?;
        work()?;
        self.lane.driver.record(times.end, self.lane.compute, end)?;
        Ok(times)
    }

    /// Adds the time between two events that have happened to the metrics. If the driver does not
    /// tell the time, it is left out.
    pub(super) fn time(
        &self,
        stage: TimedStage,
        begin: EventId,
        end: EventId,
    ) -> Result<(), DriverError> {
        match self.lane.driver.elapsed(begin, end) {
            Ok(time) => self.counters.stage(stage, time),
            Err(error) if error.fault == Fault::Sticky => return Err(error),
            Err(error) => tracing::debug!(%error, "a stage without a time"),
        }
        Ok(())
    }

    /// Adds the time of a stage that has ended to the metrics.
    pub(super) fn finish_timed(&self, timed: &Timed) -> Result<(), DriverError> {
        self.time(timed.stage, timed.begin, timed.end)
    }

    /// The error of an operation that was not even tried.
    pub(super) fn refused(&self, operation: &str, reason: &dyn Display) -> DriverError {
        DriverError {
            operation: operation.to_string(),
            device: Some(self.lane.driver.device().ordinal),
            fault: Fault::Refused,
            reason: reason.to_string(),
        }
    }
}

/// Copies a slab from its place in the decoded shard at `shard` to its dense form at `to`.
///
/// # Safety
/// For as long as the copy is used, the slab can be read, and nothing else writes its dense form.
pub(super) unsafe fn copy_of_slab<'c>(
    job: &Job<'_>,
    shard: *const u8,
    batch: &Batch,
    slab: &Slab,
    to: *mut u8,
) -> Copy<'c> {
    let (strides, offset) = place_of_slab(job, batch, slab);
    let dense = c_order(&slab.shape, job.grid.element_size());
    // SAFETY: the caller's contract.
    unsafe {
        Copy::strided(
            (shard.add(offset), &strides),
            (to, &dense),
            &slab.shape,
            job.grid.element_size(),
        )
    }
}

/// Copies a slab from its dense form at `from` to its place in the decoded shard at `shard`.
///
/// # Safety
/// For as long as the copy is used, the dense form can be read, and nothing else writes the slab.
pub(super) unsafe fn copy_to_slab<'c>(
    job: &Job<'_>,
    from: *const u8,
    batch: &Batch,
    slab: &Slab,
    shard: *mut u8,
) -> Copy<'c> {
    let (strides, offset) = place_of_slab(job, batch, slab);
    let dense = c_order(&slab.shape, job.grid.element_size());
    // SAFETY: the caller's contract.
    unsafe {
        Copy::strided(
            (from, &dense),
            (shard.add(offset), &strides),
            &slab.shape,
            job.grid.element_size(),
        )
    }
}

/// The strides of the decoded shard, and the offset of a slab in it, in bytes.
fn place_of_slab(job: &Job<'_>, batch: &Batch, slab: &Slab) -> (Vec<usize>, usize) {
    let strides = c_order(job.grid.shard(), job.grid.element_size());
    let offset = std::iter::zip(&batch.origin, &slab.start)
        .zip(&strides)
        .map(|((origin, start), stride)| (origin + start) * stride)
        .sum();
    (strides, offset)
}

/// The strides of a C-order array, in bytes.
fn c_order(shape: &[usize], element_size: usize) -> Vec<usize> {
    let mut strides = vec![element_size; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d];
    }
    strides
}

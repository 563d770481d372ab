//! A session: a lane in use, for one shard or one stream, with its buffers and its free events.

use std::cell::RefCell;
use std::fmt::Display;
use std::sync::Arc;

use super::check_progress::{LaneUses, ring_uses};
use super::copiers::{Copiers, Copy};
use super::counters::{Counters, TimedStage};
use super::driver::{DriverError, EventId, Fault, Site, StreamId};
use super::lane::{Events, Running};
use super::sizing::{BatchRegions, PlannedSlab, ShardKind, Sizing, Workspace};
use crate::contract::ShardJob;
use crate::layout::{Batch, Slab};

/// The records at the begin and at the end of a stage, which only the metrics need.
const STAGE_BEGIN: Site = Site("record: a stage begins, for the metrics");
const STAGE_END: Site = Site("record: a stage ends, for the metrics");

/// A stage whose time the device measures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    stage: TimedStage,
    begin: EventId,
    end: EventId,
}

impl Timed {
    pub(super) fn events(&self) -> [EventId; 2] {
        [self.begin, self.end]
    }
}

/// The events of a lane that nothing uses at present.
#[derive(Debug)]
pub struct FreeEvents<'l> {
    lane: Running<'l>,
    free: RefCell<Events>,
}

impl<'l> FreeEvents<'l> {
    pub fn new(lane: Running<'l>) -> Self {
        Self::of(lane, lane.events())
    }

    /// Returns the events `free` as the only free events of the lane.
    pub(super) fn of(lane: Running<'l>, free: Events) -> Self {
        Self {
            lane,
            free: RefCell::new(free),
        }
    }

    /// Returns the events that are free now, as a list.
    pub(super) fn into_free(self) -> Events {
        self.free.into_inner()
    }

    /// Takes a free event that is timed or not, or creates one.
    fn take(&self, timed: bool) -> Result<EventId, DriverError> {
        match self.free.borrow_mut().of(timed).pop() {
            Some(event) => Ok(event),
            None => self.lane.new_event(timed),
        }
    }

    /// Gives back an event for which no stream and no thread will wait any more.
    pub(super) fn give(&self, event: EventId) {
        self.free.borrow_mut().untimed.push(event);
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
    /// Whether the times of stages are measured.
    pub times: bool,
}

impl Session<'_> {
    /// Returns how often a shard of `batches` batches, which used the two rings of pinned memory as `rings` says,
    /// has used each buffer of the lane.
    pub(super) fn uses(&self, batches: usize, [up, down]: [Vec<u32>; 2]) -> LaneUses {
        LaneUses {
            lane: self.lane.number,
            classes: [ring_uses(batches, self.sizing.batches.len()), up, down],
        }
    }

    /// Returns the buffers of batch `number` of the shard.
    pub(super) fn batch(&self, number: usize) -> &BatchRegions {
        &self.sizing.batches[number % self.sizing.batches.len()]
    }

    /// Returns the slabs of a batch, planned with at most `most` elements in each.
    pub(super) fn planned(
        &self,
        kind: &ShardKind,
        fill_value: &[u8],
        batch: &Batch,
        most: usize,
    ) -> Result<Arc<[PlannedSlab]>, DriverError> {
        kind.slabs(fill_value, batch, (most, self.sizing.slot_stride))
            .map_err(|reason| self.refused("planning how slabs are moved", &reason))
    }

    /// Returns the buffers that the kernels of a batch use, and the stream of these kernels.
    pub(super) fn workspace(&self, regions: &BatchRegions) -> (&Workspace, StreamId) {
        let number = regions.workspace;
        (
            &self.sizing.workspaces[number],
            self.lane.kernel_streams[number],
        )
    }

    /// Records an event in `stream`, at the site `site`. The caller [gives](FreeEvents::give) the event back
    /// when nothing will wait for it any more.
    pub(super) fn record(&self, stream: StreamId, site: Site) -> Result<EventId, DriverError> {
        let event = self.events.take(false)?;
        self.lane.driver.record(event, stream, site)?;
        Ok(event)
    }

    /// Lets `stream` wait for everything that is in the stream `of` now. `record` and `wait` are the sites of
    /// the two operations.
    pub(super) fn order(
        &self,
        (of, record): (StreamId, Site),
        (stream, wait): (StreamId, Site),
    ) -> Result<(), DriverError> {
        let event = self.record(of, record)?;
        self.lane.driver.wait(stream, event, wait)?;
        // The stream waits for this record, even if the event is recorded again afterwards.
        self.events.give(event);
        Ok(())
    }

    /// Enqueues `work` in `stream`. If times are measured, adds the work as a stage to `timed`.
    pub(super) fn run(
        &self,
        stream: StreamId,
        stage: TimedStage,
        timed: &mut Vec<Timed>,
        work: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        if !self.times {
            return work();
        }
        let driver = self.lane.driver;
        let (begin, end) = (self.events.take(true)?, self.events.take(true)?);
        driver.record(begin, stream, STAGE_BEGIN)?;
        work()?;
        driver.record(end, stream, STAGE_END)?;
        timed.push(Timed { stage, begin, end });
        Ok(())
    }

    /// Adds the times of stages that have ended to the metrics. A time that the driver does not report is
    /// left out.
    pub(super) fn finish_timed(
        &self,
        timed: impl IntoIterator<Item = Timed>,
    ) -> Result<(), DriverError> {
        for Timed { stage, begin, end } in timed {
            match self.lane.driver.elapsed(begin, end) {
                Ok(time) => self.counters.stage(stage, time),
                Err(error) if error.fault == Fault::Sticky => return Err(error),
                Err(error) => tracing::debug!(%error, "a stage without a time"),
            }
            self.events.free.borrow_mut().timed.extend([begin, end]);
        }
        Ok(())
    }

    /// Counts a wrong result of the device, and returns the error, after which the device belongs into quarantine.
    pub(super) fn wrong(&self, operation: &str, reason: &dyn Display) -> DriverError {
        self.counters.mismatch();
        DriverError {
            fault: Fault::Wrong,
            ..self.refused(operation, reason)
        }
    }

    /// Returns the error for an operation that was refused before it was tried.
    pub(super) fn refused(&self, operation: &str, reason: &dyn Display) -> DriverError {
        DriverError {
            operation: operation.to_string(),
            device: Some(self.lane.driver.device().ordinal),
            fault: Fault::Refused,
            reason: reason.to_string(),
        }
    }
}

/// Returns a copy of a slab from its place in the decoded shard at `shard` to its dense form at `to`.
///
/// # Safety
/// For as long as the copy is used, the slab can be read, and nothing else writes its dense form.
pub(super) unsafe fn copy_of_slab<'c>(
    job: &ShardJob<'_>,
    shard: *const u8,
    batch: &Batch,
    slab: &Slab,
    to: *mut u8,
) -> Copy<'c> {
    let (strides, offset) = place_of_slab(job, batch, slab);
    let dense = c_order(&slab.shape, job.grid.element_size());
    // SAFETY: this function has the same requirements, which its caller keeps.
    unsafe {
        Copy::strided(
            (shard.add(offset), &strides),
            (to, &dense),
            &slab.shape,
            job.grid.element_size(),
        )
    }
}

/// Returns a copy of a slab from its dense form at `from` to its place in the decoded shard at `shard`.
///
/// # Safety
/// For as long as the copy is used, the dense form can be read, and nothing else writes the slab.
pub(super) unsafe fn copy_to_slab<'c>(
    job: &ShardJob<'_>,
    from: *const u8,
    batch: &Batch,
    slab: &Slab,
    shard: *mut u8,
) -> Copy<'c> {
    let (strides, offset) = place_of_slab(job, batch, slab);
    let dense = c_order(&slab.shape, job.grid.element_size());
    // SAFETY: this function has the same requirements, which its caller keeps.
    unsafe {
        Copy::strided(
            (from, &dense),
            (shard.add(offset), &strides),
            &slab.shape,
            job.grid.element_size(),
        )
    }
}

/// Returns the strides of the decoded shard, and the offset of a slab in it, in bytes.
fn place_of_slab(job: &ShardJob<'_>, batch: &Batch, slab: &Slab) -> (Vec<usize>, usize) {
    let strides = c_order(job.grid.shard(), job.grid.element_size());
    let offset = std::iter::zip(&batch.origin, &slab.start)
        .zip(&strides)
        .map(|((origin, start), stride)| (origin + start) * stride)
        .sum();
    (strides, offset)
}

/// Returns the strides of a C-order array, in bytes.
fn c_order(shape: &[usize], element_size: usize) -> Vec<usize> {
    let mut strides = vec![element_size; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d];
    }
    strides
}

//! One shard in one lane: what encoding and decoding share.

use std::cell::RefCell;
use std::fmt::Display;

use super::copiers::{Copiers, Copy};
use super::counters::{Counters, TimedStage};
use super::driver::{DeviceSpan, DriverError, EventId, Fault, Site, Span, StreamId};
use super::kernels::scatter::Scatter;
use super::kernels::spans::{Lengths, Slots};
use super::kernels::{aggregate, crc32c};
use super::lane::Running;
use super::sizing::{BatchRegions, Region, Sizing};
use crate::engine::Job;
use crate::layout::{Batch, Lift, LiftBatch, LiftSlab, ShardPermutation, Slab};

/// The begin and the end of a stage, for the metrics alone.
const STAGE_BEGIN: Site = Site("record: a stage begins, for the metrics");
const STAGE_END: Site = Site("record: a stage ends, for the metrics");

/// A stage whose time is taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    stage: TimedStage,
    pub(super) begin: EventId,
    pub(super) end: EventId,
}

/// The events of a lane that stand for nothing at present.
#[derive(Debug)]
pub(super) struct FreeEvents<'l> {
    lane: Running<'l>,
    free: RefCell<Vec<EventId>>,
}

impl<'l> FreeEvents<'l> {
    pub(super) fn new(lane: Running<'l>) -> Self {
        Self::of(lane, lane.events())
    }

    /// These events of the lane, where others stand for something.
    pub(super) fn of(lane: Running<'l>, free: Vec<EventId>) -> Self {
        Self {
            lane,
            free: RefCell::new(free),
        }
    }

    /// Those that stand for nothing now.
    pub(super) fn into_free(self) -> Vec<EventId> {
        self.free.into_inner()
    }

    /// An event that nobody else uses.
    pub(super) fn take(&self) -> Result<EventId, DriverError> {
        match self.free.borrow_mut().pop() {
            Some(event) => Ok(event),
            None => self.lane.new_event(),
        }
    }

    /// Give events back that nothing will wait for any more.
    pub(super) fn give(&self, events: impl IntoIterator<Item = EventId>) {
        self.free.borrow_mut().extend(events);
    }
}

/// One shard in one lane; or a stream in its own, which is divided by another `S`.
#[derive(Debug)]
pub(super) struct Session<'l, S = Sizing> {
    pub(super) lane: Running<'l>,
    pub(super) sizing: &'l S,
    pub(super) events: FreeEvents<'l>,
    pub(super) copiers: &'l Copiers,
    pub(super) counters: &'l Counters,
}

impl Session<'_> {
    /// The buffers of batch `number` of the shard.
    pub(super) fn batch(&self, number: usize) -> &BatchRegions {
        &self.sizing.batches[number % self.sizing.batches.len()]
    }

    /// What comes before the first batch: the fill value goes to the device, ahead of everything in
    /// that stream; and what a slot has behind its elements is written once, since kernels read
    /// slots by whole words. So is all of it before decompressing, which leaves the slots of empty
    /// subchunks alone.
    pub(super) fn prepare(&self, job: &Job<'_>) -> Result<(), DriverError> {
        let behind = self.sizing.slot_stride > job.grid.subchunk_bytes();
        if behind || self.sizing.decompression.is_some() {
            self.lane.zero(self.lane.compute, self.sizing.slots)?;
        }
        let pattern = Scatter::fill_pattern(job.fill_value);
        let staging = self.lane.pinned_in(self.sizing.fill_staging);
        let staging = self
            .lane
            .write_values(staging, pattern.iter().map(|byte| [*byte]))?;
        let to = self.lane.device(self.sizing.fill.part(0..staging.len));
        self.lane
            .copy(self.lane.up, Span::Pinned(staging), Span::Device(to))
    }

    /// The digits of a slab.
    pub(super) fn lift(
        &self,
        job: &Job<'_>,
        order: &[usize],
        batch: &Batch,
        slab: &Slab,
    ) -> Result<Lift, DriverError> {
        Lift::new(
            &LiftBatch {
                counts: &batch.counts,
                subchunk: job.grid.subchunk(),
                element_size: job.grid.element_size(),
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
}

impl<S> Session<'_, S> {
    /// Two events for a stage.
    pub(super) fn timed(&self, stage: TimedStage) -> Result<Timed, DriverError> {
        Ok(Timed {
            stage,
            begin: self.events.take()?,
            end: self.events.take()?,
        })
    }

    /// A stage begins in `stream`.
    pub(super) fn begin(&self, stream: StreamId, event: EventId) -> Result<(), DriverError> {
        self.lane.driver.record(event, stream, STAGE_BEGIN)
    }

    /// A stage ends in `stream`, and nothing else is told by that.
    pub(super) fn end(&self, stream: StreamId, event: EventId) -> Result<(), DriverError> {
        self.lane.driver.record(event, stream, STAGE_END)
    }

    /// Enqueue `work`, a stage of its own, in the stream of kernels, and take its time: one of
    /// `timed`.
    pub(super) fn run(
        &self,
        stage: TimedStage,
        timed: &mut Vec<Timed>,
        work: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let times = self.timed(stage)?;
        self.begin(self.lane.compute, times.begin)?;
        work()?;
        self.end(self.lane.compute, times.end)?;
        timed.push(times);
        Ok(())
    }

    /// Add up the time between two events that have happened. It is for the metrics alone: what is
    /// not told is left out.
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

    /// Add up the time of a stage that has ended.
    pub(super) fn finish_timed(&self, timed: &Timed) -> Result<(), DriverError> {
        self.time(timed.stage, timed.begin, timed.end)
    }

    /// An operation that was not even tried.
    pub(super) fn refused(&self, operation: &str, reason: &dyn Display) -> DriverError {
        DriverError {
            operation: operation.to_string(),
            device: Some(self.lane.driver.device().ordinal),
            fault: Fault::Refused,
            reason: reason.to_string(),
        }
    }

    /// A lane's answer that cannot be: what it was asked for is done elsewhere.
    pub(super) fn wrong_answer(&self, what: &str) -> DriverError {
        let reason = format!("the device returned an impossible table of offsets: {what}");
        self.refused("aggregating subchunks", &reason)
    }

    /// Append `number` checksums to what slots hold, which is `lengths` of the one at hand.
    pub(super) fn checksums(
        &self,
        number: usize,
        slots: Slots,
        lengths: impl Fn(usize) -> Lengths,
        stored: Option<DeviceSpan>,
        timed: &mut Vec<Timed>,
    ) -> Result<(), DriverError> {
        if number == 0 {
            return Ok(());
        }
        let lane = self.lane;
        self.run(TimedStage::Crc32c, timed, || {
            for stage in 0..number {
                // SAFETY: the lane's regions, in one stream; whoever sized the slots left room for
                // the checksums.
                unsafe {
                    crc32c::append(lane.driver, lane.compute, slots, lengths(stage), stored)?;
                }
            }
            Ok(())
        })
    }

    /// Gather what `slots` hold, `lengths` of it, without what is not `stored`, in the order of
    /// `permutation`. The caller takes the time, and tells who waits.
    pub(super) fn aggregate(
        &self,
        permutation: &ShardPermutation,
        slots: Slots,
        lengths: Lengths,
        stored: Option<DeviceSpan>,
        to: Aggregation,
    ) -> Result<(), DriverError> {
        let lane = self.lane;
        let places = permutation.padded_slots();
        let (sizes, source) = (lane.device(to.sizes), lane.device(to.source));
        let offsets = lane.device(to.offsets);
        // SAFETY: the lane's regions, in one stream; the sizes are at most a slot's.
        unsafe {
            aggregate::permute_sizes(
                lane.driver,
                lane.compute,
                permutation,
                lengths,
                stored,
                sizes,
                source,
            )?;
            aggregate::scan(
                lane.driver,
                lane.compute,
                sizes,
                offsets,
                lane.device(to.scratch),
                places,
            )?;
            aggregate::gather(
                lane.driver,
                lane.compute,
                slots,
                source,
                offsets,
                places,
                lane.device(to.dense),
            )
        }
    }
}

/// Where subchunks are aggregated. The regions are those of the same names of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aggregation {
    pub(super) sizes: Region,
    pub(super) source: Region,
    pub(super) offsets: Region,
    pub(super) scratch: Region,
    pub(super) dense: Region,
}

/// Copies a slab from its place in the decoded shard at `shard` to its dense form at `to`.
///
/// # Safety
/// For as long as the copy is used, the slab can be read, and its dense form is written by
/// nobody else.
pub(super) unsafe fn copy_of_slab<'c>(
    job: &Job<'_>,
    shard: *const u8,
    batch: &Batch,
    slab: &Slab,
    to: *mut u8,
) -> Copy<'c> {
    let (strides, offset) = place_of_slab(job, batch, slab);
    let dense = c_order(&slab.shape, job.grid.element_size());
    // SAFETY: what the caller promises.
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
/// For as long as the copy is used, the dense form can be read, and the slab is written by
/// nobody else.
pub(super) unsafe fn copy_to_slab<'c>(
    job: &Job<'_>,
    from: *const u8,
    batch: &Batch,
    slab: &Slab,
    shard: *mut u8,
) -> Copy<'c> {
    let (strides, offset) = place_of_slab(job, batch, slab);
    let dense = c_order(&slab.shape, job.grid.element_size());
    // SAFETY: what the caller promises.
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

//! A batch into the streams of its lane: what `encoder` says of submitting it.

use std::ops::Range;

use super::buffers::CudaInput;
use super::encoder::{Enqueued, StreamSession};
use super::shared::Shared;
use super::sizing::Flight;
use crate::engine::EngineError;
use crate::engine::cuda::compression::compress;
use crate::engine::cuda::counters::TimedStage;
use crate::engine::cuda::driver::{DeviceSpan, DriverError, Site, Span};
use crate::engine::cuda::kernels::crc32c;
use crate::engine::cuda::kernels::scatter::Scatter;
use crate::engine::cuda::kernels::spans::{Lengths, Slots};
use crate::engine::cuda::session::Timed;
use crate::engine::cuda::sizing::Region;
use crate::layout::{self, Batch, BatchGrid, Lift, LiftBatch, LiftSlab, ShardPermutation, Slab};

/// A slab is on the device.
const UPLOADED: Site = Site("record: a slab of a stream was copied to the device");
const UPLOADED_WAIT: Site = Site("wait: scatter for its slab of a stream");
/// Offsets and dense bytes of a batch are complete.
const AGGREGATED: Site = Site("record: a batch of a stream was aggregated");
const AGGREGATED_WAIT: Site = Site("wait: copies from the device for their batch of a stream");
/// The offsets of a batch are in pinned memory.
const ANSWERED: Site = Site("record: the offsets of a stream's batch were copied from the device");

/// Put a batch into the streams, up to the copy of its offsets.
pub(super) fn enqueue(
    session: &StreamSession<'_>,
    shared: &Shared,
    input: &CudaInput,
    batch: &BatchGrid,
    number: usize,
) -> Result<Enqueued, EngineError> {
    let (lane, sizing, job) = (session.lane, session.sizing, &shared.job);
    let flight = &sizing.flights[number];
    let permutation = (job.grid.batch_permutation(batch.epochs()))
        .map_err(|error| session.refused("planning an aggregation", &error))?;
    let count = batch.subchunks();
    if batch.epochs() > job.epochs || permutation.padded_slots() * 8 >= flight.offsets.len {
        return Err(EngineError::Internal("a batch that is too long"));
    }
    let stored = sizing.stored.part(0..count * 4);
    if !job.store_empty {
        lane.zero(lane.compute, stored)?;
    }
    let mut enqueued = Enqueued {
        flight: number,
        answered: session.events.take()?,
        uploads: Vec::new(),
        timed: Vec::new(),
    };
    scatter(session, shared, input, batch, &mut enqueued)?;
    let flags = (!job.store_empty).then(|| lane.device(stored));
    aggregate(
        session,
        shared,
        flight,
        &permutation,
        flags,
        &mut enqueued.timed,
    )?;
    let (offsets, failed) = answer_of(flight, &permutation, shared.kind.compressor.is_some());
    let (answer, answer_failed) = flight.answer.split_at(offsets.len);
    for (from, to) in [(offsets, answer), (failed, answer_failed)] {
        let to = lane.pinned_out(to.part(0..from.len));
        session.counters.add_from_device(from.len);
        lane.copy(lane.down, Span::Device(lane.device(from)), Span::Pinned(to))?;
    }
    lane.driver.record(enqueued.answered, lane.down, ANSWERED)?;
    Ok(enqueued)
}

/// The offsets of a batch on the device, and which of its subchunks failed.
pub(super) fn answer_of(
    flight: &Flight,
    permutation: &ShardPermutation,
    compresses: bool,
) -> (Region, Region) {
    let failed = if compresses {
        permutation.subchunks() * 4
    } else {
        0
    };
    (
        flight.offsets.part(0..(permutation.padded_slots() + 1) * 8),
        flight.failed.part(0..failed),
    )
}

/// Move a batch to the device and scatter it, one slab after the other.
fn scatter(
    session: &StreamSession<'_>,
    shared: &Shared,
    input: &CudaInput,
    batch: &BatchGrid,
    enqueued: &mut Enqueued,
) -> Result<(), EngineError> {
    let (lane, sizing, job) = (session.lane, session.sizing, &shared.job);
    let grid = job.grid.shard();
    let whole = Batch {
        first: 0,
        counts: job.grid.batch_subchunks(batch.epochs()),
        origin: vec![0; grid.counts().len()],
    };
    let (pinned, raw) = input.regions();
    let from_host = input.host_ranges(batch.epochs());
    let mut end = 0;
    for slab in layout::slabs(grid, &whole, sizing.slab) {
        // They follow one another in C order.
        let bytes = end..end + slab.len() * grid.element_size();
        end = bytes.end;
        let upload = [session.events.take()?, session.events.take()?];
        let [begin, done] = upload;
        enqueued.uploads.push(upload);
        session.begin(lane.up, begin)?;
        for part in within(&from_host, &bytes) {
            let from = lane.pinned_in(pinned.part(part.clone()));
            let to = lane.device(raw.part(part));
            lane.copy(lane.up, Span::Pinned(from), Span::Device(to))?;
            session.counters.add_to_device(from.len);
        }
        lane.driver.record(done, lane.up, UPLOADED)?;
        lane.driver.wait(lane.compute, done, UPLOADED_WAIT)?;
        let scatter = plan_scatter(session, shared, &whole, &slab)?;
        let flags = (!job.store_empty).then(|| lane.device(sizing.stored));
        session.run(TimedStage::Scatter, &mut enqueued.timed, || {
            // SAFETY: the lane's regions, ordered by the edges above.
            unsafe {
                scatter.enqueue_scatter(
                    lane.driver,
                    lane.compute,
                    lane.device(raw.part(bytes)),
                    lane.device(sizing.slots),
                    flags,
                    lane.device(sizing.fill),
                )
            }
        })?;
    }
    Ok(())
}

/// The parts of `ranges` that are in `whole`.
fn within(ranges: &[Range<usize>], whole: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let parts = ranges
        .iter()
        .map(|range| range.start.max(whole.start)..range.end.min(whole.end));
    parts.filter(|part| !part.is_empty())
}

fn plan_scatter(
    session: &StreamSession<'_>,
    shared: &Shared,
    whole: &Batch,
    slab: &Slab,
) -> Result<Scatter, DriverError> {
    let grid = shared.job.grid.shard();
    let batch = LiftBatch {
        counts: &whole.counts,
        subchunk: grid.subchunk(),
        element_size: grid.element_size(),
        order: &shared.kind.chain.order,
        slot_stride: session.sizing.slot_stride,
    };
    let slab = LiftSlab {
        start: &slab.start,
        shape: &slab.shape,
    };
    let lift = Lift::new(&batch, &slab)
        .map_err(|error| session.refused("lifting a slab of a stream", &error))?;
    Scatter::new(&lift, shared.kind.chain.swap, &shared.job.fill_value)
        .map_err(|error| session.refused("planning a scatter", &error))
}

/// Everything behind the scatter of a batch, up to its dense bytes.
fn aggregate(
    session: &StreamSession<'_>,
    shared: &Shared,
    flight: &Flight,
    permutation: &ShardPermutation,
    mut stored: Option<DeviceSpan>,
    timed: &mut Vec<Timed>,
) -> Result<(), DriverError> {
    let (lane, sizing) = (session.lane, session.sizing);
    let (count, places) = (permutation.subchunks(), permutation.padded_slots());
    let slots = |first: usize, count: usize| Slots {
        span: lane.device(
            sizing
                .slots
                .part(first * sizing.slot_stride..(first + count) * sizing.slot_stride),
        ),
        stride: sizing.slot_stride,
        count,
    };
    let before = match &shared.kind.compressor {
        Some(prepared) => prepared.compression.before,
        None => shared.kind.chain.stages.len(),
    };
    let bytes = shared.job.grid.shard().subchunk_bytes();
    let lengths = |stage| Lengths::All(bytes + stage * crc32c::CHECKSUM);
    session.checksums(before, slots(0, count), lengths, stored, timed)?;
    let (mut encoded, mut lengths) = (slots(0, count), Lengths::All(sizing.encoded));
    if let (Some(prepared), Some(compressing)) = (&shared.kind.compressor, &sizing.compressing) {
        for first in (0..count).step_by(compressing.most) {
            let some = compressing.most.min(count - first);
            let flags = first * 4..(first + some) * 4;
            let stored = stored.map(|stored| DeviceSpan {
                offset: stored.offset + flags.start,
                len: flags.len(),
                ..stored
            });
            compress(
                session,
                prepared,
                &compressing.part(first, some),
                slots(first, some),
                stored,
                lane.device(flight.failed.part(flags)),
                timed,
            )?;
        }
        let [frames, sizes, framed] = compressing.all();
        encoded = Slots {
            span: lane.device(frames),
            stride: compressing.buffers.frame_stride,
            count,
        };
        lengths = Lengths::Each(lane.device(sizes.part(0..count * 8)));
        stored = Some(lane.device(framed.part(0..count * 4)));
        let after = prepared.compression.after;
        session.checksums(after, encoded, |_| lengths, stored, timed)?;
    }
    let times = session.timed(TimedStage::Aggregate)?;
    session.begin(lane.compute, times.begin)?;
    let to = sizing.aggregation(flight, count, places);
    session.aggregate(permutation, encoded, lengths, stored, to)?;
    lane.driver.record(times.end, lane.compute, AGGREGATED)?;
    lane.driver.wait(lane.down, times.end, AGGREGATED_WAIT)?;
    timed.push(times);
    Ok(())
}

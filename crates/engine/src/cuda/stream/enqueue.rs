//! Enqueues a batch in the streams of its lane: the part of `encoder` that submits.

use std::ops::Range;

use super::input::CudaInput;
use super::shared::StreamLane;
use crate::contract::EngineError;
use crate::cuda::counters::TimedStage;
use crate::cuda::driver::{DriverError, EventId, Site, Span};
use crate::cuda::session::{Session, Timed};
use crate::cuda::sizing::BatchRegions;
use crate::cuda::uses::{Use, Uses};
use crate::layout::{Batch, BatchGrid};

/// The record of the event after which a slab is on the device.
const UPLOADED: Site = Site("record: a slab of a stream was copied to the device");
const UPLOADED_WAIT: Site = Site("wait: scatter for its slab of a stream");

/// A batch that was enqueued in the streams.
#[derive(Debug)]
pub(super) struct Enqueued {
    /// The number of the batch's buffers.
    pub(super) flight: usize,
    pub(super) answered: EventId,
    pub(super) timed: Vec<Timed>,
    /// The use of the device, until the batch is complete.
    _use: Use,
}

impl Enqueued {
    pub(super) fn events(&self) -> impl Iterator<Item = EventId> {
        let timed = self.timed.iter().flat_map(Timed::events);
        timed.chain([self.answered])
    }
}

/// Enqueues all steps of a batch, up to the copy of its offsets.
pub(super) fn enqueue(
    session: &Session<'_>,
    shared: &StreamLane,
    input: &CudaInput,
    batch: &BatchGrid,
    flight: usize,
) -> Result<Enqueued, EngineError> {
    let regions = &session.sizing.batches[flight];
    let permutation = (shared.job.grid.batch_permutation(batch.epochs()))
        .map_err(|error| session.refused("planning an aggregation", &error))?;
    if batch.epochs() > shared.job.epochs || permutation.padded_slots() * 8 >= regions.offsets.len {
        return Err(EngineError::Internal("a batch that is too long"));
    }
    shared.devices.check_open()?;
    let encoding = shared.encoding();
    encoding.begin(session, regions)?;
    let mut timed = Vec::new();
    scatter(session, shared, input, batch, regions, &mut timed)?;
    for reading in input.readings() {
        reading.order(session.lane)?;
    }
    let answered = encoding.encode(session, regions, &permutation, &mut timed)?;
    Ok(Enqueued {
        flight,
        answered,
        timed,
        _use: Uses::begin(&shared.devices.uses),
    })
}

/// Enqueues the copies of a batch to the device and its scatter, one slab after the other. Adds the stages to
/// `timed`.
fn scatter(
    session: &Session<'_>,
    shared: &StreamLane,
    input: &CudaInput,
    batch: &BatchGrid,
    regions: &BatchRegions,
    timed: &mut Vec<Timed>,
) -> Result<(), DriverError> {
    let lane = session.lane;
    let grid = shared.job.grid.shard();
    let whole = Batch {
        first: 0,
        counts: shared.job.grid.batch_subchunks(batch.epochs()),
        origin: vec![0; grid.counts().len()],
    };
    let (pinned, raw) = input.places();
    let from_host = input.host_ranges(batch.epochs());
    let encoding = shared.encoding();
    let (_, stream) = session.workspace(regions);
    let mut end = 0;
    for slab in &*encoding.slabs(session, &whole)? {
        // The slabs of a batch follow one another in C order.
        let bytes = end..end + slab.slab.len() * grid.element_size();
        end = bytes.end;
        session.run(lane.up, TimedStage::ToDevice, timed, || {
            for part in within(&from_host, &bytes) {
                let from = pinned.part(part.clone());
                let to = lane.device(raw.part(part));
                lane.copy(lane.up, Span::Pinned(from), Span::Device(to))?;
                session.counters.add_to_device(from.len);
            }
            Ok(())
        })?;
        session.order((lane.up, UPLOADED), (stream, UPLOADED_WAIT))?;
        let from = lane.device(raw.part(bytes));
        encoding.scatter(session, regions, slab, from, timed)?;
    }
    Ok(())
}

/// Returns the parts of `ranges` that are within `whole`.
fn within(ranges: &[Range<usize>], whole: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let parts = ranges
        .iter()
        .map(|range| range.start.max(whole.start)..range.end.min(whole.end));
    parts.filter(|part| !part.is_empty())
}

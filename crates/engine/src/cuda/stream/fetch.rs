//! Copies a batch from its lane to the output: the part of `encoder` that completes.

use std::ops::Range;

use super::enqueue::Enqueued;
use super::input::CudaInput;
use super::layout::{Layout, Transfer, transfers};
use super::output::CudaOutput;
use super::shared::StreamLane;
use crate::contract::EngineError;
use crate::cuda::answer::{Answer, wrong_answer};
use crate::cuda::arena::Region;
use crate::cuda::counters::TimedStage;
use crate::cuda::driver::{Access, DriverError, PinnedSpan, Site, Span};
use crate::cuda::session::Session;
use crate::cuda::sizing::BatchRegions;
use crate::layout::BatchGrid;
use crate::subchunk::encode::encode_stored_subchunk;

/// The synchronisation after which the device's answer about a batch is in pinned memory.
pub(super) const ANSWERED_HOST: Site = Site("synchronise: the offsets of a stream's batch");
/// The record of the event after which the dense bytes of a batch are in its output.
const FETCHED: Site = Site("record: a batch of a stream was copied from the device");
const FETCHED_HOST: Site = Site("synchronise: a batch of a stream before it is read");

/// Copies an encoded batch from the device to its output.
pub(super) fn fetch(
    session: &Session<'_>,
    shared: &StreamLane,
    enqueued: Enqueued,
    input: &mut CudaInput,
    batch: &BatchGrid,
    output: &mut CudaOutput,
) -> Result<Layout, EngineError> {
    let regions = &session.sizing.batches[enqueued.flight];
    let permutation = (shared.job.grid.batch_permutation(batch.epochs()))
        .map_err(|error| session.refused("planning an aggregation", &error))?;
    session.lane.synchronize(enqueued.answered, ANSWERED_HOST)?;
    input.was_read();
    let answer = Answer::read(session, regions, &permutation)?;
    session.finish_timed(enqueued.timed)?;
    session.events.give(enqueued.answered);

    let on_host = encode_failed(session, shared, input, batch, &answer)?;
    let find = |number: usize| on_host.binary_search_by_key(&number, |(n, _)| *n).ok();
    let bytes_of = |number| find(number).map_or(&[][..], |at| &on_host[at].1[..]);
    let layout = Layout::new(session, shared, batch, &answer, &|number| {
        bytes_of(number).len()
    })?;
    if layout.len > output.len() {
        let (len, most) = (layout.len, output.len());
        let what = format!("{len} bytes of a batch of at most {most}");
        return Err(wrong_answer(session, &what).into());
    }
    let Some(region) = output.region() else {
        return Err(EngineError::Internal(
            "an output that a device does not know",
        ));
    };
    let transfers = transfers(&layout.copies, shared.sizing.small_part);
    session
        .lane
        .driver
        .discard(Span::Pinned(pinned(session, region, 0..layout.len)))?;
    copy_to(session, regions, &transfers, region)?;
    for transfer in transfers.iter().filter(|transfer| transfer.parts.len() > 1) {
        let place = pinned(session, region, transfer.place());
        (session.lane.driver).host_access(place, Access::Write)?;
        transfer.spread(output.as_mut());
    }
    let by_host = layout.subchunks.iter().filter(|placed| placed.by_host);
    for (placed, place) in by_host.filter_map(|placed| Some((placed, placed.place.clone()?))) {
        output.as_mut()[place].copy_from_slice(bytes_of(placed.number));
    }
    Ok(layout)
}

/// Encodes on the host the subchunks on which the compressor failed. Returns the encoded subchunks in
/// ascending order of their numbers.
fn encode_failed(
    session: &Session<'_>,
    shared: &StreamLane,
    input: &mut CudaInput,
    batch: &BatchGrid,
    answer: &Answer,
) -> Result<Vec<(usize, Vec<u8>)>, EngineError> {
    if answer.failed().next().is_none() {
        return Ok(Vec::new());
    }
    input.bring_back(session.lane)?;
    let grid = (shared.job.grid.padded_batch(batch.epochs()))
        .map_err(|_| EngineError::Internal("a batch that is no box"))?;
    let job = shared.job.as_shard(&grid, &shared.kind.chain);
    let decoded = input.bytes(batch.epochs());
    let encoded: Vec<_> = answer
        .failed()
        .map(|number| {
            session.counters.subchunk_on_host();
            let encoded = encode_stored_subchunk(&job, &shared.kind.chain, decoded, number)?;
            Ok((number, encoded.unwrap_or_default()))
        })
        .collect::<Result<_, EngineError>>()?;
    tracing::warn!(
        subchunks = encoded.len(),
        all = batch.subchunks(),
        "nvCOMP failed on subchunks of a stream: the host compressed them"
    );
    Ok(encoded)
}

/// Returns the span of pinned memory of the bytes `bytes` of an output in `region`.
fn pinned(session: &Session<'_>, region: Region, bytes: Range<usize>) -> PinnedSpan {
    session.lane.pinned_out(region.part(bytes))
}

/// Copies a batch from the device to its output, and waits until the copies are complete.
fn copy_to(
    session: &Session<'_>,
    regions: &BatchRegions,
    transfers: &[Transfer<'_>],
    output: Region,
) -> Result<(), DriverError> {
    let lane = session.lane;
    if transfers.is_empty() {
        return Ok(());
    }
    let place = |transfer: &Transfer<'_>| {
        let end = transfer.to + transfer.from.len();
        pinned(session, output, transfer.to..end)
    };
    let mut timed = Vec::new();
    session.run(lane.down, TimedStage::FromDevice, &mut timed, || {
        for transfer in transfers {
            let from = lane.device(regions.dense.part(transfer.from.clone()));
            let to = place(transfer);
            lane.copy(lane.down, Span::Device(from), Span::Pinned(to))?;
            session.counters.add_from_device(from.len);
        }
        Ok(())
    })?;
    let done = session.record(lane.down, FETCHED)?;
    lane.synchronize(done, FETCHED_HOST)?;
    for transfer in transfers {
        lane.driver.host_access(place(transfer), Access::Read)?;
    }
    session.events.give(done);
    session.finish_timed(timed)
}

//! A batch from its lane: what `encoder` says of completing it.

use super::answer::{Answer, Layout};
use super::buffers::{CudaInput, CudaOutput};
use super::encoder::{Enqueued, StreamSession};
use super::enqueue::answer_of;
use super::shared::Shared;
use super::sizing::Flight;
use crate::engine::EngineError;
use crate::engine::cuda::counters::TimedStage;
use crate::engine::cuda::driver::{Access, DriverError, Site, Span};
use crate::engine::cuda::sizing::Region;
use crate::engine::host::encode_subchunk;
use crate::layout::BatchGrid;

/// What the device says about a batch is in pinned memory.
const ANSWERED_HOST: Site = Site("synchronise: the offsets of a stream's batch");
/// The batch is in its output.
const FETCHED: Site = Site("record: a batch of a stream was copied from the device");
const FETCHED_HOST: Site = Site("synchronise: a batch of a stream before it is read");

/// Bring a batch to its output.
pub(super) fn fetch(
    session: &StreamSession<'_>,
    shared: &Shared,
    enqueued: Enqueued,
    input: &mut CudaInput,
    batch: &BatchGrid,
    output: &mut CudaOutput,
) -> Result<Layout, EngineError> {
    let flight = &session.sizing.flights[enqueued.flight];
    let answer = read_answer(session, shared, &enqueued, batch)?;
    for timed in &enqueued.timed {
        session.finish_timed(timed)?;
    }
    for [begin, done] in &enqueued.uploads {
        session.time(TimedStage::ToDevice, *begin, *done)?;
    }
    session.events.give(enqueued.events());
    drop(enqueued);

    let on_host = encode_failed(session, shared, input, batch, &answer)?;
    let find = |number: usize| on_host.binary_search_by_key(&number, |(n, _)| *n).ok();
    let bytes_of = |number| find(number).map_or(&[][..], |at| &on_host[at].1[..]);
    let layout = answer.layout(session, shared, batch, &|number| bytes_of(number).len())?;
    if layout.len > output.len() {
        let (len, most) = (layout.len, output.len());
        let what = format!("{len} bytes of a batch of at most {most}");
        return Err(session.wrong_answer(&what).into());
    }
    match output.region() {
        Some(region) => copy_to(session, flight, &layout, region)?,
        None => {
            return Err(EngineError::Internal(
                "an output that a device does not know",
            ));
        }
    }
    for &(number, at) in &layout.on_host {
        let bytes = bytes_of(number);
        output.as_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }
    Ok(layout)
}

/// Wait for what the device says about a batch.
fn read_answer(
    session: &StreamSession<'_>,
    shared: &Shared,
    enqueued: &Enqueued,
    batch: &BatchGrid,
) -> Result<Answer, EngineError> {
    let lane = session.lane;
    let flight = &session.sizing.flights[enqueued.flight];
    let permutation = (shared.job.grid.batch_permutation(batch.epochs()))
        .map_err(|error| session.refused("planning an aggregation", &error))?;
    lane.driver.synchronize(enqueued.answered, ANSWERED_HOST)?;
    let (offsets, failed) = answer_of(flight, &permutation, shared.kind.compressor.is_some());
    let (answer, answer_failed) = flight.answer.split_at(offsets.len);
    let offsets = lane.read(lane.pinned_out(answer.part(0..offsets.len)))?;
    let failed = lane.read(lane.pinned_out(answer_failed.part(0..failed.len)))?;
    Ok(Answer {
        offsets: offsets
            .as_chunks::<8>()
            .0
            .iter()
            .map(|bytes| u64::from_le_bytes(*bytes))
            .collect(),
        failed: failed
            .as_chunks::<4>()
            .0
            .iter()
            .map(|flag| *flag != [0; 4])
            .collect(),
    })
}

/// The subchunks that the compressor failed on, encoded by the host: ascending.
fn encode_failed(
    session: &StreamSession<'_>,
    shared: &Shared,
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
            Ok((
                number,
                encode_subchunk(&job, &shared.kind.chain, decoded, number)?,
            ))
        })
        .collect::<Result<_, EngineError>>()?;
    tracing::warn!(
        subchunks = encoded.len(),
        all = batch.subchunks(),
        "nvCOMP failed on subchunks of a stream: the host compressed them"
    );
    Ok(encoded)
}

/// Copy a batch to its output, and wait for it.
fn copy_to(
    session: &StreamSession<'_>,
    flight: &Flight,
    layout: &Layout,
    output: Region,
) -> Result<(), DriverError> {
    let lane = session.lane;
    lane.driver
        .discard(Span::Pinned(lane.pinned_out(output.part(0..layout.len))))?;
    if layout.copies.is_empty() {
        return Ok(());
    }
    let [begin, done] = [session.events.take()?, session.events.take()?];
    session.begin(lane.down, begin)?;
    for (from, to) in &layout.copies {
        let place = lane.pinned_out(output.part(*to..to + from.len()));
        let from = lane.device(flight.dense.part(from.clone()));
        lane.copy(lane.down, Span::Device(from), Span::Pinned(place))?;
        session.counters.add_from_device(from.len);
    }
    lane.driver.record(done, lane.down, FETCHED)?;
    lane.driver.synchronize(done, FETCHED_HOST)?;
    for (from, to) in &layout.copies {
        let place = lane.pinned_out(output.part(*to..to + from.len()));
        lane.driver.host_access(place, Access::Read)?;
    }
    session.time(TimedStage::FromDevice, begin, done)?;
    session.events.give([begin, done]);
    Ok(())
}

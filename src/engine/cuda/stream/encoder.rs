//! Batches of a stream, encoded on a device.
//!
//! ```text
//! for each batch
//!     submit
//!         for each slab of its padded slices
//!             pinned -> device                    stream `up`
//!             slab -> slots, stored?              stream `compute`: scatter
//!         slots -> slots with checksums           stream `compute`: crc32c
//!         slots -> frames                         stream `compute`: compression, some at a time
//!         slots or frames -> offsets, dense bytes by shards     stream `compute`: permute, scan, gather
//!         offsets, failed? -> pinned              stream `down`
//!     complete
//!         subchunks that failed -> pinned         by the host, on this thread
//!         dense bytes -> pinned, with room around each part     stream `down`
//! ```
//!
//! Up to three batches are between the two at once. What an application has on the device is copied
//! into the padded slices when it is handed over, by its own thread.
//!
//! | edge | producer | consumer | guards |
//! |---|---|---|---|
//! | [`UPLOADED`] | copy of a slab (`up`) | scatter (`compute`) | the slab on the device |
//! | [`AGGREGATED`] | gather (`compute`) | copies (`down`) | offsets and dense bytes |
//! | [`ANSWERED`] | copy of the offsets (`down`) | this thread | offsets in pinned memory, and with it the padded slices, in pinned memory and on the device |
//! | [`FETCHED`] | copies of the dense bytes (`down`) | this thread | the output, and the dense bytes |
//! | `MADE` | the application's stream | copy of its bytes (`up`) | the application's memory |
//! | `TAKEN` | copy of its bytes (`up`) | the application | the same |
//!
//! A batch has its buffers until it is complete, so that nothing else of two batches needs an edge:
//! what only kernels use is in one stream. `MADE` and `TAKEN` are in `from_device`. Beside that the
//! host waits for whole streams: `PADDED` and `BROUGHT_BACK` of an input (`buffers`), and after
//! something failed `DRAINED` (`shared`).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::answer::{Answer, Layout};
use super::buffers::{CudaInput, CudaOutput};
use super::on_host::{self, TOO_LONG, Whole};
use super::shared::Shared;
use super::sizing::{self, Flight, StreamSizing};
use crate::engine::EngineError;
use crate::engine::cuda::compression::compress;
use crate::engine::cuda::driver::{Access, DeviceSpan, DriverError, EventId, Fault, Site, Span};
use crate::engine::cuda::fallback::reason;
use crate::engine::cuda::kernels::crc32c;
use crate::engine::cuda::kernels::scatter::Scatter;
use crate::engine::cuda::kernels::spans::{Lengths, Slots};
use crate::engine::cuda::metrics::TimedStage;
use crate::engine::cuda::session::{FreeEvents, Session, Timed};
use crate::engine::cuda::sizing::Region;
use crate::engine::host::encode_subchunk;
use crate::engine::stream::{EncodedBatch, Encoder, FailedBatch, Input};
use crate::layout::{self, Batch, BatchGrid, Lift, LiftBatch, LiftSlab, ShardPermutation, Slab};

/// A slab is on the device.
const UPLOADED: Site = Site("record: a slab of a stream was copied to the device");
const UPLOADED_WAIT: Site = Site("wait: scatter for its slab of a stream");
/// Offsets and dense bytes of a batch are complete.
const AGGREGATED: Site = Site("record: a batch of a stream was aggregated");
const AGGREGATED_WAIT: Site = Site("wait: copies from the device for their batch of a stream");
/// The offsets of a batch are in pinned memory.
const ANSWERED: Site = Site("record: the offsets of a stream's batch were copied from the device");
const ANSWERED_HOST: Site = Site("synchronise: the offsets of a stream's batch");
/// The batch is in its output.
const FETCHED: Site = Site("record: a batch of a stream was copied from the device");
const FETCHED_HOST: Site = Site("synchronise: a batch of a stream before it is read");

/// What is wrong with an input, in errors.
const ANOTHER: &str = "an input of another stream";

/// A call of an encoder, in the stream's lane.
pub(super) type StreamSession<'l> = Session<'l, StreamSizing>;

/// A batch that was submitted.
#[derive(Debug)]
struct UnderWay {
    /// `None` if it is another engine's.
    input: Option<Box<CudaInput>>,
    batch: Arc<BatchGrid>,
    enqueued: Result<Enqueued, EngineError>,
}

/// What was put into the streams for it.
#[derive(Debug)]
struct Enqueued {
    /// The number of its buffers.
    flight: usize,
    answered: EventId,
    /// Begin and end of each copy to the device.
    uploads: Vec<[EventId; 2]>,
    timed: Vec<Timed>,
}

impl Enqueued {
    fn events(&self) -> impl Iterator<Item = EventId> {
        let uploads = self.uploads.iter().flatten().copied();
        let timed = self.timed.iter().flat_map(|timed| [timed.begin, timed.end]);
        uploads.chain(timed).chain([self.answered])
    }
}

/// The encoder of a stream.
#[derive(Debug)]
pub(super) struct CudaEncoder {
    shared: Arc<Shared>,
    under_way: VecDeque<UnderWay>,
    /// Buffers that no batch has.
    flights: Vec<usize>,
    /// Events that stand for nothing.
    free: Vec<EventId>,
    /// Whether it was told that the host encodes all the rest.
    told: bool,
}

impl CudaEncoder {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            under_way: VecDeque::new(),
            flights: (0..shared.sizing.flights.len()).rev().collect(),
            free: Vec::new(),
            told: false,
            shared,
        }
    }

    /// Do `work` in the lane.
    fn in_lane<T>(
        &mut self,
        work: impl FnOnce(&StreamSession<'_>) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let shared = self.shared.clone();
        let (entered, lane) = shared.enter()?;
        let session = Session {
            lane,
            sizing: &shared.sizing,
            events: FreeEvents::of(lane, std::mem::take(&mut self.free)),
            copiers: &shared.devices.copiers,
            counters: &shared.devices.counters,
        };
        let result = work(&session);
        self.free = session.events.into_free();
        if let Err(EngineError::Device(error)) = &result {
            // It may be the device that is broken, and not just this operation.
            let _ = shared.device().watch::<()>(Err(error.clone()));
        }
        drop(entered);
        result
    }

    fn enqueue(&mut self, input: &CudaInput, batch: &BatchGrid) -> Result<Enqueued, EngineError> {
        let flight = self.flights.pop().ok_or(EngineError::Internal(
            "more batches under way than an encoder takes",
        ))?;
        let shared = self.shared.clone();
        let enqueued = self.in_lane(|session| enqueue(session, &shared, input, batch, flight));
        if enqueued.is_err() {
            self.after_fault(Some(flight));
        }
        enqueued
    }

    /// Something failed: let nothing be under way that nobody knows of.
    fn after_fault(&mut self, flight: Option<usize>) {
        self.shared.drain();
        self.flights.extend(flight);
        let enqueued = self
            .under_way
            .iter()
            .filter_map(|u| u.enqueued.as_ref().ok());
        let known: Vec<EventId> = enqueued.flat_map(Enqueued::events).collect();
        self.free = self.shared.events();
        self.free.retain(|event| !known.contains(event));
    }

    /// A batch failed, and comes again: let those behind it come again, too, so that all are encoded in
    /// their order, and none has an output that an earlier one waits for.
    fn hand_back(&mut self, error: &EngineError) {
        let mut flights = Vec::new();
        for behind in &mut self.under_way {
            if let Ok(enqueued) = &behind.enqueued {
                flights.push(enqueued.flight);
                behind.enqueued = Err(EngineError::Device(DriverError {
                    operation: "encoding a batch of a stream".to_string(),
                    device: Some(self.shared.device().info().ordinal),
                    fault: Fault::Refused,
                    reason: format!("one before it has failed: {error}"),
                }));
            }
        }
        if !flights.is_empty() {
            self.after_fault(None);
            self.flights.extend(flights);
        }
    }

    /// What comes of a batch that a device has failed on, and that nothing is under way of.
    fn on_host(
        &mut self,
        error: EngineError,
        mut input: Box<CudaInput>,
        batch: &BatchGrid,
        output: Result<CudaOutput, EngineError>,
    ) -> Result<EncodedBatch, FailedBatch> {
        if !self.shared.falls_back {
            return Err(FailedBatch { error, input });
        }
        self.tell(&error);
        let encoded = output.and_then(|mut output| {
            self.bring_back(&mut input, &error)?;
            let parts = on_host::encode(&input, batch, &mut output)?;
            Ok((output, parts))
        });
        match encoded {
            Ok((output, parts)) => Ok(EncodedBatch {
                output: Box::new(output),
                parts,
            }),
            Err(error) => Err(FailedBatch { error, input }),
        }
    }

    /// Count and tell why a batch goes to the host.
    fn tell(&mut self, error: &EngineError) {
        self.shared.devices.counters.fell_back(&reason(error));
        if std::mem::replace(&mut self.told, self.shared.lost().is_some()) {
            tracing::debug!(%error, "another batch of a stream goes to the host");
        } else {
            tracing::warn!(%error, "a CUDA device failed; a batch of a stream goes to the host");
        }
    }

    /// See to it that the host has all of the input. After `error`, it may not be possible.
    fn bring_back(
        &mut self,
        input: &mut CudaInput,
        error: &EngineError,
    ) -> Result<(), EngineError> {
        if !input.is_partly_on_device() {
            return Ok(());
        }
        self.in_lane(|session| Ok(input.bring_back(session.lane)?))
            .map_err(|cannot| {
                self.after_fault(None);
                EngineError::Device(DriverError {
                    operation: "copying a batch of a stream back to the host".to_string(),
                    device: Some(self.shared.device().info().ordinal),
                    fault: Fault::Refused,
                    reason: format!(
                        "{cannot}; a batch has bytes that only the device has, which could not be encoded there: {error}. They are lost, and so is the stream"
                    ),
                })
            })
    }
}

impl Encoder for CudaEncoder {
    fn depth(&self) -> usize {
        self.shared.sizing.flights.len()
    }

    fn submit(&mut self, input: Box<dyn Input>, batch: Arc<BatchGrid>) {
        let _span = tracing::debug_span!("submit", epochs = batch.epochs()).entered();
        let input = input.into_any().downcast::<CudaInput>().ok();
        let input = input.filter(|input| Arc::ptr_eq(&input.shared, &self.shared));
        let enqueued = match &input {
            Some(input) => self.enqueue(input, &batch),
            None => Err(EngineError::Internal(ANOTHER)),
        };
        self.under_way.push_back(UnderWay {
            input,
            batch,
            enqueued,
        });
    }

    fn complete(&mut self) -> Option<Result<EncodedBatch, FailedBatch>> {
        self.under_way.pop_front().map(|oldest| {
            let completed = self.complete_one(oldest);
            if let Err(failed) = &completed {
                self.hand_back(&failed.error);
            }
            completed
        })
    }
}

impl CudaEncoder {
    fn complete_one(&mut self, oldest: UnderWay) -> Result<EncodedBatch, FailedBatch> {
        let UnderWay {
            input,
            batch,
            enqueued,
        } = oldest;
        let Some(mut input) = input else {
            return Err(FailedBatch {
                error: EngineError::Internal(ANOTHER),
                input: Box::new(NoInput),
            });
        };
        let _span = tracing::debug_span!("complete", epochs = batch.epochs()).entered();
        let mut output = CudaOutput::take(&self.shared);
        let shared = self.shared.clone();
        let (flight, fetched) = match enqueued {
            Ok(enqueued) => {
                let flight = enqueued.flight;
                let fetched = match &mut output {
                    Ok(output) => self.in_lane(|session| {
                        fetch(session, &shared, enqueued, &mut input, &batch, output)
                    }),
                    Err(_) => Err(EngineError::Internal("a batch without an output")),
                };
                (Some(flight), fetched)
            }
            Err(error) => (None, Err(error)),
        };
        match (fetched, output) {
            (Ok(layout), Ok(mut output)) => {
                self.flights.extend(flight);
                shared.devices.counters.batch_encoded();
                output.truncate(layout.len);
                Ok(EncodedBatch {
                    output: Box::new(output),
                    parts: layout.parts,
                })
            }
            (fetched, mut output) => {
                if flight.is_some() {
                    self.after_fault(flight);
                    if shared.lost().is_some()
                        && let Ok(pinned) = &mut output
                        && let Err(error) = pinned.replace()
                    {
                        output = Err(error);
                    }
                }
                let error = fetched
                    .err()
                    .unwrap_or(EngineError::Internal("a batch without an output"));
                self.on_host(error, input, &batch, output)
            }
        }
    }
}

/// Put a batch into the streams, up to the copy of its offsets.
fn enqueue(
    session: &StreamSession<'_>,
    shared: &Shared,
    input: &CudaInput,
    batch: &BatchGrid,
    number: usize,
) -> Result<Enqueued, EngineError> {
    let (lane, sizing, job) = (session.lane, session.sizing, &shared.job);
    let flight = &sizing.flights[number];
    let permutation = sizing::permutation(&job.grid, batch.epochs())
        .map_err(|error| session.refused("planning an aggregation", &error))?;
    let count = batch.subchunks();
    if batch.epochs() > job.epochs || permutation.padded_slots() * 8 >= flight.offsets.len {
        return Err(TOO_LONG);
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
    let (offsets, failed) = answer_of(flight, &permutation, shared.prepared.is_some());
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
fn answer_of(
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
        counts: sizing::counts(&job.grid, batch.epochs()),
        origin: vec![0; grid.counts().len()],
    };
    let (pinned, raw) = input.regions();
    let from_host = input.from_host(batch.epochs());
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
        order: &shared.chain.order,
        slot_stride: session.sizing.slot_stride,
    };
    let slab = LiftSlab {
        start: &slab.start,
        shape: &slab.shape,
    };
    let lift = Lift::new(&batch, &slab)
        .map_err(|error| session.refused("lifting a slab of a stream", &error))?;
    Scatter::new(&lift, shared.chain.swap, &shared.job.fill_value)
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
    let before = match &shared.prepared {
        Some(prepared) => prepared.compression.before,
        None => shared.chain.stages.len(),
    };
    let bytes = shared.job.grid.shard().subchunk_bytes();
    let lengths = |stage| Lengths::All(bytes + stage * crc32c::CHECKSUM);
    session.checksums(before, slots(0, count), lengths, stored, timed)?;
    let (mut encoded, mut lengths) = (slots(0, count), Lengths::All(sizing.encoded));
    if let (Some(prepared), Some(compressing)) = (&shared.prepared, &sizing.compressing) {
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

/// Bring a batch to its output.
fn fetch(
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
    let permutation = sizing::permutation(&shared.job.grid, batch.epochs())
        .map_err(|error| session.refused("planning an aggregation", &error))?;
    lane.driver.synchronize(enqueued.answered, ANSWERED_HOST)?;
    let (offsets, failed) = answer_of(flight, &permutation, shared.prepared.is_some());
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
    let whole = Whole::new(&shared.job, batch)?;
    let job = whole.job(&shared.job, &shared.chain);
    let decoded = input.bytes(batch.epochs());
    let encoded: Vec<_> = answer
        .failed()
        .map(|number| {
            session.counters.subchunk_on_host();
            Ok((
                number,
                encode_subchunk(&job, &shared.chain, decoded, number)?,
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

/// What there is to hand back where there is no input.
#[derive(Debug)]
struct NoInput;

impl Input for NoInput {
    fn write(&mut self, _: usize, _: &[u8]) -> Result<(), EngineError> {
        Err(EngineError::Internal(ANOTHER))
    }

    fn read(&mut self, _: usize, _: &mut [u8]) -> Result<(), EngineError> {
        Err(EngineError::Internal(ANOTHER))
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send> {
        self
    }
}

//! Encodes batches of a stream on a device.
//!
//! ```text
//! for each batch
//!     submit
//!         for each slab of its padded slices
//!             pinned -> device                    stream `up`
//!             slab -> slots, stored?              stream `compute`: scatter
//!         slots -> slots with checksums           stream `compute`: crc32c
//!         slots -> frames                         stream `compute`: compression, some at a time
//!         frames -> frames with checksums         stream `compute`: crc32c
//!         slots or frames -> offsets, dense bytes by shards     stream `compute`: permute, scan, gather
//!         offsets, outcomes -> pinned             stream `answers`
//!     wait, unless another batch can be submitted
//!     complete
//!         subchunks that failed -> pinned         by the host, on this thread
//!         dense bytes -> pinned, with room around each large part   stream `down`
//!         small parts -> to their places          by the host, on this thread
//! ```
//!
//! Up to three batches are between `submit` and `complete` at once. Bytes that an application has on the
//! device are copied into the padded slices when they are handed over, by the application's thread. The same
//! thread makes slices that are reduced from those of another stream, the level above. Reductions run in the
//! stream `up`, after which `UPLOADED` orders them like copies.
//!
//! | edge | producer | consumer | guards |
//! |---|---|---|---|
//! | `UPLOADED` | copy of a slab (`up`) | scatter (`compute`) | the slab on the device |
//! | `AGGREGATED` | gather (`compute`) | copy of the offsets (`answers`) | offsets and dense bytes |
//! | `ANSWERED` | copy of the offsets (`answers`) | this thread | offsets in pinned memory, and with them the dense bytes, and the padded slices in pinned memory and on the device |
//! | `FETCHED` | copies of the dense bytes (`down`) | this thread | the output, and the dense bytes |
//! | `MADE` | the application's stream | copy of its bytes (`up`) | the application's memory |
//! | `SOURCE` | copies of slices of the level above (`up`, above) | a reduction (`up`) | the padded slices above, on the device |
//! | `REDUCED` | a reduction (`up`, below) | copy of the offsets (`answers`) | the same: `ANSWERED` then says that they were read |
//! | `TAKEN` | copy of its bytes (`up`) | the application | the same |
//!
//! A batch has its buffers until it is complete, so two batches need no other edges. Buffers that
//! only kernels use are ordered by their stream: batches take turns with the streams of kernels, and
//! `compute` is the batch's. `AGGREGATED` and `ANSWERED` are in
//! `cuda/enqueue.rs`, shared with the encoding of shards; `UPLOADED` is in `enqueue`, `FETCHED` in
//! `fetch`, `MADE` and `TAKEN` in `from_device`, `SOURCE` in `reduce`, `REDUCED` in `reading`. Besides, the host waits for whole streams:
//! `PADDED` and `BROUGHT_BACK` of an input (`input`), `KEPT_HOST` and `REDUCED_HOST` of a reduction
//! (`reduce`, `reading`), and `DRAINED` after a failure (`shared`).

use std::collections::VecDeque;
use std::sync::Arc;

use super::check::{BatchBuffers, BatchCheck, UncheckedSlices};
use super::enqueue::{Enqueued, enqueue};
use super::fetch::{ANSWERED_HOST, fetch};
use super::input::CudaInput;
use super::layout::Layout;
use super::output::CudaOutput;
use super::shared::StreamLane;
use crate::contract::EngineError;
use crate::contract::coded_bytes::StoredBytes;
use crate::contract::stream::{BatchInput, EncodedBatch, Encoder, FailedBatch};
use crate::cuda::check_progress::{Source, Work};
use crate::cuda::driver::{DriverError, EventId, Fault};
use crate::cuda::lane::Events;
use crate::cuda::session::{FreeEvents, Session};
use crate::layout::BatchGrid;

/// The error for an input that belongs to another stream.
const ANOTHER: &str = "an input of another stream";

/// A batch that was submitted, and is not complete.
#[derive(Debug)]
struct UnderWay {
    /// The input of the batch; `None` if the submitted input belongs to another stream.
    input: Option<Box<CudaInput>>,
    batch: Arc<BatchGrid>,
    enqueued: Result<Enqueued, EngineError>,
    /// Whether the batch is handed back to the caller, which submits it again, since an earlier batch has
    /// failed.
    handed_back: bool,
}

/// The encoder of a stream.
#[derive(Debug)]
pub(super) struct CudaEncoder {
    shared: Arc<StreamLane>,
    under_way: VecDeque<UnderWay>,
    /// The numbers of the buffers that no batch uses. They take turns, so that each is used.
    flights: VecDeque<usize>,
    /// The events of the lane that nothing uses.
    free: Events,
    unchecked: UncheckedSlices,
}

impl CudaEncoder {
    pub(super) fn new(shared: Arc<StreamLane>) -> Self {
        Self {
            under_way: VecDeque::new(),
            flights: (0..shared.sizing.lane.batches.len()).collect(),
            free: Events::default(),
            unchecked: UncheckedSlices::default(),
            shared,
        }
    }

    /// Runs `work` in the lane of the stream.
    fn in_lane<T>(
        &mut self,
        work: impl FnOnce(&Session<'_>) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let shared = self.shared.clone();
        let (entered, lane) = shared.enter()?;
        let session = Session {
            lane,
            sizing: &shared.sizing.lane,
            events: FreeEvents::of(lane, std::mem::take(&mut self.free)),
            copiers: shared.devices.copiers_of(shared.device()),
            counters: &shared.devices.counters,
            times: shared.times,
        };
        let result = work(&session);
        self.free = session.events.into_free();
        if let Err(EngineError::Device(error)) = &result
            && error.fault != Fault::Wrong
        {
            // If the error means that the device is broken, `watch` quarantines the device. After wrong data,
            // the lane is drained first.
            let _ = shared.device().watch::<()>(Err(error.clone()));
        }
        drop(entered);
        result
    }

    fn enqueue(&mut self, input: &CudaInput, batch: &BatchGrid) -> Result<Enqueued, EngineError> {
        let flight = self.flights.pop_front().ok_or(EngineError::Internal(
            "more batches under way than an encoder takes",
        ))?;
        let shared = self.shared.clone();
        let enqueued = self.in_lane(|session| enqueue(session, &shared, input, batch, flight));
        if enqueued.is_err() {
            self.after_fault(Some(flight));
        }
        enqueued
    }

    /// Drains the lane after a failure, and makes the buffers `flight` free. Events that no submitted batch
    /// uses become free, too.
    fn after_fault(&mut self, flight: Option<usize>) {
        self.shared.drain();
        self.flights.extend(flight);
        let enqueued = self
            .under_way
            .iter()
            .filter_map(|u| u.enqueued.as_ref().ok());
        let known: Vec<EventId> = enqueued.flat_map(Enqueued::events).collect();
        self.free = self.shared.events();
        self.free.retain(|event| !known.contains(&event));
    }

    /// Marks all batches behind the failed one to be handed back. So all batches are encoded in order, and no
    /// later batch holds an output for which an earlier batch waits.
    fn hand_back(&mut self, error: &EngineError) {
        let mut flights = Vec::new();
        for behind in &mut self.under_way {
            behind.handed_back = true;
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

    /// Encodes a batch on the host after the device has failed on it, if the stream has a fallback. No
    /// operation of the batch is in flight.
    fn fall_back(
        &mut self,
        error: EngineError,
        mut input: Box<CudaInput>,
        batch: &BatchGrid,
        output: Result<CudaOutput, EngineError>,
    ) -> Result<EncodedBatch, FailedBatch> {
        self.stop_if_distrusted();
        if let Some(stopped) = self.shared.stopped() {
            let error = EngineError::Device(stopped.clone());
            return Err(FailedBatch { error, input });
        }
        let Some(fallback) = self.shared.fallback.clone() else {
            return Err(FailedBatch { error, input });
        };
        fallback.tell(&error, self.shared.lost().is_some());
        let encoded = output.and_then(|mut output| {
            self.bring_back(&mut input, &error)?;
            let padded = input.bytes(batch.epochs());
            let (parts, len) = fallback.encode(batch, padded, output.as_mut())?;
            output.truncate(len);
            Ok((output, parts))
        });
        match encoded {
            Ok((output, parts)) => {
                self.unchecked.by_host(self.slices(batch));
                Ok(EncodedBatch {
                    output: Box::new(output),
                    parts,
                })
            }
            Err(error) => Err(FailedBatch { error, input }),
        }
    }

    /// Stops the stream if the device returned wrong data for other work, and slices of this stream were
    /// returned without a comparison: these slices may be wrong, too.
    fn stop_if_distrusted(&self) {
        let device = self.shared.device();
        if device.returned_wrong_data()
            && let Some(unchecked) = self.unchecked.since_comparison()
            && let Err(mut error) = device.check_usable()
        {
            error.reason = format!("{}; {unchecked}", error.reason);
            self.shared.stop(error);
        }
    }

    /// Ensures that the host has all bytes of the input. After the failure `error`, this may be impossible.
    fn bring_back(
        &mut self,
        input: &mut CudaInput,
        error: &EngineError,
    ) -> Result<(), EngineError> {
        if !input.lacks_bytes() {
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
        self.shared.sizing.lane.batches.len()
    }

    fn prepare(&mut self) -> bool {
        self.shared.has_output()
    }

    fn submit(&mut self, input: Box<dyn BatchInput>, batch: Arc<BatchGrid>) {
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
            handed_back: false,
        });
    }

    fn wait(&mut self, stop: &dyn Fn() -> bool) -> bool {
        let Some(UnderWay {
            enqueued: Ok(enqueued),
            ..
        }) = self.under_way.front()
        else {
            return true;
        };
        let answered = enqueued.answered;
        let waited = self.in_lane(|session| {
            let lane = session.lane;
            Ok(lane.synchronize_unless(answered, ANSWERED_HOST, stop)?)
        });
        // After an error, `complete` waits again, and meets the same error unless the error was transient.
        waited.unwrap_or(true)
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

    fn end(&mut self) -> Result<(), EngineError> {
        self.stop_if_distrusted();
        let stopped = self.shared.stopped().cloned();
        stopped.map_or(Ok(()), |error| Err(EngineError::Device(error)))
    }
}

impl CudaEncoder {
    fn complete_one(&mut self, oldest: UnderWay) -> Result<EncodedBatch, FailedBatch> {
        let UnderWay {
            input,
            batch,
            enqueued,
            handed_back,
        } = oldest;
        let Some(mut input) = input else {
            return Err(FailedBatch {
                error: EngineError::Internal(ANOTHER),
                input: Box::new(NoInput),
            });
        };
        if let Some(stopped) = self.shared.stopped() {
            // No batch is enqueued any more.
            let error = EngineError::Device(stopped.clone());
            return Err(FailedBatch { error, input });
        }
        if handed_back && let Err(error) = enqueued {
            return Err(FailedBatch { error, input });
        }
        let _span = tracing::debug_span!("complete", epochs = batch.epochs()).entered();
        let mut output = CudaOutput::take(&self.shared);
        let shared = self.shared.clone();
        let (flight, fetched) = match enqueued {
            Ok(enqueued) => {
                let flight = enqueued.flight;
                let fetched = match &mut output {
                    Ok(output) => self
                        .in_lane(|session| {
                            fetch(session, &shared, enqueued, &mut input, &batch, output)
                        })
                        .map_err(|error| {
                            let (source, _) = input.comparison(Source::Host);
                            (shared.checks()).with_unchecked(Work::Stream(source), error)
                        }),
                    Err(_) => Err(EngineError::Internal("a batch without an output")),
                };
                (Some(flight), fetched)
            }
            Err(error) => (None, Err(error)),
        };
        let fetched = match (&output, flight) {
            (Ok(output), Some(flight)) => fetched.and_then(|layout| {
                self.check(&mut input, &batch, &layout, output, flight)?;
                Ok(layout)
            }),
            _ => fetched,
        };
        match (fetched, output) {
            (Ok(layout), Ok(mut output)) => {
                self.flights.extend(flight);
                let bytes = shared.job.grid.shard().subchunk_bytes();
                let bytes = StoredBytes::of_parts(bytes, &layout.parts);
                shared.devices.counters.batch_encoded(bytes);
                output.truncate(layout.len);
                Ok(EncodedBatch {
                    output: Box::new(output),
                    parts: layout.parts,
                })
            }
            (fetched, mut output) => {
                let error = fetched
                    .err()
                    .unwrap_or(EngineError::Internal("a batch without an output"));
                if flight.is_some() {
                    self.after_fault(flight);
                    shared.stop_if_wrong(&error);
                    if shared.lost().is_some()
                        && let Ok(pinned) = &mut output
                        && let Err(error) = pinned.replace()
                    {
                        output = Err(error);
                    }
                }
                self.fall_back(error, input, &batch, output)
            }
        }
    }

    /// Checks a batch that was copied to `output`, before it is returned.
    fn check(
        &mut self,
        input: &mut CudaInput,
        batch: &BatchGrid,
        layout: &Layout,
        output: &CudaOutput,
        flight: usize,
    ) -> Result<(), EngineError> {
        let shared = self.shared.clone();
        let (_, is_due) = input.comparison(Source::Host);
        if is_due && input.lacks_bytes() {
            self.in_lane(|session| Ok(input.bring_back(session.lane)?))?;
        }
        let buffers = BatchBuffers {
            lane: shared.lane_number()?,
            flight,
            input: input.number(),
            output: output.number(),
        };
        let bytes = output.as_ref();
        let checked = shared.check_batch(
            input,
            batch,
            &layout.subchunks,
            bytes,
            buffers,
            &self.unchecked,
        )?;
        let slices = self.slices(batch);
        match checked {
            BatchCheck::Compared => self.unchecked.returned(slices, true),
            BatchCheck::NotCompared => self.unchecked.returned(slices, false),
            BatchCheck::NothingMade => self.unchecked.by_host(slices),
        }
        Ok(())
    }

    /// Returns the number of slices of a batch.
    fn slices(&self, batch: &BatchGrid) -> usize {
        batch.epochs() * self.shared.job.grid.epoch_slices()
    }
}

/// Stands for the input that is handed back with the error if the submitted input belongs to another stream.
#[derive(Debug)]
struct NoInput;

impl BatchInput for NoInput {
    fn write(&mut self, _: usize, _: &[u8]) -> Result<(), EngineError> {
        Err(EngineError::Internal(ANOTHER))
    }

    fn read(&mut self, _: usize, _: &mut [u8]) -> Result<(), EngineError> {
        Err(EngineError::Internal(ANOTHER))
    }

    fn as_any_mut(&mut self) -> &mut dyn std::any::Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send> {
        self
    }
}

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
//! | `UPLOADED` | copy of a slab (`up`) | scatter (`compute`) | the slab on the device |
//! | `AGGREGATED` | gather (`compute`) | copies (`down`) | offsets and dense bytes |
//! | `ANSWERED` | copy of the offsets (`down`) | this thread | offsets in pinned memory, and with it the padded slices, in pinned memory and on the device |
//! | `FETCHED` | copies of the dense bytes (`down`) | this thread | the output, and the dense bytes |
//! | `MADE` | the application's stream | copy of its bytes (`up`) | the application's memory |
//! | `TAKEN` | copy of its bytes (`up`) | the application | the same |
//!
//! A batch has its buffers until it is complete, so that nothing else of two batches needs an edge:
//! what only kernels use is in one stream. `AGGREGATED` and `ANSWERED` are those of shards, in
//! `cuda/enqueue.rs`; `UPLOADED` is in `enqueue`, `FETCHED` in `fetch`, `MADE` and `TAKEN` in
//! `from_device`. Beside that the host waits for whole streams: `PADDED` and `BROUGHT_BACK` of an input (`buffers`), and after
//! something failed `DRAINED` (`shared`).

use std::collections::VecDeque;
use std::sync::Arc;

use super::buffers::{CudaInput, CudaOutput};
use super::enqueue::{Enqueued, enqueue};
use super::fetch::fetch;
use super::shared::Shared;
use crate::engine::EngineError;
use crate::engine::cuda::driver::{DriverError, EventId, Fault};
use crate::engine::cuda::session::{FreeEvents, Session};
use crate::engine::stream::{EncodedBatch, Encoder, FailedBatch, Input};
use crate::layout::BatchGrid;

/// What is wrong with an input, in errors.
const ANOTHER: &str = "an input of another stream";

/// A batch that was submitted.
#[derive(Debug)]
struct UnderWay {
    /// `None` if it is another engine's.
    input: Option<Box<CudaInput>>,
    batch: Arc<BatchGrid>,
    enqueued: Result<Enqueued, EngineError>,
    /// Whether it comes again, behind one before it that has failed.
    handed_back: bool,
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
}

impl CudaEncoder {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            under_way: VecDeque::new(),
            flights: (0..shared.sizing.lane.batches.len()).rev().collect(),
            free: Vec::new(),
            shared,
        }
    }

    /// Do `work` in the lane.
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

    /// What comes of a batch that a device has failed on, and that nothing is under way of.
    fn fall_back(
        &mut self,
        error: EngineError,
        mut input: Box<CudaInput>,
        batch: &BatchGrid,
        output: Result<CudaOutput, EngineError>,
    ) -> Result<EncodedBatch, FailedBatch> {
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
            Ok((output, parts)) => Ok(EncodedBatch {
                output: Box::new(output),
                parts,
            }),
            Err(error) => Err(FailedBatch { error, input }),
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
        self.shared.sizing.lane.batches.len()
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
            handed_back: false,
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
            handed_back,
        } = oldest;
        let Some(mut input) = input else {
            return Err(FailedBatch {
                error: EngineError::Internal(ANOTHER),
                input: Box::new(NoInput),
            });
        };
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
                self.fall_back(error, input, &batch, output)
            }
        }
    }
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

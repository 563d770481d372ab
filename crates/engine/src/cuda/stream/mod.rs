//! Streams of slices, encoded on a device, in batches of epochs.
//!
//! A stream has its own lane, for as long as anything of the stream is in use. A stream may run for hours,
//! and would otherwise take a lane from the pool for that time. The lane is allocated when the stream is
//! created, but for the pinned memory of all inputs except the first, which a thread allocates later.
//!
//! | file | what it does |
//! |---|---|
//! | `padding` | the slices of a batch as a box of whole subchunks |
//! | `sizing` | the memory of a stream: estimated, allocated and divided by the same numbers |
//! | `shared` | the lane, and the free buffers |
//! | `input`, `output` | inputs and outputs, in pinned memory |
//! | `inputs` | the free inputs, most of which are allocated while the first is filled |
//! | `from_device`, `ranges` | bytes that an application has on the device |
//! | `reduce`, `reduction`, `reading` | slices that the device makes from those of another stream: enqueued, planned, waited for |
//! | `encoder` | batches; begins with the order of all operations, and with all edges |
//! | `enqueue`, `fetch` | a batch, enqueued in the streams of the lane, and fetched from there |
//! | `layout` | where the subchunks of a batch go |
//! | `check` | checks a batch before it is returned |

mod check;
mod encoder;
mod enqueue;
mod fetch;
mod from_device;
mod input;
mod inputs;
mod layout;
mod output;
mod padding;
mod ranges;
mod reading;
mod reduce;
mod reduction;
mod shared;
mod sizing;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::driver::Fault;
use super::engine::CudaEngine;
use super::sizing::ShardKind;
use crate::contract::BufferBytes;
use crate::contract::EngineError;
use crate::contract::stream::{
    BatchFallback, BatchInput, Encoder, Returned, StreamChain, StreamEngine, StreamJob, Windows,
};
use encoder::CudaEncoder;
use input::CudaInput;
use shared::{StreamLane, StreamPlan};
use sizing::StreamSizing;

/// A stream on a device.
#[derive(Debug)]
pub(crate) struct CudaStream {
    shared: Arc<StreamLane>,
    has_encoder: AtomicBool,
}

impl CudaEngine {
    /// Returns the bytes of memory that a stream takes, computed as for its allocation.
    ///
    /// # Errors
    /// No device can run the stream, or none can within its budget. The error has the reason, and the remedy.
    /// Fewer epochs take less memory.
    pub fn stream_estimate(&self, job: &StreamJob) -> Result<BufferBytes, EngineError> {
        let (_, sizing) = self.plan_stream(job)?;
        self.devices
            .first(&self.limits, |budget| sizing.check(job, budget))?;
        Ok(sizing.estimate())
    }

    /// Creates a stream, with all of its memory but later inputs. `fallback` encodes a batch that fails on the device; without
    /// a fallback, the batch is handed back. `returned` is notified of buffers that come back.
    pub fn stream(
        &self,
        job: Arc<StreamJob>,
        returned: Arc<Returned>,
        fallback: Option<Arc<dyn BatchFallback>>,
    ) -> Result<Arc<dyn StreamEngine>, EngineError> {
        let (kind, sizing) = self.plan_stream(&job)?;
        let plan = StreamPlan {
            devices: self.devices.clone(),
            kind,
            sizing,
            fallback,
            returned,
            job,
            times: self.times,
            timeout: self.limits.timeout,
            check_every: self.check_every,
        };
        let shared = self.devices.on_first(&self.limits, |device, budget| {
            let check = plan.sizing.check(&plan.job, budget);
            check.map_err(EngineError::Unsuitable)?;
            match StreamLane::open(device, &plan) {
                Err(EngineError::Device(error)) if error.fault == Fault::OutOfMemory => {
                    // Idle lanes and spare memory may be the missing memory.
                    self.devices.release_idle();
                    self.devices.free_spare(device);
                    StreamLane::open(device, &plan)
                }
                opened => opened,
            }
        })?;
        tracing::debug!(
            device = shared.device().info().ordinal,
            epochs = plan.job.epochs,
            memory = ?plan.sizing.estimate(),
            "a stream on a CUDA device"
        );
        Ok(Arc::new(CudaStream {
            shared,
            has_encoder: AtomicBool::new(false),
        }))
    }

    fn plan_stream(&self, job: &StreamJob) -> Result<(Arc<ShardKind>, StreamSizing), EngineError> {
        let multiprocessors = self.multiprocessors();
        let at_once = StreamSizing::compressed_at_once(job, multiprocessors, self.tuning);
        let kind = self.kind_of_batches(job.grid.shard(), known(job)?, at_once)?;
        let sizing = StreamSizing::new(&kind, job, self.tuning).map_err(EngineError::Unsuitable)?;
        Ok((kind, sizing))
    }
}

/// Returns the chain of a job. The error says that the CUDA engine does not know the chain.
fn known(job: &StreamJob) -> Result<&crate::contract::KnownChain, EngineError> {
    match &job.chain {
        StreamChain::Known(chain) => Ok(chain),
        StreamChain::Foreign(_) => Err(EngineError::Unsuitable(
            "the inner codecs are not ones that the CUDA engine knows".to_string(),
        )),
    }
}

impl StreamEngine for CudaStream {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn input(&self, _new: bool) -> Result<Option<Box<dyn BatchInput>>, EngineError> {
        Ok(CudaInput::take(&self.shared).map(|input| Box::new(input) as Box<dyn BatchInput>))
    }

    #[cfg(test)]
    fn settle(&self) {
        self.shared.inputs.settle();
    }

    fn encoder(&self) -> Result<Box<dyn Encoder>, EngineError> {
        if self.has_encoder.swap(true, Ordering::Relaxed) {
            return Err(EngineError::Internal("a stream has one encoder"));
        }
        Ok(Box::new(CudaEncoder::new(self.shared.clone())))
    }

    fn can_reduce_from(&self, above: &dyn StreamEngine) -> bool {
        let Some(above) = above.as_any().downcast_ref::<Self>() else {
            return false;
        };
        let (shared, above) = (&self.shared, &above.shared);
        let planned = shared.sizing.reduction.as_ref();
        planned.is_some_and(|reduction| reduction.is_from(&above.job.grid))
            && Arc::ptr_eq(shared.device(), above.device())
            && shared.lost().is_none()
            && above.lost().is_none()
    }

    fn reduce(
        &self,
        windows: Windows<'_>,
        input: &mut dyn BatchInput,
        at: usize,
    ) -> Result<(), EngineError> {
        self.shared.reduce(windows, input, at)
    }

    fn keep(&self, above: &mut dyn BatchInput, slice: usize) -> Result<(), EngineError> {
        self.shared.keep(above, slice)
    }

    fn take_kept(&self, bytes: &mut [u8]) -> Result<(), EngineError> {
        self.shared.take_kept(bytes)
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

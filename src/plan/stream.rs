//! Chooses the engine that encodes a stream, and gives the reason.

use std::sync::Arc;
use std::time::Duration;

use super::consent::Selected;
use super::estimates::Work;
use super::rates::Direction;
use super::to_host::ToHost;
use super::{Chosen, Engines, device_work, devices_text, why_device};
use crate::error::Error;
use crate::metrics::MemoryEstimate;
use crate::options::Options;
use zarrs_cuda_engine::contract::stream::{
    BatchFallback, Returned, StreamChain, StreamEngine, StreamJob,
};
use zarrs_cuda_engine::contract::{EngineError, KnownChain};
use zarrs_cuda_engine::cuda::{CudaEngine, Devices};
use zarrs_cuda_engine::fallback::HostBatches;
use zarrs_cuda_engine::host::stream::{HostStream, encoded_bound, stream_memory};

/// The engine for a stream, and the reason for the choice.
#[derive(Clone, Debug)]
pub(crate) struct StreamChoice {
    device: Option<OnDevice>,
    /// The devices of a test. `None` for the devices of the process.
    given: Option<Arc<Devices>>,
    /// The reason for the choice, for users.
    pub(crate) why: String,
}

#[derive(Clone, Debug)]
struct OnDevice {
    engine: CudaEngine,
    /// Whether a batch that fails on the device is an error. If not, the host encodes the batch.
    strict: bool,
}

impl StreamChoice {
    /// Returns the choice of the host, for the reason `why`.
    pub(crate) fn host(why: impl Into<String>) -> Self {
        Self {
            device: None,
            given: None,
            why: why.into(),
        }
    }

    /// Returns whether a device encodes the stream.
    pub(crate) fn is_device(&self) -> bool {
        self.device.is_some()
    }

    /// Returns the largest number of bytes of page-locked memory that the stream may take; `None` if the host
    /// encodes it.
    pub(crate) fn pinned_budget(&self) -> Option<usize> {
        let device = self.device.as_ref()?;
        Some(device.engine.limits.pinned_memory)
    }

    /// Returns whether the host encodes batches that fail on the device.
    pub(crate) fn can_fall_back(&self) -> bool {
        self.device.as_ref().is_some_and(|device| !device.strict)
    }

    /// Returns whether the encoded bytes of each part of a batch of `chain` are one piece, around which room
    /// can be left.
    pub(crate) fn packs(&self, chain: &StreamChain) -> bool {
        self.is_device() || chain.is_fixed_size()
    }

    /// Returns the largest number of bytes of an encoded subchunk of `len` bytes, or `None` if a machine
    /// cannot address so many bytes.
    pub(crate) fn encoded_bound(chain: &StreamChain, len: usize) -> Option<usize> {
        encoded_bound(chain, len)
    }

    /// Returns a copier of elements on devices to the host; `None` if a device encodes the stream.
    /// Its waits for a device fail after `timeout`.
    pub(crate) fn to_host(&self, timeout: Duration) -> Option<ToHost> {
        (!self.is_device()).then(|| ToHost::new(self.given.clone(), timeout))
    }

    /// Returns the memory of the buffers for `job`.
    ///
    /// # Errors
    /// The reason why the buffers cannot be allocated.
    pub(crate) fn memory(&self, job: &StreamJob) -> Result<MemoryEstimate, EngineError> {
        let bytes = match &self.device {
            None => stream_memory(job),
            Some(device) => device.engine.stream_estimate(job),
        };
        bytes.map(MemoryEstimate::of)
    }

    /// Returns the engine of the choice, prepared for `job`.
    ///
    /// # Errors
    /// The error of the engine; [`EngineError::wants_less`] returns whether a job of fewer epochs may
    /// succeed.
    pub(crate) fn engine(
        &self,
        job: Arc<StreamJob>,
        returned: Arc<Returned>,
    ) -> Result<Arc<dyn StreamEngine>, EngineError> {
        let Some(OnDevice { engine, strict }) = &self.device else {
            return Ok(Arc::new(HostStream::new(job, &returned)?));
        };
        let fallback = (!strict).then(|| {
            let host = HostBatches::new(engine.clone(), job.clone());
            Arc::new(host) as Arc<dyn BatchFallback>
        });
        engine.stream(job, returned, fallback)
    }
}

impl Engines {
    /// Returns the engine that encodes a stream whose batches are like those of `job`, which has the smallest
    /// possible number of epochs.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`], with the reason, if a setting asks for a device and none can do the job.
    pub(crate) fn choose_stream(
        &self,
        options: &Options,
        job: &StreamJob,
    ) -> Result<StreamChoice, Error> {
        let chain = match &job.chain {
            StreamChain::Known(chain) => Ok(chain),
            StreamChain::Foreign(_) => {
                Err("the CUDA engine does not know the inner codecs".to_string())
            }
        };
        let device = |selected: &Selected| {
            let chain = chain.as_ref().map_err(String::clone)?;
            self.device(
                Direction::Encode,
                options,
                selected,
                job.grid.shard(),
                chain,
            )
        };
        let rule = |device: &CudaEngine| self.rule_of_stream(job, chain.as_ref().ok()?, device);
        let prepare = |device: CudaEngine, selected: &Selected| {
            let estimate = device.stream_estimate(job);
            estimate.map_err(|error| error.to_string())?;
            let devices = devices_text(&device.numbers()?, selected);
            Ok((device, devices))
        };
        Ok(match self.choose_place(options, device, rule, prepare)? {
            Chosen::Host(why) => StreamChoice {
                given: self.devices.clone(),
                ..StreamChoice::host(why)
            },
            Chosen::Device {
                prepared: (engine, devices),
                strict,
            } => StreamChoice {
                device: Some(OnDevice { engine, strict }),
                given: self.devices.clone(),
                why: format!("{}: {devices}", why_device(strict)),
            },
        })
    }

    /// Returns the reason why a stream stays on the host instead of `device`, or `None`. The reasons are those
    /// of a shard, except that all shards of a shard epoch are encoded together.
    fn rule_of_stream(
        &self,
        job: &StreamJob,
        chain: &KnownChain,
        device: &CudaEngine,
    ) -> Option<String> {
        if device.multiprocessors() == 0 {
            // No device is usable. The preparation finds the reason.
            return None;
        }
        let work = Work::of_stream(&job.grid, chain);
        let estimates = work.map(|work| {
            let at_once = device.most_at_once(job.grid.shard()).min(work.subchunks);
            let device = device_work(device, job.grid.shard(), chain, at_once);
            self.rule.estimates(&work, Some(device))
        });
        self.rule.on_host(estimates)
    }
}

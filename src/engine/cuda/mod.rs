//! The CUDA engine: stages in order of use, one file each, above a seam that is simulated in tests.
//!
//! | file | what it does |
//! |---|---|
//! | `driver` | the seam: allocate, copy, launch, record, wait; the CUDA driver, and a simulation |
//! | `kernels` | each kernel with the launch that it wants |
//! | `nvcomp` | NVIDIA's library of compressors, loaded at run time |
//! | `device` | a device of this process, and whether it can still be used |
//! | `sizing` | what a lane takes: estimated, allocated and divided by the same numbers |
//! | `lane` | streams, events, pinned and device memory of one shard in flight |
//! | `pool` | the lanes of all devices, under their budgets |
//! | `copiers` | threads that copy between the caller's memory and pinned memory |
//! | `session` | one shard in one lane: what encoding and decoding share |
//! | `encode`, `decode` | a whole shard |
//! | `fallback` | a device where it can, the host where it cannot |
//! | `metrics` | what was done, for applications to read |
//! | `measure` | how fast it is, for the benchmark |
//!
//! While a lane is held, nothing runs on rayon: see `copiers`.

#[allow(unsafe_code)]
mod copiers;
#[allow(unsafe_code)]
mod decode;
mod device;
mod driver;
#[allow(unsafe_code)]
mod encode;
mod fallback;
#[cfg(test)]
#[allow(unsafe_code)]
mod gpu;
#[allow(unsafe_code)]
mod kernels;
#[allow(unsafe_code)]
mod lane;
#[cfg(feature = "conformance")]
#[allow(unsafe_code)]
pub(crate) mod measure;
mod metrics;
#[allow(dead_code, unused_imports, reason = "for compressors on the device")]
#[allow(unsafe_code)]
mod nvcomp;
mod pool;
#[allow(unsafe_code)]
mod session;
mod sizing;
#[cfg(all(test, feature = "conformance"))]
mod tests;

use std::sync::{Arc, OnceLock};

pub(crate) use driver::DriverError;
pub(crate) use fallback::WithFallback;
pub use metrics::Metrics;
pub(crate) use pool::{Devices, Limits};
pub use sizing::MemoryEstimate;
pub(crate) use sizing::{Tuning, chain_on_device};

use super::host::HostEngine;
use super::{EncodedShard, EncodedSubchunk, Engine, EngineError, Job, KnownChain, Sink};
use crate::layout::{Extent, SubchunkGrid};
use driver::Fault;
use lane::Capacity;
use session::{FreeEvents, Session};
use sizing::Sizing;

/// Encodes and decodes whole shards on a device, or fails.
#[derive(Clone, Debug)]
pub(crate) struct CudaEngine {
    devices: Arc<Devices>,
    limits: Limits,
    tuning: Tuning,
}

impl CudaEngine {
    pub(crate) fn new(devices: Arc<Devices>, limits: Limits, tuning: Tuning) -> Self {
        Self {
            devices,
            limits,
            tuning,
        }
    }

    /// What a lane for shards of `grid` and `chain` takes: the numbers that it is allocated by.
    ///
    /// # Errors
    /// No device can be used, or none can have such a lane: why.
    pub(crate) fn memory_estimate(
        &self,
        grid: &SubchunkGrid,
        chain: &KnownChain,
    ) -> Result<MemoryEstimate, EngineError> {
        Ok(self.sizing(grid, chain)?.estimate())
    }

    /// Whether there is a device.
    ///
    /// # Errors
    /// Why there is none that can be used.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.devices.budget(&self.limits) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Where the CUDA engine counts.
    pub(crate) fn counters(&self) -> &metrics::Counters {
        &self.devices.counters
    }

    fn sizing(&self, grid: &SubchunkGrid, chain: &KnownChain) -> Result<Sizing, EngineError> {
        let budget = self
            .devices
            .budget(&self.limits)
            .map_err(EngineError::Device)?;
        Sizing::within(grid, chain, budget, self.tuning).map_err(EngineError::Unsuitable)
    }

    /// Run `work` in a lane. With no memory for the lane that was planned, try smaller batches.
    fn in_lane<T>(
        &self,
        job: &Job<'_>,
        chain: &KnownChain,
        work: impl Fn(&Session<'_>) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let mut sizing = self.sizing(job.grid, chain)?;
        let mut acquired = loop {
            match self.devices.acquire(Capacity::of(&sizing), &self.limits) {
                Ok(acquired) => break acquired,
                Err(error) if error.fault == Fault::OutOfMemory && sizing.batch > 1 => {
                    tracing::debug!(%error, batch = sizing.batch, "trying smaller batches");
                    self.devices.counters.batch_halved();
                    sizing = Sizing::new(job.grid, chain, sizing.batch / 2, self.tuning)
                        .map_err(EngineError::Unsuitable)?;
                }
                Err(error) => return Err(EngineError::Device(error)),
            }
        };
        let lane = acquired.lane().map_err(EngineError::Device)?;
        let device = lane.device().clone();
        let entered = device.enter().map_err(EngineError::Device)?;
        let result = device
            .watch(lane.start())
            .map_err(EngineError::Device)
            .and_then(|running| {
                let session = Session {
                    lane: running,
                    sizing: &sizing,
                    events: FreeEvents::new(running),
                    copiers: &self.devices.copiers,
                    counters: &self.devices.counters,
                };
                work(&session)
            });
        if let Err(EngineError::Device(error)) = &result {
            // It may be the device that is broken, and not just this operation.
            let _ = device.watch::<()>(Err(error.clone()));
        }
        drop(entered);
        if result.is_ok() {
            acquired.reusable();
        }
        result
    }
}

impl Engine for CudaEngine {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn encode(
        &self,
        job: &Job<'_>,
        decoded: &[u8],
        head: usize,
        tail: usize,
    ) -> Result<EncodedShard, EngineError> {
        let chain = sizing::on_device(job.grid, &job.chain).map_err(EngineError::Unsuitable)?;
        let expected = job.grid.shard_bytes();
        if decoded.len() != expected {
            return Err(EngineError::InputLength {
                got: decoded.len(),
                expected,
            });
        }
        let _span = tracing::debug_span!("encode", engine = "cuda", bytes = expected).entered();
        let encoded = self.in_lane(job, chain, |session| {
            encode::encode(session, job, chain, decoded, (head, tail))
        })?;
        self.devices.counters.shard_encoded();
        Ok(encoded)
    }

    fn decode(
        &self,
        job: &Job<'_>,
        encoded: &[u8],
        extents: &[Extent],
    ) -> Result<Vec<u8>, EngineError> {
        let chain = sizing::on_device(job.grid, &job.chain).map_err(EngineError::Unsuitable)?;
        decode::check(job, chain, encoded, extents)?;
        let _span =
            tracing::debug_span!("decode", engine = "cuda", bytes = encoded.len()).entered();
        let decoded = self.in_lane(job, chain, |session| {
            decode::decode(session, job, chain, encoded, extents)
        })?;
        self.devices.counters.shard_decoded();
        Ok(decoded)
    }

    fn decodes_whole_shards(&self) -> bool {
        true
    }

    /// On the host: single subchunks do not pay for the trip.
    fn decode_each(
        &self,
        job: &Job<'_>,
        subchunks: &[EncodedSubchunk<'_>],
        sink: &Sink<'_>,
    ) -> Result<(), EngineError> {
        HostEngine.decode_each(job, subchunks, sink)
    }
}

static DEVICES: OnceLock<Result<Arc<Devices>, DriverError>> = OnceLock::new();

/// What was done on the devices of this process.
pub(crate) fn metrics() -> Metrics {
    match DEVICES.get() {
        Some(Ok(devices)) => devices.counters.snapshot(),
        _ => Metrics::default(),
    }
}

/// Give back the memory of lanes that nobody uses now.
pub(crate) fn release_idle() {
    if let Some(Ok(devices)) = DEVICES.get() {
        devices.release_idle();
    }
}

/// The devices of this process, found when they are first asked for.
///
/// # Errors
/// There is none that can be used: why, and what to do.
pub(crate) fn devices() -> Result<Arc<Devices>, DriverError> {
    DEVICES
        .get_or_init(|| {
            let drivers = driver::cuda::open_all()?;
            for driver in &drivers {
                let device = driver.device();
                tracing::info!(
                    ordinal = device.ordinal,
                    name = device.name,
                    memory = device.total_memory,
                    "CUDA device"
                );
            }
            Ok(Devices::new(drivers))
        })
        .clone()
}

//! The CUDA engine: stages in order of use, one file each, above a seam that is simulated in tests.
//!
//! | file | what it does |
//! |---|---|
//! | `driver` | the seam: allocate, copy, launch, record, wait; the CUDA driver, and a simulation |
//! | `kernels` | each kernel with the launch that it wants |
//! | `device` | a device of this process, and whether it can still be used |
//! | `sizing` | what a lane takes: estimated, allocated and divided by the same numbers |
//! | `lane` | streams, events, pinned and device memory of one shard in flight |
//! | `pool` | the lanes of all devices, under their budgets |
//! | `copiers` | threads that copy between the caller's memory and pinned memory |
//! | `session` | one shard in one lane: what encoding and decoding share |
//! | `transfers` | the rings of pinned memory, to the device and back |
//! | `nvcomp` | NVIDIA's compressors: loaded, asked and called |
//! | `compression` | a chain's compressor: chunks in, frames out |
//! | `frame_parts`, `decompression` | the same, back: where the streams are, and chunks out of them |
//! | `encode`, `decode` | a whole shard |
//! | `stream` | slices in, batches of encoded subchunks out, in a lane of its own |
//! | `fallback` | a device where it can, the host where it cannot |
//! | `metrics` | what was done, for applications to read |
//!
//! While a lane is held, nothing runs on rayon: see `copiers`.

#[allow(unsafe_code)]
pub mod compression;
#[allow(unsafe_code)]
pub mod copiers;
#[allow(unsafe_code)]
mod decode;
#[allow(unsafe_code)]
mod decompression;
mod device;
mod driver;
#[allow(unsafe_code)]
pub mod encode;
mod fallback;
mod frame_parts;
#[cfg(feature = "internals")]
pub mod internals;
#[allow(unsafe_code)]
mod kernels;
#[allow(unsafe_code)]
mod lane;
mod metrics;
#[allow(unsafe_code)]
pub mod nvcomp;
mod pool;
#[allow(unsafe_code)]
pub mod session;
pub mod sizing;
#[allow(unsafe_code)]
mod stream;
#[cfg(test)]
mod tests;
mod transfers;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

pub(crate) use driver::DriverError;
pub(crate) use fallback::WithFallback;
pub use metrics::Metrics;
pub use pool::{Devices, Limits};
pub use sizing::MemoryEstimate;
pub use sizing::Tuning;

use super::host::HostEngine;
use super::{EncodedShard, EncodedSubchunk, Engine, EngineError, Job, KnownChain, Sink};
use crate::layout::{Extent, SubchunkGrid};
use crate::options::LevelPolicy;
use compression::Prepared;
use decompression::Decompression;
use driver::Fault;
use frame_parts::Layout;
use session::{FreeEvents, Session};
use sizing::{ShardKind, Sizing};

/// Encodes and decodes whole shards on a device, or fails.
#[derive(Clone, Debug)]
pub struct CudaEngine {
    pub devices: Arc<Devices>,
    pub limits: Limits,
    pub tuning: Tuning,
    compressors: Compressors,
    /// Whether it decodes the shards that it is for.
    decodes: bool,
}

/// Which compressors run on devices, and where their library is.
#[derive(Clone, Debug, Default)]
pub struct Compressors {
    pub levels: LevelPolicy,
    /// The file of nvCOMP; `None` to look for one.
    pub nvcomp: Option<PathBuf>,
    /// Whether they also decompress.
    pub decode: bool,
}

impl CudaEngine {
    pub fn new(devices: Arc<Devices>, limits: Limits, tuning: Tuning) -> Self {
        Self {
            devices,
            limits,
            tuning,
            compressors: Compressors::default(),
            decodes: true,
        }
    }

    /// The engine for shards of `chain`. Those with a compressor it decodes only if it is told to:
    /// decompressors on a device are undefined on corrupt data.
    pub fn for_chain(mut self, chain: &KnownChain, compressors: Compressors) -> Self {
        self.decodes =
            chain.is_fixed_size() || compressors.decode && frame_parts::suits(chain).is_ok();
        self.compressors = compressors;
        self
    }

    /// What shards of `grid` and `chain` are to a device.
    ///
    /// # Errors
    /// A device cannot do them, or no device can be used: why.
    pub fn kind<'a>(
        &self,
        grid: &'a SubchunkGrid,
        chain: &'a KnownChain,
    ) -> Result<ShardKind<'a>, EngineError> {
        let most = Sizing::tuned_batch(grid, true, self.tuning);
        self.kind_of_batches(grid, chain, most)
    }

    /// As above, where at most `most` subchunks are compressed at once.
    fn kind_of_batches<'a>(
        &self,
        grid: &'a SubchunkGrid,
        chain: &'a KnownChain,
        most: usize,
    ) -> Result<ShardKind<'a>, EngineError> {
        let compression = sizing::chain_on_device(grid, chain, self.compressors.levels)
            .map_err(EngineError::Unsuitable)?;
        let compressor = match compression {
            None => None,
            Some(compression) => {
                // In a forked child there is no device, and no lock is asked for.
                let prepared = self.devices.with_context(&self.limits, || {
                    let file = &self.compressors.nvcomp;
                    let devices = self.limits.devices.clone();
                    let question = (file.clone(), devices, compression, most);
                    self.devices.asked.or_ask(question, || {
                        let nvcomp = nvcomp::of_process(file.as_deref())?;
                        Prepared::new(compression, &nvcomp, most)
                    })
                })?;
                Some(prepared.map_err(EngineError::Unsuitable)?)
            }
        };
        Ok(ShardKind {
            grid,
            chain,
            compressor,
            decompressor: None,
        })
    }

    /// What a lane for shards of `grid` and `chain` takes: the numbers that it is allocated by.
    ///
    /// # Errors
    /// No device can be used, or none can have such a lane: why.
    pub fn memory_estimate(
        &self,
        grid: &SubchunkGrid,
        chain: &KnownChain,
    ) -> Result<MemoryEstimate, EngineError> {
        let kind = self.kind(grid, chain)?;
        let estimate = |kind: &ShardKind<'_>| {
            let sizing = self.devices.first(&self.limits, |budget| {
                Sizing::within(kind, budget, self.tuning)
            })?;
            Ok(sizing.estimate())
        };
        let encoding = estimate(&kind)?;
        // Of frames as they are encoded here. Where these are not decoded here, either, it is as
        // without.
        let decoding = match &kind.compressor {
            Some(prepared) if self.decodes => self
                .decoding_kind(grid, chain, prepared.compression.as_layout(grid, chain))
                .and_then(|kind| estimate(&kind))
                .unwrap_or(encoding),
            _ => encoding,
        };
        Ok(MemoryEstimate {
            device: encoding.device.max(decoding.device),
            pinned: encoding.pinned.max(decoding.pinned),
        })
    }

    /// Whether there is a device.
    ///
    /// # Errors
    /// Why there is none that can be used.
    pub(crate) fn check(&self) -> Result<(), String> {
        let found = self.devices.first(&self.limits, |_| Ok(()));
        found.map_err(|error| error.to_string())
    }

    /// Where the CUDA engine counts.
    pub fn counters(&self) -> &metrics::Counters {
        &self.devices.counters
    }

    /// What shards of `grid` and `chain`, with frames of such a layout, are to a device.
    ///
    /// # Errors
    /// A device cannot do them, or no device can be used: why.
    fn decoding_kind<'a>(
        &self,
        grid: &'a SubchunkGrid,
        chain: &'a KnownChain,
        layout: Layout,
    ) -> Result<ShardKind<'a>, EngineError> {
        sizing::check_elements(grid, chain).map_err(EngineError::Unsuitable)?;
        let most = Sizing::tuned_batch(grid, true, self.tuning);
        let prepared = self.devices.with_context(&self.limits, || {
            let nvcomp = nvcomp::of_process(self.compressors.nvcomp.as_deref())?;
            decompression::Prepared::new(layout, &nvcomp, most)
        })?;
        Ok(ShardKind {
            grid,
            chain,
            compressor: None,
            decompressor: Some(prepared.map_err(EngineError::Unsuitable)?),
        })
    }

    /// Decode a shard with a compressor.
    ///
    /// # Errors
    /// [`EngineError::Unsuitable`] if this is for the host, and what a device says.
    fn decompress(
        &self,
        job: &Job<'_>,
        chain: &KnownChain,
        encoded: &[u8],
        extents: &[Extent],
    ) -> Result<Vec<u8>, EngineError> {
        let parts = frame_parts::parse(job, chain, encoded, extents)
            .map_err(|reason| EngineError::Unsuitable(reason.to_string()))?;
        let kind = self.decoding_kind(job.grid, chain, parts.layout)?;
        self.in_lane(&kind, |session| {
            let prepared = kind.decompressor.as_ref();
            let buffers = session.sizing.decompression.as_ref();
            let (Some(prepared), Some(buffers)) = (prepared, buffers) else {
                return Err(EngineError::Internal("a lane without a decompressor"));
            };
            let decompression = Decompression {
                prepared,
                buffers,
                parts: &parts,
            };
            decode::decode(session, job, chain, encoded, extents, Some(decompression))
        })
    }

    /// Run `work` in a lane. With no memory for the lane that was planned, its batches are smaller.
    pub fn in_lane<T>(
        &self,
        kind: &ShardKind<'_>,
        work: impl Fn(&Session<'_>) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let plan = |most| Sizing::within(kind, most, self.tuning);
        let (mut acquired, sizing) = self.devices.acquire(&plan, &self.limits)?;
        let lane = acquired.lane().map_err(EngineError::Device)?;
        let device = lane.device().clone();
        let entered = device.enter().map_err(EngineError::Device)?;
        let mut suits = Ok(());
        if let (Some(prepared), Some(buffers)) = (&kind.compressor, &sizing.compression) {
            suits = prepared.check(buffers);
        }
        if let (Some(prepared), Some(buffers)) = (&kind.decompressor, &sizing.decompression) {
            suits = prepared.check(buffers);
        }
        if let Err(reason) = suits {
            // Nothing was enqueued.
            drop(entered);
            acquired.reusable();
            return Err(EngineError::Unsuitable(reason));
        }
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
        let chain = sizing::known(&job.chain).map_err(EngineError::Unsuitable)?;
        let kind = self.kind(job.grid, chain)?;
        let expected = job.grid.shard_bytes();
        if decoded.len() != expected {
            return Err(EngineError::InputLength {
                got: decoded.len(),
                expected,
            });
        }
        let _span = tracing::debug_span!("encode", engine = "cuda", bytes = expected).entered();
        let encoded = self.in_lane(&kind, |session| {
            encode::encode(session, job, &kind, decoded, (head, tail))
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
        let chain = sizing::known(&job.chain).map_err(EngineError::Unsuitable)?;
        if !chain.is_fixed_size() && !self.compressors.decode {
            return HostEngine.decode(job, encoded, extents);
        }
        let span = tracing::debug_span!("decode", engine = "cuda", bytes = encoded.len());
        let decoded = if chain.is_fixed_size() {
            let kind = self.kind(job.grid, chain)?;
            decode::check(job, chain, encoded, extents)?;
            let _span = span.entered();
            self.in_lane(&kind, |session| {
                decode::decode(session, job, chain, encoded, extents, None)
            })?
        } else {
            match span.in_scope(|| self.decompress(job, chain, encoded, extents)) {
                // It is about the data, or how they lie: nothing failed.
                Err(EngineError::Unsuitable(reason)) => {
                    tracing::debug!(reason, "the host decodes a shard");
                    self.devices.counters.fell_back(&reason);
                    return HostEngine.decode(job, encoded, extents);
                }
                decoded => decoded?,
            }
        };
        self.devices.counters.shard_decoded();
        Ok(decoded)
    }

    fn decodes_whole_shards(&self) -> bool {
        self.decodes
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

/// Whether a device could run `chain`.
///
/// # Errors
/// Why it cannot, or by `levels` should not.
pub(crate) fn check_chain(
    grid: &SubchunkGrid,
    chain: &KnownChain,
    levels: LevelPolicy,
) -> Result<(), String> {
    sizing::chain_on_device(grid, chain, levels).map(|_| ())
}

static DEVICES: OnceLock<Result<Arc<Devices>, DriverError>> = OnceLock::new();

/// The process that first looked for devices; 0 is none.
static PROCESS: AtomicU32 = AtomicU32::new(0);

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
    let this = std::process::id();
    let first = PROCESS.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_err_and(|process| process != this) {
        // Another thread of the parent may have been looking, and would never be done.
        return Err(DriverError {
            operation: "look for CUDA devices".to_string(),
            device: None,
            fault: Fault::Unavailable,
            reason: "the process was forked after it looked for them".to_string(),
        });
    }
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

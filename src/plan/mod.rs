//! Chooses the stages of a shard and the engine that runs them, and gives the reason.
//!
//! The chosen engine is prepared once, because engines cache what they have prepared for each kind of shard.
//! The present state of devices is asked for each time: whether a device is usable, and how much of its
//! memory budget a lane takes.

mod estimates;
mod explanation;
mod machine;
mod rates;
mod rule;
mod stream;
mod typical;

use std::path::Path;
use std::sync::Arc;

pub use estimates::Estimates;
use estimates::{DeviceWork, Work};
pub use explanation::{ExplainedStage, Explanation, Place};
pub(crate) use explanation::{explain, explain_delegated};
pub use machine::{Machine, MachineDevice, MachineDriver, MachineNvcomp, machine};
use rates::Direction;
pub(crate) use rule::EngineRule;
pub(crate) use stream::StreamChoice;
pub use typical::{TypicalShard, typical_shards};

use crate::error::Error;
use crate::metrics::MemoryEstimate;
use crate::options::{Backend, Options};
use zarrs_cuda_engine::contract::{Chain, Engine, KnownChain};
use zarrs_cuda_engine::cuda;
use zarrs_cuda_engine::cuda::{
    Compressors, CudaEngine, DeviceLimits, Devices, HighestLevels, Tuning,
};
use zarrs_cuda_engine::fallback::WithFallback;
use zarrs_cuda_engine::host::HostEngine;
use zarrs_cuda_engine::layout::SubchunkGrid;

/// The engines that encode and decode shards.
#[derive(Clone, Debug)]
pub(crate) struct Engines {
    /// The devices to use. `None` for all devices of the process, which are looked for when they are needed.
    devices: Option<Arc<Devices>>,
    rule: EngineRule,
    tuning: Tuning,
}

impl Default for Engines {
    fn default() -> Self {
        Self {
            devices: None,
            rule: EngineRule::default(),
            tuning: Tuning::DEFAULT,
        }
    }
}

/// The engine for shards of one kind, prepared for these shards, and the reason for the choice.
#[derive(Debug)]
pub(crate) struct ShardPlan {
    pub(crate) engine: Box<dyn Engine>,
    why: String,
    /// The memory that a shard takes on a device, or `None` if the host encodes it.
    memory: Option<MemoryEstimate>,
}

impl ShardPlan {
    fn host(why: impl Into<String>) -> Self {
        Self {
            engine: Box::new(HostEngine),
            why: why.into(),
            memory: None,
        }
    }

    /// Returns the engine and the reason for the choice, for users. An engine of a device may leave decoding
    /// to the host.
    fn in_words(&self) -> String {
        match self.place() {
            Place::Cuda if !self.engine.decodes_whole_shards() => {
                "host (a device does not decode these codecs)".to_string()
            }
            _ => format!("{} ({})", self.engine.name(), self.why),
        }
    }

    /// Returns the place where the stages of a shard run.
    fn place(&self) -> Place {
        match self.memory {
            Some(_) => Place::Cuda,
            None => Place::Host,
        }
    }
}

/// The place where a job is done: the host or a device.
enum Chosen<T> {
    /// The host does the job, for the given reason.
    Host(String),
    /// A device does the job, by the `prepared` engine. The host does jobs that fail on the device, unless
    /// `strict`.
    Device { prepared: T, strict: bool },
}

impl Engines {
    /// Engines of the given devices, with a rule and sizes of their own.
    #[cfg(test)]
    pub(crate) fn of_devices(devices: Arc<Devices>, rule: EngineRule, tuning: Tuning) -> Self {
        Self {
            devices: Some(devices),
            rule,
            tuning,
        }
    }

    /// Checks that shards can be encoded on the backend of `options`.
    pub(crate) fn check(&self, options: &Options) -> Result<(), Error> {
        match options.backend() {
            Backend::Auto | Backend::Host => Ok(()),
            backend @ Backend::Cuda => self
                .cuda(options)
                .and_then(|cuda| cuda.check())
                .map_err(|reason| Error::BackendUnavailable { backend, reason }),
        }
    }

    /// Checks that zarrs' own codec, on the host, may encode and decode a shard. `why` is the reason why the
    /// engines cannot.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if `options` ask for a device.
    pub(crate) fn check_delegated(options: &Options, why: &str) -> Result<(), Error> {
        match options.backend() {
            Backend::Auto | Backend::Host => Ok(()),
            backend @ Backend::Cuda => Err(Error::BackendUnavailable {
                backend,
                reason: format!(
                    "{why}, so zarrs' own codec handles them, on the host; use `Backend::Auto` or `Backend::Host`"
                ),
            }),
        }
    }

    /// Chooses the place where a job is done. `rule` returns a reason to leave the job to the host, or
    /// `None`. `prepare` prepares the job for a device.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`], with the reason, if `options` ask for a device and none can do the job.
    fn choose_place<T>(
        options: &Options,
        rule: impl FnOnce() -> Option<String>,
        prepare: impl FnOnce() -> Result<T, String>,
    ) -> Result<Chosen<T>, Error> {
        let backend = options.backend();
        let strict = backend == Backend::Cuda;
        let on_host = match backend {
            Backend::Host => Some("the host was asked for".to_string()),
            Backend::Auto => rule(),
            Backend::Cuda => None,
        };
        match on_host.map_or_else(prepare, Err) {
            Ok(prepared) => Ok(Chosen::Device { prepared, strict }),
            Err(reason) if strict => Err(Error::BackendUnavailable { backend, reason }),
            Err(why) => Ok(Chosen::Host(why)),
        }
    }

    /// Returns the engine that encodes whole shards of `grid`, and the reason for the choice. The engine also
    /// decodes what it encodes.
    ///
    /// `chain` is the inner codecs, or the reason why the engines do not know them.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`], with the reason, if `options` ask for a device and none can do the job.
    pub(crate) fn choose(
        &self,
        options: &Options,
        grid: &SubchunkGrid,
        chain: Result<&KnownChain, &str>,
    ) -> Result<ShardPlan, Error> {
        self.choose_for(Direction::Encode, options, grid, chain)
    }

    fn choose_for(
        &self,
        direction: Direction,
        options: &Options,
        grid: &SubchunkGrid,
        chain: Result<&KnownChain, &str>,
    ) -> Result<ShardPlan, Error> {
        let rule = || {
            let chain = chain.ok()?;
            let device = self.device(direction, options, grid, chain).ok()?;
            self.rule_of_shard(direction, grid, chain, &device)
        };
        let prepare = || {
            let chain = chain.map_err(|unknown| {
                format!("the CUDA engine does not know the inner codecs: {unknown}")
            })?;
            let device = self.device(direction, options, grid, chain)?;
            let shards = match direction {
                Direction::Encode => device.shards(grid, chain),
                Direction::Decode => device.decoder(grid, chain),
            };
            let shards = shards.map_err(|e| e.to_string())?;
            let memory = shards.memory_estimate().map_err(|e| e.to_string())?;
            Ok((shards, memory))
        };
        Ok(match Self::choose_place(options, rule, prepare)? {
            Chosen::Host(why) => ShardPlan::host(why),
            Chosen::Device {
                prepared: (shards, memory),
                strict,
            } => {
                let (why, engine) = if strict {
                    ("CUDA was asked for", WithFallback::strict(shards))
                } else {
                    (
                        "a device is estimated to be faster",
                        WithFallback::new(shards),
                    )
                };
                ShardPlan {
                    why: format!("{why}; a lane takes {memory}"),
                    engine: Box::new(engine),
                    memory: Some(MemoryEstimate::of(memory)),
                }
            }
        })
    }

    /// Returns the engine that decodes whole shards of `grid`, and the reason for the choice. Looks for no
    /// device if the options let no device decode them.
    pub(crate) fn choose_decoder(
        &self,
        options: &Options,
        grid: &SubchunkGrid,
        chain: Result<&KnownChain, &str>,
    ) -> Result<ShardPlan, Error> {
        match chain {
            Ok(chain) if !chain.is_fixed_size() && !options.device_decode() => Ok(ShardPlan::host(
                "a compressor's frames are decoded on the host, unless `Options::with_device_decode` says otherwise",
            )),
            _ => self.choose_for(Direction::Decode, options, grid, chain),
        }
    }

    /// Returns the reason why a shard stays on the host instead of `device`, or `None`.
    fn rule_of_shard(
        &self,
        direction: Direction,
        grid: &SubchunkGrid,
        chain: &KnownChain,
        device: &CudaEngine,
    ) -> Option<String> {
        if device.multiprocessors() == 0 {
            // No device is usable. The preparation finds the reason.
            return None;
        }
        let work = Work::of_shard(grid, chain, direction);
        let device = device_work(device, grid, chain, device.compressed_at_once(grid));
        let estimates = work.map(|work| self.rule.estimates(&work, Some(device)));
        self.rule.on_host(estimates)
    }

    /// Estimates the time to encode a shard of `grid`: on the host, and on a device if `options` allow one and
    /// the device can encode the shard. Returns `None` if there is no figure for `chain`. Makes no context.
    pub(crate) fn estimates(
        &self,
        options: &Options,
        grid: &SubchunkGrid,
        chain: Result<&KnownChain, &str>,
    ) -> Option<Estimates> {
        let chain = chain.ok()?;
        let work = Work::of_shard(grid, chain, Direction::Encode)?;
        let device = match options.backend() {
            Backend::Host => None,
            Backend::Auto | Backend::Cuda => {
                let device = self.device(Direction::Encode, options, grid, chain);
                device.ok().map(|device| {
                    device_work(&device, grid, chain, device.compressed_at_once(grid))
                })
            }
        };
        Some(self.rule.estimates(&work, device))
    }

    /// Returns the engine of the devices that `options` allow, for shards of `grid` and `chain`.
    ///
    /// # Errors
    /// The reason, if no device is usable, or none can run the chain in this direction.
    fn device(
        &self,
        direction: Direction,
        options: &Options,
        grid: &SubchunkGrid,
        chain: &KnownChain,
    ) -> Result<CudaEngine, String> {
        // The chain is checked first, so that devices are not looked for in vain.
        let levels = highest_levels(options);
        match direction {
            Direction::Encode => cuda::check_chain(grid, chain, levels)?,
            // Levels limit encoding alone.
            Direction::Decode => cuda::check_decoding(grid, chain)?,
        }
        let compressors = Compressors {
            levels,
            nvcomp: options.nvcomp().map(Path::to_path_buf),
            decode: options.device_decode(),
        };
        Ok(self.cuda(options)?.for_chain(chain, compressors))
    }

    /// Makes the devices of `options` ready for the first shard: contexts, kernels and nvCOMP.
    ///
    /// # Errors
    /// The reason, if no device can be used, or the kernels cannot be compiled for one.
    pub(crate) fn warm_up(&self, options: &Options) -> Result<(), String> {
        self.cuda(options)?
            .warm_up(options.nvcomp())
            .map_err(|error| error.to_string())
    }

    fn cuda(&self, options: &Options) -> Result<CudaEngine, String> {
        let devices = match &self.devices {
            Some(devices) => devices.clone(),
            None => cuda::devices().map_err(|error| error.to_string())?,
        };
        let limits = DeviceLimits {
            devices: options.devices().map(<[usize]>::to_vec),
            device_memory: options.device_memory(),
            pinned_memory: options.pinned_memory(),
            idle: options.device_idle_time(),
        };
        Ok(CudaEngine::new(devices, limits, self.tuning).with_times(options.device_times()))
    }
}

/// Returns the compression levels of `options`, in the type of the CUDA engine.
fn highest_levels(options: &Options) -> HighestLevels {
    let levels = options.device_levels();
    HighestLevels {
        zstd: levels.zstd(),
        gzip: levels.gzip(),
        blosc_lz4: levels.blosc_lz4(),
        blosc_zstd: levels.blosc_zstd(),
    }
}

/// Returns what the estimates have to know of `device`, which compresses `at_once` subchunks at once.
fn device_work(
    device: &CudaEngine,
    grid: &SubchunkGrid,
    chain: &KnownChain,
    at_once: usize,
) -> DeviceWork {
    DeviceWork {
        multiprocessors: device.multiprocessors(),
        chunks: at_once.saturating_mul(cuda::chunks_of_subchunk(grid, chain)),
    }
}

/// Returns the engine that decodes parts of shards.
pub(crate) fn host_engine() -> HostEngine {
    HostEngine
}

/// Returns the chain in the type of the engines: the known one, or one of `foreign` codecs.
pub(crate) fn chain<'a>(
    known: Option<&'a KnownChain>,
    foreign: &'a dyn zarrs_cuda_engine::contract::SubchunkCodec,
) -> Chain<'a> {
    known.map_or(Chain::Foreign(foreign), Chain::Known)
}

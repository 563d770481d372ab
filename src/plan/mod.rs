//! Chooses the stages of a shard and the engine that runs them, and gives the reason.
//!
//! The chosen engine is prepared once, because engines cache what they have prepared for each kind of shard.
//! The present state of devices is asked for each time: whether a device is usable, and how much of its
//! memory budget a lane takes.

mod explanation;
mod machine;
mod rule;
mod stream;

use std::path::Path;
use std::sync::Arc;

pub use explanation::{ExplainedStage, Explanation, Place};
pub(crate) use explanation::{explain, explain_delegated};
pub use machine::{Machine, MachineDevice, MachineDriver, MachineNvcomp, machine};
pub(crate) use rule::EngineRule;
pub(crate) use stream::StreamChoice;

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

    /// Returns the engine that encodes and decodes whole shards of `grid`, and the reason for the choice.
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
        let rule = || self.rule.on_host(grid, chain.ok()?);
        let prepare = || {
            let chain = chain.map_err(|unknown| {
                format!("the CUDA engine does not know the inner codecs: {unknown}")
            })?;
            let device = self.device(options, grid, chain, options.device_decode())?;
            let shards = device.shards(grid, chain).map_err(|e| e.to_string())?;
            let memory = shards.memory_estimate().map_err(|e| e.to_string())?;
            Ok((shards, memory))
        };
        Ok(match Self::choose_place(options, rule, prepare)? {
            Chosen::Host(why) => ShardPlan::host(why),
            Chosen::Device {
                prepared: (shards, memory),
                strict,
            } => {
                let stages = if shards.decodes_whole_shards() {
                    "all of it"
                } else {
                    "all of the encoding, and the host decodes"
                };
                let (why, engine) = if strict {
                    ("CUDA was asked for, and runs", WithFallback::strict(shards))
                } else {
                    ("a device can run", WithFallback::new(shards))
                };
                ShardPlan {
                    why: format!("{why} {stages}; a lane takes {memory}"),
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
            _ => self.choose(options, grid, chain),
        }
    }

    /// Returns the engine of the devices that `options` allow, for shards of `grid` and `chain`. If `decode`,
    /// devices also decode shards with a compressor.
    ///
    /// # Errors
    /// The reason, if no device is usable, or none can run the chain.
    fn device(
        &self,
        options: &Options,
        grid: &SubchunkGrid,
        chain: &KnownChain,
        decode: bool,
    ) -> Result<CudaEngine, String> {
        // The chain is checked first, so that devices are not looked for in vain.
        let levels = highest_levels(options);
        cuda::check_chain(grid, chain, levels)?;
        let compressors = Compressors {
            levels,
            nvcomp: options.nvcomp().map(Path::to_path_buf),
            decode,
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
        let engine =
            CudaEngine::new(devices, limits, self.tuning).with_times(options.device_times());
        Ok(match options.device_check().every() {
            Some(every) => engine.with_check_every(every),
            None => engine,
        })
    }
}

/// Returns the compression levels of `options`, in the type of the CUDA engine.
fn highest_levels(options: &Options) -> HighestLevels {
    let levels = options.device_levels();
    HighestLevels {
        zstd: levels.zstd(),
        gzip: levels.gzip(),
        blosc: levels.blosc(),
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

//! Chooses the stages of a shard and the engine that runs them, and gives the reason.
//!
//! The chosen engine is prepared once, because engines cache what they have prepared for each kind of shard.
//! The present state of devices is asked for each time: whether a device is usable, and how much of its
//! memory budget a lane takes. `consent.rs` decides which devices may be asked at all.

mod consent;
mod explanation;
mod machine;
mod rule;
mod stream;
mod to_host;

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

pub use explanation::{ExplainedStage, Explanation, Place};
pub(crate) use explanation::{explain, explain_delegated};
pub use machine::{Machine, MachineDevice, MachineDriver, MachineNvcomp, machine};
pub(crate) use rule::EngineRule;
pub(crate) use stream::StreamChoice;
pub(crate) use to_host::ToHost;

use consent::{Consent, Refusal, Selected};

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
    /// The devices of a test. `None` for the devices of the process, which are looked for when they are needed.
    devices: Option<Arc<Devices>>,
    /// The decision for the array or the writer that these engines serve.
    consent: Consent,
    rule: EngineRule,
    tuning: Tuning,
}

/// The engine for shards of one kind, prepared for these shards, and the reason for the choice.
#[derive(Debug)]
pub(crate) struct ShardPlan {
    pub(crate) engine: Box<dyn Engine>,
    summary: PlanSummary,
}

/// The plan for shards of one kind, in words.
#[derive(Clone, Debug)]
pub(crate) struct PlanSummary {
    /// The name of the engine that encodes shards.
    engine: &'static str,
    why: String,
    place: Place,
    /// The memory that a shard takes on a device; `None` on the host, and if it is not known yet.
    memory: Option<MemoryEstimate>,
    /// The work that the first shard on a device waits for.
    first_wait: Option<String>,
}

impl PlanSummary {
    fn host(why: String) -> Self {
        Self {
            engine: HostEngine.name(),
            why,
            place: Place::Host,
            memory: None,
            first_wait: None,
        }
    }
}

impl ShardPlan {
    fn host(why: impl Into<String>) -> Self {
        Self {
            engine: Box::new(HostEngine),
            summary: PlanSummary::host(why.into()),
        }
    }

    /// Returns the memory that a shard takes on a device, or `None` if the host encodes it.
    pub(crate) fn memory(&self) -> Option<MemoryEstimate> {
        self.summary.memory
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
    /// Returns the engines of this process for an array or a writer that is opened now with `options`.
    pub(crate) fn of_process(options: &Options) -> Self {
        Self::with_consent(Consent::decide(options))
    }

    fn with_consent(consent: Consent) -> Self {
        Self {
            devices: None,
            consent,
            rule: EngineRule::default(),
            tuning: Tuning::DEFAULT,
        }
    }

    /// Engines of the given devices, with a rule and sizes of their own.
    #[cfg(test)]
    pub(crate) fn of_devices(devices: Arc<Devices>, rule: EngineRule, tuning: Tuning) -> Self {
        Self {
            devices: Some(devices),
            consent: Consent::decide(&Options::default()),
            rule,
            tuning,
        }
    }

    /// Returns the same engines for an array or a writer that is opened now with `options`.
    #[must_use]
    pub(crate) fn decide_anew(&self, options: &Options) -> Self {
        Self {
            consent: Consent::decide(options),
            ..self.clone()
        }
    }

    /// Returns the decision; for devices of a test, the decision that `options` allow all of them.
    #[cfg(test)]
    fn consent(&self, options: &Options) -> Cow<'_, Consent> {
        match &self.devices {
            Some(_) => Cow::Owned(Consent::of_test(options)),
            None => Cow::Borrowed(&self.consent),
        }
    }

    /// Returns the decision.
    #[cfg(not(test))]
    fn consent(&self, _: &Options) -> Cow<'_, Consent> {
        Cow::Borrowed(&self.consent)
    }

    /// Checks that the settings of this process can be understood.
    ///
    /// # Errors
    /// The name of a setting, its value, and the values that it may have.
    pub(crate) fn check_settings(&self) -> Result<(), String> {
        self.consent
            .wrong()
            .map_or(Ok(()), |wrong| Err(wrong.to_string()))
    }

    /// Checks that shards can be encoded on the backend of `options`. No context is created.
    pub(crate) fn check(&self, options: &Options) -> Result<(), Error> {
        let consent = self.consent(options);
        let backend = consent.backend;
        let usable = match &consent.devices {
            Err(Refusal::Wrong(wrong)) => Err(wrong.clone()),
            Ok(selected) if backend == Backend::Cuda => self
                .cuda(options, selected)
                .and_then(|cuda| cuda.numbers())
                .map(|_| ()),
            _ => Ok(()),
        };
        usable.map_err(|reason| Error::BackendUnavailable { backend, reason })
    }

    /// Checks that zarrs' own codec, on the host, may encode and decode a shard. `why` is the reason why the
    /// engines cannot.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if a setting asks for a device.
    pub(crate) fn check_delegated(&self, options: &Options, why: &str) -> Result<(), Error> {
        match self.consent(options).backend {
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
    /// `None`. `prepare` prepares the job for the selected devices.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`], with the reason, if a setting asks for a device and none can do the job,
    /// or if a setting cannot be understood.
    fn choose_place<T>(
        &self,
        options: &Options,
        rule: impl FnOnce() -> Option<String>,
        prepare: impl FnOnce(&Selected) -> Result<T, String>,
    ) -> Result<Chosen<T>, Error> {
        let consent = self.consent(options);
        let backend = consent.backend;
        let strict = backend == Backend::Cuda;
        let selected = match &consent.devices {
            Ok(selected) => selected,
            Err(Refusal::Host(why)) => return Ok(Chosen::Host(why.clone())),
            Err(Refusal::Wrong(wrong)) => {
                let reason = wrong.clone();
                return Err(Error::BackendUnavailable { backend, reason });
            }
        };
        let on_host = if strict { None } else { rule() };
        match on_host.map_or_else(|| prepare(selected), Err) {
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
    /// [`Error::BackendUnavailable`], with the reason, if a setting asks for a device and none can do the job.
    pub(crate) fn choose(
        &self,
        options: &Options,
        grid: &SubchunkGrid,
        chain: Result<&KnownChain, &str>,
    ) -> Result<ShardPlan, Error> {
        let rule = || self.rule.on_host(grid, chain.ok()?);
        let prepare = |selected: &Selected| {
            let chain = known(chain)?;
            let device = self.device(options, selected, grid, chain, options.device_decode())?;
            let numbers = device.numbers()?;
            let shards = device.shards(grid, chain).map_err(|e| e.to_string())?;
            let memory = shards.memory_estimate().map_err(|e| e.to_string())?;
            Ok((shards, memory, devices_text(&numbers, selected)))
        };
        Ok(match self.choose_place(options, rule, prepare)? {
            Chosen::Host(why) => ShardPlan::host(why),
            Chosen::Device {
                prepared: (shards, memory, devices),
                strict,
            } => {
                let stages = stages_on_device(shards.decodes_whole_shards());
                let (why, engine) = if strict {
                    ("CUDA was asked for", WithFallback::strict(shards))
                } else {
                    ("a device helps", WithFallback::new(shards))
                };
                ShardPlan {
                    summary: PlanSummary {
                        engine: engine.name(),
                        why: format!("{why}: {devices} can run {stages}; a lane takes {memory}"),
                        place: Place::Cuda,
                        memory: Some(MemoryEstimate::of(memory)),
                        first_wait: engine.first_wait(),
                    },
                    engine: Box::new(engine),
                }
            }
        })
    }

    /// Returns the plan that [`choose`](Self::choose) would make, in words, without creating a context. The
    /// memory that a shard takes is known only if the contexts of the devices exist.
    ///
    /// # Errors
    /// The errors of [`choose`](Self::choose).
    pub(crate) fn preview(
        &self,
        options: &Options,
        grid: &SubchunkGrid,
        chain: Result<&KnownChain, &str>,
    ) -> Result<PlanSummary, Error> {
        let rule = || self.rule.on_host(grid, chain.ok()?);
        let prepare = |selected: &Selected| {
            let chain = known(chain)?;
            let device = self.device(options, selected, grid, chain, options.device_decode())?;
            if device.has_contexts() {
                return Ok(None);
            }
            device.check_without_context(chain)?;
            let devices = devices_text(&device.numbers()?, selected);
            Ok(Some((devices, device.decodes())))
        };
        Ok(match self.choose_place(options, rule, prepare)? {
            Chosen::Host(why) => PlanSummary::host(why),
            Chosen::Device { prepared: None, .. } => self.choose(options, grid, chain)?.summary,
            Chosen::Device {
                prepared: Some((devices, decodes)),
                strict,
            } => {
                let why = if strict {
                    "CUDA was asked for"
                } else {
                    "a device helps"
                };
                let stages = stages_on_device(decodes);
                PlanSummary {
                    engine: "cuda",
                    why: format!("{why}: {devices} can run {stages}, as far as can be said without a context on it"),
                    place: Place::Cuda,
                    memory: None,
                    first_wait: Some("a context is created, and the kernels are compiled: `zarrs_cuda::warm_up` does that ahead".to_string()),
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

    /// Returns the engine of the `selected` devices, for shards of `grid` and `chain`. If `decode`, devices also
    /// decode shards with a compressor.
    ///
    /// # Errors
    /// The reason, if no device is usable, or none can run the chain.
    fn device(
        &self,
        options: &Options,
        selected: &Selected,
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
        Ok(self.cuda(options, selected)?.for_chain(chain, compressors))
    }

    /// Makes devices ready for the first shard: contexts, kernels and nvCOMP. Arrays that are opened later may
    /// use these devices.
    ///
    /// # Errors
    /// The reason, if no device can be used, or the kernels cannot be compiled for one.
    pub(crate) fn warm_up(options: &Options) -> Result<(), String> {
        let this = Self::with_consent(Consent::asked(options));
        let selected = this.consent.devices.as_ref();
        let selected = selected.map_err(|refusal| refusal.text().to_string())?;
        let cuda = this.cuda(options, selected)?;
        consent::note_warm_up(cuda.numbers()?);
        cuda.warm_up(options.nvcomp())
            .map_err(|error| error.to_string())
    }

    fn cuda(&self, options: &Options, selected: &Selected) -> Result<CudaEngine, String> {
        let devices = match &self.devices {
            Some(devices) => devices.clone(),
            None => cuda::devices().map_err(|error| error.to_string())?,
        };
        let limits = DeviceLimits {
            devices: selected.numbers()?,
            device_memory: options.device_memory(),
            pinned_memory: options.pinned_memory(),
            idle: options.device_idle_time(),
            timeout: options.device_timeout(),
        };
        Ok(CudaEngine::new(devices, limits, self.tuning).with_times(options.device_times()))
    }
}

/// Returns the chain that the engines know.
///
/// # Errors
/// The reason why the engines do not know the chain.
fn known<'c>(chain: Result<&'c KnownChain, &str>) -> Result<&'c KnownChain, String> {
    chain.map_err(|unknown| format!("the CUDA engine does not know the inner codecs: {unknown}"))
}

/// Returns the selected devices and the setting that selected them, in words for users.
fn devices_text(numbers: &[usize], selected: &Selected) -> String {
    let numbers: Vec<_> = numbers.iter().map(usize::to_string).collect();
    let devices = if numbers.len() == 1 {
        "device"
    } else {
        "devices"
    };
    format!("CUDA {devices} {} ({})", numbers.join(", "), selected.by())
}

/// Returns the stages that a device runs, in words for users.
fn stages_on_device(decodes: bool) -> &'static str {
    if decodes {
        "all of it"
    } else {
        "all of the encoding, and the host decodes"
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

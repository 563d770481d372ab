//! Chooses the stages of a shard and the engine that runs them, and gives the reason.
//!
//! The chosen engine is prepared once, because engines cache what they have prepared for each kind of shard.
//! The present state of devices is asked for each time: whether a device is usable, and how much of its
//! memory budget a lane takes. `consent.rs` decides which devices may be asked at all.

mod consent;
mod device_reads;
mod estimates;
mod explanation;
mod machine;
mod missing;
mod rates;
mod rule;
mod stream;
mod to_host;
mod typical;

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

pub(crate) use device_reads::{
    DeviceMemory, DeviceReads, DeviceSlab, DeviceSlabs, ReadsError, ReadySubchunk,
};
pub use estimates::Estimates;
use estimates::{DeviceWork, Work};
pub use explanation::{ExplainedStage, Explanation, Place};
pub(crate) use explanation::{explain, explain_delegated};
pub use machine::{Machine, MachineDevice, MachineDriver, MachineNvcomp, machine};
pub(crate) use missing::missing_devices;
use rates::Direction;
pub(crate) use rule::EngineRule;
pub(crate) use stream::StreamChoice;
pub(crate) use to_host::ToHost;
pub use typical::{TypicalShard, typical_shards};

use consent::{Consent, Refusal, Selected};

use crate::error::Error;
use crate::metrics::MemoryEstimate;
use crate::options::pinned_memory::{LEAST_PINNED, default_pinned};
use crate::options::{Backend, Options};
use zarrs_cuda_engine::contract::{
    Chain, EncodedShard, Engine, EngineError, KnownChain, ShardElements, ShardJob,
};
use zarrs_cuda_engine::cuda;
use zarrs_cuda_engine::cuda::{
    Compressors, CudaEngine, DeviceLimits, Devices, HighestLevels, Tuning,
};
use zarrs_cuda_engine::fallback::WithFallback;
use zarrs_cuda_engine::host::HostEngine;
use zarrs_cuda_engine::layout::SubchunkGrid;
use zarrs_cuda_engine::memory::spares::Spares;

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

    /// Returns the engine and the reason for the choice, for users.
    fn in_words(&self) -> String {
        format!("{} ({})", self.engine, self.why)
    }
}

impl ShardPlan {
    fn host(why: impl Into<String>) -> Self {
        Self {
            engine: Box::new(HostEngine),
            summary: PlanSummary::host(why.into()),
        }
    }

    /// Encodes a shard like [`Engine::encode`], from elements that may have strides. The host reads them where
    /// they are, and may encode to one of `spares`. For a device, the host first copies them to new memory, unless
    /// they are contiguous.
    ///
    /// # Errors
    /// The errors of [`Engine::encode`], and [`EngineError::Strides`] if an element is not in its memory.
    pub(crate) fn encode_elements(
        &self,
        job: &ShardJob<'_>,
        elements: &ShardElements<'_>,
        (head, tail): (usize, usize),
        spares: Option<&Spares>,
    ) -> Result<EncodedShard, EngineError> {
        match (self.summary.place, elements.as_contiguous(job.grid)?) {
            (Place::Host, _) => HostEngine.encode_elements(job, elements, (head, tail), spares),
            (Place::Cuda, Some(contiguous)) => self.engine.encode(job, contiguous, head, tail),
            (Place::Cuda, None) => {
                let gathered = HostEngine.gather(job, elements)?;
                self.engine.encode(job, &gathered, head, tail)
            }
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

    /// Checks that the backend of `options` can be used: a device is usable if they, or the environment, ask for
    /// [`Backend::Cuda`]. No context is created.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`], with the reason.
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

    /// Chooses the place where a job is done. `device` returns the engine of the selected devices for the job,
    /// `rule` returns a reason to leave the job to the host instead, or `None`, and `prepare` prepares the job
    /// for the engine.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`], with the reason, if a setting asks for a device and none can do the job,
    /// or if a setting cannot be understood.
    fn choose_place<T>(
        &self,
        options: &Options,
        device: impl FnOnce(&Selected) -> Result<CudaEngine, String>,
        rule: impl FnOnce(&CudaEngine) -> Option<String>,
        prepare: impl FnOnce(CudaEngine, &Selected) -> Result<T, String>,
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
        let prepared = device(selected).and_then(|device| {
            let on_host = if strict { None } else { rule(&device) };
            on_host.map_or_else(|| prepare(device, selected), Err)
        });
        match prepared {
            Ok(prepared) => Ok(Chosen::Device { prepared, strict }),
            Err(reason) if strict => Err(Error::BackendUnavailable { backend, reason }),
            Err(why) => Ok(Chosen::Host(why)),
        }
    }

    /// Chooses the place where shards of `grid` are encoded or decoded, like
    /// [`choose_place`](Self::choose_place). `prepare` is also given the known chain.
    fn choose_shard_place<T>(
        &self,
        direction: Direction,
        options: &Options,
        grid: &SubchunkGrid,
        chain: Result<&KnownChain, &str>,
        prepare: impl FnOnce(CudaEngine, &KnownChain, &Selected) -> Result<T, String>,
    ) -> Result<Chosen<T>, Error> {
        self.choose_place(
            options,
            |selected| self.device(direction, options, selected, grid, known(chain)?),
            |device| self.rule_of_shard(direction, grid, chain.ok()?, device),
            |device, selected| prepare(device, known(chain)?, selected),
        )
    }

    /// Returns the engine that encodes whole shards of `grid`, and the reason for the choice. The engine also
    /// decodes what it encodes.
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
        self.choose_for(Direction::Encode, options, grid, chain)
    }

    fn choose_for(
        &self,
        direction: Direction,
        options: &Options,
        grid: &SubchunkGrid,
        chain: Result<&KnownChain, &str>,
    ) -> Result<ShardPlan, Error> {
        let prepare = |device: CudaEngine, chain: &KnownChain, selected: &Selected| {
            let devices = devices_text(&device.numbers()?, selected);
            let shards = match direction {
                Direction::Encode => device.shards(grid, chain),
                Direction::Decode => device.decoder(grid, chain),
            };
            let shards = shards.map_err(|e| e.to_string())?;
            let memory = shards.memory_estimate().map_err(|e| e.to_string())?;
            Ok((shards, memory, devices))
        };
        Ok(
            match self.choose_shard_place(direction, options, grid, chain, prepare)? {
                Chosen::Host(why) => ShardPlan::host(why),
                Chosen::Device {
                    prepared: (shards, memory, devices),
                    strict,
                } => {
                    let engine = if strict {
                        WithFallback::strict(shards)
                    } else {
                        WithFallback::new(shards)
                    };
                    ShardPlan {
                        summary: PlanSummary {
                            engine: engine.name(),
                            why: format!(
                                "{}: {devices}; a lane takes {memory}",
                                why_device(strict)
                            ),
                            place: Place::Cuda,
                            memory: Some(MemoryEstimate::of(memory)),
                            first_wait: engine.first_wait(),
                        },
                        engine: Box::new(engine),
                    }
                }
            },
        )
    }

    /// Returns the engine that decodes whole shards of `grid`, and the reason for the choice. Looks for no
    /// device if the options let no device decode them, unless a setting asks for [`Backend::Cuda`].
    ///
    /// # Errors
    /// The errors of [`choose`](Self::choose).
    pub(crate) fn choose_decoder(
        &self,
        options: &Options,
        grid: &SubchunkGrid,
        chain: Result<&KnownChain, &str>,
    ) -> Result<ShardPlan, Error> {
        match decodes_on_host(options, chain) {
            Some(why) => {
                self.check(options)?;
                Ok(ShardPlan::host(why))
            }
            None => self.choose_for(Direction::Decode, options, grid, chain),
        }
    }

    /// Returns the plans that [`choose`](Self::choose) and [`choose_decoder`](Self::choose_decoder) would make,
    /// in words, without creating a context. The memory that a shard takes is known only if the contexts of
    /// the devices exist.
    ///
    /// # Errors
    /// The errors of [`choose`](Self::choose).
    pub(crate) fn preview(
        &self,
        options: &Options,
        grid: &SubchunkGrid,
        chain: Result<&KnownChain, &str>,
    ) -> Result<[PlanSummary; 2], Error> {
        let encoder = self.preview_for(Direction::Encode, options, grid, chain)?;
        let decoder = match decodes_on_host(options, chain) {
            Some(why) => PlanSummary::host(why.to_string()),
            None => self.preview_for(Direction::Decode, options, grid, chain)?,
        };
        Ok([encoder, decoder])
    }

    fn preview_for(
        &self,
        direction: Direction,
        options: &Options,
        grid: &SubchunkGrid,
        chain: Result<&KnownChain, &str>,
    ) -> Result<PlanSummary, Error> {
        let prepare = |device: CudaEngine, chain: &KnownChain, selected: &Selected| {
            if device.has_contexts() {
                return Ok(None);
            }
            device.check_without_context(chain)?;
            Ok(Some(devices_text(&device.numbers()?, selected)))
        };
        Ok(match self.choose_shard_place(direction, options, grid, chain, prepare)? {
            Chosen::Host(why) => PlanSummary::host(why),
            Chosen::Device { prepared: None, .. } => {
                self.choose_for(direction, options, grid, chain)?.summary
            }
            Chosen::Device {
                prepared: Some(devices),
                strict,
            } => PlanSummary {
                engine: cuda::NAME,
                why: format!(
                    "{}: {devices}, as far as can be said before it has a context",
                    why_device(strict)
                ),
                place: Place::Cuda,
                memory: None,
                first_wait: Some(
                    "a context is created, and the kernels are compiled: `zarrs_cuda::warm_up` does that ahead".to_string(),
                ),
            },
        })
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

    /// Estimates the time to encode a shard of `grid`: on the host, and on the selected devices if one can
    /// encode the shard. Returns `None` if there is no figure for `chain`. Creates no context.
    pub(crate) fn estimates(
        &self,
        options: &Options,
        grid: &SubchunkGrid,
        chain: Result<&KnownChain, &str>,
    ) -> Option<Estimates> {
        let chain = chain.ok()?;
        let work = Work::of_shard(grid, chain, Direction::Encode)?;
        let consent = self.consent(options);
        let device = consent.devices.as_ref().ok().and_then(|selected| {
            let device = self.device(Direction::Encode, options, selected, grid, chain);
            device.ok()
        });
        let device =
            device.map(|device| device_work(&device, grid, chain, device.compressed_at_once(grid)));
        Some(self.rule.estimates(&work, device))
    }

    /// Returns the engine of the `selected` devices, for shards of `grid` and `chain`.
    ///
    /// # Errors
    /// The reason, if no device is usable, or none can run the chain in this direction.
    fn device(
        &self,
        direction: Direction,
        options: &Options,
        selected: &Selected,
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
        let mut engine = self.cuda(options, selected)?;
        engine.limits.pinned_memory = pinned_memory(options, &engine, grid, chain);
        Ok(engine.for_chain(chain, compressors(options)))
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
        cuda.warm_up(&compressors(options))
            .map_err(|error| error.to_string())
    }

    /// Notes which of the devices that a user has named do not exist. Under [`Backend::Cuda`] a missing device is
    /// an error, which needs no note.
    fn note_missing(&self, selected: &Selected, devices: Result<&Devices, &String>) {
        if self.consent.backend == Backend::Cuda {
            return;
        }
        let is_there = |number: usize| {
            devices.is_ok_and(|devices| devices.infos().any(|info| info.ordinal == number))
        };
        for &number in selected.named().iter().filter(|number| !is_there(**number)) {
            missing::note(number, selected.by(), || match devices {
                Ok(devices) => devices.why_missing(number),
                Err(why) => why.clone(),
            });
        }
    }

    fn cuda(&self, options: &Options, selected: &Selected) -> Result<CudaEngine, String> {
        let devices = match &self.devices {
            Some(devices) => Ok(devices.clone()),
            None => cuda::devices().map_err(|error| error.to_string()),
        };
        self.note_missing(selected, devices.as_deref());
        let devices = devices?;
        let limits = DeviceLimits {
            devices: selected.numbers()?,
            device_memory: options.device_memory(),
            pinned_memory: options.pinned_memory().unwrap_or(LEAST_PINNED),
            idle: options.device_idle_time(),
            timeout: options.device_timeout(),
        };
        let engine =
            CudaEngine::new(devices, limits, self.tuning).with_times(options.device_times());
        Ok(match options.device_check().every() {
            Some(every) => engine.with_check_every(every),
            None => engine,
        })
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

/// Returns the reason why a device was chosen, in words for users.
fn why_device(strict: bool) -> &'static str {
    if strict {
        "CUDA was asked for"
    } else {
        "a device is estimated to be faster"
    }
}

/// Returns the reason why the host decodes whole shards of `chain`, whatever devices there are; `None` if a
/// device may.
fn decodes_on_host(options: &Options, chain: Result<&KnownChain, &str>) -> Option<&'static str> {
    let has_frames = chain.is_ok_and(|chain| !chain.is_fixed_size());
    (has_frames && !options.device_decode()).then_some(
        "a compressor's frames are decoded on the host, unless `Options::with_device_decode` says otherwise",
    )
}

/// Returns the largest number of bytes of page-locked memory for shards and streams of `grid` and `chain` on a
/// device of `engine`.
fn pinned_memory(
    options: &Options,
    engine: &CudaEngine,
    grid: &SubchunkGrid,
    chain: &KnownChain,
) -> usize {
    options.pinned_memory().unwrap_or_else(|| {
        let chunks = engine.chunks_to_fill();
        let subchunks = chunks.div_ceil(cuda::chunks_of_subchunk(grid, chain).max(1));
        default_pinned(
            subchunks.saturating_mul(grid.subchunk_bytes()),
            options.host_memory(),
        )
    })
}

/// Returns the compressors that `options` allow on devices.
fn compressors(options: &Options) -> Compressors {
    Compressors {
        levels: highest_levels(options),
        nvcomp: options.nvcomp().map(Path::to_path_buf),
        decode: options.device_decode(),
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

/// Returns the properties of `device` that the estimates depend on. It compresses `at_once` subchunks at once.
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

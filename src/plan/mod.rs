//! Which stages a shard goes through, on which engine, and why.

mod explanation;
mod stream;

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

pub use explanation::{ExplainedStage, Explanation, Place};
pub(crate) use stream::StreamChoice;

use crate::engine::cuda::{
    self, Compressors, CudaEngine, Devices, Limits, MemoryEstimate, Tuning, WithFallback,
};
use crate::engine::host::HostEngine;
use crate::engine::{Chain, Engine, KnownChain};
use crate::layout::SubchunkGrid;
use crate::{Backend, Error, Options};

/// When [`Backend::Auto`] takes a device. A matter of the plan alone and never of load, so that
/// equal data give equal shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Whether chains without a compressor go to a device.
    pub(crate) uncompressed: bool,
    /// The fewest bytes of a decoded shard with a compressor that are worth the trip.
    pub(crate) least_bytes: usize,
    /// The fewest subchunks of such a shard: a device compresses each with a few of its threads.
    pub(crate) least_subchunks: usize,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            uncompressed: false,
            least_bytes: 1 << 20,
            least_subchunks: 16,
        }
    }
}

impl Rule {
    /// Everything that a device can do goes there.
    #[cfg(test)]
    pub(crate) const ALL: Self = Self {
        uncompressed: true,
        least_bytes: 0,
        least_subchunks: 0,
    };

    /// Why a shard stays on the host, if it does.
    fn on_host(&self, grid: &SubchunkGrid, chain: &KnownChain) -> Option<String> {
        self.host_is_better(chain, grid.shard_bytes(), grid.num_subchunks())
    }

    /// Why `subchunks` subchunks that are encoded together, of `bytes` in all, stay on the host, if
    /// they do.
    fn host_is_better(&self, chain: &KnownChain, bytes: usize, subchunks: usize) -> Option<String> {
        if chain.is_fixed_size() {
            return (!self.uncompressed).then(|| {
                "without a compressor the host copies each byte once, and a device would add a trip over its bus in each direction".to_string()
            });
        }
        if bytes < self.least_bytes {
            return Some(format!(
                "a shard of {bytes} bytes is compressed here before a device has begun: from {} on it would go there",
                self.least_bytes
            ));
        }
        (subchunks < self.least_subchunks).then(|| {
            format!(
                "{subchunks} subchunks leave a device idle: from {} on it would compress them",
                self.least_subchunks
            )
        })
    }
}

/// The engines that shards are encoded and decoded by.
#[derive(Clone, Debug)]
pub(crate) struct Engines {
    /// `None` for those of the process, which are looked for when they are needed.
    devices: Option<Arc<Devices>>,
    rule: Rule,
    tuning: Tuning,
}

impl Default for Engines {
    fn default() -> Self {
        Self {
            devices: None,
            rule: Rule::default(),
            tuning: Tuning::DEFAULT,
        }
    }
}

/// The engine of a shard, and why that one.
pub(crate) struct Choice {
    pub(crate) engine: Box<dyn Engine>,
    why: String,
    /// Where its stages run.
    place: Place,
    /// What it takes on a device.
    memory: Option<MemoryEstimate>,
}

impl Choice {
    fn host(why: impl Into<String>) -> Self {
        Self {
            engine: Box::new(HostEngine),
            why: why.into(),
            place: Place::Host,
            memory: None,
        }
    }
}

impl Engines {
    /// Engines of the given devices, with a rule and sizes of their own.
    #[cfg(test)]
    pub(crate) fn of_devices(devices: Arc<Devices>, rule: Rule, tuning: Tuning) -> Self {
        Self {
            devices: Some(devices),
            rule,
            tuning,
        }
    }

    /// Whether shards can ever be encoded on the backend of `options`.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`], with the reason.
    pub(crate) fn check(&self, options: &Options) -> Result<(), Error> {
        match options.backend() {
            Backend::Auto | Backend::Host => Ok(()),
            backend @ Backend::Cuda => self
                .cuda(options)
                .and_then(|cuda| cuda.check())
                .map_err(|reason| Error::BackendUnavailable { backend, reason }),
        }
    }

    /// That zarrs' own codec, on the host, may handle a shard.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if only a device will do; `why` is why zarrs handles it.
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

    /// The engine that encodes and decodes whole shards of `grid`, and why.
    ///
    /// `chain` is the inner codecs, or why they are not ones that the engines know.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] if `options` ask for a device and it cannot be one: the reason.
    pub(crate) fn choose(
        &self,
        options: &Options,
        grid: &SubchunkGrid,
        chain: Result<&KnownChain, &str>,
    ) -> Result<Choice, Error> {
        match options.backend() {
            Backend::Host => Ok(Choice::host("the host was asked for")),
            Backend::Auto => Ok(self.automatic(options, grid, chain)),
            backend @ Backend::Cuda => {
                let (cuda, memory) = self
                    .suitable(options, grid, chain)
                    .map_err(|reason| Error::BackendUnavailable { backend, reason })?;
                Ok(Choice {
                    why: format!(
                        "CUDA was asked for, and runs {}; a lane takes {memory}",
                        what_of(&cuda)
                    ),
                    engine: Box::new(cuda),
                    place: Place::Cuda,
                    memory: Some(memory),
                })
            }
        }
    }

    /// The engine that decodes whole shards of `grid`, and why. It asks for no device where none
    /// would decode them.
    ///
    /// # Errors
    /// As for [`choose`](Self::choose).
    pub(crate) fn choose_decoder(
        &self,
        options: &Options,
        grid: &SubchunkGrid,
        chain: Result<&KnownChain, &str>,
    ) -> Result<Choice, Error> {
        match chain {
            Ok(chain) if !chain.is_fixed_size() && !options.device_decode() => Ok(Choice::host(
                "a compressor's frames are decoded on the host, unless `Options::with_device_decode` says otherwise",
            )),
            _ => self.choose(options, grid, chain),
        }
    }

    fn automatic(
        &self,
        options: &Options,
        grid: &SubchunkGrid,
        chain: Result<&KnownChain, &str>,
    ) -> Choice {
        if let Ok(chain) = chain
            && let Some(why) = self.rule.on_host(grid, chain)
        {
            return Choice::host(why);
        }
        match self.suitable(options, grid, chain) {
            Ok((cuda, memory)) => Choice {
                why: format!("a device can run {}; a lane takes {memory}", what_of(&cuda)),
                engine: Box::new(WithFallback(cuda)),
                place: Place::Cuda,
                memory: Some(memory),
            },
            Err(why) => Choice::host(why),
        }
    }

    /// The engine on a device, and what a lane takes there, if a device can do it.
    fn suitable(
        &self,
        options: &Options,
        grid: &SubchunkGrid,
        chain: Result<&KnownChain, &str>,
    ) -> Result<(CudaEngine, MemoryEstimate), String> {
        let chain = chain.map_err(|unknown| {
            format!("the CUDA engine does not know the inner codecs: {unknown}")
        })?;
        cuda::check_chain(grid, chain, options.device_levels())?;
        let compressors = Compressors {
            levels: options.device_levels(),
            nvcomp: options.nvcomp().map(Path::to_path_buf),
            decode: options.device_decode(),
        };
        let cuda = self.cuda(options)?.for_chain(chain, compressors);
        let memory = cuda
            .memory_estimate(grid, chain)
            .map_err(|error| error.to_string())?;
        Ok((cuda, memory))
    }

    fn cuda(&self, options: &Options) -> Result<CudaEngine, String> {
        let devices = match &self.devices {
            Some(devices) => devices.clone(),
            None => cuda::devices().map_err(|error| error.to_string())?,
        };
        let limits = Limits {
            devices: options.devices().map(<[usize]>::to_vec),
            device_memory: options.device_memory(),
            pinned_memory: options.pinned_memory(),
        };
        Ok(CudaEngine::new(devices, limits, self.tuning))
    }
}

/// What of encoding and decoding a device does.
fn what_of(cuda: &CudaEngine) -> &'static str {
    if cuda.decodes_whole_shards() {
        "all of it"
    } else {
        "all of the encoding, and the host decodes"
    }
}

/// The engine that decodes parts of shards.
pub(crate) fn host_engine() -> &'static dyn Engine {
    &HostEngine
}

/// Say what `choice` means for the shards of `grid`.
pub(crate) fn explain(
    grid: &SubchunkGrid,
    chain: Result<&KnownChain, &str>,
    index: String,
    choice: &Choice,
) -> Explanation {
    let on_host = |stage: String, reason: String| ExplainedStage {
        stage,
        place: Place::Host,
        reason,
    };
    let mut stages = match (chain, choice.place) {
        (Ok(chain), Place::Host) => host_stages(chain),
        (Ok(chain), Place::Cuda) => cuda_stages(chain),
        (Err(unknown), _) => vec![
            on_host(
                "scatter".to_string(),
                "into a buffer of the thread".to_string(),
            ),
            on_host(
                "the inner codecs, by zarrs".to_string(),
                format!("no fast path: {unknown}"),
            ),
            aggregate_on_host(),
        ],
    };
    stages.push(on_host(index, "always on the host".to_string()));
    Explanation {
        engine: choice.engine.name(),
        why: choice.why.clone(),
        shard: grid.shard().to_vec(),
        subchunk: grid.subchunk().to_vec(),
        num_subchunks: grid.num_subchunks(),
        subchunk_bytes: Some(grid.subchunk_bytes()),
        memory: choice.memory,
        stages,
        partial_writes: String::new(),
    }
}

/// How a chain begins: what scattering does on the way.
fn scatter(chain: &KnownChain) -> String {
    let axes_in_order = chain.order.iter().copied().eq(0..chain.order.len());
    let mut scatter = "scatter".to_string();
    if !axes_in_order {
        let _ = write!(scatter, ", axes in order {:?}", chain.order);
    }
    if chain.swap > 1 {
        let _ = write!(scatter, ", bytes reversed in groups of {}", chain.swap);
    }
    scatter
}

fn aggregate_on_host() -> ExplainedStage {
    ExplainedStage {
        stage: "aggregate".to_string(),
        place: Place::Host,
        reason: "sizes are known only after encoding: C order, dense".to_string(),
    }
}

fn host_stages(chain: &KnownChain) -> Vec<ExplainedStage> {
    let on_host = |stage: String, reason: &str| ExplainedStage {
        stage,
        place: Place::Host,
        reason: reason.to_string(),
    };
    let reason = if chain.is_fixed_size() {
        "straight into the shard: every subchunk has the same size"
    } else {
        "into a buffer of the thread"
    };
    let mut stages = vec![on_host(scatter(chain), reason)];
    for stage in &chain.stages {
        stages.push(on_host(
            stage.to_string(),
            "a known codec: contexts and buffers are reused",
        ));
    }
    if !chain.is_fixed_size() {
        stages.push(aggregate_on_host());
    }
    stages
}

fn cuda_stages(chain: &KnownChain) -> Vec<ExplainedStage> {
    let stage = |stage: String, place, reason: &str| ExplainedStage {
        stage,
        place,
        reason: reason.to_string(),
    };
    let mut stages = vec![
        stage(
            "stage".to_string(),
            Place::Host,
            "into page-locked memory, from which a device copies by itself",
        ),
        stage(
            scatter(chain),
            Place::Cuda,
            "one kernel, with the fill-value test",
        ),
    ];
    for codec in &chain.stages {
        let reason = if codec.is_fixed_size() {
            "all subchunks of a batch at once"
        } else {
            "nvCOMP, all subchunks of a batch at once; what it fails on, the host compresses"
        };
        stages.push(stage(codec.to_string(), Place::Cuda, reason));
    }
    stages.push(stage(
        "aggregate".to_string(),
        Place::Cuda,
        "C order, dense, without empty subchunks",
    ));
    stages
}

/// Say that zarrs' own codec handles the shards of `grid`, and why.
///
/// # Errors
/// [`Error::BackendUnavailable`] if the backend is a device's, and nothing else will do.
pub(crate) fn explain_delegated(
    grid: &SubchunkGrid,
    why: String,
    options: &Options,
) -> Result<Explanation, Error> {
    Engines::check_delegated(options, &why)?;
    Ok(Explanation {
        engine: "zarrs",
        why: why.clone(),
        shard: grid.shard().to_vec(),
        subchunk: grid.subchunk().to_vec(),
        num_subchunks: grid.num_subchunks(),
        subchunk_bytes: None,
        memory: None,
        stages: vec![ExplainedStage {
            stage: "zarrs' codecs, subchunk by subchunk".to_string(),
            place: Place::Host,
            reason: why,
        }],
        partial_writes: String::new(),
    })
}

/// The chain as an engine takes it.
pub(crate) fn chain<'a>(
    known: Option<&'a KnownChain>,
    foreign: &'a dyn crate::engine::SubchunkCodec,
) -> Chain<'a> {
    known.map_or(Chain::Foreign(foreign), Chain::Known)
}

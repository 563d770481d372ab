//! Explains a plan in words, for users.

use std::fmt::{self, Write};

use super::{Engines, Estimates, PlanSummary};
use crate::error::Error;
use crate::metrics::MemoryEstimate;
use crate::options::Options;
use zarrs_cuda_engine::contract::KnownChain;
use zarrs_cuda_engine::layout::SubchunkGrid;

/// The place where a stage runs.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// use zarrs_cuda::Place;
///
/// let explanation = zarrs_cuda::explain(&array)?;
/// let on_device = |stage: &&zarrs_cuda::ExplainedStage| stage.place == Place::Cuda;
/// let count = explanation.stages.iter().filter(on_device).count();
/// println!("{count} of {} stages run on a device", explanation.stages.len());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The CPU of this machine.
    Host,
    /// An NVIDIA GPU.
    Cuda,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.pad("host"),
            Self::Cuda => f.pad("cuda"),
        }
    }
}

/// One stage of an [`Explanation`].
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// for stage in &zarrs_cuda::explain(&array)?.stages {
///     println!("{} on {}: {}", stage.stage, stage.place, stage.reason);
/// }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExplainedStage {
    /// The operation of the stage.
    pub stage: String,
    /// The place where the stage runs.
    pub place: Place,
    /// The reason why the stage runs at this place, or in this way.
    pub reason: String,
}

/// The plan for a shard of an array: each stage, the place where it runs, and the reason.
///
/// `Display` is for people, and may change in any release.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// let explanation = zarrs_cuda::explain(&array)?;
/// println!("{} encodes, because {}", explanation.engine, explanation.why);
/// if let Some(wait) = &explanation.first_wait {
///     println!("the first shard waits: {wait}"); // `warm_up` does this work ahead
/// }
/// assert_eq!((explanation.num_subchunks, explanation.subchunk_bytes), (16, Some(128)));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The engine that encodes whole shards.
    pub engine: &'static str,
    /// The reason why this engine was chosen.
    pub why: String,
    /// The estimated times to encode a shard; `None` if there is no figure for the inner codecs.
    pub estimates: Option<Estimates>,
    /// The engine that decodes whole shards, and the reason why.
    pub decoding: String,
    /// The shape of the shard, in elements.
    pub shard: Vec<usize>,
    /// The shape of a subchunk, in elements.
    pub subchunk: Vec<usize>,
    /// The number of subchunks in the shard.
    pub num_subchunks: usize,
    /// The size of a decoded subchunk, in bytes; `None` for variable-length data types.
    pub subchunk_bytes: Option<usize>,
    /// The memory that the buffers of one shard in flight take on a device. `None` if no device encodes the
    /// shards, and before the device has a context, because an explanation creates none.
    pub memory: Option<MemoryEstimate>,
    /// The work that the first shard on a device waits for. `None` if everything is ready, or if no device
    /// encodes the shards.
    pub first_wait: Option<String>,
    /// The stages, in the order of encoding.
    pub stages: Vec<ExplainedStage>,
    /// The place where a partial write puts changed subchunks, or the reason why partial writes are not
    /// possible.
    pub partial_writes: String,
    /// The reason why large buffers are not on huge pages; `None` if they are. See the page on
    /// [memory](crate::guide::memory).
    pub no_huge_pages: Option<String>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "shard {:?} = {} subchunks of {:?}",
            self.shard, self.num_subchunks, self.subchunk
        )?;
        if let Some(bytes) = self.subchunk_bytes {
            write!(f, " ({bytes} bytes each)")?;
        }
        write!(f, "\nengine: {} ({})", self.engine, self.why)?;
        if let Some(estimates) = &self.estimates {
            write!(f, "\nestimated to encode a shard: {estimates}")?;
        }
        write!(f, "\nwhole shards are decoded: {}", self.decoding)?;
        let width = self
            .stages
            .iter()
            .map(|stage| stage.stage.chars().count())
            .max()
            .unwrap_or(0);
        for ExplainedStage {
            stage,
            place,
            reason,
        } in &self.stages
        {
            write!(f, "\n  {stage:width$}  {place:4}  {reason}")?;
        }
        if let Some(wait) = &self.first_wait {
            write!(f, "\nthe first shard waits: {wait}")?;
        }
        write!(f, "\npartial writes: {}", self.partial_writes)?;
        if let Some(why) = &self.no_huge_pages {
            write!(f, "\nhuge pages: none, because {why}")?;
        }
        Ok(())
    }
}

/// Explains `plan`, by which the shards of `grid` are encoded, and `decoder`, by which they are decoded.
pub(crate) fn explain(
    grid: &SubchunkGrid,
    chain: Result<&KnownChain, &str>,
    index: String,
    (plan, decoder): (PlanSummary, &PlanSummary),
    estimates: Option<Estimates>,
) -> Explanation {
    let on_host = |stage: String, reason: String| ExplainedStage {
        stage,
        place: Place::Host,
        reason,
    };
    let mut stages = match (chain, plan.place) {
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
        decoding: if (plan.engine, &plan.why) == (decoder.engine, &decoder.why) {
            format!("{} (for the same reason)", decoder.engine)
        } else {
            decoder.in_words()
        },
        engine: plan.engine,
        why: plan.why,
        estimates,
        shard: grid.shard().to_vec(),
        subchunk: grid.subchunk().to_vec(),
        num_subchunks: grid.num_subchunks(),
        subchunk_bytes: Some(grid.subchunk_bytes()),
        memory: plan.memory,
        first_wait: plan.first_wait,
        stages,
        partial_writes: String::new(),
        no_huge_pages: None,
    }
}

/// Returns the description of the first stage of a chain: scattering, which also transposes and reverses
/// bytes.
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
            "nvCOMP, all subchunks of a batch at once; what it fails on, the host compresses. Files are larger than from the host: others report 8 to 50 %, see the guide's page on GPUs"
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

/// Explains that zarrs' own codec encodes and decodes the shards of `grid`, for the reason `why`.
///
/// # Errors
/// [`Error::BackendUnavailable`] if a setting asks for a device.
pub(crate) fn explain_delegated(
    grid: &SubchunkGrid,
    why: String,
    (engines, options): (&Engines, &Options),
) -> Result<Explanation, Error> {
    engines.check_delegated(options, &why)?;
    Ok(Explanation {
        engine: "zarrs",
        why: why.clone(),
        estimates: None,
        decoding: "by zarrs, on the host".to_string(),
        shard: grid.shard().to_vec(),
        subchunk: grid.subchunk().to_vec(),
        num_subchunks: grid.num_subchunks(),
        subchunk_bytes: None,
        memory: None,
        first_wait: None,
        stages: vec![ExplainedStage {
            stage: "zarrs' codecs, subchunk by subchunk".to_string(),
            place: Place::Host,
            reason: why,
        }],
        partial_writes: String::new(),
        no_huge_pages: None,
    })
}

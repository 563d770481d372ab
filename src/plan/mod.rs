//! Which stages a shard goes through, on which engine, and why.

mod explanation;

use std::fmt::Write;

pub use explanation::{ExplainedStage, Explanation, Place};

use crate::engine::host::HostEngine;
use crate::engine::{Chain, Engine, KnownChain};
use crate::layout::SubchunkGrid;
use crate::{Backend, Error};

static HOST: HostEngine = HostEngine;

/// Why [`Backend::Cuda`] is refused.
const NO_CUDA: &str =
    "this release of zarrs_cuda has no CUDA engine; use `Backend::Auto` or `Backend::Host`";

/// Whether shards can ever be encoded on `backend`.
///
/// # Errors
/// [`Error::BackendUnavailable`], with the reason.
pub(crate) fn check_backend(backend: Backend) -> Result<(), Error> {
    match backend {
        Backend::Auto | Backend::Host => Ok(()),
        Backend::Cuda => Err(Error::BackendUnavailable {
            backend,
            reason: NO_CUDA.to_string(),
        }),
    }
}

/// The engine that encodes and decodes whole shards under `backend`, and why.
///
/// # Errors
/// [`Error::BackendUnavailable`], with the reason.
pub(crate) fn choose_engine(
    backend: Backend,
) -> Result<(&'static dyn Engine, &'static str), Error> {
    check_backend(backend)?;
    let why = match backend {
        Backend::Host => "the host was asked for",
        _ => "this release has no CUDA engine",
    };
    Ok((&HOST, why))
}

/// The engine that decodes parts of shards.
pub(crate) fn host_engine() -> &'static dyn Engine {
    &HOST
}

/// Say what happens to the shards of `grid`.
///
/// `unknown` is why the chain is not one that the engines know.
pub(crate) fn explain(
    grid: &SubchunkGrid,
    chain: Result<&KnownChain, &str>,
    index: String,
    backend: Backend,
) -> Result<Explanation, Error> {
    let (engine, why) = choose_engine(backend)?;
    let on_engine = |stage: String, reason: String| ExplainedStage {
        stage,
        place: Place::Host,
        reason,
    };
    let mut stages = Vec::new();
    match chain {
        Ok(chain) => {
            let axes_in_order = chain.order.iter().copied().eq(0..chain.order.len());
            let mut scatter = "scatter".to_string();
            if !axes_in_order {
                let _ = write!(scatter, ", axes in order {:?}", chain.order);
            }
            if chain.swap > 1 {
                let _ = write!(scatter, ", bytes reversed in groups of {}", chain.swap);
            }
            let reason = if chain.is_fixed_size() {
                "straight into the shard: every subchunk has the same size"
            } else {
                "into a buffer of the thread"
            };
            stages.push(on_engine(scatter, reason.to_string()));
            for stage in &chain.stages {
                stages.push(on_engine(
                    stage.to_string(),
                    "a known codec: contexts and buffers are reused".to_string(),
                ));
            }
        }
        Err(unknown) => {
            stages.push(on_engine(
                "scatter".to_string(),
                "into a buffer of the thread".to_string(),
            ));
            stages.push(on_engine(
                "the inner codecs, by zarrs".to_string(),
                format!("no fast path: {unknown}"),
            ));
        }
    }
    if !matches!(chain, Ok(chain) if chain.is_fixed_size()) {
        stages.push(on_engine(
            "aggregate".to_string(),
            "sizes are known only after encoding: C order, dense".to_string(),
        ));
    }
    stages.push(on_engine(index, "always on the host".to_string()));
    Ok(Explanation {
        engine: engine.name(),
        why: why.to_string(),
        shard: grid.shard().to_vec(),
        subchunk: grid.subchunk().to_vec(),
        num_subchunks: grid.num_subchunks(),
        subchunk_bytes: Some(grid.subchunk_bytes()),
        stages,
    })
}

/// Say that zarrs' own codec handles the shards of `grid`, and why.
///
/// # Errors
/// [`Error::BackendUnavailable`] if the backend is an engine's, and nothing else will do.
pub(crate) fn explain_delegated(
    grid: &SubchunkGrid,
    why: String,
    backend: Backend,
) -> Result<Explanation, Error> {
    check_backend(backend)?;
    Ok(Explanation {
        engine: "zarrs",
        why: why.clone(),
        shard: grid.shard().to_vec(),
        subchunk: grid.subchunk().to_vec(),
        num_subchunks: grid.num_subchunks(),
        subchunk_bytes: None,
        stages: vec![ExplainedStage {
            stage: "zarrs' own sharding codec".to_string(),
            place: Place::Host,
            reason: why,
        }],
    })
}

/// The chain as an engine takes it.
pub(crate) fn chain<'a>(
    known: Option<&'a KnownChain>,
    foreign: &'a dyn crate::engine::SubchunkCodec,
) -> Chain<'a> {
    known.map_or(Chain::Foreign(foreign), Chain::Known)
}

//! A plan in words, for users.

use std::fmt;

use crate::engine::cuda::MemoryEstimate;

/// Where a stage runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// On this machine's CPU.
    Host,
    /// On an NVIDIA GPU.
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
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExplainedStage {
    /// What the stage does.
    pub stage: String,
    /// Where it runs.
    pub place: Place,
    /// Why it runs there, or in this way.
    pub reason: String,
}

/// What happens to a shard of an array: each stage, where it runs, and why.
///
/// `Display` is for people, and may change in any release.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The engine that encodes whole shards.
    pub engine: &'static str,
    /// Why that engine was chosen.
    pub why: String,
    /// The shape of the shard, in elements.
    pub shard: Vec<usize>,
    /// The shape of a subchunk, in elements.
    pub subchunk: Vec<usize>,
    /// The number of subchunks in the shard.
    pub num_subchunks: usize,
    /// The size of a decoded subchunk, in bytes; `None` for variable-length data types.
    pub subchunk_bytes: Option<usize>,
    /// The memory that the buffers of one shard in flight take on a device; `None` if shards do not
    /// go to one.
    pub memory: Option<MemoryEstimate>,
    /// The stages, in the order of encoding.
    pub stages: Vec<ExplainedStage>,
    /// Where a partial write puts changed subchunks, or why partial writes are not possible.
    pub partial_writes: String,
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
        write!(f, "\npartial writes: {}", self.partial_writes)
    }
}

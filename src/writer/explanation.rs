//! Explains in words what a writer does, and why.

use std::fmt;

use crate::metrics::MemoryEstimate;

/// The behaviour of an [`ArrayWriter`](super::ArrayWriter), and the reasons for it: its engine, its buffers,
/// how its store takes shards and metadata, and whether it has a
/// [lease](crate::guide::reference::streaming#leases).
///
/// `Display` is for people, and may change in any release.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriterExplanation {
    /// The engine that encodes.
    pub engine: &'static str,
    /// The reason for that engine.
    pub why: String,
    /// The number of epochs that are encoded together.
    pub epochs_per_batch: usize,
    /// The most memory that the buffers take.
    pub memory: MemoryEstimate,
    /// The number of shards that are stored at once, at most.
    pub store_threads: usize,
    /// How a shard is stored.
    pub shards: &'static str,
    /// How the metadata of the array are replaced.
    pub metadata: &'static str,
    /// Whether the writer has a lease, so that another writer that extends the array is refused.
    pub has_lease: bool,
    /// Why the writer has a lease, or has none.
    pub lease: &'static str,
}

impl fmt::Display for WriterExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lease = if self.has_lease { "held" } else { "none" };
        write!(
            f,
            "engine: {} ({})\nbuffers: batches of {} epochs, at most {}\nshards: {}; up to {} at once\nmetadata: {}\nlease: {lease}, because {}",
            self.engine,
            self.why,
            self.epochs_per_batch,
            self.memory,
            self.shards,
            self.store_threads,
            self.metadata,
            self.lease
        )
    }
}

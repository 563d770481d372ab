//! Explains in words the behaviour of a writer, and the reasons for it.

use std::fmt;

use crate::metrics::MemoryEstimate;

/// The behaviour of an [`ArrayWriter`](super::ArrayWriter), and the reasons for it: its engine, its buffers,
/// how its store takes shards and metadata, and whether it has a
/// [lease](crate::guide::reference::streaming#leases).
///
/// `Display` is for people, and may change in any release.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![0, 64], vec![16, 64], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![4, 16]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/frames")?;
/// # array.store_metadata()?;
/// use zarrs_cuda::writer::ArrayWriter;
///
/// let writer = ArrayWriter::builder(&array).build()?;
/// let explanation = writer.explain();
/// println!("{}, because {}", explanation.engine, explanation.why);
/// if !explanation.has_lease {
///     println!("other programs are not refused: {}", explanation.lease);
/// }
/// # assert!(!explanation.has_lease);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriterExplanation {
    /// The name of the engine that encodes the shards.
    pub engine: &'static str,
    /// The reason why this engine encodes.
    pub why: String,
    /// The number of epochs that are encoded together.
    pub epochs_per_batch: usize,
    /// The most memory that the buffers of the writer take.
    pub memory: MemoryEstimate,
    /// The most shards that are stored at once.
    pub store_threads: usize,
    /// A description of how a shard is stored.
    pub shards: &'static str,
    /// A description of how the metadata of the array are replaced.
    pub metadata: &'static str,
    /// Whether the writer has a lease. While it has one, other writers that extend the array are refused.
    pub has_lease: bool,
    /// The reason why the writer has a lease, or has none.
    pub lease: &'static str,
}

/// The ways in which a store can replace values, of which a writer uses the best one.
#[derive(Clone, Copy)]
pub(super) enum StoreKind {
    Renames,
    HasConditions,
    Plain,
}

impl StoreKind {
    /// Returns a description of how a shard is stored.
    pub(super) fn shards(self) -> &'static str {
        match self {
            Self::Renames => "each grows in a temporary, which is renamed when it is complete",
            Self::HasConditions | Self::Plain => {
                "each is put together in memory and stored whole, which takes longer and more memory than a temporary in a store that renames"
            }
        }
    }

    /// Returns a description of how the metadata of the array are replaced.
    pub(super) fn metadata(self) -> &'static str {
        match self {
            Self::Renames => "a temporary is compared with what was read last, and renamed",
            Self::HasConditions => {
                "replaced under the condition that they are as they were read, where the store takes conditions"
            }
            Self::Plain => {
                "replaced by one `set`, which overwrites changes of other processes at the same moment"
            }
        }
    }
}

/// Returns the reason why a writer has a lease, or has none.
pub(super) fn why_lease(has_lease: bool, extends: bool, has_conditions: bool) -> &'static str {
    match (has_lease, extends, has_conditions) {
        (true, ..) => {
            "the writer extends or cuts the array, or writes a part of the levels of an image"
        }
        (false, false, _) => {
            "a writer that does not begin at the end of the array may be one of several; it takes the lease when it extends the array, if the store has leases"
        }
        (false, true, true) => {
            "the store takes no conditions, or ignores them: see to it that no other process extends the array"
        }
        (false, true, false) => {
            "the values of the store are not known to be files, and it has no requests with conditions: see to it that no other process extends the array"
        }
    }
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

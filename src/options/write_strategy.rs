//! Where partial writes put changed subchunks, and who is told about unused bytes.

use std::fmt;
use std::sync::Arc;

/// Where a partial write puts changed subchunks.
///
/// A strategy belongs to each write. It never reaches array metadata, and different strategies may
/// be used on one shard, one after the other. Every result is a shard that any reader opens.
///
/// The [guide](crate::guide::write#parts-of-shards) helps to choose one. The [reference
/// page](crate::guide::reference::updates#what-is-promised) says what each promises if the process
/// dies during a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WriteStrategy {
    /// [`InPlace`](Self::InPlace) if every subchunk has the same encoded size, or if the store
    /// rewrites whole objects. Otherwise like [`Append`](Self::Append), except that changed
    /// subchunks also go into unused bytes: as safe, and shards grow more slowly.
    #[default]
    Auto,
    /// A changed subchunk goes to the end of the shard, and a new index behind it. The bytes of
    /// earlier states stay until [`compact`](crate::compact).
    Append,
    /// A changed subchunk stays in its place if it fits there. Otherwise it goes into unused bytes,
    /// or to the end.
    InPlace,
    /// Every subchunk has a slot of its worst-case encoded size, in C order. No subchunk ever
    /// moves, and unused bytes never add up.
    ///
    /// The *apparent* size of a shard is the worst case. File systems store the gaps as holes;
    /// stores in memory allocate them. It is an error if an inner codec states no bound.
    ///
    /// In a shard that another strategy wrote, subchunks keep their places until they are changed.
    /// If other subchunks occupy a slot then, its subchunk gets room for its worst case at the end.
    Slots,
}

impl fmt::Display for WriteStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Append => "append",
            Self::InPlace => "in place",
            Self::Slots => "slots",
        })
    }
}

/// A partial write left more unused bytes in a shard than
/// [`Options::max_dead_fraction`](crate::Options::max_dead_fraction) allows.
///
/// A codec is not told which shard it writes.
/// [`Shards::compact_pending`](crate::maintenance::Shards::compact_pending) finds the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactionRequest {
    /// The size of the shard now, in bytes.
    pub size: u64,
    /// The number of unused bytes in it.
    pub dead: u64,
}

/// The function to call with each [`CompactionRequest`]. Equal only to itself and its clones.
#[derive(Clone)]
pub(crate) struct CompactionCallback(pub(crate) Arc<dyn Fn(&CompactionRequest) + Send + Sync>);

impl PartialEq for CompactionCallback {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for CompactionCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CompactionCallback")
    }
}

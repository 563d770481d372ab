//! Stored shards: compacted, recovered after interrupted updates, and inspected. The
//! [guide](crate::guide::maintain) shows how.

mod areas;
#[cfg(feature = "async")]
mod asynchronous;
mod compact;
mod diagnosis;
mod format;
mod inspect;
mod io;
mod recover;
mod shards;

#[cfg(feature = "async")]
pub use asynchronous::{async_compact, async_inspect, async_recover};
pub use compact::{Compaction, compact};
pub use format::ShardFormat;
pub use inspect::{ExtentProblem, Inspection, StoredSubchunk, UpdateRecord, inspect};
pub use recover::{Recovery, RecoveryOutcome, SubchunkState, recover};
pub use shards::Shards;

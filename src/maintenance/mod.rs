//! Shards as objects of a store: replaced by compact ones, recovered, and looked at.

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

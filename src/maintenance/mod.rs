//! Shards as objects of a store: replaced by compact ones, recovered, and looked at.

mod compact;
mod diagnosis;
mod format;
mod io;
mod recover;

pub use compact::{Compaction, compact};
pub use format::ShardFormat;
pub use recover::{Recovery, RecoveryOutcome, SubchunkState, recover};

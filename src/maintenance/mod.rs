//! Shards as objects of a store: made smaller, put right after an interrupted update, and looked at.
//!
//! | | what it is for |
//! |---|---|
//! | [`compact`](compact()) | replaces a shard by one without unused bytes |
//! | [`recover`](recover()) | puts a shard right whose last update was interrupted |
//! | [`inspect`](inspect()) | says what is in a shard, and where |
//! | [`Shards`] | does all of this for the shards of an array, and finds the shards to compact |
//! | [`ShardFormat`] | says how to understand a shard: its codec, shape, data type and fill value |
//!
//! Each function has an `async_` form for asynchronous stores.

mod compact;
mod diagnosis;
mod format;
mod inspect;
mod io;
mod picture;
mod recover;
mod shards;

#[cfg(feature = "async")]
pub use compact::async_compact;
pub use compact::{Compaction, compact};
pub use format::ShardFormat;
#[cfg(feature = "async")]
pub use inspect::async_inspect;
pub use inspect::{ExtentProblem, Inspection, StoredSubchunk, UpdateRecord, inspect};
#[cfg(feature = "async")]
pub use recover::async_recover;
pub use recover::{Recovery, RecoveryOutcome, SubchunkState, recover};
pub use shards::Shards;

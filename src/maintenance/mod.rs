//! Maintenance of stored shards: compaction, recovery after an interrupted update, inspection.
//!
//! | item | purpose |
//! |---|---|
//! | [`compact`](compact()) | replaces a shard by one without unused bytes |
//! | [`recover`](recover()) | repairs a shard whose last update was interrupted |
//!  [`inspect`](inspect()) | describes a shard: its parts, and their places |
//!  [`verify`](verify()) | decodes each subchunk of a shard, and changes nothing |
//!  [`is_damage`] | tells whether an error means wrong bytes, or trouble of a store or the machine |
//! | [`Shards`] | does all of this for the shards of an array, and finds the shards to compact |
//! | [`ShardFormat`] | the format of a shard: its codec, shape, data type and fill value |
//!
//! Each function has an `async_` form for asynchronous stores. The [guide](crate::guide::maintain)
//! shows how to use them.

mod compact;
mod diagnosis;
mod format;
mod inspect;
mod io;
mod keys;
mod picture;
mod recover;
mod rewrite;
mod shards;
mod unknown;
mod verify;

pub use crate::shard::packed::Packing;
pub use crate::store::array_lease::ArrayLease;
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
pub use rewrite::{RewrittenShard, StoredShard};
pub use shards::{Shards, Usage};
#[cfg(feature = "async")]
pub use verify::async_verify;
pub use verify::{Verification, is_damage, verify};

//! Tests that register this crate's codec while they open an array, and open other arrays with
//! zarrs' own. A registration affects the whole process, so a test that opens an array holds
//! [`registry`].
//!
//! The files are in the folders of their subjects.
//!
//! | module | subject |
//! |---|---|
//! | `range_writes` | `RangeWrites`: partial writes for stores that only replace whole objects |
//! | `sharded_store` | `ShardedStore` and `ShardingTransformer` |
//! | `updates` | partial writes of shards: later reads, torn writes, and concurrent writes |

#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and says where"
)]

#[path = "shared/range_writes/mod.rs"]
mod range_writes;
#[path = "shared/sharded_store/mod.rs"]
mod sharded_store;
#[path = "codec/updates/mod.rs"]
mod updates;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock: no other test registers a codec, or opens an array with nested sharding, while it is
/// held.
fn registry() -> MutexGuard<'static, ()> {
    static REGISTRY: Mutex<()> = Mutex::new(());
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

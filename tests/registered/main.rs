//! Tests that register this crate's codec while they open an array, and open others with zarrs' own. A
//! registration is for the whole process, so who opens an array has [`registry`].
//!
//! | module | what is tested |
//! |---|---|
//! | `range_writes` | `RangeWrites`: parts of objects in stores that only replace whole ones |
//! | `sharded_store` | `ShardedStore` and `ShardingTransformer` |
//! | `updates` | partial writes of shards: what is read afterwards, torn, or at the same time |

#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and says where"
)]

mod range_writes;
mod sharded_store;
mod updates;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Nobody else registers, or opens an array with sharding in sharding.
fn registry() -> MutexGuard<'static, ()> {
    static REGISTRY: Mutex<()> = Mutex::new(());
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

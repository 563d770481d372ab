//! Locks keys: writers of the same shard in this process write one after the other.
//!
//! A lock is held while the store is read and written. A store that hands its work to the threads of rayon
//! must not let such a thread wait for a lock: rayon could give the waiting thread another write that waits
//! for the same lock.

use std::collections::BTreeSet;
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use zarrs_storage::StoreKey;

#[cfg(feature = "async")]
use super::Awaited;
use super::Blocking;

/// The number of locks. Shards that share a lock sometimes wait for each other without need, which only costs
/// time.
pub(crate) const STRIPES: usize = 64;

/// The locks of the keys of an adapter. Its store either blocks or is awaited, and each kind of store
/// has locks of its own.
#[derive(Debug)]
pub(crate) struct KeyLocks {
    blocking: [Mutex<()>; STRIPES],
    #[cfg(feature = "async")]
    awaited: [futures_util::lock::Mutex<()>; STRIPES],
}

impl Default for KeyLocks {
    fn default() -> Self {
        Self {
            blocking: [const { Mutex::new(()) }; STRIPES],
            #[cfg(feature = "async")]
            awaited: [const { futures_util::lock::Mutex::new(()) }; STRIPES],
        }
    }
}

/// Returns the number of the lock of `shard`.
pub(crate) fn stripe(shard: &StoreKey) -> usize {
    let mut hasher = DefaultHasher::new();
    shard.hash(&mut hasher);
    // The remainder is less than 64, so it fits.
    usize::try_from(hasher.finish() % STRIPES as u64).unwrap_or(0)
}

/// Returns the numbers of the locks of `shards`, each once and in order. So two writers that each wait for
/// several locks wait for them in the same order.
fn stripes(shards: &[StoreKey]) -> impl Iterator<Item = usize> {
    let stripes: BTreeSet<usize> = shards.iter().map(stripe).collect();
    stripes.into_iter()
}

/// Waits for locks of keys in the same way as for the store: the thread blocks, or the wait is awaited.
pub(crate) trait LocksKeys {
    /// The guard of a lock, which is held until the guard is dropped.
    type Guard<'a>;

    /// Waits for the lock of `shard`.
    fn lock_key<'a>(
        &self,
        locks: &'a KeyLocks,
        shard: &StoreKey,
    ) -> impl Future<Output = Self::Guard<'a>>;

    /// Waits for the locks of several shards.
    fn lock_keys<'a>(
        &self,
        locks: &'a KeyLocks,
        shards: &[StoreKey],
    ) -> impl Future<Output = Vec<Self::Guard<'a>>>;

    /// Waits for the locks of all shards.
    fn lock_all_keys<'a>(&self, locks: &'a KeyLocks) -> impl Future<Output = Vec<Self::Guard<'a>>>;
}

impl<S: ?Sized + Sync> LocksKeys for Blocking<'_, S> {
    type Guard<'a> = MutexGuard<'a, ()>;

    async fn lock_key<'a>(&self, locks: &'a KeyLocks, shard: &StoreKey) -> Self::Guard<'a> {
        let held = locks.blocking[stripe(shard)].lock();
        held.unwrap_or_else(PoisonError::into_inner)
    }

    async fn lock_keys<'a>(
        &self,
        locks: &'a KeyLocks,
        shards: &[StoreKey],
    ) -> Vec<Self::Guard<'a>> {
        let held = stripes(shards).map(|stripe| locks.blocking[stripe].lock());
        held.map(|lock| lock.unwrap_or_else(PoisonError::into_inner))
            .collect()
    }

    async fn lock_all_keys<'a>(&self, locks: &'a KeyLocks) -> Vec<Self::Guard<'a>> {
        // All writers take locks in this order. A writer that holds only one lock waits for no other lock.
        let held = locks.blocking.iter().map(Mutex::lock);
        held.map(|lock| lock.unwrap_or_else(PoisonError::into_inner))
            .collect()
    }
}

#[cfg(feature = "async")]
impl<S: ?Sized + Sync> LocksKeys for Awaited<'_, S> {
    type Guard<'a> = futures_util::lock::MutexGuard<'a, ()>;

    async fn lock_key<'a>(&self, locks: &'a KeyLocks, shard: &StoreKey) -> Self::Guard<'a> {
        locks.awaited[stripe(shard)].lock().await
    }

    async fn lock_keys<'a>(
        &self,
        locks: &'a KeyLocks,
        shards: &[StoreKey],
    ) -> Vec<Self::Guard<'a>> {
        let mut taken = Vec::new();
        for stripe in stripes(shards) {
            taken.push(locks.awaited[stripe].lock().await);
        }
        taken
    }

    async fn lock_all_keys<'a>(&self, locks: &'a KeyLocks) -> Vec<Self::Guard<'a>> {
        let mut taken = Vec::with_capacity(STRIPES);
        for lock in &locks.awaited {
            taken.push(lock.lock().await);
        }
        taken
    }
}

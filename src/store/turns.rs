//! Turns: writers of the same shard in this process write one after the other.
//!
//! A turn is held while the store is read and written. A store that hands its work to the threads of
//! rayon must not wait for it there: rayon could give the waiting thread another write of the same
//! turn.

use std::collections::BTreeSet;
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use zarrs_storage::StoreKey;

#[cfg(feature = "async")]
use super::Awaited;
use super::Blocking;

/// Shards that share a turn wait for each other without need, which only costs time.
pub(crate) const STRIPES: usize = 64;

/// The turns of an adapter. Its store is either one that blocks or one that is awaited, and each kind
/// has turns of its own.
#[derive(Debug)]
pub(crate) struct Turns {
    blocking: [Mutex<()>; STRIPES],
    #[cfg(feature = "async")]
    awaited: [futures_util::lock::Mutex<()>; STRIPES],
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            blocking: [const { Mutex::new(()) }; STRIPES],
            #[cfg(feature = "async")]
            awaited: [const { futures_util::lock::Mutex::new(()) }; STRIPES],
        }
    }
}

/// The number of the turn of `shard`.
pub(crate) fn stripe(shard: &StoreKey) -> usize {
    let mut hasher = DefaultHasher::new();
    shard.hash(&mut hasher);
    // The remainder is less than 64.
    usize::try_from(hasher.finish() % STRIPES as u64).unwrap_or(0)
}

/// The numbers of the turns of `shards`, each once and in order: two writers that each wait for several turns wait
/// for them in the same order.
fn stripes(shards: &[StoreKey]) -> impl Iterator<Item = usize> {
    let stripes: BTreeSet<usize> = shards.iter().map(stripe).collect();
    stripes.into_iter()
}

/// Waits for a turn as its store waits for everything else.
pub(crate) trait TakesTurns {
    /// A turn, until it is dropped.
    type Turn<'a>;

    /// Waits for the turn of `shard`.
    fn turn<'a>(&self, turns: &'a Turns, shard: &StoreKey) -> impl Future<Output = Self::Turn<'a>>;

    /// Waits for the turns of several shards.
    fn turns_of<'a>(
        &self,
        turns: &'a Turns,
        shards: &[StoreKey],
    ) -> impl Future<Output = Vec<Self::Turn<'a>>>;

    /// Waits for the turns of all shards.
    fn all_turns<'a>(&self, turns: &'a Turns) -> impl Future<Output = Vec<Self::Turn<'a>>>;
}

impl<S: ?Sized + Sync> TakesTurns for Blocking<'_, S> {
    type Turn<'a> = MutexGuard<'a, ()>;

    async fn turn<'a>(&self, turns: &'a Turns, shard: &StoreKey) -> Self::Turn<'a> {
        let turn = turns.blocking[stripe(shard)].lock();
        turn.unwrap_or_else(PoisonError::into_inner)
    }

    async fn turns_of<'a>(&self, turns: &'a Turns, shards: &[StoreKey]) -> Vec<Self::Turn<'a>> {
        let turns = stripes(shards).map(|stripe| turns.blocking[stripe].lock());
        turns
            .map(|turn| turn.unwrap_or_else(PoisonError::into_inner))
            .collect()
    }

    async fn all_turns<'a>(&self, turns: &'a Turns) -> Vec<Self::Turn<'a>> {
        // In one order. A writer that holds one turn waits for no other.
        let turns = turns.blocking.iter().map(Mutex::lock);
        turns
            .map(|turn| turn.unwrap_or_else(PoisonError::into_inner))
            .collect()
    }
}

#[cfg(feature = "async")]
impl<S: ?Sized + Sync> TakesTurns for Awaited<'_, S> {
    type Turn<'a> = futures_util::lock::MutexGuard<'a, ()>;

    async fn turn<'a>(&self, turns: &'a Turns, shard: &StoreKey) -> Self::Turn<'a> {
        turns.awaited[stripe(shard)].lock().await
    }

    async fn turns_of<'a>(&self, turns: &'a Turns, shards: &[StoreKey]) -> Vec<Self::Turn<'a>> {
        let mut taken = Vec::new();
        for stripe in stripes(shards) {
            taken.push(turns.awaited[stripe].lock().await);
        }
        taken
    }

    async fn all_turns<'a>(&self, turns: &'a Turns) -> Vec<Self::Turn<'a>> {
        let mut taken = Vec::with_capacity(STRIPES);
        for turn in &turns.awaited {
            taken.push(turn.lock().await);
        }
        taken
    }
}

//! One after the other, for encoders of one shard in this process.
//!
//! A codec is not told which shard it writes. But two encoders of one shard that both may write have
//! read the same index: so they take turns by its fingerprint, the second one reads another index when
//! its turn comes, and refuses. Updates that leave the index as it is share a turn. Encoders of
//! different shards with the same index wait for each other, which costs time alone.
//!
//! A turn is held while the store is written to. A store that hands its work to the threads of rayon
//! must not wait for it there: rayon could give the waiting thread another write of the same turn.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(feature = "async")]
use futures_util::lock::{Mutex, MutexGuard};

const STRIPES: usize = 64;

/// Whether others may write at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Those that leave the index as it is, too.
    Shared,
    /// Nobody.
    Alone,
}

fn stripe(index: u64) -> usize {
    // The remainder is less than 64.
    usize::try_from(index % STRIPES as u64).unwrap_or(0)
}

static STRIPE: [RwLock<()>; STRIPES] = [const { RwLock::new(()) }; STRIPES];

/// A turn, until it is dropped.
pub(super) enum Taken {
    Shared(#[expect(dead_code, reason = "held")] RwLockReadGuard<'static, ()>),
    Alone(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'static, ()>),
}

/// Wait for the turn of who read the index with this fingerprint.
pub(super) fn take(index: u64, turn: Turn) -> Taken {
    let stripe = &STRIPE[stripe(index)];
    match turn {
        Turn::Shared => Taken::Shared(stripe.read().unwrap_or_else(PoisonError::into_inner)),
        Turn::Alone => Taken::Alone(stripe.write().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// How many asynchronous encoders share a turn.
#[cfg(feature = "async")]
const SHARES: usize = 8;

/// There is no asynchronous lock for many readers at hand: who shares takes one of these, and who is
/// alone takes all, in order.
#[cfg(feature = "async")]
static ASYNC_STRIPE: [[Mutex<()>; SHARES]; STRIPES] =
    [const { [const { Mutex::new(()) }; SHARES] }; STRIPES];

/// The same among asynchronous encoders. `share` spreads those that share.
#[cfg(feature = "async")]
pub(super) async fn take_async(
    index: u64,
    turn: Turn,
    share: usize,
) -> Vec<MutexGuard<'static, ()>> {
    let shares = &ASYNC_STRIPE[stripe(index)];
    let mut taken = Vec::new();
    match turn {
        Turn::Shared => taken.push(shares[share % SHARES].lock().await),
        Turn::Alone => {
            for share in shares {
                taken.push(share.lock().await);
            }
        }
    }
    taken
}

//! One after the other, for encoders of one shard in this process.
//!
//! A codec is not told which shard it writes. But two encoders of one shard that both may write have
//! read the same index: so they take turns by its fingerprint, the second one reads another index when
//! its turn comes, and refuses. Encoders of different shards with the same index wait for each other,
//! which costs time alone.

#[cfg(feature = "async")]
use futures_util::lock::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::layout::fingerprint;

const STRIPES: usize = 64;

static STRIPE: [Mutex<()>; STRIPES] = [const { Mutex::new(()) }; STRIPES];

fn stripe(index: &[u8]) -> usize {
    // The remainder is less than 64.
    usize::try_from(fingerprint(index) % STRIPES as u64).unwrap_or(0)
}

/// Wait for the turn of who read `index`. It ends when the guard is dropped.
pub(super) fn take(index: &[u8]) -> MutexGuard<'static, ()> {
    STRIPE[stripe(index)]
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

#[cfg(feature = "async")]
static ASYNC_STRIPE: [AsyncMutex<()>; STRIPES] = [const { AsyncMutex::new(()) }; STRIPES];

/// The same among asynchronous encoders.
#[cfg(feature = "async")]
pub(super) async fn take_async(index: &[u8]) -> AsyncMutexGuard<'static, ()> {
    ASYNC_STRIPE[stripe(index)].lock().await
}

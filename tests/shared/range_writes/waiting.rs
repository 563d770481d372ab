//! An asynchronous store that yields to other tasks before and after each of its calls.

use std::future::poll_fn;
use std::task::Poll;

use zarrs::storage::storage_adapter::sync_to_async::{
    SyncToAsyncSpawnBlocking, SyncToAsyncStorageAdapter,
};

/// Wraps the blocking store `S`.
pub(crate) type Waiting<S> = SyncToAsyncStorageAdapter<S, Yields>;

pub(crate) struct Yields;

/// Is pending once, so that other tasks run.
async fn others_first() {
    let mut waited = false;
    poll_fn(|context| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl SyncToAsyncSpawnBlocking for Yields {
    async fn spawn_blocking<F, R>(&self, f: F) -> R
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        others_first().await;
        let done = f();
        others_first().await;
        done
    }
}

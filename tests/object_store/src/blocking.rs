//! A blocking store over an asynchronous one.

use std::future::Future;
use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};
use zarrs_storage::storage_adapter::async_to_sync::{
    AsyncToSyncBlockOn, AsyncToSyncStorageAdapter,
};

use crate::Store;

/// Panics if used within a runtime.
pub type BlockingStore = AsyncToSyncStorageAdapter<Store, TokioBlockOn>;

/// Waits on its own runtime, from any thread.
pub struct TokioBlockOn(Runtime);

impl TokioBlockOn {
    fn new() -> Self {
        let mut runtime = Builder::new_multi_thread();
        Self(runtime.worker_threads(1).enable_all().build().unwrap())
    }
}

impl AsyncToSyncBlockOn for TokioBlockOn {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.block_on(future)
    }
}

pub(crate) fn blocking(store: Store) -> BlockingStore {
    AsyncToSyncStorageAdapter::new(Arc::new(store), TokioBlockOn::new())
}

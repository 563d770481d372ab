//! Implements the adapter over a store that is awaited.

use std::sync::Arc;

use zarrs_storage::{
    AsyncListableStorageTraits, AsyncReadableStorageTraits, AsyncWritableStorageTraits,
};

use super::consolidation::All;
use super::reading::AwaitedFrames;
use super::{Consolidation, ConsolidationProgress, SparseArray, SparseShardStore};
use crate::error::Error;
use crate::reader::{ArrayReader, ArrayReaderBuilder};
use crate::store::{Awaited, all};

/// The most shards that are consolidated at once: requests wait for a server, not for a processor.
const AT_ONCE: usize = 8;

impl<S: ?Sized> SparseShardStore<S> {
    pub(super) fn awaited(&self) -> Awaited<'_, S> {
        Awaited(&*self.store)
    }
}

impl<S: AsyncReadableStorageTraits + ?Sized> SparseShardStore<S> {
    /// Does the same as [`open`](Self::open) for an asynchronous store.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub async fn async_open(store: Arc<S>, path: &str) -> Result<Self, Error> {
        let array = SparseArray::open(&Awaited(&*store), path).await?;
        Ok(Self { array, store })
    }
}

impl<S> SparseShardStore<S>
where
    S: AsyncReadableStorageTraits + AsyncListableStorageTraits + ?Sized + 'static,
{
    /// Does the same as [`reader`](Self::reader) for an asynchronous store. The reader has the asynchronous
    /// calls, such as [`async_read`](ArrayReader::async_read).
    ///
    /// # Errors
    /// The errors of [`reader`](Self::reader).
    pub async fn async_reader(&self) -> Result<ArrayReaderBuilder<S>, Error> {
        let array = self.array.shards(&self.awaited()).await?;
        let builder = ArrayReader::builder(&array.with_storage(self.store.clone()));
        Ok(builder.with_newer_subchunks(Arc::new(AwaitedFrames(self.clone())), None))
    }
}

impl<S> SparseShardStore<S>
where
    S: AsyncReadableStorageTraits
        + AsyncWritableStorageTraits
        + AsyncListableStorageTraits
        + ?Sized,
{
    /// Does the same as [`pending`](Self::pending) for an asynchronous store.
    ///
    /// # Errors
    /// The errors of [`pending`](Self::pending).
    pub async fn async_pending(&self) -> Result<Vec<Vec<u64>>, Error> {
        self.array.framed(&self.awaited()).await
    }

    /// Does the same as [`consolidate`](Self::consolidate) for an asynchronous store.
    ///
    /// If the future is dropped, the store may still complete its last operation, for example on
    /// another thread. Wait until the store has done so before you consolidate the shard again. Otherwise an
    /// old shard would replace a newer one.
    ///
    /// # Errors
    /// The errors of [`consolidate`](Self::consolidate).
    pub async fn async_consolidate(&self, shard: &[u64]) -> Result<Option<Consolidation>, Error> {
        self.array.consolidate(&self.awaited(), shard).await
    }

    /// Does the same as [`discard_invalid`](Self::discard_invalid) for an asynchronous store.
    ///
    /// # Errors
    /// The errors of [`consolidate`](Self::consolidate).
    pub async fn async_discard_invalid(&self, shard: &[u64]) -> Result<usize, Error> {
        self.array.discard_invalid(&self.awaited(), shard).await
    }

    /// Does the same as [`consolidate_all`](Self::consolidate_all) for an asynchronous store. A dropped
    /// future leaves each shard as [`async_consolidate`](Self::async_consolidate) does.
    ///
    /// # Errors
    /// The errors of [`consolidate_all`](Self::consolidate_all).
    pub async fn async_consolidate_all(
        &self,
        on_progress: &(dyn Fn(&ConsolidationProgress) + Sync),
    ) -> Result<ConsolidationProgress, Error> {
        let shards = self.async_pending().await?;
        let all_shards = All::new(shards.len(), on_progress);
        let each = shards.iter().take_while(|_| all_shards.goes_on());
        let each = each.map(|shard| async {
            all_shards.add(self.async_consolidate(shard).await);
            Ok::<_, Error>(())
        });
        all(each, self.array.at_once(AT_ONCE), drop).await?;
        all_shards.end()
    }
}

//! The adapter over a store that is awaited.

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

/// How many shards are consolidated at once at most: requests wait for a server, not a processor.
const AT_ONCE: usize = 8;

impl<S: ?Sized> SparseShardStore<S> {
    pub(super) fn awaited(&self) -> Awaited<'_, S> {
        Awaited(&*self.store)
    }
}

impl<S: AsyncReadableStorageTraits + ?Sized> SparseShardStore<S> {
    /// [`open`](Self::open) for an asynchronous store.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub async fn async_open(store: Arc<S>, path: &str) -> Result<Self, Error> {
        let array = SparseArray::open(&Awaited(&*store), path).await?;
        Ok(Self { array, store })
    }
}

impl<S> SparseShardStore<S>
where
    S: AsyncReadableStorageTraits + AsyncListableStorageTraits + ?Sized + 'static,
{
    /// [`reader`](Self::reader) for an asynchronous store. The reader has the asynchronous calls, such
    /// as [`async_read`](ArrayReader::async_read).
    ///
    /// # Errors
    /// As for [`reader`](Self::reader).
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
    /// [`pending`](Self::pending) for an asynchronous store.
    ///
    /// # Errors
    /// As for [`pending`](Self::pending).
    pub async fn async_pending(&self) -> Result<Vec<Vec<u64>>, Error> {
        self.array.framed(&self.awaited()).await
    }

    /// [`consolidate`](Self::consolidate) for an asynchronous store.
    ///
    /// If the future is dropped, the store may still complete its last operation, for example on
    /// another thread. Wait until it has before you consolidate the shard again. Otherwise an old
    /// shard would replace a newer one.
    ///
    /// # Errors
    /// As for [`consolidate`](Self::consolidate).
    pub async fn async_consolidate(&self, shard: &[u64]) -> Result<Option<Consolidation>, Error> {
        self.array.consolidate(&self.awaited(), shard).await
    }

    /// [`discard_invalid`](Self::discard_invalid) for an asynchronous store.
    ///
    /// # Errors
    /// As for [`consolidate`](Self::consolidate).
    pub async fn async_discard_invalid(&self, shard: &[u64]) -> Result<usize, Error> {
        self.array.discard_invalid(&self.awaited(), shard).await
    }

    /// [`consolidate_all`](Self::consolidate_all) for an asynchronous store. A dropped future
    /// leaves each shard as [`async_consolidate`](Self::async_consolidate) does.
    ///
    /// # Errors
    /// As for [`consolidate_all`](Self::consolidate_all).
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

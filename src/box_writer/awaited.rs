//! The calls of a writer whose store is awaited.

use std::sync::Arc;

use zarrs::array::{Array, ArrayBytes, ArraySubset, ArraySubsetTraits, Element};
use zarrs_codec::{ArrayToBytesCodecTraits, CodecOptions, StoragePartialEncoder};
use zarrs_storage::{
    AsyncListableStorageTraits, AsyncReadableWritableStorage, AsyncReadableWritableStorageTraits,
    AsyncWritableStorageTraits, StorageError, StorageHandle, StoreKey,
};

use super::call::Call;
use super::error::{BoxWriterError, BoxWriterErrorKind as Kind};
use super::request::{BoxesInMemory, ShardToWrite};
use super::shared::{Shared, Subchunks, not_looked, not_opened};
use super::target::{NewShard, Target, Update, check_parts};
use super::{BoxReport, BoxWriter, Inner, Input, Place, ShardUpdate};
use crate::maintenance::StoredShard;
use crate::panics::async_no_panic;
use crate::reader::threads::{self, Each};
use crate::storage::{SparseShardStore, is_framed};
use crate::store::Awaited;
use crate::store::shard_locks::{ShardLock, ShardLocks};
use zarrs_cuda_engine::memory::spares::Spares;

/// Writes to a store that is awaited. Shards are encoded by the thread that polls the future, and by threads that
/// help it; encoding ends inside the poll that began it.
///
/// If a future is dropped, each shard of the call is old or new, as far as the store replaces values at once.
impl<TStorage> BoxWriter<TStorage>
where
    TStorage: ?Sized + AsyncReadableWritableStorageTraits + AsyncListableStorageTraits + 'static,
{
    /// Writes as [`write`](Self::write) does.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    pub async fn async_write<T: Element>(
        &self,
        subset: &dyn ArraySubsetTraits,
        elements: &[T],
    ) -> Result<BoxReport, BoxWriterError> {
        let bytes = self.bytes(elements)?;
        self.async_write_bytes(subset, Input::contiguous(&bytes))
            .await
    }

    /// Writes as [`write_bytes`](Self::write_bytes) does.
    ///
    /// # Errors
    /// The errors of [`write_bytes`](Self::write_bytes).
    pub async fn async_write_bytes(
        &self,
        subset: &dyn ArraySubsetTraits,
        input: Input<'_>,
    ) -> Result<BoxReport, BoxWriterError> {
        let memory = self.one_box(subset, input)?;
        self.async_write_memories(vec![memory]).await
    }

    /// Writes as [`write_boxes`](Self::write_boxes) does.
    ///
    /// # Errors
    /// The errors of [`write_boxes`](Self::write_boxes).
    pub async fn async_write_boxes<T: Element>(
        &self,
        origins: &[impl AsRef<[u64]>],
        shape: &[u64],
        elements: &[T],
    ) -> Result<BoxReport, BoxWriterError> {
        let bytes = self.bytes(elements)?;
        self.async_write_boxes_bytes(origins, shape, Input::contiguous(&bytes))
            .await
    }

    /// Writes as [`write_boxes_bytes`](Self::write_boxes_bytes) does.
    ///
    /// # Errors
    /// The errors of [`write_boxes_bytes`](Self::write_boxes_bytes).
    pub async fn async_write_boxes_bytes(
        &self,
        origins: &[impl AsRef<[u64]>],
        shape: &[u64],
        input: Input<'_>,
    ) -> Result<BoxReport, BoxWriterError> {
        let memory = self.several_boxes(origins, shape, input)?;
        self.async_write_memories(vec![memory]).await
    }

    /// Writes as [`write_each`](Self::write_each) does.
    ///
    /// # Errors
    /// The errors of [`write_each`](Self::write_each).
    pub async fn async_write_each(
        &self,
        boxes: Vec<(ArraySubset, Input<'_>)>,
    ) -> Result<BoxReport, BoxWriterError> {
        let memories = boxes.into_iter();
        let memories = memories.map(|(subset, input)| self.one_box(&subset, input));
        let memories = memories.collect::<Result<_, Kind>>()?;
        self.async_write_memories(memories).await
    }

    async fn async_write_memories(
        &self,
        memories: Vec<BoxesInMemory<'_>>,
    ) -> Result<BoxReport, BoxWriterError> {
        let Inner {
            array,
            grid,
            encoded_by,
            settings,
            place,
            shared,
        } = &*self.0;
        let Place::Store(locks) = place else {
            let reason = "its shards are written as files by the blocking calls: use those, or leave out `on_filesystem` and `on_directory`";
            return Err(Kind::unsupported(reason).into());
        };
        let call = Call::new(grid, encoded_by, settings, memories)?;
        let target = Stored {
            array,
            grid,
            locks,
            shared,
            spares: Arc::default(),
        };
        let each = threads::awaited as Each<Kind>;
        call.run(&target, self.at_once(), each).await
    }
}

/// Stores shards in the store of the array.
struct Stored<'w, S: ?Sized> {
    array: &'w Array<S>,
    grid: &'w Array<()>,
    locks: &'w ShardLocks,
    shared: &'w Shared<S>,
    /// The memory of shards that the store has copied, for the next shards of the call.
    spares: Arc<Spares>,
}

impl<S> Stored<'_, S>
where
    S: ?Sized + AsyncReadableWritableStorageTraits + AsyncListableStorageTraits + 'static,
{
    /// Opens the subchunks that are stored beside their shards.
    async fn subchunks(&self) -> Result<Arc<Subchunks<S>>, Kind> {
        if let Some(known) = self.shared.known() {
            return Ok(known);
        }
        let path = self.grid.path().as_str();
        let sparse = SparseShardStore::async_open(self.array.storage(), path).await;
        let sparse = Arc::new(sparse.map_err(not_opened)?);
        let subchunks = Array::async_open(sparse.clone(), path).await;
        self.shared
            .keep((sparse, subchunks.map_err(not_opened)?), self.grid)
    }
}

impl<S> Target for Stored<'_, S>
where
    S: ?Sized + AsyncReadableWritableStorageTraits + AsyncListableStorageTraits + 'static,
{
    type Guard = ShardLock;

    const IS_POLLED: bool = true;

    async fn check(&self, update: ShardUpdate) -> Result<(), Kind> {
        if update == ShardUpdate::Shared {
            self.subchunks().await?;
        }
        check_parts(update, self.array.storage().supports_set_partial())
    }

    async fn lock(&self, key: &StoreKey) -> Result<Self::Guard, StorageError> {
        Ok(self.locks.async_lock(key).await?)
    }

    async fn stored(&self, key: &StoreKey) -> Result<Option<StoredShard>, StorageError> {
        let stored = self.array.storage().get(key).await?;
        Ok(stored.map(StoredShard::Bytes))
    }

    async fn replace(
        &self,
        _locked: &mut Self::Guard,
        key: &StoreKey,
        value: NewShard,
    ) -> Result<(), StorageError> {
        let bytes = value.into_bytes(&self.spares)?;
        self.array.storage().set(key, bytes).await
    }

    fn spares(&self) -> &Spares {
        &self.spares
    }

    async fn erase(&self, _locked: &mut Self::Guard, key: &StoreKey) -> Result<(), StorageError> {
        self.array.storage().erase(key).await
    }

    async fn is_marked(&self) -> Result<bool, Kind> {
        let (store, path) = (self.array.storage(), self.grid.path().as_str());
        let marked = SparseShardStore::async_is_marked(&*store, path).await;
        marked.map_err(not_looked)
    }

    async fn has_frame(&self, key: &StoreKey) -> Result<bool, StorageError> {
        is_framed(&Awaited(&*self.array.storage()), key).await
    }

    async fn update(
        &self,
        _locked: &mut Self::Guard,
        key: &StoreKey,
        update: Update<'_>,
    ) -> Result<(), Kind> {
        let Update {
            format,
            changes,
            options,
        } = update;
        let shards = format.shards();
        let storage: AsyncReadableWritableStorage =
            Arc::new(StorageHandle::new(self.array.storage()));
        let stored = Arc::new(StoragePartialEncoder::new(storage, key.clone()));
        let codec = format.codec().clone();
        let updated = async_no_panic(async {
            let encoder = codec.async_partial_encoder(
                stored,
                format.shape(),
                &shards.data_type,
                &shards.fill_value,
                options,
            );
            let encoder = encoder.await?;
            for (at, elements) in &changes {
                encoder.partial_encode(&**at, elements, options).await?;
            }
            Ok(())
        });
        updated.await.map_err(Kind::codec("update", key))
    }

    async fn share(
        &self,
        shard: &ShardToWrite,
        boxes: Vec<(ArraySubset, ArrayBytes<'_>)>,
        options: &CodecOptions,
    ) -> Result<(), Kind> {
        let subchunks = self.subchunks().await?;
        subchunks.async_write(shard, boxes, options).await
    }
}

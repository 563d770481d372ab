//! Opens the subchunks of an array, which a writer stores beside their shards.

use std::sync::{Arc, Mutex, PoisonError};

use zarrs::array::{Array, ArrayBytes, ArrayError, ArraySubset};
use zarrs_codec::CodecOptions;
#[cfg(feature = "async")]
use zarrs_storage::{
    AsyncListableStorageTraits, AsyncReadableStorageTraits, AsyncWritableStorageTraits,
};
use zarrs_storage::{ListableStorageTraits, ReadableStorageTraits, WritableStorageTraits};

use super::error::BoxWriterErrorKind as Kind;
use super::request::ShardToWrite;
use crate::error::Error;
use crate::storage::SparseShardStore;

/// The subchunks of an array in a store, which are opened when they are first needed.
pub(super) struct Shared<S: ?Sized>(Mutex<Option<Arc<Subchunks<S>>>>);

impl<S: ?Sized> Default for Shared<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// The adapter that stores subchunks beside their shards, and the array of these subchunks.
pub(super) struct Subchunks<S: ?Sized> {
    sparse: Arc<SparseShardStore<S>>,
    array: Array<SparseShardStore<S>>,
}

impl<S: ?Sized> Shared<S> {
    pub(super) fn known(&self) -> Option<Arc<Subchunks<S>>> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Keeps the opened array with the extents of `grid`, in whose elements boxes are given.
    ///
    /// # Errors
    /// [`BoxWriterErrorKind::Unsupported`](crate::writer::BoxWriterErrorKind::Unsupported) if the stored array cannot have this shape.
    pub(super) fn keep(
        &self,
        (sparse, mut array): (Arc<SparseShardStore<S>>, Array<SparseShardStore<S>>),
        grid: &Array<()>,
    ) -> Result<Arc<Subchunks<S>>, Kind> {
        let shape = array.set_shape(grid.shape().to_vec());
        shape.map_err(|error| Kind::unsupported(error.to_string()))?;
        let opened = Arc::new(Subchunks { sparse, array });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened.clone());
        Ok(opened)
    }
}

/// Returns the error of an array whose subchunks cannot be opened.
pub(super) fn not_opened(error: impl std::fmt::Display) -> Kind {
    Kind::unsupported(format!(
        "its subchunks cannot be stored beside their shards: {error}"
    ))
}

/// Returns the error of a store that does not say whether subchunks are stored beside shards.
pub(super) fn not_looked(error: Error) -> Kind {
    match error {
        Error::Storage { key, source, .. } => Kind::Store {
            doing: "look for",
            key,
            error: source,
        },
        error => Kind::unsupported(error.to_string()),
    }
}

fn not_written(shard: &ShardToWrite) -> impl Fn(Error) -> Kind {
    let key = shard.key.clone();
    move |error| Kind::Shard {
        doing: "store subchunks beside",
        key: key.clone(),
        error: Box::new(error),
    }
}

fn by_zarrs(shard: &ShardToWrite) -> impl Fn(ArrayError) -> Kind {
    let key = shard.key.clone();
    move |error| Kind::Zarrs {
        key: key.clone(),
        error: Box::new(error),
    }
}

impl<S: ?Sized> Subchunks<S> {
    /// Checks that there is memory for a subchunk, and for its object. zarrs allocates both, and would abort the
    /// process if it could not.
    ///
    /// # Errors
    /// [`BoxWriterErrorKind::Memory`](crate::writer::BoxWriterErrorKind::Memory), with the size of a subchunk.
    fn check_memory(&self) -> Result<(), Kind> {
        let array = &self.array;
        let shape = array.chunk_shape(&vec![0; array.dimensionality()]);
        let shape = shape.map_err(|error| Kind::unsupported(error.to_string()))?;
        let size = array.data_type().fixed_size().unwrap_or(1);
        let bytes = shape.iter().try_fold(size, |bytes, extent| {
            bytes.checked_mul(usize::try_from(extent.get()).ok()?)
        });
        let bytes = bytes.unwrap_or(usize::MAX);
        let mut memory = [Vec::<u8>::new(), Vec::new()];
        let mut each = memory.iter_mut();
        let found = each.all(|one| one.try_reserve_exact(bytes).is_ok());
        // Without this, the compiler may remove allocations that nothing uses, and assume that they succeed.
        std::hint::black_box(&memory);
        let what = "a subchunk, and as many for its object beside the shard: make subchunks smaller, or write in another mode of shards";
        found.then_some(()).ok_or(Kind::Memory { what, bytes })
    }
}

impl<S> Subchunks<S>
where
    S: ReadableStorageTraits + WritableStorageTraits + ListableStorageTraits + ?Sized + 'static,
{
    /// Stores the subchunks of `shard` that `boxes` meet beside the shard, together.
    ///
    /// # Errors
    /// The errors of zarrs and of the store. Some subchunks may be stored.
    pub(super) fn write(
        &self,
        shard: &ShardToWrite,
        boxes: Vec<(ArraySubset, ArrayBytes<'_>)>,
        options: &CodecOptions,
    ) -> Result<(), Kind> {
        self.check_memory()?;
        let kept = Arc::new(self.sparse.batch());
        let subchunks = self.array.with_storage(kept.clone());
        for (subset, elements) in boxes {
            let stored = subchunks.store_array_subset_opt(&subset, elements, options);
            stored.map_err(by_zarrs(shard))?;
        }
        kept.write().map_err(not_written(shard))
    }
}

#[cfg(feature = "async")]
impl<S> Subchunks<S>
where
    S: AsyncReadableStorageTraits
        + AsyncWritableStorageTraits
        + AsyncListableStorageTraits
        + ?Sized
        + 'static,
{
    /// Does the same as [`write`](Self::write) for an asynchronous store.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    pub(super) async fn async_write(
        &self,
        shard: &ShardToWrite,
        boxes: Vec<(ArraySubset, ArrayBytes<'_>)>,
        options: &CodecOptions,
    ) -> Result<(), Kind> {
        self.check_memory()?;
        let kept = Arc::new(self.sparse.batch());
        let subchunks = self.array.with_storage(kept.clone());
        for (subset, elements) in boxes {
            let stored = subchunks.async_store_array_subset_opt(&subset, elements, options);
            stored.await.map_err(by_zarrs(shard))?;
        }
        kept.async_write().await.map_err(not_written(shard))
    }
}

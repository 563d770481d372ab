//! Puts the marker of an array that has, or had, frames: an object beside its metadata.
//!
//! Readers of shards do not see frames, and a listing of the array that would find them is expensive. The
//! marker is put before the first version of a subchunk, so an array without a marker has no frames: one
//! request tells.
//!
//! The marker stays when no frame is left. A consolidation that deletes it would have to know that no writer relies
//! on it: a writer may have seen it a moment before, and put a version a moment later. Stores that only get, put,
//! list and delete cannot say so, and a process that dies between a deletion and a second look would leave frames
//! without a marker.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
#[cfg(feature = "async")]
use zarrs_storage::AsyncReadableStorageTraits;
use zarrs_storage::{ReadableStorageTraits, StorageError, StoreKey};

use super::{SparseShardStore, metadata_of, unreadable};
use crate::error::Error;
#[cfg(feature = "async")]
use crate::store::Awaited;
use crate::store::{Blocking, Reads, Writes, now};

/// The name of the marker, beside `zarr.json`, of an array that a [`SparseShardStore`] has ever
/// written to.
pub const FRAMES_MARKER: &str = ".zarrs-cuda-frames";

/// The content of the marker, for people who find it.
const CONTENT: &[u8] = b"Subchunks of this array were, or are, stored beside its shards, under *.frame/. `zarrs-cuda consolidate` packs them into the shards. This file may be deleted when there are none, and no process writes the array.\n";

/// The marker of an array, and whether an adapter knows that it is stored.
pub(super) struct Marker {
    key: StoreKey,
    is_there: AtomicBool,
}

impl Marker {
    /// Returns the marker of the array with `metadata`.
    pub(super) fn of(metadata: &StoreKey) -> Result<Self, StorageError> {
        Ok(Self {
            key: key_of(metadata)?,
            is_there: AtomicBool::new(false),
        })
    }

    pub(super) fn key(&self) -> &StoreKey {
        &self.key
    }

    /// Puts the marker, unless the store has it already.
    pub(super) async fn put<O: Reads + Writes>(&self, store: &O) -> Result<(), StorageError> {
        if self.is_there.load(Ordering::Relaxed) {
            return Ok(());
        }
        let put = async {
            if store.size(&self.key).await?.is_none() {
                store.set(&self.key, Bytes::from_static(CONTENT)).await?;
            }
            Ok(())
        };
        let put: Result<(), StorageError> = put.await;
        put.map_err(|error| {
            let what = format!(
                "cannot store {}, which tells readers of shards that subchunks are stored beside them: {error}",
                self.key
            );
            match error {
                StorageError::IOError(error) => io::Error::new(error.kind(), what).into(),
                _ => StorageError::Other(what),
            }
        })?;
        // A thread that does not see this value yet asks the store itself.
        self.is_there.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Sets whether the next writer takes the marker for stored. If not, the writer looks for it.
    pub(super) fn forget(&self, is_there: bool) {
        self.is_there.store(is_there, Ordering::Relaxed);
    }
}

fn key_of(metadata: &StoreKey) -> Result<StoreKey, StorageError> {
    let beside = metadata.parent();
    Ok(StoreKey::new(format!("{beside}{FRAMES_MARKER}"))?)
}

async fn is_marked<O: Reads>(store: &O, path: &str) -> Result<bool, Error> {
    let metadata = metadata_of(path)?;
    let key = key_of(&metadata).map_err(|error| unreadable(&metadata, error))?;
    let size = store.size(&key).await;
    Ok(size.map_err(|error| unreadable(&key, error))?.is_some())
}

impl<S: ReadableStorageTraits + ?Sized> SparseShardStore<S> {
    /// Returns whether an adapter has ever written to the array at `path` of `store`, by one request.
    ///
    /// If not, no subchunks are stored beside its shards. Otherwise [`pending`](Self::pending) returns the
    /// shards that have some now. Before its first write, an adapter puts the object [`FRAMES_MARKER`] beside
    /// the metadata, where it stays.
    ///
    /// # Errors
    /// [`Error::Storage`] if the store fails.
    pub fn is_marked(store: &S, path: &str) -> Result<bool, Error> {
        now(is_marked(&Blocking::new(store), path))
    }
}

#[cfg(feature = "async")]
impl<S: AsyncReadableStorageTraits + ?Sized> SparseShardStore<S> {
    /// Does the same as [`is_marked`](Self::is_marked) for an asynchronous store.
    ///
    /// # Errors
    /// The errors of [`is_marked`](Self::is_marked).
    pub async fn async_is_marked(store: &S, path: &str) -> Result<bool, Error> {
        is_marked(&Awaited(store), path).await
    }
}

//! Lists frames for readers of boxes.

use std::sync::Arc;

use bytes::Bytes;
#[cfg(feature = "async")]
use zarrs_storage::{AsyncListableStorageTraits, AsyncReadableStorageTraits};
use zarrs_storage::{ListableStorageTraits, ReadableStorageTraits, StorageError, StoreKey};

use super::frame::{Entry, Listing};
use super::protocol::newest::NewestVersion;
use super::{SparseArray, SparseShardStore};
use crate::reader::newer_subchunks::{Later, ListsNewerSubchunks, NewerSubchunks, NewestSubchunk};
use crate::store::{Lists, Reads};

type Result<T> = std::result::Result<T, StorageError>;

/// Lists the frames of an adapter whose store blocks.
pub(super) struct BlockingFrames<S: ?Sized>(pub(super) SparseShardStore<S>);

impl<S> ListsNewerSubchunks for BlockingFrames<S>
where
    S: ReadableStorageTraits + ListableStorageTraits + ?Sized,
{
    fn blocks(&self) -> bool {
        true
    }

    fn list<'a>(
        &'a self,
        shard: &'a StoreKey,
        anew: bool,
    ) -> Later<'a, Result<Box<dyn NewerSubchunks + 'a>>> {
        Box::pin(list(&self.0.array, self.0.blocking(), shard, anew))
    }
}

/// Lists the frames of an adapter whose store is awaited.
#[cfg(feature = "async")]
pub(super) struct AwaitedFrames<S: ?Sized>(pub(super) SparseShardStore<S>);

#[cfg(feature = "async")]
impl<S> ListsNewerSubchunks for AwaitedFrames<S>
where
    S: AsyncReadableStorageTraits + AsyncListableStorageTraits + ?Sized,
{
    fn blocks(&self) -> bool {
        false
    }

    fn list<'a>(
        &'a self,
        shard: &'a StoreKey,
        anew: bool,
    ) -> Later<'a, Result<Box<dyn NewerSubchunks + 'a>>> {
        Box::pin(list(&self.0.array, self.0.awaited(), shard, anew))
    }
}

/// Lists the frame of `shard` in `store`.
pub(super) async fn list<'a, O: Reads + Lists + Send + 'a>(
    array: &'a SparseArray,
    store: O,
    shard: &'a StoreKey,
    anew: bool,
) -> Result<Box<dyn NewerSubchunks + 'a>> {
    let listing = array.list(&store, shard, anew).await?;
    Ok(Box::new(Listed {
        array,
        store,
        shard,
        listing,
    }))
}

/// A frame that was listed, with the adapter that reads its subchunks.
struct Listed<'a, O> {
    array: &'a SparseArray,
    store: O,
    shard: &'a StoreKey,
    listing: Arc<Listing>,
}

/// Returns the number of a subchunk as the frames' `u32`.
fn to_u32(number: usize) -> Result<u32> {
    u32::try_from(number).map_err(|error| StorageError::Other(error.to_string()))
}

impl<O: Reads + Lists + Send> NewerSubchunks for Listed<'_, O> {
    fn has(&self, number: usize) -> bool {
        to_u32(number).is_ok_and(|number| !self.listing.versions(number).is_empty())
    }

    fn is_empty(&self) -> bool {
        self.listing.is_empty()
    }

    fn newest(&self, number: usize) -> Later<'_, Result<NewestSubchunk>> {
        Box::pin(async move {
            let frames = &self.array.frames;
            let newest = frames.newest(&self.store, self.shard, to_u32(number)?, &self.listing);
            Ok(match newest.await? {
                NewestVersion::Valid(Entry::Data(bytes)) => NewestSubchunk::Data(bytes),
                NewestVersion::Valid(Entry::Tombstone) => NewestSubchunk::Empty,
                NewestVersion::Nothing => NewestSubchunk::InShard,
                NewestVersion::Gone => NewestSubchunk::Gone,
            })
        })
    }

    fn read(&self, number: usize) -> Later<'_, Result<Option<Bytes>>> {
        let listing = Some(self.listing.clone());
        Box::pin(async move {
            let number = to_u32(number)?;
            self.array
                .read(&self.store, self.shard, number, listing)
                .await
        })
    }
}

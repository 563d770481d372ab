//! Reads, decodes and keeps the indices of shards.

use std::sync::{Arc, MutexGuard, PoisonError};

use bytes::Bytes;
use zarrs_storage::{StorageError, StoreKey};

use super::Frames;
use crate::storage::chunk_layout::UNCHECKED;
use crate::store::Reads;
use crate::store::key_locks::stripe;
use zarrs_cuda_engine::layout::Extent;

/// The most decoded indices that are kept.
pub(super) const INDICES: usize = 16;

/// An index, encoded and decoded.
#[derive(Clone, Debug)]
pub(super) struct DecodedIndex {
    pub(super) encoded: Bytes,
    pub(super) extents: Arc<[Extent]>,
}

impl Frames {
    /// Returns the encoded index of a shard; `None` if there is no shard.
    pub(super) async fn read_index<O: Reads>(
        &self,
        store: &O,
        shard: &StoreKey,
    ) -> Result<Option<Bytes>, StorageError> {
        let len = self.layout.index_len() as u64;
        // A store may allocate the requested bytes before it looks at the value.
        if len > UNCHECKED
            && let Some(size) = store.size(shard).await?
            && size < len
        {
            return Err(StorageError::Other(format!(
                "the shard {shard} has {size} bytes, fewer than its index of {len}: it is truncated"
            )));
        }
        let range = self.layout.index_range();
        let Some(read) = store.get_ranges(shard, vec![range]).await? else {
            return Ok(None);
        };
        let index = read.into_iter().next();
        let index = index.filter(|index| index.len() as u64 == len);
        index.map(Some).ok_or_else(|| {
            StorageError::Other(format!(
                "the store did not return the {len} bytes of the index of the shard {shard}"
            ))
        })
    }

    fn slot(&self, shard: &StoreKey) -> MutexGuard<'_, Option<(StoreKey, DecodedIndex)>> {
        self.indices[stripe(shard) % INDICES]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the index that the shard had when its index was last decoded; `None` if it is not kept.
    pub(super) fn known(&self, shard: &StoreKey) -> Option<DecodedIndex> {
        match &*self.slot(shard) {
            Some((of, known)) if of == shard => Some(known.clone()),
            _ => None,
        }
    }

    /// Knows of no index.
    #[cfg(test)]
    pub(in crate::storage::sparse) fn forget(&self) {
        for slot in &self.indices {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Returns the index of a shard, decoded. The size of the shard is not known, so extents are not checked
    /// against it.
    pub(super) fn decode(
        &self,
        shard: &StoreKey,
        encoded: &Bytes,
    ) -> Result<DecodedIndex, StorageError> {
        if let Some(known) = self.known(shard)
            && known.encoded == *encoded
        {
            return Ok(known);
        }
        let extents = self.layout.extents(shard, encoded, u64::MAX);
        let decoded = DecodedIndex {
            // A slice would keep all of the memory that the store returned.
            encoded: Bytes::copy_from_slice(encoded),
            extents: extents?.into(),
        };
        *self.slot(shard) = Some((shard.clone(), decoded.clone()));
        Ok(decoded)
    }
}

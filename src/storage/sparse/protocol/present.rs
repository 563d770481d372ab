//! Lists the stored subchunks of a shard, and their sizes.

use std::collections::BTreeMap;
use std::sync::Arc;

use zarrs_storage::{StorageError, StoreKey};

use super::Frames;
use super::newest::NewestVersion;
use super::read::{ATTEMPTS, starved};
use crate::storage::sparse::frame::{self, Listing};
use crate::store::{Lists, Reads};

impl Frames {
    /// Returns the stored subchunks of a shard, in C order, and the size of each in bytes.
    ///
    /// # Errors
    /// The errors of the store, and of an invalid shard.
    pub(in crate::storage::sparse) async fn present<O: Reads + Lists>(
        &self,
        store: &O,
        shard: &StoreKey,
    ) -> Result<Vec<(usize, u64)>, StorageError> {
        self.present_of(store, shard, &|_| true, None).await
    }

    /// Does the same as [`present`](Self::present) for the subchunks that are `wanted`. The first attempt
    /// uses `listing`.
    pub(super) async fn present_of<O: Reads + Lists>(
        &self,
        store: &O,
        shard: &StoreKey,
        wanted: &(dyn Fn(u32) -> bool + Sync),
        mut listing: Option<Arc<Listing>>,
    ) -> Result<Vec<(usize, u64)>, StorageError> {
        let mut failures = 0;
        'again: for _ in 0..ATTEMPTS {
            let listing = match listing.take() {
                Some(listing) => listing,
                None => Arc::new(self.list(store, shard).await?),
            };
            let frame = frame::prefix_of(shard)?;
            let mut sizes = BTreeMap::new();
            for (number, versions) in listing.iter().filter(|(number, _)| wanted(*number)) {
                match self.newest_of(store, &frame, number, versions).await? {
                    NewestVersion::Valid(entry) => {
                        let size = entry.data().map(|data| data.len() as u64);
                        sizes.insert(number as usize, size);
                    }
                    NewestVersion::Nothing => {}
                    NewestVersion::Gone => continue 'again,
                }
            }
            let mut unknown = (0_u32..)
                .take(self.subchunks)
                .filter(|&number| wanted(number) && !sizes.contains_key(&(number as usize)));
            let packed = if unknown.next().is_none() {
                Ok(Vec::new())
            } else {
                self.packed_sizes(store, shard).await
            };
            let packed = match packed {
                Ok(packed) => packed,
                Err(error) => {
                    let whole = self.read_whole(store, shard, error, &mut failures);
                    let Some(subchunks) = whole.await? else {
                        continue;
                    };
                    let sizes = subchunks.into_iter();
                    sizes
                        .map(|bytes| bytes.map(|bytes| bytes.len() as u64))
                        .collect()
                }
            };
            for (number, size) in packed.into_iter().enumerate() {
                if size.is_some() && u32::try_from(number).is_ok_and(wanted) {
                    sizes.entry(number).or_insert(size);
                }
            }
            let present = sizes.into_iter();
            return Ok(present
                .filter_map(|(number, size)| Some((number, size?)))
                .collect());
        }
        Err(starved(shard))
    }

    /// Returns the size of each subchunk that is stored in the shard itself, without its frame.
    async fn packed_sizes<O: Reads>(
        &self,
        store: &O,
        shard: &StoreKey,
    ) -> Result<Vec<Option<u64>>, StorageError> {
        let Some(index) = self.read_index(store, shard).await? else {
            return Ok(Vec::new());
        };
        let extents = self.decode(shard, &index)?.extents;
        let sizes = extents.iter();
        Ok(sizes
            .map(|extent| extent.as_ref().map(|extent| extent.len() as u64))
            .collect())
    }
}

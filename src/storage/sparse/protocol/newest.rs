//! Finds the newest valid version of a subchunk in a listed frame.

use zarrs_storage::{StorageError, StoreKey, StorePrefix};

use super::Frames;
use crate::storage::sparse::frame::{self, Entry, Listing, Version};
use crate::store::Reads;

/// The result of reading the listed versions of a subchunk.
pub(in crate::storage::sparse) enum NewestVersion {
    Valid(Entry),
    /// No listed version is valid.
    Nothing,
    /// A version that could have been the newest was deleted before it was read.
    Gone,
}

impl Frames {
    /// Returns the newest valid version of a subchunk in a listed frame.
    pub(in crate::storage::sparse) async fn newest<O: Reads>(
        &self,
        store: &O,
        shard: &StoreKey,
        number: u32,
        listing: &Listing,
    ) -> Result<NewestVersion, StorageError> {
        let frame = frame::prefix_of(shard)?;
        let versions = listing.versions(number);
        self.newest_of(store, &frame, number, versions).await
    }

    /// Returns the newest valid version among `versions`, which are in order from the oldest to the newest.
    pub(super) async fn newest_of<O: Reads>(
        &self,
        store: &O,
        frame: &StorePrefix,
        number: u32,
        versions: &[Version],
    ) -> Result<NewestVersion, StorageError> {
        for version in versions.iter().rev() {
            let key = frame::key_of(frame, number, version)?;
            let Some(object) = store.get_at_most(&key, self.most_of_object()).await? else {
                return Ok(NewestVersion::Gone);
            };
            if let Some(entry) = self.entry(&object) {
                return Ok(NewestVersion::Valid(entry));
            }
        }
        Ok(NewestVersion::Nothing)
    }
}

//! Detects shards that were replaced by a program that knows nothing of frames.
//!
//! Such a program reads and writes the shard below its frame. The versions that were in the frame before are
//! older than the program's data, and a consolidation would replace the data by them. So a consolidation
//! compares times, where a store has them. If a shard was stored after a version that is to be packed,
//! another program has changed the shard.
//!
//! A consolidation changes the shard, too. In two cases it leaves a version that is older than its shard:
//!
//! - A consolidation replaced the shard, and died before it had deleted all versions.
//! - A version was put after a consolidation had listed the frame, and before it replaced the shard.
//!
//! So each consolidation puts a *receipt* into the frame before it replaces the shard: an object whose name
//! has the length and the checksum of the new shard. A shard with a receipt was made by a consolidation. The
//! receipt is deleted when the shard was replaced and a later listing finds no version: a version that comes
//! after that is younger than the shard.

use bytes::Bytes;
use zarrs_storage::{StorageError, StoreKey, StorePrefix};

use super::frame::Receipt;
use crate::error::Error;
use crate::store::Reads;
use crate::store::times::{Times, utc_text};

/// The reason why a shard was not consolidated.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotPacked {
    #[error(transparent)]
    Store(#[from] StorageError),
    /// Another program has replaced the shard. The text has the times, and the subchunk that is older.
    #[error("{0}")]
    Changed(String),
}

impl NotPacked {
    /// Makes the error of a consolidation of `shard`.
    pub(super) fn of(self, doing: &'static str, shard: &StoreKey) -> Error {
        let key = shard.clone();
        match self {
            Self::Store(source) => Error::Storage { doing, key, source },
            Self::Changed(reason) => Error::ShardChanged { key, reason },
        }
    }
}

/// The means by which a consolidation sees that another program has replaced a shard.
#[derive(Clone, Default)]
pub(super) struct Watch {
    /// The times of the store's values; `None` if the store does not tell them.
    pub(super) times: Option<Times>,
    /// Whether a shard that another program has replaced is packed nevertheless.
    pub(super) over_changed: bool,
}

impl Watch {
    /// Returns `true` if receipts are needed, because the store tells times.
    pub(super) fn is_on(&self) -> bool {
        self.times.is_some()
    }

    /// Returns the receipt of a new shard; `None` if the shard is erased, or receipts are not needed.
    pub(super) fn receipt(&self, shard: Option<&Bytes>) -> Option<Receipt> {
        shard.filter(|_| self.is_on()).map(Receipt::of)
    }

    /// Checks that no version in `newest`, which has one for each subchunk, is older than a shard that
    /// another program has stored.
    ///
    /// # Errors
    /// [`NotPacked::Changed`] if a version is older; the errors of the store.
    pub(super) async fn check<O: Reads>(
        &self,
        store: &O,
        shard: &StoreKey,
        frame: &StorePrefix,
        newest: impl Iterator<Item = (u32, &StoreKey)>,
        receipts: &[Receipt],
    ) -> Result<(), NotPacked> {
        let Some(times) = self.times.as_ref().filter(|_| !self.over_changed) else {
            return Ok(());
        };
        let times = times(shard, frame)?;
        let Some(replaced) = times.get(shard) else {
            return Ok(());
        };
        let stored = newest.filter_map(|(number, key)| Some((number, *times.get(key)?)));
        let older = stored.filter(|(_, stored)| replaced.is_after(stored));
        let Some((number, stored)) = older.min_by_key(|(_, stored)| stored.written) else {
            return Ok(());
        };
        if !receipts.is_empty()
            && let Some(object) = store.get(shard).await?
            && receipts.contains(&Receipt::of(&object))
        {
            return Ok(());
        }
        Err(NotPacked::Changed(format!(
            "it was stored at {}, and not by a consolidation, after its subchunk {number} was stored beside it at {}: a program that does not see {frame} wrote it, and the subchunk would hide what that program wrote. To pack the subchunks over the shard, consolidate it over changed shards; to keep the shard as it is, delete {frame}. Write this array through one way alone",
            utc_text(replaced.written),
            utc_text(stored.written)
        )))
    }
}

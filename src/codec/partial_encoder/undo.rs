//! Undoes a failed write to a stored shard: during its turn, the encoder puts the old index back.
//!
//! ```text
//! the shard has the old index: done
//! the index is at the start, or was rewritten where it is: write the old index where it was
//! the shard grew: read the bytes behind its old end
//!     they have a record: write the old index as the end of the shard
//!     they have none: write a record of an update that changes nothing, and the old index
//! only data were written, or the bytes cannot be read: the shard may be torn
//! read the index: the shard is undone if the index is the old one, and may be torn otherwise
//! ```
//!
//! The rules are those of `recover` (`docs/reference/updates.md`). The encoder knows more than `recover`: the
//! old index, and the update.

use std::fmt;

use zarrs_codec::{CodecError, CodecOptions};
use zarrs_storage::byte_range::ByteRange;

use super::PartialEncoder;
use super::commit::Placed;
use super::comparison::StoredIndex;
use super::update::{Changes, Update};
use crate::shard::error::caused;
use crate::store::Handle;
use zarrs_cuda_engine::layout::placement::Commit;
use zarrs_cuda_engine::layout::{Record, undo_growth, update_of_nothing};

/// The facts about an update that undoing it needs.
pub(super) struct Undo {
    commit: Commit,
    record: Record,
    /// The number of subchunks that the update overwrites where they are.
    overwritten: usize,
}

/// The state of a shard after a write that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// The shard is as before the write, except for `overwritten` subchunks that the update overwrites where
    /// they are: each is old, new or lost.
    Before { overwritten: usize },
    /// The shard may have some bytes of the write and lack others.
    Torn,
}

impl Undo {
    pub(super) fn new(update: &Update<'_>, placed: &Placed, changes: &Changes) -> Self {
        let numbers = changes.subchunks.iter().map(|(number, _)| *number);
        let overwritten = numbers.zip(&placed.extents).filter(|(number, new)| {
            let place = update
                .touched
                .binary_search_by_key(number, |old| old.number);
            let old = place
                .ok()
                .and_then(|place| update.touched[place].extent.as_ref());
            let both = old.zip(new.as_ref());
            both.is_some_and(|(old, new)| old.start < new.end && new.start < old.end)
        });
        Self {
            commit: placed.commit,
            record: placed.record,
            overwritten: overwritten.count(),
        }
    }
}

impl<H: Handle> PartialEncoder<H> {
    /// Undoes an update of the shard `before`, one of whose writes failed.
    pub(super) async fn undo(
        &self,
        before: &StoredIndex,
        undo: &Undo,
        options: &CodecOptions,
    ) -> Left {
        let overwritten = undo.overwritten;
        if self.has_index(before, options).await {
            return Left::Before { overwritten };
        }
        let Some(writes) = self.writes_to_undo(before, undo, options).await else {
            return Left::Torn;
        };
        for write in writes {
            let written = H::write(&*self.handle, vec![write], options);
            if written.await.is_err() {
                return Left::Torn;
            }
        }
        if self.has_index(before, options).await {
            Left::Before { overwritten }
        } else {
            Left::Torn
        }
    }

    /// Returns whether the stored shard has the index `before`.
    async fn has_index(&self, before: &StoredIndex, options: &CodecOptions) -> bool {
        let now = self.read_index(options).await;
        now.is_ok_and(|now| now.is_some_and(|now| now.encoded() == before.encoded()))
    }

    /// Returns the writes that put the index `before` back, one after the other. Returns `None` if only data
    /// were written, or if the shard cannot be read.
    async fn writes_to_undo(
        &self,
        before: &StoredIndex,
        undo: &Undo,
        options: &CodecOptions,
    ) -> Option<Vec<(u64, Vec<u8>)>> {
        let old = before.encoded();
        let start = match undo.commit {
            // The first write of an update leaves an index at the start unchanged.
            _ if !self.target.index.is_at_end() => 0,
            Commit::DataOnly => return None,
            Commit::Rewrite { .. } => undo.record.old_end.checked_sub(old.len() as u64)?,
            Commit::Grow { .. } => return self.writes_to_shorten(old, undo, options).await,
        };
        Some(vec![(start, old.to_vec())])
    }

    /// Returns the writes after which a shard that began to grow ends with the index `old`.
    async fn writes_to_shorten(
        &self,
        old: &[u8],
        undo: &Undo,
        options: &CodecOptions,
    ) -> Option<Vec<(u64, Vec<u8>)>> {
        let Record { old_end, .. } = undo.record;
        // The range begins with the last byte of the old index, because some stores refuse to read an empty
        // range.
        let from = old_end.checked_sub(1)?;
        let range = ByteRange::FromStart(from, None);
        let read = H::read_one(H::reader(&*self.handle), range, options);
        let behind = read.await.ok()??;
        let behind = behind.get(1..)?;
        let size = old_end + behind.len() as u64;
        let start = usize::try_from(old_end).ok()?;
        // There may be two records. The last one names the greater size.
        if let Some(record) = Record::all_at(behind, start, old.len()).next() {
            let tail = behind.len().checked_sub(old.len());
            let tail = tail.and_then(|tail| behind.get(tail..));
            return Some(undo_growth(record, old, (size, tail)));
        }
        // No record was written. The writes add a record of an update that changes nothing.
        Some(vec![(old_end, update_of_nothing(old, (old_end, old_end)))])
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Before { overwritten: 0 } => f.write_str(
                "The write was undone, and the shard is as it was before. Write again when the store can be written to",
            ),
            Self::Before { overwritten } => write!(
                f,
                "The index of the shard is as it was before. {overwritten} of the subchunks that were to be written are overwritten where they are, and each of these may be old, new or lost: write them again when the store can be written to"
            ),
            Self::Torn => f.write_str(
                "The write may have stopped in the middle: call zarrs_cuda::recover for the shard before reading or writing it",
            ),
        }
    }
}

/// Returns the error for a failed write to a stored shard, which says in which state the shard is left.
pub(super) fn not_written(error: &CodecError, left: Left) -> CodecError {
    caused(
        format!("cannot write part of a shard: {error}. {left}"),
        error,
    )
}

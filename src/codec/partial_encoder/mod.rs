//! Updates part of a shard where the shard is stored.
//!
//! 1. Read the index.
//! 2. Read the subchunks that are written in part, in one request; decode them, patch them.
//! 3. Encode the changed subchunks as one batch, on the engine that the plan names.
//! 4. Take a turn among the encoders of this process (`crate::store::codec_queue`).
//! 5. Read the index again, with the record before it, and the last byte: they tell the size of the shard.
//!    Read the patched subchunks again. If any of these bytes changed since step 1, begin again.
//! 6. Write: usually once, and twice if an index is overwritten where it is.
//!
//! A codec can do four things to a stored value: read ranges of it, overwrite bytes, make it longer, and
//! erase it. These operations bound all of the steps. `docs/reference/updates.md` has the protocol and its
//! promises.

mod attempt;
#[cfg(feature = "async")]
mod awaited;
mod batch;
mod blocking;
pub(crate) mod changed;
mod commit;
mod comparison;
mod delegated;
mod encode;
mod nested;
mod reads;
mod refusal;
mod subchunks;
mod undo;
mod update;
mod writes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zarrs::array::{ArrayBytes, ArrayBytesRaw, ArraySubset};
use zarrs_codec::{CodecError, CodecOptions};
use zarrs_storage::byte_range::ByteRange;

use crate::metrics::counters;
use crate::options::CompactionRequest;
use crate::shard::error::{caused, codec_error};
use crate::shard::reading::check_memory;
use crate::shard::sharding::Sharding;
use crate::store::Handle;
use crate::store::codec_queue::{Mode, Name, NameToTake};
use commit::rule;
use comparison::StoredIndex;
use reads::FetchedRanges;
use refusal::is_refusal;
use update::{Changes, Update};
use writes::WriteCall;
use zarrs_cuda_engine::layout::placement::PlacementRule;

/// Encodes parts of one shard, whose bytes a handle of the kind `H` reads and writes.
pub(super) struct PartialEncoder<H: Handle> {
    target: Arc<Sharding>,
    handle: Arc<H::Writer>,
}

/// The result of a write: the size of the shard in bytes, and the number of unused bytes if they are too
/// many.
type Written = (usize, Option<usize>);

/// A write that failed.
enum Failed {
    /// The stored shard could not be read or decoded, or it changed before the write. Nothing was written.
    Reading(CodecError),
    /// The write failed for a reason that another attempt would not remove.
    Final(CodecError),
}

impl From<CodecError> for Failed {
    fn from(error: CodecError) -> Self {
        Self::Reading(error)
    }
}

/// Whether the stored shard is read at once or during a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    AtOnce,
    /// The shard is read during a turn in which no encoder of this process writes to a shard of the array: a
    /// store may show half of the bytes that one call writes.
    Alone,
}

/// The number of turn names that the subchunks of a shard share.
const SUBCHUNK_NAMES: usize = 64;

/// The state of repeated attempts at one write.
struct Attempts {
    since: Instant,
    look: Look,
    /// The time for which the encoder has waited for turns.
    waited: Duration,
}

impl Attempts {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            look: Look::AtOnce,
            waited: Duration::ZERO,
        }
    }
}

impl<H: Handle> PartialEncoder<H> {
    /// Prepares for another attempt after one that failed.
    ///
    /// # Errors
    /// The error of the failed attempt, if another attempt would not help.
    fn again(&self, attempts: &mut Attempts, failed: Failed) -> Result<(), CodecError> {
        let error = match failed {
            Failed::Final(error) => return Err(error),
            Failed::Reading(error) => error,
        };
        let limit = self.target.codec.options.turn_limit();
        let is_late = attempts.since.elapsed() > limit;
        attempts.look = match attempts.look {
            // Another encoder wrote to the shard, and its update is complete: the next attempt reads the
            // shard at once.
            _ if is_refusal(&error) && !is_late => Look::AtOnce,
            // Another encoder may have been writing. An attempt during a turn alone finds out, even after the
            // limit: otherwise the error could advise to recover a shard that another writer is creating.
            Look::AtOnce if !is_refusal(&error) => Look::Alone,
            _ => return Err(error),
        };
        Ok(())
    }

    /// Returns the names to take for a turn of `mode` in which `changes` are written to the shard `before`.
    fn names_to_take(
        &self,
        before: Option<&StoredIndex>,
        mode: Mode,
        update: &Update<'_>,
        changes: &Changes,
    ) -> Vec<NameToTake> {
        let mut names = vec![(Name::Writers(self.target.fingerprint()), Mode::Shared)];
        let Some(before) = before else {
            names.push((Name::Absent(self.target.fingerprint()), Mode::Alone));
            return names;
        };
        names.push((Name::Index(before.turn_key), mode));
        if mode == Mode::Shared {
            // Two encoders may patch one subchunk: the second encoder must read the bytes that the first one
            // wrote.
            let mut subchunks = BTreeMap::new();
            for (number, _) in &changes.subchunks {
                let remainder = number % SUBCHUNK_NAMES;
                if update.is_patched(*number) {
                    subchunks.insert(remainder, Mode::Alone);
                } else {
                    subchunks.entry(remainder).or_insert(Mode::Shared);
                }
            }
            let name = |remainder| Name::Subchunks(before.turn_key, remainder);
            names.extend(subchunks.into_iter().map(|(r, mode)| (name(r), mode)));
        }
        names
    }

    pub(super) fn new(target: Arc<Sharding>, handle: Arc<H::Writer>) -> Self {
        Self { target, handle }
    }

    /// Decodes and checks the index `encoded`. Returns `None` if there are no bytes, because the shard does
    /// not exist.
    fn index(
        &self,
        encoded: Option<ArrayBytesRaw<'_>>,
        options: &CodecOptions,
    ) -> Result<Option<StoredIndex>, CodecError> {
        let Some(encoded) = encoded else {
            return Ok(None);
        };
        // The caller may skip the checksums of data, but not the checksum of the index: the update writes a
        // new index with a valid checksum, which would hide errors of the old one.
        let options = options.with_validate_checksums(true);
        StoredIndex::new(&self.target.index, encoded.into_owned(), &options).map(Some)
    }

    /// Returns the byte range of the index in the stored shard.
    fn index_range(&self) -> Result<ByteRange, CodecError> {
        check_memory(self.target.index.len()).map_err(codec_error)?;
        Ok(self.target.index.byte_range())
    }

    /// Counts a write in the metrics. If `dead` has a number, also counts a request for compaction, and
    /// calls the application's callback.
    fn written(&self, size: usize, dead: Option<usize>) {
        counters::partial_write();
        let Some(dead) = dead else { return };
        counters::compaction_request();
        let request = CompactionRequest {
            size: size as u64,
            dead: dead as u64,
        };
        tracing::debug!(size, dead, "a shard should be compacted");
        if let Some(callback) = self.target.codec.options.compaction_callback() {
            (callback.0)(&request);
        }
    }
}

/// Encodes a whole shard of elements that have no fixed size.
pub(super) fn encode_delegated(
    target: &Sharding,
    elements: &ArrayBytes<'_>,
    options: &CodecOptions,
) -> Result<Vec<u8>, CodecError> {
    let all = ArraySubset::new_with_shape(target.shape.iter().map(|d| d.get()).collect());
    let update = Update::new(target, None, &all, elements)?;
    let changes = delegated::encode(&update, &FetchedRanges::default(), options)?;
    let subchunks: Vec<Option<&[u8]>> = changes
        .subchunks
        .iter()
        .map(|(_, new)| new.as_ref().map(|new| changes.encoded(new)))
        .collect();
    target.pack(&subchunks, usize::MAX, options)
}

/// Explains where a partial write of a shard puts changed subchunks, on a store that writes ranges.
pub(super) fn explain(target: &Sharding) -> String {
    match rule(target, true) {
        Err(error) => error.to_string(),
        Ok(PlacementRule::Append) => "behind everything that is there".to_string(),
        Ok(PlacementRule::Reuse) => {
            "into bytes that nothing uses, or behind everything: the old state stays until the new one is whole".to_string()
        }
        Ok(PlacementRule::InPlace) => {
            "where the subchunk was, if it fits; else into bytes that nothing uses, or behind everything".to_string()
        }
        Ok(PlacementRule::Slots { size }) => format!("each subchunk into its own slot of {size} bytes"),
    }
}

/// Adds advice about an index that cannot be read to `error`, unless it is a refusal.
fn index_error(error: &CodecError) -> CodecError {
    if is_refusal(error) {
        return error.clone();
    }
    caused(
        format!(
            "the index of a shard that is to be updated cannot be read: {error}. If an earlier update was interrupted, zarrs_cuda::recover restores it"
        ),
        error,
    )
}

/// The number of bytes between the pieces of one write that may be read to see what the failed write left.
const MOST_HOLES: usize = 64 << 20;

/// Returns the byte range to read for what a failed `write` of a new shard left. Returns `None` if the range
/// is too large.
fn range_of_rest(write: &WriteCall) -> Option<ByteRange> {
    let end = write
        .iter()
        .map(|(at, bytes)| at + bytes.len() as u64)
        .max()?;
    let written: usize = write.iter().map(|(_, bytes)| bytes.len()).sum();
    let most = written.saturating_add(MOST_HOLES) as u64;
    (end <= most).then_some(ByteRange::FromStart(0, None))
}

/// Returns whether `object` has nothing but a part of the bytes of a failed `write` of a new shard. File
/// systems fill holes with zeros, and may store the pages of one write in any order.
fn is_rest(object: &[u8], write: &WriteCall) -> bool {
    let mut whole = Vec::new();
    for (at, bytes) in write {
        let Ok(at) = usize::try_from(*at) else {
            return false;
        };
        whole.resize(whole.len().max(at + bytes.len()), 0);
        whole[at..at + bytes.len()].copy_from_slice(bytes);
    }
    let is_part = |(left, written): (&u8, &u8)| left == written || *left == 0;
    object.len() <= whole.len() && object != whole && object.iter().zip(&whole).all(is_part)
}

/// Returns the error of a shard that was not created, which says that nothing is left of the attempt.
fn not_created(error: &CodecError) -> CodecError {
    caused(
        format!(
            "cannot write part of a shard, which did not exist: {error}. What it had stored was erased, and there is no shard, as before. Try again when the store can be written to"
        ),
        error,
    )
}

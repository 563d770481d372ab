//! Recovers a shard whose last update was interrupted.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use zarrs_codec::CodecError;
#[cfg(feature = "async")]
use zarrs_storage::AsyncReadableWritableStorageTraits;
use zarrs_storage::{ReadableWritableStorageTraits, StoreKey};

use super::ShardFormat;
use super::diagnosis::Diagnosis;
use super::format::diagnosis_of;
use super::io::{ObjectChange, apply, read, undecided};
use crate::error::Error;
use crate::shard::error::is_about_stored_bytes;
use crate::shard::stored;
#[cfg(feature = "async")]
use crate::store::Awaited;
use crate::store::ranges::with_parts;
use crate::store::{Blocking, Reads, Writes, now};

/// The outcome of a recovery: what was found, and what was done.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// use zarrs_cuda::maintenance::{RecoveryOutcome, Shards};
///
/// array.store_chunk(&[0, 0], vec![7_u16; 32 * 32])?;
/// match Shards::of(&array)?.recover(&[0, 0])?.outcome {
///     RecoveryOutcome::Absent | RecoveryOutcome::Intact => {}
///     RecoveryOutcome::Unrecoverable { reason } => {
///         println!("restore the shard from a copy: {reason}");
///     }
///     outcome => println!("{}: {outcome}", outcome.name()),
/// }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecoveryOutcome {
    /// The shard does not exist.
    Absent,
    /// The index of the shard was intact; its subchunks may be unreadable all the same. An update that was
    /// interrupted before it became visible needs no recovery.
    Intact,
    /// The last update was interrupted, and was undone: the shard has its previous index.
    Undone,
    /// The last update was interrupted, and was completed.
    Completed,
    /// The shard was never complete, and was erased.
    Erased,
    /// The right state of the shard is unknown. Nothing was changed.
    Unrecoverable {
        /// The reason.
        reason: String,
    },
}

impl RecoveryOutcome {
    /// Returns the name of the outcome, in one word, for programs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Intact => "intact",
            Self::Undone => "undone",
            Self::Completed => "completed",
            Self::Erased => "erased",
            Self::Unrecoverable { .. } => "unrecoverable",
        }
    }
}

/// The state of a subchunk after recovery.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// use zarrs_cuda::maintenance::{Shards, SubchunkState};
///
/// // One of 16 subchunks has elements.
/// array.store_array_subset(&[0..8, 0..8], vec![7_u16; 64])?;
/// let states = Shards::of(&array)?.recover(&[0, 0])?.subchunks;
/// assert_eq!(states[..2], [SubchunkState::Readable, SubchunkState::Empty]);
/// let is_lost = |state: &&SubchunkState| matches!(state, SubchunkState::Unreadable { .. });
/// assert_eq!(states.iter().filter(is_lost).count(), 0);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubchunkState {
    /// The subchunk is not stored, and reads as the fill value.
    Empty,
    /// The subchunk decodes.
    Readable,
    /// The bytes of the subchunk do not decode.
    Unreadable {
        /// The reason.
        reason: Arc<str>,
    },
}

/// The outcome of a recovery, and the state of the shard now. `Display` prints both for people.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// use zarrs_cuda::maintenance::{RecoveryOutcome, Shards};
///
/// array.store_chunk(&[0, 0], vec![7_u16; 32 * 32])?;
/// let recovery = Shards::of(&array)?.recover(&[0, 0])?;
/// println!("{recovery}"); // for people
/// assert_eq!(recovery.outcome, RecoveryOutcome::Intact);
/// assert_eq!(recovery.subchunks.len(), 16);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// The finding of the recovery, and its action.
    pub outcome: RecoveryOutcome,
    /// The state of each subchunk, in C order. Empty if the shard does not exist now.
    pub subchunks: Vec<SubchunkState>,
}

impl fmt::Display for RecoveryOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("there is no shard"),
            Self::Intact => f.write_str("intact: nothing to do"),
            Self::Undone => f.write_str("a torn update was undone"),
            Self::Completed => f.write_str("a torn update was completed"),
            Self::Erased => f.write_str("a shard that was never complete was erased"),
            Self::Unrecoverable { reason } => write!(f, "nothing was changed: {reason}"),
        }
    }
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut empty, mut readable, mut unreadable) = (0_usize, 0_usize, Vec::new());
        for (number, subchunk) in self.subchunks.iter().enumerate() {
            match subchunk {
                SubchunkState::Empty => empty += 1,
                SubchunkState::Readable => readable += 1,
                SubchunkState::Unreadable { reason } => unreadable.push((number, reason)),
            }
        }
        let is_lost = self.outcome == RecoveryOutcome::Intact && !unreadable.is_empty();
        if is_lost {
            f.write_str("the index is intact")?;
        } else {
            write!(f, "{}", self.outcome)?;
        }
        if self.subchunks.is_empty() {
            return Ok(());
        }
        write!(
            f,
            "\n{readable} subchunks readable, {empty} empty, {} unreadable",
            unreadable.len()
        )?;
        if is_lost {
            f.write_str(": they are lost, until a write covers each of them whole")?;
        }
        match &unreadable[..] {
            [(0, reason), .., (_, last)]
                if unreadable.len() == self.subchunks.len() && reason == last =>
            {
                write!(f, "\n  all: {reason}")
            }
            unreadable => unreadable
                .iter()
                .try_for_each(|(number, reason)| write!(f, "\n  subchunk {number}: {reason}")),
        }
    }
}

/// Repairs the shard at `key` if its last update was interrupted, and returns the state of its
/// subchunks.
///
/// The shard is read as a whole, and each subchunk is decoded on the host. A repair writes an index and a few
/// bytes, by one or two calls of `set_partial`. In a store without `set_partial`, the whole shard is stored
/// by one `set`. Recovery may itself be interrupted and run again. A shard that was never updated by this
/// crate is only read.
///
/// Nothing else may write the shard during this call. The shard must come from trusted software, because
/// records of updates can be forged. The [reference page](crate::guide::reference::updates#recovery) has the
/// rules, and the promises of each [`WriteStrategy`](crate::WriteStrategy).
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// use zarrs_cuda::maintenance::{RecoveryOutcome, ShardFormat};
/// use zarrs_cuda::recover;
///
/// array.store_chunk(&[0, 0], vec![7_u16; 32 * 32])?;
/// // After a crash, for each shard that was being written:
/// let format = ShardFormat::of(&array, &[0, 0])?;
/// let recovery = recover(&*store, &array.chunk_key(&[0, 0]), &format)?;
/// assert_eq!(recovery.outcome, RecoveryOutcome::Intact);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// - [`Error::Codec`] if the format is invalid, or memory cannot be allocated.
/// - [`Error::Undecided`] if memory cannot be allocated to decode the shard. In this case nothing was
///   changed.
/// - [`Error::Storage`] if the store fails.
///
/// A shard that cannot be repaired is no error: the outcome is [`RecoveryOutcome::Unrecoverable`].
pub fn recover<S: ReadableWritableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Recovery, Error> {
    now(recover_in(&Blocking::new(store), key, format))
}

/// Does the work of [`recover`](crate::recover()) for an asynchronous store. Subchunks are decoded on the
/// polling thread and on zarrs' thread pool.
///
/// ```
/// # futures::executor::block_on(async {
/// # let store = std::sync::Arc::new(zarrs::storage::store::AsyncMemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # array.async_store_chunk(&[0, 0], vec![7_u16; 32 * 32]).await?;
/// use zarrs_cuda::maintenance::{RecoveryOutcome, ShardFormat, async_recover};
///
/// let format = ShardFormat::of(&array, &[0, 0])?;
/// let recovery = async_recover(&*store, &array.chunk_key(&[0, 0]), &format).await?;
/// assert_eq!(recovery.outcome, RecoveryOutcome::Intact);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The errors of [`recover`](crate::recover()).
#[cfg(feature = "async")]
pub async fn async_recover<S: AsyncReadableWritableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Recovery, Error> {
    recover_in(&Awaited(store), key, format).await
}

pub(super) async fn recover_in<O: Reads + Writes>(
    store: &O,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Recovery, Error> {
    let Some(object) = read(store, key).await? else {
        return Ok(Recovery {
            outcome: RecoveryOutcome::Absent,
            subchunks: Vec::new(),
        });
    };
    let (change, recovery) = recovered(&object, key, format)?;
    apply(store, key, change).await?;
    Ok(recovery)
}

/// Returns the change that repairs `object`, and the outcome and state after it.
fn recovered(
    object: &Bytes,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<(ObjectChange, Recovery), Error> {
    let write = |parts: Vec<(u64, Vec<u8>)>| {
        let parts = parts.into_iter().map(|(at, bytes)| (at, bytes.into()));
        let parts: Vec<(u64, Bytes)> = parts.collect();
        let whole = with_parts(key, object.clone(), &parts).map_err(CodecError::from)?;
        Ok::<_, Error>(ObjectChange::Write { parts, whole })
    };
    let diagnosis = diagnosis_of(format.shards(), object).map_err(undecided(key))?;
    let (change, outcome) = match diagnosis {
        Diagnosis::Intact => (ObjectChange::Keep, RecoveryOutcome::Intact),
        Diagnosis::Undo(parts) => (write(parts)?, RecoveryOutcome::Undone),
        Diagnosis::Complete(parts) => (write(parts)?, RecoveryOutcome::Completed),
        Diagnosis::Erase => (ObjectChange::Erase, RecoveryOutcome::Erased),
        Diagnosis::Unrecoverable(reason) => (
            ObjectChange::Keep,
            RecoveryOutcome::Unrecoverable { reason },
        ),
    };
    let subchunks = match &change {
        ObjectChange::Erase => Vec::new(),
        ObjectChange::Write { whole, .. } => states(whole, key, format)?,
        ObjectChange::Keep | ObjectChange::Replace(_) => states(object, key, format)?,
    };
    Ok((change, Recovery { outcome, subchunks }))
}

/// Returns the state of each subchunk of `object`, which is the shard at `key`.
///
/// # Errors
/// [`Error::Undecided`] if a subchunk is not decoded for a reason other than its bytes; [`Error::Codec`] if
/// the options say that the data are not trusted, and a codec needs trusted data.
pub(super) fn states(
    object: &[u8],
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Vec<SubchunkState>, Error> {
    let shards = format.shards();
    let entries = match shards.index.decode_in(object, &stored::options()) {
        Ok(entries) => entries,
        Err(error) if !is_about_stored_bytes(&error) => return Err(undecided(key)(error)),
        Err(error) => {
            let reason: Arc<str> = format!("the index is invalid: {error}").into();
            let unreadable = SubchunkState::Unreadable { reason };
            return Ok(vec![unreadable; shards.grid.num_subchunks()]);
        }
    };
    let tried = shards.try_subchunks(object, &entries)?;
    let states = entries
        .iter()
        .zip(tried)
        .map(|(extent, tried)| match tried {
            _ if extent.is_none() => Ok(SubchunkState::Empty),
            Ok(()) => Ok(SubchunkState::Readable),
            Err(error) if is_about_stored_bytes(&error) => Ok(SubchunkState::Unreadable {
                reason: error.to_string().into(),
            }),
            Err(error) => Err(undecided(key)(error)),
        });
    states.collect()
}

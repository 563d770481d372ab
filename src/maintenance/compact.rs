//! Compacts a shard: stores it again without its unused bytes.

#[cfg(feature = "async")]
use zarrs_storage::AsyncReadableWritableStorageTraits;
use zarrs_storage::{ReadableWritableStorageTraits, StoreKey};

use super::ShardFormat;
use super::diagnosis::Diagnosis;
use super::format::diagnosis_of;
use super::io::{ObjectChange, apply, read, undecided};
use super::unknown::unknown;
use crate::error::Error;
use crate::metrics::counters;
use crate::shard::stored;
#[cfg(feature = "async")]
use crate::store::Awaited;
use crate::store::{Blocking, Reads, Writes, now};

/// The sizes of a shard before and after compaction.
///
/// ```
/// # use zarrs::array::{ArrayBuilder, CodecOptions, data_type};
/// # use zarrs_cuda::{CudaShardingCodecBuilder, Options, WriteStrategy};
/// # let codec = CudaShardingCodecBuilder::new(vec![8.try_into()?; 2], &data_type::uint16())
/// #     .options(Options::default().with_write_strategy(WriteStrategy::Append))
/// #     .build_arc()?;
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0_u16);
/// # let array = builder.array_to_bytes_codec(codec).build(store.clone(), "/volume")?;
/// # let options = CodecOptions::default().with_experimental_partial_encoding(true);
/// # for value in 1..=10_u16 {
/// #     array.store_array_subset_opt(&[0..8, 0..8], vec![value; 64], &options)?;
/// # }
/// use zarrs_cuda::maintenance::Shards;
///
/// let shards = Shards::of(&array)?;
/// let sizes = shards.preview_compact(&[0, 0])?.ok_or("no such shard")?;
/// println!("{} of {} bytes can be saved", sizes.before - sizes.after, sizes.before);
/// // No other program has put bytes into the shard.
/// assert_eq!(sizes.unknown, 0);
/// assert_eq!(shards.compact(&[0, 0])?, Some(sizes));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compaction {
    /// The size of the shard before the compaction, in bytes.
    pub before: u64,
    /// The size of the shard after the compaction, in bytes; 0 if it had no subchunks and was erased.
    pub after: u64,
    /// The number of removed bytes to which no index in the shard referred, and which were not zeros.
    ///
    /// Earlier subchunks, indices and records, which updates leave behind, do not count. Counted bytes come
    /// from another program, from an update that was interrupted before it wrote its index, or from one whose
    /// index was overwritten.
    pub unknown: u64,
}

/// Replaces the shard at `key` by one without unused bytes, with its subchunks in C order. Returns `None` if
/// the shard does not exist. Stores nothing if no byte can be saved.
///
/// Subchunks are copied in encoded form: nothing is decoded or encoded. The shard is read, held twice in
/// memory, and stored by one `set`, which is as atomic as the `set` of the store. zarrs' `FilesystemStore` is
/// not atomic: wrap it in `zarrs_storage`'s `AtomicWriteStorageAdapter`. Otherwise **the shard is lost** if
/// the process dies while it stores the shard.
///
/// Nothing else may write the shard during this call: such writes would be lost.
///
/// ```
/// # use zarrs::array::{ArrayBuilder, CodecOptions, data_type};
/// # use zarrs_cuda::{CudaShardingCodecBuilder, Options, WriteStrategy};
/// # let codec = CudaShardingCodecBuilder::new(vec![8.try_into()?; 2], &data_type::uint16())
/// #     .options(Options::default().with_write_strategy(WriteStrategy::Append))
/// #     .build_arc()?;
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0_u16);
/// # let array = builder.array_to_bytes_codec(codec).build(store.clone(), "/volume")?;
/// # let options = CodecOptions::default().with_experimental_partial_encoding(true);
/// # for value in 1..=10_u16 {
/// #     array.store_array_subset_opt(&[0..8, 0..8], vec![value; 64], &options)?;
/// # }
/// use zarrs_cuda::compact;
/// use zarrs_cuda::maintenance::ShardFormat;
///
/// // After some partial writes of the shard:
/// let format = ShardFormat::of(&array, &[0, 0])?;
/// let key = array.chunk_key(&[0, 0]);
/// let sizes = compact(&*store, &key, &format)?.ok_or("no such shard")?;
/// assert!(sizes.after < sizes.before);
/// assert_eq!(array.retrieve_array_subset::<Vec<u16>>(&[0..1, 0..2])?, [10, 10]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// - [`Error::UpdatePending`] if an update of the shard was interrupted:
///   [`recover`](crate::recover) it first.
/// - [`Error::Codec`] if the index is invalid, or memory cannot be allocated.
/// - [`Error::Undecided`] if memory cannot be allocated to decode the index.
/// - [`Error::Storage`] if the store fails.
pub fn compact<S: ReadableWritableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Option<Compaction>, Error> {
    now(compact_in(&Blocking::new(store), key, format))
}

/// Does the work of [`compact`](crate::compact()) for an asynchronous store.
///
/// ```
/// # futures::executor::block_on(async {
/// # let store = std::sync::Arc::new(zarrs::storage::store::AsyncMemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # array.async_store_chunk(&[0, 0], vec![7_u16; 32 * 32]).await?;
/// use zarrs_cuda::maintenance::{ShardFormat, async_compact};
///
/// let format = ShardFormat::of(&array, &[0, 0])?;
/// let key = array.chunk_key(&[0, 0]);
/// let sizes = async_compact(&*store, &key, &format).await?.ok_or("no such shard")?;
/// assert_eq!(sizes.after, sizes.before); // the shard was stored as a whole
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The errors of [`compact`](crate::compact()).
#[cfg(feature = "async")]
pub async fn async_compact<S: AsyncReadableWritableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Option<Compaction>, Error> {
    compact_in(&Awaited(store), key, format).await
}

pub(super) async fn compact_in<O: Reads + Writes>(
    store: &O,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Option<Compaction>, Error> {
    let Some(object) = read(store, key).await? else {
        return Ok(None);
    };
    let (change, compaction) = compacted(&object, key, format)?;
    apply(store, key, change).await?;
    if compaction.after < compaction.before {
        counters::compaction();
    }
    Ok(Some(compaction))
}

/// Returns the sizes that [`compact_in`] would return. Nothing is changed.
pub(super) async fn preview_in<O: Reads>(
    store: &O,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Option<Compaction>, Error> {
    let Some(object) = read(store, key).await? else {
        return Ok(None);
    };
    let (_, compaction) = compacted(&object, key, format)?;
    Ok(Some(compaction))
}

/// Returns the change that compacts `object`.
fn compacted(
    object: &[u8],
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<(ObjectChange, Compaction), Error> {
    let shards = format.shards();
    let diagnosis = diagnosis_of(shards, object).map_err(undecided(key))?;
    let pending = match diagnosis {
        Diagnosis::Intact => None,
        Diagnosis::Undo(_) => Some("an update of it was torn, and has to be undone".to_string()),
        Diagnosis::Complete(_) => {
            Some("an update of it was torn, and has to be completed".to_string())
        }
        Diagnosis::Erase => Some("it was being created, and is not complete".to_string()),
        Diagnosis::Unrecoverable(reason) => Some(reason),
    };
    if let Some(reason) = pending {
        let key = key.clone();
        return Err(Error::UpdatePending { key, reason });
    }
    let before = object.len() as u64;
    let entries = shards.index.decode_in(object, &stored::options())?;
    let (change, after) = if entries.iter().all(|extent| extent.is_none()) {
        (ObjectChange::Erase, 0)
    } else {
        match shards.compact(object, &stored::options())? {
            None => (ObjectChange::Keep, before),
            Some(shard) => {
                let after = shard.len() as u64;
                (ObjectChange::Replace(shard.into()), after)
            }
        }
    };
    let unknown = if after < before {
        unknown(object, shards)
    } else {
        0
    };
    let compaction = Compaction {
        before,
        after,
        unknown,
    };
    Ok((change, compaction))
}

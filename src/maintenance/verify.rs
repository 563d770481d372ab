//! Verifies a shard: finds out whether each of its subchunks decodes.

use zarrs_codec::CodecError;
#[cfg(feature = "async")]
use zarrs_storage::AsyncReadableStorageTraits;
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{ReadableStorageTraits, StoreKey};

use super::ShardFormat;
use super::inspect::{Inspection, by_index};
use super::io::{failed, read, undecided};
use super::recover::{SubchunkState, states};
use crate::error::Error;
use crate::shard::error::is_about_stored_bytes;
#[cfg(feature = "async")]
use crate::store::Awaited;
use crate::store::{Blocking, Reads, now};

/// The content of a shard, and the state of each of its subchunks.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// use zarrs_cuda::maintenance::{Shards, SubchunkState};
///
/// array.store_chunk(&[0, 0], vec![7_u16; 32 * 32])?;
/// let verification = Shards::of(&array)?.verify(&[0, 0])?.ok_or("no such shard")?;
/// if let Some(problem) = &verification.inspection.index_problem {
///     println!("the index is damaged: {problem}");
/// }
/// for (number, subchunk) in verification.subchunks.iter().enumerate() {
///     if let SubchunkState::Unreadable { reason } = subchunk {
///         println!("subchunk {number} is damaged: {reason}");
///     }
/// }
/// # assert_eq!(verification.subchunks, [const { SubchunkState::Readable }; 16]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Verification {
    /// The content of the shard, and the place of each part.
    pub inspection: Inspection,
    /// The state of each subchunk, in C order.
    pub subchunks: Vec<SubchunkState>,
}

/// Returns whether a decoding error says that stored bytes are wrong. If not, a store, the machine or a
/// configuration prevented the decoding: the bytes may be right, and are not damaged.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # use zarrs::storage::WritableStorageTraits;
/// use zarrs::array::ArrayError;
/// use zarrs_cuda::maintenance::is_damage;
///
/// # store.set(&array.chunk_key(&[0, 0]), vec![0; 10].into())?;
/// match array.retrieve_chunk::<Vec<u16>>(&[0, 0]) {
///     Err(ArrayError::CodecError(error)) if is_damage(&error) => {
///         println!("restore the shard from a copy: {error}");
///     }
///     Err(error) => println!("try again: {error}"),
///     Ok(elements) => println!("{} elements", elements.len()),
/// }
/// # let Err(ArrayError::CodecError(error)) = array.retrieve_chunk::<Vec<u16>>(&[0, 0]) else { panic!() };
/// # assert!(is_damage(&error));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn is_damage(error: &CodecError) -> bool {
    is_about_stored_bytes(error)
}

/// Decodes each subchunk of the shard at `key`, and returns which of them decode. Returns `None` if the shard
/// does not exist.
///
/// The shard is read as a whole. Its subchunks are decoded on the host, several at once, and their checksums
/// are compared. Nothing is changed. A broken index is no error: it makes every subchunk unreadable. A
/// changed bit of a subchunk without a checksum may go unnoticed.
///
/// ```
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// use zarrs_cuda::maintenance::{ShardFormat, SubchunkState, verify};
///
/// array.store_chunk(&[0, 0], vec![7_u16; 32 * 32])?;
/// let format = ShardFormat::of(&array, &[0, 0])?;
/// let key = array.chunk_key(&[0, 0]);
/// let found = verify(&*store, &key, &format)?.ok_or("no such shard")?;
/// assert!(found.subchunks.iter().all(|state| *state == SubchunkState::Readable));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// - [`Error::Codec`] if the format is invalid.
/// - [`Error::Undecided`] if memory to decode the shard cannot be allocated: the bytes of the shard may be
///   right.
/// - [`Error::Storage`] if the store fails.
pub fn verify<S: ReadableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Option<Verification>, Error> {
    now(verify_in(&Blocking::new(store), key, format))
}

/// Does the work of [`verify`](verify()) for an asynchronous store. Subchunks are decoded on the polling
/// thread and on zarrs' thread pool.
///
/// ```
/// # futures::executor::block_on(async {
/// # let store = std::sync::Arc::new(zarrs::storage::store::AsyncMemoryStore::new());
/// # let mut builder = zarrs::array::ArrayBuilder::new(vec![64, 64], vec![32, 32], zarrs::array::data_type::uint16(), 0_u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = zarrs_cuda::build_sharded(builder, store.clone(), "/volume")?;
/// # array.async_store_chunk(&[0, 0], vec![7_u16; 32 * 32]).await?;
/// use zarrs_cuda::maintenance::{ShardFormat, SubchunkState, async_verify};
///
/// let format = ShardFormat::of(&array, &[0, 0])?;
/// let key = array.chunk_key(&[0, 0]);
/// let found = async_verify(&*store, &key, &format).await?.ok_or("no such shard")?;
/// assert_eq!(found.subchunks[0], SubchunkState::Readable);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The errors of [`verify`](verify()).
#[cfg(feature = "async")]
pub async fn async_verify<S: AsyncReadableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Option<Verification>, Error> {
    verify_in(&Awaited(store), key, format).await
}

async fn verify_in<O: Reads>(
    store: &O,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Option<Verification>, Error> {
    let Some(object) = read(store, key).await? else {
        return Ok(None);
    };
    Ok(Some(Verification {
        inspection: Inspection::of(&object, format).map_err(undecided(key))?,
        subchunks: states(&object, key, format)?,
    }))
}

/// The number of attempts to read a shard in pieces, if it changes during the attempts.
const ATTEMPTS: usize = 3;

/// Verifies the shard at `key` in pieces. A piece has at most `bytes` encoded bytes, or one subchunk, and at
/// most `at_once` subchunks of a piece are decoded at once. Returns `None` if the shard does not exist, or if
/// the index and the unused bytes cannot show whether it is damaged.
pub(super) async fn verify_in_pieces<O: Reads>(
    store: &O,
    key: &StoreKey,
    format: &ShardFormat,
    bytes: u64,
    at_once: usize,
) -> Result<Option<Verification>, Error> {
    let mut before = None;
    for _ in 0..ATTEMPTS {
        let size = store.size(key).await;
        let Some(size) = size.map_err(failed("find the size of", key))? else {
            return Ok(None);
        };
        let Some(inspection) = by_index(store, key, size, format.shards()).await? else {
            return Ok(None);
        };
        // The bytes that did not decode may belong to a shard that replaced this one. The result is certain
        // only if the index and the unused bytes are the same in two attempts.
        if let Some(Verification {
            inspection: old, ..
        }) = &before
            && *old == inspection
        {
            return Ok(before);
        }
        let subchunks = pieces(store, key, format, &inspection, bytes, at_once).await?;
        let Some(subchunks) = subchunks else {
            return Ok(None);
        };
        let is_read = |state: &SubchunkState| !matches!(state, SubchunkState::Unreadable { .. });
        let is_well = subchunks.iter().all(is_read);
        let verification = Verification {
            inspection,
            subchunks,
        };
        if is_well {
            return Ok(Some(verification));
        }
        before = Some(verification);
    }
    Ok(None)
}

/// Returns the states of the subchunks that `inspection` found, or `None` if the shard does not exist any
/// more.
async fn pieces<O: Reads>(
    store: &O,
    key: &StoreKey,
    format: &ShardFormat,
    inspection: &Inspection,
    most: u64,
    at_once: usize,
) -> Result<Option<Vec<SubchunkState>>, Error> {
    let mut states = vec![SubchunkState::Empty; inspection.subchunks.len()];
    let numbered = inspection.subchunks.iter().enumerate();
    let stored = numbered.filter_map(|(number, subchunk)| {
        let subchunk = subchunk.as_ref()?;
        let end = subchunk.offset.saturating_add(subchunk.size);
        Some((number, subchunk.offset..end))
    });
    let mut stored: Vec<_> = stored.collect();
    stored.sort_by_key(|(_, extent)| extent.start);
    let mut rest = &stored[..];
    while let Some((_, first)) = rest.first() {
        let mut piece = first.clone();
        let more = rest.iter().take_while(|(_, extent)| {
            let end = piece.end.max(extent.end);
            let fits = end - piece.start <= most || *extent == *first;
            if fits {
                piece.end = end;
            }
            fits
        });
        let (subchunks, others) = rest.split_at(more.count());
        rest = others;
        let range = ByteRange::FromStart(piece.start, Some(piece.end - piece.start));
        let read = store.get_ranges(key, vec![range]).await;
        let read = read.map_err(failed("read subchunks of", key))?;
        let Some(bytes) = read.and_then(|mut parts| parts.pop()) else {
            return Ok(None);
        };
        for subchunks in subchunks.chunks(at_once.max(1)) {
            let found = subchunks.iter().filter_map(|(number, extent)| {
                let at = |offset: u64| usize::try_from(offset - piece.start).ok();
                Some((*number, bytes.get(at(extent.start)?..at(extent.end)?)?))
            });
            let found: Vec<_> = found.collect();
            if found.len() < subchunks.len() {
                let message = format!("{key} is shorter than its index says");
                return Err(CodecError::Other(message).into());
            }
            let tried = format.shards().try_each(&found)?;
            for ((number, _), tried) in found.into_iter().zip(tried) {
                if let Some(state) = states.get_mut(number) {
                    *state = match tried {
                        Ok(()) => SubchunkState::Readable,
                        Err(error) if is_about_stored_bytes(&error) => SubchunkState::Unreadable {
                            reason: error.to_string().into(),
                        },
                        Err(error) => return Err(undecided(key)(error)),
                    };
                }
            }
        }
    }
    Ok(Some(states))
}

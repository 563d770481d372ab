//! Verification: whether each subchunk of a shard decodes.

#[cfg(feature = "async")]
use zarrs_storage::AsyncReadableStorageTraits;
use zarrs_storage::{ReadableStorageTraits, StoreKey};

use super::ShardFormat;
use super::inspect::Inspection;
use super::io::{read, undecided};
use super::recover::{SubchunkState, states};
use crate::Error;
#[cfg(feature = "async")]
use crate::store::Awaited;
use crate::store::{Blocking, Reads, now};

/// What a shard holds, and which of its subchunks decode.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Verification {
    /// What the shard holds, and where.
    pub inspection: Inspection,
    /// The state of each subchunk, in C order.
    pub subchunks: Vec<SubchunkState>,
}

/// Decodes each subchunk of the shard at `key`, and says which of them decode. Returns `None` if there
/// is no shard.
///
/// The shard is read as a whole. Its subchunks are decoded on the host, several at once, and the
/// checksums in it are compared. Nothing is changed. A broken index is no error: every subchunk is
/// unreadable then. A changed bit of a subchunk without a checksum may go unnoticed.
///
/// # Errors
/// - [`Error::Codec`] if the format is invalid.
/// - [`Error::Undecided`] if memory cannot be allocated to decode the shard: its bytes may be right.
/// - [`Error::Storage`] if the store fails.
pub fn verify<S: ReadableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Option<Verification>, Error> {
    now(verify_in(&Blocking::new(store), key, format))
}

/// [`verify`](verify()) for an asynchronous store. Subchunks are decoded on the polling thread and on
/// zarrs' thread pool.
///
/// # Errors
/// As for [`verify`](verify()).
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

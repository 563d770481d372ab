//! Maintenance of shards in asynchronous stores.

use zarrs_storage::{
    AsyncReadableStorageTraits, AsyncReadableWritableStorageTraits, Bytes, StoreKey,
};

use super::compact::{compacted, count};
use super::io::{Change, failed};
use super::recover::recovered;
use super::{Compaction, Inspection, Recovery, ShardFormat};
use crate::Error;

/// [`compact`](crate::compact()) for an asynchronous store.
///
/// # Errors
/// As for [`compact`](crate::compact()).
pub async fn async_compact<S: AsyncReadableWritableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Option<Compaction>, Error> {
    let Some(object) = read(store, key).await? else {
        return Ok(None);
    };
    let (change, compaction) = compacted(&object, key, format)?;
    apply(store, key, &object, change).await?;
    count(compaction);
    Ok(Some(compaction))
}

/// [`recover`](crate::recover()) for an asynchronous store. Subchunks are decoded on the polling
/// thread and on zarrs' thread pool.
///
/// # Errors
/// As for [`recover`](crate::recover()).
pub async fn async_recover<S: AsyncReadableWritableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Recovery, Error> {
    let Some(object) = read(store, key).await? else {
        return Ok(Recovery::absent());
    };
    let (change, recovery) = recovered(&object, format)?;
    apply(store, key, &object, change).await?;
    Ok(recovery)
}

/// [`inspect`](crate::inspect()) for an asynchronous store.
///
/// # Errors
/// As for [`inspect`](crate::inspect()).
pub async fn async_inspect<S: AsyncReadableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
    format: &ShardFormat,
) -> Result<Option<Inspection>, Error> {
    let object = read(store, key).await?;
    object
        .map(|object| Inspection::of(&object, format))
        .transpose()
}

async fn read<S: AsyncReadableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
) -> Result<Option<Bytes>, Error> {
    store.get(key).await.map_err(failed("read", key))
}

/// Applies `change` to the object at `key`, whose bytes are `object` now.
async fn apply<S: AsyncReadableWritableStorageTraits + ?Sized>(
    store: &S,
    key: &StoreKey,
    object: &[u8],
    change: Change,
) -> Result<(), Error> {
    match change.for_store(store.supports_set_partial(), object)? {
        Change::Keep => Ok(()),
        Change::Erase => store.erase(key).await.map_err(failed("erase", key)),
        Change::Replace(bytes) => {
            let stored = store.set(key, bytes.into()).await;
            stored.map_err(failed("store", key))
        }
        Change::Write(writes) => {
            for (offset, bytes) in writes {
                let written = store.set_partial(key, offset, bytes.into()).await;
                written.map_err(failed("write into", key))?;
            }
            Ok(())
        }
    }
}

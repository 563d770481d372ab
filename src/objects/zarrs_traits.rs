//! Implements zarrs' traits of stores, and the trait for conditional requests.

use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator};
use zarrs_storage::{
    Bytes, ListableStorageTraits, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator,
    ReadableStorageTraits, StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix,
    WritableStorageTraits, store_set_partial_many,
};

use super::error::{conditional, has_no_answer, listing};
use super::one_object::{ObjectPart, found, part, parts, put};
use super::{BlockingObjectStore, Result, below, must, path};
use crate::store::conditional::{ConditionalStore, ValueVersion};
use crate::store::ranges::within;

impl BlockingObjectStore {
    fn whole(&self, key: &StoreKey) -> Result<Option<ObjectPart>> {
        let (path, all) = (path(key.as_str())?, ByteRange::FromStart(0, None));
        self.wait(|store| async move { found(part(&*store, &path, all).await) })
    }
}

impl ReadableStorageTraits for BlockingObjectStore {
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes> {
        Ok(self.whole(key)?.map(|whole| whole.bytes))
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>> {
        let path = path(key.as_str())?;
        let ranges: Vec<ByteRange> = byte_ranges.collect();
        let (wanted, permits) = (&*ranges, self.permits());
        let got = self.run(|store| async move { parts(&*store, &path, wanted, permits).await })?;
        match got {
            // Without ranges no request was made, so the size is requested to find out whether the value
            // exists.
            Ok(Some(_)) if ranges.is_empty() && self.size_key(key)?.is_none() => Ok(None),
            Ok(Some(parts)) => Ok(Some(Box::new(ranges.into_iter().zip(parts).map(
                |(range, part)| {
                    let wanted = within(range, part.size)?;
                    let (len, wanted) = (part.bytes.len() as u64, wanted.end - wanted.start);
                    if len == wanted {
                        return Ok(part.bytes);
                    }
                    let what = format!("the server sent {len} bytes for {range}, {wanted} bytes");
                    Err(StorageError::Other(what))
                },
            )))),
            Ok(None) => Ok(None),
            // Each object store has another error for a range beyond the end of a value, so the size is
            // requested. A server that does not answer is not asked again, because that would take another
            // timeout.
            Err(error) => {
                let size = (!has_no_answer(&error))
                    .then(|| self.size_key(key).ok()?)
                    .flatten();
                let mut ranges = ranges.into_iter();
                let beyond =
                    size.and_then(|size| ranges.find_map(|range| within(range, size).err()));
                Err(beyond.unwrap_or_else(|| self.error(error)))
            }
        }
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>> {
        Ok(self.object(key)?.map(|object| object.size))
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

/// Deletes objects, several by one request if the store supports such requests.
async fn delete(
    store: &dyn ObjectStore,
    paths: BoxStream<'static, object_store::Result<Path>>,
) -> object_store::Result<()> {
    let mut deleted = store.delete_stream(paths);
    while let Some(deleted) = deleted.next().await {
        found(deleted)?;
    }
    Ok(())
}

impl WritableStorageTraits for BlockingObjectStore {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<()> {
        must(self.no_writes)?;
        let path = path(key.as_str())?;
        self.wait(|store| async move { put(&*store, &path, value).await })
    }

    fn set_partial_many(&self, key: &StoreKey, parts: OffsetBytesIterator) -> Result<()> {
        store_set_partial_many(self, key, parts)
    }

    fn erase(&self, key: &StoreKey) -> Result<()> {
        must(self.no_writes)?;
        let path = path(key.as_str())?;
        self.wait(|store| async move { found(store.delete(&path).await).map(drop) })
    }

    fn erase_many(&self, keys: &[StoreKey]) -> Result<()> {
        must(self.no_writes)?;
        let paths = keys.iter().map(|key| path(key.as_str()).map(Ok));
        let paths = paths.collect::<Result<Vec<_>>>()?;
        self.wait(|store| async move { delete(&*store, stream::iter(paths).boxed()).await })
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<()> {
        must(self.no_writes)?;
        let below = below(prefix)?;
        self.wait(|store| async move {
            let listed = store.list(below.as_ref()).map_ok(|object| object.location);
            delete(&*store, listed.boxed()).await
        })
    }

    fn supports_set_partial(&self) -> bool {
        false
    }
}

impl ListableStorageTraits for BlockingObjectStore {
    fn list(&self) -> Result<StoreKeys> {
        self.list_prefix(&StorePrefix::root())
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys> {
        let mut paths = Vec::new();
        self.for_each_object(prefix, |object| paths.push(object.location.clone()))?;
        sorted(paths.into_iter().map(StoreKey::new))
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes> {
        must(self.no_listings)?;
        let below = below(prefix)?;
        let listed =
            self.run(|store| async move { store.list_with_delimiter(below.as_ref()).await })?;
        let listed = listed.map_err(|error| listing(error, self.words))?;
        let keys = listed.objects.into_iter();
        let prefixes = listed.common_prefixes.into_iter();
        Ok(StoreKeysPrefixes::new(
            sorted(keys.map(|object| StoreKey::new(object.location)))?,
            sorted(prefixes.map(|prefix| StorePrefix::new(format!("{prefix}/"))))?,
        ))
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64> {
        let mut size = 0;
        self.for_each_object(prefix, |object| size += object.size)?;
        Ok(size)
    }
}

/// Returns the names of a listing, in order.
fn sorted<T: Ord, E: Into<StorageError>>(
    names: impl Iterator<Item = std::result::Result<T, E>>,
) -> Result<Vec<T>> {
    let names: std::result::Result<Vec<T>, E> = names.collect();
    let mut names = names.map_err(Into::into)?;
    names.sort();
    Ok(names)
}

impl ConditionalStore for BlockingObjectStore {
    fn get_with_version(&self, key: &StoreKey) -> Result<Option<(Bytes, ValueVersion)>> {
        must(self.no_conditions)?;
        let got = self.whole(key)?;
        got.map(|whole| Ok((whole.bytes, sent_version(whole.version)?)))
            .transpose()
    }

    fn set_if(
        &self,
        key: &StoreKey,
        value: Bytes,
        version: Option<&ValueVersion>,
    ) -> Result<Option<ValueVersion>> {
        must(self.no_writes.or(self.no_conditions))?;
        let path = path(key.as_str())?;
        let mode = version.cloned().map_or(PutMode::Create, |version| {
            PutMode::Update(UpdateVersion {
                e_tag: version.e_tag,
                version: version.version,
            })
        });
        let options = PutOptions::from(mode);
        let put =
            self.run(|store| async move { store.put_opts(&path, value.into(), options).await })?;
        match put {
            Ok(put) => sent_version(put.into()).map(Some),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(None),
            Err(error) => Err(conditional(error, self.words)),
        }
    }
}

/// Returns the version of an object, which a server has sent.
///
/// # Errors
/// [`StorageError::Unsupported`] if the server sends no version.
fn sent_version(UpdateVersion { e_tag, version }: UpdateVersion) -> Result<ValueVersion> {
    if e_tag.is_none() && version.is_none() {
        let reason = "the server does not tell versions of objects";
        return Err(StorageError::Unsupported(reason.to_owned()));
    }
    Ok(ValueVersion { e_tag, version })
}

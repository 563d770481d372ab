//! Makes the requests for one object: gets parts of one version of it, and stores a long value in parts.

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, Result, UpdateVersion,
    WriteMultipart,
};
use tokio::sync::Semaphore;
use zarrs_storage::byte_range::ByteRange;

use super::error::has_no_answer;
use crate::store::ranges::Requests;

/// The number of bytes from which a value is sent in parts: some stores take at most 5 GiB in one request,
/// and several parts are sent at the same time.
const LONG: usize = 64 << 20;

/// The number of bytes between two parts of an object up to which they are one request. `object_store` and
/// zarr-python have the same default.
const NEAR: u64 = 1 << 20;

/// Returns the value of `result`, or `None` if the object does not exist.
pub(super) fn found<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Bytes of one version of an object.
pub(super) struct ObjectPart {
    pub(super) bytes: Bytes,
    /// The size of the object, in bytes.
    pub(super) size: u64,
    pub(super) version: UpdateVersion,
}

impl ObjectPart {
    fn of(object: &ObjectMeta, bytes: Bytes) -> Self {
        let (e_tag, version) = (object.e_tag.clone(), object.version.clone());
        Self {
            bytes,
            size: object.size,
            version: UpdateVersion { e_tag, version },
        }
    }
}

/// Gets a part of an object, which may be the object's end.
pub(super) async fn part(
    store: &dyn ObjectStore,
    path: &Path,
    range: ByteRange,
) -> Result<ObjectPart> {
    let get = |range| async move {
        let options = GetOptions::new().with_range(range);
        let got = store.get_opts(path, options).await?;
        Ok(ObjectPart::of(&got.meta.clone(), got.bytes().await?))
    };
    // No request can ask for 0 bytes, so the metadata of the object are requested.
    let none = async || Ok(ObjectPart::of(&store.head(path).await?, Bytes::new()));
    match range {
        ByteRange::FromStart(0, None) => get(None).await,
        ByteRange::FromStart(_, Some(0)) | ByteRange::Suffix(0) => none().await,
        ByteRange::FromStart(start, None) => match get(Some(GetRange::Offset(start))).await {
            Err(error) if !has_no_answer(&error) => {
                let none = none().await?;
                if none.size == start {
                    Ok(none)
                } else {
                    Err(error)
                }
            }
            got => got,
        },
        ByteRange::FromStart(start, Some(len)) => {
            get(Some(GetRange::Bounded(start..start.saturating_add(len)))).await
        }
        ByteRange::Suffix(len) => match get(Some(GetRange::Suffix(len))).await {
            // Azure does not support requests for the end of an object.
            Err(Error::NotSupported { .. }) => {
                let size = store.head(path).await?.size;
                get(Some(GetRange::Bounded(size.saturating_sub(len)..size))).await
            }
            got => got,
        },
    }
}

/// Gets parts of one version of an object. Returns `None` if the object does not exist. If the object is
/// replaced between the requests, all parts are requested again.
pub(super) async fn parts(
    store: &dyn ObjectStore,
    path: &Path,
    ranges: &[ByteRange],
    permits: &Semaphore,
) -> Result<Option<Vec<ObjectPart>>> {
    /// The largest number of requests for parts of one object that wait for permits at once.
    const MOST_PARTS: usize = 256;
    /// The number of attempts to get the parts of an object that is replaced during each attempt.
    const ATTEMPTS: usize = 3;
    let requests = Requests::near(NEAR, ranges);
    let ranges = requests.ranges();
    let get = |range: &ByteRange| {
        let range = *range;
        async move {
            // The permits are never closed, so `acquire` returns no error.
            let _permit = permits.acquire().await.ok();
            part(store, path, range).await
        }
    };
    for _ in 0..ATTEMPTS {
        let got = stream::iter(ranges).map(get).buffered(MOST_PARTS);
        let Some(mut got) = found(got.try_collect::<Vec<_>>().await)? else {
            return Ok(None);
        };
        if let ([_, .., last], [.., range]) = (&mut *got, ranges)
            && last.version.e_tag.is_none()
            && last.version.version.is_none()
        {
            // Without versions, the last range is requested again after all others: a reader asks for the
            // index last, and a changed index tells that the object was replaced.
            let Some(again) = found(get(range).await)? else {
                return Ok(None);
            };
            *last = again;
        }
        if got.windows(2).all(|two| two[0].version == two[1].version) {
            return Ok(Some(cut(&requests, &got)));
        }
    }
    Err(Error::Generic {
        store: "object store",
        source: format!("it was replaced {ATTEMPTS} times while it was read").into(),
    })
}

/// Returns the parts that were asked for, from those that were requested, which have one version.
fn cut(requests: &Requests, got: &[ObjectPart]) -> Vec<ObjectPart> {
    let bytes: Vec<Bytes> = got.iter().map(|part| part.bytes.clone()).collect();
    let Some(first) = got.first() else {
        return Vec::new();
    };
    let parts = requests.cut(&bytes).into_iter();
    parts
        .map(|bytes| ObjectPart {
            bytes,
            size: first.size,
            version: first.version.clone(),
        })
        .collect()
}

/// Stores `value`, in parts if it is long.
pub(super) async fn put(store: &dyn ObjectStore, path: &Path, value: Bytes) -> Result<()> {
    /// The largest number of parts that every store takes for one object.
    const MOST: usize = 5000;
    if value.len() < LONG {
        return store.put(path, value.into()).await.map(drop);
    }
    let part = (LONG / 4).max(value.len().div_ceil(MOST));
    let upload = store.put_multipart(path).await?;
    let mut upload = WriteMultipart::new_with_chunk_size(upload, part);
    let mut rest = value;
    while !rest.is_empty() {
        if let Err(error) = upload.wait_for_capacity(8).await {
            // The first error is returned, not the one of `abort`.
            let _ = upload.abort().await;
            return Err(error);
        }
        upload.put(rest.split_to(part.min(rest.len())));
    }
    // `finish` aborts the upload if a part fails.
    upload.finish().await.map(drop)
}

//! The objects of zarr-python's `ObjectStore`, which keeps a store of obstore.
//!
//! obstore is another module, with a copy of its own of the Rust library `object_store`: what it made cannot be
//! used here. So each process makes a store of its own with the same settings. Requests wait on a runtime of this
//! package; nothing here calls Python, but for the settings.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::future::try_join;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    Error as ObjectError, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    UpdateVersion, WriteMultipart,
};
use pyo3::prelude::*;
use pyo3_object_store::PyExternalObjectStore;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OnceCell, Semaphore};
use zarrs_cuda::storage::{FRAMES_MARKER, within};
use zarrs_cuda::writer::{ConditionalStore, ValueVersion};
use zarrs_cuda_engine::process::per_process::PerProcess;
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator};
use zarrs_storage::{
    ListableStorageTraits, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator,
    ReadableStorageTraits, StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix,
    WritableStorageTraits, store_set_partial_many,
};

use crate::error::Error;
use crate::files::frame_of;
use crate::value::Value;

type Result<T, E = StorageError> = std::result::Result<T, E>;

/// Longer values are sent in parts: some stores take 5 GiB at once, and parts go up side by side.
const LONG: usize = 64 << 20;

/// How many parts of one object wait for permits at once.
const MOST_PARTS: usize = 256;

/// How often parts of an object are got that is replaced meanwhile.
const ATTEMPTS: usize = 3;

/// Where requests wait, in this process.
static RUNTIME: PerProcess<Mutex<Option<Arc<Runtime>>>> = PerProcess::new(Mutex::default);

/// The objects of a store.
#[derive(Debug)]
pub(crate) struct Objects {
    /// The store of obstore, which has the settings.
    settings: Py<PyAny>,
    /// Made with these settings.
    store: Arc<PerProcess<OnceLock<Arc<dyn ObjectStore>>>>,
    /// Permits for requests for parts of objects, which several threads of a call make. A child that is forked
    /// has permits of its own: nobody would return those that its parent's threads hold.
    permits: PerProcess<OnceLock<Semaphore>>,
    /// Whether the store lists them. Those of plain HTTP servers do not.
    pub(crate) are_listed: bool,
    /// Whether the store replaces them under conditions. Those of files do not.
    have_conditions: bool,
    /// How many requests of one call are made at once.
    pub(crate) requests: NonZeroUsize,
}

/// The objects of a store, as a class of Python.
#[pyclass(frozen, name = "Objects", module = "zarrs_cuda._internal")]
pub(crate) struct PyObjects(pub(crate) Arc<Objects>);

#[pymethods]
impl PyObjects {
    /// The objects of `store`, of obstore. A call makes up to `requests` requests at once.
    #[new]
    fn new(store: &Bound<'_, PyAny>, requests: NonZeroUsize) -> PyResult<Self> {
        let objects = Objects {
            are_listed: store.get_type().name()? != "HTTPStore",
            have_conditions: store.get_type().name()? != "LocalStore",
            settings: store.clone().unbind(),
            store: Arc::new(PerProcess::new(OnceLock::new)),
            permits: PerProcess::new(OnceLock::new),
            requests,
        };
        objects.make(store.py())?;
        Ok(Self(Arc::new(objects)))
    }
}

/// The shards of one array, for one call that writes some of them.
pub(crate) struct ShardsOf {
    marker: String,
    is_marked: OnceCell<bool>,
}

impl ShardsOf {
    /// The shards of the array at `path`.
    pub(crate) fn array(path: &str) -> Self {
        let marker = match path {
            "" => FRAMES_MARKER.to_owned(),
            path => format!("{path}/{FRAMES_MARKER}"),
        };
        Self {
            marker,
            is_marked: OnceCell::new(),
        }
    }

    /// Returns `true` if subchunks were ever stored beside the shards. The store is asked once.
    async fn may_have_frames(&self, store: &dyn ObjectStore) -> object_store::Result<bool> {
        let ask = async || -> object_store::Result<bool> {
            let marker = Path::parse(&self.marker)?;
            Ok(found(store.head(&marker).await)?.is_some())
        };
        self.is_marked.get_or_try_init(ask).await.copied()
    }
}

fn failed(error: ObjectError) -> StorageError {
    // Its causes have types of the HTTP client, which this package does not use itself.
    let mut cause: Option<&dyn std::error::Error> = Some(&error);
    let mut has_no_answer = false;
    while let Some(error) = cause {
        let text = error.to_string();
        has_no_answer |= text.contains("timed out") || text.contains("error sending request");
        cause = error.source();
    }
    if has_no_answer {
        return io::Error::new(io::ErrorKind::TimedOut, error).into();
    }
    io::Error::other(error).into()
}

/// `None` if there is no object.
fn found<T>(result: object_store::Result<T>) -> object_store::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(ObjectError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Keys are paths as they are, as obstore takes them.
fn path(key: &str) -> Result<Path> {
    Path::parse(key.trim_end_matches('/')).map_err(|error| failed(error.into()))
}

fn runtime() -> Result<Arc<Runtime>> {
    let mut runtime = RUNTIME.get().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = &*runtime {
        return Ok(runtime.clone());
    }
    // The thread that asks does most of the work: these take what arrives.
    let made = Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("zarrs_cuda objects")
        .enable_all()
        .build()?;
    Ok(runtime.insert(Arc::new(made)).clone())
}

impl Objects {
    fn make(&self, py: Python<'_>) -> PyResult<Arc<dyn ObjectStore>> {
        let known = self.store.get();
        if let Some(store) = known.get() {
            return Ok(store.clone());
        }
        let made: PyExternalObjectStore = self.settings.bind(py).extract()?;
        Ok(known.get_or_init(|| made.into_dyn()).clone())
    }

    /// The same objects, with permits for requests of their own.
    pub(crate) fn of_one_array(&self, py: Python<'_>) -> Self {
        Self {
            settings: self.settings.clone_ref(py),
            store: self.store.clone(),
            permits: PerProcess::new(OnceLock::new),
            are_listed: self.are_listed,
            have_conditions: self.have_conditions,
            requests: self.requests,
        }
    }

    fn must_have_conditions(&self) -> Result<()> {
        if self.have_conditions {
            return Ok(());
        }
        let reason = "files are not replaced under conditions";
        Err(StorageError::Unsupported(reason.to_owned()))
    }

    fn permits(&self) -> &Semaphore {
        let permits = self.permits.get();
        permits.get_or_init(|| Semaphore::new(self.requests.get().min(Semaphore::MAX_PERMITS)))
    }

    fn store(&self) -> Result<Arc<dyn ObjectStore>> {
        if let Some(store) = self.store.get().get() {
            return Ok(store.clone());
        }
        // A forked child has none yet.
        let made = Python::attach(|py| self.make(py));
        made.map_err(|error| StorageError::Other(format!("the store cannot be made: {error}")))
    }

    /// Does requests, and waits.
    fn wait<F, T>(&self, requests: impl FnOnce(Arc<dyn ObjectStore>) -> F) -> Result<T>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let store = self.store()?;
        runtime()?.block_on(requests(store)).map_err(failed)
    }

    /// Whether subchunks of the shard `key` are stored beside it. It costs a request.
    async fn has_frame(store: &dyn ObjectStore, key: &Path) -> object_store::Result<bool> {
        let frame = Path::parse(frame_of(key.as_ref()))?;
        let listed = store.list(Some(&frame));
        let mut versions = listed
            .try_filter(|object| std::future::ready(object.location.extension() == Some("chunk")));
        Ok(versions.try_next().await?.is_some())
    }

    /// The values of `keys` that are wanted, several at once. With `shards`, checks that no shard of `keys` has
    /// subchunks beside it: one request tells that the array has none, and otherwise each shard is asked for.
    pub(crate) fn values(
        &self,
        keys: impl Iterator<Item = (String, bool)>,
        shards: Option<&ShardsOf>,
    ) -> Result<HashMap<String, Option<Value>>, Error> {
        // A key may need two requests at once.
        let permits = &Semaphore::new(self.requests.get().min(Semaphore::MAX_PERMITS));
        let get = |key: String, is_wanted: bool, store: Arc<dyn ObjectStore>| async move {
            let both = async {
                let (store, path) = (&*store, &Path::parse(&key)?);
                let framed =
                    async {
                        let Some(shards) = shards else {
                            return Ok(false);
                        };
                        let _permit = permits.acquire().await.ok();
                        Ok(shards.may_have_frames(store).await?
                            && Self::has_frame(store, path).await?)
                    };
                let value = async {
                    if !is_wanted {
                        return Ok(None);
                    }
                    let _permit = permits.acquire().await.ok();
                    let got = found(part(store, path, ByteRange::FromStart(0, None)).await)?;
                    Ok(got.map(|(_, value)| value))
                };
                try_join(framed, value).await
            };
            match both.await {
                Ok((true, _)) => Err(Error::Frames(key)),
                Ok((false, value)) => Ok((key, value.map(Value::Whole))),
                Err(error) => Err(Error::store("read", &key, &failed(error))),
            }
        };
        self.several(keys, |store, (key, is_wanted)| get(key, is_wanted, store))
    }

    /// When the object `key` was stored, and those below `prefix`, as far as they are there.
    pub(crate) fn times(
        &self,
        key: &StoreKey,
        prefix: &StorePrefix,
    ) -> Result<Vec<(StoreKey, SystemTime)>> {
        let (key, prefix) = (path(key.as_str())?, path(prefix.as_str())?);
        let objects = self.wait(|store| async move {
            let shard = async { found(store.head(&key).await) };
            let listed = store.list(Some(&prefix)).try_collect::<Vec<_>>();
            let (shard, mut objects) = try_join(shard, listed).await?;
            objects.extend(shard);
            Ok(objects)
        })?;
        let objects = objects.into_iter();
        let times = objects.map(|object| {
            let key = StoreKey::new(object.location.to_string())?;
            Ok((key, object.last_modified.into()))
        });
        times.collect()
    }

    /// How many values are in memory at once, at most.
    pub(crate) fn at_once(&self) -> usize {
        self.requests.get() * 2
    }

    /// Stores or erases values, several at once.
    pub(crate) fn change(&self, changes: Vec<(String, Option<Vec<u8>>)>) -> Result<(), Error> {
        let change = |store: Arc<dyn ObjectStore>, (key, value): (String, Option<Vec<u8>>)| async move {
            let (doing, done) = match value {
                Some(value) => ("write", put(&*store, &key, value.into()).await),
                None => ("erase", delete(&*store, &key).await),
            };
            done.map_err(|error| Error::store(doing, &key, &failed(error)))
        };
        self.several(changes.into_iter(), change)
    }

    fn several<I, T, F, C>(
        &self,
        items: impl Iterator<Item = I>,
        one: impl Fn(Arc<dyn ObjectStore>, I) -> F,
    ) -> Result<C, Error>
    where
        F: Future<Output = Result<T, Error>>,
        C: Default + Extend<T>,
    {
        let ready = self.store().and_then(|store| Ok((store, runtime()?)));
        let (store, runtime) = ready.map_err(|error| Error::store("use", "the store", &error))?;
        let results = stream::iter(items.map(|item| one(store.clone(), item)));
        runtime.block_on(results.buffer_unordered(self.requests.get()).try_collect())
    }

    fn keys(
        listed: impl Stream<Item = object_store::Result<object_store::ObjectMeta>>,
    ) -> impl Future<Output = object_store::Result<Vec<String>>> {
        listed
            .map_ok(|object| object.location.to_string())
            .try_collect()
    }
}

async fn put(store: &dyn ObjectStore, key: &str, value: Bytes) -> object_store::Result<()> {
    /// The largest number of parts that a store takes for one object.
    const MOST: usize = 5000;
    let path = Path::parse(key)?;
    if value.len() < LONG {
        store.put(&path, value.into()).await?;
        return Ok(());
    }
    let part = (LONG / 4).max(value.len().div_ceil(MOST));
    let upload = store.put_multipart(&path).await?;
    let mut upload = WriteMultipart::new_with_chunk_size(upload, part);
    let mut rest = value;
    while !rest.is_empty() {
        if let Err(error) = upload.wait_for_capacity(8).await {
            // The first error is the one to report.
            let _ = upload.abort().await;
            return Err(error);
        }
        upload.put(rest.split_to(part.min(rest.len())));
    }
    // It aborts the upload if a part fails.
    upload.finish().await?;
    Ok(())
}

async fn delete(store: &dyn ObjectStore, key: &str) -> object_store::Result<()> {
    found(store.delete(&Path::parse(key)?).await).map(drop)
}

/// One part of an object, which may be its end, and the version of the object, if the store has versions.
async fn part(
    store: &dyn ObjectStore,
    path: &Path,
    range: ByteRange,
) -> object_store::Result<(Option<String>, Bytes)> {
    let get = |range| async move {
        let got = store
            .get_opts(path, GetOptions::new().with_range(range))
            .await?;
        Ok((got.meta.e_tag.clone(), got.bytes().await?))
    };
    match range {
        ByteRange::FromStart(0, None) => get(None).await,
        ByteRange::FromStart(start, None) => get(Some(GetRange::Offset(start))).await,
        ByteRange::FromStart(start, Some(len)) => {
            get(Some(GetRange::Bounded(start..start.saturating_add(len)))).await
        }
        ByteRange::Suffix(len) => match get(Some(GetRange::Suffix(len))).await {
            // Azure has no such requests.
            Err(ObjectError::NotSupported { .. }) => {
                let size = store.head(path).await?.size;
                get(Some(GetRange::Bounded(size.saturating_sub(len)..size))).await
            }
            got => got,
        },
    }
}

/// Parts of one object: if another object came between the requests, all are got again. `None` if there is none.
async fn parts(
    store: &dyn ObjectStore,
    path: &Path,
    ranges: &[ByteRange],
    permits: &Semaphore,
) -> object_store::Result<Option<Vec<Bytes>>> {
    for _ in 0..ATTEMPTS {
        let got = stream::iter(ranges).map(|&range| async move {
            // Permits are never closed.
            let _permit = permits.acquire().await.ok();
            part(store, path, range).await
        });
        let got: object_store::Result<Vec<_>> = got.buffered(MOST_PARTS).try_collect().await;
        let Some(mut got) = found(got)? else {
            return Ok(None);
        };
        let first = got.first().and_then(|(version, _)| version.clone());
        if got.iter().any(|(version, _)| *version != first) {
            continue;
        }
        if let [_, .., last] = &mut *got
            && first.is_none()
        {
            // The index comes last. Behind the others, it tells whether they are of an older object.
            let range = ranges[ranges.len() - 1];
            let _permit = permits.acquire().await.ok();
            let Some(again) = found(part(store, path, range).await)? else {
                return Ok(None);
            };
            *last = again;
        }
        return Ok(Some(got.into_iter().map(|(_, part)| part).collect()));
    }
    Err(ObjectError::Generic {
        store: "object store",
        source: format!("it was replaced {ATTEMPTS} times while it was read").into(),
    })
}

impl Objects {
    /// The error of the first of `ranges` that the object has not, if one of them is such a range: each store
    /// says this otherwise.
    fn beyond_its_end(&self, key: &StoreKey, ranges: &[ByteRange]) -> Option<StorageError> {
        let size = self.size_key(key).ok()??;
        let mut ranges = ranges.iter();
        ranges.find_map(|range| within(*range, size).err())
    }
}

impl ReadableStorageTraits for Objects {
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes> {
        let path = path(key.as_str())?;
        self.wait(|store| async move {
            let got = found(part(&*store, &path, ByteRange::FromStart(0, None)).await)?;
            Ok(got.map(|(_, value)| value))
        })
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>> {
        let path = path(key.as_str())?;
        let ranges: Vec<ByteRange> = byte_ranges.collect();
        let wanted = &*ranges;
        let permits = self.permits();
        let got = self.wait(|store| async move { parts(&*store, &path, wanted, permits).await });
        let got = got.map_err(|error| {
            // A server that does not answer is not asked again: that would take another timeout.
            if matches!(&error, StorageError::IOError(io) if io.kind() == io::ErrorKind::TimedOut) {
                return error;
            }
            self.beyond_its_end(key, wanted).unwrap_or(error)
        })?;
        let Some(got) = got else {
            return Ok(None);
        };
        let key = key.clone();
        let parts = ranges.into_iter().zip(got).map(move |(range, part)| {
            let len = match range {
                ByteRange::FromStart(_, len) => len,
                ByteRange::Suffix(len) => Some(len),
            };
            if len.is_some_and(|len| len != part.len() as u64) {
                return Err(StorageError::Other(format!(
                    "{} bytes of {key} were read for {range}",
                    part.len()
                )));
            }
            Ok(part)
        });
        Ok(Some(Box::new(parts)))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>> {
        let path = path(key.as_str())?;
        let object = self.wait(|store| async move { found(store.head(&path).await) })?;
        Ok(object.map(|object| object.size))
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for Objects {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<()> {
        self.wait(|store| async move { put(&*store, key.as_str(), value).await })
    }

    fn set_partial_many(&self, key: &StoreKey, parts: OffsetBytesIterator) -> Result<()> {
        store_set_partial_many(self, key, parts)
    }

    fn erase(&self, key: &StoreKey) -> Result<()> {
        self.wait(|store| async move { delete(&*store, key.as_str()).await })
    }

    /// Several by one request, where the store has such requests.
    fn erase_many(&self, keys: &[StoreKey]) -> Result<()> {
        let paths = keys.iter().map(|key| path(key.as_str()));
        let paths = paths.collect::<Result<Vec<Path>>>()?;
        self.wait(|store| async move {
            let paths = stream::iter(paths.into_iter().map(Ok)).boxed();
            let mut erased = store.delete_stream(paths);
            while let Some(erased) = erased.next().await {
                found(erased)?;
            }
            Ok(())
        })
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<()> {
        let path = path(prefix.as_str())?;
        self.wait(|store| async move {
            let listed = store.list(Some(&path)).map_ok(|object| object.location);
            let erased = store.delete_stream(listed.boxed());
            erased.try_for_each(|_| std::future::ready(Ok(()))).await
        })
    }

    fn supports_set_partial(&self) -> bool {
        false
    }
}

impl ConditionalStore for Objects {
    fn get_with_version(&self, key: &StoreKey) -> Result<Option<(Bytes, ValueVersion)>> {
        self.must_have_conditions()?;
        let path = path(key.as_str())?;
        let got = self.wait(|store| async move {
            let Some(got) = found(store.get(&path).await)? else {
                return Ok(None);
            };
            let version = (got.meta.e_tag.clone(), got.meta.version.clone());
            Ok(Some((got.bytes().await?, version)))
        })?;
        got.map(|(value, (e_tag, version))| Ok((value, told_version(e_tag, version)?)))
            .transpose()
    }

    fn set_if(
        &self,
        key: &StoreKey,
        value: Bytes,
        version: Option<&ValueVersion>,
    ) -> Result<Option<ValueVersion>> {
        self.must_have_conditions()?;
        let path = path(key.as_str())?;
        let mode = version.cloned().map_or(PutMode::Create, |version| {
            PutMode::Update(UpdateVersion {
                e_tag: version.e_tag,
                version: version.version,
            })
        });
        let options = PutOptions::from(mode);
        let put = self.wait(|store| async move {
            match store.put_opts(&path, value.into(), options).await {
                Ok(put) => Ok(Ok(Some(put))),
                Err(ObjectError::AlreadyExists { .. } | ObjectError::Precondition { .. }) => {
                    Ok(Ok(None))
                }
                Err(error) if is_not_implemented(&error) => {
                    Ok(Err(StorageError::Unsupported(error.to_string())))
                }
                Err(error) if is_refused(&error) => {
                    Ok(Err(
                        io::Error::new(io::ErrorKind::PermissionDenied, error).into()
                    ))
                }
                Err(error) => Err(error),
            }
        })?;
        match put? {
            Some(put) => told_version(put.e_tag, put.version).map(Some),
            None => Ok(None),
        }
    }
}

/// The version of an object; an error if the server tells none.
fn told_version(e_tag: Option<String>, version: Option<String>) -> Result<ValueVersion> {
    if e_tag.is_none() && version.is_none() {
        let reason = "the server does not tell versions of objects";
        return Err(StorageError::Unsupported(reason.to_owned()));
    }
    Ok(ValueVersion { e_tag, version })
}

/// Whether a store does not let this process do what was asked. Listings have no kind of error for it.
fn is_refused(error: &ObjectError) -> bool {
    matches!(
        error,
        ObjectError::PermissionDenied { .. } | ObjectError::Unauthenticated { .. }
    ) || ["401 Unauthorized", "403 Forbidden"]
        .iter()
        .any(|status| error.to_string().contains(status))
}

/// Whether a store has no requests with conditions. There is no kind of error for such an answer of a server.
fn is_not_implemented(error: &ObjectError) -> bool {
    matches!(
        error,
        ObjectError::NotImplemented { .. } | ObjectError::NotSupported { .. }
    ) || error.to_string().contains("501 Not Implemented")
}

impl ListableStorageTraits for Objects {
    fn list(&self) -> Result<StoreKeys> {
        self.list_prefix(&StorePrefix::root())
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys> {
        let path = path(prefix.as_str())?;
        let keys = self.wait(|store| async move {
            match Self::keys(store.list(Some(&path))).await {
                Err(error) if is_refused(&error) => Ok(Err(error.to_string())),
                keys => keys.map(Ok),
            }
        })?;
        let mut keys = keys.map_err(StorageError::Unsupported)?;
        keys.sort();
        let keys = keys.into_iter().map(|key| Ok(StoreKey::new(key)?));
        keys.collect()
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes> {
        let path = path(prefix.as_str())?;
        let listed =
            self.wait(|store| async move { store.list_with_delimiter(Some(&path)).await })?;
        let keys = listed.objects.iter();
        let keys = keys.map(|object| Ok(StoreKey::new(object.location.as_ref())?));
        let prefixes = listed.common_prefixes.iter();
        let prefixes = prefixes.map(|prefix| Ok(StorePrefix::new(format!("{prefix}/"))?));
        let (mut keys, mut prefixes) = (
            keys.collect::<Result<Vec<_>>>()?,
            prefixes.collect::<Result<Vec<_>>>()?,
        );
        keys.sort();
        prefixes.sort();
        Ok(StoreKeysPrefixes::new(keys, prefixes))
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64> {
        let path = path(prefix.as_str())?;
        self.wait(|store| async move {
            let listed = store.list(Some(&path));
            listed
                .try_fold(0, |sum, object| std::future::ready(Ok(sum + object.size)))
                .await
        })
    }
}

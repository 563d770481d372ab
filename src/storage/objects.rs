//! The operations of a store that the adapters are written over, once for stores that block and once
//! for those that are awaited.
//!
//! Everything behind the adapters is an `async fn` over these traits. Over a [`Blocking`] store none
//! of them ever waits, so that [`now`] runs it to its end, like any function.

use std::future::Future;
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::{LazyLock, OnceLock};
use std::task::{Context, Poll, Waker};

#[cfg(feature = "async")]
use futures_util::stream::{self, FuturesUnordered, StreamExt, TryStreamExt};
use zarrs_codec::CodecError;
use zarrs_storage::byte_range::ByteRange;
#[cfg(feature = "async")]
use zarrs_storage::{
    AsyncListableStorageTraits, AsyncReadableStorageTraits, AsyncWritableStorageTraits,
};
use zarrs_storage::{
    Bytes, ListableStorageTraits, ReadableStorageTraits, StorageError, StoreKey, StoreKeys,
    StoreKeysPrefixes, StorePrefix, WritableStorageTraits,
};

use super::files::Files;
#[cfg(feature = "async")]
use crate::codec::foreign::async_no_panic;
use crate::codec::foreign::no_panic;
use crate::engine::crew::Crew;

type Result<T> = std::result::Result<T, StorageError>;

/// Values are read.
pub(super) trait Reads: Sync {
    /// All of a value; `None` if there is none.
    fn get(&self, key: &StoreKey) -> impl Future<Output = Result<Option<Bytes>>> + Send;

    /// All of a value of at most `most` bytes; `None` if there is none. Where the store shows it before it is
    /// read, a longer value, and something that is no value, are not read, and as empty ones.
    fn get_at_most(
        &self,
        key: &StoreKey,
        most: u64,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send {
        let _ = most;
        self.get(key)
    }

    /// [`get_at_most`](Self::get_at_most), of several values, in as many requests; several at once where that
    /// helps.
    fn get_each_at_most(
        &self,
        keys: &[StoreKey],
        most: u64,
    ) -> impl Future<Output = Result<Vec<Option<Bytes>>>> + Send {
        async move {
            let mut values = Vec::with_capacity(keys.len());
            for key in keys {
                values.push(self.get_at_most(key, most).await?);
            }
            Ok(values)
        }
    }

    /// Parts of a value, in one request; `None` if there is no value.
    fn get_ranges(
        &self,
        key: &StoreKey,
        ranges: Vec<ByteRange>,
    ) -> impl Future<Output = Result<Option<Vec<Bytes>>>> + Send;

    /// The size of a value, in bytes.
    fn size(&self, key: &StoreKey) -> impl Future<Output = Result<Option<u64>>> + Send;
}

/// Values are written.
pub(super) trait Writes: Sync {
    fn set(&self, key: &StoreKey, value: Bytes) -> impl Future<Output = Result<()>> + Send;

    fn set_ranges(
        &self,
        key: &StoreKey,
        values: Vec<(u64, Bytes)>,
    ) -> impl Future<Output = Result<()>> + Send;

    fn erase(&self, key: &StoreKey) -> impl Future<Output = Result<()>> + Send;

    /// Erase several keys, in any order; several at once where that helps.
    fn erase_each(&self, keys: &[StoreKey]) -> impl Future<Output = Result<()>> + Send {
        async move {
            for key in keys {
                self.erase(key).await?;
            }
            Ok(())
        }
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> impl Future<Output = Result<()>> + Send;
}

/// Keys are listed.
pub(super) trait Lists: Sync {
    fn list_prefix(&self, prefix: &StorePrefix) -> impl Future<Output = Result<StoreKeys>> + Send;

    fn list_dir(
        &self,
        prefix: &StorePrefix,
    ) -> impl Future<Output = Result<StoreKeysPrefixes>> + Send;

    /// Whether a listing that fails is an error always. Some stores return an empty list instead.
    fn returns_each_error(&self) -> bool {
        false
    }
}

/// What `request` returns for each of `keys`, on the threads of the machine: not those of rayon, since
/// whoever calls this may have a turn that other work of theirs waits for.
fn each<T: Send + Sync>(
    keys: &[StoreKey],
    request: impl Fn(&StoreKey) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    static CREW: LazyLock<Crew> = LazyLock::new(|| Crew::new("zarrs_cuda requests"));
    let results: Vec<OnceLock<Result<T>>> = keys.iter().map(|_| OnceLock::new()).collect();
    CREW.run(keys.len(), NonZeroUsize::MAX, &|number| {
        // Each number is given once.
        let _ = results[number].set(request(&keys[number]));
    });
    let missing = || StorageError::Other("a request was not made".to_owned());
    let results = results.into_iter();
    results
        .map(|result| result.into_inner().unwrap_or_else(|| Err(missing())))
        .collect()
}

/// A store whose calls return when they are done.
#[derive(Debug)]
pub(super) struct Blocking<'a, S: ?Sized> {
    store: &'a S,
    /// Where its values are files, if that is known.
    files: Option<&'a Files>,
}

impl<'a, S: ?Sized> Blocking<'a, S> {
    pub(super) fn new(store: &'a S) -> Self {
        Self { store, files: None }
    }

    /// With `files`, the store is one of files, which are these.
    pub(super) fn with_files(self, files: Option<&'a Files>) -> Self {
        Self { files, ..self }
    }
}

impl<S: ReadableStorageTraits + ?Sized> Reads for Blocking<'_, S> {
    async fn get(&self, key: &StoreKey) -> Result<Option<Bytes>> {
        self.store.get(key)
    }

    async fn get_at_most(&self, key: &StoreKey, most: u64) -> Result<Option<Bytes>> {
        self.get_file(key, most)
    }

    async fn get_each_at_most(&self, keys: &[StoreKey], most: u64) -> Result<Vec<Option<Bytes>>> {
        each(keys, |key| self.get_file(key, most))
    }

    async fn get_ranges(
        &self,
        key: &StoreKey,
        ranges: Vec<ByteRange>,
    ) -> Result<Option<Vec<Bytes>>> {
        // Some stores panic if a value is shorter than what is asked of its end.
        let read = no_panic(|| {
            let values = self
                .store
                .get_partial_many(key, Box::new(ranges.into_iter()))?;
            Ok(values.map(Iterator::collect).transpose()?)
        });
        read.map_err(|error| of_storage(key, error))
    }

    async fn size(&self, key: &StoreKey) -> Result<Option<u64>> {
        self.store.size_key(key)
    }
}

impl<S: ReadableStorageTraits + ?Sized> Blocking<'_, S> {
    fn get_file(&self, key: &StoreKey, most: u64) -> Result<Option<Bytes>> {
        let Some(files) = self.files else {
            return self.store.get(key);
        };
        match files.is_file_of(key, most)? {
            None => Ok(None),
            Some(false) => Ok(Some(Bytes::new())),
            Some(true) => self.store.get(key),
        }
    }
}

impl<S: WritableStorageTraits + ?Sized> Writes for Blocking<'_, S> {
    async fn set(&self, key: &StoreKey, value: Bytes) -> Result<()> {
        self.store.set(key, value)
    }

    async fn set_ranges(&self, key: &StoreKey, values: Vec<(u64, Bytes)>) -> Result<()> {
        self.store
            .set_partial_many(key, Box::new(values.into_iter()))
    }

    async fn erase(&self, key: &StoreKey) -> Result<()> {
        self.store.erase(key)
    }

    async fn erase_each(&self, keys: &[StoreKey]) -> Result<()> {
        each(keys, |key| self.store.erase(key)).map(drop)
    }

    async fn erase_prefix(&self, prefix: &StorePrefix) -> Result<()> {
        self.store.erase_prefix(prefix)
    }
}

impl<S: ListableStorageTraits + ?Sized> Lists for Blocking<'_, S> {
    async fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys> {
        match self.files {
            Some(files) => files.list_prefix(prefix),
            None => self.store.list_prefix(prefix),
        }
    }

    async fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes> {
        if let Some(files) = self.files {
            return files.list_dir(prefix);
        }
        // zarrs' `FilesystemStore` panics if a name is not UTF-8.
        no_panic(|| Ok(self.store.list_dir(prefix)?)).map_err(|error| not_listed(prefix, error))
    }

    fn returns_each_error(&self) -> bool {
        self.files.is_some()
    }
}

/// How many requests wait for a server at once.
#[cfg(feature = "async")]
const AT_ONCE: usize = 16;

/// Await `requests`, at most `at_once` of them at once, and give what each comes to to `done`.
///
/// When one fails, no others are begun, and those that were begun are awaited: if they were dropped, a
/// store might do them later, after what is asked of it next.
///
/// # Errors
/// The first of `requests` that fails.
#[cfg(feature = "async")]
pub(super) async fn all<F, T, E>(
    mut requests: impl Iterator<Item = F>,
    at_once: usize,
    mut done: impl FnMut(T),
) -> std::result::Result<(), E>
where
    F: Future<Output = std::result::Result<T, E>>,
{
    let mut begun = FuturesUnordered::new();
    let mut failed = None;
    loop {
        while failed.is_none()
            && begun.len() < at_once
            && let Some(request) = requests.next()
        {
            begun.push(request);
        }
        match begun.next().await {
            Some(Ok(one)) => done(one),
            Some(Err(error)) => {
                failed.get_or_insert(error);
            }
            None => return failed.map_or(Ok(()), Err),
        }
    }
}

/// A store whose calls are awaited.
#[cfg(feature = "async")]
#[derive(Debug)]
pub(super) struct Awaited<'a, S: ?Sized>(pub(super) &'a S);

#[cfg(feature = "async")]
impl<S: AsyncReadableStorageTraits + ?Sized> Reads for Awaited<'_, S> {
    async fn get(&self, key: &StoreKey) -> Result<Option<Bytes>> {
        self.0.get(key).await
    }

    async fn get_each_at_most(&self, keys: &[StoreKey], _most: u64) -> Result<Vec<Option<Bytes>>> {
        let requests: Vec<_> = keys.iter().map(|key| self.0.get(key)).collect();
        stream::iter(requests).buffered(AT_ONCE).try_collect().await
    }

    async fn get_ranges(
        &self,
        key: &StoreKey,
        ranges: Vec<ByteRange>,
    ) -> Result<Option<Vec<Bytes>>> {
        let read = async_no_panic(async {
            let values = self.0.get_partial_many(key, Box::new(ranges.into_iter()));
            let Some(mut values) = values.await? else {
                return Ok(None);
            };
            let mut collected = Vec::new();
            while let Some(value) = values.next().await {
                collected.push(value?);
            }
            Ok(Some(collected))
        });
        read.await.map_err(|error| of_storage(key, error))
    }

    async fn size(&self, key: &StoreKey) -> Result<Option<u64>> {
        self.0.size_key(key).await
    }
}

#[cfg(feature = "async")]
impl<S: AsyncWritableStorageTraits + ?Sized> Writes for Awaited<'_, S> {
    async fn set(&self, key: &StoreKey, value: Bytes) -> Result<()> {
        self.0.set(key, value).await
    }

    async fn set_ranges(&self, key: &StoreKey, values: Vec<(u64, Bytes)>) -> Result<()> {
        let values = Box::new(values.into_iter());
        self.0.set_partial_many(key, values).await
    }

    async fn erase(&self, key: &StoreKey) -> Result<()> {
        self.0.erase(key).await
    }

    async fn erase_each(&self, keys: &[StoreKey]) -> Result<()> {
        let requests: Vec<_> = keys.iter().map(|key| self.0.erase(key)).collect();
        all(requests.into_iter(), AT_ONCE, drop).await
    }

    async fn erase_prefix(&self, prefix: &StorePrefix) -> Result<()> {
        self.0.erase_prefix(prefix).await
    }
}

#[cfg(feature = "async")]
impl<S: AsyncListableStorageTraits + ?Sized> Lists for Awaited<'_, S> {
    async fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys> {
        self.0.list_prefix(prefix).await
    }

    async fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes> {
        let listed = async_no_panic(async { Ok(self.0.list_dir(prefix).await?) });
        listed.await.map_err(|error| not_listed(prefix, error))
    }
}

/// As [`of_storage`], of a listing.
fn not_listed(prefix: &StorePrefix, error: CodecError) -> StorageError {
    match error {
        CodecError::StorageError(error) => error,
        _ => StorageError::Other(format!(
            "cannot list {prefix}: the store panicked. See whether there are names that are not UTF-8, and delete those; on a filesystem `SparseShardStore::on_filesystem` passes over them"
        )),
    }
}

/// The error of a store, or that it panicked.
fn of_storage(key: &StoreKey, error: CodecError) -> StorageError {
    match error {
        CodecError::StorageError(error) => error,
        error => StorageError::Other(format!("cannot read parts of {key}: {error}")),
    }
}

/// What `future` comes to, which waits for nothing but calls that block.
pub(super) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        // The first poll is the last: every call of a `Blocking` store is done when it returns.
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}

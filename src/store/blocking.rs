//! Adapts stores whose calls return when they are done.

use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{
    ListableStorageTraits, ReadableStorageTraits, StorageError, StoreKey, StoreKeys,
    StoreKeysPrefixes, StorePrefix, WritableStorageTraits,
};

use super::failures::{not_listed, not_read};
use super::files::Files;
use super::{Lists, Reads, Result, Writes};
use crate::panics::no_panic;
use zarrs_cuda_engine::process::crew::Crew;
use zarrs_cuda_engine::process::per_process::PerProcess;

/// The most requests that wait for a store at once, unless its values are files.
const REQUESTS: usize = 16;

/// The number of keys that one call erases. zarrs' adapter of asynchronous stores makes a request for each
/// key at once.
const ERASED_TOGETHER: usize = 32;

/// A store whose calls block the thread.
#[derive(Debug)]
pub(crate) struct Blocking<'a, S: ?Sized> {
    store: &'a S,
    /// The directory whose files are the values of the store; `None` if they are not known to be files.
    files: Option<&'a Files>,
}

impl<'a, S: ?Sized> Blocking<'a, S> {
    pub(crate) fn new(store: &'a S) -> Self {
        Self { store, files: None }
    }

    /// Lets listings and sizes be read from `files` directly, if they are the values of the store.
    pub(crate) fn with_files(self, files: Option<&'a Files>) -> Self {
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
        self.each(keys, |key| self.get_file(key, most))
    }

    async fn get_ranges(
        &self,
        key: &StoreKey,
        ranges: Vec<ByteRange>,
    ) -> Result<Option<Vec<Bytes>>> {
        // Some stores panic if a value is shorter than a range that ends a number of bytes before its end.
        let read = no_panic(|| {
            let values = self
                .store
                .get_partial_many(key, Box::new(ranges.into_iter()))?;
            Ok(values.map(Iterator::collect).transpose()?)
        });
        read.map_err(|error| not_read(key, error))
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

    async fn set_each(&self, values: &[(StoreKey, Bytes)]) -> Result<()> {
        let set = |(key, value): &(StoreKey, Bytes)| self.store.set(key, value.clone());
        self.each(values, set).map(drop)
    }

    async fn set_ranges(&self, key: &StoreKey, values: Vec<(u64, Bytes)>) -> Result<()> {
        self.store
            .set_partial_many(key, Box::new(values.into_iter()))
    }

    fn writes_ranges(&self) -> bool {
        self.store.supports_set_partial()
    }

    async fn erase(&self, key: &StoreKey) -> Result<()> {
        self.store.erase(key)
    }

    async fn erase_each(&self, keys: &[StoreKey]) -> Result<()> {
        // Some stores erase many keys by one request, others make many requests at once.
        let parts: Vec<&[StoreKey]> = keys.chunks(ERASED_TOGETHER).collect();
        self.each(&parts, |keys| self.store.erase_many(keys))
            .map(drop)
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

impl<S: ?Sized> Blocking<'_, S> {
    /// Returns the results of `request` for `items`. Several threads make the requests. These are not rayon's
    /// threads: the caller may hold a turn, and rayon could run other work of the application here that waits
    /// for this turn.
    ///
    /// # Errors
    /// The first error in the order of `items`. When a request fails, no other request begins.
    fn each<I: Sync, T: Send + Sync>(
        &self,
        items: &[I],
        request: impl Fn(&I) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        static FILES: PerProcess<Crew> = PerProcess::new(|| Crew::new("zarrs_cuda files"));
        static REQUEST: PerProcess<Crew> =
            PerProcess::new(|| Crew::of("zarrs_cuda requests", REQUESTS - 1));
        // Requests for files keep processors busy. Other requests wait for a server.
        let crew = if self.files.is_some() {
            FILES.get()
        } else {
            REQUEST.get()
        };
        let results: Vec<OnceLock<Result<T>>> = items.iter().map(|_| OnceLock::new()).collect();
        let has_failed = AtomicBool::new(false);
        crew.run(items.len(), NonZeroUsize::MAX, &|number| {
            if has_failed.load(Ordering::Relaxed) {
                return;
            }
            let result = request(&items[number]);
            has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
            // Each number is given to one thread only, so the cell is empty.
            let _ = results[number].set(result);
        });
        let results = results.into_iter().filter_map(OnceLock::into_inner);
        let results = results.collect::<Result<Vec<T>>>()?;
        if results.len() < items.len() {
            let what = "a request was not made".to_owned();
            return Err(StorageError::Other(what));
        }
        Ok(results)
    }
}

/// Runs an operation on a [`Blocking`] store, or on a blocking handle, to its end.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        // The first poll is the last one: every call of a blocking store is done when it returns.
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}

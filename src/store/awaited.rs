//! Stores whose calls are awaited.

use std::future::Future;

use bytes::Bytes;
use futures_util::stream::{self, FuturesUnordered, StreamExt, TryStreamExt};
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{
    AsyncListableStorageTraits, AsyncReadableStorageTraits, AsyncWritableStorageTraits, StoreKey,
    StoreKeys, StoreKeysPrefixes, StorePrefix,
};

use super::failures::{not_listed, not_read};
use super::{Lists, Reads, Result, Writes};
use crate::panics::async_no_panic;

/// A store whose calls are awaited.
#[derive(Debug)]
pub(crate) struct Awaited<'a, S: ?Sized>(pub(crate) &'a S);

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
        read.await.map_err(|error| not_read(key, error))
    }

    async fn size(&self, key: &StoreKey) -> Result<Option<u64>> {
        self.0.size_key(key).await
    }
}

impl<S: AsyncWritableStorageTraits + ?Sized> Writes for Awaited<'_, S> {
    async fn set(&self, key: &StoreKey, value: Bytes) -> Result<()> {
        self.0.set(key, value).await
    }

    async fn set_each(&self, values: &[(StoreKey, Bytes)]) -> Result<()> {
        let requests = values.iter();
        let requests: Vec<_> = requests
            .map(|(key, value)| self.0.set(key, value.clone()))
            .collect();
        all(requests.into_iter(), AT_ONCE, drop).await
    }

    async fn set_ranges(&self, key: &StoreKey, values: Vec<(u64, Bytes)>) -> Result<()> {
        let values = Box::new(values.into_iter());
        self.0.set_partial_many(key, values).await
    }

    fn writes_ranges(&self) -> bool {
        self.0.supports_set_partial()
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

impl<S: AsyncListableStorageTraits + ?Sized> Lists for Awaited<'_, S> {
    async fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys> {
        self.0.list_prefix(prefix).await
    }

    async fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes> {
        let listed = async_no_panic(async { Ok(self.0.list_dir(prefix).await?) });
        listed.await.map_err(|error| not_listed(prefix, error))
    }
}

/// The most requests that wait for a server at once.
const AT_ONCE: usize = 16;

/// Awaits `requests`, at most `at_once` of them at once, and calls `done` with each result.
///
/// When a request fails, no other request begins, and those that have begun are awaited. If they were
/// dropped, a store might do them later, after requests that come after this call.
pub(crate) async fn all<F, T, E>(
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

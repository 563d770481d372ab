//! How the bytes of shards are read: from any store, or from files.

use std::num::NonZeroUsize;

use bytes::Bytes;
#[cfg(feature = "async")]
use zarrs_storage::AsyncReadableStorageTraits;
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{ReadableStorageTraits, StorageError, StoreKey};

use super::threads::{self, Later, Task};
use crate::store::files::{File, Files};
#[cfg(feature = "async")]
use crate::store::{Awaited, all};
use crate::store::{Blocking, Reads, now};

/// Bytes that were read.
#[derive(Debug)]
pub(super) enum Fetched<'b> {
    /// In a buffer that is used again.
    Buffer(&'b [u8]),
    Value(Bytes),
}

impl AsRef<[u8]> for Fetched<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Buffer(bytes) => bytes,
            Self::Value(bytes) => bytes,
        }
    }
}

type Result<T, E = StorageError> = std::result::Result<T, E>;

/// Where shards are read from.
pub(super) trait Source: Sync {
    /// A shard that is being read.
    type Shard: Send + Sync;

    /// Begin to read a shard; `None` if there is none. A store may return a shard that is not there.
    fn open<'a>(&'a self, key: &'a StoreKey) -> Later<'a, Result<Option<Self::Shard>>>;

    /// Read ranges of a shard, by one request; `None` if there is no shard.
    fn read<'a>(
        &'a self,
        shard: &'a Self::Shard,
        ranges: &'a [ByteRange],
        buffer: &'a mut Vec<u8>,
    ) -> Later<'a, Result<Option<Vec<Fetched<'a>>>>>;

    /// About how many bytes of a shard to read by one request.
    fn request_bytes(&self) -> usize;

    /// How many requests are made at once.
    fn at_once(&self) -> NonZeroUsize;

    /// Do `one(0)`, …, `one(count - 1)`, at most `at_once` of them at once. After an error no more are
    /// begun.
    fn each<'a>(
        &'a self,
        count: usize,
        at_once: NonZeroUsize,
        one: &'a (dyn Fn(usize) -> Task<'a> + Sync),
    ) -> Task<'a>;
}

/// About how many bytes to ask a store for at once, where a request takes long.
const FAR: usize = 64 << 20;

/// A store that blocks: each request waits on a thread.
#[derive(Debug)]
pub(super) struct Store<'s, S: ?Sized> {
    pub(super) store: &'s S,
    pub(super) at_once: NonZeroUsize,
}

impl<S: ReadableStorageTraits + ?Sized> Source for Store<'_, S> {
    type Shard = StoreKey;

    fn open<'a>(&'a self, key: &'a StoreKey) -> Later<'a, Result<Option<StoreKey>>> {
        Box::pin(async { Ok(Some(key.clone())) })
    }

    fn read<'a>(
        &'a self,
        shard: &'a StoreKey,
        ranges: &'a [ByteRange],
        _buffer: &'a mut Vec<u8>,
    ) -> Later<'a, Result<Option<Vec<Fetched<'a>>>>> {
        Box::pin(async {
            let store = Blocking::new(self.store);
            Ok(values(store.get_ranges(shard, ranges.to_vec()).await?))
        })
    }

    fn request_bytes(&self) -> usize {
        FAR
    }

    fn at_once(&self) -> NonZeroUsize {
        self.at_once
    }

    fn each<'a>(
        &'a self,
        count: usize,
        at_once: NonZeroUsize,
        one: &'a (dyn Fn(usize) -> Task<'a> + Sync),
    ) -> Task<'a> {
        Box::pin(async move { threads::each(count, at_once, |number| now(one(number))) })
    }
}

/// A store that is awaited.
#[cfg(feature = "async")]
#[derive(Debug)]
pub(super) struct AwaitedStore<'s, S: ?Sized> {
    pub(super) store: &'s S,
    pub(super) at_once: NonZeroUsize,
}

#[cfg(feature = "async")]
impl<S: AsyncReadableStorageTraits + ?Sized> Source for AwaitedStore<'_, S> {
    type Shard = StoreKey;

    fn open<'a>(&'a self, key: &'a StoreKey) -> Later<'a, Result<Option<StoreKey>>> {
        Box::pin(async { Ok(Some(key.clone())) })
    }

    fn read<'a>(
        &'a self,
        shard: &'a StoreKey,
        ranges: &'a [ByteRange],
        _buffer: &'a mut Vec<u8>,
    ) -> Later<'a, Result<Option<Vec<Fetched<'a>>>>> {
        Box::pin(async {
            let store = Awaited(self.store);
            Ok(values(store.get_ranges(shard, ranges.to_vec()).await?))
        })
    }

    fn request_bytes(&self) -> usize {
        FAR
    }

    fn at_once(&self) -> NonZeroUsize {
        self.at_once
    }

    fn each<'a>(
        &'a self,
        count: usize,
        at_once: NonZeroUsize,
        one: &'a (dyn Fn(usize) -> Task<'a> + Sync),
    ) -> Task<'a> {
        Box::pin(all((0..count).map(one), at_once.get(), drop))
    }
}

fn values<'a>(values: Option<Vec<Bytes>>) -> Option<Vec<Fetched<'a>>> {
    values.map(|values| values.into_iter().map(Fetched::Value).collect())
}

/// Files, which are read into a buffer of the thread that decodes them.
#[derive(Debug)]
pub(super) struct OpenFiles<'s> {
    pub(super) files: &'s Files,
    pub(super) at_once: NonZeroUsize,
}

impl Source for OpenFiles<'_> {
    type Shard = File;

    fn open<'a>(&'a self, key: &'a StoreKey) -> Later<'a, Result<Option<File>>> {
        Box::pin(async { self.files.open(key) })
    }

    fn read<'a>(
        &'a self,
        shard: &'a File,
        ranges: &'a [ByteRange],
        buffer: &'a mut Vec<u8>,
    ) -> Later<'a, Result<Option<Vec<Fetched<'a>>>>> {
        Box::pin(async {
            let read = shard.read(ranges, buffer)?;
            Ok(Some(read.into_iter().map(Fetched::Buffer).collect()))
        })
    }

    fn request_bytes(&self) -> usize {
        // What a thread reads should still be in its cache when it decodes.
        1 << 20
    }

    fn at_once(&self) -> NonZeroUsize {
        self.at_once
    }

    fn each<'a>(
        &'a self,
        count: usize,
        at_once: NonZeroUsize,
        one: &'a (dyn Fn(usize) -> Task<'a> + Sync),
    ) -> Task<'a> {
        Box::pin(async move { threads::each(count, at_once, |number| now(one(number))) })
    }
}

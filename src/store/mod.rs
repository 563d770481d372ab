//! Gives everything above the plan access to stores. Each operation is written once, whether a store blocks
//! or is awaited.
//!
//! An operation on a store is an `async fn` over [`Reads`], [`Writes`] and [`Lists`]; one on the bytes of a
//! value that zarrs hands to a codec is an `async fn` over a kind of [`Handle`]. There are two kinds of both:
//!
//! - **Blocking** ([`Blocking`], [`BlockingHandle`]): each call is done when it returns. Its futures are
//!   ready when they are first polled, so [`now`] runs an operation to its end on the thread of the caller.
//!   So an operation may wait only for its store and its locks.
//! - **Awaited** ([`Awaited`], [`AwaitedHandle`]): the caller polls, on a runtime of its own.
//!
//! The other files have what operations need of a store: ranges of bytes (`ranges.rs`), parts of a value to read (`parts.rs`), directories of a
//! filesystem (`files.rs`), errors of stores that failed or panicked (`failures.rs`), and the order of writers of one process:
//! locks for writers that know the key of their shard, of one adapter ([`KeyLocks`](key_locks::KeyLocks)) or of the
//! process ([`ShardLocks`](shard_locks::ShardLocks)), and a queue for codecs, which do not know the key (`codec_queue.rs`). Processes take turns on shards that are files
//! (`file_turns.rs`), and write parts of such shards in place (`in_place.rs`). `replace.rs` replaces whole
//! files at once, `file_store.rs` is a store of such files, `lock_files.rs` keeps writers of other programs away meanwhile, and `temporary_keys.rs` names the temporaries of stores that rename. `owner.rs` tells processes
//! apart. `lease.rs`, `array_lease.rs` and `object_lease.rs` keep two processes from doing the same work on
//! one array; leases on objects need the requests of `conditional.rs`. `durable.rs` lets names outlast a
//! power failure, and `times.rs` has the times of values.

pub(crate) mod array_lease;
#[cfg(feature = "async")]
mod awaited;
mod blocking;
pub(crate) mod codec_queue;
pub(crate) mod conditional;
pub(crate) mod durable;
mod failures;
pub(crate) mod file_store;
mod file_turns;
pub(crate) mod files;
mod handle;
pub(crate) mod in_place;
pub(crate) mod key_locks;
pub(crate) mod lease;
pub(crate) mod lock_files;
pub(crate) mod object_lease;
pub(crate) mod owner;
pub(crate) mod parts;
pub(crate) mod ranges;
pub(crate) mod replace;
pub(crate) mod shard_locks;
pub(crate) mod temporary_keys;
pub(crate) mod times;

use std::future::Future;

use bytes::Bytes;
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix};

#[cfg(feature = "async")]
pub(crate) use awaited::{Awaited, all};
pub(crate) use blocking::{Blocking, now};
pub use file_turns::hold;
#[cfg(feature = "async")]
pub(crate) use handle::AwaitedHandle;
pub(crate) use handle::{BlockingHandle, Handle};

type Result<T> = std::result::Result<T, StorageError>;

/// A store whose values can be read.
pub(crate) trait Reads: Sync {
    /// Reads a value; `None` if there is no value.
    fn get(&self, key: &StoreKey) -> impl Future<Output = Result<Option<Bytes>>> + Send;

    /// Reads a value of at most `most` bytes; `None` if there is no value.
    ///
    /// If a store can look at a value first, it does not read a value that is longer, or is not a regular
    /// file: it returns an empty value instead.
    fn get_at_most(
        &self,
        key: &StoreKey,
        most: u64,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send {
        let _ = most;
        self.get(key)
    }

    /// Reads several values as [`get_at_most`](Self::get_at_most) does, each by one request. It makes several
    /// requests at once where that helps.
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

    /// Reads parts of a value by one request; `None` if there is no value.
    fn get_ranges(
        &self,
        key: &StoreKey,
        ranges: Vec<ByteRange>,
    ) -> impl Future<Output = Result<Option<Vec<Bytes>>>> + Send;

    /// Returns the size of a value in bytes; `None` if there is no value.
    fn size(&self, key: &StoreKey) -> impl Future<Output = Result<Option<u64>>> + Send;
}

/// A store whose values can be written and erased.
pub(crate) trait Writes: Sync {
    fn set(&self, key: &StoreKey, value: Bytes) -> impl Future<Output = Result<()>> + Send;

    /// Writes several values in any order, several at once where that helps. When a write fails, each of the
    /// other values may have been written or not.
    fn set_each(&self, values: &[(StoreKey, Bytes)]) -> impl Future<Output = Result<()>> + Send {
        async move {
            for (key, value) in values {
                self.set(key, value.clone()).await?;
            }
            Ok(())
        }
    }

    /// Writes parts of a value, each at its offset, by one request.
    fn set_ranges(
        &self,
        key: &StoreKey,
        values: Vec<(u64, Bytes)>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Returns whether the store writes parts of a value without replacing the value.
    fn writes_ranges(&self) -> bool;

    fn erase(&self, key: &StoreKey) -> impl Future<Output = Result<()>> + Send;

    /// Erases several keys in any order, several at once where that helps.
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

/// A store whose keys can be listed.
pub(crate) trait Lists: Sync {
    fn list_prefix(&self, prefix: &StorePrefix) -> impl Future<Output = Result<StoreKeys>> + Send;

    fn list_dir(
        &self,
        prefix: &StorePrefix,
    ) -> impl Future<Output = Result<StoreKeysPrefixes>> + Send;

    /// Returns whether a listing that fails always returns an error. Some stores return an empty list
    /// instead.
    fn returns_each_error(&self) -> bool {
        false
    }
}

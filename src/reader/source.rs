//! Sources of the bytes of shards: any store, or files.

use bytes::Bytes;
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{StorageError, StoreKey};

use super::threads::Later;
use crate::store::Reads;
use crate::store::files::{File, Files};
use crate::store::parts::RangeCost;

/// Bytes that a source returned.
#[derive(Debug)]
pub(super) enum FetchedBytes<'b> {
    /// The bytes are in a buffer that the thread uses again.
    Buffer(&'b [u8]),
    Value(Bytes),
}

impl AsRef<[u8]> for FetchedBytes<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Buffer(bytes) => bytes,
            Self::Value(bytes) => bytes,
        }
    }
}

type Result<T, E = StorageError> = std::result::Result<T, E>;

/// A source of the bytes of shards.
pub(super) trait ShardSource: Sync {
    /// A shard that is being read.
    type Shard: Send + Sync;

    /// Whether an open shard keeps its content when another shard replaces it.
    const STAYS: bool;

    /// Returns about how many bytes of a shard one request should read, where one more range costs `range_cost`.
    fn request_bytes(range_cost: RangeCost) -> usize;

    /// Begins to read a shard. Returns `None` if the shard does not exist; a store may return a shard even
    /// then.
    fn open<'a>(&'a self, key: &'a StoreKey) -> Later<'a, Result<Option<Self::Shard>>>;

    /// Reads ranges of a shard, by one request. Returns `None` if the shard does not exist.
    fn read<'a>(
        &'a self,
        shard: &'a Self::Shard,
        ranges: &'a [ByteRange],
        buffer: &'a mut Vec<u8>,
    ) -> Later<'a, Result<Option<Vec<FetchedBytes<'a>>>>>;

    /// Returns the time that one more range of a request takes. The request is for bytes from `offset` on.
    fn range_cost(&self, shard: &Self::Shard, offset: u64) -> RangeCost;

    /// Returns the size of a shard, in bytes, or `None` if the shard does not exist.
    fn size<'a>(&'a self, shard: &'a Self::Shard) -> Later<'a, Result<Option<u64>>>;
}

/// A store of any kind.
#[derive(Debug)]
pub(super) struct Store<R> {
    pub(super) reads: R,
    pub(super) range_cost: RangeCost,
}

impl<R: Reads> ShardSource for Store<R> {
    type Shard = StoreKey;

    const STAYS: bool = false;

    fn request_bytes(_range_cost: RangeCost) -> usize {
        64 << 20
    }

    fn open<'a>(&'a self, key: &'a StoreKey) -> Later<'a, Result<Option<StoreKey>>> {
        Box::pin(async { Ok(Some(key.clone())) })
    }

    fn read<'a>(
        &'a self,
        shard: &'a StoreKey,
        ranges: &'a [ByteRange],
        _buffer: &'a mut Vec<u8>,
    ) -> Later<'a, Result<Option<Vec<FetchedBytes<'a>>>>> {
        Box::pin(async {
            let values = self.reads.get_ranges(shard, ranges.to_vec()).await?;
            Ok(values.map(|values| values.into_iter().map(FetchedBytes::Value).collect()))
        })
    }

    fn range_cost(&self, _shard: &StoreKey, _offset: u64) -> RangeCost {
        self.range_cost
    }

    fn size<'a>(&'a self, shard: &'a StoreKey) -> Later<'a, Result<Option<u64>>> {
        Box::pin(self.reads.size(shard))
    }
}

/// Reads files into a buffer of the thread that decodes them.
impl ShardSource for Files {
    type Shard = File;

    const STAYS: bool = true;

    /// The bytes that a thread copies from the cache of the system should still be in its own cache when it decodes
    /// them. A disk is faster by long requests.
    fn request_bytes(range_cost: RangeCost) -> usize {
        if range_cost < RangeCost::DISK {
            256 << 10
        } else {
            1 << 20
        }
    }

    fn open<'a>(&'a self, key: &'a StoreKey) -> Later<'a, Result<Option<File>>> {
        Box::pin(async { Files::open(self, key) })
    }

    fn read<'a>(
        &'a self,
        shard: &'a File,
        ranges: &'a [ByteRange],
        buffer: &'a mut Vec<u8>,
    ) -> Later<'a, Result<Option<Vec<FetchedBytes<'a>>>>> {
        Box::pin(async {
            let read = shard.read(ranges, buffer)?;
            Ok(Some(read.into_iter().map(FetchedBytes::Buffer).collect()))
        })
    }

    fn range_cost(&self, shard: &File, offset: u64) -> RangeCost {
        if shard.is_cached(offset) {
            RangeCost::CACHED
        } else {
            RangeCost::DISK
        }
    }

    fn size<'a>(&'a self, shard: &'a File) -> Later<'a, Result<Option<u64>>> {
        Box::pin(async { shard.size().map(Some) })
    }
}

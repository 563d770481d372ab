//! Sources of the bytes of shards: any store, or files.

use std::ops::Range;

use bytes::Bytes;
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{StorageError, StoreKey};

use super::threads::Later;
use crate::plan::{DeviceSlab, DeviceSlabs};
use crate::store::Reads;
use crate::store::files::{File, Files};
use crate::store::parts::RangeCost;
use zarrs_cuda_engine::contract::EncodedBytes;

/// The memory into which a source reads, if it does not return memory of its own.
#[derive(Debug)]
pub(super) struct ReadInto<'b> {
    /// A buffer that the thread uses again.
    pub(super) buffer: &'b mut Vec<u8>,
    /// Page-locked memory, which is better if it has room; `None` if no device gets the bytes.
    pub(super) slabs: Option<&'b DeviceSlabs>,
}

impl<'b> ReadInto<'b> {
    pub(super) fn buffer(buffer: &'b mut Vec<u8>) -> Self {
        let slabs = None;
        Self { buffer, slabs }
    }
}

/// Bytes that a source returned.
#[derive(Debug)]
pub(super) enum FetchedBytes<'b> {
    /// The bytes are in a buffer that the thread uses again.
    Buffer(&'b [u8]),
    Value(Bytes),
    /// The bytes are in page-locked memory.
    Slab(EncodedBytes),
}

/// The encoded bytes of a subchunk that a device is to get.
#[derive(Debug)]
pub(super) enum SubchunkBytes<'b> {
    /// The bytes stay where they are.
    Kept(EncodedBytes),
    /// The bytes are to be copied.
    Borrowed(&'b [u8]),
}

impl SubchunkBytes<'_> {
    pub(super) fn get(&self) -> &[u8] {
        match self {
            Self::Kept(bytes) => bytes.get(),
            Self::Borrowed(bytes) => bytes,
        }
    }
}

impl FetchedBytes<'_> {
    /// Returns the bytes `range`; `None` if there are fewer. A value may be a small part of its memory, so that it is not
    /// kept.
    pub(super) fn part(&self, range: Range<usize>) -> Option<SubchunkBytes<'_>> {
        match self {
            Self::Slab(bytes) => bytes.part(range).map(SubchunkBytes::Kept),
            Self::Value(_) | Self::Buffer(_) => {
                self.as_ref().get(range).map(SubchunkBytes::Borrowed)
            }
        }
    }
}

impl AsRef<[u8]> for FetchedBytes<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Buffer(bytes) => bytes,
            Self::Value(bytes) => bytes,
            Self::Slab(bytes) => bytes.get(),
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
        into: ReadInto<'a>,
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
        _into: ReadInto<'a>,
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

/// Reads files into a buffer of the thread that decodes them, or into memory for a device.
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
        into: ReadInto<'a>,
    ) -> Later<'a, Result<Option<Vec<FetchedBytes<'a>>>>> {
        Box::pin(async move {
            if let Some(slabs) = into.slabs {
                let (ranges, len) = shard.find(ranges)?;
                if let Some(slab) = slabs.take(len) {
                    return read_to_slab(shard, &ranges, slab).map(Some);
                }
            }
            let read = shard.read(ranges, into.buffer)?;
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

/// Reads ranges of a file into page-locked memory, one after the other. Returns the bytes of each range.
fn read_to_slab(
    shard: &File,
    ranges: &[Range<u64>],
    mut slab: DeviceSlab,
) -> Result<Vec<FetchedBytes<'static>>> {
    let read = shard.read_to(ranges, slab.bytes_mut())?;
    let lens: Vec<usize> = read.iter().map(|bytes| bytes.len()).collect();
    let (all, mut end) = (slab.into_bytes(), 0);
    let parts = lens.into_iter().map(|len| {
        end += len;
        let part = all.part(end - len..end);
        part.map(FetchedBytes::Slab)
            .ok_or_else(|| shard.no_memory(len as u64))
    });
    parts.collect()
}

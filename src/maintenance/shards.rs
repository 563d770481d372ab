//! Maintenance of the shards of an array.

use std::sync::Arc;

use zarrs::array::Array;
#[cfg(feature = "async")]
use zarrs_storage::AsyncReadableWritableStorageTraits;
use zarrs_storage::{ReadableStorageTraits, ReadableWritableStorageTraits, StoreKey};

#[cfg(feature = "async")]
use super::compact::async_compact;
use super::compact::{Compaction, compact, compact_in};
use super::format::ShardFormat;
#[cfg(feature = "async")]
use super::inspect::async_inspect;
use super::inspect::{Inspection, inspect};
use super::io::failed;
#[cfg(feature = "async")]
use super::recover::async_recover;
use super::recover::{Recovery, recover};
#[cfg(feature = "async")]
use super::verify::async_verify;
use super::verify::{Verification, verify, verify_in_pieces};
use crate::codec::find;
use crate::layout::RECORD_LEN;
#[cfg(feature = "async")]
use crate::store::Awaited;
use crate::store::ranges::Merged;
use crate::store::{Blocking, Reads, Writes, now};
use crate::{CudaShardingCodec, Error, WriteStrategy};

/// The shards of an array, each named by its chunk indices, in the array's own storage.
///
/// ```
/// # use std::sync::Arc;
/// # use zarrs::array::{Array, ArrayBuilder, data_type};
/// # let store = Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = ArrayBuilder::new(vec![64, 64], vec![32, 32], data_type::uint16(), 0u16);
/// # builder.subchunk_shape(vec![8, 8]);
/// # let array = builder.build(store, "/volume")?;
/// array.store_chunk(&[0, 1], vec![1_u16; 32 * 32])?;
/// let shards = zarrs_cuda::maintenance::Shards::of(&array)?;
/// println!("{}", shards.recover(&[0, 1])?);
/// for (shard, compaction) in shards.compact_pending()? {
///     println!("{shard:?}: {} -> {} bytes", compaction.before, compaction.after);
/// }
/// # assert_eq!(shards.stored()?, [(vec![0, 1], shards.inspect(&[0, 1])?.unwrap().size)]);
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Shards<'a, S: ?Sized> {
    array: &'a Array<S>,
    codec: Arc<CudaShardingCodec>,
}

impl<'a, S: ?Sized> Shards<'a, S> {
    /// Returns the shards of `array`, which this crate's codec or zarrs' own encodes.
    ///
    /// # Errors
    /// [`Error::NotShards`] if the array is not sharded, or if bytes-to-bytes codecs encode its
    /// shards once more.
    pub fn of(array: &'a Array<S>) -> Result<Self, Error> {
        let codec = find::of_array(array)?;
        Ok(Self { array, codec })
    }

    fn find(&self, shard: &[u64]) -> Result<(StoreKey, ShardFormat), Error> {
        let format = ShardFormat::of_codec(self.codec.clone(), self.array, shard)?;
        Ok((self.array.chunk_key(shard), format))
    }

    async fn stored_in<O: Reads>(&self, store: &O) -> Result<Vec<(Vec<u64>, u64)>, Error> {
        let mut stored = Vec::new();
        for shard in every_index(self.array.chunk_grid_shape()) {
            if let Some(size) = self.size_in(store, &shard).await? {
                stored.push((shard, size));
            }
        }
        Ok(stored)
    }

    async fn pending_in<O: Reads>(&self, store: &O) -> Result<Vec<Vec<u64>>, Error> {
        let mut pending = Vec::new();
        if self.codec.options().write_strategy() == WriteStrategy::Slots {
            return Ok(pending);
        }
        for shard in every_index(self.array.chunk_grid_shape()) {
            if let Some(size) = self.size_in(store, &shard).await?
                && self.is_pending(store, &shard, size).await?
            {
                pending.push(shard);
            }
        }
        Ok(pending)
    }

    async fn compact_pending_in<O: Reads + Writes>(
        &self,
        store: &O,
    ) -> Result<Vec<(Vec<u64>, Compaction)>, Error> {
        let mut compacted = Vec::new();
        for shard in self.pending_in(store).await? {
            let (key, format) = self.find(&shard)?;
            if let Some(compaction) = compact_in(store, &key, &format).await? {
                compacted.push((shard, compaction));
            }
        }
        Ok(compacted)
    }

    /// The size of a shard in bytes, if it is stored.
    async fn size_in<O: Reads>(&self, store: &O, shard: &[u64]) -> Result<Option<u64>, Error> {
        let key = self.array.chunk_key(shard);
        let size = store.size(&key).await;
        size.map_err(failed("find the size of", &key))
    }

    /// Whether a shard of `size` bytes should be compacted.
    async fn is_pending<O: Reads>(
        &self,
        store: &O,
        shard: &[u64],
        size: u64,
    ) -> Result<bool, Error> {
        let limit = self.codec.options().max_dead_fraction();
        let Some(unused) = self.unused_in(store, shard, size).await? else {
            return Ok(false);
        };
        let (_, format) = self.find(shard)?;
        #[allow(clippy::cast_precision_loss, reason = "a fraction")]
        let is_too_much = unused as f64 > limit * size as f64;
        Ok(is_too_much && unused > (RECORD_LEN + format.shards().index.len()) as u64)
    }

    /// The unused bytes of a shard of `size` bytes, by its index. `None` if the index is invalid.
    async fn unused_in<O: Reads>(
        &self,
        store: &O,
        shard: &[u64],
        size: u64,
    ) -> Result<Option<u64>, Error> {
        let (key, format) = self.find(shard)?;
        let shards = format.shards();
        let range = usize::try_from(size).ok();
        let Some(place) = range.and_then(|size| shards.index.range_in(size)) else {
            return Ok(None);
        };
        let ranges = vec![shards.index.byte_range()];
        let index = store.get_ranges(&key, ranges).await;
        let index = index.map_err(failed("read the index of", &key))?;
        let Some(index) = index.and_then(|mut index| index.pop()) else {
            return Ok(None);
        };
        let Ok(entries) = shards.entries(&index, size) else {
            return Ok(None);
        };
        let used = entries.iter().flatten().chain([place]);
        let used = used.map(|range| range.start as u64..range.end as u64);
        Ok(Some(size - Merged::of(used).total()))
    }

    async fn usage_in<O: Reads>(&self, store: &O, shard: &[u64]) -> Result<Option<Usage>, Error> {
        let Some(size) = self.size_in(store, shard).await? else {
            return Ok(None);
        };
        let unused = self.unused_in(store, shard, size).await?;
        Ok(Some(Usage { size, unused }))
    }
}

/// How many bytes of a shard are used, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The size of the shard in bytes.
    pub size: u64,
    /// The number of bytes that neither the index nor a subchunk uses. `None` if the index is invalid.
    pub unused: Option<u64>,
}

impl<S: ReadableStorageTraits + ?Sized> Shards<'_, S> {
    /// Inspects the shard with the chunk indices `shard`: see [`inspect`](inspect()).
    ///
    /// # Errors
    /// As for [`inspect`](inspect()) and [`ShardFormat::of`].
    pub fn inspect(&self, shard: &[u64]) -> Result<Option<Inspection>, Error> {
        let (key, format) = self.find(shard)?;
        inspect(&*self.array.storage(), &key, &format)
    }

    /// Returns the chunk indices of the stored shards, and the size of each in bytes.
    ///
    /// Sends one request for each shard of the grid.
    ///
    /// # Errors
    /// [`Error::Storage`] if the store fails.
    pub fn stored(&self) -> Result<Vec<(Vec<u64>, u64)>, Error> {
        now(self.stored_in(&Blocking::new(&*self.array.storage())))
    }

    /// Returns the chunk indices of the shards to compact: a larger part of them is unused than
    /// [`Options::max_dead_fraction`](crate::Options::max_dead_fraction) allows, and more bytes
    /// than one update needs. Under [`WriteStrategy::Slots`] there are none, because unused bytes
    /// do not add up.
    ///
    /// Asks the store for the size of each shard of the grid, and for the index of each stored
    /// shard. Shards with an invalid index are left out: [`recover`](Self::recover) them.
    ///
    /// # Errors
    /// [`Error::Storage`] if the store fails.
    pub fn pending(&self) -> Result<Vec<Vec<u64>>, Error> {
        now(self.pending_in(&Blocking::new(&*self.array.storage())))
    }

    /// Verifies the shard with the chunk indices `shard`: see [`verify`](verify()).
    ///
    /// # Errors
    /// As for [`verify`](verify()) and [`ShardFormat::of`].
    pub fn verify(&self, shard: &[u64]) -> Result<Option<Verification>, Error> {
        let (key, format) = self.find(shard)?;
        verify(&*self.array.storage(), &key, &format)
    }

    /// Verifies the shard with the chunk indices `shard` as [`verify`](Self::verify) does, but reads at
    /// most `bytes` bytes of it together, or one subchunk, and decodes at most `at_once` subchunks at
    /// once. So it takes little memory, however large the shard is.
    ///
    /// Returns `None` if the shard is not stored, and if only the whole shard can say whether it is
    /// damaged: its index has no checksum or is invalid, or an update of it was interrupted.
    ///
    /// # Errors
    /// As for [`verify`](verify()) and [`ShardFormat::of`].
    pub fn verify_in_pieces(
        &self,
        shard: &[u64],
        bytes: u64,
        at_once: usize,
    ) -> Result<Option<Verification>, Error> {
        let (key, format) = self.find(shard)?;
        let storage = self.array.storage();
        let store = Blocking::new(&*storage);
        now(verify_in_pieces(&store, &key, &format, bytes, at_once))
    }

    /// Returns how many bytes of the shard with the chunk indices `shard` are used. Returns `None` if
    /// it is not stored.
    ///
    /// Sends two requests: for the size of the shard, and for its index.
    ///
    /// # Errors
    /// [`Error::Storage`] if the store fails, and as for [`ShardFormat::of`].
    pub fn usage(&self, shard: &[u64]) -> Result<Option<Usage>, Error> {
        now(self.usage_in(&Blocking::new(&*self.array.storage()), shard))
    }
}

impl<S: ReadableWritableStorageTraits + ?Sized> Shards<'_, S> {
    /// Compacts the shard with the chunk indices `shard`: see [`compact`](compact()).
    ///
    /// # Errors
    /// As for [`compact`](compact()) and [`ShardFormat::of`].
    pub fn compact(&self, shard: &[u64]) -> Result<Option<Compaction>, Error> {
        let (key, format) = self.find(shard)?;
        compact(&*self.array.storage(), &key, &format)
    }

    /// Recovers the shard with the chunk indices `shard`: see [`recover`](recover()).
    ///
    /// # Errors
    /// As for [`recover`](recover()) and [`ShardFormat::of`].
    pub fn recover(&self, shard: &[u64]) -> Result<Recovery, Error> {
        let (key, format) = self.find(shard)?;
        recover(&*self.array.storage(), &key, &format)
    }

    /// Compacts the [pending](Self::pending) shards, and returns what that did to each: see
    /// [`compact`](compact()).
    ///
    /// # Errors
    /// As for [`pending`](Self::pending) and [`compact`](compact()). Shards before the one that
    /// failed have been compacted.
    pub fn compact_pending(&self) -> Result<Vec<(Vec<u64>, Compaction)>, Error> {
        now(self.compact_pending_in(&Blocking::new(&*self.array.storage())))
    }
}

/// The same, in an asynchronous store.
#[cfg(feature = "async")]
impl<S: AsyncReadableWritableStorageTraits + ?Sized> Shards<'_, S> {
    /// [`compact`](Self::compact) for an asynchronous store.
    ///
    /// # Errors
    /// As for [`compact`](Self::compact).
    pub async fn async_compact(&self, shard: &[u64]) -> Result<Option<Compaction>, Error> {
        let (key, format) = self.find(shard)?;
        async_compact(&*self.array.storage(), &key, &format).await
    }

    /// [`recover`](Self::recover) for an asynchronous store.
    ///
    /// # Errors
    /// As for [`recover`](Self::recover).
    pub async fn async_recover(&self, shard: &[u64]) -> Result<Recovery, Error> {
        let (key, format) = self.find(shard)?;
        async_recover(&*self.array.storage(), &key, &format).await
    }

    /// [`inspect`](Self::inspect) for an asynchronous store.
    ///
    /// # Errors
    /// As for [`inspect`](Self::inspect).
    pub async fn async_inspect(&self, shard: &[u64]) -> Result<Option<Inspection>, Error> {
        let (key, format) = self.find(shard)?;
        async_inspect(&*self.array.storage(), &key, &format).await
    }

    /// [`verify`](Self::verify) for an asynchronous store.
    ///
    /// # Errors
    /// As for [`verify`](Self::verify).
    pub async fn async_verify(&self, shard: &[u64]) -> Result<Option<Verification>, Error> {
        let (key, format) = self.find(shard)?;
        async_verify(&*self.array.storage(), &key, &format).await
    }

    /// [`usage`](Self::usage) for an asynchronous store.
    ///
    /// # Errors
    /// As for [`usage`](Self::usage).
    pub async fn async_usage(&self, shard: &[u64]) -> Result<Option<Usage>, Error> {
        self.usage_in(&Awaited(&*self.array.storage()), shard).await
    }

    /// [`stored`](Self::stored) for an asynchronous store, with one request after the other.
    ///
    /// # Errors
    /// As for [`stored`](Self::stored).
    pub async fn async_stored(&self) -> Result<Vec<(Vec<u64>, u64)>, Error> {
        self.stored_in(&Awaited(&*self.array.storage())).await
    }

    /// [`pending`](Self::pending) for an asynchronous store, with one request after the other.
    ///
    /// # Errors
    /// As for [`pending`](Self::pending).
    pub async fn async_pending(&self) -> Result<Vec<Vec<u64>>, Error> {
        self.pending_in(&Awaited(&*self.array.storage())).await
    }

    /// [`compact_pending`](Self::compact_pending) for an asynchronous store, one shard after the other.
    ///
    /// # Errors
    /// As for [`compact_pending`](Self::compact_pending).
    pub async fn async_compact_pending(&self) -> Result<Vec<(Vec<u64>, Compaction)>, Error> {
        let storage = self.array.storage();
        self.compact_pending_in(&Awaited(&*storage)).await
    }
}

/// The indices in a grid of `shape`, in C order.
fn every_index(shape: &[u64]) -> impl Iterator<Item = Vec<u64>> {
    let first = (!shape.contains(&0)).then(|| vec![0; shape.len()]);
    std::iter::successors(first, move |indices| {
        let mut next = indices.clone();
        for (index, &count) in next.iter_mut().zip(shape).rev() {
            *index += 1;
            if *index < count {
                return Some(next);
            }
            *index = 0;
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::every_index;

    #[test]
    fn indices_are_in_c_order() {
        let all: Vec<_> = every_index(&[2, 1, 2]).collect();
        assert_eq!(all, [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]);
        assert_eq!(every_index(&[2, 0]).count(), 0);
        assert_eq!(every_index(&[]).count(), 1);
    }
}

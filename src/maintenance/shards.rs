//! Maintenance of the shards of an array.

use std::sync::Arc;

use zarrs::array::Array;
use zarrs_storage::{ReadableWritableStorageTraits, StoreKey};

use super::areas::Areas;
use super::io::failed;
use super::{Compaction, Inspection, Recovery, ShardFormat, compact, inspect, recover};
use crate::codec::find;
use crate::layout::RECORD_LEN;
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
/// let shards = zarrs_cuda::Shards::of(&array)?;
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

impl<'a, S: ReadableWritableStorageTraits + ?Sized> Shards<'a, S> {
    /// Returns the shards of `array`, which this crate's codec or zarrs' own encodes.
    ///
    /// # Errors
    /// [`Error::NotShards`] if the array is not sharded, or if bytes-to-bytes codecs encode its
    /// shards once more.
    pub fn of(array: &'a Array<S>) -> Result<Self, Error> {
        let codec = find::of_array(array)?;
        Ok(Self { array, codec })
    }

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
        self.each().collect()
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
        if self.codec.options().write_strategy() == WriteStrategy::Slots {
            return Ok(Vec::new());
        }
        let is_pending = |stored: Result<(Vec<u64>, u64), Error>| match stored {
            Ok((shard, size)) => match self.is_pending(&shard, size) {
                Ok(true) => Some(Ok(shard)),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            },
            Err(error) => Some(Err(error)),
        };
        self.each().filter_map(is_pending).collect()
    }

    /// Compacts the [pending](Self::pending) shards, and returns what that did to each: see
    /// [`compact`](compact()).
    ///
    /// # Errors
    /// As for [`pending`](Self::pending) and [`compact`](compact()). Shards before the one that
    /// failed have been compacted.
    pub fn compact_pending(&self) -> Result<Vec<(Vec<u64>, Compaction)>, Error> {
        let mut compacted = Vec::new();
        for shard in self.pending()? {
            if let Some(compaction) = self.compact(&shard)? {
                compacted.push((shard, compaction));
            }
        }
        Ok(compacted)
    }

    fn find(&self, shard: &[u64]) -> Result<(StoreKey, ShardFormat), Error> {
        let format = ShardFormat::of_codec(self.codec.clone(), self.array, shard)?;
        Ok((self.array.chunk_key(shard), format))
    }

    /// The stored shards of the grid, in C order.
    fn each(&self) -> impl Iterator<Item = Result<(Vec<u64>, u64), Error>> {
        let storage = self.array.storage();
        every_index(self.array.chunk_grid_shape()).filter_map(move |shard| {
            let key = self.array.chunk_key(&shard);
            match storage.size_key(&key) {
                Ok(size) => size.map(|size| Ok((shard, size))),
                Err(error) => Some(Err(failed("find the size of", &key)(error))),
            }
        })
    }

    /// Whether a shard of `size` bytes should be compacted.
    fn is_pending(&self, shard: &[u64], size: u64) -> Result<bool, Error> {
        let (key, format) = self.find(shard)?;
        let shards = format.shards();
        let range = usize::try_from(size).ok();
        let Some(place) = range.and_then(|size| shards.index.range_in(size)) else {
            return Ok(false);
        };
        let storage = self.array.storage();
        let index = storage.get_partial(&key, shards.index.byte_range());
        let Some(index) = index.map_err(failed("read the index of", &key))? else {
            return Ok(false);
        };
        let Ok(entries) = shards.entries(&index, size) else {
            return Ok(false);
        };
        let used = entries.iter().flatten().chain([place]);
        let used = used.map(|range| range.start as u64..range.end as u64);
        let unused = size - Areas::of(used).len();
        #[allow(clippy::cast_precision_loss, reason = "a fraction")]
        let is_too_much = unused as f64 > self.codec.options().max_dead_fraction() * size as f64;
        Ok(is_too_much && unused > (RECORD_LEN + shards.index.len()) as u64)
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

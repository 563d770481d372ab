//! Maps each chunk to the shard in which it lies.

use zarrs::plugin::PluginCreateError;

use super::chunk_keys::ChunkKey;
use zarrs_cuda_engine::layout::c_order;

/// A regular grid of chunks, in shards of equally many chunks along each axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShardGrid {
    /// The number of chunks in a shard along each axis, at least one.
    counts: Vec<usize>,
    len: usize,
}

impl ShardGrid {
    /// Makes a grid of shards with this number of chunks along each axis.
    ///
    /// # Errors
    /// [`PluginCreateError::Other`] if a count is zero, or a shard has more chunks than this machine
    /// can address.
    pub(super) fn new(chunks_per_shard: &[u64]) -> Result<Self, PluginCreateError> {
        let unusable = |reason: &str| {
            PluginCreateError::Other(format!("chunks_per_shard {chunks_per_shard:?} {reason}"))
        };
        if chunks_per_shard.contains(&0) {
            return Err(unusable(
                "has a zero: a shard has at least one chunk along each axis",
            ));
        }
        let counts = chunks_per_shard
            .iter()
            .map(|&count| usize::try_from(count).ok());
        let counts: Option<Vec<usize>> = counts.collect();
        let too_many = || unusable("are more chunks than this machine can address");
        let counts = counts.ok_or_else(too_many)?;
        // The index must be addressable, too: an entry has 16 bytes, and a checksum can follow.
        let len = counts
            .iter()
            .try_fold(1_usize, |len, &count| len.checked_mul(count));
        let len = len.filter(|&len| isize::try_from(len).is_ok_and(|len| len < isize::MAX / 32));
        Ok(Self {
            len: len.ok_or_else(too_many)?,
            counts,
        })
    }

    /// Returns the number of chunks in a shard.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of chunks in a shard along each axis.
    pub(super) fn counts(&self) -> &[usize] {
        &self.counts
    }

    /// Returns the shard of a chunk, and the chunk's number in it, in C order.
    pub(super) fn shard_of(&self, chunk: &ChunkKey) -> (ChunkKey, usize) {
        let split = chunk.coordinates.iter().zip(&self.counts);
        let (shard, within): (Vec<u64>, Vec<usize>) = split
            .map(|(&at, &count)| {
                let count = count as u64;
                // The remainder is less than `count`, which is a `usize`.
                (at / count, usize::try_from(at % count).unwrap_or(0))
            })
            .unzip();
        let shard = ChunkKey {
            encoding: chunk.encoding,
            coordinates: shard,
        };
        (shard, c_order::number(within, self.counts.iter().copied()))
    }

    /// Returns the chunk with `number` in `shard`; `None` if a coordinate of the chunk would overflow.
    pub(super) fn chunk(&self, shard: &ChunkKey, number: usize) -> Option<ChunkKey> {
        let within = c_order::coordinates(number, &self.counts);
        let coordinates = shard.coordinates.iter().zip(&self.counts).zip(within);
        let coordinates = coordinates.map(|((&shard, &count), within)| {
            shard.checked_mul(count as u64)?.checked_add(within as u64)
        });
        Some(ChunkKey {
            encoding: shard.encoding,
            coordinates: coordinates.collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::chunk_keys::KeyEncoding;
    use super::*;

    fn at(coordinates: &[u64]) -> ChunkKey {
        ChunkKey {
            encoding: KeyEncoding::Default('/'),
            coordinates: coordinates.to_vec(),
        }
    }

    #[test]
    fn chunks_and_shards() {
        let grid = ShardGrid::new(&[32, 2]).unwrap();
        assert_eq!(grid.len(), 64);
        assert_eq!(grid.shard_of(&at(&[96, 18])), (at(&[3, 9]), 0));
        assert_eq!(grid.shard_of(&at(&[127, 19])), (at(&[3, 9]), 63));
        for number in 0..64 {
            let chunk = grid.chunk(&at(&[3, 9]), number).unwrap();
            assert_eq!(grid.shard_of(&chunk), (at(&[3, 9]), number));
        }
        assert_eq!(grid.chunk(&at(&[u64::MAX, 0]), 0), None);
    }

    #[test]
    fn no_axes_are_one_chunk() {
        let grid = ShardGrid::new(&[]).unwrap();
        assert_eq!(grid.len(), 1);
        assert_eq!(grid.shard_of(&at(&[])), (at(&[]), 0));
        assert_eq!(grid.chunk(&at(&[]), 0), Some(at(&[])));
    }

    #[test]
    fn unusable_counts() {
        for counts in [&[2, 0][..], &[u64::MAX, 2], &[1 << 40, 1 << 40], &[1 << 60]] {
            assert!(ShardGrid::new(counts).is_err(), "{counts:?}");
        }
    }
}

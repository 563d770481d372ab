//! Places encoded chunks in the bytes of a shard.

use std::borrow::Cow;
use std::io::{self, ErrorKind};
use std::num::NonZeroU64;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use zarrs::array::codec::ShardingIndexLocation;
use zarrs::metadata::v3::MetadataV3;
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{StorageError, StoreKey};

use super::shard_grid::ShardGrid;
use crate::error::Error;
use crate::shard::error::sourced;
use crate::shard::packed::of_encoded_subchunks;
use crate::shard::sharding::Sharding;
use crate::shard::stored;
use zarrs_cuda_engine::layout::{Entries, Extent};

/// The most chunks of a shard. Their index takes 256 MiB.
pub(super) const MAX_CHUNKS: usize = 1 << 24;

/// The most bytes of a shard that are read without asking for the size of the shard first. An index may be
/// wrong, and stores allocate as many bytes as they are asked for.
pub(super) const UNCHECKED: u64 = 16 << 20;

/// The layout of encoded chunks in the bytes of a shard. It depends on the codec of the shard, and not on the
/// content of the chunks.
#[derive(Clone, Debug)]
pub(super) struct ChunkLayout {
    shards: Arc<Sharding>,
}

impl ChunkLayout {
    /// Returns the layout of the chunks in `shards`.
    ///
    /// # Errors
    /// - [`Error::Codec`] if the index codecs cannot encode an index.
    /// - [`Error::NotShards`] if a shard has more than [`MAX_CHUNKS`] chunks.
    pub(super) fn of(shards: Arc<Sharding>) -> Result<Self, Error> {
        shards.index.check_codecs()?;
        let chunks = shards.grid.num_subchunks();
        if chunks > MAX_CHUNKS {
            return Err(Error::NotShards {
                reason: format!(
                    "a shard has {chunks} subchunks, more than the {MAX_CHUNKS} that one can have here"
                ),
            });
        }
        Ok(Self { shards })
    }

    /// Returns the `indexed` binary format of the sharding storage transformer draft: an index of
    /// little-endian integers at the end. `checksum` says whether a CRC32C follows the index. With a
    /// checksum, shards are those of the codec `sharding_indexed`.
    ///
    /// # Errors
    /// [`Error::Create`] and [`Error::Codec`], which cannot happen: these codecs always exist.
    pub(super) fn indexed(grid: &ShardGrid, checksum: bool) -> Result<Self, Error> {
        let endian = json!({ "name": "bytes", "configuration": { "endian": "little" } });
        let mut index_codecs: Vec<MetadataV3> =
            vec![serde_json::from_value(endian).map_err(sourced)?];
        if checksum {
            index_codecs.push(MetadataV3::new("crc32c"));
        }
        let counts = grid.counts().iter();
        let counts: Result<Vec<NonZeroU64>, _> = counts
            .map(|&count| NonZeroU64::try_from(count as u64))
            .collect();
        let counts = counts.map_err(sourced)?;
        let (_, shards) = of_encoded_subchunks(&counts, &index_codecs, ShardingIndexLocation::End)?;
        Self::of(shards)
    }

    /// Returns the size of an encoded index, in bytes.
    pub(super) fn index_len(&self) -> usize {
        self.shards.index.len()
    }

    /// Returns the range of bytes that the index of a shard has.
    pub(super) fn index_range(&self) -> ByteRange {
        self.shards.index.byte_range()
    }

    /// Returns the extent of each chunk of the shard at `key`, from its encoded index. The shard has at most
    /// `limit` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] if the index is invalid, or a chunk ends beyond `limit`.
    pub(super) fn extents(
        &self,
        key: &StoreKey,
        index: &[u8],
        limit: u64,
    ) -> Result<Vec<Extent>, StorageError> {
        let entries = self.entries(key, index, limit)?;
        Ok(entries.iter().collect())
    }

    fn entries<'b>(
        &self,
        key: &StoreKey,
        index: &'b [u8],
        limit: u64,
    ) -> Result<Entries<'b>, StorageError> {
        let options = stored::options();
        let entries = self
            .shards
            .index
            .decode(Cow::Borrowed(index), limit, &options);
        entries
            .map_err(|error| damaged(format!("the index of the shard {key} is invalid: {error}")))
    }

    /// Returns the chunks of the shard at `key`, whose bytes are `object`, in C order.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] if `object` is shorter than its index, or the index is invalid.
    pub(super) fn chunks(
        &self,
        key: &StoreKey,
        object: &Bytes,
    ) -> Result<Vec<Option<Bytes>>, StorageError> {
        let index = self.shards.index.of(object).map_err(|error| {
            damaged(format!("cannot find the index of the shard {key}: {error}"))
        })?;
        let entries = self.entries(key, index, object.len() as u64)?;
        // The extents are within the object, as was checked when the index was decoded.
        let chunk = |extent: Extent| extent.map(|extent| object.slice(extent));
        Ok(entries.iter().map(chunk).collect())
    }

    /// Returns a shard for `key` with `chunks`, in C order, one after the other; `None` if all chunks are
    /// empty.
    ///
    /// # Errors
    /// [`StorageError::Other`] if the memory cannot be allocated.
    pub(super) fn pack(
        &self,
        key: &StoreKey,
        chunks: &[Option<Bytes>],
    ) -> Result<Option<Bytes>, StorageError> {
        if chunks.iter().all(Option::is_none) {
            return Ok(None);
        }
        let chunks: Vec<Option<&[u8]>> = chunks.iter().map(Option::as_deref).collect();
        let packed = self.shards.pack(&chunks, usize::MAX, &stored::options());
        packed.map(|shard| Some(shard.into())).map_err(|error| {
            StorageError::Other(format!("cannot put together the shard {key}: {error}"))
        })
    }
}

/// Returns an error about damaged bytes in a store that itself works.
fn damaged(what: String) -> StorageError {
    io::Error::new(ErrorKind::InvalidData, what).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> StoreKey {
        StoreKey::new("a/c/3/9").unwrap()
    }

    /// "The index is placed at the end of the file and has a size of 16 bytes multiplied by the number of
    /// chunks in a shard […]. The index holds an `offset, nbytes` pair of little-endian uint64 per chunk,
    /// the chunks-order in the index is row-major (C) order […]. Empty chunks are denoted by setting both
    /// offset and nbytes to `2^64 - 1`."
    #[test]
    fn the_indexed_format_of_the_draft() {
        let grid = ShardGrid::new(&[2, 2]).unwrap();
        let chunks = [Some(&b"abc"[..]), None, Some(b""), Some(b"de")];
        let chunks = chunks.map(|chunk| chunk.map(Bytes::from_static));
        let mut expected = b"abcde".to_vec();
        for word in [0, 3, u64::MAX, u64::MAX, 3, 0, 3, 2] {
            expected.extend(u64::to_le_bytes(word));
        }
        for checksum in [false, true] {
            let layout = ChunkLayout::indexed(&grid, checksum).unwrap();
            if checksum {
                let crc = crc32c::crc32c(&expected[5..]);
                expected.extend(crc.to_le_bytes());
            }
            let packed = layout.pack(&key(), &chunks).unwrap().unwrap();
            assert_eq!(packed, expected);
            assert_eq!(layout.index_len(), 64 + if checksum { 4 } else { 0 });
            assert_eq!(layout.chunks(&key(), &packed).unwrap(), chunks);
            assert_eq!(
                layout.pack(&key(), &[None, None, None, None]).unwrap(),
                None
            );
        }
    }

    #[test]
    fn invalid_shards_are_errors() {
        let grid = ShardGrid::new(&[2]).unwrap();
        let layout = ChunkLayout::indexed(&grid, true).unwrap();
        let chunks = [
            Some(Bytes::from_static(b"abc")),
            Some(Bytes::from_static(b"d")),
        ];
        let packed = layout.pack(&key(), &chunks).unwrap().unwrap();
        for len in 0..packed.len() {
            assert!(layout.chunks(&key(), &packed.slice(..len)).is_err());
        }
        for at in 4..packed.len() {
            let mut flipped = packed.to_vec();
            flipped[at] ^= 0x10;
            let error = layout.chunks(&key(), &flipped.into()).unwrap_err();
            assert!(error.to_string().contains("a/c/3/9"), "{error}");
        }
    }
}

//! Reads and writes the index of a shard without a codec.

use serde_json::{Value, json};
use zarrs::array::codec::ShardingIndexLocation;

/// The entry of a subchunk that is not stored.
pub const EMPTY: [u64; 2] = [u64::MAX; 2];

/// The location of the index, and the encoding of its words.
#[derive(Clone, Copy, Debug)]
pub struct IndexLayout {
    pub location: ShardingIndexLocation,
    pub big_endian: bool,
    pub checksum: bool,
}

impl Default for IndexLayout {
    fn default() -> Self {
        Self {
            location: ShardingIndexLocation::End,
            big_endian: false,
            checksum: true,
        }
    }
}

impl IndexLayout {
    /// The index codecs' metadata.
    pub fn codecs(self) -> Vec<Value> {
        let endian = if self.big_endian { "big" } else { "little" };
        let mut codecs = vec![json!({ "name": "bytes", "configuration": { "endian": endian } })];
        if self.checksum {
            codecs.push(json!({ "name": "crc32c" }));
        }
        codecs
    }

    /// The size of an encoded index, in bytes.
    pub fn size(self, num_subchunks: usize) -> usize {
        16 * num_subchunks + if self.checksum { 4 } else { 0 }
    }

    /// Encodes an index.
    pub fn encode(self, entries: &[[u64; 2]]) -> Vec<u8> {
        let to_bytes = if self.big_endian {
            u64::to_be_bytes
        } else {
            u64::to_le_bytes
        };
        let words = entries.iter().flatten();
        let mut index: Vec<u8> = words.flat_map(|&word| to_bytes(word)).collect();
        if self.checksum {
            index.extend(crc32c::crc32c(&index).to_le_bytes());
        }
        index
    }

    /// The entries of the index of `shard`: the offset and size of each subchunk.
    pub fn entries(self, shard: &[u8], num_subchunks: usize) -> Vec<[u64; 2]> {
        let from_bytes = if self.big_endian {
            u64::from_be_bytes
        } else {
            u64::from_le_bytes
        };
        let start = match self.location {
            ShardingIndexLocation::Start => 0,
            ShardingIndexLocation::End => shard.len() - self.size(num_subchunks),
        };
        let words = &shard[start..start + 16 * num_subchunks];
        let words = words.chunks(8).map(|w| from_bytes(w.try_into().unwrap()));
        let words: Vec<u64> = words.collect();
        words.chunks(2).map(|pair| [pair[0], pair[1]]).collect()
    }

    /// `shard` with another index.
    pub fn replace(self, shard: &[u8], entries: &[[u64; 2]]) -> Vec<u8> {
        let index = self.encode(entries);
        let mut shard = shard.to_vec();
        let start = match self.location {
            ShardingIndexLocation::Start => 0,
            ShardingIndexLocation::End => shard.len() - index.len(),
        };
        shard[start..start + index.len()].copy_from_slice(&index);
        shard
    }

    /// A shard of `subchunks`, which lie in this order. Each has a gap before it, of this many
    /// bytes.
    pub fn shard(self, subchunks: &[(usize, Option<Vec<u8>>)]) -> Vec<u8> {
        let head = match self.location {
            ShardingIndexLocation::Start => self.size(subchunks.len()),
            ShardingIndexLocation::End => 0,
        };
        let mut shard = vec![0; head];
        let mut entries = Vec::new();
        for (gap, bytes) in subchunks {
            shard.resize(shard.len() + gap, 0xAA);
            entries.push(bytes.as_ref().map_or(EMPTY, |bytes| {
                let entry = [shard.len() as u64, bytes.len() as u64];
                shard.extend(bytes);
                entry
            }));
        }
        if self.location == ShardingIndexLocation::End {
            shard.resize(shard.len() + self.size(subchunks.len()), 0);
        }
        self.replace(&shard, &entries)
    }

    /// The encoded subchunks of `shard`.
    pub fn subchunks(self, shard: &[u8], num_subchunks: usize) -> Vec<Option<Vec<u8>>> {
        self.entries(shard, num_subchunks)
            .into_iter()
            .map(|[offset, size]| {
                let start = usize::try_from(offset).ok().filter(|_| size != u64::MAX)?;
                Some(shard[start..start + usize::try_from(size).unwrap()].to_vec())
            })
            .collect()
    }
}

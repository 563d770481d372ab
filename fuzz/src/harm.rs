//! Changes of a shard's bytes, as by corruption or an attacker.

use arbitrary::{Arbitrary, Result, Unstructured};
use serde_json::Value;
use zarrs::array::codec::ShardingIndexLocation;
use zarrs::array::{ArrayBytes, CodecChain, FillValue, data_type};
use zarrs_codec::{ArrayToBytesCodecTraits, CodecOptions};

use crate::case::Case;
use zarrs_cuda_testing::index::{EMPTY, IndexLayout};
use zarrs_cuda_testing::{Shards, chunk_shape};

/// One change of a shard.
#[derive(Arbitrary, Clone, Debug)]
enum Harm {
    /// Replaces an entry of the index, and updates the index's checksum.
    Entry { which: u8, entry: Entry },
    /// Changes an encoded subchunk.
    Subchunk {
        which: u8,
        edit: Edit,
        /// Whether the CRC32C at its end is updated.
        fix: bool,
    },
    /// Flips bits of any byte.
    Byte { at: u16, xor: u8 },
    /// Removes the end.
    CutEnd(u8),
    /// Removes the start.
    CutStart(u8),
    /// Appends bytes.
    Extend(u8, u8),
}

/// An entry of an index.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Entry {
    Empty,
    /// The entry of another subchunk.
    Of(u8),
    /// A slightly different offset and size.
    Shifted(i8, i8),
    /// From this offset to the end.
    From(u16),
    /// The whole shard.
    All,
    /// Two random words, limited to a number of bits.
    Words(u64, u64, u8),
    /// Two words whose sum overflows, or nearly does.
    Top(u8, u8),
}

/// A change of some bytes.
#[derive(Arbitrary, Clone, Debug)]
enum Edit {
    Byte(u16, u8),
    /// Replaces four bytes.
    Word(u16, Word),
    Truncate(u8),
    Insert(u16, u8),
    Append(u8, u8),
    Repeat,
    /// Replaces the content by valid content with this many bytes more or less.
    Length(i16),
    /// Replaces an entry in a nested shard's index: little-endian, with a CRC32C, and at the end.
    Nested(u8, Entry),
    /// Replaces everything by random bytes.
    Bytes(Vec<u8>),
}

/// Numbers at the limits, or near them.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Word {
    Zero,
    One,
    Most,
    MostPositive,
    Large(u8),
    Plus(i8),
    Any(u32),
}

/// Changes `encoded`, a shard of `case`, in ways that the next bytes of the input determine.
pub(crate) fn harmed(u: &mut Unstructured<'_>, case: &Case, encoded: &[u8]) -> Result<Vec<u8>> {
    let (index, subchunks) = (case.shards.index, case.shards.num_subchunks());
    match u.int_in_range(0..=15)? {
        0 => return Ok(encoded.to_vec()),
        1 => {
            // Random bytes in place of a shard.
            let bytes: &[u8] = u.arbitrary()?;
            return Ok(bytes.to_vec());
        }
        _ => {}
    }
    let mut shard = encoded.to_vec();
    for _ in 0..=u.int_in_range(0..=3)? {
        let harm = Harm::arbitrary(u)?;
        // Changes of index entries need a shard that is long enough for an index.
        let has_index = shard.len() >= index.size(subchunks);
        match harm {
            Harm::Entry { which, entry } if has_index => {
                let mut entries = index.entries(&shard, subchunks);
                let which = usize::from(which) % subchunks;
                entries[which] = entry.apply(&entries, which, shard.len(), index, subchunks);
                shard = index.replace(&shard, &entries);
            }
            Harm::Subchunk { which, edit, fix } if has_index => {
                let Some(mut parts) = parts(index, &shard, subchunks) else {
                    continue;
                };
                let which = usize::from(which) % subchunks;
                let bytes = parts[which].get_or_insert_default();
                let covered = case
                    .shards
                    .codecs
                    .last()
                    .is_some_and(|c| c["name"] == "crc32c");
                if covered && fix {
                    bytes.truncate(bytes.len().saturating_sub(4));
                }
                edit.apply(bytes, &case.shards);
                if covered && fix {
                    bytes.extend(crc32c::crc32c(bytes).to_le_bytes());
                }
                let parts: Vec<_> = parts.into_iter().map(|bytes| (0, bytes)).collect();
                shard = index.shard(&parts);
            }
            Harm::Byte { at, xor } => {
                let len = shard.len().max(1);
                if let Some(byte) = shard.get_mut(usize::from(at) % len) {
                    *byte ^= xor;
                }
            }
            Harm::CutEnd(count) => shard.truncate(shard.len().saturating_sub(count.into())),
            Harm::CutStart(count) => {
                shard.drain(..usize::from(count).min(shard.len()));
            }
            Harm::Extend(count, byte) => shard.resize(shard.len() + usize::from(count), byte),
            _ => {}
        }
    }
    Ok(shard)
}

/// The encoded subchunks, if all of them lie within the shard.
fn parts(index: IndexLayout, shard: &[u8], subchunks: usize) -> Option<Vec<Option<Vec<u8>>>> {
    let entries = index.entries(shard, subchunks).into_iter();
    entries
        .map(|entry| {
            if entry == EMPTY {
                return Some(None);
            }
            let [offset, size] = entry.map(|word| usize::try_from(word).ok());
            let bytes = shard.get(offset?..)?.get(..size?)?;
            Some(Some(bytes.to_vec()))
        })
        .collect()
}

impl Entry {
    fn apply(
        self,
        entries: &[[u64; 2]],
        which: usize,
        len: usize,
        index: IndexLayout,
        subchunks: usize,
    ) -> [u64; 2] {
        let [offset, size] = entries[which];
        let index_len = index.size(subchunks) as u64;
        match self {
            Self::Empty => EMPTY,
            Self::Of(other) => entries[usize::from(other) % entries.len()],
            Self::Shifted(by, more) => [
                offset.wrapping_add_signed(by.into()),
                size.wrapping_add_signed(more.into()),
            ],
            Self::From(start) => [start.into(), (len as u64).wrapping_sub(start.into())],
            Self::All if index.location == ShardingIndexLocation::Start => {
                [index_len, (len as u64).wrapping_sub(index_len)]
            }
            Self::All => [0, len as u64],
            Self::Words(offset, size, bits) => {
                let mask = u64::MAX >> (bits % 64);
                [offset & mask, size & mask]
            }
            Self::Top(offset, size) => [u64::MAX - u64::from(offset), u64::from(size)],
        }
    }
}

impl Word {
    fn apply(self, word: u32) -> u32 {
        match self {
            Self::Zero => 0,
            Self::One => 1,
            Self::Most => u32::MAX,
            Self::MostPositive => u32::MAX >> 1,
            Self::Large(bit) => 1 << (bit % 32),
            Self::Plus(more) => word.wrapping_add_signed(more.into()),
            Self::Any(word) => word,
        }
    }
}

impl Edit {
    fn apply(self, bytes: &mut Vec<u8>, shards: &Shards) {
        let len = bytes.len();
        let place = |at: u16| usize::from(at) % len.max(1);
        match self {
            Self::Byte(at, xor) => {
                if let Some(byte) = bytes.get_mut(place(at)) {
                    *byte ^= xor;
                }
            }
            Self::Word(at, word) => {
                let rest = bytes.get_mut(place(at)..);
                if let Some(part) = rest.and_then(|rest| rest.first_chunk_mut::<4>()) {
                    *part = word.apply(u32::from_le_bytes(*part)).to_le_bytes();
                }
            }
            Self::Truncate(count) => bytes.truncate(len.saturating_sub(count.into())),
            Self::Insert(at, byte) => bytes.insert(usize::from(at) % (len + 1), byte),
            Self::Append(count, byte) => bytes.resize(len + usize::from(count), byte),
            Self::Repeat => bytes.extend_from_within(..),
            Self::Length(more) => {
                if let Some(other) = encoded_bytes(&shards.codecs, more) {
                    *bytes = other;
                }
            }
            Self::Nested(which, entry) => nested(bytes, shards, which, entry),
            Self::Bytes(other) => *bytes = other,
        }
    }
}

/// Encodes zeros with the bytes-to-bytes codecs of `codecs`.
fn encoded_bytes(codecs: &[Value], len: i16) -> Option<Vec<u8>> {
    let to_bytes = ["bytes", "packbits", "sharding_indexed"];
    let is_to_bytes = |codec: &Value| to_bytes.iter().any(|name| codec["name"] == *name);
    let at = codecs.iter().position(is_to_bytes)?;
    let chain = std::iter::once(zarrs_cuda_testing::codecs::bytes("little"))
        .chain(codecs[at + 1..].iter().cloned())
        .map(|codec| serde_json::from_value(codec).ok())
        .collect::<Option<Vec<_>>>()?;
    let chain = CodecChain::from_metadata(&chain).ok()?;
    let len = usize::from(len.unsigned_abs()).max(1);
    let encoded = chain.encode(
        ArrayBytes::from(vec![0; len]),
        &chunk_shape(&[len as u64]),
        &data_type::uint8(),
        &FillValue::from(0_u8),
        &CodecOptions::default(),
    );
    Some(encoded.ok()?.into_owned())
}

/// Changes an entry in the index of a subchunk that is a shard.
fn nested(bytes: &mut Vec<u8>, shards: &Shards, which: u8, entry: Entry) {
    let Some(codec) = shards.codecs.last() else {
        return;
    };
    let Some(inner) = codec["configuration"]["chunk_shape"].as_array() else {
        return;
    };
    let inner: u64 = inner.iter().filter_map(Value::as_u64).product();
    let outer: u64 = shards.subchunk.iter().product();
    let index = IndexLayout::default();
    let subchunks = usize::try_from(outer / inner).unwrap();
    if bytes.len() < index.size(subchunks) {
        return;
    }
    let mut entries = index.entries(bytes, subchunks);
    let which = usize::from(which) % subchunks;
    entries[which] = entry.apply(&entries, which, bytes.len(), index, subchunks);
    *bytes = index.replace(bytes, &entries);
}

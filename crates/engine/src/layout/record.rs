//! The record of an update, with which a torn update is undone or completed.
//!
//! An update that moves the end of a shard, or rewrites the index in place, first writes a record of 64 bytes
//! into unused space. All numbers are little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 0–8 | magic: `89 7A 63 75 70 64 0D 0A` |
//! | 8–16 | the offset of these bytes in the object: a copy elsewhere is no record |
//! | 16–24 | where the object ended, with its index whole, before the update; 0 if there was no shard |
//! | 24–32 | the fingerprint of the encoded index before the update; 0 if there was none |
//! | 32–40 | the size of the encoded index, in bytes |
//! | 40–48 | where the object ends after the update |
//! | 48–56 | the fingerprint of the encoded index after the update |
//! | 56–60 | zero |
//! | 60–64 | the CRC32C of the bytes before |
//!
//! The fields that are known before the update come first, so that the first bytes of a torn record can be
//! recognised.
//!
//! The last `index_len` bytes of an updated object are the new index, if the index is at the end, and
//! otherwise a copy of the new index.
//!
//! A [`fingerprint`] is not a CRC32C: all byte strings that end in their own CRC32C, as an index does, have
//! the same CRC32C.

use twox_hash::XxHash3_64;

/// The size of a record, in bytes.
pub const RECORD_LEN: usize = 64;

/// The first bytes of a record. No text and no common file format begins with them.
const MAGIC: [u8; 8] = *b"\x89zcupd\r\n";

/// The plan of an update, as it is stored before the update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The position of the record in the object.
    pub offset: u64,
    /// The end of the object before the update; 0 if the shard was not stored.
    pub old_end: u64,
    /// The [`fingerprint`] of the encoded index before the update; 0 if there was no index.
    pub old_index: u64,
    /// The size of the encoded index in bytes.
    pub index_len: u64,
    /// The end of the object after the update.
    pub new_end: u64,
    /// The [`fingerprint`] of the encoded index after the update.
    pub new_index: u64,
}

/// Returns a hash of an encoded index: XXH3 of 64 bits, without a seed, as in the [specification of
/// xxHash](https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md).
pub fn fingerprint(index: &[u8]) -> u64 {
    XxHash3_64::oneshot(index)
}

impl Record {
    /// Returns the record as bytes, in the form in which it is stored.
    pub fn to_bytes(self) -> [u8; RECORD_LEN] {
        let mut bytes = [0; RECORD_LEN];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(8, &self.offset.to_le_bytes());
        put(16, &self.old_end.to_le_bytes());
        put(24, &self.old_index.to_le_bytes());
        put(32, &self.index_len.to_le_bytes());
        put(40, &self.new_end.to_le_bytes());
        put(48, &self.new_index.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Returns the record at `offset` of `object`, of a shard whose encoded index has `index_len`
    /// bytes.
    #[cfg(test)]
    fn at(object: &[u8], offset: usize, index_len: usize) -> Option<Self> {
        Self::parse(object.get(offset..)?, offset, index_len)
    }

    /// Returns the record directly before the index, or its copy, at the end of an object. `end` are the last
    /// bytes of the object. The record tells where the object ends.
    pub fn before_index(end: &[u8], index_len: usize) -> Option<Self> {
        let start = end.len().checked_sub(RECORD_LEN + index_len)?;
        let record = Self::read(&end[start..])?;
        let behind = (RECORD_LEN + index_len) as u64;
        let is_there = record.offset.checked_add(behind) == Some(record.new_end);
        (is_there && record.index_len == index_len as u64).then_some(record)
    }

    /// Returns the record at the beginning of `bytes`, whose position in the object is `offset`; `None` if
    /// there is none.
    fn parse(bytes: &[u8], offset: usize, index_len: usize) -> Option<Self> {
        let record = Self::read(bytes)?;
        let here = record.offset == offset as u64 && record.index_len == index_len as u64;
        let after = (offset as u64).checked_add((RECORD_LEN + index_len) as u64)?;
        (here && record.new_end >= after).then_some(record)
    }

    /// Returns the record at the beginning of `bytes`, at any position in an object; `None` if there is none.
    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; RECORD_LEN] = bytes.first_chunk()?;
        if bytes[..8] != MAGIC || crc32c::crc32c(&bytes[..60]) != word(bytes, 60) {
            return None;
        }
        let record = Self {
            offset: long(bytes, 8),
            old_end: long(bytes, 16),
            old_index: long(bytes, 24),
            index_len: long(bytes, 32),
            new_end: long(bytes, 40),
            new_index: long(bytes, 48),
        };
        (record.to_bytes() == *bytes).then_some(record)
    }

    /// Returns all records in `object`, the last one first. `index_len` is the size of its encoded index.
    pub fn all(object: &[u8], index_len: usize) -> impl Iterator<Item = Self> {
        Self::all_at(object, 0, index_len)
    }

    /// Returns all records in `part`, the last one first. `part` begins at the byte `start` of an object.
    pub fn all_at(part: &[u8], start: usize, index_len: usize) -> impl Iterator<Item = Self> {
        let mut end = part.len();
        std::iter::from_fn(move || {
            loop {
                let at = rfind_magic(part.get(..end)?)?;
                end = at + MAGIC.len() - 1;
                if let Some(record) = Self::parse(&part[at..], start + at, index_len) {
                    return Some(record);
                }
            }
        })
    }

    /// Returns whether `bytes`, which are shorter than a record, are the beginning of a record at `offset`.
    /// Such a record follows a shard that ends at `old_end`, and whose encoded index has the fingerprint
    /// `old_index`.
    pub fn begins_with(bytes: &[u8], offset: u64, old_end: u64, old_index: u64) -> bool {
        let known = Self {
            offset,
            old_end,
            old_index,
            index_len: 0,
            new_end: 0,
            new_index: 0,
        };
        // The number of bytes at the beginning of a record that do not depend on the update.
        const KNOWN: usize = 32;
        let len = bytes.len().min(KNOWN);
        bytes.len() < RECORD_LEN && bytes[..len] == known.to_bytes()[..len]
    }
}

fn word(bytes: &[u8; RECORD_LEN], at: usize) -> u32 {
    bytes[at..]
        .first_chunk()
        .copied()
        .map_or(0, u32::from_le_bytes)
}

fn long(bytes: &[u8; RECORD_LEN], at: usize) -> u64 {
    bytes[at..]
        .first_chunk()
        .copied()
        .map_or(0, u64::from_le_bytes)
}

/// Returns the last position of `MAGIC` in `bytes`.
fn rfind_magic(bytes: &[u8]) -> Option<usize> {
    /// The number of positions that are tested at once.
    const BLOCK: usize = 1 << 10;
    let [first, second, ..] = MAGIC;
    let mut end = bytes.len().saturating_sub(MAGIC.len() - 1);
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        let pairs = bytes[start..end].iter().zip(&bytes[start + 1..=end]);
        // Test without a branch per byte, so that the compiler compares many bytes at once.
        #[allow(clippy::needless_bitwise_bool, reason = "no branches")]
        let may_begin = pairs.fold(false, |any, (&a, &b)| any | ((a == first) & (b == second)));
        if may_begin && let Some(at) = (start..end).rfind(|&at| bytes[at..].starts_with(&MAGIC)) {
            return Some(at);
        }
        end = start;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: Record = Record {
        offset: 100,
        old_end: 90,
        old_index: 0xDEAD_BEEF_0123_4567,
        index_len: 20,
        new_end: 1000,
        new_index: 7,
    };

    fn object() -> Vec<u8> {
        let mut object = vec![0x89; 100];
        object.extend(RECORD.to_bytes());
        object.extend([0x89; 50]);
        object
    }

    #[test]
    fn a_record_is_found_where_it_says_that_it_is() {
        let object = object();
        assert_eq!(Record::at(&object, 100, 20), Some(RECORD));
        assert_eq!(Record::all(&object, 20).collect::<Vec<_>>(), [RECORD]);
        // Another geometry, another place, and any other byte: no record.
        assert_eq!(Record::at(&object, 100, 36), None);
        assert_eq!(Record::all(&object[1..], 20).count(), 0);
        for byte in 100..164 {
            let mut object = object.clone();
            object[byte] ^= 1;
            assert_eq!(Record::all(&object, 20).count(), 0, "byte {byte}");
        }
        for len in 0..164 {
            assert_eq!(Record::all(&object[..len], 20).count(), 0);
        }
    }

    #[test]
    fn the_last_record_comes_first() {
        let mut object = object();
        let second = Record {
            offset: object.len() as u64,
            ..RECORD
        };
        object.extend(second.to_bytes());
        let found: Vec<_> = Record::all(&object, 20).collect();
        assert_eq!(found, [second, RECORD]);
    }

    #[test]
    fn the_magic_is_found_wherever_it_is() {
        for len in [0, 7, 8, 9, 1023, 1024, 1031, 1032, 2100] {
            let mut bytes = vec![MAGIC[0]; len];
            assert_eq!(rfind_magic(&bytes), None);
            for at in 0..len.saturating_sub(MAGIC.len() - 1) {
                bytes[at..at + MAGIC.len()].copy_from_slice(&MAGIC);
                assert_eq!(rfind_magic(&bytes), Some(at), "{at} of {len}");
                assert_eq!(rfind_magic(&bytes[..at + MAGIC.len() - 1]), None);
                bytes[at..at + MAGIC.len()].fill(MAGIC[1]);
            }
        }
    }

    #[test]
    fn the_beginning_of_a_record_is_recognised() {
        let bytes = RECORD.to_bytes();
        for len in 0..RECORD_LEN {
            assert!(Record::begins_with(
                &bytes[..len],
                100,
                90,
                0xDEAD_BEEF_0123_4567
            ));
            if len > 0 {
                let mut other = bytes[..len].to_vec();
                other[len.min(32) - 1] ^= 0x40;
                assert!(
                    !Record::begins_with(&other, 100, 90, 0xDEAD_BEEF_0123_4567),
                    "{len}"
                );
            }
        }
        assert!(!Record::begins_with(&bytes, 100, 90, 0xDEAD_BEEF_0123_4567));
    }

    #[test]
    fn indexes_that_end_in_their_checksum_are_told_apart() {
        let with_checksum = |index: [u8; 16]| {
            let mut encoded = index.to_vec();
            encoded.extend(crc32c::crc32c(&index).to_le_bytes());
            encoded
        };
        let (one, other) = (with_checksum([1; 16]), with_checksum([2; 16]));
        // Why a record does not have the CRC32C of an index.
        assert_eq!(crc32c::crc32c(&one), crc32c::crc32c(&other));
        assert_ne!(fingerprint(&one), fingerprint(&other));
        // Published values of XXH3.
        assert_eq!(fingerprint(b""), 0x2D06_8005_38D3_94C2);
        assert_eq!(fingerprint(b"a"), 0xE6C6_32B6_1E96_4E1F);
    }

    #[test]
    fn hostile_records_are_none() {
        for new_end in [0, 183, u64::MAX] {
            let record = Record { new_end, ..RECORD };
            let mut object = vec![0; 100];
            object.extend(record.to_bytes());
            let found = Record::all(&object, 20).next();
            assert_eq!(found.is_some(), new_end == u64::MAX);
        }
    }
}

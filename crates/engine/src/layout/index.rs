//! The shard index: one `(offset, nbytes)` pair of 64-bit integers per subchunk, in C order.
//!
//! Source: the `sharding_indexed` codec, version 1.0, "Binary shard format".

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

/// The size of an entry of an index, in bytes: two words.
pub const ENTRY_LEN: usize = 16;

/// Both words of the index entry of a subchunk that is not stored.
const EMPTY: u64 = u64::MAX;

/// The range of bytes of an encoded subchunk in the encoded shard; `None` for an empty subchunk.
pub type Extent = Option<Range<usize>>;

/// An index entry whose bytes are outside of the shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexError {
    subchunk: usize,
    offset: u64,
    nbytes: u64,
    limit: u64,
}

impl fmt::Display for IndexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            subchunk,
            offset,
            nbytes,
            limit,
        } = self;
        write!(
            f,
            "the shard index references out-of-bounds bytes: subchunk {subchunk} has offset {offset} and size {nbytes} in a shard of {limit} bytes; the shard may be corrupted"
        )
    }
}

impl std::error::Error for IndexError {}

/// The order of the bytes of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    pub const NATIVE: Self = if cfg!(target_endian = "big") {
        Self::Big
    } else {
        Self::Little
    };

    fn words(self, entry: [u8; ENTRY_LEN]) -> [u64; 2] {
        // An entry has two words of 64 bits.
        let &[offset, nbytes] = entry.as_chunks().0 else {
            return [EMPTY; 2];
        };
        match self {
            Self::Little => [u64::from_le_bytes(offset), u64::from_le_bytes(nbytes)],
            Self::Big => [u64::from_be_bytes(offset), u64::from_be_bytes(nbytes)],
        }
    }

    fn entry(self, extent: &Extent) -> [u8; ENTRY_LEN] {
        let words = match extent {
            // `usize` has at most 64 bits on every platform that Rust has.
            Some(range) => [range.start as u64, range.len() as u64],
            None => [EMPTY; 2],
        };
        let bytes = match self {
            Self::Little => words.map(u64::to_le_bytes),
            Self::Big => words.map(u64::to_be_bytes),
        };
        std::array::from_fn(|i| bytes[i / 8][i % 8])
    }
}

/// The entries of an index, as bytes. An entry is decoded when a caller asks for it, because a shard may have
/// millions of subchunks, of which a call needs one.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    /// The encoded entries one after the other, and then perhaps a checksum.
    bytes: Cow<'a, [u8]>,
    len: usize,
    order: ByteOrder,
}

impl<'a> Entries<'a> {
    /// Returns the first `len` entries of `bytes`; `None` if `bytes` has fewer.
    pub fn new(bytes: Cow<'a, [u8]>, len: usize, order: ByteOrder) -> Option<Self> {
        let is_long_enough = bytes.as_chunks::<ENTRY_LEN>().0.len() >= len;
        is_long_enough.then_some(Self { bytes, len, order })
    }

    /// Returns the entries of a shard whose `len` subchunks are all empty.
    pub fn empty(len: usize, order: ByteOrder) -> Entries<'static> {
        Entries {
            bytes: Cow::Owned(vec![0xFF; len * ENTRY_LEN]),
            len,
            order,
        }
    }

    /// Returns the bytes that the entries were made from, including the bytes behind the entries.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the number of subchunks.
    pub fn len(&self) -> usize {
        self.len
    }

    fn encoded(&self) -> &[[u8; ENTRY_LEN]] {
        &self.bytes.as_chunks().0[..self.len]
    }

    /// Returns the offset and the size of each subchunk without checks; `None` for an empty subchunk.
    pub fn words(&self) -> impl Iterator<Item = Option<[u64; 2]>> {
        let order = self.order;
        let words = self.encoded().iter().map(move |&entry| order.words(entry));
        words.map(|words| (words != [EMPTY; 2]).then_some(words))
    }

    /// Checks the entries against a shard of `limit` bytes.
    ///
    /// If the size of the shard is not known, `limit` is the largest size that it may have.
    ///
    /// # Errors
    /// An [`IndexError`] for the first entry that ends beyond `limit`, or that has only one of the two words
    /// that mark an empty subchunk.
    pub fn check(&self, limit: u64) -> Result<(), IndexError> {
        // A subchunk that this machine cannot address counts as outside.
        let most = limit.min(usize::MAX as u64);
        #[allow(clippy::needless_bitwise_bool, reason = "no branches")]
        let is_valid = |[offset, nbytes]: [u64; 2]| {
            let (end, overflows) = offset.overflowing_add(nbytes);
            (!overflows & (end <= most)) | (offset & nbytes == EMPTY)
        };
        let entries = self.encoded();
        // Compare without a branch per entry, because there may be millions of entries.
        let all_are_valid = |order: ByteOrder| {
            let entries = entries.iter();
            entries.fold(true, |all, &entry| all & is_valid(order.words(entry)))
        };
        let valid = match self.order {
            ByteOrder::Little => all_are_valid(ByteOrder::Little),
            ByteOrder::Big => all_are_valid(ByteOrder::Big),
        };
        if valid {
            return Ok(());
        }
        let order = self.order;
        let mut invalid = entries.iter();
        let invalid = invalid.position(|&entry| !is_valid(order.words(entry)));
        let subchunk = invalid.unwrap_or(0);
        let [offset, nbytes] = order.words(entries[subchunk]);
        Err(IndexError {
            subchunk,
            offset,
            nbytes,
            limit,
        })
    }

    /// Returns the extent of subchunk `number`. The caller has [checked](Self::check) the entries.
    pub fn get(&self, number: usize) -> Extent {
        extent(self.order.words(*self.encoded().get(number)?))
    }

    /// Returns the extent of each subchunk. The caller has [checked](Self::check) the entries.
    pub fn iter(&self) -> impl Iterator<Item = Extent> {
        let order = self.order;
        self.encoded()
            .iter()
            .map(move |&entry| extent(order.words(entry)))
    }

    /// Returns the encoded entries with `changes` applied, and with capacity for `spare` more bytes.
    pub fn with(
        &self,
        changes: impl IntoIterator<Item = (usize, Extent)>,
        spare: usize,
    ) -> Vec<u8> {
        let entries = self.encoded().as_flattened();
        let mut bytes = Vec::with_capacity(entries.len() + spare);
        bytes.extend_from_slice(entries);
        let new = bytes.as_chunks_mut::<ENTRY_LEN>().0;
        for (number, extent) in changes {
            new[number] = self.order.entry(&extent);
        }
        bytes
    }
}

/// Returns the encoded entries of subchunks with these `extents`, with capacity for `spare` more bytes.
pub fn encode_entries(extents: &[Extent], order: ByteOrder, spare: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(extents.len() * ENTRY_LEN + spare);
    for extent in extents {
        bytes.extend_from_slice(&order.entry(extent));
    }
    bytes
}

fn extent(words: [u64; 2]) -> Extent {
    if words == [EMPTY; 2] {
        return None;
    }
    let [offset, nbytes] = words;
    let end = offset.checked_add(nbytes)?;
    Some(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDERS: [ByteOrder; 2] = [ByteOrder::Little, ByteOrder::Big];

    #[test]
    fn round_trip() {
        let extents = [Some(0..5), None, Some(5..5), Some(5..10)];
        for order in ORDERS {
            let mut bytes = encode_entries(&extents, order, 0);
            let to_bytes = |word: u64| match order {
                ByteOrder::Little => word.to_le_bytes(),
                ByteOrder::Big => word.to_be_bytes(),
            };
            let expected = [0, 5, EMPTY, EMPTY, 5, 0, 5, 5].map(to_bytes);
            assert_eq!(bytes, expected.as_flattened());
            bytes.extend(b"checksum");
            let entries = Entries::new(Cow::Borrowed(&bytes), 4, order).expect("long enough");
            assert_eq!(entries.check(10), Ok(()));
            assert!(entries.iter().eq(extents.clone()));
            assert_eq!(entries.get(3), Some(5..10));
            assert_eq!(entries.get(4), None);
            let words: Vec<_> = entries.words().collect();
            assert_eq!(words, [Some([0, 5]), None, Some([5, 0]), Some([5, 5])]);

            let changes = [(0, None), (3, Some(7..9))];
            let changed = [None, None, Some(5..5), Some(7..9)];
            let expected = encode_entries(&changed, order, 0);
            assert_eq!(entries.with(changes, 4), expected);
            let empty = Entries::empty(4, order);
            assert_eq!(
                empty.bytes(),
                encode_entries(&[const { None }; 4], order, 0)
            );
        }
        assert!(Entries::new(Cow::Borrowed(&[0; 31]), 2, ByteOrder::Little).is_none());
    }

    #[test]
    fn entries_that_overflow_or_leave_the_shard_are_errors() {
        let check = |entry: [u64; 2]| {
            let words = [[0, 1], [EMPTY; 2], entry];
            let bytes = words
                .as_flattened()
                .iter()
                .flat_map(|word| word.to_le_bytes());
            let entries = Entries::new(Cow::Owned(bytes.collect()), 3, ByteOrder::Little);
            entries.expect("long enough").check(10)
        };
        for entry in [
            [EMPTY - 1, 4],
            [4, EMPTY - 1],
            [EMPTY, 0],
            [0, EMPTY],
            [0, 11],
            [10, 1],
            [11, 0],
        ] {
            let [offset, nbytes] = entry;
            let error = IndexError {
                subchunk: 2,
                offset,
                nbytes,
                limit: 10,
            };
            assert_eq!(check(entry), Err(error), "{entry:?}");
        }
        assert_eq!(check([10, 0]), Ok(()));
    }
}

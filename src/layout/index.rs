//! The shard index: one `(offset, nbytes)` pair of 64-bit integers per subchunk, in C order.
//!
//! Source: the `sharding_indexed` codec, version 1.0, "Binary shard format".

use std::fmt;
use std::ops::Range;

/// Both words of the index entry of a subchunk that is not stored.
pub(crate) const EMPTY: u64 = u64::MAX;

/// Where an encoded subchunk lies in the encoded shard, in bytes; `None` for an empty one.
pub(crate) type Extent = Option<Range<usize>>;

/// An index entry that points outside the shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexError {
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

/// Check a decoded index (two words per subchunk) against a shard of `limit` bytes.
///
/// Where the size of the shard is not known, `limit` is the largest that it could be.
///
/// # Errors
/// An [`IndexError`] for the first entry that ends beyond `limit`, or has just one word of the
/// pair that marks an empty subchunk.
pub(crate) fn extents_from_index(index: &[u64], limit: u64) -> Result<Vec<Extent>, IndexError> {
    index
        .as_chunks::<2>()
        .0
        .iter()
        .enumerate()
        .map(|(subchunk, &[offset, nbytes])| {
            if offset == EMPTY && nbytes == EMPTY {
                return Ok(None);
            }
            let range = offset
                .checked_add(nbytes)
                .filter(|&end| end <= limit)
                .and_then(|end| Some(usize::try_from(offset).ok()?..usize::try_from(end).ok()?));
            range.map(Some).ok_or(IndexError {
                subchunk,
                offset,
                nbytes,
                limit,
            })
        })
        .collect()
}

/// The decoded index of a shard whose subchunks lie at `extents`: two words per subchunk.
pub(crate) fn index_from_extents(extents: &[Extent]) -> Vec<u64> {
    extents
        .iter()
        .flat_map(|extent| match extent {
            // `usize` has at most 64 bits on every platform that Rust has.
            Some(range) => [range.start as u64, range.len() as u64],
            None => [EMPTY, EMPTY],
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let extents = [Some(0..5), None, Some(5..5), Some(5..10)];
        let index = index_from_extents(&extents);
        assert_eq!(index, [0, 5, EMPTY, EMPTY, 5, 0, 5, 5]);
        assert_eq!(extents_from_index(&index, 10).as_deref(), Ok(&extents[..]));
    }

    #[test]
    fn entries_that_overflow_or_leave_the_shard_are_errors() {
        for entry in [
            [EMPTY - 1, 4],
            [4, EMPTY - 1],
            [EMPTY, 0],
            [0, EMPTY],
            [0, 11],
            [10, 1],
            [11, 0],
        ] {
            assert!(extents_from_index(&entry, 10).is_err(), "{entry:?}");
        }
        assert!(extents_from_index(&[10, 0], 10).is_ok());
    }
}

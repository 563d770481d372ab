//! Packs encoded subchunks one after the other, without encoding them.

use std::num::NonZeroUsize;

use super::pieces;
use crate::contract::EngineError;
use crate::layout::Extent;
use crate::memory::allocate;

/// The number of bytes up to which one thread copies alone.
const ALONE: usize = 4 << 20;

/// Returns a buffer with `head` zeros, the bytes of `subchunks` in order, and `tail` zeros. Also returns the
/// extent of each subchunk in the buffer.
pub fn pack(
    subchunks: &[Option<&[u8]>],
    (head, tail): (usize, usize),
    threads: NonZeroUsize,
    huge_pages: bool,
) -> Result<(Vec<u8>, Vec<Extent>), EngineError> {
    const WHAT: &str = "a shard";
    let mut end = head;
    let mut place = |bytes: &[u8]| {
        let start = end;
        end = start.checked_add(bytes.len())?;
        Some(start..end)
    };
    let extents: Option<Vec<Extent>> = subchunks
        .iter()
        .map(|bytes| match bytes {
            Some(bytes) => place(bytes).map(Some),
            None => Some(None),
        })
        .collect();
    let too_many = EngineError::OutOfMemory {
        what: WHAT,
        bytes: usize::MAX,
    };
    let (Some(extents), Some(len)) = (extents, end.checked_add(tail)) else {
        return Err(too_many);
    };
    let mut shard = allocate::zeroed(len, WHAT, huge_pages)?;
    let mut rest = &mut shard[head..end];
    let mut pieces = Vec::with_capacity(subchunks.len());
    for bytes in subchunks.iter().flatten() {
        let (place, behind) = std::mem::take(&mut rest).split_at_mut(bytes.len());
        pieces.push((place, *bytes));
        rest = behind;
    }
    let threads = if len < ALONE {
        NonZeroUsize::MIN
    } else {
        threads
    };
    pieces::copy(pieces, threads)?;
    Ok((shard, extents))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_after_the_other() {
        let large = vec![7; ALONE];
        let subchunks = [Some(&b"ab"[..]), None, Some(b""), Some(&large), Some(b"c")];
        let threads = NonZeroUsize::new(3).expect("some");
        let (shard, extents) = pack(&subchunks, (2, 1), threads, true).expect("memory");
        let end = 4 + ALONE;
        assert_eq!(
            extents,
            [
                Some(2..4),
                None,
                Some(4..4),
                Some(4..end),
                Some(end..end + 1)
            ]
        );
        assert_eq!(shard, [&b"\0\0ab"[..], &large, b"c\0"].concat());
        assert_eq!(
            pack(&[], (0, 0), threads, true).expect("memory"),
            (vec![], vec![])
        );
    }
}

//! Copies the pieces of encoded batches into the buffer of a shard.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use crate::contract::EngineError;
use crate::process::crew::of_slices;

/// The most bytes that a thread takes at once.
const SHARE: usize = 512 << 10;

/// Copies each piece to its destination of the same length, on at most `threads` threads, including the
/// calling thread.
///
/// # Errors
/// [`EngineError::Internal`] if a destination has another length than its piece. Then nothing was copied.
pub fn copy(pieces: Vec<(&mut [u8], &[u8])>, threads: NonZeroUsize) -> Result<(), EngineError> {
    if pieces.iter().any(|(to, from)| to.len() != from.len()) {
        return Err(EngineError::Internal("a place is not as long as its piece"));
    }
    let shares: Vec<_> = pieces
        .into_iter()
        .flat_map(|(to, from)| std::iter::zip(to.chunks_mut(SHARE), from.chunks(SHARE)))
        .map(Mutex::new)
        .collect();
    of_slices().run(shares.len(), threads, &|number| {
        let mut share = shares[number]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (to, from) = &mut *share;
        to.copy_from_slice(from);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_length() {
        let from: Vec<u8> = (0..3 * SHARE).map(|i| (i % 251) as u8).collect();
        for threads in [1, 2, 5] {
            let mut to = vec![0; from.len()];
            let (mut pieces, mut rest, mut at) = (Vec::new(), &mut to[..], 0);
            for len in [1, 0, 700, 2 * SHARE + 1, SHARE - 702] {
                let (place, behind) = rest.split_at_mut(len);
                // From the end to the start.
                at += len;
                pieces.push((place, &from[from.len() - at..][..len]));
                rest = behind;
            }
            copy(pieces, NonZeroUsize::new(threads).expect("some")).expect("as long");
            let mut expected = Vec::new();
            let mut at = 0;
            for len in [1, 0, 700, 2 * SHARE + 1, SHARE - 702] {
                at += len;
                expected.extend_from_slice(&from[from.len() - at..][..len]);
            }
            assert!(to == expected);
        }
        let (mut place, one) = ([0; 2], NonZeroUsize::MIN);
        assert!(copy(vec![(&mut place[..], &from[..3])], one).is_err());
        assert_eq!(place, [0; 2]);
    }
}

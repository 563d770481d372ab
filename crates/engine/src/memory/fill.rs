//! Fills memory with a fill value, on several threads.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use crate::process::crew::Crew;

/// The number of bytes that a thread fills at once, about.
const SHARE: usize = 256 << 10;

/// The number of bytes, about, of the pattern of repeated elements. It stays in the processor's nearest cache
/// while it is copied.
const PATTERN: usize = 8 << 10;

/// Repeats `element` in each of `pieces`, from the beginning of the piece, on at most `threads` threads of
/// `crew`, including the calling thread. The last element of a piece is cut off if it does not fit. An empty
/// element fills nothing.
pub(crate) fn fill<'a>(
    pieces: impl IntoIterator<Item = &'a mut [u8]>,
    element: &[u8],
    crew: &Crew,
    threads: NonZeroUsize,
) {
    if element.is_empty() {
        return;
    }
    // Each share begins with a whole element.
    let share = (SHARE / element.len()).max(1) * element.len();
    let shares: Vec<_> = pieces
        .into_iter()
        .flat_map(|piece| piece.chunks_mut(share))
        .map(Mutex::new)
        .collect();
    crew.run(shares.len(), threads, &|number| {
        let mut share = shares[number]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        repeat(&mut share, element);
    });
}

/// Repeats `element`, which is not empty, in `bytes`.
fn repeat(bytes: &mut [u8], element: &[u8]) {
    if element.iter().all(|byte| *byte == element[0]) {
        bytes.fill(element[0]);
        return;
    }
    let mut done = element.len().min(bytes.len());
    bytes[..done].copy_from_slice(&element[..done]);
    while done < bytes.len().min(PATTERN) {
        let more = done.min(bytes.len() - done);
        bytes.copy_within(..more, done);
        done += more;
    }
    let (pattern, rest) = bytes.split_at_mut(done);
    for place in rest.chunks_mut(pattern.len().max(1)) {
        place.copy_from_slice(&pattern[..place.len()]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(zarrs_cuda_testing::effort::config(128))]

        /// Byte by byte.
        #[test]
        fn every_byte_is_of_its_element(
            element in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..20),
                prop::collection::vec(any::<u8>(), 1000..=PATTERN + 1000),
                (any::<u8>(), 1..20_usize).prop_map(|(byte, len)| vec![byte; len]),
            ],
            lens in prop::collection::vec(prop_oneof![0..60_usize, 0..3 * PATTERN, SHARE..2 * SHARE], 0..4),
            threads in 1..4_usize,
        ) {
            let crew = Crew::of("test", 2);
            let mut pieces: Vec<Vec<u8>> = lens.iter().map(|len| vec![0xa5; *len]).collect();
            let threads = NonZeroUsize::new(threads).expect("positive");
            fill(pieces.iter_mut().map(Vec::as_mut_slice), &element, &crew, threads);
            for piece in pieces {
                for (at, byte) in piece.iter().enumerate() {
                    let expected = element.get(at % element.len().max(1)).unwrap_or(&0xa5);
                    prop_assert_eq!(byte, expected, "byte {}", at);
                }
            }
        }
    }
}

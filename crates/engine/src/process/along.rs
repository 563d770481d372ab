//! Work that is done while its input is copied, so that the input is still in a cache.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::crew::of_slices;

/// An output in shares. The thread that has just read the input of a share makes the share; the other shares
/// are made at the end.
pub struct Along<'a> {
    /// The shares, in the order of their input.
    shares: Vec<Share<'a>>,
    make: Box<Make<'a>>,
}

/// A function that makes the share with this number.
type Make<'a> = dyn Fn(usize, &mut [u8]) + Sync + 'a;

struct Share<'a> {
    /// The range of the input's bytes from which the share is made.
    from: Range<usize>,
    /// The memory of the share; `None` after the share was made.
    place: Mutex<Option<&'a mut [u8]>>,
}

impl<'a> Along<'a> {
    /// Makes the work from `shares`: for each share, the range of the input on which it depends, and its
    /// memory. `make` makes the share with a number. The starts of the ranges ascend, and so do their ends.
    pub(crate) fn new(
        shares: impl Iterator<Item = (Range<usize>, &'a mut [u8])>,
        make: impl Fn(usize, &mut [u8]) + Sync + 'a,
    ) -> Self {
        let shares = shares.map(|(from, place)| Share {
            from,
            place: Mutex::new(Some(place)),
        });
        Self {
            shares: shares.collect(),
            make: Box::new(make),
        }
    }

    /// Returns work that copies `from` to `to`, which has the same length.
    pub fn copying(from: &'a [u8], to: &'a mut [u8]) -> Self {
        /// The number of bytes of a share.
        const SHARE: usize = 64 << 10;
        let bytes = move |number: usize, len: usize| number * SHARE..number * SHARE + len;
        let shares = to.chunks_mut(SHARE).enumerate();
        Self::new(
            shares.map(move |(number, place)| (bytes(number, place.len()), place)),
            move |number, place| place.copy_from_slice(&from[bytes(number, place.len())]),
        )
    }

    /// Makes the shares that depend only on `bytes` of the input, which this thread has just read.
    pub fn read(&self, bytes: &Range<usize>) {
        let first = self
            .shares
            .partition_point(|share| share.from.start < bytes.start);
        for (number, share) in self.shares.iter().enumerate().skip(first) {
            if share.from.end > bytes.end {
                break;
            }
            self.make(number, share);
        }
    }

    /// Makes the shares that are not made yet, on at most `threads` threads, including the calling thread.
    pub fn finish(&self, threads: NonZeroUsize) {
        let is_left = |share: &Share<'_>| share.place().is_some();
        let left: Vec<usize> = (0..self.shares.len())
            .filter(|number| is_left(&self.shares[*number]))
            .collect();
        if !left.is_empty() {
            of_slices().run(left.len(), threads, &|number| {
                self.make(left[number], &self.shares[left[number]]);
            });
        }
    }

    fn make(&self, number: usize, share: &Share<'_>) {
        let place = share.place().take();
        if let Some(place) = place {
            (self.make)(number, place);
        }
    }
}

impl<'a> Share<'a> {
    fn place(&self) -> std::sync::MutexGuard<'_, Option<&'a mut [u8]>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn each_share_is_made_once() {
        let two = NonZeroUsize::new(2).expect("some");
        for read in [
            vec![],
            vec![0..10],
            vec![2..7, 7..9, 0..2],
            vec![0..6, 6..10],
        ] {
            let mut output = [0_u8; 5];
            let made = AtomicUsize::new(0);
            let shares = output.chunks_mut(1).enumerate();
            let along = Along::new(
                shares.map(|(number, place)| (2 * number..2 * number + 2, place)),
                |number, place| {
                    made.fetch_add(1, Ordering::Relaxed);
                    place[0] += 1 + number as u8;
                },
            );
            for bytes in &read {
                along.read(bytes);
            }
            let early = made.load(Ordering::Relaxed);
            let within = |from: usize| read.iter().any(|r| r.start <= from && from + 2 <= r.end);
            let expected = (0..10).step_by(2).filter(|from| within(*from)).count();
            assert_eq!(early, expected, "{read:?}");
            along.finish(two);
            drop(along);
            assert_eq!(
                (output, made.into_inner()),
                ([1, 2, 3, 4, 5], 5),
                "{read:?}"
            );
        }
    }

    #[test]
    fn copies_of_any_length() {
        for len in [0, 1, 64 << 10, (200 << 10) + 1] {
            let from: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            for read in [0..0, 0..len, 1..len, 0..len / 2] {
                let mut to = vec![0; len];
                let along = Along::copying(&from, &mut to);
                along.read(&read);
                along.finish(NonZeroUsize::MIN);
                drop(along);
                assert!(to == from, "{len}, {read:?}");
            }
        }
    }
}

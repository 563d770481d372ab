//! Gives a store bytes that own the buffer in which they lie.
//!
//! A store may keep the [`Bytes`] that it is given, as a store in memory does. A buffer of the host then
//! belongs to the store, and another buffer takes its place. Page-locked buffers are too scarce for that:
//! the store is given a copy instead, and from then on gets copies at once.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use zarrs_cuda_engine::contract::stream::BatchOutput;

/// Bytes of an encoded output, in the form in which a store takes them.
#[derive(Debug)]
pub(crate) struct StoredBytes {
    bytes: Bytes,
    /// The part of the output in which the bytes lie; `None` if this value has copied them.
    origin: Option<Origin>,
}

#[derive(Debug)]
struct Origin {
    output: Arc<dyn BatchOutput>,
    range: Range<usize>,
    /// A token that all clones of the bytes hold, and this value: its count says whether the store keeps a
    /// clone.
    bytes: Arc<()>,
}

/// The owner of the bytes that a store is given.
struct Owner {
    output: Arc<dyn BatchOutput>,
    range: Range<usize>,
    _bytes: Arc<()>,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        // `StoredBytes::of` has checked the range.
        &(*self.output).as_ref()[self.range.clone()]
    }
}

impl StoredBytes {
    /// Returns the bytes `range` of `output`; `None` if `output` is shorter.
    pub(crate) fn of(output: &Arc<dyn BatchOutput>, range: Range<usize>) -> Option<Self> {
        (**output).as_ref().get(range.clone())?;
        let token = Arc::new(());
        Some(Self {
            bytes: Bytes::from_owner(Owner {
                output: output.clone(),
                range: range.clone(),
                _bytes: token.clone(),
            }),
            origin: Some(Origin {
                output: output.clone(),
                range,
                bytes: token,
            }),
        })
    }

    /// Makes stored bytes of a vector, which belong to no output.
    pub(crate) fn owned(bytes: Vec<u8>) -> Self {
        Self {
            bytes: Bytes::from(bytes),
            origin: None,
        }
    }

    /// Returns the same bytes. Bytes in a scarce buffer are copied into memory of their own.
    pub(crate) fn out_of_scarce(self) -> Self {
        if self.is_scarce() {
            Self::owned(self.bytes.to_vec())
        } else {
            self
        }
    }

    fn is_scarce(&self) -> bool {
        let origin = self.origin.as_ref();
        origin.is_some_and(|origin| origin.output.is_scarce())
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns a clone of the bytes, for a store.
    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes.clone()
    }

    /// Notes that the store has taken the bytes. Returns a copy if the store keeps bytes that are in a scarce
    /// buffer: the caller must store the copy in their place.
    pub(crate) fn taken(self) -> Option<Self> {
        let origin = self.origin?;
        drop(self.bytes);
        if Arc::strong_count(&origin.bytes) == 1 {
            return None;
        }
        if origin.output.is_scarce() {
            let bytes = (*origin.output).as_ref().get(origin.range)?;
            return Some(Self::owned(bytes.to_vec()));
        }
        origin.output.keep();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zarrs_cuda_engine::memory::buffers::{Contents, Pool};

    #[test]
    fn a_buffer_that_is_kept_is_replaced() {
        let pool = Pool::new(10, Contents::Zeros, 1, true, Arc::default());
        let output = |n| -> Arc<dyn BatchOutput> {
            let mut lease = pool.take(true).expect("memory").expect("free");
            lease.bytes().fill(n);
            Arc::new(lease)
        };
        let part = StoredBytes::of(&output(1), 2..7).expect("within");
        let given = part.bytes();
        drop(given);
        assert!(part.taken().is_none());
        assert!(StoredBytes::of(&output(0), 2..11).is_none());

        let first = output(2);
        let (kept, other) = (
            StoredBytes::of(&first, 0..4),
            StoredBytes::of(&first, 4..10),
        );
        drop(first);
        let kept = kept.expect("within");
        let in_store = kept.bytes();
        assert!(pool.take(true).expect("memory").is_none());
        assert!(kept.taken().is_none());
        let second = output(3);
        drop(other);
        assert!(pool.take(true).expect("memory").is_none());
        drop(second);
        assert_eq!(in_store.as_ref(), [2; 4]);
        drop(in_store);
        assert!(pool.take(true).expect("memory").is_some());
    }
}

//! Bytes for a store that own the buffer they lie in.
//!
//! A store may keep the [`Bytes`] that it is given, as a store in memory does. A buffer of the host then
//! belongs to the store, and another buffer takes its place. Page-locked buffers are too scarce for that:
//! the store is given a copy instead, and from then on gets copies at once.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use zarrs_cuda_engine::contract::stream::BatchOutput;

/// Some bytes of an output, as a store is given them.
#[derive(Debug)]
pub(crate) struct StoredBytes {
    bytes: Bytes,
    /// Where they came from, unless this part owns them alone.
    origin: Option<Origin>,
}

#[derive(Debug)]
struct Origin {
    output: Arc<dyn BatchOutput>,
    range: Range<usize>,
    /// Held by all clones of the bytes, and here.
    bytes: Arc<()>,
}

/// The owner of the bytes.
struct Owner {
    output: Arc<dyn BatchOutput>,
    range: Range<usize>,
    _bytes: Arc<()>,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        // Checked when the part was made.
        &(*self.output).as_ref()[self.range.clone()]
    }
}

impl StoredBytes {
    /// The bytes `range` of `output`; `None` if it does not have them.
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

    /// Bytes of its own.
    pub(crate) fn owned(bytes: Vec<u8>) -> Self {
        Self {
            bytes: Bytes::from(bytes),
            origin: None,
        }
    }

    /// The same bytes in memory of their own, if they lie in a scarce buffer.
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

    /// The bytes for a store.
    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes.clone()
    }

    /// The store has taken the bytes. If it keeps them, and they are in a scarce buffer, it has to be
    /// given these in their place.
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

//! Values that Python got from a store before a call.

use bytes::Bytes;
use zarrs_cuda::storage::slice;
use zarrs_storage::StorageError;
use zarrs_storage::byte_range::{ByteRange, InvalidByteRangeError};

/// A value that Python got from its store.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Whole(Bytes),
    /// Parts of the value. Each has its offset, or `None` if the part is the end of the value.
    Parts(Vec<(Option<u64>, Bytes)>),
}

impl Value {
    /// Returns the bytes of `range`, which Python got before.
    ///
    /// # Errors
    /// A [`StorageError`] if these bytes were not read, or the value is shorter.
    pub(crate) fn part(&self, range: ByteRange) -> Result<Bytes, StorageError> {
        let parts = match self {
            Self::Whole(value) => return slice(value, range),
            Self::Parts(parts) => parts,
        };
        let found = parts.iter().find_map(|(start, part)| match (range, start) {
            (ByteRange::Suffix(_), None) => slice(part, range).ok(),
            (ByteRange::FromStart(from, Some(len)), Some(start)) => {
                let range = ByteRange::FromStart(from.checked_sub(*start)?, Some(len));
                slice(part, range).ok()
            }
            _ => None,
        });
        found.ok_or_else(|| match range {
            // The first part is the index. If another part begins before `range`, the request for it included
            // `range`, so the value ends before `range`.
            ByteRange::FromStart(from, Some(_))
                if parts
                    .iter()
                    .skip(1)
                    .any(|(start, _)| start.is_some_and(|start| start <= from)) =>
            {
                InvalidByteRangeError::new(range, from).into()
            }
            _ => StorageError::Other(format!("{range} was not read before the call")),
        })
    }
}

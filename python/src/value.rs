//! Values that Python got from a store before a call.

use std::ops::Range;

use bytes::Bytes;
use zarrs_cuda::storage::within;
use zarrs_storage::StorageError;
use zarrs_storage::byte_range::{ByteRange, InvalidByteRangeError};

/// A value that Python got from its store.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Whole(Bytes),
    /// Parts of it: where each begins, or `None` for one that ends where the value ends.
    Parts(Vec<(Option<u64>, Bytes)>),
}

impl Value {
    /// The bytes of a range, which Python got.
    ///
    /// # Errors
    /// They were not read, or the value is shorter.
    pub(crate) fn part(&self, range: ByteRange) -> Result<Bytes, StorageError> {
        let parts = match self {
            Self::Whole(value) => return cut(value, range),
            Self::Parts(parts) => parts,
        };
        let found = parts.iter().find_map(|(start, part)| match (range, start) {
            (ByteRange::Suffix(_), None) => cut(part, range).ok(),
            (ByteRange::FromStart(from, Some(len)), Some(start)) => {
                let range = ByteRange::FromStart(from.checked_sub(*start)?, Some(len));
                cut(part, range).ok()
            }
            _ => None,
        });
        found.ok_or_else(|| match range {
            // The first part is the index. What is behind another one was asked for with it, and the value
            // ended before.
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

/// Returns the bytes of `range`, without copying them.
fn cut(value: &Bytes, range: ByteRange) -> Result<Bytes, StorageError> {
    let Range { start, end } = within(range, value.len() as u64)?;
    // Both are at most the length of the value.
    let [start, end] = [start, end].map(|at| usize::try_from(at).unwrap_or(value.len()));
    Ok(value.slice(start..end))
}

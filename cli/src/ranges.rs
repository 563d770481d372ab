//! Ranges of bytes within values.

use std::ops::Range;

use zarrs_storage::StorageError;
use zarrs_storage::byte_range::{ByteRange, InvalidByteRangeError};

/// Returns the bytes that `range` names in a value of `size` bytes.
///
/// # Errors
/// The range begins or ends outside of the value.
pub(crate) fn inside(range: ByteRange, size: u64) -> Result<Range<u64>, StorageError> {
    let ends = match range {
        ByteRange::FromStart(start, None) => Some((start, size)),
        ByteRange::FromStart(start, Some(len)) => start.checked_add(len).map(|end| (start, end)),
        ByteRange::Suffix(len) => size.checked_sub(len).map(|start| (start, size)),
    };
    match ends {
        Some((start, end)) if start <= end && end <= size => Ok(start..end),
        _ => Err(InvalidByteRangeError::new(range, size).into()),
    }
}

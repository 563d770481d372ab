//! Ranges of bytes within values.

use std::ops::Range;

use zarrs_storage::StorageError;
use zarrs_storage::byte_range::{ByteRange, InvalidByteRangeError};

/// The bytes that `range` means of a value of `size` bytes.
pub(crate) fn inside(range: ByteRange, size: u64) -> Result<Range<usize>, StorageError> {
    let ends = match range {
        ByteRange::FromStart(start, None) => Some((start, size)),
        ByteRange::FromStart(start, Some(len)) => start.checked_add(len).map(|end| (start, end)),
        ByteRange::Suffix(len) => size.checked_sub(len).map(|start| (start, size)),
    };
    ends.filter(|(start, end)| start <= end && *end <= size)
        .and_then(|(start, end)| Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?))
        .ok_or_else(|| InvalidByteRangeError::new(range, size).into())
}

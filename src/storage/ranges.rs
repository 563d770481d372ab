//! Byte ranges of values that are at hand.

use zarrs_storage::byte_range::{ByteRange, InvalidByteRangeError};
use zarrs_storage::{Bytes, StorageError};

/// A part of `value`.
///
/// # Errors
/// [`StorageError::InvalidByteRangeError`] if it has fewer bytes.
pub(super) fn slice(value: &Bytes, range: ByteRange) -> Result<Bytes, StorageError> {
    let size = value.len() as u64;
    let (start, end) = match range {
        ByteRange::FromStart(start, None) => (Some(start), Some(size)),
        ByteRange::FromStart(start, Some(len)) => (Some(start), start.checked_add(len)),
        ByteRange::Suffix(len) => (size.checked_sub(len), Some(size)),
    };
    let place = start
        .zip(end)
        .filter(|(start, end)| start <= end && *end <= size);
    let place = place
        .and_then(|(start, end)| Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?));
    let place = place.ok_or_else(|| InvalidByteRangeError::new(range, size))?;
    Ok(value.slice(place))
}

/// `value` with other bytes at some offsets, longer where they end behind it.
///
/// # Errors
/// [`StorageError::Other`] if there is no memory for it.
pub(super) fn with_parts(value: &[u8], parts: &[(u64, Bytes)]) -> Result<Vec<u8>, StorageError> {
    let no_memory = || {
        StorageError::Other(format!(
            "there is no memory for a value of {} bytes with {} parts, of which the last begins at byte {}",
            value.len(),
            parts.len(),
            parts.iter().map(|(at, _)| *at).max().unwrap_or(0),
        ))
    };
    let ends = parts
        .iter()
        .map(|(at, part)| at.checked_add(part.len() as u64));
    let end = ends.max().unwrap_or(Some(0)).ok_or_else(no_memory)?;
    let len = usize::try_from(end)
        .map_err(|_| no_memory())?
        .max(value.len());
    let mut written = Vec::new();
    written.try_reserve_exact(len).map_err(|_| no_memory())?;
    written.extend_from_slice(value);
    written.resize(len, 0);
    for (at, part) in parts {
        // Below `len`, which is a `usize`.
        let at = usize::try_from(*at).map_err(|_| no_memory())?;
        written[at..at + part.len()].copy_from_slice(part);
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_values() {
        let value = Bytes::from_static(b"abcdef");
        for (range, part) in [
            (ByteRange::FromStart(0, None), Some(&b"abcdef"[..])),
            (ByteRange::FromStart(6, None), Some(b"")),
            (ByteRange::FromStart(7, None), None),
            (ByteRange::FromStart(2, Some(3)), Some(b"cde")),
            (ByteRange::FromStart(2, Some(5)), None),
            (ByteRange::FromStart(u64::MAX, Some(2)), None),
            (ByteRange::FromStart(2, Some(u64::MAX)), None),
            (ByteRange::Suffix(2), Some(b"ef")),
            (ByteRange::Suffix(0), Some(b"")),
            (ByteRange::Suffix(7), None),
        ] {
            assert_eq!(slice(&value, range).ok().as_deref(), part, "{range:?}");
        }
    }

    #[test]
    fn other_bytes_at_offsets() {
        let part = |at, bytes: &'static str| (at, Bytes::from_static(bytes.as_bytes()));
        assert_eq!(with_parts(b"abc", &[]).unwrap(), b"abc");
        let parts = [part(5, "f"), part(1, "B"), part(2, "")];
        assert_eq!(with_parts(b"abc", &parts).unwrap(), b"aBc\0\0f");
        assert_eq!(
            with_parts(b"abc", &[part(1, "x"), part(1, "y")]).unwrap(),
            b"ayc"
        );
        for far in [u64::MAX, u64::MAX - 1, 1 << 62] {
            assert!(with_parts(b"abc", &[part(far, "x")]).is_err());
        }
    }
}

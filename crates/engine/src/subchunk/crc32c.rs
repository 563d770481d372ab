//! The CRC32C stage, which appends a checksum of four bytes, little-endian.
//!
//! Source: the Zarr v3 `crc32c` codec, version 1.0; the polynomial of RFC 3720.

/// The size of the checksum, in bytes.
pub(crate) const LEN: usize = 4;

/// Returns the checksum of `bytes`, as it is stored.
pub(crate) fn checksum(bytes: &[u8]) -> [u8; LEN] {
    crc32c::crc32c(bytes).to_le_bytes()
}

/// The reason why the end of an encoded subchunk is invalid.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Invalid {
    /// The subchunk is shorter than a checksum.
    Truncated,
    /// The stored checksum is not that of the bytes.
    Mismatch,
}

/// Returns `encoded` without the checksum at its end. Compares the checksum if `validate`.
pub(crate) fn strip(encoded: &[u8], validate: bool) -> Result<&[u8], Invalid> {
    let (bytes, stored) = encoded
        .split_last_chunk::<LEN>()
        .ok_or(Invalid::Truncated)?;
    if validate && *stored != checksum(bytes) {
        return Err(Invalid::Mismatch);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_polynomial() {
        assert_eq!(checksum(b"123456789"), 0xE306_9283_u32.to_le_bytes());
    }

    #[test]
    fn strip_validates() {
        let mut encoded = b"123456789".to_vec();
        encoded.extend(checksum(b"123456789"));
        assert_eq!(strip(&encoded, true), Ok(&b"123456789"[..]));
        encoded[0] ^= 1;
        assert_eq!(strip(&encoded, true), Err(Invalid::Mismatch));
        assert_eq!(strip(&encoded, false), Ok(&b"023456789"[..]));
        assert_eq!(strip(&encoded[..3], false), Err(Invalid::Truncated));
    }
}

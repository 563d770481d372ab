//! The codec `lz4`: the size of the decoded bytes as a little-endian `int32`, and one raw block.

use std::borrow::Cow;

use super::filter::{Decoder, EncodedSize, Expected};

/// The most bytes that one byte of a block can stand for.
const RATIO: u64 = 255;

#[derive(Debug)]
pub(super) struct Lz4;

impl Decoder for Lz4 {
    fn decode<'a>(
        &self,
        encoded: Cow<'a, [u8]>,
        expected: Expected,
    ) -> Result<Cow<'a, [u8]>, String> {
        let Some((size, block)) = encoded.split_first_chunk() else {
            return Err("the size of the decoded bytes is missing".to_string());
        };
        let size = i32::from_le_bytes(*size);
        let decoded = u64::try_from(size).map_err(|_| format!("its size is {size}"))?;
        expected.size.must_be(decoded)?;
        let possible = RATIO.saturating_mul(block.len() as u64);
        if decoded > possible {
            return Err(format!(
                "a block of {} bytes does not decode to {decoded} bytes",
                block.len()
            ));
        }
        let decoded = usize::try_from(decoded).map_err(|error| error.to_string())?;
        let bytes =
            lz4_flex::block::decompress(block, decoded).map_err(|error| error.to_string())?;
        if bytes.len() != decoded {
            return Err(format!(
                "its block has {} bytes, and its header says {decoded}",
                bytes.len()
            ));
        }
        Ok(bytes.into())
    }

    fn encoded_size(&self, decoded: u64) -> EncodedSize {
        // `LZ4_compressBound`, and the header.
        EncodedSize::AtMost(decoded.saturating_add(decoded / RATIO).saturating_add(20))
    }
}

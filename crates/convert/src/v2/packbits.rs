//! The codec `packbits`: booleans as bits, the first one the highest. A byte before them counts the bits that
//! fill up the last byte.

use std::borrow::Cow;

use super::filter::{Decoder, EncodedSize, Expected};

#[derive(Debug)]
pub(super) struct PackBits;

impl Decoder for PackBits {
    fn decode<'a>(
        &self,
        encoded: Cow<'a, [u8]>,
        expected: Expected,
    ) -> Result<Cow<'a, [u8]>, String> {
        let Some((&padding, packed)) = encoded.split_first() else {
            return Err("the number of padding bits is missing".to_string());
        };
        let bits = packed.len() as u64 * 8;
        let Some(booleans) = bits.checked_sub(u64::from(padding)) else {
            return Err(format!("{padding} of {bits} bits are padding"));
        };
        expected.size.must_be(booleans)?;
        let mut decoded = Vec::with_capacity(packed.len() * 8);
        for byte in packed {
            decoded.extend((0..8).rev().map(|bit| byte >> bit & 1));
        }
        decoded.truncate(decoded.len() - usize::from(padding));
        Ok(decoded.into())
    }

    fn encoded_size(&self, decoded: u64) -> EncodedSize {
        EncodedSize::Exactly(decoded.div_ceil(8).saturating_add(1))
    }
}

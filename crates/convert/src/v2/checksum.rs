//! The codecs `crc32` and `crc32c`: four bytes of checksum, little-endian, before or behind the others.

use std::borrow::Cow;

use serde_json::Value;
use zarrs::metadata::Configuration;

use super::filter::{Decoder, EncodedSize, Expected};

const SIZE: usize = size_of::<u32>();

/// Returns a decoder of `crc32`, whose checksum is at the start unless `location` says otherwise.
pub(super) fn crc32(configuration: &Configuration) -> Result<Box<dyn Decoder>, String> {
    Checksum::boxed(configuration, Location::Start, crc32fast::hash)
}

/// Returns a decoder of `crc32c`, whose checksum is at the end unless `location` says otherwise.
pub(super) fn crc32c(configuration: &Configuration) -> Result<Box<dyn Decoder>, String> {
    Checksum::boxed(configuration, Location::End, ::crc32c::crc32c)
}

#[derive(Clone, Copy, Debug)]
enum Location {
    Start,
    End,
}

#[derive(Debug)]
struct Checksum {
    location: Location,
    of: fn(&[u8]) -> u32,
}

impl Checksum {
    fn boxed(
        configuration: &Configuration,
        default: Location,
        of: fn(&[u8]) -> u32,
    ) -> Result<Box<dyn Decoder>, String> {
        let location = match configuration.get("location") {
            None | Some(Value::Null) => default,
            Some(Value::String(text)) if text == "start" => Location::Start,
            Some(Value::String(text)) if text == "end" => Location::End,
            Some(other) => {
                return Err(format!(
                    "its `location` is {other}, and neither \"start\" nor \"end\""
                ));
            }
        };
        Ok(Box::new(Self { location, of }))
    }
}

impl Decoder for Checksum {
    fn decode<'a>(
        &self,
        encoded: Cow<'a, [u8]>,
        expected: Expected,
    ) -> Result<Cow<'a, [u8]>, String> {
        let parts = match self.location {
            Location::Start => encoded
                .split_first_chunk::<SIZE>()
                .map(|(sum, rest)| (rest, sum)),
            Location::End => encoded.split_last_chunk::<SIZE>(),
        };
        let Some((rest, sum)) = parts else {
            return Err(format!("a checksum alone has {SIZE} bytes"));
        };
        let stored = u32::from_le_bytes(*sum);
        if expected.checksum {
            let computed = (self.of)(rest);
            if computed != stored {
                return Err(format!(
                    "the stored checksum is {stored:#010x}, and that of the bytes is {computed:#010x}"
                ));
            }
        }
        let range = match self.location {
            Location::Start => SIZE..encoded.len(),
            Location::End => 0..encoded.len() - SIZE,
        };
        Ok(match encoded {
            Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[range]),
            Cow::Owned(mut bytes) => {
                bytes.truncate(range.end);
                bytes.drain(..range.start);
                Cow::Owned(bytes)
            }
        })
    }

    fn encoded_size(&self, decoded: u64) -> EncodedSize {
        EncodedSize::Exactly(decoded.saturating_add(SIZE as u64))
    }
}

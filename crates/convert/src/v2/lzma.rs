//! The codec `lzma`: what Python's module `lzma` writes, decoded by the library that it wraps.
//!
//! `format` is one of Python's numbers. A raw stream says nothing about itself, so its decoder takes the
//! `filters` of the configuration.

use std::borrow::Cow;

use liblzma::stream::{Action, Error, Filters, Status, Stream};
use serde_json::Value;
use zarrs::metadata::Configuration;

use super::filter::{Decoder, EncodedSize, Expected};

/// The most bytes that the decoder takes for its dictionary: the largest preset needs 65 MiB.
const MEMORY: u64 = 256 << 20;
/// The most bytes that a chunk decodes to if the metadata do not say how many.
const UNKNOWN: u64 = 2 << 30;
/// The number of bytes by which the result grows.
const STEP: usize = 1 << 20;

/// Returns a decoder of `lzma`.
pub(super) fn lzma(configuration: &Configuration) -> Result<Box<dyn Decoder>, String> {
    let format = match configuration.get("format") {
        None | Some(Value::Null) => Format::Xz,
        Some(number) => match number.as_u64() {
            Some(0) => Format::Auto,
            Some(1) => Format::Xz,
            Some(2) => Format::Alone,
            Some(3) => Format::Raw(raw_filters(configuration.get("filters"))?),
            _ => return Err(format!("its `format` is {number}, and none of 0 to 3")),
        },
    };
    let lzma = Lzma(format);
    lzma.stream()?; // refuses filters that the library does not take
    Ok(Box::new(lzma))
}

#[derive(Debug)]
struct Lzma(Format);

#[derive(Debug)]
enum Format {
    Auto,
    Xz,
    Alone,
    Raw(Vec<RawFilter>),
}

/// A filter of a raw stream, as the library's `lzma_properties_decode` takes it.
#[derive(Debug)]
struct RawFilter {
    kind: Kind,
    properties: Vec<u8>,
}

/// The filters of Python's `lzma`.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Lzma1,
    Lzma2,
    Delta,
    X86,
    PowerPc,
    Ia64,
    Arm,
    ArmThumb,
    Sparc,
}

fn raw_filters(filters: Option<&Value>) -> Result<Vec<RawFilter>, String> {
    let list = filters.and_then(Value::as_array);
    let list = list.filter(|list| (1..=4).contains(&list.len()));
    let Some(list) = list else {
        return Err(
            "its `filters` are no list of one to four filters, which a raw stream needs"
                .to_string(),
        );
    };
    list.iter()
        .map(|filter| {
            raw_filter(filter)
                .map_err(|error| format!("its filter {filter} is not understood: {error}"))
        })
        .collect()
}

fn raw_filter(filter: &Value) -> Result<RawFilter, String> {
    let number = |name: &str, default: u32| match filter.get(name) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => value
            .as_u64()
            .and_then(|value| u32::try_from(value).ok())
            .ok_or_else(|| format!("`{name}` is {value}")),
    };
    let kind = match filter.get("id").and_then(Value::as_u64) {
        Some(0x4000_0000_0000_0001) => Kind::Lzma1,
        Some(0x21) => Kind::Lzma2,
        Some(3) => Kind::Delta,
        Some(4) => Kind::X86,
        Some(5) => Kind::PowerPc,
        Some(6) => Kind::Ia64,
        Some(7) => Kind::Arm,
        Some(8) => Kind::ArmThumb,
        Some(9) => Kind::Sparc,
        _ => return Err("its `id` is none of Python's".to_string()),
    };
    let properties = match kind {
        Kind::Lzma1 => {
            let [lc, lp, pb] = [number("lc", 3)?, number("lp", 0)?, number("pb", 2)?];
            if lc > 8 || lp > 4 || pb > 4 {
                return Err(format!("`lc`, `lp`, `pb` are {lc}, {lp}, {pb}"));
            }
            let bits = u8::try_from((pb * 5 + lp) * 9 + lc).map_err(|error| error.to_string())?;
            let size = dictionary(filter, number)?.to_le_bytes();
            [&[bits][..], &size].concat()
        }
        Kind::Lzma2 => {
            // A size is written as 2 or 3, times a power of two: the smallest one that is large enough.
            let size = dictionary(filter, number)?;
            let code =
                (0..40_u8).find(|code| (2 | u64::from(code & 1)) << (code / 2 + 11) >= size.into());
            vec![code.unwrap_or(40)]
        }
        Kind::Delta => {
            let distance = number("dist", 1)?;
            let distance = distance
                .checked_sub(1)
                .and_then(|distance| u8::try_from(distance).ok());
            vec![distance.ok_or("`dist` is none of 1 to 256")?]
        }
        _ => match number("start_offset", 0)? {
            0 => Vec::new(),
            offset => offset.to_le_bytes().to_vec(),
        },
    };
    Ok(RawFilter { kind, properties })
}

/// Returns the size of the dictionary of a filter, in bytes: `dict_size`, or that of the preset.
fn dictionary(
    filter: &Value,
    number: impl Fn(&str, u32) -> Result<u32, String>,
) -> Result<u32, String> {
    const EXTREME: u32 = 1 << 31;
    let size = match number("preset", 6)? & !EXTREME {
        0 => 256 << 10,
        1 => 1 << 20,
        2 => 2 << 20,
        3 | 4 => 4 << 20,
        5 | 6 => 8 << 20,
        7 => 16 << 20,
        8 => 32 << 20,
        9 => 64 << 20,
        _ => return Err(format!("its `preset` is {}", filter["preset"])),
    };
    let size = number("dict_size", size)?;
    if u64::from(size) > MEMORY {
        return Err(format!(
            "its dictionary is {size} bytes, and the limit is {MEMORY}"
        ));
    }
    Ok(size)
}

impl Lzma {
    fn stream(&self) -> Result<Stream, String> {
        match &self.0 {
            Format::Auto => Stream::new_auto_decoder(MEMORY, 0),
            Format::Xz => Stream::new_stream_decoder(MEMORY, 0),
            Format::Alone => Stream::new_lzma_decoder(MEMORY),
            Format::Raw(raw) => {
                let mut filters = Filters::new();
                for RawFilter { kind, properties } in raw {
                    match kind {
                        Kind::Lzma1 => filters.lzma1_properties(properties),
                        Kind::Lzma2 => filters.lzma2_properties(properties),
                        Kind::Delta => filters.delta_properties(properties),
                        Kind::X86 => filters.x86_properties(properties),
                        Kind::PowerPc => filters.powerpc_properties(properties),
                        Kind::Ia64 => filters.ia64_properties(properties),
                        Kind::Arm => filters.arm_properties(properties),
                        Kind::ArmThumb => filters.arm_thumb_properties(properties),
                        Kind::Sparc => filters.sparc_properties(properties),
                    }
                    .map_err(|error| format!("its filters are not understood: {error}"))?;
                }
                Stream::new_raw_decoder(&filters)
            }
        }
        .map_err(|error| format!("no decoder for its `format` and `filters`: {error}"))
    }
}

impl Decoder for Lzma {
    fn decode<'a>(
        &self,
        encoded: Cow<'a, [u8]>,
        expected: Expected,
    ) -> Result<Cow<'a, [u8]>, String> {
        let mut stream = self.stream()?;
        let limit = expected.size.limit(UNKNOWN);
        let mut decoded = Vec::new();
        loop {
            // One byte more than the limit, so that a stream that goes on is told from one that ends.
            let room = limit.saturating_add(1).saturating_sub(decoded.len() as u64);
            let room = usize::try_from(room)
                .unwrap_or(usize::MAX)
                .min(STEP.max(decoded.len()));
            if room == 0 {
                return Err(format!("it decodes to more than {limit} bytes"));
            }
            decoded
                .try_reserve_exact(room)
                .map_err(|error| format!("no memory for {room} more bytes: {error}"))?;
            let read = usize::try_from(stream.total_in()).unwrap_or(usize::MAX);
            let rest = encoded.get(read..).unwrap_or_default();
            let before = (read, decoded.len());
            let status = stream
                .process_vec(rest, &mut decoded, Action::Finish)
                .map_err(|error| match error {
                    Error::MemLimit => format!("its dictionary takes more than {MEMORY} bytes"),
                    other => other.to_string(),
                })?;
            let read = usize::try_from(stream.total_in()).unwrap_or(usize::MAX);
            let ended = matches!(status, Status::StreamEnd);
            if ended || (read, decoded.len()) == before {
                if !ended {
                    return Err("its stream has no end".to_string());
                }
                if read < encoded.len() {
                    return Err(format!("{} bytes follow its stream", encoded.len() - read));
                }
                return Ok(decoded.into());
            }
        }
    }

    fn encoded_size(&self, decoded: u64) -> EncodedSize {
        // Bytes that cannot be compressed grow by less than a sixteenth in each format, and by headers.
        EncodedSize::AtMost(decoded.saturating_add(decoded / 16).saturating_add(1 << 10))
    }
}

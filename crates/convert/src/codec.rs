//! The codec of subchunks as an argument of the command.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::json;
use zarrs::array::DataType;
use zarrs::metadata::v3::MetadataV3;
use zarrs_codec::{BytesToBytesCodecTraits, Codec};

use crate::failure::Failure;

/// The codec of subchunks, by its text: `none`, `crc32c`, `zstd:LEVEL`, `gzip:LEVEL` or `blosc-NAME:LEVEL:SHUFFLE`.
///
/// NAME is one of lz4, lz4hc, zstd, zlib, snappy and blosclz, and SHUFFLE one of shuffle, bitshuffle and noshuffle.
/// A value has only names and levels that zarrs has checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubchunkCodec(String);

impl Default for SubchunkCodec {
    /// Returns zstd with level 3.
    fn default() -> Self {
        Self("zstd:3".to_string())
    }
}

impl FromStr for SubchunkCodec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        codecs(text, Some(1))?;
        Ok(Self(text.to_string()))
    }
}

impl fmt::Display for SubchunkCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl SubchunkCodec {
    /// Returns the bytes-to-bytes codecs that follow `bytes` in the chain, for elements of `data_type`.
    pub fn for_elements(
        &self,
        data_type: &DataType,
    ) -> Result<Vec<Arc<dyn BytesToBytesCodecTraits>>, Failure> {
        codecs(&self.0, data_type.fixed_size())
            .map_err(|error| Failure::failed(format!("--codec {self}: {error}")))
    }
}

fn codecs(
    text: &str,
    element: Option<usize>,
) -> Result<Vec<Arc<dyn BytesToBytesCodecTraits>>, String> {
    let level = |level: &str| {
        level
            .parse::<i32>()
            .map_err(|_| format!("`{level}` is not a level"))
    };
    let parts: Vec<_> = text.split(':').collect();
    let (name, configuration) = match parts[..] {
        ["none"] => return Ok(Vec::new()),
        ["crc32c"] => ("crc32c", json!({})),
        ["zstd", l] => ("zstd", json!({ "level": level(l)?, "checksum": false })),
        ["gzip", l] => ("gzip", json!({ "level": level(l)? })),
        [blosc, l, shuffle] if blosc.starts_with("blosc-") => {
            let typesize = match (shuffle, element) {
                ("noshuffle", size) => size.unwrap_or(1),
                (_, Some(size)) => size,
                (_, None) => {
                    return Err(
                        "elements of this data type differ in size, so they cannot be shuffled: \
                         use noshuffle"
                            .to_string(),
                    );
                }
            };
            (
                "blosc",
                json!({
                    "cname": &blosc["blosc-".len()..], "clevel": level(l)?, "shuffle": shuffle,
                    "typesize": typesize, "blocksize": 0,
                }),
            )
        }
        _ => {
            return Err(
                "it is one of none, crc32c, zstd:LEVEL, gzip:LEVEL, blosc-NAME:LEVEL:SHUFFLE"
                    .to_string(),
            );
        }
    };
    let metadata = json!({ "name": name, "configuration": configuration });
    let metadata: MetadataV3 = serde_json::from_value(metadata).map_err(|e| e.to_string())?;
    match Codec::from_metadata(&metadata).map_err(|e| e.to_string())? {
        Codec::BytesToBytes(codec) => Ok(vec![codec]),
        _ => Err("it is not a bytes-to-bytes codec".to_string()),
    }
}

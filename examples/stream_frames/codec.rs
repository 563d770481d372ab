//! The codecs of subchunks.

use std::fmt;
use std::sync::Arc;

use serde_json::json;
use zarrs::array::DataType;
use zarrs::metadata::v3::MetadataV3;
use zarrs_codec::{BytesToBytesCodecTraits, Codec};

/// The codecs for the option `--codec`. zarrs checks the names and levels.
pub(crate) fn bytes_to_bytes_codecs(
    codec: &str,
    data_type: &DataType,
) -> Result<Vec<Arc<dyn BytesToBytesCodecTraits>>, String> {
    let wrong = |error: &dyn fmt::Display| format!("--codec {codec}: {error}");
    let level = |level: &str| {
        level
            .parse::<i32>()
            .map_err(|_| wrong(&format!("`{level}` is not a level")))
    };
    let parts: Vec<_> = codec.split(':').collect();
    let (name, configuration) = match parts[..] {
        ["none"] => return Ok(Vec::new()),
        ["crc32c"] => ("crc32c", json!({})),
        ["zstd", l] => ("zstd", json!({ "level": level(l)?, "checksum": false })),
        ["gzip", l] => ("gzip", json!({ "level": level(l)? })),
        [blosc, l, shuffle] if blosc.starts_with("blosc-") => {
            let typesize = match (shuffle, data_type.fixed_size()) {
                ("noshuffle", size) => size.unwrap_or(1),
                (_, Some(size)) => size,
                (_, None) => {
                    return Err(wrong(
                        &"elements of this data type differ in size, so they cannot be shuffled: \
                          use noshuffle",
                    ));
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
            return Err(wrong(
                &"it is one of none, crc32c, zstd:LEVEL, gzip:LEVEL, blosc-NAME:LEVEL:SHUFFLE",
            ));
        }
    };
    let metadata = json!({ "name": name, "configuration": configuration });
    let metadata: MetadataV3 = serde_json::from_value(metadata).map_err(|error| wrong(&error))?;
    match Codec::from_metadata(&metadata).map_err(|error| wrong(&error))? {
        Codec::BytesToBytes(codec) => Ok(vec![codec]),
        _ => Err(wrong(&"it is not a bytes-to-bytes codec")),
    }
}

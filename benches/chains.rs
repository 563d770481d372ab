//! The inner codecs that benchmarks measure, by name.

use std::error::Error;

use serde_json::{Value, json};
use zarrs::array::codec::ShardingCodecConfiguration;

/// The metadata of the bytes-to-bytes codecs of `chain`.
pub(crate) fn codecs(chain: &str) -> Result<Value, Box<dyn Error>> {
    let zstd = |level: i32| json!([{ "name": "zstd", "configuration": { "level": level, "checksum": false } }]);
    let blosc = |cname: &str| {
        json!([{ "name": "blosc", "configuration": {
            "cname": cname, "clevel": 5, "shuffle": "shuffle", "typesize": 2, "blocksize": 0
        }}])
    };
    Ok(match chain {
        "none" => json!([]),
        "crc32c" => json!([{ "name": "crc32c" }]),
        "zstd-1" => zstd(1),
        "zstd-3" => zstd(3),
        "gzip-1" => json!([{ "name": "gzip", "configuration": { "level": 1 } }]),
        "blosc-lz4" | "blosc-lz4-shuffle" => blosc("lz4"),
        "blosc-zstd-shuffle" => blosc("zstd"),
        other => return Err(format!("there is no chain {other}").into()),
    })
}

/// Shards of uint16 in cubic subchunks of `edge` elements along each axis. The codecs
/// `bytes_to_bytes` follow `bytes`. The index is at the end.
pub(crate) fn configuration(
    bytes_to_bytes: &Value,
    edge: u64,
) -> Result<ShardingCodecConfiguration, Box<dyn Error>> {
    let bytes = json!({ "name": "bytes", "configuration": { "endian": "little" } });
    let mut codecs = vec![bytes.clone()];
    codecs.extend(bytes_to_bytes.as_array().into_iter().flatten().cloned());
    Ok(serde_json::from_value(json!({
        "chunk_shape": [edge, edge, edge],
        "codecs": codecs,
        "index_codecs": [bytes, { "name": "crc32c" }],
        "index_location": "end",
    }))?)
}

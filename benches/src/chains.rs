//! The inner codecs that benchmarks measure, by name.

use serde_json::{Value, json};
use zarrs::array::codec::ShardingCodecConfiguration;
use zarrs_cuda_engine::contract::{BloscStage, Cname, Shuffle, Stage};

use crate::Result;

/// The names of all chains.
pub const ALL: [&str; 8] = [
    "none",
    "crc32c",
    "zstd-1",
    "zstd-3",
    "gzip-1",
    "gzip-6",
    "blosc-lz4-shuffle",
    "blosc-zstd-shuffle",
];

/// The metadata of the bytes-to-bytes codecs of `chain`.
pub fn codecs(chain: &str) -> Result<Value> {
    let zstd = |level: i32| json!([{ "name": "zstd", "configuration": { "level": level, "checksum": false } }]);
    let gzip = |level: u32| json!([{ "name": "gzip", "configuration": { "level": level } }]);
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
        "gzip-1" => gzip(1),
        "gzip-6" => gzip(6),
        "blosc-lz4" | "blosc-lz4-shuffle" => blosc("lz4"),
        "blosc-zstd-shuffle" => blosc("zstd"),
        other => return Err(format!("there is no chain {other}").into()),
    })
}

/// The same codecs, as the engines know them.
pub fn stages(chain: &str) -> Result<Vec<Stage>> {
    let zstd = |level| Stage::Zstd {
        level,
        checksum: false,
    };
    let blosc = |cname| {
        Stage::Blosc(BloscStage {
            cname,
            level: 5,
            shuffle: Shuffle::Byte,
            typesize: 2,
            blocksize: 0,
        })
    };
    Ok(match chain {
        "none" => Vec::new(),
        "crc32c" => vec![Stage::Crc32c],
        "zstd-1" => vec![zstd(1)],
        "zstd-3" => vec![zstd(3)],
        "gzip-1" => vec![Stage::Gzip { level: 1 }],
        "gzip-6" => vec![Stage::Gzip { level: 6 }],
        "blosc-lz4" | "blosc-lz4-shuffle" => vec![blosc(Cname::Lz4)],
        "blosc-zstd-shuffle" => vec![blosc(Cname::Zstd)],
        other => return Err(format!("there is no chain {other}").into()),
    })
}

/// Shards of uint16 in cubic subchunks of `edge` elements along each axis. The codecs
/// `bytes_to_bytes` follow `bytes`. The index is at the end.
pub fn configuration(bytes_to_bytes: &Value, edge: u64) -> Result<ShardingCodecConfiguration> {
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

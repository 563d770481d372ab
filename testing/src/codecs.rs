//! Metadata of codecs.

use serde_json::{Value, json};

pub fn bytes(endian: &str) -> Value {
    json!({ "name": "bytes", "configuration": { "endian": endian } })
}

pub fn transpose(order: &[usize]) -> Value {
    json!({ "name": "transpose", "configuration": { "order": order } })
}

pub fn packbits() -> Value {
    json!({ "name": "packbits", "configuration": {} })
}

pub fn crc32c() -> Value {
    json!({ "name": "crc32c" })
}

pub fn zstd(level: i32, checksum: bool) -> Value {
    json!({ "name": "zstd", "configuration": { "level": level, "checksum": checksum } })
}

pub fn gzip(level: u32) -> Value {
    json!({ "name": "gzip", "configuration": { "level": level } })
}

pub fn zlib() -> Value {
    json!({ "name": "numcodecs.zlib", "configuration": { "level": 6 } })
}

pub fn bz2() -> Value {
    json!({ "name": "numcodecs.bz2", "configuration": { "level": 9 } })
}

pub fn adler32() -> Value {
    json!({ "name": "numcodecs.adler32", "configuration": { "location": "end" } })
}

pub fn pcodec() -> Value {
    json!({ "name": "numcodecs.pcodec", "configuration": {
        "level": 8,
        "mode_spec": "auto",
        "delta_spec": "auto",
        "paging_spec": "equal_pages_up_to",
        "delta_encoding_order": null,
        "equal_pages_up_to": 262_144,
    } })
}

pub const BLOSC_COMPRESSORS: [&str; 6] = ["blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"];

pub const BLOSC_SHUFFLES: [&str; 3] = ["noshuffle", "shuffle", "bitshuffle"];

pub fn blosc(cname: &str, clevel: u8, shuffle: &str, typesize: usize) -> Value {
    json!({ "name": "blosc", "configuration": {
        "cname": cname,
        "clevel": clevel,
        "shuffle": shuffle,
        "typesize": typesize,
        "blocksize": 0,
    } })
}

pub fn shuffle(elementsize: usize) -> Value {
    json!({ "name": "numcodecs.shuffle", "configuration": { "elementsize": elementsize } })
}

/// The codec of [`xor`](crate::xor), which neither zarrs nor `zarrs_cuda` knows.
pub fn xor() -> Value {
    json!({ "name": crate::xor::NAME, "configuration": {} })
}

/// The codec of the same module that does not say how large its output is.
pub fn padding() -> Value {
    json!({ "name": crate::xor::PADDING, "configuration": {} })
}

/// A sharding codec for any subchunk that `chunk_shape` divides.
pub fn sharding(chunk_shape: &[u64], codecs: &[Value]) -> Value {
    json!({ "name": "sharding_indexed", "configuration": {
        "chunk_shape": chunk_shape,
        "codecs": codecs,
        "index_codecs": [bytes("little"), crc32c()],
    } })
}

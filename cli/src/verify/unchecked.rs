//! Tells whether a changed bit of a subchunk may go unnoticed.

use serde_json::Value;

/// Codecs that compare a checksum when they decode.
const CHECKSUMS: [&str; 5] = ["crc32c", "gzip", "zlib", "adler32", "fletcher32"];

/// Returns whether the subchunks of an array with this metadata of Zarr v3 have no checksum.
pub(super) fn is_unchecked(metadata: &Value) -> bool {
    let codecs = |of: &Value| of["codecs"].as_array().cloned().unwrap_or_default();
    let mut left = codecs(metadata);
    while let Some(codec) = left.pop() {
        let name = codec["name"].as_str().or_else(|| codec.as_str());
        let name = name.unwrap_or_default().trim_start_matches("numcodecs.");
        let configuration = &codec["configuration"];
        let compares = CHECKSUMS.contains(&name)
            || (name.ends_with("zstd") && configuration["checksum"] == true);
        if compares {
            return false;
        }
        left.extend(codecs(configuration));
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn checksums_are_found_within_shards() {
        let of = |inner: Value| {
            json!({ "codecs": [{ "name": "sharding_indexed", "configuration": {
                "codecs": inner, "index_codecs": [{ "name": "crc32c" }] } }] })
        };
        let zstd =
            |checksum: bool| json!({ "name": "zstd", "configuration": { "checksum": checksum } });
        for (inner, unchecked) in [
            (json!([{ "name": "bytes" }]), true),
            (json!([{ "name": "bytes" }, zstd(false)]), true),
            (json!([{ "name": "bytes" }, zstd(true)]), false),
            (json!([{ "name": "bytes" }, { "name": "crc32c" }]), false),
            (json!([{ "name": "bytes" }, "gzip"]), false),
            (json!([{ "name": "numcodecs.zlib" }]), false),
            (
                of(json!([{ "name": "bytes" }, zstd(false)]))["codecs"].clone(),
                true,
            ),
            (
                of(json!([{ "name": "bytes" }, zstd(true)]))["codecs"].clone(),
                false,
            ),
        ] {
            assert_eq!(is_unchecked(&of(inner.clone())), unchecked, "{inner}");
        }
    }
}

//! Compares two chains of codecs: whether a decoder of one chain reads what the other chain encoded.

use serde_json::{Map, Value};

/// Parameters of the effort of an encoder. A decoder does not need them.
const LEVELS: [(&str, &str); 12] = [
    ("blosc", "clevel"),
    ("numcodecs.blosc", "clevel"),
    ("bz2", "level"),
    ("numcodecs.bz2", "level"),
    ("gzip", "level"),
    ("numcodecs.gzip", "level"),
    ("zlib", "level"),
    ("numcodecs.zlib", "level"),
    ("zstd", "level"),
    ("numcodecs.zstd", "level"),
    ("numcodecs.lz4", "acceleration"),
    ("numcodecs.pcodec", "level"),
];

/// Parameters that metadata may leave out, and their default values.
const DEFAULTS: [(&str, &str, Value); 2] = [
    ("zstd", "checksum", Value::Bool(false)),
    ("numcodecs.zstd", "checksum", Value::Bool(false)),
];

/// Returns the name of a codec, a data type or a grid from its metadata: `"name"` or `{"name": "name"}`.
pub(super) fn name_of(metadata: &Value) -> &str {
    let name = metadata.get("name").unwrap_or(metadata);
    name.as_str().unwrap_or("?")
}

/// Returns the name and the configuration in `metadata`, which may be only a name.
pub(super) fn plain(metadata: &Value) -> (String, Map<String, Value>) {
    let configuration = metadata.get("configuration").and_then(Value::as_object);
    (
        name_of(metadata).to_string(),
        configuration.cloned().unwrap_or_default(),
    )
}

/// Returns the name of `codec`, and those parameters that a decoder needs, with defaults for missing ones. If
/// `is_bytes`, elements have one byte, and so the byte order is left out.
fn decoding(codec: &Value, is_bytes: bool) -> (String, Map<String, Value>) {
    let (name, mut configuration) = plain(codec);
    for (codec, level) in LEVELS {
        if codec == name {
            configuration.remove(level);
        }
    }
    for (codec, parameter, default) in DEFAULTS {
        if codec == name && !configuration.contains_key(parameter) {
            configuration.insert(parameter.to_string(), default);
        }
    }
    if name == "bytes" && is_bytes {
        configuration.remove("endian");
    }
    if name == "sharding_indexed" {
        for inner in ["codecs", "index_codecs"] {
            if let Some(Value::Array(codecs)) = configuration.get_mut(inner) {
                for codec in codecs {
                    let (name, inner) = decoding(codec, is_bytes);
                    *codec = serde_json::json!({ "name": name, "configuration": inner });
                }
            }
        }
        configuration
            .entry("index_location")
            .or_insert_with(|| "end".into());
    }
    (name, configuration)
}

/// Returns a description of the first difference of two chains that matters to a decoder; `None` if there is
/// none.
pub(super) fn difference(input: &[Value], output: &[Value], is_bytes: bool) -> Option<String> {
    let names = |chain: &[Value]| chain.iter().map(name_of).collect::<Vec<_>>().join(", ");
    let [a, b] = [input, output].map(|chain| chain.iter().map(|c| decoding(c, is_bytes)));
    let (a, b): (Vec<_>, Vec<_>) = (a.collect(), b.collect());
    if !a
        .iter()
        .map(|(name, _)| name)
        .eq(b.iter().map(|(name, _)| name))
    {
        return Some(format!(
            "the codecs of a subchunk are [{}] in IN and [{}] in OUT",
            names(input),
            names(output)
        ));
    }
    let ((name, a), (_, b)) = a.iter().zip(&b).find(|((_, a), (_, b))| !is_equal(a, b))?;
    let shown = |configuration: &Map<String, Value>| Value::Object(configuration.clone());
    Some(format!(
        "the codec `{name}` is {} in IN and {} in OUT",
        shown(a),
        shown(b)
    ))
}

/// Returns whether two JSON objects are equal, whatever the order of their members.
fn is_equal(a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
    a.len() == b.len() && a.iter().all(|(name, value)| b.get(name) == Some(value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn difference_of(input: &Value, output: &Value, is_bytes: bool) -> Option<String> {
        let chain = |value: &Value| value.as_array().cloned().unwrap_or_default();
        difference(&chain(input), &chain(output), is_bytes)
    }

    #[test]
    fn levels_and_spellings_may_differ() {
        let bytes =
            |endian: &str| json!({ "name": "bytes", "configuration": { "endian": endian } });
        let zstd = |configuration: Value| json!({ "name": "zstd", "configuration": configuration });
        for (input, output) in [
            (
                json!(["bytes", "crc32c"]),
                json!([{ "name": "bytes", "configuration": {} }, { "name": "crc32c" }]),
            ),
            (
                json!([bytes("little"), zstd(json!({ "level": 3 }))]),
                json!([
                    bytes("little"),
                    zstd(json!({ "checksum": false, "level": 19 }))
                ]),
            ),
            (
                json!([{ "name": "blosc", "configuration": { "cname": "lz4", "clevel": 1 } }]),
                json!([{ "name": "blosc", "configuration": { "clevel": 9, "cname": "lz4" } }]),
            ),
        ] {
            assert_eq!(
                difference_of(&input, &output, false),
                None,
                "{input} {output}"
            );
        }
        let (little, big) = (json!([bytes("little")]), json!([bytes("big")]));
        assert_eq!(difference_of(&little, &big, true), None);
    }

    #[test]
    fn what_a_decoder_needs_may_not_differ() {
        let codec = |name: &str, configuration: Value| json!([{ "name": name, "configuration": configuration }]);
        for (input, output) in [
            (
                codec("bytes", json!({ "endian": "little" })),
                codec("bytes", json!({ "endian": "big" })),
            ),
            (
                codec("transpose", json!({ "order": [0, 1] })),
                codec("transpose", json!({ "order": [1, 0] })),
            ),
            (
                codec("zstd", json!({ "level": 1 })),
                codec("gzip", json!({ "level": 1 })),
            ),
            (
                codec("zstd", json!({ "level": 1 })),
                codec("zstd", json!({ "level": 1, "checksum": true })),
            ),
            // Nothing is known of this one, so nothing of it may differ.
            (
                codec("mystery", json!({ "level": 1 })),
                codec("mystery", json!({ "level": 2 })),
            ),
            (json!(["bytes", "crc32c"]), json!(["bytes"])),
            (
                codec(
                    "sharding_indexed",
                    json!({ "chunk_shape": [2], "codecs": ["bytes"] }),
                ),
                codec(
                    "sharding_indexed",
                    json!({ "chunk_shape": [2], "codecs": ["bytes"], "index_location": "start" }),
                ),
            ),
        ] {
            assert!(
                difference_of(&input, &output, false).is_some(),
                "{input} {output}"
            );
        }
    }
}

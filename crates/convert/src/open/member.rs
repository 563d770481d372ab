//! Finds the member of an array's metadata that zarrs does not understand.
//!
//! The errors of zarrs do not say which codec is wrong. So this module tries each member alone.

use serde_json::Value;
use zarrs::array::DataType;
use zarrs::metadata::FillValueMetadata;
use zarrs::metadata::v2::{DataTypeMetadataV2, MetadataV2};
use zarrs::metadata::v3::MetadataV3;
use zarrs_codec::Codec;

use crate::extensions::as_written;
use crate::v2;

/// The number of bytes of a value that a message shows.
const SHOWN: usize = 160;

/// A member that zarrs does not understand: its path in the file, its value, and the reason.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) path: String,
    pub(super) value: String,
    pub(super) reason: String,
}

impl Member {
    fn new(path: impl Into<String>, value: &Value, reason: impl std::fmt::Display) -> Self {
        let mut value = value.to_string();
        if value.len() > SHOWN {
            let end = (0..=SHOWN).rev().find(|&end| value.is_char_boundary(end));
            value.truncate(end.unwrap_or(0));
            value += "…";
        }
        Self {
            path: path.into(),
            value,
            reason: reason.to_string().trim_end().to_string(),
        }
    }
}

/// Returns the first member of an array's metadata that zarrs does not understand; `None` if it understands
/// each one alone.
pub(super) fn not_understood(metadata: &Value) -> Option<Member> {
    if metadata["zarr_format"] == 2 {
        of_v2(metadata)
    } else {
        of_v3(metadata)
    }
}

fn of_v3(metadata: &Value) -> Option<Member> {
    let value = &metadata["data_type"];
    let data_type = match extension(value)
        .and_then(|known| DataType::from_metadata(&known).map_err(|error| error.to_string()))
    {
        Ok(data_type) => data_type,
        Err(reason) => return Some(Member::new("data_type", value, reason)),
    };
    let fill_value = &metadata["fill_value"];
    if !is_fill_value(fill_value, |value| data_type.fill_value_v3(value).is_ok()) {
        let reason = format!("no element of {} is written so", metadata["data_type"]);
        return Some(Member::new("fill_value", fill_value, reason));
    }
    codecs("codecs", &metadata["codecs"])
}

/// Returns the first codec in `list` that zarrs does not understand. Tries the codecs within a sharding codec
/// one by one.
fn codecs(path: &str, list: &Value) -> Option<Member> {
    let list = list.as_array()?;
    list.iter().enumerate().find_map(|(number, value)| {
        let path = format!("{path}[{number}]");
        let known = extension(value);
        let known =
            known.and_then(|known| Codec::from_metadata(&known).map_err(|error| error.to_string()));
        let reason = known.err()?;
        let within = ["codecs", "index_codecs"].into_iter().find_map(|name| {
            let list = &value["configuration"][name];
            codecs(&format!("{path}.configuration.{name}"), list)
        });
        Some(within.unwrap_or_else(|| Member::new(path, value, reason)))
    })
}

fn extension(value: &Value) -> Result<MetadataV3, String> {
    serde_json::from_value(value.clone()).map_err(|error| error.to_string())
}

fn of_v2(metadata: &Value) -> Option<Member> {
    let value = &metadata["dtype"];
    let known = serde_json::from_value::<DataTypeMetadataV2>(value.clone());
    let data_type = match known.map(|known| DataType::from_metadata(&known)) {
        Ok(Ok(data_type)) => data_type,
        Ok(Err(error)) => {
            let written = value.as_str().and_then(as_written);
            return Some(Member::new(
                "dtype",
                written.as_ref().unwrap_or(value),
                error,
            ));
        }
        Err(error) => return Some(Member::new("dtype", value, error)),
    };
    let order = &metadata["order"];
    if *order != "C" && *order != "F" {
        return Some(Member::new("order", order, "it is neither \"C\" nor \"F\""));
    }
    let fill_value = &metadata["fill_value"];
    if !is_fill_value(fill_value, |value| data_type.fill_value_v2(value).is_ok()) {
        let reason = format!("no element of {} is written so", metadata["dtype"]);
        return Some(Member::new("fill_value", fill_value, reason));
    }
    let filters = metadata["filters"].as_array().into_iter().flatten();
    let filters = filters
        .enumerate()
        .map(|(number, filter)| (format!("filters[{number}]"), filter));
    let compressor = Some(("compressor".to_string(), &metadata["compressor"]));
    let mut all = filters.chain(compressor.filter(|(_, value)| !value.is_null()));
    all.find_map(|(path, value)| {
        let known = serde_json::from_value::<MetadataV2>(value.clone());
        let known = known
            .map_err(|error| error.to_string())
            .and_then(|known| Codec::from_metadata(&known).map_err(|error| error.to_string()));
        let reason = known.err()?;
        let named = value["id"].as_str().and_then(v2::refusal);
        Some(match named {
            Some(named) => Member::new(path, value, named),
            None => Member::new(path, value, reason),
        })
    })
}

fn is_fill_value(value: &Value, is_known: impl Fn(&FillValueMetadata) -> bool) -> bool {
    serde_json::from_value(value.clone()).is_ok_and(|value| is_known(&value))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::not_understood;

    fn v3(member: &str, value: &Value) -> Value {
        let mut metadata = json!({
            "zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "uint16",
            "fill_value": 0,
            "codecs": [{ "name": "bytes", "configuration": { "endian": "little" } }],
        });
        metadata[member] = value.clone();
        metadata
    }

    fn v2(member: &str, value: &Value) -> Value {
        let mut metadata = json!({
            "zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<i4", "order": "C",
            "fill_value": 0, "compressor": null, "filters": null,
        });
        metadata[member] = value.clone();
        metadata
    }

    #[test]
    fn members_are_named() {
        let zstd = json!({ "name": "zstd", "configuration": { "level": "x" } });
        let sharding = |codecs: Value| {
            json!([{ "name": "sharding_indexed", "configuration": {
                "chunk_shape": [2], "codecs": codecs, "index_codecs": ["bytes"],
            } }])
        };
        for (metadata, path) in [
            (v3("data_type", &json!("uint17")), "data_type"),
            (v3("fill_value", &json!("one")), "fill_value"),
            (v3("codecs", &json!(["bytes", zstd])), "codecs[1]"),
            (v3("codecs", &json!(["bytes", "lz77"])), "codecs[1]"),
            (
                v3("codecs", &sharding(json!(["bytes", zstd]))),
                "codecs[0].configuration.codecs[1]",
            ),
            (v2("dtype", &json!([["a", "<i4"]])), "dtype"),
            (v2("dtype", &json!("<i3")), "dtype"),
            (v2("order", &json!("X")), "order"),
            (v2("fill_value", &json!("x")), "fill_value"),
            (
                v2("compressor", &json!({ "id": "blosc", "cname": "lz5" })),
                "compressor",
            ),
            (
                v2("filters", &json!([{ "id": "none of these" }])),
                "filters[0]",
            ),
        ] {
            let member = not_understood(&metadata).unwrap();
            assert_eq!(member.path, path, "{metadata}");
            assert!(!member.reason.is_empty());
        }
        assert_eq!(not_understood(&v3("shape", &json!([4]))), None);
        assert_eq!(not_understood(&v2("shape", &json!([4]))), None);
        // Metadata of any shape are looked at without a panic.
        for metadata in [
            json!([]),
            json!({}),
            json!(null),
            json!({ "zarr_format": 2 }),
        ] {
            let _ = not_understood(&metadata);
        }
    }
}

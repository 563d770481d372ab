//! The metadata that OUT will have: those of IN with other shards, or those that are in OUT.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use zarrs::array::codec::ShardingIndexLocation;

use super::chain;
use super::side::Side;
use super::target::{Before, Noted};
use super::{Layout, Reshard};
use crate::failure::Failure;
use crate::open::{self, read_file};
use crate::shapes::edges;

/// Reads the metadata of IN.
pub(super) fn read_metadata(
    input: &Path,
    settings: &Reshard,
) -> Result<Map<String, Value>, Failure> {
    let path = input.join("zarr.json");
    let bytes = read_file(&path).map_err(|error| {
        if input.join(".zarray").is_file() {
            return settings.cannot_move("it is an array of Zarr v2");
        }
        let failure = Failure::failed(format!("cannot read {}: {error}", path.display()));
        failure.with_remedy("name the directory of a Zarr v3 array, which has a zarr.json in it")
    })?;
    let metadata = open::parsed(&bytes, &path.display().to_string())?;
    open::must_be_plain(
        &settings.input,
        "reshard",
        &open::repairs_of("zarr.json", &bytes),
    )?;
    match metadata {
        Value::Object(metadata) => Ok(metadata),
        _ => Ok(Map::new()), // `parsed` returns objects alone
    }
}

/// Returns the metadata that OUT will have, and these metadata in the form for comparisons.
///
/// # Errors
/// Subchunks of IN cannot be moved to OUT as they are.
pub(super) fn goal(
    settings: &Reshard,
    document: &Map<String, Value>,
    side: &Side,
    before: &Before,
) -> Result<(Map<String, Value>, Side), Failure> {
    let wanted = wanted(settings, document, side, before)?;
    let goal = Side::of(&wanted).map_err(|reason| {
        settings.refused(format!("cannot reshard to {}: {reason}", settings.output))
    })?;
    let differences = side.differences(&goal);
    if !differences.is_empty() {
        return Err(settings.refused(format!(
            "cannot reshard {} to {} without decoding: {}",
            settings.input,
            settings.output,
            differences.join("; ")
        )));
    }
    Ok((wanted, goal))
}

/// Returns the metadata that OUT will have: those in OUT, or those of IN with the shards of the settings. The
/// codecs of a subchunk become those of IN if the two chains decode alike.
fn wanted(
    settings: &Reshard,
    document: &Map<String, Value>,
    side: &Side,
    before: &Before,
) -> Result<Map<String, Value>, Failure> {
    let has_wishes =
        settings.layout.is_some() || settings.index.is_some() || settings.chunk_keys.is_some();
    let said = |metadata: Map<String, Value>| {
        let other = Side::of(&metadata).map_err(|reason| {
            settings.refused(format!("cannot reshard to {}: {reason}", settings.output))
        })?;
        // Metadata with other codecs stay unchanged, and the caller reports the difference.
        let decodes = side.differences(&other).is_empty();
        Ok(if decodes {
            with_chain(metadata, &side.chain)
        } else {
            metadata
        })
    };
    match before {
        Before::Begun(Noted { metadata, .. }) => {
            let agrees = if settings.layout.is_some() {
                described(settings, document, side)? == *metadata
            } else {
                agrees(settings, metadata)
            };
            if !agrees {
                return Err(Failure::failed(format!(
                    "{} is the incomplete output of a command with other options",
                    settings.output
                ))
                .with_remedy("go on without --shard, --chunks, --index and --chunk-keys"));
            }
            Ok(metadata.clone())
        }
        Before::Described(_) if has_wishes => Err(Failure::usage(format!(
            "{} has a zarr.json, which says what it becomes: leave out --shard, --chunks, --index and --chunk-keys",
            settings.output
        ))),
        Before::Described(metadata) => said(metadata.clone()),
        Before::Empty if settings.layout.is_none() => Err(Failure::usage(
            "what is OUT to be? Give --shard A,B,… for shards of this shape in elements, or --chunks for none",
        )),
        Before::Empty => described(settings, document, side),
    }
}

/// Returns whether `metadata` agree with --index and --chunk-keys, as far as these are given.
fn agrees(settings: &Reshard, metadata: &Map<String, Value>) -> bool {
    let index = settings.index.is_none_or(|index| {
        let sharding = metadata.get("codecs").and_then(|codecs| codecs.get(0));
        let said = sharding.and_then(|sharding| {
            let configuration = &sharding["configuration"];
            let is_sharded = chain::name_of(sharding) == "sharding_indexed";
            let location = configuration["index_location"].as_str().unwrap_or("end");
            is_sharded.then_some(location == "start")
        });
        said == Some(index == ShardingIndexLocation::Start)
    });
    let keys = metadata.get("chunk_key_encoding");
    index
        && settings
            .chunk_keys
            .as_ref()
            .is_none_or(|encoding| keys == Some(&json!(encoding)))
}

/// Returns the metadata of IN with the shards and keys of the settings.
fn described(
    settings: &Reshard,
    document: &Map<String, Value>,
    side: &Side,
) -> Result<Map<String, Value>, Failure> {
    let mut metadata = document.clone();
    let shape = match &settings.layout {
        None | Some(Layout::Chunks) => side.subchunk.clone(),
        Some(Layout::Shards(shard)) => {
            let shard = edges(shard);
            let is_multiple = shard.len() == side.subchunk.len()
                && shard.iter().zip(&side.subchunk).all(|(a, b)| a % b == 0);
            if !is_multiple {
                return Err(Failure::usage(format!(
                    "shards of {shard:?} are not whole multiples of the {} of {:?} in {}",
                    if side.index.is_some() {
                        "subchunks"
                    } else {
                        "chunks"
                    },
                    side.subchunk,
                    settings.input
                )));
            }
            shard
        }
    };
    metadata.insert(
        "chunk_grid".to_string(),
        json!({ "name": "regular", "configuration": { "chunk_shape": shape } }),
    );
    if let Some(encoding) = &settings.chunk_keys {
        metadata.insert("chunk_key_encoding".to_string(), json!(encoding));
    }
    let codecs = if settings.layout == Some(Layout::Chunks) {
        side.chain.clone()
    } else {
        let bytes = json!({ "name": "bytes", "configuration": { "endian": "little" } });
        let index_codecs = match document["codecs"][0]["configuration"].get("index_codecs") {
            Some(codecs) if side.index.is_some() => codecs.clone(),
            _ => json!([bytes, { "name": "crc32c" }]),
        };
        let as_in = side.index.as_ref().map(|index| index.location);
        let location = match settings.index.or(as_in) {
            Some(ShardingIndexLocation::Start) => "start",
            _ => "end",
        };
        vec![json!({ "name": "sharding_indexed", "configuration": {
            "chunk_shape": side.subchunk,
            "codecs": side.chain,
            "index_codecs": index_codecs,
            "index_location": location,
        }})]
    };
    metadata.insert("codecs".to_string(), codecs.into());
    Ok(metadata)
}

/// Returns metadata in which the codecs of a subchunk are `chain`.
fn with_chain(mut metadata: Map<String, Value>, chain: &[Value]) -> Map<String, Value> {
    let Some(codecs) = metadata.get_mut("codecs").and_then(Value::as_array_mut) else {
        return metadata;
    };
    match codecs.as_mut_slice() {
        [sharding] if chain::name_of(sharding) == "sharding_indexed" => {
            sharding["configuration"]["codecs"] = chain.into();
        }
        _ => *codecs = chain.to_vec(),
    }
    metadata
}

/// Returns the text of OUT's `zarr.json`. Members that the `zarr.json` of an array has already keep their
/// text, so that numbers stay as they were written.
pub(super) fn metadata_text(
    said: [&Path; 2],
    wanted: &Map<String, Value>,
) -> Result<String, Failure> {
    let mut texts: Vec<BTreeMap<String, Box<RawValue>>> = Vec::new();
    for path in said.map(|directory| directory.join("zarr.json")) {
        match read_file(&path) {
            Ok(text) => texts.push(serde_json::from_slice(&text).map_err(|error| {
                open::unreadable(&path.display().to_string(), &error.to_string())
            })?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let message = format!("cannot read {}: {error}", path.display());
                return Err(Failure::failed(message));
            }
        }
    }
    let members = wanted.iter().map(|(name, value)| {
        let said = texts.iter().filter_map(|text| text.get(name));
        let text = said
            .map(|raw| raw.get())
            .find(|text| serde_json::from_str(text).is_ok_and(|said: Value| said == *value));
        let text = match text {
            Some(text) => text.to_string(),
            None => format!("{value:#}").replace('\n', "\n  "),
        };
        format!("  {}: {text}", Value::String(name.clone()))
    });
    let members: Vec<_> = members.collect();
    Ok(format!("{{\n{}\n}}", members.join(",\n")))
}

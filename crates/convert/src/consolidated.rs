//! Consolidated metadata: a group's copy of the metadata of all arrays and groups below it.
//!
//! The specification of Zarr v3 does not have consolidated metadata. The form is that of zarr-python 3.
//! Readers such as xarray open them without looking at the arrays, so they are wrong as soon as an array
//! changes its shape.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use zarrs_storage::{StorageError, StoreKey};

use crate::failure::Failure;
use crate::open::{self, Place, Store, read_file};
use zarrs_cuda::storage::{Durable, replace};

/// The file with the consolidated metadata of a group of Zarr v2.
pub const OF_V2: &str = ".zmetadata";
/// The member of a group's `zarr.json` with the consolidated metadata in Zarr v3.
pub const OF_V3: &str = "consolidated_metadata";

type Members = BTreeMap<String, Box<RawValue>>;

/// Returns whether a group, whose `zarr.json` has these members, has consolidated metadata. A null does not
/// count: a copy of a group's metadata may have it.
pub fn is_in(members: &Members) -> bool {
    members
        .get(OF_V3)
        .is_some_and(|value| value.get() != "null")
}

/// Returns the metadata of a group with consolidated metadata for `below`: the paths relative to the group,
/// and the metadata, of all arrays and groups below it.
pub fn with<'a>(
    group: &[u8],
    below: impl IntoIterator<Item = (&'a str, &'a RawValue)>,
) -> serde_json::Result<Vec<u8>> {
    let mut group: Members = serde_json::from_slice(group)?;
    let mut copies = Members::new();
    for (path, metadata) in below {
        let mut members: Members = serde_json::from_str(metadata.get())?;
        if members
            .get("node_type")
            .is_some_and(|kind| kind.get() == "\"group\"")
        {
            // Only the outermost group has copies; groups in its list have an empty list.
            members.insert(OF_V3.to_string(), inline(&Members::new())?);
        }
        copies.insert(path.to_string(), to_raw_value(&members)?);
    }
    group.insert(OF_V3.to_string(), inline(&copies)?);
    serde_json::to_vec_pretty(&group)
}

fn inline(copies: &Members) -> serde_json::Result<Box<RawValue>> {
    let mut inline = Members::new();
    inline.insert("kind".to_string(), to_raw_value("inline")?);
    inline.insert("must_understand".to_string(), to_raw_value(&false)?);
    inline.insert("metadata".to_string(), to_raw_value(copies)?);
    to_raw_value(&inline)
}

/// Renews the metadata of the arrays and groups `changed` (paths relative to `group`) in the consolidated
/// metadata of the directory `group`. Does nothing if the group has none. Returns whether it has consolidated
/// metadata.
///
/// The `zarr.json` of the group is replaced at once, and only if no other process has changed it since it was
/// read.
///
/// # Errors
/// The reason why the consolidated metadata could not be renewed.
pub fn renew(group: &Path, changed: &[String]) -> Result<bool, String> {
    let path = group.join("zarr.json");
    let cannot = |error: &dyn std::fmt::Display| {
        format!(
            "cannot renew the consolidated metadata in {}: {error}",
            path.display()
        )
    };
    // Another process may change the group at the same time, so the change is tried at most 8 times.
    for _ in 0..8 {
        let before = match read_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            read => read.map_err(|error| cannot(&error))?,
        };
        let members: Members = serde_json::from_slice(&before).map_err(|error| cannot(&error))?;
        if !is_in(&members) {
            return Ok(false);
        }
        let copies = copies_of(&members);
        let mut copies = copies.ok_or_else(|| cannot(&"they are not understood"))?;
        for name in changed {
            let metadata = match read_file(&group.join(name).join("zarr.json")) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    copies.remove(name);
                    continue;
                }
                read => read.map_err(|error| cannot(&error))?,
            };
            let metadata = serde_json::from_slice(&metadata).map_err(|error| cannot(&error))?;
            copies.insert(name.clone(), metadata);
        }
        let below = copies.iter().map(|(path, text)| (&**path, &**text));
        let after = with(&before, below).map_err(|error| cannot(&error))?;
        if read_file(&path).map_err(|error| cannot(&error))? != before {
            continue;
        }
        replace(&path, &after, Durable::Bytes).map_err(|error| cannot(&error))?;
        return Ok(true);
    }
    Err(cannot(&"another program changes the group again and again"))
}

/// Returns the members of a group's consolidated metadata, by their paths; `None` if the group has none.
fn copies_of(group: &Members) -> Option<Members> {
    let consolidated: Members = serde_json::from_str(group.get(OF_V3)?.get()).ok()?;
    serde_json::from_str(consolidated.get("metadata")?.get()).ok()
}

/// Renews the consolidated metadata of groups, `place` or above it, that differ from the present metadata of `place`,
/// or of the nodes with the paths `below` it. Returns a note about groups whose consolidated metadata were not renewed,
/// because they are no directories or cannot be written. The note has the command that renews them.
pub fn renew_stale(place: &Place, below: &[&str]) -> Option<String> {
    let mut failed = String::new();
    for (group, names) in stale(place, below, is_equal) {
        match &group {
            Place::Directory(directory) => {
                if let Err(error) = renew(directory, &names) {
                    failed += &format!("\n  {error}{}", remedy(&group));
                }
            }
            Place::Url(_) => failed += &remedy(&group),
        }
    }
    (!failed.is_empty()).then(|| {
        format!(
            "note: a group has consolidated metadata that describe {place} as it was, and readers that use them see \
             other elements, or an error. This renews them:{failed}"
        )
    })
}

/// Returns a sentence about each group, the group `place` and groups above it, whose consolidated metadata differ from
/// the metadata of the arrays with the paths `below` it: readers that use them see wrong elements, or none.
pub fn differences(place: &Place, below: &[&str]) -> Vec<String> {
    let groups = stale(place, below, means_the_same).into_iter();
    groups
        .map(|(group, names)| {
            format!(
                "the consolidated metadata of {group} are not those of {}: readers that use them see other elements \
                 or attributes, none, or an error. This renews them:{}",
                names.join(", "),
                remedy(&group)
            )
        })
        .collect()
}

/// Returns the command that renews the consolidated metadata of a group.
fn remedy(group: &Place) -> String {
    format!("\n  python -c \"import zarr; zarr.consolidate_metadata('{group}')\"")
}

/// Returns the groups, `place` or above it, whose consolidated metadata are not the `same` as the present metadata of
/// `place`, or of the nodes with the paths `below` it. Each has the paths of these nodes, relative to the group.
fn stale(
    place: &Place,
    below: &[&str],
    same: fn(&Value, &Value) -> bool,
) -> Vec<(Place, Vec<String>)> {
    let places = place.itself_and_above().map_while(|(at, path)| {
        let metadata = metadata_of(&at)?;
        // The hierarchy ends where no group is above.
        let is_in = path.is_empty() || metadata["node_type"] == "group";
        is_in.then_some((at, path, metadata))
    });
    let groups: Vec<_> = places
        .filter(|(_, _, metadata)| !metadata[OF_V3].is_null())
        .collect();
    if groups.is_empty() {
        return Vec::new();
    }
    let paths = std::iter::once("").chain(below.iter().copied());
    let nodes: Vec<_> = paths
        .filter_map(|path| Some((path, metadata_of(&place.join(path))?)))
        .collect();
    let stale = groups.into_iter().map(|(at, prefix, group)| {
        let copies = &group[OF_V3]["metadata"];
        let paths = nodes.iter().filter_map(|(path, now)| {
            let parts = [&*prefix, *path]
                .into_iter()
                .filter(|part| !part.is_empty());
            let path = parts.collect::<Vec<_>>().join("/");
            (!path.is_empty() && !same(&copies[&path], now)).then_some(path)
        });
        (at, paths.collect::<Vec<_>>())
    });
    stale.filter(|(_, paths)| !paths.is_empty()).collect()
}

/// Returns whether `copy`, from consolidated metadata, says the same as `now`. Members that zarr-python
/// writes although they are empty do not count, nor does consolidated metadata inside.
fn is_equal(copy: &Value, now: &Value) -> bool {
    let plain = |metadata: &Value| {
        let mut metadata = metadata.clone();
        if let Some(members) = metadata.as_object_mut() {
            members.remove(OF_V3);
            // zarr-python writes these members even if they are empty.
            members.retain(|name, value| {
                let is_empty = *value == json!({}) || *value == json!([]) || value.is_null();
                !(is_empty
                    && ["attributes", "storage_transformers", "dimension_names"].contains(&&**name))
            });
        }
        metadata
    };
    plain(copy) == plain(now)
}

/// Returns whether readers find the same elements and attributes by `copy`, from consolidated metadata, as by `now`.
/// Other libraries write the same metadata in other words: with defaults, or other settings of compressors.
fn means_the_same(copy: &Value, now: &Value) -> bool {
    let same = |member: &str| numbers(&copy[member]) == numbers(&now[member]);
    let is_text = copy["fill_value"].is_string() || now["fill_value"].is_string();
    let attributes = |metadata: &Value| match &metadata["attributes"] {
        Value::Null => json!({}),
        attributes => numbers(attributes),
    };
    let names = |metadata: &Value| match &metadata["dimension_names"] {
        Value::Array(names) if names.iter().any(|name| !name.is_null()) => Some(names.clone()),
        _ => None,
    };
    ["node_type", "shape", "data_type", "chunk_grid"]
        .iter()
        .all(|member| same(member))
        && (is_text || same("fill_value"))
        && attributes(copy) == attributes(now)
        && names(copy) == names(now)
        && separator(copy) == separator(now)
        && decoding(&copy["codecs"], &copy["data_type"])
            == decoding(&now["codecs"], &now["data_type"])
}

/// Returns the encoding of chunk keys with its separator, which has a default.
fn separator(metadata: &Value) -> (Value, Value) {
    let encoding = &metadata["chunk_key_encoding"];
    let separator = match (
        &encoding["configuration"]["separator"],
        encoding["name"].as_str(),
    ) {
        (Value::Null, Some("v2")) => json!("."),
        (Value::Null, _) => json!("/"),
        (separator, _) => separator.clone(),
    };
    (encoding["name"].clone(), separator)
}

/// Returns what decides how codecs decode. Compressed bytes tell the settings of their compressor.
fn decoding(codecs: &Value, data_type: &Value) -> Value {
    let is_byte = data_type
        .as_str()
        .is_some_and(|name| ["bool", "int8", "uint8"].contains(&name));
    let codecs = codecs.as_array().into_iter().flatten();
    let each = codecs.map(|codec| {
        let (name, settings) = (&codec["name"], &codec["configuration"]);
        match name.as_str() {
            Some("transpose") => json!([name, settings["order"]]),
            Some("bytes") if !is_byte => json!([name, settings["endian"]]),
            Some("sharding_indexed") => {
                let place = settings["index_location"].as_str().unwrap_or("end");
                let inner = decoding(&settings["codecs"], data_type);
                let index = decoding(&settings["index_codecs"], &json!("uint64"));
                json!([name, numbers(&settings["chunk_shape"]), inner, index, place])
            }
            _ => json!([name]),
        }
    });
    each.collect()
}

/// Returns `value` with each whole number as an integer: 0.0 is 0.
fn numbers(value: &Value) -> Value {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a whole number that is small enough"
    )]
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 9e15 => {
                json!(float as i64)
            }
            _ => value.clone(),
        },
        Value::Array(values) => values.iter().map(numbers).collect(),
        Value::Object(members) => {
            let members = members
                .iter()
                .map(|(name, value)| (name.clone(), numbers(value)));
            Value::Object(members.collect())
        }
        value => value.clone(),
    }
}

fn metadata_of(place: &Place) -> Option<Value> {
    let store = open::store(place).ok()?.store;
    let key = StoreKey::new("zarr.json").ok()?;
    serde_json::from_slice(&store.get(&key).ok()??).ok()
}

/// Returns the paths of all nodes that the consolidated metadata at the root of the store list, except for
/// the root.
///
/// # Errors
/// The store fails, or the metadata are not understood.
pub fn listed(place: &Place, store: &Store) -> Result<BTreeSet<String>, Failure> {
    let get = |name: &str| {
        let file = place.join(name).to_string();
        let value = StoreKey::new(name).map_err(StorageError::from);
        let value = value.and_then(|key| store.get(&key));
        let value = value.map_err(Failure::to(format_args!("read {file}")))?;
        value.map_or(Ok(Value::Null), |value| open::parsed(&value, &file))
    };
    let of_v3 = get("zarr.json")?;
    let of_v2 = get(OF_V2)?;
    let names = |value: &Value| -> Vec<String> {
        let names = value["metadata"].as_object().into_iter();
        names.flat_map(|names| names.keys().cloned()).collect()
    };
    let mut listed: BTreeSet<_> = names(&of_v3[OF_V3]).into_iter().collect();
    listed.extend(names(&of_v2).iter().filter_map(|key| {
        let (path, name) = key.rsplit_once('/')?;
        [".zarray", ".zgroup"]
            .contains(&name)
            .then(|| path.to_string())
    }));
    listed.remove("");
    Ok(listed)
}

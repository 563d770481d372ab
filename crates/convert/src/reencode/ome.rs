//! Translates the description of images from [OME-Zarr 0.4](https://ngff.openmicroscopy.org/0.4/), which is for Zarr v2,
//! to [0.5](https://ngff.openmicroscopy.org/0.5/), which is for Zarr v3.
//!
//! In 0.5, all members are in the attribute `ome`, which has the only version, and arrays have the names of the axes as
//! their dimension names. Nothing else differs, and every other member and attribute keeps its text.

use std::collections::BTreeMap;

use ome_zarr_metadata::Validate;
use ome_zarr_metadata::v0_5::OmeFields;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// The members of a JSON object.
type Members = BTreeMap<String, Box<RawValue>>;

/// The attributes of a group in OME-Zarr 0.5.
pub(super) struct InV05 {
    pub(super) attributes: Box<RawValue>,
    /// For each level of an image, its path in the group, and the names of the axes.
    pub(super) levels: Vec<(String, Vec<String>)>,
    /// The reason why readers may refuse the description; `None` if it follows the rules.
    pub(super) problem: Option<String>,
}

/// An image of OME-Zarr 0.4, as far as it is translated.
#[derive(Deserialize)]
struct Image {
    axes: Vec<Axis>,
    datasets: Vec<Level>,
}

#[derive(Deserialize)]
struct Axis {
    name: String,
}

#[derive(Deserialize)]
struct Level {
    path: String,
}

/// Returns the `attributes` of a group in OME-Zarr 0.5, which has the `name`; `None` if they describe nothing of OME-Zarr 0.4.
///
/// # Errors
/// The reason why they have to be left as they are: they are of another version, or not understood.
pub(super) fn in_v05(name: &str, attributes: &RawValue) -> Result<Option<InV05>, String> {
    let Ok(mut others) = serde_json::from_str::<Members>(attributes.get()) else {
        return Ok(None); // attributes that are no object are refused elsewhere
    };
    let names = members_of(name, &others);
    let found = names.into_iter().filter_map(|name| {
        let value = others.remove(name)?;
        Some((name.to_owned(), value))
    });
    let mut found: Members = found.collect();
    if found.is_empty() {
        return Ok(None);
    }
    if others.contains_key("ome") {
        return Err("they have `ome` of OME-Zarr 0.5, too".to_owned());
    }
    for (name, value) in &mut found {
        *value = without_version(name, value)?;
    }
    let images: Vec<Image> = match found.get("multiscales") {
        Some(images) => serde_json::from_str(images.get())
            .map_err(|error| format!("`multiscales` is not understood: {error}"))?,
        None => Vec::new(),
    };
    found.insert("version".to_owned(), raw(&"0.5")?);
    let ome = raw(&found)?;
    let problem = problem(&ome);
    others.insert("ome".to_owned(), ome);
    let levels = images.into_iter().flat_map(|image| {
        let names: Vec<String> = image.axes.into_iter().map(|axis| axis.name).collect();
        let levels = image.datasets.into_iter();
        levels.map(move |level| (level.path.trim_end_matches('/').to_owned(), names.clone()))
    });
    Ok(Some(InV05 {
        levels: levels.collect(),
        attributes: raw(&others)?,
        problem,
    }))
}

/// Returns the names of the attributes that are OME-Zarr's. Some names are common words: these count only where
/// OME-Zarr has them.
fn members_of(group: &str, attributes: &Members) -> Vec<&'static str> {
    let begins = |name: &str, with: char| {
        let value = attributes.get(name);
        value.is_some_and(|value| value.get().trim_start().starts_with(with))
    };
    let mut names = Vec::new();
    if begins("multiscales", '[') {
        names.push("multiscales");
        names.extend(["omero", "image-label"]);
    }
    for name in ["plate", "well"] {
        if begins(name, '{') {
            names.push(name);
        }
    }
    if group == "labels" && begins("labels", '[') {
        names.push("labels");
    }
    if group == "OME" && begins("series", '[') {
        names.push("series");
    }
    if attributes.contains_key("bioformats2raw.layout") {
        names.push("bioformats2raw.layout");
    }
    names
}

/// Returns a member without the version that 0.4 has in it. A plate keeps a version, which is the new one: programs
/// expect it there, as in `ome`.
fn without_version(name: &str, value: &RawValue) -> Result<Box<RawValue>, String> {
    let one = |mut members: Members| match members.remove("version") {
        Some(version) if !matches!(version.get(), "\"0.4\"" | "null") => {
            Err(format!("`{name}` is of version {}", version.get()))
        }
        _ => Ok(members),
    };
    match name {
        "multiscales" => {
            let images: Vec<Members> = serde_json::from_str(value.get())
                .map_err(|error| format!("`{name}` is not understood: {error}"))?;
            let images: Result<Vec<_>, _> = images.into_iter().map(one).collect();
            raw(&images?)
        }
        "omero" | "image-label" | "plate" | "well" => {
            let members: Members = serde_json::from_str(value.get())
                .map_err(|error| format!("`{name}` is not understood: {error}"))?;
            let mut members = one(members)?;
            if name == "plate" {
                members.insert("version".to_owned(), raw(&"0.5")?);
            }
            raw(&members)
        }
        _ => Ok(value.to_owned()),
    }
}

/// Returns the reason why `ome` does not follow the rules of OME-Zarr 0.5.
fn problem(ome: &RawValue) -> Option<String> {
    let fields: OmeFields = match serde_json::from_str(ome.get()) {
        Ok(fields) => fields,
        // Members that OME-Zarr does not name are allowed.
        Err(error) if error.to_string().starts_with("unknown field") => return None,
        Err(error) => return Some(error.to_string()),
    };
    let problems = fields.validate().err()?;
    let lines = problems.to_string();
    Some(lines.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn raw(value: &impl Serialize) -> Result<Box<RawValue>, String> {
    to_raw_value(value).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn translated(name: &str, attributes: &Value) -> Result<Option<InV05>, String> {
        in_v05(name, &raw(attributes).unwrap())
    }

    fn json_of(raw: &RawValue) -> Value {
        serde_json::from_str(raw.get()).unwrap()
    }

    fn image() -> Value {
        json!({
            "version": "0.4",
            "name": "cells",
            "axes": [
                { "name": "y", "type": "space", "unit": "micrometer" },
                { "name": "x", "type": "space", "unit": "micrometer" },
            ],
            "datasets": [
                { "path": "0", "coordinateTransformations": [{ "type": "scale", "scale": [0.5, 0.5] }] },
                { "path": "s/1/", "coordinateTransformations": [{ "type": "scale", "scale": [1.0, 1.0] }] },
            ],
        })
    }

    #[test]
    fn an_image() {
        let attributes = json!({
            "mine": { "version": "0.4", "big": 1e300 },
            "multiscales": [image()],
            "omero": { "version": "0.4", "channels": [], "name": "c" },
        });
        let found = translated("a", &attributes).unwrap().unwrap();
        assert_eq!(found.problem, None);
        let mut bare = image();
        bare.as_object_mut().unwrap().remove("version");
        assert_eq!(
            json_of(&found.attributes),
            json!({
                "mine": { "version": "0.4", "big": 1e300 },
                "ome": {
                    "version": "0.5",
                    "multiscales": [bare],
                    "omero": { "channels": [], "name": "c" },
                },
            })
        );
        let names = vec!["y".to_owned(), "x".to_owned()];
        let levels = ["0", "s/1"].map(|path| (path.to_owned(), names.clone()));
        assert_eq!(found.levels, levels);
    }

    #[test]
    fn labels_plates_and_wells() {
        let mut label = image();
        label["name"] = json!("nuclei");
        let attributes = json!({
            "multiscales": [label],
            "image-label": { "version": "0.4", "colors": [{ "label-value": 1, "rgba": [1, 2, 3, 4] }] },
        });
        let found = translated("nuclei", &attributes).unwrap().unwrap();
        assert_eq!(found.problem, None);
        let ome = &json_of(&found.attributes)["ome"];
        assert_eq!(ome["image-label"]["colors"][0]["label-value"], 1);
        assert_eq!(ome["image-label"].get("version"), None);

        let attributes = json!({ "labels": ["nuclei"] });
        let found = translated("labels", &attributes).unwrap().unwrap();
        assert_eq!(
            json_of(&found.attributes)["ome"],
            json!({ "version": "0.5", "labels": ["nuclei"] })
        );
        assert!(
            translated("0", &attributes).unwrap().is_none(),
            "a word of the user"
        );

        let plate = json!({ "plate": {
            "version": "0.4", "name": "p", "field_count": 1,
            "rows": [{ "name": "A" }], "columns": [{ "name": "1" }],
            "wells": [{ "path": "A/1", "rowIndex": 0, "columnIndex": 0 }],
        }});
        let found = translated("", &plate).unwrap().unwrap();
        assert_eq!(found.problem, None);
        let plate = &json_of(&found.attributes)["ome"]["plate"];
        assert_eq!(plate["version"], "0.5", "programs expect it there, too");
        let well = json!({ "well": { "version": "0.4", "images": [{ "path": "0" }] } });
        let found = translated("1", &well).unwrap().unwrap();
        assert_eq!(found.problem, None);
        let layout = json!({ "bioformats2raw.layout": 3 });
        let found = translated("", &layout).unwrap().unwrap();
        assert_eq!(found.problem, None);
        let series = json!({ "series": ["0", "1"] });
        let found = translated("OME", &series).unwrap().unwrap();
        assert_eq!(
            json_of(&found.attributes)["ome"]["series"],
            json!(["0", "1"])
        );
    }

    #[test]
    fn what_is_left_as_it_is() {
        for attributes in [
            json!({}),
            json!({ "plate": "of glass", "labels": 3 }),
            json!([1]),
        ] {
            assert!(
                translated("a", &attributes).unwrap().is_none(),
                "{attributes}"
            );
        }
        let mut old = image();
        old["version"] = json!("0.3");
        for (attributes, word) in [
            (json!({ "multiscales": [old] }), "version \"0.3\""),
            (json!({ "multiscales": [{ "datasets": [] }] }), "axes"),
            (json!({ "multiscales": [1] }), "not understood"),
            (json!({ "multiscales": [image()], "ome": {} }), "ome"),
        ] {
            let reason = translated("a", &attributes).err().unwrap();
            assert!(reason.contains(word), "{reason}");
        }
        let mut more = image();
        more["mine"] = json!(1);
        more["axes"][0]["longName"] = json!("height");
        let found = translated("a", &json!({ "multiscales": [more] }));
        assert_eq!(found.unwrap().unwrap().problem, None);
        // A description that breaks a rule is translated, and the rule is told.
        let mut wrong = image();
        wrong["datasets"][0]["coordinateTransformations"] = json!([]);
        let found = translated("a", &json!({ "multiscales": [wrong] }))
            .unwrap()
            .unwrap();
        assert!(found.problem.is_some());
    }
}

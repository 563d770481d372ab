//! Reads and writes the description of an image in the attributes of its group: [OME-Zarr
//! 0.5](https://ngff.openmicroscopy.org/0.5/#multiscale-md).

use ome_zarr_metadata::Validate;
use ome_zarr_metadata::v0_5::OmeFields;
use serde_json::{Map, Value, json};

use super::Reduction;
use super::axis::Axis;
use super::made_from::MadeFrom;

/// The description of an image in its group. The shapes of the levels are only in their arrays.
#[derive(Clone, Debug)]
pub(super) struct Description<'a> {
    pub(super) axes: &'a [Axis],
    pub(super) reduction: Reduction,
    /// The names of the levels' arrays in the group.
    pub(super) names: &'a [String],
    pub(super) name: Option<&'a str>,
    pub(super) omero: Option<&'a Value>,
    /// Whether several processes write parts of the levels.
    pub(super) in_parts: bool,
}

/// The attribute of a group that describes an image.
const OME: &str = "ome";
/// The member of the attribute `ome` that lists the images of the group.
const MULTISCALES: &str = "multiscales";
/// The member of an image's own metadata that says that its levels are written in parts.
const IN_PARTS: &str = "in_parts";
/// The member of an image's own metadata that says what its levels were made from.
const MADE_FROM: &str = "made_from";

/// The name of the method that made the levels, in an image's own metadata.
const METHOD: &str = "zarrs_cuda::writer::MultiscaleWriter";

/// The stored description of the image whose level 0 has the name `name`, as the attributes of a group
/// contain it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Described {
    pub(super) name: Option<String>,
    /// The axes, with the factors from level 0 to level 1; `None` if the description does not follow the
    /// rules.
    pub(super) axes: Option<Vec<Axis>>,
    /// The name of the reduction by which the levels were made.
    pub(super) reduction: Option<String>,
    /// Whether another program made the levels.
    pub(super) is_foreign: bool,
    /// The number of slices of level 0 that make one slice of level 1; `None` if the description lacks a
    /// level.
    pub(super) window: Option<String>,
    /// Whether parts of the levels may be missing.
    pub(super) in_parts: bool,
    /// The names of the levels' arrays in the group.
    pub(super) names: Vec<String>,
    /// The fingerprint of the files of level 0 from which the levels were made.
    pub(super) made_from: Option<MadeFrom>,
}

/// Returns the `attributes` of a group, after it has noted `made_from` in the image whose level 0 has the
/// name `name`. Returns `None` if the group has no such image.
pub(super) fn with_made_from(
    mut attributes: Map<String, Value>,
    name: &str,
    made_from: &MadeFrom,
) -> Option<Map<String, Value>> {
    let images = attributes.get_mut(OME)?.get_mut(MULTISCALES)?;
    let mut images = images.as_array_mut()?.iter_mut();
    let image = images.find(|image| level_0_is_named(image, name))?;
    image
        .get_mut("metadata")?
        .as_object_mut()?
        .insert(MADE_FROM.to_owned(), made_from.to_json());
    Some(attributes)
}

impl Described {
    /// Returns in words how the levels of this description were made otherwise than those of `other`; `None`
    /// if both were made alike.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let differ = |one: &Option<String>, other: &Option<String>| {
            one.clone()
                .filter(|one| other.as_ref().is_some_and(|other| other != one))
        };
        if self.is_foreign {
            return Some("another program".to_owned());
        }
        let reduction = differ(&self.reduction, &other.reduction);
        let window = differ(&self.window, &other.window);
        reduction
            .map(|reduction| format!("the reduction `{reduction}`"))
            .or_else(|| window.map(|window| format!("the factor {window} along the first axis")))
    }

    pub(super) fn of(attributes: &Map<String, Value>, name: &str) -> Self {
        stored(attributes, name).map_or_else(Self::default, |image| Self {
            name: image["name"].as_str().map(str::to_owned),
            axes: axes(image),
            reduction: image["type"].as_str().map(str::to_owned),
            is_foreign: image["metadata"]["method"] != METHOD,
            window: window(image),
            in_parts: image["metadata"][IN_PARTS] == true,
            names: image["datasets"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|dataset| dataset["path"].as_str().map(str::to_owned))
                .collect(),
            made_from: MadeFrom::parse(&image["metadata"][MADE_FROM]),
        })
    }
}

/// Returns the axes of an image; `None` if its description does not have them as OME-Zarr demands.
fn axes(image: &Value) -> Option<Vec<Axis>> {
    let number = |of: &Value, kind: &str, axis: usize| {
        let transformations = of["coordinateTransformations"].as_array()?;
        let found = transformations.iter().find(|found| found["type"] == kind)?;
        found[kind][axis].as_f64()
    };
    let [top, below] = [0, 1].map(|level| &image["datasets"][level]);
    let of_axis = |(at, axis): (usize, &Value)| {
        let kind = axis["type"].as_str();
        let mut found = Axis::other(axis["name"].as_str()?, kind);
        found.unit = axis["unit"].as_str().map(str::to_owned);
        let scale = number(top, "scale", at)?;
        found.factor = match number(below, "scale", at) {
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "small, or refused"
            )]
            Some(below) => (below / scale).round() as u64,
            None if kind == Some("space") => 2,
            None => 1,
        };
        // A reader applies the transformation of the level, and then the one that all levels share.
        let outer = number(image, "scale", at).unwrap_or(1.0);
        let shift = number(image, "translation", at).unwrap_or(0.0);
        let translation = number(top, "translation", at).unwrap_or(0.0);
        Some(
            found
                .with_scale(outer * scale)
                .with_translation(shift + outer * translation),
        )
    };
    image["axes"]
        .as_array()?
        .iter()
        .enumerate()
        .map(of_axis)
        .collect()
}

/// Returns the scale of level 1 along the first axis, divided by the scale of level 0.
fn window(image: &Value) -> Option<String> {
    let scale = |level: usize| {
        let transformations = &image["datasets"][level]["coordinateTransformations"];
        transformations[0]["scale"][0].as_f64()
    };
    Some(format!("{:.2}", scale(1)? / scale(0)?))
}

/// Returns the stored description of the image whose level 0 has the name `name`, at the place that OME-Zarr
/// 0.5 or an older version gives it.
fn stored<'a>(attributes: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let new = attributes.get(OME).and_then(|ome| ome.get(MULTISCALES));
    let images = new.or_else(|| attributes.get(MULTISCALES))?.as_array()?;
    images.iter().find(|image| level_0_is_named(image, name))
}

/// Returns the members of `new` and the other members of the `stored` object, except those in `without`.
fn merged(stored: Option<&Value>, new: Value, without: &[&str]) -> Value {
    let (Some(Value::Object(stored)), Value::Object(new)) = (stored, &new) else {
        return new;
    };
    let mut all = stored.clone();
    all.retain(|member, _| !without.contains(&member.as_str()));
    all.extend(new.clone());
    Value::Object(all)
}

/// Returns whether a version of OME-Zarr, such as `0.6-dev1`, is newer than 0.5.
fn is_newer(version: &str) -> bool {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|digits| digits.parse::<u64>().ok());
    (number(), number()) > (Some(0), Some(5))
}

/// Returns whether level 0 of `image` has this name.
fn level_0_is_named(image: &Value, name: &str) -> bool {
    image["datasets"][0]["path"] == name
}

impl Description<'_> {
    /// Returns the `attributes` of a group with the description of this image. Other members stay.
    ///
    /// # Errors
    /// The rule of OME-Zarr that the image breaks.
    pub(super) fn add_to(
        &self,
        mut attributes: Map<String, Value>,
    ) -> Result<Map<String, Value>, String> {
        let stored = stored(&attributes, &self.names[0]).cloned();
        let image = self.multiscale(stored.as_ref().unwrap_or(&Value::Null));
        let ome = attributes.entry(OME).or_insert_with(|| json!({}));
        let Value::Object(ome) = ome else {
            return Err("the attribute `ome` of the group is no object".to_owned());
        };
        if let Some(version) = ome.get("version").and_then(Value::as_str)
            && is_newer(version)
        {
            return Err(format!(
                "the group is described by OME-Zarr {version}, and images are described by 0.5 here: give the image a group of its own"
            ));
        }
        ome.insert("version".to_owned(), json!("0.5"));
        // The group may contain other images, which stay.
        let others = ome.get(MULTISCALES).and_then(Value::as_array).into_iter();
        let others = others
            .flatten()
            .filter(|image| !level_0_is_named(image, &self.names[0]));
        let images = std::iter::once(image).chain(others.cloned());
        let images: Value = images.collect();
        ome.insert(MULTISCALES.to_owned(), images);
        if let Some(omero) = self.omero {
            ome.insert("omero".to_owned(), omero.clone());
        }
        self.validate()?;
        Ok(attributes)
    }

    /// Checks the members that this crate writes. Stored members that this crate does not know are not
    /// checked.
    fn validate(&self) -> Result<(), String> {
        let mut own = json!({ "version": "0.5", MULTISCALES: [self.multiscale(&Value::Null)] });
        if let Some(omero) = self.omero {
            own["omero"] = omero.clone();
        }
        // The numbers of `OmeFields` have 32 bits. So `OmeFields` only checks the text that is stored, and
        // does not make it.
        let fields: OmeFields = serde_json::from_value(own)
            .map_err(|error| format!("OME-Zarr 0.5 does not know such a description: {error}"))?;
        fields
            .validate()
            .map_err(|error| format!("OME-Zarr 0.5 does not allow this image: {error}"))
    }

    /// Returns the description of this image, with the unknown members of the `stored` one. If another method
    /// made the stored levels, the arguments of that method are left out.
    fn multiscale(&self, stored: &Value) -> Value {
        let with = |list: &str, key: &str, value: &str| {
            let mut members = stored[list].as_array().into_iter().flatten();
            members.find(|member| member[key] == value)
        };
        let axes = self.axes.iter().map(|axis| {
            let mut object = Map::new();
            object.insert("name".to_owned(), json!(axis.name));
            if let Some(kind) = &axis.kind {
                object.insert("type".to_owned(), json!(kind));
            }
            if let Some(unit) = &axis.unit {
                object.insert("unit".to_owned(), json!(unit));
            }
            let stored = with("axes", "name", &axis.name);
            merged(stored, Value::Object(object), &["type", "unit"])
        });
        let mut multiscale = Map::new();
        if let Some(name) = self.name {
            multiscale.insert("name".to_owned(), json!(name));
        }
        multiscale.insert("axes".to_owned(), axes.collect());
        let datasets = self.names.iter().enumerate().map(|(level, name)| {
            let new = json!({
                "path": name,
                "coordinateTransformations": self.transformations(level),
            });
            merged(with("datasets", "path", name), new, &[])
        });
        multiscale.insert("datasets".to_owned(), datasets.collect());
        multiscale.insert("type".to_owned(), json!(self.reduction.name()));
        let mut metadata = json!({ "method": METHOD, "version": env!("CARGO_PKG_VERSION") });
        if self.in_parts {
            metadata[IN_PARTS] = json!(true);
        }
        let before = stored.get("metadata");
        let without: &[&str] = match before {
            Some(before) if before["method"] == METHOD => &[IN_PARTS],
            _ => &["args", "kwargs"],
        };
        multiscale.insert("metadata".to_owned(), merged(before, metadata, without));
        // The stored transformation of the whole image goes, because each level has its full transformation.
        // The version is the group's.
        let without = ["coordinateTransformations", "version"];
        merged(Some(stored), Value::Object(multiscale), &without)
    }

    /// Returns the transformations that place the elements of a level. Each element lies at the centre of its
    /// window. If the reduction takes the first element of a window, it lies where that element lies.
    fn transformations(&self, level: usize) -> Value {
        let windows = self.axes.iter().map(|axis| {
            let exponent = i32::try_from(level).unwrap_or(i32::MAX);
            #[allow(clippy::cast_precision_loss, reason = "1 or 2")]
            let elements = (axis.factor as f64).powi(exponent);
            let shift = match self.reduction {
                Reduction::Decimate => 0.0,
                _ => (elements - 1.0) / 2.0,
            };
            (axis.scale * elements, axis.translation + axis.scale * shift)
        });
        let (scale, translation): (Vec<f64>, Vec<f64>) = windows.unzip();
        let mut transformations = vec![json!({"type": "scale", "scale": scale})];
        if translation.iter().any(|at| *at != 0.0) {
            transformations.push(json!({"type": "translation", "translation": translation}));
        }
        json!(transformations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description<'a>(axes: &'a [Axis], names: &'a [String]) -> Description<'a> {
        Description {
            axes,
            reduction: Reduction::Mean,
            names,
            name: Some("cells"),
            omero: None,
            in_parts: false,
        }
    }

    fn attributes(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(attributes) => attributes,
            _ => Map::new(),
        }
    }

    /// Members that this crate does not know, in the attributes of version 0.5 and of version 0.4.
    #[test]
    fn unknown_members_stay() {
        let axes = ["y", "x"].map(|name| Axis::by_name(name).unwrap().with_unit("micrometer"));
        let names = ["0", "1"].map(str::to_owned);
        let image = json!({
            "name": "before", "version": "0.4", "note": "kept",
            "axes": [
                { "name": "y", "type": "space", "unit": "meter", "orientation": { "type": "anatomical" } },
                { "name": "x", "type": "space", "long_name": "across" },
            ],
            "coordinateTransformations": [{ "type": "scale", "scale": [2.0, 2.0] }],
            "datasets": [{ "path": "0", "note": "kept, too",
                "coordinateTransformations": [{ "type": "scale", "scale": [1.0, 1.0] }] }],
            "type": "gaussian",
            "metadata": { "method": "other", "kwargs": { "sigma": 1 }, "note": "kept as well" },
        });
        for (place, old) in [
            (
                json!({ "ome": { "version": "0.5", "multiscales": [image] } }),
                false,
            ),
            (
                json!({ "multiscales": [image], "omero": { "id": 1 } }),
                true,
            ),
        ] {
            let all = description(&axes, &names)
                .add_to(attributes(place))
                .unwrap();
            let found = &all["ome"]["multiscales"][0];
            assert_eq!(all.contains_key("multiscales"), old);
            assert_eq!(found["note"], "kept");
            assert_eq!(found["axes"][0]["orientation"]["type"], "anatomical");
            assert_eq!(found["axes"][0]["unit"], "micrometer");
            assert_eq!(found["axes"][1]["long_name"], "across");
            assert_eq!(found["datasets"][0]["note"], "kept, too");
            assert_eq!(found["datasets"][1].get("note"), None);
            assert_eq!(found["metadata"]["note"], "kept as well");
            assert_eq!(found["metadata"].get("kwargs"), None);
            assert_eq!(found.get("coordinateTransformations"), None);
            assert_eq!(
                (&found["name"], &found["type"]),
                (&json!("cells"), &json!("mean"))
            );
            let described = Described::of(&all, "0");
            assert_eq!(described.names, names);
            // Once more, nothing changes.
            assert_eq!(description(&axes, &names).add_to(all.clone()).unwrap(), all);
            // A run that is not in parts takes the mark away.
            let mut parts = description(&axes, &names);
            parts.in_parts = true;
            let marked = parts.add_to(all.clone()).unwrap();
            assert!(Described::of(&marked, "0").in_parts);
            assert_eq!(description(&axes, &names).add_to(marked).unwrap(), all);
        }
    }

    #[test]
    fn newer_versions_are_refused() {
        let axes = ["y", "x"].map(|name| Axis::by_name(name).unwrap());
        let names = ["0", "1"].map(str::to_owned);
        for (version, is_known) in [
            ("0.5", true),
            ("0.4", true),
            ("0.5.2", true),
            ("0.6-dev1", false),
            ("1.0", false),
        ] {
            let before = attributes(json!({ "ome": { "version": version } }));
            let added = description(&axes, &names).add_to(before);
            assert_eq!(added.is_ok(), is_known, "{version}: {added:?}");
        }
    }
}

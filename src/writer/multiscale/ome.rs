//! The description of an image in the attributes of its group: [OME-Zarr
//! 0.5](https://ngff.openmicroscopy.org/0.5/#multiscale-md).

use ome_zarr_metadata::Validate;
use ome_zarr_metadata::v0_5::OmeFields;
use serde_json::{Map, Value, json};

use super::axis::Axis;
use crate::engine::reduce::Reduction;

/// What an image's group says of it, but for the shapes of its arrays.
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
/// The member of the attribute with the images.
const MULTISCALES: &str = "multiscales";
/// The member of an image's own metadata that says that its levels are written in parts.
const IN_PARTS: &str = "in_parts";

/// What the attributes of a group say of the levels of the image whose level 0 has the name `name`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Described {
    pub(super) name: Option<String>,
    /// With the factors from level 0 to level 1.
    pub(super) axes: Option<Vec<Axis>>,
    /// How they were made.
    pub(super) reduction: Option<String>,
    /// Slices of level 0 that make one of level 1, if there are both.
    pub(super) window: Option<String>,
    /// Whether parts of them may be missing.
    pub(super) in_parts: bool,
    /// The names of the levels' arrays in the group.
    pub(super) names: Vec<String>,
}

impl Described {
    /// In what the levels of another description are made in another way.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let differ = |one: &Option<String>, other: &Option<String>| {
            one.clone()
                .filter(|one| other.as_ref().is_some_and(|other| other != one))
        };
        let reduction = differ(&self.reduction, &other.reduction);
        let window = differ(&self.window, &other.window);
        reduction
            .map(|reduction| format!("the reduction `{reduction}`"))
            .or_else(|| window.map(|window| format!("the factor {window} along the first axis")))
    }

    pub(super) fn of(attributes: &Map<String, Value>, name: &str) -> Self {
        let images = attributes
            .get(OME)
            .and_then(|ome| ome[MULTISCALES].as_array());
        let image = images.and_then(|images| images.iter().find(|image| is_of(image, name)));
        image.map_or_else(Self::default, |image| Self {
            name: image["name"].as_str().map(str::to_owned),
            axes: axes(image),
            reduction: image["type"].as_str().map(str::to_owned),
            window: window(image),
            in_parts: image["metadata"][IN_PARTS] == true,
            names: image["datasets"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|dataset| dataset["path"].as_str().map(str::to_owned))
                .collect(),
        })
    }
}

/// The axes of an image, if its description has them by the rules.
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

/// How many times the scale of level 1 along the first axis is the scale of level 0.
fn window(image: &Value) -> Option<String> {
    let scale = |level: usize| {
        let transformations = &image["datasets"][level]["coordinateTransformations"];
        transformations[0]["scale"][0].as_f64()
    };
    Some(format!("{:.2}", scale(1)? / scale(0)?))
}

/// Whether level 0 of `image` has this name.
fn is_of(image: &Value, name: &str) -> bool {
    image["datasets"][0]["path"] == name
}

impl Description<'_> {
    /// `attributes` of a group with the description of this image. Other members stay.
    ///
    /// # Errors
    /// Which rule of OME-Zarr the image breaks.
    pub(super) fn add_to(
        &self,
        mut attributes: Map<String, Value>,
    ) -> Result<Map<String, Value>, String> {
        let ome = attributes.entry(OME).or_insert_with(|| json!({}));
        let Value::Object(ome) = ome else {
            return Err("the attribute `ome` of the group is no object".to_owned());
        };
        ome.insert("version".to_owned(), json!("0.5"));
        // A group may have several images.
        let others = ome.get(MULTISCALES).and_then(Value::as_array).into_iter();
        let others = others
            .flatten()
            .filter(|image| !is_of(image, &self.names[0]));
        let images = std::iter::once(self.multiscale()).chain(others.cloned());
        let images: Value = images.collect();
        ome.insert(MULTISCALES.to_owned(), images);
        if let Some(omero) = self.omero {
            ome.insert("omero".to_owned(), omero.clone());
        }
        // The crate's numbers have 32 bits, so what is stored is not made by it, but read by it.
        let fields: OmeFields = serde_json::from_value(Value::Object(ome.clone()))
            .map_err(|error| format!("OME-Zarr 0.5 does not know such a description: {error}"))?;
        fields
            .validate()
            .map_err(|error| format!("OME-Zarr 0.5 does not allow this image: {error}"))?;
        Ok(attributes)
    }

    fn multiscale(&self) -> Value {
        let axes = self.axes.iter().map(|axis| {
            let mut object = Map::new();
            object.insert("name".to_owned(), json!(axis.name));
            if let Some(kind) = &axis.kind {
                object.insert("type".to_owned(), json!(kind));
            }
            if let Some(unit) = &axis.unit {
                object.insert("unit".to_owned(), json!(unit));
            }
            Value::Object(object)
        });
        let mut multiscale = Map::new();
        if let Some(name) = self.name {
            multiscale.insert("name".to_owned(), json!(name));
        }
        multiscale.insert("axes".to_owned(), axes.collect());
        let datasets = self.names.iter().enumerate().map(|(level, name)| {
            json!({
                "path": name,
                "coordinateTransformations": self.transformations(level),
            })
        });
        multiscale.insert("datasets".to_owned(), datasets.collect());
        multiscale.insert("type".to_owned(), json!(self.reduction.name()));
        let mut metadata = json!({
            "method": "zarrs_cuda::writer::MultiscaleWriter",
            "version": env!("CARGO_PKG_VERSION"),
        });
        if self.in_parts {
            metadata[IN_PARTS] = json!(true);
        }
        multiscale.insert("metadata".to_owned(), metadata);
        Value::Object(multiscale)
    }

    /// Where the elements of a level are: each at the centre of its window or, if it is the first
    /// element of the window, where that one is.
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

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
        let ome = attributes.entry("ome").or_insert_with(|| json!({}));
        let Value::Object(ome) = ome else {
            return Err("the attribute `ome` of the group is no object".to_owned());
        };
        ome.insert("version".to_owned(), json!("0.5"));
        ome.insert("multiscales".to_owned(), json!([self.multiscale()]));
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
        multiscale.insert(
            "metadata".to_owned(),
            json!({
                "method": "zarrs_cuda::writer::MultiscaleWriter",
                "version": env!("CARGO_PKG_VERSION"),
            }),
        );
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

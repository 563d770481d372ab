//! Finds the array of level 0 of an image, and reads the description of the image in its metadata.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::open::{arrays_in, is_array, is_group, parsed, read_file};

use super::axes::AxisArg;

/// An image: a directory with an array for each level.
pub(super) struct Image {
    pub(super) directory: PathBuf,
    /// The name of the array of level 0 in the directory.
    pub(super) name: String,
    pub(super) described: Described,
}

/// The description of an image in its metadata, which is empty if there are no metadata.
#[derive(Debug, Default)]
pub(super) struct Described {
    pub(super) axes: Vec<AxisArg>,
    /// The paths of the arrays of the levels.
    pub(super) paths: Vec<String>,
    pub(super) name: Option<String>,
    /// The reduction that made the levels.
    pub(super) method: Option<String>,
    /// The program that made the levels.
    pub(super) maker: Option<String>,
    /// Whether elements are labels, which have no mean.
    pub(super) are_labels: bool,
    /// Whether the description lies where OME-Zarr 0.4 has it. Then `multiscales` stays there, beside the new
    /// description.
    pub(super) is_old: bool,
    /// The settings for viewers, if they lie where OME-Zarr 0.4 has them.
    pub(super) omero: Option<Value>,
}

impl Image {
    /// Finds the image whose directory, or array of level 0, is `path`.
    pub(super) fn find(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let cannot = |error: &dyn std::fmt::Display| {
            Failure::failed(format!("cannot open {shown}: {error}"))
                .with_remedy("name the directory of a Zarr array, or of the image that has it")
        };
        fs::read_dir(path).map_err(|error| cannot(&error))?;
        let path = match path.file_name() {
            Some(_) => std::path::absolute(path),
            None => path.canonicalize(),
        };
        let path = path.map_err(|error| cannot(&error))?;
        if is_array(&path)? {
            let name = path.file_name().and_then(|name| name.to_str());
            let (Some(name), Some(parent)) = (name, path.parent()) else {
                return Err(cannot(&"its name is not Unicode, or it has none"));
            };
            let image = Self::of(parent, name)?;
            return match &image.described.paths[..] {
                [first, ..] if first != name => Err(Failure::failed(format!(
                    "{shown} is not level 0 of its image: the metadata of {} say that {first} is",
                    parent.display()
                ))
                .with_remedy(format!("run `zarrs-cuda pyramid {}`", parent.display()))),
                _ => Ok(image),
            };
        }
        let described = Described::read(&path)?;
        let arrays = arrays_in(&path)?;
        let name = match (&described.paths[..], &arrays[..]) {
            ([first, ..], _) if first.contains('/') => {
                return Err(Failure::failed(format!(
                    "level 0 of {shown} is {first}, an array in a group of its own, and the other levels would be written beside it"
                ))
                .with_remedy("name the array, if its levels are to be there"));
            }
            ([first, ..], _) => first.clone(),
            ([], _) if is_array(&path.join("0"))? => "0".to_string(),
            ([], [one]) => {
                let name = one.file_name().and_then(|name| name.to_str());
                name.ok_or_else(|| cannot(&"the name of its array is not Unicode"))?
                    .to_string()
            }
            ([], []) => return Err(cannot(&"it is no Zarr array, and has none in it")),
            ([], several) => {
                let names: Vec<_> = several
                    .iter()
                    .take(5)
                    .map(|array| array.display().to_string())
                    .collect();
                return Err(Failure::failed(format!(
                    "{shown} has {} arrays, and nothing says which of them is level 0",
                    several.len()
                ))
                .with_remedy(format!("name one of them, as {}", names.join(", "))));
            }
        };
        if !is_array(&path.join(&name))? {
            return Err(Failure::failed(format!(
                "the metadata of {shown} say that {name} is its level 0, and there is no such array"
            )));
        }
        Self::of(&path, &name)
    }

    /// Returns the image in `directory` whose level 0 has the name `name`.
    fn of(directory: &Path, name: &str) -> Result<Self, Failure> {
        let shown = directory.display();
        if directory.join(name).join(".zarray").is_file() || directory.join(".zgroup").is_file() {
            return Err(Failure::failed(format!(
                "cannot make levels of {}: it is of Zarr v2, which has no shards",
                directory.join(name).display()
            ))
            .with_remedy(format!(
                "`zarrs-cuda reencode {} IMAGE/0` makes a sharded array of it, in a new directory IMAGE; then `zarrs-cuda pyramid IMAGE`",
                directory.join(name).display()
            )));
        }
        if !is_group(directory)? && name.parse::<u64>().is_err() {
            return Err(Failure::failed(format!(
                "{shown} is not a Zarr group, and would become the image that has {name} and its levels"
            ))
            .with_remedy(format!(
                "move {name} to a directory of its own, IMAGE/0, and run `zarrs-cuda pyramid IMAGE`"
            )));
        }
        Ok(Self {
            directory: directory.to_path_buf(),
            name: name.to_string(),
            described: Described::read(directory)?,
        })
    }
}

impl Described {
    /// Reads the description from the attributes of a group, in the form of OME-Zarr 0.5 or of an older
    /// version.
    fn read(directory: &Path) -> Result<Self, Failure> {
        let file = directory.join("zarr.json");
        let shown = file.display().to_string();
        let metadata = match read_file(&file) {
            Ok(bytes) => parsed(&bytes, &shown)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Value::Null,
            Err(error) => {
                return Err(Failure::failed(format!("cannot read {shown}: {error}"))
                    .with_remedy("the description of the image is in it: nothing was changed"));
            }
        };
        let attributes = &metadata["attributes"];
        let old = attributes["ome"].get("multiscales").is_none();
        let ome = if old { attributes } else { &attributes["ome"] };
        match ome["multiscales"].as_array().map(Vec::as_slice) {
            None | Some([]) => Ok(Self::default()),
            Some([multiscale]) => Ok(Self {
                are_labels: ome.get("image-label").is_some(),
                omero: ome.get("omero").filter(|_| old).cloned(),
                is_old: attributes.get("multiscales").is_some(),
                ..Self::of(multiscale)
            }),
            Some(several) => Err(Failure::failed(format!(
                "{} is {} images in one group, and its metadata would describe one of them only",
                directory.display(),
                several.len()
            ))
            .with_remedy("move the images to groups of their own")),
        }
    }

    fn of(multiscale: &Value) -> Self {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().map(str::to_string);
        let datasets = list(&multiscale["datasets"]);
        let places: Vec<_> = datasets.iter().map(DatasetScale::of).collect();
        let all = DatasetScale::of(multiscale);
        let axes = list(&multiscale["axes"]);
        let axes = axes.iter().enumerate().map(|(axis, described)| {
            // Before version 0.4, metadata had only the name of an axis.
            let name = text(&described["name"]).or_else(|| text(described));
            // The transformation of the level applies first, and then that of all levels.
            let (outer, level) = (all.at(axis), places.first().map(|place| place.at(axis)));
            let (scale, translation) = level.unwrap_or_default();
            let scale = outer.0.unwrap_or(1.0) * scale.unwrap_or(1.0);
            let shift = outer.0.unwrap_or(1.0) * translation.unwrap_or(0.0);
            AxisArg {
                name: name.unwrap_or_default(),
                kind: text(&described["type"]),
                unit: text(&described["unit"]),
                scale: Some(scale),
                translation: Some(outer.1.unwrap_or(0.0) + shift),
                factor: Self::factor(&places, axis),
            }
        });
        Self {
            axes: axes.collect(),
            paths: datasets
                .iter()
                .filter_map(|dataset| text(&dataset["path"]))
                .collect(),
            name: text(&multiscale["name"]),
            method: text(&multiscale["type"]),
            maker: text(&multiscale["metadata"]["method"]),
            are_labels: false,
            is_old: false,
            omero: None,
        }
    }

    /// Returns the number of elements of level 0 that make one element of level 1 along `axis`; `None` if it
    /// is not known.
    fn factor(places: &[DatasetScale], axis: usize) -> Option<u64> {
        let [top, below, ..] = places else {
            return None;
        };
        let ratio = below.at(axis).0? / top.at(axis).0?;
        [1_u32, 2]
            .into_iter()
            .find(|&factor| (ratio - f64::from(factor)).abs() < 1e-6)
            .map(u64::from)
    }
}

/// The scale and translation of a member with `coordinateTransformations`.
#[derive(Debug, Default)]
struct DatasetScale {
    scale: Vec<f64>,
    translation: Vec<f64>,
}

impl DatasetScale {
    fn of(member: &Value) -> Self {
        let mut place = Self::default();
        let transformations = member["coordinateTransformations"].as_array();
        for transformation in transformations.into_iter().flatten() {
            let numbers = |name: &str| -> Vec<f64> {
                let numbers = transformation[name].as_array().into_iter().flatten();
                numbers.filter_map(Value::as_f64).collect()
            };
            match transformation["type"].as_str() {
                Some("scale") => place.scale = numbers("scale"),
                Some("translation") => place.translation = numbers("translation"),
                _ => {}
            }
        }
        place
    }

    fn at(&self, axis: usize) -> (Option<f64>, Option<f64>) {
        (
            self.scale.get(axis).copied(),
            self.translation.get(axis).copied(),
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Described;

    #[test]
    fn what_an_image_says() {
        let described = Described::of(&json!({
            "name": "cells", "type": "mean",
            "axes": [{ "name": "t", "type": "time", "unit": "second" }, { "name": "y" }],
            "datasets": [
                { "path": "0", "coordinateTransformations": [
                    { "type": "scale", "scale": [1.0, 0.5] },
                    { "type": "translation", "translation": [0.0, 3.0] },
                ] },
                { "path": "1", "coordinateTransformations": [{ "type": "scale", "scale": [1.0, 1.0] }] },
            ],
            "coordinateTransformations": [{ "type": "scale", "scale": [0.1, 2.0] }],
        }));
        assert_eq!(described.paths, ["0", "1"]);
        assert_eq!(described.method.as_deref(), Some("mean"));
        let [t, y] = &described.axes[..] else {
            panic!()
        };
        assert_eq!(
            (t.scale, t.translation, t.factor),
            (Some(0.1), Some(0.0), Some(1))
        );
        assert_eq!(
            (y.scale, y.translation, y.factor),
            (Some(1.0), Some(6.0), Some(2))
        );
        assert_eq!(t.unit.as_deref(), Some("second"));
        // Nothing but names, and factors that are neither 1 nor 2.
        let described = Described::of(&json!({
            "axes": ["y", "x"],
            "datasets": [
                { "path": "0", "coordinateTransformations": [{ "type": "scale", "scale": [1, 1] }] },
                { "path": "1", "coordinateTransformations": [{ "type": "scale", "scale": [4, 1.98] }] },
            ],
        }));
        assert_eq!(described.axes[1].name, "x");
        assert!(described.axes.iter().all(|axis| axis.factor.is_none()));
    }
}

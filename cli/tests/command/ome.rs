//! Images of OME-Zarr 0.4 in Zarr v2, which become 0.5 in Zarr v3.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::arrays::open;
use crate::program::{program, said_with_code};

fn write(path: &Path, value: &Value) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, value.to_string()).unwrap();
}

fn group(path: &Path, attributes: &Value) {
    write(&path.join(".zgroup"), &json!({ "zarr_format": 2 }));
    write(&path.join(".zattrs"), attributes);
}

/// An array of Zarr v2 of one chunk.
fn array(path: &Path, extent: u64) {
    let metadata = json!({
        "zarr_format": 2, "shape": [extent, extent], "chunks": [extent, extent], "dtype": "|u1",
        "compressor": null, "fill_value": 0, "order": "C", "filters": null, "dimension_separator": "/",
    });
    write(&path.join(".zarray"), &metadata);
    fs::create_dir_all(path.join("0")).unwrap();
    fs::write(path.join("0/0"), vec![7; (extent * extent) as usize]).unwrap();
}

fn multiscales(name: &str) -> Value {
    let level = |path: &str, scale: f64| {
        let transformations = json!([{ "type": "scale", "scale": [scale, scale] }]);
        json!({ "path": path, "coordinateTransformations": transformations })
    };
    let axis = |name: &str| json!({ "name": name, "type": "space", "unit": "micrometer" });
    json!([{
        "version": "0.4", "name": name, "axes": [axis("y"), axis("x")],
        "datasets": [level("0", 0.5), level("1", 1.0)],
    }])
}

fn image(path: &Path, more: &Value) {
    let mut attributes = json!({ "multiscales": multiscales("cells") });
    for (name, value) in more.as_object().unwrap() {
        attributes[name] = value.clone();
    }
    group(path, &attributes);
    array(&path.join("0"), 8);
    array(&path.join("1"), 4);
}

/// A plate with two wells of two fields, each with labels.
fn plate(root: &Path) {
    let wells = ["A/1", "B/2"];
    let plate = json!({
        "version": "0.4", "name": "screen", "field_count": 2,
        "rows": [{ "name": "A" }, { "name": "B" }], "columns": [{ "name": "1" }, { "name": "2" }],
        "wells": [
            { "path": "A/1", "rowIndex": 0, "columnIndex": 0 },
            { "path": "B/2", "rowIndex": 1, "columnIndex": 1 },
        ],
    });
    group(root, &json!({ "plate": plate, "mine": 1e300 }));
    for well in wells {
        let path = root.join(well);
        group(path.parent().unwrap(), &json!({}));
        let images = json!([{ "path": "0" }, { "path": "1" }]);
        group(
            &path,
            &json!({ "well": { "version": "0.4", "images": images } }),
        );
        for field in ["0", "1"] {
            let path = path.join(field);
            let omero = json!({ "version": "0.4", "channels": [{
                "color": "00FF00", "window": { "start": 0, "end": 9, "min": 0, "max": 255 },
            }] });
            image(&path, &json!({ "omero": omero }));
            group(&path.join("labels"), &json!({ "labels": ["nuclei"] }));
            let label = json!({ "version": "0.4", "source": { "image": "../../" } });
            image(
                &path.join("labels/nuclei"),
                &json!({ "image-label": label }),
            );
        }
    }
}

fn attributes(path: &Path) -> Value {
    let text = fs::read(path.join("zarr.json")).unwrap();
    let metadata: Value = serde_json::from_slice(&text).unwrap();
    metadata["attributes"].clone()
}

struct Case(TempDir);

impl Case {
    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, words: &str, code: i32) -> String {
        let mut command = program();
        command
            .args(["reencode", "--recursive"])
            .args(words.split(' '));
        command.current_dir(self.0.path());
        said_with_code(&command.output().unwrap(), code)
    }
}

#[test]
fn a_plate_becomes_one_of_0_5() {
    let case = Case(TempDir::new().unwrap());
    plate(&case.at("in"));
    let said = case.run("in out", 0);
    assert!(!said.contains("note:"), "{said}");
    let root = attributes(&case.at("out"));
    assert_eq!(root["mine"], json!(1e300));
    assert_eq!(root["ome"]["version"], "0.5");
    assert_eq!(root["ome"]["plate"]["wells"][1]["path"], "B/2");
    assert_eq!(root.get("plate"), None);
    let well = attributes(&case.at("out/A/1"));
    let images = json!([{ "path": "0" }, { "path": "1" }]);
    assert_eq!(
        well,
        json!({ "ome": { "version": "0.5", "well": { "images": images } } })
    );
    let mut bare = multiscales("cells");
    bare[0].as_object_mut().unwrap().remove("version");
    for image in ["A/1/0", "B/2/1/labels/nuclei"] {
        let found = attributes(&case.at("out").join(image));
        assert_eq!(found["ome"]["multiscales"], bare, "{image}");
        for level in ["0", "1"] {
            let array = open(&case.at("out").join(image).join(level));
            let names = array.dimension_names().as_ref().unwrap();
            assert_eq!(names, &[Some("y".into()), Some("x".into())]);
        }
    }
    let label = attributes(&case.at("out/A/1/0/labels/nuclei"));
    assert_eq!(
        label["ome"]["image-label"],
        json!({ "source": { "image": "../../" } })
    );
    let labels = attributes(&case.at("out/A/1/0/labels"));
    assert_eq!(labels["ome"]["labels"], json!(["nuclei"]));
    // Parts, and a run that goes on, make the same.
    for part in ["3/3", "1/3", "2/3"] {
        case.run(&format!("in parts --part {part}"), 0);
    }
    for path in ["", "A/1", "A/1/0", "A/1/0/0"] {
        let [one, parts] =
            ["out", "parts"].map(|root| fs::read(case.at(root).join(path).join("zarr.json")));
        assert_eq!(one.unwrap(), parts.unwrap(), "{path}");
    }
    // The group of the labels alone.
    case.run("in/A/1/0/labels labels", 0);
    let labels = attributes(&case.at("labels"));
    assert_eq!(labels["ome"]["labels"], json!(["nuclei"]));
    // What is 0.5 already stays.
    case.run("out again", 0);
    assert_eq!(attributes(&case.at("again")), root);
}

#[test]
fn what_is_not_understood_stays_and_is_told() {
    let case = Case(TempDir::new().unwrap());
    let mut old = multiscales("old");
    old[0]["version"] = json!("0.3");
    group(&case.at("in"), &json!({ "multiscales": old }));
    array(&case.at("in/0"), 4);
    let mut gone = multiscales("gone");
    gone[0]["datasets"][1]["path"] = json!("nowhere");
    group(&case.at("in/gone"), &json!({ "multiscales": gone }));
    array(&case.at("in/gone/0"), 4);
    let said = case.run("in out", 0);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "its description of OME-Zarr stays as it is",
        "version \"0.3\"",
        "names the level in/gone/nowhere, and there is no such array",
    ] {
        assert!(said.contains(words), "no {words} in {said}");
    }
    assert_eq!(attributes(&case.at("out"))["multiscales"], old);
    assert!(attributes(&case.at("out/gone"))["ome"].is_object());
}

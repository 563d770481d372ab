//! Inputs and outputs that are refused before OUT is begun.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::arrays::{open, unsharded};
use crate::chunks::write;
use crate::program::{files, program, said_with_code};

fn run(path: &Path, line: &str, code: i32) -> String {
    let mut command = program();
    command.args(line.split(' ')).current_dir(path);
    said_with_code(&command.output().unwrap(), code)
}

/// Describes an array of 10 `data_type` in chunks of 5.
fn described(path: &Path, data_type: &str, codecs: &Value) {
    let metadata = json!({
        "zarr_format": 3, "node_type": "array", "shape": [10], "data_type": data_type, "fill_value": 0,
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": [5] } },
        "chunk_key_encoding": { "name": "default" }, "codecs": codecs,
    });
    write(&path.join("zarr.json"), metadata.to_string().as_bytes());
}

#[test]
fn chunks_that_cannot_be_decoded() {
    let bytes = json!({ "name": "bytes" });
    for (data_type, codecs, chunk) in [
        // A checksum that is wrong.
        (
            "uint8",
            json!([bytes, { "name": "crc32c" }]),
            &[1_u8; 9][..],
        ),
        (
            "uint8",
            json!([bytes, { "name": "numcodecs.fletcher32" }]),
            &[1; 9],
        ),
        // Elements of several bytes in no order.
        ("uint16", json!([bytes]), &[0; 10]),
        ("uint16", json!(["bytes"]), &[0; 10]),
    ] {
        let folder = TempDir::new().unwrap();
        let path = folder.path();
        described(&path.join("in"), data_type, &codecs);
        write(&path.join("in/c/1"), chunk);
        let said = run(path, "reencode in out", 1);
        assert!(!path.join("out").exists(), "{codecs}: {said}");
    }
}

#[test]
fn outputs_in_an_array() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    unsharded(&path.join("in"));
    unsharded(&path.join("array"));
    let before = files(path);
    for line in [
        "reencode in array/sub",
        "reencode in array/c/0/sub",
        "reshard in array/sub --shard 16,16",
        "stream array/sub in/zarr.json --frame-shape 1 --dtype uint8",
    ] {
        let said = run(path, line, 1);
        assert!(said.contains("array, which has chunks"), "{line}: {said}");
        assert_eq!(files(path), before, "{line}");
    }
}

#[test]
#[cfg(unix)]
fn outputs_behind_a_link_to_nothing() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    unsharded(&path.join("in"));
    std::os::unix::fs::symlink("nowhere", path.join("out")).unwrap();
    for line in [
        "reencode in out",
        "reshard in out --shard 16,16",
        "stream out in/zarr.json --frame-shape 1 --dtype uint8",
    ] {
        let said = run(path, line, 1);
        assert!(
            said.contains("link to nowhere, which is not there"),
            "{line}: {said}"
        );
        assert!(said.contains("make that directory"), "{line}: {said}");
    }
    fs::create_dir(path.join("nowhere")).unwrap();
    run(path, "reencode in out", 0);
    assert!(path.join("nowhere/zarr.json").is_file());
}

/// A fill value of byte strings of Zarr v2 that is 0 is no byte.
#[test]
fn byte_strings_whose_fill_value_is_a_number() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let metadata = json!({
        "zarr_format": 2, "shape": [6], "chunks": [2], "dtype": "|O", "fill_value": 0, "order": "C",
        "filters": [{ "id": "vlen-bytes" }], "compressor": null,
    });
    write(&path.join("in/.zarray"), metadata.to_string().as_bytes());
    // Two strings: "xy", and none.
    write(
        &path.join("in/1"),
        &[2, 0, 0, 0, 2, 0, 0, 0, b'x', b'y', 0, 0, 0, 0],
    );
    let said = run(path, "reencode in out --shard 4 --subchunk 2", 0);
    assert_eq!(said.matches("fill_value").count(), 1, "{said}");
    let array = open(&path.join("out"));
    let elements: Vec<Vec<u8>> = array.retrieve_array_subset(&array.subset_all()).unwrap();
    let expected: [&[u8]; 6] = [b"", b"", b"xy", b"", b"", b""];
    assert_eq!(elements, expected);
    assert_eq!(open(&path.join("out")).fill_value().as_ne_bytes(), b"");
}

//! Metadata that say something else than `sharding_indexed` of subchunks that are known.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};
use zarrs::array::Array;
use zarrs::filesystem::FilesystemStore;

use crate::said;

/// Writes an array of `uint16` with the codecs `before` its sharding. All shards are stored.
fn create(path: &Path, shape: &[u64], shard: &[u64], subchunk: &[u64], before: &[Value]) -> Value {
    let bytes = json!({ "name": "bytes", "configuration": { "endian": "little" } });
    let mut codecs = before.to_vec();
    codecs.push(json!({ "name": "sharding_indexed", "configuration": {
        "chunk_shape": subchunk,
        "codecs": [bytes, { "name": "zstd", "configuration": { "level": 1, "checksum": false } }],
        "index_codecs": [bytes, { "name": "crc32c" }],
        "index_location": "end",
    }}));
    let metadata = json!({
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint16",
        "fill_value": 0, "codecs": codecs,
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": shard } },
        "chunk_key_encoding": { "name": "default" },
    });
    fs::create_dir_all(path).unwrap();
    fs::write(path.join("zarr.json"), metadata.to_string()).unwrap();
    let store = Arc::new(FilesystemStore::new(path).unwrap());
    let array = Array::open(store, "/").unwrap();
    let elements: u64 = shape.iter().product();
    let values: Vec<u16> = (1..=elements).map(|value| value as u16).collect();
    array
        .store_array_subset(&array.subset_all(), &values)
        .unwrap();
    metadata
}

fn json_of(path: &Path, arguments: &[&str]) -> Value {
    let text = said(path, &[arguments, &["--json"]].concat(), 0);
    serde_json::from_str(&text).unwrap()
}

/// The subchunks of a shard are counted in the shape in which it is stored.
#[test]
fn codecs_in_front_of_the_sharding() {
    let transpose = json!({ "name": "transpose", "configuration": { "order": [1, 0] } });
    let rotate = json!({ "name": "transpose", "configuration": { "order": [2, 0, 1] } });
    let reshape = json!({ "name": "reshape", "configuration": { "shape": [[0, 1]] } });
    for (shard, subchunk, before, stored, counts) in [
        (
            &[2, 12][..],
            &[6, 2][..],
            vec![transpose.clone()],
            &[12, 2][..],
            &[2, 1][..],
        ),
        (
            &[12, 2],
            &[2, 3],
            vec![transpose.clone()],
            &[2, 12],
            &[1, 4],
        ),
        (
            &[2, 12],
            &[2, 6],
            vec![transpose.clone(), transpose],
            &[2, 12],
            &[1, 2],
        ),
        (
            &[2, 4, 6],
            &[3, 2, 2],
            vec![rotate.clone()],
            &[6, 2, 4],
            &[2, 1, 2],
        ),
        (
            &[2, 4, 6],
            &[2, 2, 2],
            vec![rotate.clone(), rotate],
            &[4, 6, 2],
            &[2, 3, 1],
        ),
        (&[2, 12], &[6], vec![reshape], &[24], &[4]),
    ] {
        let directory = tempdir().unwrap();
        let path = directory.path();
        create(path, shard, shard, subchunk, &before);
        let found = json_of(path, &[]);
        assert_eq!(found["stored_shard"], json!(stored), "{before:?}");
        assert_eq!(found["subchunk"], json!(subchunk));
        assert_eq!(found["subchunks"], json!(counts));
        // What the index of a shard has.
        let first = vec!["0"; shard.len()].join(",");
        let one = json_of(path, &[&first]);
        assert_eq!(one["grid"], json!(counts));
        let text = said(path, &[], 0);
        let words: Vec<_> = text.split_whitespace().collect();
        let words = words.join(" ");
        let times = |extents: &[u64]| {
            let extents: Vec<_> = extents.iter().map(ToString::to_string).collect();
            extents.join(" × ")
        };
        assert!(
            text.contains(&format!("{} in a shard", times(counts))),
            "{text}"
        );
        assert!(words.contains("of the shard; bytes (little)"), "{text}");
        let line = format!("stored as  {}\n", times(stored));
        assert_eq!(text.contains(&line), shard != stored, "{text}");
    }
}

#[test]
fn an_array_without_elements_has_shards_of_a_shape() {
    let directory = tempdir().unwrap();
    let path = directory.path();
    let transpose = json!({ "name": "transpose", "configuration": { "order": [1, 0] } });
    create(path, &[0, 12], &[2, 12], &[6, 2], &[transpose]);
    let found = json_of(path, &[]);
    assert_eq!(found["shard"], json!([2, 12]));
    assert_eq!(found["subchunks"], json!([2, 1]));
}

/// Changes the metadata of the array in `path`.
fn change(path: &Path, metadata: &Value, change: impl Fn(&mut Value)) {
    let mut metadata = metadata.clone();
    change(&mut metadata);
    fs::write(path.join("zarr.json"), metadata.to_string()).unwrap();
}

/// Nothing is decoded, so subchunks need not be understood.
#[test]
fn subchunks_that_nobody_can_decode() {
    let directory: TempDir = tempdir().unwrap();
    let path = directory.path();
    let metadata = create(path, &[8, 12], &[4, 6], &[2, 3], &[]);
    let known = (json_of(path, &[]), json_of(path, &["1,1"]));
    let inner = "/codecs/0/configuration/codecs";
    type Change = fn(&mut Value, &str);
    let changes: [(Change, &str); 5] = [
        (
            |m, inner| m.pointer_mut(inner).unwrap()[1]["configuration"]["nova"] = 1.into(),
            "nova",
        ),
        (
            |m, inner| m.pointer_mut(inner).unwrap()[1]["name"] = "org.example.z".into(),
            "org.example.z",
        ),
        (
            |m, inner| *m.pointer_mut(inner).unwrap() = json!(["org.example.all"]),
            "org.example.all",
        ),
        (
            |m, _| m["codecs"][0]["configuration"]["nova"] = 1.into(),
            "unsupported",
        ),
        (
            |m, _| m["data_type"] = json!({ "name": "org.example.t", "configuration": {} }),
            "org.example.t",
        ),
    ];
    for (make, word) in changes {
        change(path, &metadata, |metadata| make(metadata, inner));
        let (all, one) = (json_of(path, &[]), json_of(path, &["1,1"]));
        assert_eq!(one, known.1, "{word}");
        let note = all["notes"][0].as_str().unwrap();
        assert!(
            note.contains("cannot be decoded here") && note.contains(word),
            "{note}"
        );
        for member in [
            "shape",
            "shard",
            "subchunk",
            "subchunks",
            "stored",
            "bytes",
            "states",
        ] {
            assert_eq!(all[member], known.0[member], "{word}: {member}");
        }
        let text = said(path, &[], 0);
        assert!(
            text.contains("4 whole") && text.contains("note  "),
            "{text}"
        );
    }
    // An index has to be decoded.
    change(path, &metadata, |metadata| {
        metadata["codecs"][0]["configuration"]["index_codecs"][1] = json!("org.example.sum");
    });
    let errors = String::from_utf8(crate::inspect(path, &[]).stderr).unwrap();
    assert!(errors.contains("org.example.sum"), "{errors}");
}

/// A link has the size of the file to which it leads, not of its own text.
#[test]
fn links() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("array");
    create(&path, &[8, 12], &[4, 6], &[2, 3], &[]);
    let known = json_of(&path, &[]);
    let (shard, away) = (path.join("c/0/1"), directory.path().join("away"));
    fs::rename(&shard, &away).unwrap();
    symlink(&away, &shard).unwrap();
    assert_eq!(json_of(&path, &[]), known);
    fs::remove_file(&away).unwrap();
    let output = crate::inspect(&path, &[]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("c/0/1") && errors.contains("cannot be followed"),
        "{errors}"
    );
}

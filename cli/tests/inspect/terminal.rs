//! What the terminal shows, and JSON.

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::{arrays, inspect, said};

/// Every line fits in 80 columns, without colours.
fn fits(text: &str) {
    for line in text.lines() {
        // Reasons are sentences.
        let is_reason = line.starts_with("recovery") || line.contains("INVALID: ");
        assert!(is_reason || line.chars().count() <= 80, "{line}");
    }
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[test]
fn an_array() {
    let directory = tempdir().unwrap();
    let path = arrays::four(&directory);
    let text = said(&path, &[], 3);
    fits(&text);
    for words in [
        "128 × 96 uint16",
        "zstd (level 1)",
        "4 of 4 shards",
        "2 whole, 1 to compact, 1 damaged",
        "1,1        damaged: ",
        "y down (0 to 1), x across (0 to 1)",
        "! bad",
    ] {
        assert!(text.contains(words), "no `{words}` in\n{text}");
    }
    let json: Value = serde_json::from_str(&said(&path, &["--json"], 3)).unwrap();
    assert_eq!(json["states"]["damaged"], json!(1));
    assert_eq!(json["problems"][0]["shard"], json!([1, 1]));
    assert_eq!(json["indices_read"], json!(4));
}

#[test]
fn shards_that_wait_and_torn_ones() {
    let directory = tempdir().unwrap();
    let path = arrays::many(&directory);
    let text = said(&path, &[], 3);
    fits(&text);
    for words in [
        "1 to consolidate",
        "1 to recover",
        "1,4,7",
        "the mean over z",
        "· none",
    ] {
        assert!(text.contains(words), "no `{words}` in\n{text}");
    }
    let other = said(&path, &["--axes", "0,2"], 3);
    assert!(
        other.contains("z down (0 to 2), x across (0 to 15); the mean over y"),
        "{other}"
    );
    let json: Value = serde_json::from_str(&said(&path, &["--json"], 3)).unwrap();
    assert_eq!(json["waiting"], json!([[0, 0, 0]]));
}

#[test]
fn a_shard() {
    let directory = tempdir().unwrap();
    let path = arrays::four(&directory);
    for (shard, code, words) in [
        (
            "0,0",
            0,
            ["16 stored, 0 empty", "I index, # live", "    15      3,3"],
        ),
        ("0/1", 0, ["6 stored, 10 empty", "nothing to do", "empty"]),
        ("1,0", 0, ["12 stored, 4 empty", "records   at", ", done"]),
        ("1,1", 3, ["INVALID", "impossible", "16 stored"]),
    ] {
        let text = said(&path, &[shard], code);
        fits(&text);
        for words in words {
            assert!(text.contains(words), "no `{words}` in\n{text}");
        }
        let summary = said(&path, &[shard, "--summary"], code);
        assert!(text.starts_with(summary.trim_end()) && summary.len() < text.len());
        let json: Value = serde_json::from_str(&said(&path, &[shard, "--json"], code)).unwrap();
        let (live, unused) = (
            json["live"].as_u64().unwrap(),
            json["unused"].as_u64().unwrap(),
        );
        assert_eq!(json["size"], json!(live + unused));
        assert_eq!(json["subchunks"].as_array().unwrap().len(), 16);
    }
    std::fs::remove_file(path.join("c/0/1")).unwrap();
    assert!(said(&path, &["0,1"], 0).contains("c/0/1: not stored"));
}

#[test]
fn wrong_arguments() {
    let directory = tempdir().unwrap();
    let path = arrays::four(&directory);
    for (arguments, code, words) in [
        (&["2,0"][..], 1, "the last shard of the grid is 1,1"),
        (&["0,0,0"], 1, "there is no shard [0, 0, 0]"),
        (&["x"], 2, "indices of a shard"),
        (&["--axes", "0,0"], 2, "two different axes"),
        (&["--axes", "0,2"], 2, "numbers below 2"),
        (&["0,0", "--all"], 2, "cannot be used with"),
        (
            &["--html", "/does/not/exist.html"],
            1,
            "cannot write /does/not/exist.html",
        ),
    ] {
        let output = inspect(&path, arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert!(errors.contains(words), "{errors}");
    }
    let output = inspect(&directory.path().join("nothing"), &[]);
    assert_eq!(output.status.code(), Some(1));
    // An array of chunks.
    let metadata = std::fs::read_to_string(path.join("zarr.json")).unwrap();
    let mut metadata: Value = serde_json::from_str(&metadata).unwrap();
    metadata["codecs"] = json!(["bytes"]);
    metadata["data_type"] = json!("uint8");
    std::fs::write(path.join("zarr.json"), metadata.to_string()).unwrap();
    let output = inspect(&path, &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("not shards") && errors.contains("reshard"),
        "{errors}"
    );
}

#[test]
fn an_array_without_elements_has_no_map() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("empty.zarr");
    let mut builder = zarrs::array::ArrayBuilder::new(
        vec![0, 10],
        vec![4, 4],
        zarrs::array::data_type::uint8(),
        0_u8,
    );
    builder.subchunk_shape(vec![2, 2]);
    let store = std::sync::Arc::new(zarrs::filesystem::FilesystemStore::new(&path).unwrap());
    let array = builder.build(store, "/").unwrap();
    array.store_metadata().unwrap();
    let text = said(&path, &[], 0);
    assert!(text.contains("no shard is stored"), "{text}");
    assert!(!text.contains("down") && !text.contains('·'), "{text}");
}

//! Strings whose bytes together look like the fill value.

use std::path::Path;

use serde_json::json;
use tempfile::TempDir;
use zarrs::array::{Array, ArrayMetadata, CodecOptions};

use crate::arrays::{open, store};
use crate::program::{json as json_of, said};

/// Writes the strings in chunks of `chunk`, with the fill value `fill`.
fn strings(path: &Path, chunk: u64, fill: &str, values: &[&str]) {
    let metadata = json!({
        "zarr_format": 3, "node_type": "array", "shape": [values.len()], "data_type": "string",
        "fill_value": fill, "codecs": [{ "name": "vlen-utf8" }],
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": [chunk] } },
        "chunk_key_encoding": { "name": "default" },
    });
    let metadata: ArrayMetadata = serde_json::from_value(metadata).unwrap();
    let array = Array::new_with_metadata(store(path), "/", metadata).unwrap();
    array.store_metadata().unwrap();
    let all = CodecOptions::default().with_store_empty_chunks(true);
    for (index, values) in (0..).zip(values.chunks(usize::try_from(chunk).unwrap())) {
        // The last chunk has fill values behind the array's end.
        let mut elements = values.to_vec();
        elements.resize(usize::try_from(chunk).unwrap(), fill);
        array.store_chunk_opt(&[index], elements, &all).unwrap();
    }
}

fn read(path: &Path) -> Vec<String> {
    let array = open(path);
    array.retrieve_array_subset(&array.subset_all()).unwrap()
}

/// `["aa", ""]` is not twice "a", though the bytes are the same.
#[test]
fn strings_that_look_like_fill_values() {
    let values = [
        "aa", "", "aa", "", "q", "r", "s", "t", "a", "a", "a", "a", "", "aa", "a",
    ];
    for (fill, chunk, shapes) in [
        ("a", 4, "--shard 4 --subchunk 2"),
        ("a", 4, "--shard 4 --subchunk 4"),
        ("a", 2, "--shard 8 --subchunk 2"),
        ("a", 3, "--shard 4 --subchunk 1"),
        ("a", 16, "--shard 16 --subchunk 4"),
        ("", 4, "--shard 4 --subchunk 2"),
    ] {
        let folder = TempDir::new().unwrap();
        let [input, output] = ["in", "out"].map(|name| folder.path().join(name));
        strings(&input, chunk, fill, &values);
        assert_eq!(read(&input), values, "the test's own array");
        let mut words: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"reencode", &input, &output];
        let shapes: Vec<_> = shapes.split(' ').collect();
        words.extend(shapes.iter().map(|word| word as &dyn AsRef<_>));
        said(&words, 0);
        assert_eq!(read(&output), values, "{fill:?} {shapes:?}");
        let verified = json_of(&[&"verify", &output, &"--against", &input], 0);
        assert_eq!(verified["different"], json!([]), "{verified}");
        // Four equal fill values in a shard of their own are not stored.
        let is_stored = |shard: u64| output.join(format!("c/{shard}")).exists();
        if fill == "a" && shapes[1] == "4" {
            assert!(is_stored(0) && !is_stored(2) && is_stored(3), "{shapes:?}");
        }
        words.push(&"--overwrite");
        words.push(&"--verify");
        said(&words, 0);
        assert_eq!(read(&output), values, "{fill:?} {shapes:?}");
    }
}

//! What is refused: with the reason, before anything is written.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use zarrs_cuda_testing::{Rng, codecs};

use crate::arrays::{Layout, every_encoding, temporary};
use crate::{resharded, run};

/// A directory with an array of chunks in `in`.
fn chunks() -> (TempDir, Layout) {
    let layout = Layout {
        shape: vec![12, 8],
        subchunk: vec![3, 2],
        counts: None,
        data_type: "uint16",
        chain: vec![codecs::bytes("little"), codecs::zstd(1, false)],
        index: zarrs_cuda_testing::index::IndexLayout::default(),
        keys: every_encoding()[0].clone(),
    };
    let directory = temporary();
    layout.create(&directory.path().join("in"), &mut Rng(1));
    (directory, layout)
}

/// Fails unless the program refuses with this exit code and these words, and leaves OUT as it was.
fn refuses(directory: &Path, options: &[&str], code: i32, words: &[&str]) {
    let output = directory.join("out");
    let before = output.exists().then(|| crate::arrays::files(&output));
    let done = run(&directory.join("in"), &output, options);
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "no `{word}` in: {said}");
    }
    let after = output.exists().then(|| crate::arrays::files(&output));
    assert_eq!(after, before, "{said}");
}

#[test]
fn outputs_whose_subchunks_differ() {
    let (directory, layout) = chunks();
    let output = directory.path().join("out");
    let metadata = layout.metadata();
    let sharded = Layout {
        counts: Some(vec![2, 2]),
        ..layout.clone()
    };
    let change = |pointer: &str, value: Value, words: &[&str]| {
        let mut metadata = if pointer.contains("/codecs/0/configuration/codecs") {
            sharded.metadata()
        } else {
            metadata.clone()
        };
        *metadata.pointer_mut(pointer).expect(pointer) = value;
        fs::create_dir_all(&output).unwrap();
        fs::write(output.join("zarr.json"), metadata.to_string()).unwrap();
        refuses(directory.path(), &[], 1, &[words, &["reencode"]].concat());
    };
    change("/shape/0", json!(13), &["shapes [12, 8] and [13, 8]"]);
    change(
        "/data_type",
        json!("int16"),
        &["data types", "uint16", "int16"],
    );
    change("/fill_value", json!(1), &["fill values are 0 and 1"]);
    let grid = "/chunk_grid/configuration/chunk_shape";
    change(
        grid,
        json!([3, 4]),
        &["chunks of IN have the shape [3, 2]", "[3, 4]"],
    );
    change(
        "/chunk_grid/name",
        json!("rectangular"),
        &["chunk grid is `rectangular`"],
    );
    change(
        "/codecs/0/configuration/endian",
        json!("big"),
        &["`bytes`", "big"],
    );
    change(
        "/codecs/1",
        codecs::gzip(1),
        &["[bytes, zstd] in IN and [bytes, gzip] in OUT"],
    );
    change(
        "/codecs/1/configuration/checksum",
        json!(true),
        &["`zstd`", "true"],
    );
    let inner = "/codecs/0/configuration/codecs";
    change(inner, json!([codecs::bytes("little")]), &["[bytes] in OUT"]);
}

#[test]
fn a_chain_in_another_form_is_the_same() {
    let (directory, layout) = chunks();
    let [from, to] = ["in", "out"].map(|name| directory.path().join(name));
    let mut output = layout.clone();
    output.chain = vec![
        codecs::bytes("little"),
        json!({ "name": "zstd", "configuration": { "level": 9 } }),
    ];
    output.counts = Some(vec![2, 1]);
    output.describe(&to);
    resharded(&from, &to, &[]);
    assert_eq!(layout.subchunks(&from), output.subchunks(&to));
}

#[test]
fn inputs_that_are_not_for_it() {
    let (directory, layout) = chunks();
    let path = directory.path();
    let metadata = path.join("in/zarr.json");
    let options = ["--shard", "6,4"];
    let with = |change: &dyn Fn(&mut Value), words: &[&str]| {
        let mut changed = layout.metadata();
        change(&mut changed);
        fs::write(&metadata, changed.to_string()).unwrap();
        refuses(path, &options, 1, &[words, &["reencode"]].concat());
    };
    with(
        &|m| m["chunk_grid"]["name"] = json!("rectangular"),
        &["rectangular"],
    );
    with(
        &|m| m["storage_transformers"] = json!([{ "name": "indexed" }]),
        &["storage transformer `indexed`"],
    );
    with(&|m| m["surprise"] = json!({ "name": "s" }), &["`surprise`"]);
    with(
        &|m| {
            let inner =
                json!({ "chunk_shape": [3, 2], "codecs": m["codecs"], "index_codecs": ["bytes"] });
            m["codecs"] =
                json!([{ "name": "sharding_indexed", "configuration": inner }, { "name": "gzip" }]);
        },
        &["`gzip` around `sharding_indexed`"],
    );
    with(
        &|m| {
            let inner =
                json!({ "chunk_shape": [2, 2], "codecs": m["codecs"], "index_codecs": ["bytes"] });
            m["codecs"] = json!([{ "name": "sharding_indexed", "configuration": inner }]);
        },
        &["not whole multiples"],
    );
    with(
        &|m| m["chunk_key_encoding"] = json!({ "name": "mystery" }),
        &["chunk key encoding"],
    );
    fs::remove_file(&metadata).unwrap();
    refuses(path, &options, 1, &["cannot read", "zarr.json"]);
    fs::write(path.join("in/.zarray"), "{}").unwrap();
    refuses(path, &options, 1, &["Zarr v2", "reencode"]);
    fs::remove_dir_all(path.join("in")).unwrap();
    refuses(path, &options, 1, &["cannot read"]);
}

#[test]
fn in_and_out_lie_apart() {
    let (directory, _) = chunks();
    let input = directory.path().join("in");
    for output in [
        input.clone(),
        input.join("c"),
        input.join("../in"),
        directory.path().into(),
    ] {
        let done = run(&input, &output, &["--shard", "6,4"]);
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{said}");
        assert!(said.contains("must lie apart"), "{said}");
    }
}

#[test]
fn subchunks_that_wait_in_frames() {
    let (directory, mut layout) = chunks();
    let input = directory.path().join("in");
    fs::remove_dir_all(&input).unwrap();
    layout.counts = Some(vec![2, 2]);
    let array = layout.create(&input, &mut Rng(2));
    let store = array.storage();
    let sparse = zarrs_cuda::storage::SparseShardStore::on_filesystem(store, "/").unwrap();
    let sparse = std::sync::Arc::new(sparse);
    let chunks = zarrs::array::Array::open(sparse.clone(), "/").unwrap();
    chunks.store_chunk(&[3, 2], vec![5_u16; 6]).unwrap();
    refuses(
        directory.path(),
        &["--chunks"],
        1,
        &["frames", "[1, 1]", "consolidate", "reencode"],
    );
    sparse.consolidate_all(&|_| {}).unwrap();
    resharded(&input, &directory.path().join("out"), &["--chunks"]);
}

#[test]
fn wrong_usage() {
    let (directory, layout) = chunks();
    let path = directory.path();
    refuses(path, &[], 2, &["--shard", "--chunks"]);
    refuses(path, &["--shard", "6,5"], 2, &["whole multiples"]);
    refuses(path, &["--shard", "6"], 2, &["whole multiples"]);
    refuses(path, &["--shard", "6,0"], 2, &["whole numbers above 0"]);
    refuses(
        path,
        &["--shard", "6,4", "--chunks"],
        2,
        &["cannot be used with"],
    );
    let output = path.join("out");
    layout.describe(&output);
    refuses(path, &["--chunks"], 2, &["leave out --shard"]);
    fs::write(output.join("notes.txt"), "mine").unwrap();
    refuses(path, &[], 1, &["1 chunks or other files", "another OUT"]);
    fs::remove_file(output.join("zarr.json")).unwrap();
    refuses(path, &["--chunks"], 1, &["1 files in", "another OUT"]);
}

#[test]
fn broken_shards() {
    let (directory, mut layout) = chunks();
    let input = directory.path().join("in");
    fs::remove_dir_all(&input).unwrap();
    layout.counts = Some(vec![2, 2]);
    layout.create(&input, &mut Rng(3));
    let shard = crate::arrays::files(&input)
        .into_iter()
        .find(|(name, _)| name.starts_with('c'));
    let (name, bytes) = shard.unwrap();
    let mut flipped = bytes.clone();
    let last = flipped.len() - 1;
    flipped[last] ^= 1;
    for (broken, word) in [
        (&bytes[..3], "shorter than its index"),
        (&flipped[..], "checksum"),
        (&[][..], "shorter than its index"),
    ] {
        fs::write(input.join(&name), broken).unwrap();
        let output = directory.path().join("out");
        let done = run(&input, &output, &["--chunks"]);
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(said.contains(word) && said.contains(&name), "{said}");
        assert!(!output.join("zarr.json").exists());
        fs::remove_dir_all(output).unwrap();
    }
    // What was refused goes on when the shard is whole again.
    fs::write(input.join(&name), &flipped).unwrap();
    let output = directory.path().join("out");
    run(&input, &output, &["--chunks"]);
    fs::write(input.join(&name), &bytes).unwrap();
    resharded(&input, &output, &[]);
    let subchunks = layout.subchunks(&input);
    layout.counts = None;
    assert_eq!(layout.subchunks(&output), subchunks);
}

#[test]
fn chunks_that_no_reader_finds() {
    let (directory, _) = chunks();
    let input = directory.path().join("in");
    let options = ["--shard", "6,4"];
    let chunk = input.join("c/0/0");
    fs::rename(&chunk, input.join("0.0")).unwrap();
    let words = ["one is 0.0, and the chunk [0, 0] has the key c/0/0"];
    refuses(directory.path(), &options, 1, &words);
    fs::remove_file(input.join("0.0")).unwrap();
    std::os::unix::fs::symlink("nowhere", &chunk).unwrap();
    let words = ["in/c/0/0 to nowhere cannot be followed"];
    refuses(directory.path(), &options, 1, &words);
}

/// An index has to be decoded, so its codecs have to be known with all parameters.
#[test]
fn an_index_that_is_not_understood() {
    let directory = temporary();
    let (_keep, layout) = chunks();
    let sharded = Layout {
        counts: Some(vec![2, 2]),
        ..layout
    };
    sharded.create(&directory.path().join("in"), &mut Rng(1));
    let path = directory.path().join("in/zarr.json");
    let mut metadata: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let codecs = &mut metadata["codecs"][0]["configuration"]["index_codecs"];
    codecs[0]["configuration"]["nova"] = json!(1);
    fs::write(&path, metadata.to_string()).unwrap();
    let words = ["the index of a shard is not understood", "cannot reshard"];
    refuses(directory.path(), &["--chunks"], 1, &words);
}

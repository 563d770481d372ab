//! Every data type, through each subcommand that writes arrays.

use std::fs::{self, File};
use std::path::Path;

use serde_json::Value;

use crate::{program, python, reencode, said};

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let directories = entries.filter(|entry| entry.path().is_dir());
    directories
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

fn count(said: &str) -> usize {
    said.trim().parse().unwrap()
}

#[test]
fn reshard() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["in", "out"].map(|name| folder.path().join(name));
    python::run("arrays.py", &[&"types", &input]);
    // Their default fill values are enough here: chunks move as they are.
    let names = names_in(&input);
    for name in names {
        if name.starts_with("fill") {
            fs::remove_dir_all(input.join(&name)).unwrap();
            continue;
        }
        let [from, to] = [&input, &output].map(|folder| folder.join(&name));
        let mut command = program(&[&"reshard", &from, &to, &"--shard", &"8,6"]);
        said(&command.output().unwrap(), 0);
    }
    let arrays = python::run("arrays.py", &[&"compare", &input, &output]);
    assert!(count(&arrays) > 40, "{arrays}");
}

#[test]
fn stream() {
    let folder = tempfile::tempdir().unwrap();
    let types = [
        ("bool", 1),
        ("int8", 1),
        ("int16", 2),
        ("int32", 4),
        ("int64", 8),
        ("uint8", 1),
        ("uint16", 2),
        ("uint32", 4),
        ("uint64", 8),
        ("float16", 2),
        ("float32", 4),
        ("float64", 8),
        ("complex64", 8),
        ("complex128", 16),
        ("bfloat16", 2),
        ("r24", 3),
    ];
    for (name, size) in types {
        let frames: Vec<u8> = (0..5 * 3 * 7 * size)
            .map(|byte| u8::try_from(byte % if name == "bool" { 2 } else { 241 }).unwrap())
            .collect();
        let raw = folder.path().join(format!("{name}.raw"));
        fs::write(&raw, frames).unwrap();
        let output = folder.path().join(name);
        let words: [&dyn AsRef<std::ffi::OsStr>; 6] = [
            &"stream",
            &output,
            &"--frame-shape",
            &"3,7",
            &"--dtype",
            &name,
        ];
        let mut command = program(&words);
        command.stdin(File::open(&raw).unwrap());
        said(&command.output().unwrap(), 0);
    }
    let arrays = python::run("arrays.py", &[&"raw", &folder.path()]);
    assert_eq!(count(&arrays), types.len());

    for name in [
        "complex_bfloat16",
        "uint4",
        "r0",
        "r7",
        "string",
        "raw_bytes",
    ] {
        let output = folder.path().join(format!("not-{name}"));
        let words: [&dyn AsRef<std::ffi::OsStr>; 6] = [
            &"stream",
            &output,
            &"--frame-shape",
            &"3,7",
            &"--dtype",
            &name,
        ];
        let ended = program(&words).output().unwrap();
        assert!(matches!(ended.status.code(), Some(1 | 2)), "{name}");
        assert!(!output.join("zarr.json").exists(), "{name}");
    }
}

#[test]
fn demo() {
    let folder = tempfile::tempdir().unwrap();
    let demo = folder.path().join("demo");
    said(&program(&[&"demo", &demo]).output().unwrap(), 0);
    for (from, to) in [("bold.zarr", "in"), ("sharded.zarr", "out")] {
        fs::create_dir(folder.path().join(to)).unwrap();
        fs::rename(demo.join(from), folder.path().join(to).join("bold")).unwrap();
    }
    let [input, output] = ["in", "out"].map(|name| folder.path().join(name));
    let arrays = python::run("arrays.py", &[&"compare", &input, &output]);
    assert_eq!(count(&arrays), 1);
}

/// The levels of an image are of its data type, and others open them.
#[test]
fn pyramid() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = folder.path().join("in");
    python::run("images.py", &[&"make", &inputs]);
    let images = folder.path().join("images");
    for name in names_in(&inputs) {
        let level = images.join(&name).join("0");
        let shapes = ["--shard", "1,32,32", "--subchunk", "1,8,8"];
        reencode(&inputs.join(&name), &level, &shapes, 0);
        let axes = ["z,factor=1", "y", "x"].map(|axis| format!("--axis={axis}"));
        let mut command = program(&[&"pyramid", &level, &"--json"]);
        let ended = command.args(axes).output().unwrap();
        let said = said(&ended, 0);
        let _: Value = serde_json::from_slice(&ended.stdout).expect(&said);
    }
    let levels = python::run("images.py", &[&"compare", &images]);
    assert!(count(&levels) >= 20, "{levels}");
}

//! Values and data types, before and after the command, as numcodecs, zarr-python, xarray and tensorstore
//! read them. zarrs decodes both sides of `reencode --verify`, so it cannot be the judge.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test's way to fail")]

mod doors;
mod python;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

fn program(arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zarrs-cuda"));
    command.args(arguments).env("NO_COLOR", "1");
    command
}

/// What the command says, stdout first. Checks the exit code.
fn said(ended: &Output, code: i32) -> String {
    let said = [&ended.stdout[..], &ended.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert_eq!(ended.status.code(), Some(code), "{said}");
    said
}

fn reencode(input: &Path, output: &Path, options: &[&str], code: i32) -> String {
    let mut command = program(&[&"reencode", &input, &output]);
    said(&command.args(options).output().unwrap(), code)
}

/// Every data type and codec of both versions, in shapes that read whole chunks and parts of them.
#[test]
fn what_is_converted_is_what_others_read() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let reasons = python::run("arrays.py", &[&"make", &root]);
    for version in ["v2", "v3"] {
        let input = root.join(version);
        for (name, shapes) in [
            ("whole", &[][..]),
            ("parts", &["--shard", "6,4", "--subchunk", "3,2"]),
        ] {
            let output = root.join(format!("{version}-{name}"));
            let options = [&["--recursive", "--verify", "--codec", "crc32c"], shapes].concat();
            let said = reencode(&input, &output, &options, 0);
            assert!(said.contains("as they decode it"), "{said}");
            let arrays = python::run("arrays.py", &[&"compare", &input, &output]);
            let arrays: usize = arrays.trim().parse().unwrap();
            assert!(arrays > 200, "{arrays}");
        }
    }

    let reasons: BTreeMap<String, String> = serde_json::from_str(&reasons).unwrap();
    assert!(reasons.len() > 25, "{}", reasons.len());
    for (name, reason) in reasons {
        let output = root.join("refused-out").join(&name);
        let said = reencode(&root.join("refused").join(&name), &output, &["--verify"], 1);
        assert!(said.contains(&reason), "{name}: {said}");
        // Values are known when they are read: the first chunk is, before anything is written.
        assert!(!output.exists(), "{name}: {said}");
    }
}

/// A dataset that xarray wrote in Zarr v2 is the same dataset in Zarr v3, and can be extended.
#[test]
fn datasets_of_xarray() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["in", "out"].map(|name| folder.path().join(name));
    python::run("dataset.py", &[&"make", &input]);
    let said = reencode(&input, &output, &["--recursive", "--verify"], 0);
    assert!(said.contains("has no missing elements"), "{said}");
    python::run("dataset.py", &[&"compare", &input, &output]);
}

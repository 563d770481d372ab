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

/// Groups and arrays in zip files.
#[test]
fn zip_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    python::run("zips.py", &[&"make", &root]);
    for version in ["v2", "v3"] {
        let plain = root.join("plain").join(version);
        for kind in ["stored.zarr.zip", "deflated.ozx", "folder.zip"] {
            let input = root.join(format!("{version}-{kind}"));
            let output = root.join(format!("out-{version}-{kind}.zarr"));
            let said = reencode(&input, &output, &["--recursive", "--verify"], 0);
            assert!(said.contains("-> "), "{said}");
            python::run("zips.py", &[&"compare", &plain, &output]);
            // One array in it; parts; and what is compared with it.
            let array = input.join("deep/a");
            let one = root.join(format!("one-{version}-{kind}.zarr"));
            for part in ["2/2", "1/2"] {
                let options = ["--shard", "16,16", "--subchunk", "8,8", "--part", part];
                reencode(&array, &one, &options, 0);
            }
            let mut verify = program(&[&"verify", &one, &"--against", &array]);
            let verified = said_of(&mut verify, 0);
            assert!(verified.contains("bit for bit"), "{verified}");
        }
        // The path as the zip file lists it.
        let array = root.join(format!("{version}-folder.zip/image.zarr/deep/a"));
        let output = root.join(format!("listed-{version}.zarr"));
        reencode(&array, &output, &["--verify"], 0);
    }
    for kind in ["stored", "deflated"] {
        let input = root.join(format!("damaged-v3-{kind}.zip"));
        let output = root.join(format!("out-damaged-{kind}"));
        let said = reencode(&input, &output, &["--recursive"], 1);
        assert!(
            said.contains("noise/c/0/0") && said.contains("CRC-32"),
            "{said}"
        );
    }
    let output = root.join("by-zarr");
    reencode(&root.join("by-zarr.zip"), &output, &["--recursive"], 0);
    let a = root.join("by-zarr/a");
    let said = said_of(
        &mut program(&[&"verify", &a, &"--against", &root.join("by-zarr.zip/a")]),
        0,
    );
    assert!(said.contains("bit for bit"), "{said}");
    for name in ["torn", "headless", "no", "nothing", "empty", "encrypted"] {
        let input = root.join(format!("{name}.zip"));
        let output = root.join(format!("out-{name}"));
        let said = reencode(&input, &output, &["--recursive"], 1);
        println!("{name}: {said}");
        assert!(said.contains(&format!("{name}.zip")), "{said}");
        assert!(!output.join("zarr.json").exists(), "{name}");
    }
    // Nothing is written into a zip file.
    let zip = root.join("v3-stored.zarr.zip");
    let before = std::fs::read(&zip).unwrap();
    let said = reencode(
        &root.join("plain/v3"),
        &zip,
        &["--recursive", "--overwrite"],
        1,
    );
    assert!(said.contains("zip files are only read"), "{said}");
    for command in ["compact", "recover", "consolidate"] {
        let said = said_of(&mut program(&[&command, &zip.join("deep/a")]), 1);
        assert!(
            said.contains("only read") || said.contains("not shards"),
            "{said}"
        );
    }
    assert_eq!(std::fs::read(&zip).unwrap(), before);
}

fn said_of(command: &mut Command, code: i32) -> String {
    said(&command.output().unwrap(), code)
}

/// Datasets and trees of xarray are identical afterwards, in v2 and v3, with consolidated metadata if IN has them.
#[test]
fn datasets_of_a_climate_archive() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let names = python::run("climate.py", &[&"make", &root]);
    let names: Vec<_> = names.split_whitespace().collect();
    assert_eq!(names.len(), 8);
    for name in &names {
        let input = root.join(name);
        let one = root.join(format!("{name}-out"));
        reencode(&input, &one, &["--recursive"], 0);
        let parts = root.join(format!("{name}-parts"));
        for part in ["2/2", "1/2"] {
            reencode(&input, &parts, &["--recursive", "--part", part], 0);
        }
        python::run("climate.py", &[&"compare", &input, &one, &parts]);
    }
    let variables = ["t2m", "time", "lat", "lon", "height"];
    for name in names.iter().filter(|name| name.starts_with("dataset")) {
        let [input, output] = [root.join(name), root.join(format!("{name}-chosen"))];
        let include = variables.map(|name| format!("--include={name}"));
        let mut options = vec!["--recursive", "--consolidate-metadata"];
        options.extend(include.iter().map(String::as_str));
        options.push("--shape-for=t2m=60,18,36/30,9,18");
        reencode(&input, &output, &options, 0);
        let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"chosen", &input, &output];
        arguments.extend(
            variables
                .iter()
                .map(|name| name as &dyn AsRef<std::ffi::OsStr>),
        );
        python::run("climate.py", &arguments);
    }
}

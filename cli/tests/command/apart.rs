//! IN and OUT that are not apart by all of their names, and links in OUT.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use crate::arrays::{chain, sharded, unsharded};
use crate::full_disk::with_mounts;
use crate::hierarchy::create;
use crate::program::{files, program, said_with_code};

/// Every file in a directory, and its bytes. A link may lead nowhere.
fn contents(path: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut files = files(path);
    files.sort();
    let bytes = files.into_iter().map(|file| {
        let bytes = fs::read(&file).ok();
        (file, bytes)
    });
    bytes.collect()
}

/// Runs a line in the directory `path`, where `program` is the program, and checks the exit code.
fn run(mut command: Command, path: &Path, line: &str, code: i32) -> String {
    command.args(line.split_whitespace()).current_dir(path);
    command.env("NO_COLOR", "1").env("COLUMNS", "80");
    said_with_code(&command.output().unwrap(), code)
}

/// Every line is refused with these words, and changes no file.
fn refuses(path: &Path, line: &str, code: i32, words: &str) {
    let before = contents(path);
    let said = run(program(), path, line, code);
    assert!(said.contains(words), "no {words} in {said}");
    assert!(contents(path) == before, "{line} changed files");
}

#[test]
fn directories_that_are_mounted_twice() {
    let Some(_) = with_mounts("NO MOUNTED DIRECTORIES ARE TESTED") else {
        return;
    };
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    create(&path.join("in"), 1);
    unsharded(&path.join("array"));
    sharded(&path.join("image/0"), &chain(&[]));
    fs::create_dir_all(path.join("bm")).unwrap();
    run(program(), path, "pyramid image --axis y --axis x", 0);
    run(program(), path, "reencode --recursive in out", 0);
    for (mount, line) in [
        ("in bm", "reencode --recursive in bm --overwrite"),
        ("in bm", "reencode --recursive in bm/x"),
        ("in bm", "reencode --recursive bm in/x"),
        ("in/deep bm", "reencode --recursive in bm --overwrite"),
        ("in/a out/a", "reencode --recursive in out --overwrite"),
        ("array bm", "reencode array bm --overwrite"),
        ("array bm", "reshard array bm --shard 16,16"),
        ("array/c/0 bm", "reencode array bm --overwrite"),
        ("image/0 image/1", "pyramid image --start 0"),
    ] {
        let before = contents(path);
        let mut command = with_mounts("").unwrap();
        let script = r#"set -e; mount --bind $MOUNT; exec "$0" "$@""#;
        command
            .args(["sh", "-c", script])
            .arg(program().get_program());
        command.env("MOUNT", mount);
        let said = run(command, path, line, 2);
        assert!(said.contains("must lie apart"), "{mount}: {said}");
        assert!(contents(path) == before, "{mount}: {line} changed files");
    }
}

/// A member of OUT that is a link to a directory, in IN or elsewhere.
#[test]
fn links_in_out() {
    for overwrite in ["", "--overwrite", "--resume"] {
        let directory = TempDir::new().unwrap();
        let path = directory.path();
        for group in ["in", "keep"] {
            create(&path.join(group), 1);
        }
        unsharded(&path.join("array"));
        let line = "reencode --recursive in out";
        run(program(), path, line, 0);
        run(
            program(),
            path,
            "reencode array other --shard 16,16 --subchunk 8,8",
            0,
        );
        for (link, goal) in [
            ("out/a", "../in/a"),
            ("out/deep", "../in/deep"),
            ("out/deep", "../keep/deep"),
            ("out/b/c", "../../in/b/c"),
            ("out/b/c/0", "../../../keep/b/c/0"),
            ("out/b/c/0", "nowhere"),
        ] {
            let moved = path.join("moved");
            fs::rename(path.join(link), &moved).unwrap();
            symlink(goal, path.join(link)).unwrap();
            refuses(
                path,
                &format!("{line} {overwrite}"),
                1,
                &format!("{link} is a link to"),
            );
            fs::remove_file(path.join(link)).unwrap();
            fs::rename(&moved, path.join(link)).unwrap();
        }
        let chunks = path.join("other/c/0");
        fs::rename(&chunks, path.join("moved")).unwrap();
        symlink("../../array/c/0", &chunks).unwrap();
        let line = format!("reencode array other --shard 16,16 --subchunk 8,8 {overwrite}");
        refuses(path, &line, 1, "other/c/0 is a link to");
    }
}

/// A link in IN leads into OUT.
#[test]
fn links_from_in_to_out() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    create(&path.join("in"), 1);
    create(&path.join("out"), 1);
    fs::remove_dir_all(path.join("in/a")).unwrap();
    symlink("../out/a", path.join("in/a")).unwrap();
    let line = "reencode --recursive in out --overwrite";
    refuses(path, line, 2, "must lie apart");
}

#[test]
fn links_in_other_outputs() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    unsharded(&path.join("in"));
    fs::create_dir_all(path.join("out")).unwrap();
    let metadata = fs::read_to_string(path.join("in/zarr.json")).unwrap();
    fs::write(path.join("out/zarr.json"), metadata).unwrap();
    symlink("../in/c", path.join("out/c")).unwrap();
    refuses(path, "reshard in out", 1, "out/c is a link to");
    refuses(path, "stream out in/zarr.json", 1, "out/c is a link to");

    sharded(
        &path.join("image/0"),
        &chain(&[json!({ "name": "crc32c" })]),
    );
    let line = "pyramid image --axis y --axis x --start 0";
    run(program(), path, line, 0);
    for (link, goal) in [
        ("image/1/c", "../0/c"),
        ("image/1", "0"),
        ("image/1", "nowhere"),
    ] {
        let moved = path.join("moved");
        fs::rename(path.join(link), &moved).unwrap();
        symlink(goal, path.join(link)).unwrap();
        for options in ["", "--dry-run"] {
            let words = format!("{link} is a link to");
            refuses(path, &format!("{line} {options}"), 1, &words);
        }
        fs::remove_file(path.join(link)).unwrap();
        fs::rename(&moved, path.join(link)).unwrap();
    }
    // Level 0 is only read.
    fs::rename(path.join("image/0"), path.join("elsewhere")).unwrap();
    symlink("../elsewhere", path.join("image/0")).unwrap();
    run(program(), path, line, 0);
}

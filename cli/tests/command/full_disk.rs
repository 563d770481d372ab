//! A disk that is full. What was whole stays so, and the same command goes on.
#![cfg(unix)]

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use crate::arrays::{chain, sharded, update, values};
use crate::program::{program, said, said_with_code};

/// Runs the program where no file may grow beyond `blocks` of 512 bytes. (As on a full disk, a write
/// fails; the signal that would end the process is ignored.)
fn with_small_files(blocks: u32, arguments: &[&Path], code: i32) -> String {
    let mut command = Command::new("sh");
    let script = format!("ulimit -f {blocks}; trap '' XFSZ; exec \"$0\" \"$@\"");
    command
        .args(["-c", &script])
        .arg(program().get_program())
        .args(arguments);
    command.env("NO_COLOR", "1");
    said_with_code(&command.output().unwrap(), code)
}

/// Runs the program in `folder` on a new file system of `kib` KiB. Returns `None` where this process may
/// not mount one.
fn on_small_disk(folder: &Path, kib: u32, arguments: &[&Path], code: i32) -> Option<String> {
    let may = Command::new("unshare").args(["--mount", "true"]).output();
    if !may.is_ok_and(|may| may.status.success()) {
        eprintln!("no part with a small file system: this process may not mount one");
        return None;
    }
    let script = format!(
        "mount -t tmpfs -o size={kib}k none {} && exec \"$0\" \"$@\"",
        folder.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    command.arg(program().get_program()).args(arguments);
    command.env("NO_COLOR", "1");
    Some(said_with_code(&command.output().unwrap(), code))
}

fn path(text: &str) -> &Path {
    Path::new(text)
}

#[test]
fn reencode_goes_on_later() {
    let folder = TempDir::new().unwrap();
    let [input, output, disk] = ["in", "out", "disk"].map(|name| folder.path().join(name));
    sharded(&input, &chain(&[]));
    fs::create_dir(&disk).unwrap();
    // One shard of 2048 bytes and its index, which does not fit.
    let base = [
        path("reencode"),
        &input,
        &output,
        path("--shard=32,32"),
        path("--subchunk=8,8"),
        path("--codec=none"),
    ];
    let text = with_small_files(3, &base, 1);
    assert!(text.contains("cannot write the shard"), "{text}");
    assert!(text.contains("--resume"), "{text}");
    assert!(!output.join("zarr.json").exists());
    let mut again = base.to_vec();
    again.push(path("--resume"));
    let words: Vec<&dyn AsRef<std::ffi::OsStr>> = again.iter().map(|word| word as _).collect();
    said(&words, 0);
    assert_eq!(values(&output), values(&input));

    let on_disk = disk.join("out");
    let mut base = base;
    base[2] = &on_disk;
    if let Some(text) = on_small_disk(&disk, 4, &base, 1) {
        assert!(text.contains("No space left"), "{text}");
    }
}

#[test]
fn stream_goes_on_later() {
    let folder = TempDir::new().unwrap();
    let [raw, out, disk] = ["raw", "out", "disk"].map(|name| folder.path().join(name));
    fs::create_dir(&disk).unwrap();
    let elements: Vec<u16> = (0..40 * 1024_u32)
        .map(|element| (element * 31) as u16)
        .collect();
    let bytes: Vec<u8> = elements
        .iter()
        .flat_map(|element| element.to_ne_bytes())
        .collect();
    fs::write(&raw, bytes).unwrap();
    let base = [
        path("stream"),
        &out,
        &raw,
        path("--frame-shape=32,32"),
        path("--dtype=uint16"),
        path("--shard=8,32,32"),
        path("--subchunk=4,16,16"),
        path("--codec=none"),
    ];
    let text = with_small_files(8, &base, 1);
    assert!(text.contains("cannot "), "{text}");
    assert!(text.contains("--skip-stored"), "{text}");
    let mut again = base.to_vec();
    again.push(path("--skip-stored"));
    let words: Vec<&dyn AsRef<std::ffi::OsStr>> = again.iter().map(|word| word as _).collect();
    said(&words, 0);
    assert_eq!(values(&out), elements);

    let on_disk = disk.join("out");
    let mut base = base;
    base[1] = &on_disk;
    if let Some(text) = on_small_disk(&disk, 40, &base, 1) {
        assert!(text.contains("No space left"), "{text}");
        assert!(text.contains("--skip-stored"), "{text}");
    }
}

#[test]
fn compact_leaves_whole_shards() {
    let folder = TempDir::new().unwrap();
    let array = folder.path();
    sharded(array, &chain(&[json!({ "name": "crc32c" })]));
    update(array, 8);
    let expected = values(array);
    let before = fs::read(array.join("c/0/0")).unwrap();
    let text = with_small_files(1, &[path("compact"), array], 1);
    assert!(text.contains("c/0/0"), "{text}");
    assert_eq!(fs::read(array.join("c/0/0")).unwrap(), before);
    said(&[&"compact", &array], 0);
    assert!(fs::read(array.join("c/0/0")).unwrap().len() < before.len());
    assert_eq!(values(array), expected);
}

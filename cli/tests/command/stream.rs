//! `zarrs-cuda stream`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;

use crate::arrays::{open, values};
use crate::program::{files, interrupt, json, program, said, said_with_code};

/// Frames of 40 × 24, in shards of 12 × 24 × 16 with subchunks of 4 × 8 × 8.
const SHAPES: &str = "--frame-shape 40,24 --dtype uint16 --subchunk 4,8,8 --shard 12,24,16";
const FRAME: usize = 40 * 24;

fn command(out: &Path, options: &str) -> Command {
    let mut command = program();
    command
        .arg("stream")
        .arg(out)
        .args(options.split_whitespace());
    command
}

/// The elements of frames from `first` on: no two frames are equal.
fn frames(first: usize, count: usize) -> Vec<u16> {
    let elements = first * FRAME..(first + count) * FRAME;
    elements
        .map(|element| (element * 7 + element / FRAME) as u16)
        .collect()
}

fn bytes(elements: &[u16]) -> Vec<u8> {
    elements
        .iter()
        .flat_map(|element| element.to_ne_bytes())
        .collect()
}

/// Gives the program `input` in pieces of odd sizes. Returns its output, stdout first.
fn piped(out: &Path, options: &str, input: &[u8], code: i32) -> String {
    let mut child = command(out, options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for piece in input.chunks(1237) {
        if stdin.write_all(piece).is_err() {
            break; // it takes no more
        }
    }
    drop(stdin);
    said_with_code(&child.wait_with_output().unwrap(), code)
}

/// Files that do not belong to an array.
fn leftovers(folder: &Path) -> Vec<PathBuf> {
    let is_shard = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.bytes().all(|byte| byte.is_ascii_digit())
    };
    let mut found = files(folder);
    found.retain(|path| !path.ends_with("zarr.json") && !is_shard(path));
    found
}

#[test]
fn all_frames_in_order() {
    for codec in ["none", "zstd:1", "blosc-lz4:5:shuffle"] {
        let folder = TempDir::new().unwrap();
        let out = folder.path().join("out");
        let options = format!("{SHAPES} --codec {codec} --backend host");
        let said = piped(&out, &options, &bytes(&frames(0, 50)), 0);
        assert!(said.contains("50 frames in "), "{said}");
        // 5 layers of 2 × 2 shards; the last layer has 2 frames.
        assert!(said.contains("20 shards stored"), "{said}");
        assert_eq!(values(&out), frames(0, 50));
        assert!(leftovers(&out).is_empty());
    }
}

#[test]
fn from_a_file() {
    let folder = TempDir::new().unwrap();
    let (out, raw) = (folder.path().join("out"), folder.path().join("raw"));
    fs::write(&raw, bytes(&frames(0, 20))).unwrap();
    let words = [
        "--frame-shape",
        "40,24",
        "--dtype",
        "uint16",
        "--frames",
        "13",
    ];
    let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"stream", &out, &raw];
    arguments.extend(words.iter().map(|word| word as &dyn AsRef<_>));
    let report = json(&arguments, 0);
    assert_eq!(report["frames"], 13);
    assert_eq!(report["frames_in_array"], 13);
    assert_eq!(values(&out), frames(0, 13));
}

#[test]
fn goes_on_where_an_array_ends() {
    let folder = TempDir::new().unwrap();
    let out = folder.path();
    let mut first = 0;
    for (count, options) in [
        (24, SHAPES), // complete layers of shards
        (7, ""),      // a part of a layer; the array says what frames are
        (1, SHAPES),  // within the same layer
        (16, SHAPES), // beyond the layer
    ] {
        let said = piped(out, options, &bytes(&frames(first, count)), 0);
        if first > 0 {
            assert!(
                said.contains(&format!("{first} frames are stored")),
                "{said}"
            );
        }
        first += count;
    }
    assert_eq!(values(out), frames(0, 48));
    // The same input once more: only what comes behind is new.
    let options = format!("{SHAPES} --skip-stored");
    let said = piped(out, &options, &bytes(&frames(0, 50)), 0);
    assert!(said.contains("2 frames in "), "{said}");
    assert_eq!(values(out), frames(0, 50));
    // Another input, or a short one, has nothing behind them.
    let said = piped(out, &options, &bytes(&frames(0, 10)), 1);
    assert!(said.contains("has 10 frames, and 50 are stored"), "{said}");
    let said = piped(out, &options, &bytes(&frames(0, 50)), 0);
    assert!(said.contains("0 frames in "), "{said}");
    assert_eq!(values(out), frames(0, 50));
    // The array keeps its shapes and codecs: others are refused, not ignored.
    for (option, asked, is) in [
        ("--shard", "24,24,16", "12,24,16"),
        ("--subchunk", "4,8,16", "4,8,8"),
        ("--codec", "zstd:5", "zstd"),
        ("--codec", "none", "zstd"),
    ] {
        let said = piped(out, &format!("{option} {asked}"), &bytes(&frames(50, 1)), 2);
        assert!(
            said.contains(&format!("{option} is ")) && said.contains(is),
            "{said}"
        );
    }
    piped(
        out,
        &format!("{SHAPES} --codec zstd:1"),
        &bytes(&frames(50, 1)),
        0,
    );
    assert_eq!(values(out), frames(0, 51));
    assert!(leftovers(out).is_empty());
}

/// Two processes that go on within the same layer of shards.
#[test]
fn a_second_process_is_refused() {
    let folder = TempDir::new().unwrap();
    let out = folder.path();
    piped(out, SHAPES, &bytes(&frames(0, 7)), 0);
    let mut first = command(out, "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lease = out.join(".zarrs-cuda-writer");
    while !lease.exists() {
        assert!(first.try_wait().unwrap().is_none());
        sleep(Duration::from_millis(5));
    }
    let said = piped(out, "", &bytes(&frames(7, 1)), 1);
    let process = format!("process {}", first.id());
    assert!(
        said.contains("has the lease") && said.contains(&process),
        "{said}"
    );
    assert!(!said.contains("name another OUT"), "{said}");
    let mut stdin = first.stdin.take().unwrap();
    stdin.write_all(&bytes(&frames(7, 2))).unwrap();
    drop(stdin);
    said_with_code(&first.wait_with_output().unwrap(), 0);
    assert_eq!(values(out), frames(0, 9));
    assert!(leftovers(out).is_empty());
}

#[test]
fn an_input_that_ends_within_a_frame() {
    let folder = TempDir::new().unwrap();
    let mut input = bytes(&frames(0, 5));
    input.truncate(input.len() - 3);
    let said = piped(folder.path(), SHAPES, &input, 1);
    assert!(said.contains("ended within a frame"), "{said}");
    assert_eq!(values(folder.path()), frames(0, 4));
}

#[test]
#[cfg(unix)]
fn ctrl_c_finishes_the_array() {
    let folder = TempDir::new().unwrap();
    let out = folder.path();
    let mut child = command(out, SHAPES)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A frame is cut, and the input stays open: the program waits for it.
    stdin
        .write_all(&bytes(&frames(0, 200))[..199 * FRAME * 2 + 100])
        .unwrap();
    stdin.flush().unwrap();
    // It read what the pipe does not hold, so it listens.
    sleep(Duration::from_millis(300));
    interrupt(&child);
    let said = said_with_code(&child.wait_with_output().unwrap(), 130);
    drop(stdin);
    let whole = open(out).shape()[0] as usize;
    assert!((1..200).contains(&whole), "{said}");
    assert!(
        said.contains(&format!("has {whole} frames, all whole")),
        "{said}"
    );
    assert!(said.contains("--skip-stored"), "{said}");
    assert_eq!(values(out), frames(0, whole));
    assert!(leftovers(out).is_empty());
    piped(
        out,
        &format!("{SHAPES} --skip-stored"),
        &bytes(&frames(0, 210)),
        0,
    );
    assert_eq!(values(out), frames(0, 210));
}

#[test]
fn wrong_usage() {
    let folder = TempDir::new().unwrap();
    let out = folder.path();
    for options in [
        "",
        "--frame-shape 4,4",
        "--dtype uint16",
        "--frame-shape 0,2 --dtype uint16",
        "--frame-shape 4,4 --dtype word",
        "--frame-shape 4,4 --dtype string",
        "--frame-shape 4,4 --dtype uint16 --shard 4,4",
        "--frame-shape 4,4 --dtype uint16 --codec gzip:99",
        "--frames x",
        "input another",
    ] {
        let said = piped(out, options, b"", 2);
        assert!(said.contains("error: "), "{options}: {said}");
        assert!(!out.join("zarr.json").exists());
    }
    piped(out, "--frame-shape 4,4 --dtype uint16", &[1; 32], 0);
    for options in ["--frame-shape 4,5", "--dtype int16"] {
        let said = piped(out, options, &[1; 32], 2);
        assert!(said.contains("leave out"), "{options}: {said}");
    }
    let said = said(&[&"stream", &out, &folder.path().join("none")], 1);
    assert!(said.contains("cannot open"), "{said}");
}

/// Data types by numpy's names.
#[test]
fn data_types_of_numpy() {
    let folder = TempDir::new().unwrap();
    let native = if cfg!(target_endian = "little") {
        '<'
    } else {
        '>'
    };
    let foreign = if native == '<' { '>' } else { '<' };
    for (name, metadata) in [
        ("u1".to_string(), "uint8"),
        ("|i1".to_string(), "int8"),
        (format!("{native}u2"), "uint16"),
        ("f4".to_string(), "float32"),
    ] {
        let out = folder.path().join(metadata);
        let options = format!("--frame-shape 4,4 --dtype {name}");
        piped(&out, &options, &[1; 64], 0);
        let text = fs::read_to_string(out.join("zarr.json")).unwrap();
        let described: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(described["data_type"], metadata, "{name}");
        // The array goes on by either name.
        piped(&out, &format!("--dtype {metadata}"), &[1; 64], 0);
        piped(&out, &format!("--dtype {name}"), &[1; 64], 0);
    }
    let options = format!("--frame-shape 4,4 --dtype {foreign}u2");
    let said = piped(&folder.path().join("other"), &options, &[], 2);
    assert!(said.contains("another byte order"), "{said}");
}

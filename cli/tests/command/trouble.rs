//! Trouble of the machine: files that cannot be read, too many open files, no memory. It is an error, and never
//! damage; nothing is repaired, replaced or left out because of it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::json;
use tempfile::TempDir;
use zarrs::array::{ArrayBuilder, data_type};

use crate::arrays::{chain, sharded, store};
use crate::program::{files, json, program, said, said_with_code};

/// The program with these words, in a shell that sets a limit first.
fn limited(limit: &str, words: &[&str]) -> Output {
    Command::new("sh")
        .args(["-c", &format!("ulimit {limit} && exec \"$@\""), "sh"])
        .arg(env!("CARGO_BIN_EXE_zarrs-cuda"))
        .args(words)
        .env("NO_COLOR", "1")
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

fn names_no_damage(text: &str) {
    for word in ["damage in", "written again", "unreadable", "is invalid"] {
        assert!(!text.contains(word), "{text}");
    }
}

/// All files, and what is in them.
fn contents(path: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut files = files(path);
    files.sort();
    let content = |file: std::path::PathBuf| {
        let bytes = fs::read(&file).unwrap();
        (file, bytes)
    };
    files.into_iter().map(content).collect()
}

#[test]
fn a_shard_that_cannot_be_read_is_no_damage() {
    let folder = TempDir::new().unwrap();
    sharded(folder.path(), &chain(&[json!({ "name": "crc32c" })]));
    // Reading it is an error for any user.
    let shard = folder.path().join("c/0/1");
    fs::remove_file(&shard).unwrap();
    fs::create_dir(&shard).unwrap();
    let before = contents(folder.path());
    for line in [
        "verify PATH",
        "recover PATH",
        "recover PATH --dry-run",
        "compact PATH",
        "compact PATH --dry-run",
        "inspect PATH 0,1",
    ] {
        let path = folder.path().display().to_string();
        let words: Vec<_> = line
            .split(' ')
            .map(|word| word.replace("PATH", &path))
            .collect();
        let output = program().args(&words).output().unwrap();
        let text = said_with_code(&output, 1);
        assert!(text.contains("c/0/1"), "{line}: {text}");
        assert!(text.contains("is a directory"), "{line}: {text}");
        names_no_damage(&text);
        assert!(shard.is_dir());
        assert_eq!(contents(folder.path()), before, "{line}");
    }
    // The others are looked at.
    let found = json(&[&"verify", &folder.path()], 1);
    assert_eq!(
        (&found["shards"], &found["undecided"]),
        (&json!(3), &json!(1))
    );
    assert_eq!(found["damaged"], json!([]));
    let text = said(&[&"verify", &folder.path()], 1);
    assert!(text.contains("1 more shard could not be read"), "{text}");
    assert!(text.contains("\nhelp: "), "{text}");
    // Damage beside trouble is still named.
    let mut bytes = fs::read(folder.path().join("c/1/1")).unwrap();
    bytes[3] ^= 1;
    fs::write(folder.path().join("c/1/1"), bytes).unwrap();
    let text = said(&[&"verify", &folder.path()], 1);
    assert!(text.contains("shard 1,1: damage in 1 subchunk"), "{text}");
}

/// Each thread has a file open for most of the time, and the process may have one.
#[test]
fn too_many_open_files_are_no_damage() {
    /// Shards of 32 KiB, which are one file.
    const SHARDS: u64 = 1024;
    let folder = TempDir::new().unwrap();
    let (shard, subchunk) = (vec![128, 128], vec![64, 64]);
    let mut array = ArrayBuilder::new(vec![128 * SHARDS, 128], shard, data_type::uint16(), 0_u16);
    array.subchunk_shape(subchunk);
    let array = array.build(store(folder.path()), "/").unwrap();
    array.store_metadata().unwrap();
    let elements: Vec<u16> = (1..=128 * 128).collect();
    array.store_chunk(&[0, 0], &elements).unwrap();
    let file = folder.path().join("c/0/0");
    // Damage beside the trouble: it is cut off.
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() - 40]).unwrap();
    let first = folder.path().join("c/1/0");
    fs::create_dir(first.parent().unwrap()).unwrap();
    fs::write(&first, &whole).unwrap();
    for number in 2..SHARDS {
        let directory = folder.path().join(format!("c/{number}"));
        fs::create_dir(&directory).unwrap();
        fs::hard_link(&first, directory.join("0")).unwrap();
    }
    let path = folder.path().display().to_string();
    let mut failed = 0;
    for most in 4..8 {
        for subcommand in ["verify", "recover", "inspect"] {
            let words: &[&str] = match subcommand {
                "inspect" => &["inspect", &path],
                subcommand => &[subcommand, &path, "--threads", "32"],
            };
            let output = limited(&format!("-n {most}"), words);
            let text = text(&output);
            if !text.contains("Too many open files") {
                continue;
            }
            failed += 1;
            assert_eq!(output.status.code(), Some(1), "{subcommand}: {text}");
            assert!(text.contains("\nhelp: "), "{subcommand}: {text}");
            // The first one is damaged, and no other.
            for line in text.lines().filter(|line| line.starts_with("shard ")) {
                assert!(line.starts_with("shard 0,0:"), "{subcommand}: {text}");
            }
        }
    }
    assert!(failed > 0, "no limit was reached");
    assert_eq!(fs::read(&first).unwrap(), whole);
    assert_eq!(fs::read(&file).unwrap(), &whole[..whole.len() - 40]);
}

#[test]
fn a_subchunk_without_memory_is_no_damage() {
    /// MiB that a subchunk takes, decoded: more than the limit.
    const SUBCHUNK: u64 = 384;
    let folder = TempDir::new().unwrap();
    let elements = SUBCHUNK << 20;
    let mut array = ArrayBuilder::new(vec![elements], vec![elements], data_type::uint8(), 0_u8);
    array.subchunk_shape(vec![elements]);
    array.bytes_to_bytes_codecs(vec![std::sync::Arc::new(
        zarrs::array::codec::ZstdCodec::new(1, true),
    )]);
    let array = array.build(store(folder.path()), "/").unwrap();
    array.store_metadata().unwrap();
    array
        .store_chunk(&[0], vec![7_u8; usize::try_from(elements).unwrap()])
        .unwrap();
    let before = contents(folder.path());
    let path = folder.path().display().to_string();
    let limit = format!("-v {}", (SUBCHUNK - 8) << 10);
    for words in [
        &["verify", &path, "--threads", "1", "--memory", "4GiB"][..],
        &["recover", &path, "--threads", "1", "--memory", "4GiB"],
    ] {
        let output = limited(&limit, words);
        let text = said_with_code(&output, 1);
        assert!(text.contains("out of memory"), "{text}");
        assert!(text.contains("may be right"), "{text}");
        assert!(text.contains("\nhelp: "), "{text}");
        names_no_damage(&text);
        assert_eq!(contents(folder.path()), before);
    }
    said(&[&"verify", &path], 0);
}

#[test]
fn a_listing_names_its_place() {
    let folder = TempDir::new().unwrap();
    let input = folder.path().join("input");
    fs::create_dir(&input).unwrap();
    let text = said(
        &[
            &"reencode",
            &input,
            &folder.path().join("output"),
            &"--recursive",
        ],
        1,
    );
    assert!(
        text.contains(&format!("{} is neither a Zarr array", input.display())),
        "{text}"
    );
    assert!(
        !text.contains("for /\n") && text.contains("\nhelp: "),
        "{text}"
    );
}

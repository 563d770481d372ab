//! Trouble of the machine: files that cannot be read, too many open files, no memory. It is an error, and never
//! damage; nothing is repaired, replaced or left out because of it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::json;
use tempfile::TempDir;
use zarrs::array::{ArrayBuilder, data_type};

use crate::arrays::{chain, sharded, store, update};
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

#[test]
fn too_many_open_files_are_no_damage() {
    let folder = TempDir::new().unwrap();
    sharded(folder.path(), &chain(&[json!({ "name": "crc32c" })]));
    update(folder.path(), 2);
    // An update that was torn: there is something to repair.
    let shard = folder.path().join("c/0/0");
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, &bytes[..bytes.len() - 40]).unwrap();
    let before = contents(folder.path());
    let path = folder.path().display().to_string();
    let mut failed = 0;
    for most in 3..12 {
        let limit = format!("-n {most}");
        for subcommand in ["verify", "recover", "inspect"] {
            let dry: &[&str] = match subcommand {
                "recover" => &["--dry-run"],
                _ => &[],
            };
            let output = limited(&limit, &[&[subcommand, &path], dry].concat());
            let text = text(&output);
            match output.status.code() {
                Some(1) => failed += 1,
                // It is torn; or its libraries were not found.
                Some(0 | 3 | 127) => {}
                code => panic!("{subcommand}: {code:?}, {text}"),
            }
            if !text.contains("Too many open files") {
                continue;
            }
            assert_eq!(output.status.code(), Some(1), "{subcommand}: {text}");
            for word in ["written again", "unreadable"] {
                assert!(!text.contains(word), "{text}");
            }
            assert_eq!(contents(folder.path()), before);
        }
    }
    assert!(failed > 0, "no limit was reached");
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
        &["verify", &path, "--threads", "1"][..],
        &["recover", &path, "--threads", "1"],
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

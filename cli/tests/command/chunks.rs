//! Chunks that are counted, and chunks that no reader finds: `reencode`, `verify` and `pyramid`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use zarrs::array::Array;
use zarrs_cuda::storage::SparseShardStore;

use crate::arrays::{chain, open, sharded, store, update, values};
use crate::program::{as_a_user, json as json_of, program, said, said_with_code};

/// Chunk keys of Zarr v3: name and separator, and how a key begins.
pub(crate) const ENCODINGS: [(&str, &str, &str); 4] = [
    ("default", "/", "c/"),
    ("default", ".", "c."),
    ("v2", "/", ""),
    ("v2", ".", ""),
];

/// The key of a chunk in the encoding with this number.
pub(crate) fn key(encoding: usize, indices: &[u64]) -> String {
    let (_, separator, begin) = ENCODINGS[encoding];
    let indices: Vec<_> = indices.iter().map(ToString::to_string).collect();
    format!("{begin}{}", indices.join(separator))
}

/// Writes a file, and the directories above it.
pub(crate) fn write(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Describes an array of 4 × 6 `uint8` in chunks of 2 × 3, whose keys have the encoding with this number.
pub(crate) fn described(path: &Path, encoding: usize) {
    let (name, separator, _) = ENCODINGS[encoding];
    let metadata = json!({
        "zarr_format": 3, "node_type": "array", "shape": [4, 6], "data_type": "uint8",
        "fill_value": 9, "codecs": ["bytes"],
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": [2, 3] } },
        "chunk_key_encoding": { "name": name, "configuration": { "separator": separator } },
    });
    write(&path.join("zarr.json"), metadata.to_string().as_bytes());
}

/// Describes the same array in Zarr v2.
pub(crate) fn described_v2(path: &Path, separator: Option<&str>) {
    let mut metadata = json!({
        "zarr_format": 2, "shape": [4, 6], "chunks": [2, 3], "dtype": "|u1", "fill_value": 9,
        "order": "C", "filters": null, "compressor": null,
    });
    if let Some(separator) = separator {
        metadata["dimension_separator"] = separator.into();
    }
    write(&path.join(".zarray"), metadata.to_string().as_bytes());
}

/// Writes all four chunks, with keys of the encoding with this number. Every element is the number of its
/// chunk.
pub(crate) fn chunks(path: &Path, encoding: usize) {
    for number in 0..4_u8 {
        let indices = [u64::from(number / 2), u64::from(number % 2)];
        write(&path.join(key(encoding, &indices)), &[number; 6]);
    }
}

/// The elements of that array.
pub(crate) fn elements() -> Vec<u8> {
    let rows = (0..4_u8).flat_map(|y| (0..6_u8).map(move |x| y / 2 * 2 + x / 3));
    rows.collect()
}

fn elements_of(path: &Path) -> Vec<u8> {
    let array = open(path);
    array.retrieve_array_subset(&array.subset_all()).unwrap()
}

/// Two places in a directory.
fn places() -> (TempDir, PathBuf, PathBuf) {
    let directory = TempDir::new().unwrap();
    let [from, to] = ["in", "out"].map(|name| directory.path().join(name));
    (directory, from, to)
}

const SHAPES: [&str; 4] = ["--shard", "4,6", "--subchunk", "2,3"];

fn reencode(from: &Path, to: &Path, more: &[&str], code: i32) -> String {
    let mut command = program();
    command.arg("reencode").args([from, to]).args(more);
    said_with_code(&command.args(SHAPES).output().unwrap(), code)
}

/// Fails unless IN is refused with these words, and nothing is written.
fn refuses(from: &Path, to: &Path, words: &[&str]) {
    let said = reencode(from, to, &[], 1);
    for words in words {
        assert!(said.contains(words), "no `{words}` in: {said}");
    }
    assert!(!to.exists(), "{said}");
}

#[test]
fn stored_chunks_are_counted() {
    let (_directory, from, to) = places();
    for encoding in 0..4 {
        described(&from, encoding);
        chunks(&from, encoding);
        let said = reencode(&from, &to, &["--overwrite", "--verify"], 0);
        assert!(said.contains("\n4 of 4 chunks stored\n"), "{said}");
        assert_eq!(elements_of(&to), elements());
        fs::remove_file(from.join(key(encoding, &[1, 0]))).unwrap();
        write(&from.join(key(encoding, &[2, 0])), b"old");
        let said = reencode(&from, &to, &["--overwrite"], 0);
        assert!(said.contains("\n3 of 4 chunks stored\n"), "{said}");
        assert!(
            said.contains("1 stored chunk lies outside of the grid"),
            "{said}"
        );
        let found = json_of(
            &[&"reencode", &from, &to, &"--overwrite", &"--shard", &"4,6"],
            0,
        );
        assert_eq!(
            (&found["chunks"]["stored"], &found["chunks"]["of"]),
            (&json!(3), &json!(4))
        );
        assert_eq!(found["chunks"]["outside"], 1);
        fs::remove_dir_all(&from).unwrap();
    }
}

/// Chunks under each other encoding than the metadata say, alone or beside right ones.
#[test]
fn chunks_of_another_encoding_are_an_error() {
    for own in 0..4 {
        for other in (0..4).filter(|other| *other != own) {
            let (_directory, from, to) = places();
            described(&from, own);
            chunks(&from, other);
            let (name, separator, _) = ENCODINGS[other];
            let remedy = format!(
                "{{\"name\":\"{name}\",\"configuration\":{{\"separator\":\"{separator}\"}}}}"
            );
            let words = [
                "4 keys look like chunks",
                &key(own, &[0, 0]),
                "0 of 4 chunks",
                &remedy,
            ];
            refuses(&from, &to, &words);
            chunks(&from, own);
            fs::remove_file(from.join(key(own, &[1, 1]))).unwrap();
            refuses(
                &from,
                &to,
                &["4 keys look like chunks", "3 of 4 chunks stored"],
            );
            // A key outside of the grid is of another array, or of none.
            fs::remove_dir_all(&from).unwrap();
            described(&from, own);
            chunks(&from, own);
            write(&from.join(key(other, &[2, 0])), b"other");
            reencode(&from, &to, &[], 0);
        }
    }
}

#[test]
fn separators_of_v2_are_found() {
    for (said_by_metadata, stored_as) in [(None, 2), (Some("."), 2), (Some("/"), 3)] {
        let (_directory, from, to) = places();
        described_v2(&from, said_by_metadata);
        chunks(&from, stored_as);
        let said = reencode(&from, &to, &["--verify"], 0);
        let (_, found, _) = ENCODINGS[stored_as];
        assert!(said.contains("4 of 4 chunks stored"), "{said}");
        assert!(
            said.contains(&format!("have the separator {found}")),
            "{said}"
        );
        assert_eq!(elements_of(&to), elements());
        let said = crate::program::said(&[&"verify", &to, &"--against", &from], 0);
        assert!(said.contains("bit for bit"), "{said}");

        // Both kinds.
        let own = if said_by_metadata == Some("/") { 2 } else { 3 };
        fs::remove_dir_all(&to).unwrap();
        chunks(&from, own);
        refuses(
            &from,
            &to,
            &["4 keys look like chunks", "\"dimension_separator\": "],
        );
        // The one that the metadata say.
        fs::remove_dir_all(&from).unwrap();
        described_v2(&from, said_by_metadata);
        chunks(&from, own);
        let said = reencode(&from, &to, &[], 0);
        assert!(!said.contains("note"), "{said}");
        // Keys of v3 are not looked for in v2.
        fs::remove_file(from.join(key(own, &[0, 0]))).unwrap();
        write(&from.join("c/0/0"), &[0; 6]);
        fs::remove_dir_all(&to).unwrap();
        refuses(
            &from,
            &to,
            &["1 key looks like a chunk", "c/0/0", "rename them"],
        );
    }
}

#[test]
fn a_wrong_prefix() {
    for encoding in 0..4 {
        // A directory too much.
        let (directory, from, to) = places();
        described(&from, encoding);
        chunks(&from.join("data"), encoding);
        refuses(
            &from,
            &to,
            &["4 keys look like chunks", "move the chunks out of data/"],
        );
        // A directory too few.
        let (above, from, to) = places();
        described(&from, encoding);
        chunks(above.path(), encoding);
        let first = key(encoding, &[0, 0]);
        refuses(
            &from,
            &to,
            &["no chunk of", "looks like a chunk", "directory above"],
        );
        let first = above.path().join(first);
        let parent = first.parent().unwrap();
        assert!(parent.starts_with(above.path()), "{}", parent.display());
        drop(directory);
    }
}

/// Other arrays beside an array, and below it, are no chunks of it.
#[test]
fn nodes_are_no_chunks() {
    let (directory, _, to) = places();
    let from = directory.path().join("group/fill");
    described(&from, 0);
    for (name, encoding) in [("0", 2), ("c", 2), ("1", 0)] {
        described(&from.parent().unwrap().join(name), encoding);
        chunks(&from.parent().unwrap().join(name), encoding);
        if name != "c" {
            // Keys in c are chunks, whatever else is there.
            described(&from.join(name), encoding);
            chunks(&from.join(name), encoding);
        }
    }
    let said = reencode(&from, &to, &[], 1);
    assert!(said.contains("no chunk of"), "{said}");
    assert!(!said.contains("directory above"), "{said}");
    let said = reencode(&from, &to, &["--allow-empty"], 0);
    assert!(said.contains("0 of 4 chunks stored"), "{said}");
}

#[test]
fn links() {
    let (directory, from, to) = places();
    described(&from, 0);
    chunks(&from, 0);
    // A link that leads to a chunk is one.
    let (chunk, away) = (from.join("c/1/1"), directory.path().join("away"));
    fs::rename(&chunk, &away).unwrap();
    symlink(&away, &chunk).unwrap();
    // Editors leave such links.
    symlink("nobody@nowhere.1", from.join(".#zarr.json")).unwrap();
    let said = reencode(&from, &to, &["--verify"], 0);
    assert!(said.contains("4 of 4 chunks stored"), "{said}");
    assert_eq!(elements_of(&to), elements());
    fs::remove_dir_all(&to).unwrap();

    fs::remove_file(&away).unwrap();
    refuses(
        &from,
        &to,
        &["c/1/1", "cannot be followed", "restore what it leads to"],
    );
    fs::remove_file(&chunk).unwrap();
    symlink(&chunk, &chunk).unwrap();
    refuses(&from, &to, &["c/1/1", "cannot be followed"]);
    fs::remove_file(&chunk).unwrap();
    symlink(&from, &chunk).unwrap();
    refuses(&from, &to, &["leads back to"]);
    // All chunks.
    fs::remove_dir_all(from.join("c")).unwrap();
    symlink(&away, from.join("c")).unwrap();
    refuses(&from, &to, &["in/c", "cannot be followed"]);
}

/// A directory that cannot be read is not empty.
#[test]
fn directories_that_cannot_be_read() {
    let (directory, from, _) = places();
    described(&from, 0);
    chunks(&from, 0);
    let closed = from.join("c/1");
    let mode =
        |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    mode(directory.path(), 0o777);
    mode(&closed, 0);
    let mut command = as_a_user(directory.path());
    let to = directory.path().join("out");
    let output = command
        .arg("reencode")
        .args([&from, &to])
        .args(SHAPES)
        .output();
    mode(&closed, 0o755);
    let output = output.unwrap();
    let said = said_with_code(&output, 1);
    assert!(said.contains("cannot list the directory"), "{said}");
    assert!(said.contains("c/1: Permission denied"), "{said}");
    assert!(!to.exists());
}

#[test]
fn no_chunk_is_an_error_unless_it_is_allowed() {
    for v2 in [false, true] {
        let (_directory, from, to) = places();
        if v2 {
            described_v2(&from, None);
        } else {
            described(&from, 0);
        }
        refuses(
            &from,
            &to,
            &[
                "no chunk of",
                "of 4: every element",
                "fill value 9",
                "--allow-empty",
            ],
        );
        let said = reencode(&from, &to, &["--allow-empty", "--verify"], 0);
        assert!(said.contains("0 of 4 chunks stored"), "{said}");
        assert_eq!(elements_of(&to), [9; 24]);
    }
}

/// Describes an array of zeros of any shape.
fn of_shape(path: &Path, shape: &[u64]) {
    let chunk: Vec<u64> = shape.iter().map(|_| 1).collect();
    let metadata = json!({
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8",
        "fill_value": 0, "codecs": ["bytes"],
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": chunk } },
        "chunk_key_encoding": { "name": "default" },
    });
    write(&path.join("zarr.json"), metadata.to_string().as_bytes());
}

#[test]
fn arrays_without_dimensions_or_elements() {
    let (_directory, from, to) = places();
    of_shape(&from, &[]);
    let run = |more: &[&dyn AsRef<std::ffi::OsStr>], code| {
        let words: [&dyn AsRef<std::ffi::OsStr>; 3] = [&"reencode", &from, &to];
        said(&[&words[..], more].concat(), code)
    };
    assert!(run(&[], 1).contains("no chunk of"));
    // The key of Zarr v2.
    fs::write(from.join("0"), [7]).unwrap();
    let text = run(&[], 1);
    assert!(
        text.contains("1 key looks like a chunk") && text.contains("has the key c"),
        "{text}"
    );
    fs::rename(from.join("0"), from.join("c")).unwrap();
    assert!(run(&[], 0).contains("1 of 1 chunk stored"));
    assert_eq!(elements_of(&to), [7]);
    fs::remove_dir_all(&to).unwrap();
    fs::remove_file(from.join("c")).unwrap();
    of_shape(&from, &[0, 3]);
    assert!(run(&[], 0).contains("0 of 0 chunks stored"));
}

#[test]
fn a_group_with_an_array_of_fill_values() {
    let (_directory, from, to) = places();
    let group = json!({ "zarr_format": 3, "node_type": "group" });
    write(&from.join("zarr.json"), group.to_string().as_bytes());
    described(&from.join("fill"), 0);
    described(&from.join("full"), 0);
    chunks(&from.join("full"), 0);
    let said = reencode(&from, &to, &["--recursive", "--verify"], 0);
    let warning = said
        .lines()
        .find(|line| line.starts_with("warning: "))
        .unwrap();
    assert!(warning.contains("in/fill is stored, of 4"), "{said}");
    assert!(said.contains("4 of 4 chunks stored"), "{said}");
    assert_eq!(elements_of(&to.join("fill")), [9; 24]);
    assert_eq!(elements_of(&to.join("full")), elements());
    fs::remove_dir_all(&to).unwrap();
    // The last array decides before the first byte.
    described(&from.join("zz"), 0);
    chunks(&from.join("zz"), 3);
    let said = reencode(&from, &to, &["--recursive"], 1);
    assert!(
        said.contains("zz") && said.contains("4 keys look like chunks"),
        "{said}"
    );
    assert!(!to.exists(), "{said}");
}

/// A member of a group that cannot be looked into is not left out.
#[test]
fn members_that_cannot_be_read() {
    let (directory, from, to) = places();
    let group = json!({ "zarr_format": 3, "node_type": "group" });
    for group_path in [&from, &from.join("inner")] {
        write(&group_path.join("zarr.json"), group.to_string().as_bytes());
    }
    described(&from.join("full"), 0);
    chunks(&from.join("full"), 0);
    let link = from.join("inner/member");
    symlink(directory.path().join("away"), &link).unwrap();
    let said = reencode(&from, &to, &["--recursive"], 1);
    assert!(said.contains("inner/member: No such file"), "{said}");
    assert!(!to.exists(), "{said}");
    // A link to an array is a member.
    described(&directory.path().join("away"), 0);
    chunks(&directory.path().join("away"), 0);
    reencode(&from, &to, &["--recursive"], 0);
    assert_eq!(elements_of(&to.join("inner/member")), elements());

    fs::remove_dir_all(&to).unwrap();
    let closed = from.join("inner/closed");
    described(&closed, 0);
    let mode = |mode| fs::set_permissions(&closed, PermissionsExt::from_mode(mode)).unwrap();
    fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
    mode(0);
    let mut command = as_a_user(directory.path());
    command.arg("reencode").args([&from, &to]).args(SHAPES);
    let output = command.arg("--recursive").output();
    mode(0o755);
    let output = output.unwrap();
    let said = said_with_code(&output, 1);
    assert!(said.contains("inner/closed: Permission denied"), "{said}");
    assert!(!to.exists());
}

/// `reencode` and `pyramid` do not see subchunks that wait.
#[test]
fn subchunks_that_wait_are_an_error() {
    let (_directory, from, to) = places();
    sharded(&from, &chain(&[]));
    let sparse = SparseShardStore::on_filesystem(store(&from), "/").unwrap();
    let subchunks = Array::open(std::sync::Arc::new(sparse), "/").unwrap();
    subchunks.store_chunk(&[0, 0], vec![7_u16; 64]).unwrap();
    let words: [&dyn AsRef<std::ffi::OsStr>; 3] = [&"reencode", &from, &to];
    let text = said(&words, 1);
    assert!(text.contains("subchunks of 1 shard of"), "{text}");
    assert!(text.contains("zarrs-cuda consolidate"), "{text}");
    assert!(!to.exists());
}

#[test]
fn shards_are_counted_by_verify_and_pyramid() {
    let directory = TempDir::new().unwrap();
    let array = directory.path().join("image/0");
    sharded(&array, &chain(&[json!({ "name": "crc32c" })]));
    update(&array, 2);
    let (image, none) = (array.parent().unwrap(), Value::Null);
    let text = said(&[&"verify", &array], 0);
    assert!(text.starts_with("4 of 4 chunks stored\n"), "{text}");
    fs::remove_file(array.join("c/0/1")).unwrap();
    let text = said(&[&"pyramid", &image, &"--axis", &"y", &"--axis", &"x"], 0);
    assert!(text.starts_with("3 of 4 chunks stored\n"), "{text}");
    let found = json_of(&[&"verify", &array], 0);
    assert_eq!(
        found["chunks"],
        json!({ "stored": 3, "of": 4, "outside": 0, "found_separator": none })
    );

    fs::rename(array.join("c/0/0"), array.join("0.0")).unwrap();
    for words in [
        &[&"verify" as &dyn AsRef<_>, &array][..],
        &[&"pyramid", &image],
    ] {
        let text = said(words, 1);
        assert!(
            text.contains("one is 0.0, and the chunk [0, 0] has the key c/0/0"),
            "{text}"
        );
    }
    let text = said(&[&"inspect", &array], 0);
    let words: Vec<_> = text.split_whitespace().collect();
    let text = words.join(" ");
    assert!(text.contains("note 1 key looks like a chunk"), "{text}");
    fs::remove_file(array.join("0.0")).unwrap();
    fs::remove_dir_all(array.join("c")).unwrap();
    let text = said(&[&"verify", &array], 0);
    assert!(text.starts_with("0 of 4 chunks stored\n"), "{text}");
    let text = said(&[&"pyramid", &image, &"--start", &"0"], 1);
    assert!(
        text.contains("no chunk of") && text.contains("--allow-empty"),
        "{text}"
    );
    let text = said(&[&"pyramid", &image, &"--start", &"0", &"--allow-empty"], 0);
    assert!(text.starts_with("0 of 4 chunks stored\n"), "{text}");
    assert!(
        values(&image.join("1"))
            .iter()
            .all(|&value| value == 65_535)
    );
}

/// Names of chunks with zeros in front or a suffix, which no reader asks for.
#[test]
fn names_with_zeros_and_suffixes() {
    let (_directory, from, to) = places();
    let moved = |key: &str, to: &str| {
        write(&from.join(to), &fs::read(from.join(key)).unwrap());
        fs::remove_file(from.join(key)).unwrap();
    };
    for encoding in 0..4 {
        described(&from, encoding);
        chunks(&from, encoding);
        let own = key(encoding, &[1, 0]);
        let zeros = own.replacen('1', "01", 1);
        for other in [zeros, format!("{own}.nii"), format!("{own}.a.gz")] {
            // Beside the chunk itself, a suffix says something about the chunk.
            if other.starts_with(&own) {
                fs::copy(from.join(&own), from.join(&other)).unwrap();
                let said = reencode(&from, &to, &["--overwrite"], 0);
                assert!(said.contains("4 of 4 chunks stored"), "{said}");
                fs::remove_dir_all(&to).unwrap();
            }
            moved(&own, &other);
            let instead = format!("one is {other}, and the chunk [1, 0] has the key {own}");
            refuses(&from, &to, &["3 of 4 chunks stored", &instead, "rename"]);
            moved(&other, &own);
        }
        // What a program left that was killed holds no chunk.
        for suffix in ["tmp", "5e3f.partial"] {
            let left = format!("{own}.{suffix}");
            moved(&own, &left);
            let said = reencode(&from, &to, &["--overwrite"], 0);
            let note = format!("1 chunk that was about to be stored, as {left}, and never was");
            assert!(said.contains(&note), "{said}");
            moved(&left, &own);
        }
        fs::remove_dir_all(&from).unwrap();
        fs::remove_dir_all(&to).unwrap();
    }
}

/// A pipe, a socket or a directory in the place of a chunk is no chunk that is not stored, and is not waited for.
#[test]
fn chunks_that_are_no_files() {
    use std::os::unix::net::UnixListener;
    let directory = TempDir::new().unwrap();
    let array = directory.path().join("image/0");
    sharded(&array, &chain(&[json!({ "name": "crc32c" })]));
    update(&array, 1);
    let (image, to) = (directory.path().join("image"), directory.path().join("to"));
    let shard = array.join("c/0/1");
    fs::remove_file(&shard).unwrap();
    let kinds = ["a directory", "a socket", "a pipe"];
    let mut pipe = std::process::Command::new("mkfifo");
    let made = pipe.arg(directory.path().join("pipe")).status().unwrap();
    assert!(made.success());
    for kind in kinds {
        let _listener = match kind {
            "a directory" => fs::create_dir(&shard).map(|()| None).unwrap(),
            "a socket" => Some(UnixListener::bind(&shard).unwrap()),
            _ => fs::rename(directory.path().join("pipe"), &shard)
                .map(|()| None)
                .unwrap(),
        };
        for words in [
            &[&"reencode" as &dyn AsRef<_>, &array, &to][..],
            &[&"reshard", &array, &to, &"--shard", &"32,32"],
            &[&"pyramid", &image, &"--axis", &"y", &"--axis", &"x"],
            &[&"verify", &array],
            &[&"verify", &array, &"0,1"],
            &[&"recover", &array],
            &[&"compact", &array],
            &[&"inspect", &array],
        ] {
            let text = said(words, 1);
            let place = format!("{} is a ", shard.display());
            assert!(
                text.contains(&place) && text.contains("where a file should be"),
                "{kind}: {text}"
            );
            assert!(
                !to.join("zarr.json").exists() && !image.join("1").exists(),
                "{text}"
            );
        }
        if shard.is_dir() {
            fs::remove_dir(&shard).unwrap();
        } else {
            fs::remove_file(&shard).unwrap();
        }
    }
}

/// A pipe in the place of metadata is not waited for.
#[test]
fn metadata_that_are_no_files() {
    let directory = TempDir::new().unwrap();
    let [group, to] = ["group", "to"].map(|name| directory.path().join(name));
    let array = group.join("0");
    sharded(&array, &chain(&[]));
    let root = json!({ "zarr_format": 3, "node_type": "group" });
    write(&group.join("zarr.json"), root.to_string().as_bytes());
    let metadata = array.join("zarr.json");
    fs::remove_file(&metadata).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&metadata).status();
    assert!(made.unwrap().success());
    for words in [
        &[&"reencode" as &dyn AsRef<_>, &array, &to][..],
        &[&"reencode", &group, &to, &"--recursive"],
        &[&"reshard", &array, &to, &"--chunks"],
        &[&"pyramid", &group],
        &[&"pyramid", &array],
        &[&"verify", &array],
        &[&"stream", &array, &"/dev/null"],
    ] {
        let text = said(words, 1);
        assert!(text.contains("where a file should be"), "{text}");
        assert!(!to.exists(), "{text}");
    }
}

//! Objects in a frame that have the name of a version, but are none.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use zarrs::storage::{ListableStorageTraits, StorePrefix};

use super::array::{create, files, frame, open, packed, read, shard, subchunks, write};

/// A name that the tests' own versions never have.
const NAME: &str = "00000002.0000000000000009.HOSTILE.chunk";

/// The peak memory of the process, in MiB.
fn most_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        / 1024
}

type Put = fn(&Path, &Path);

const OBJECTS: [(&str, Put, usize); 7] = [
    (
        "2 GiB without any blocks",
        |at, _| File::create(at).unwrap().set_len(2 << 30).unwrap(),
        1,
    ),
    (
        "a pipe",
        |at, _| assert!(Command::new("mkfifo").arg(at).status().unwrap().success()),
        1,
    ),
    (
        "a link that leads nowhere",
        |at, _| symlink("nowhere", at).unwrap(),
        1,
    ),
    ("a link to itself", |at, _| symlink(NAME, at).unwrap(), 1),
    (
        "a link to a version",
        |at, version| symlink(version, at).unwrap(),
        1,
    ),
    // A directory is a prefix, not the key of an object.
    ("a directory", |at, _| fs::create_dir(at).unwrap(), 0),
    ("nothing at all", |_, _| {}, 0),
];

#[test]
fn only_regular_files_are_versions() {
    for (what, put, invalid) in OBJECTS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        create(&path);
        let array = subchunks(&open(&path));
        // A version of another subchunk. Under the right name it would be valid.
        write(&array, 5, 50).unwrap();
        write(&array, 2, 20).unwrap();
        let other = fs::read_dir(frame(&path, 0))
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let mut other = other.filter(|path| path.to_string_lossy().contains("/00000005"));
        put(&frame(&path, 0).join(NAME), &other.next().unwrap());

        let before = most_memory();
        let (done, is_done) = mpsc::channel();
        let work = std::thread::spawn(move || {
            let adapter = open(&path);
            let array = subchunks(&adapter);
            assert_eq!(read(&array, 2), Ok(20), "{what}");
            write(&array, 2, 21).unwrap();
            assert_eq!(read(&array, 2), Ok(21), "{what}");
            adapter
                .list_prefix(&StorePrefix::new("volume/c/").unwrap())
                .unwrap();
            let consolidated = adapter.consolidate_all(&|_| {}).unwrap();
            assert_eq!(
                (consolidated.sum.subchunks, consolidated.sum.invalid),
                (2, invalid),
                "{what}"
            );
            assert_eq!(read(&array, 2), Ok(21), "{what}");
            assert_eq!((packed(&path)[2], packed(&path)[5]), (21, 50), "{what}");
            done.send(()).unwrap();
        });
        let ended = is_done.recv_timeout(Duration::from_mins(1));
        assert_ne!(
            ended,
            Err(mpsc::RecvTimeoutError::Timeout),
            "{what}: it waits"
        );
        work.join().unwrap();
        let more = most_memory() - before;
        assert!(more < 256, "{what}: {more} MiB");
    }
}

/// An existing temporary, from a crash or from another program.
#[test]
fn temporaries_are_made_anew() {
    type Put = fn(&Path, &Path);
    let temporaries: [(&str, Put); 4] = [
        ("half of a shard", |at, _| fs::write(at, "half").unwrap()),
        ("a link to a file", |at, other| symlink(other, at).unwrap()),
        ("a link that leads nowhere", |at, other| {
            symlink(other.with_extension("none"), at).unwrap();
        }),
        ("a pipe", |at, _| {
            assert!(Command::new("mkfifo").arg(at).status().unwrap().success());
        }),
    ];
    for (what, put) in temporaries {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        create(&path);
        let other = path.join("other");
        fs::write(&other, "of somebody else").unwrap();
        write(&subchunks(&open(&path)), 2, 20).unwrap();
        put(&shard(&path, 0).with_extension("tmp"), &other);
        let (done, is_done) = mpsc::channel();
        let packing = path.clone();
        std::thread::spawn(move || {
            done.send(
                open(&packing)
                    .consolidate(&[0])
                    .map_err(|error| error.to_string()),
            )
        });
        let consolidated = is_done.recv_timeout(Duration::from_mins(1));
        let consolidated = consolidated.unwrap_or_else(|_| panic!("{what}: it waits"));
        assert_eq!(consolidated.unwrap().unwrap().subchunks, 1, "{what}");
        assert_eq!(packed(&path)[2], 20, "{what}");
        assert!(
            fs::symlink_metadata(shard(&path, 0)).unwrap().is_file(),
            "{what}"
        );
        assert_eq!(fs::read(&other).unwrap(), b"of somebody else", "{what}");
        assert!(!other.with_extension("none").exists(), "{what}");
    }
}

/// For example, if the shards are on another disk.
#[test]
fn links_to_directories_are_followed() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let path = folder.path();
    create(path);
    symlink(elsewhere.path(), path.join("volume/c")).unwrap();
    // A second link leads back to the folder.
    symlink(path, elsewhere.path().join("back")).unwrap();
    let adapter = open(path);
    let array = subchunks(&adapter);
    write(&array, 9, 90).unwrap();
    assert_eq!(adapter.pending().unwrap(), [[1]]);
    assert_eq!(adapter.consolidate_all(&|_| {}).unwrap().sum.subchunks, 1);
    assert_eq!(packed(path)[9], 90);
    assert!(elsewhere.path().join("1").is_file());
}

/// A stored subchunk cannot be longer than its codecs' output.
#[test]
fn more_than_a_subchunk_is_refused() {
    use zarrs::storage::{ReadableStorageTraits, StoreKey, WritableStorageTraits};

    let folder = tempfile::tempdir().unwrap();
    create(folder.path());
    let adapter = open(folder.path());
    let key = StoreKey::new("volume/c/2").unwrap();
    adapter.set(&key, vec![1; 64].into()).unwrap();
    let error = adapter
        .set(&key, vec![2; 65].into())
        .unwrap_err()
        .to_string();
    assert!(error.contains("at most 64"), "{error}");
    adapter.set_partial(&key, 64, vec![2].into()).unwrap_err();
    assert_eq!(adapter.get(&key).unwrap().unwrap(), vec![1; 64]);
    let listed = files(folder.path()).list().unwrap();
    // The metadata, the marker of frames and one version.
    assert_eq!(listed.len(), 3, "{listed:?}");
}

//! A full disk, and files that a process may not read or write.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use super::array::{create, frame, open, packed, read, shard, subchunks, write};
use super::process::{folder, limit, run};

/// The largest size of a file. A version of a subchunk has 80 bytes, and a shard more.
const FULL: u64 = 40;

#[test]
#[ignore = "a process of another test"]
fn full() {
    let Some(folder) = folder() else { return };
    create(&folder);
    let adapter = open(&folder);
    let array = subchunks(&adapter);
    write(&array, 0, 1).unwrap();
    write(&array, 1, 1).unwrap();
    adapter.consolidate(&[0]).unwrap().unwrap();
    write(&array, 0, 2).unwrap();
    // SAFETY: ignoring the signal only makes writes return an error.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    limit(libc::RLIMIT_FSIZE, FULL);
    for (subchunk, value) in [(0, 2), (1, 1), (9, 0)] {
        write(&array, subchunk, 3).unwrap_err();
        assert_eq!(read(&array, subchunk), Ok(value));
    }
    adapter.consolidate(&[0]).unwrap_err();
    assert_eq!(packed(&folder)[..2], [1, 1]);
    // The temporary has only the bytes that could be written.
    assert!(
        shard(&folder, 0)
            .with_extension("tmp")
            .metadata()
            .unwrap()
            .len()
            <= FULL
    );
    assert_eq!(read(&array, 0), Ok(2));
    // The frame of the missing shard holds only incomplete versions.
    assert_eq!(frame(&folder, 1).read_dir().unwrap().count(), 1);
    let listed = adapter.consolidate(&[1]).unwrap().unwrap();
    assert_eq!((listed.subchunks, listed.invalid, listed.after), (0, 1, 0));

    limit(libc::RLIMIT_FSIZE, u64::MAX);
    write(&array, 1, 4).unwrap();
    let done = adapter.consolidate_all(&|_| {}).unwrap();
    assert_eq!((done.sum.subchunks, done.sum.invalid), (2, 3));
    assert_eq!(packed(&folder)[..2], [2, 4]);
    assert!(!shard(&folder, 0).with_extension("tmp").exists());
}

#[test]
fn a_full_disk() {
    run(module_path!(), "full", tempfile::tempdir().unwrap().path());
}

/// Drops the privileges of the superuser, who is allowed everything.
fn be_nobody() {
    // SAFETY: the functions take numbers only.
    unsafe {
        if libc::geteuid() == 0 {
            assert_eq!(libc::setgid(65534), 0);
            assert_eq!(libc::setuid(65534), 0);
        }
    }
}

#[test]
#[ignore = "a process of another test"]
fn forbidden() {
    let Some(folder) = folder() else { return };
    be_nobody();
    let adapter = open(&folder);
    let array = subchunks(&adapter);
    // Everything can be read, and nothing written.
    assert_eq!((read(&array, 0), read(&array, 1)), (Ok(2), Ok(1)));
    write(&array, 0, 3).unwrap_err();
    array.erase_chunk(&[0]).unwrap_err();
    adapter.consolidate_all(&|_| {}).unwrap_err();
    // A frame that cannot be listed is not taken for an empty one.
    for error in [
        read(&array, 8).unwrap_err(),
        write(&array, 8, 3).unwrap_err(),
    ] {
        assert!(
            error.contains("1.frame") && error.contains("may"),
            "{error}"
        );
    }
    adapter.pending().unwrap_err();
    assert_eq!((read(&array, 0), read(&array, 1)), (Ok(2), Ok(1)));
}

#[test]
fn what_is_not_permitted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    create(path);
    let adapter = open(path);
    let array = subchunks(&adapter);
    for subchunk in [0, 1, 8] {
        write(&array, subchunk, 1).unwrap();
    }
    adapter.consolidate_all(&|_| {}).unwrap();
    write(&array, 0, 2).unwrap();
    write(&array, 8, 2).unwrap();
    let allow = |what: &std::path::Path, mode| {
        fs::set_permissions(what, Permissions::from_mode(mode)).unwrap();
    };
    let directories = [path.join("volume/c"), frame(path, 0), frame(path, 1)];
    for (directory, mode) in directories.iter().zip([0o555, 0o555, 0o333]) {
        allow(directory, mode);
    }
    allow(path, 0o755);
    run(module_path!(), "forbidden", path);
    for directory in &directories {
        allow(directory, 0o755);
    }
    adapter.consolidate_all(&|_| {}).unwrap();
    let packed = packed(path);
    assert_eq!((packed[0], packed[1], packed[8]), (2, 1, 2));
}

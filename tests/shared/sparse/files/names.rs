//! File names that are not UTF-8.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use zarrs::storage::{ListableStorageTraits, StorePrefix};
use zarrs_cuda::storage::SparseShardStore;

use super::array::{PATH, create, files, frame, open, packed, read, subchunks, write};

/// Updates each shard, and adds a name that is not UTF-8 to the frame of shard 1.
fn prepare(folder: &Path) {
    create(folder);
    let array = subchunks(&open(folder));
    for shard in 0..4 {
        write(&array, 8 * shard, 10 + u32::try_from(shard).unwrap()).unwrap();
    }
    fs::write(frame(folder, 1).join(OsStr::from_bytes(b"0000000\xff")), "").unwrap();
}

fn first_of_each(folder: &Path) -> Vec<u32> {
    packed(folder).into_iter().step_by(8).collect()
}

#[test]
fn they_are_passed_over_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let adapter = open(folder.path());
    let array = subchunks(&adapter);
    assert_eq!(read(&array, 8), Ok(11));
    write(&array, 8, 21).unwrap();
    assert_eq!(read(&array, 8), Ok(21));
    let listed = adapter.list_prefix(&StorePrefix::new("volume/c/").unwrap());
    assert_eq!(listed.unwrap().len(), 4);
    let done = adapter.consolidate_all(&|_| {}).unwrap();
    assert_eq!(
        (done.done, done.sum.subchunks, done.sum.not_utf_8),
        (4, 4, 1)
    );
    assert!(
        done.to_string().ends_with(", 1 names that are not UTF-8"),
        "{done}"
    );
    assert_eq!(first_of_each(folder.path()), [10, 21, 12, 13]);
    // The name stays, and is reported each time.
    assert_eq!(adapter.pending().unwrap(), [[1]]);
    let done = adapter.consolidate_all(&|_| {}).unwrap();
    assert_eq!((done.done, done.sum.not_utf_8), (1, 1));
}

/// zarrs' store panics when it lists that frame.
#[test]
fn elsewhere_one_frame_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let store = files(folder.path());
    let adapter = SparseShardStore::open_renaming(store.clone(), PATH, store);
    let adapter = Arc::new(adapter.unwrap());
    for _ in 0..2 {
        let error = adapter.consolidate_all(&|_| {}).unwrap_err().to_string();
        assert!(
            error.contains("volume/c/1.frame/") && error.contains("not UTF-8"),
            "{error}"
        );
        assert!(!error.contains("others"), "{error}");
        assert_eq!(first_of_each(folder.path()), [10, 0, 12, 13]);
        assert_eq!(adapter.pending().unwrap(), [[1]]);
    }
}

/// Damaged shards are named in the error, and the others are packed.
#[test]
fn all_that_fail_are_named() {
    let folder = tempfile::tempdir().unwrap();
    create(folder.path());
    let adapter = open(folder.path());
    let array = subchunks(&adapter);
    for shard in 0..4 {
        write(&array, 8 * shard, 10).unwrap();
        if shard % 2 == 1 {
            fs::write(super::array::shard(folder.path(), shard), "").unwrap();
        }
    }
    let error = adapter.consolidate_all(&|_| {}).unwrap_err().to_string();
    assert!(
        error.contains("volume/c/1") && error.contains("volume/c/3"),
        "{error}"
    );
    assert_eq!(adapter.pending().unwrap(), [[1], [3]]);
    // A subchunk in the frame can be read. An empty file is not a shard.
    assert_eq!(read(&array, 8), Ok(10));
    read(&array, 9).unwrap_err();
    for subchunk in 8..16 {
        write(&array, subchunk, 11).unwrap();
    }
    adapter.consolidate(&[1]).unwrap().unwrap();
    fs::remove_file(super::array::shard(folder.path(), 3)).unwrap();
    adapter.consolidate_all(&|_| {}).unwrap();
    assert_eq!(first_of_each(folder.path()), [10, 11, 10, 10]);
}

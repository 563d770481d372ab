//! tensorstore and this library write one chunk at the same time, from two processes, under the locks of tensorstore.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::storage::{Durable, LockFile, NewFile};
use zarrs_cuda::writer::{BoxWriter, ShardUpdate};
use zarrs_cuda_testing::{Rng, effort};

use crate::environment;
use crate::temporary_directory;

const TIMES: u64 = 1000;

/// Increments element 1 of the chunk, by a new file or in place. tensorstore makes the chunk, or this process.
fn increment(chunk: &Path, in_place: bool) {
    let mut lock = LockFile::take(chunk, Duration::from_mins(1)).unwrap();
    let mut bytes = match fs::read(chunk) {
        Err(error) if error.kind() == ErrorKind::NotFound => vec![0; 16],
        read => read.unwrap(),
    };
    assert_eq!(bytes.len(), 16);
    let element: [u8; 8] = bytes[8..].try_into().unwrap();
    let element = u64::from_le_bytes(element) + 1;
    bytes[8..].copy_from_slice(&element.to_le_bytes());
    if in_place && chunk.exists() {
        let file = OpenOptions::new().write(true).open(chunk).unwrap();
        (&file).write_all(&bytes).unwrap();
        lock.wrote_in_place().unwrap();
    } else {
        let new = NewFile::beside(chunk).unwrap();
        new.file().write_all(&bytes).unwrap();
        lock.replace(new, Durable::No).unwrap();
    }
}

/// Lets tensorstore increment element 0 of the array in `path`, and calls `increment` with 1, 2, 3 and so on until
/// tensorstore has ended. Returns the last of these numbers.
fn beside_tensorstore(path: &Path, mut increment: impl FnMut(u64, &mut Rng)) -> u64 {
    let mut tensorstore = environment::python("locks.py")
        .arg(path)
        .arg(TIMES.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(tensorstore.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "ready");
    tensorstore.stdin.take().unwrap().write_all(b"\n").unwrap();

    let mut rng = Rng(effort::seed());
    let mut count = 0;
    while count < TIMES || tensorstore.try_wait().unwrap().is_none() {
        count += 1;
        increment(count, &mut rng);
        // tensorstore reads the chunk anew after each increment that it meets, so it needs some time for itself.
        thread::sleep(Duration::from_micros(rng.below(500)));
    }
    assert!(tensorstore.wait().unwrap().success());
    let meanwhile: u64 = said.next().unwrap().unwrap().parse().unwrap();
    crate::say(&format!(
        "tensorstore incremented {TIMES} times, and met {meanwhile} of {count} increments of this library"
    ));
    assert!(meanwhile > TIMES / 50, "they hardly met: {meanwhile}");
    count
}

#[test]
fn tensorstore_and_this_library_lose_nothing_of_each_other() {
    let folder = temporary_directory();
    let path = folder.path().join("counters");
    let store = Arc::new(FilesystemStore::new(&path).unwrap());
    let array = ArrayBuilder::new(vec![2], vec![2], data_type::uint64(), 0_u64)
        .build(store.clone(), "/")
        .unwrap();
    array.store_metadata().unwrap();

    let count = beside_tensorstore(&path, |_, rng| increment(&path.join("c/0"), rng.one_in(2)));
    let array = Array::open(store, "/").unwrap();
    let found: Vec<u64> = array.retrieve_chunk(&[0]).unwrap();
    assert_eq!(found, [TIMES, count]);
    let names = fs::read_dir(path.join("c")).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["0"]);
}

/// Both change one subchunk of one shard, and this library also replaces its neighbours.
#[test]
fn tensorstore_and_a_writer_of_boxes_lose_nothing_of_each_other() {
    for update in [ShardUpdate::Rewrite, ShardUpdate::InPlace] {
        let folder = temporary_directory();
        let path = folder.path().join("shards");
        let store = Arc::new(FilesystemStore::new(&path).unwrap());
        let mut builder = ArrayBuilder::new(vec![12], vec![8], data_type::uint64(), 0_u64);
        let array = builder
            .subchunk_shape(vec![4])
            .build(store.clone(), "/")
            .unwrap();
        array.store_metadata().unwrap();
        let writer = BoxWriter::builder(&array)
            .with_update(update)
            .with_sync(false)
            .with_locks(Duration::from_mins(1))
            .build()
            .unwrap();
        let count = beside_tensorstore(&path, |number, rng| {
            let end = 2 + rng.below(10);
            let elements = vec![number; usize::try_from(end).unwrap() - 1];
            writer.write(&[1..end], &elements).unwrap();
        });
        let array = Array::open(store, "/").unwrap();
        let found: Vec<u64> = array.retrieve_array_subset(&[0..2]).unwrap();
        assert_eq!(found, [TIMES, count], "{update:?}");
        let names = fs::read_dir(path.join("c")).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["0", "1"]);
    }
}

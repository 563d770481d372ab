//! Arrays that grow along their first axis.

use std::sync::Arc;
use std::thread;

use serde_json::Value;
use tempfile::TempDir;
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    ReadableStorageTraits, ReadableWritableListableStorageTraits, WritableStorageTraits,
};
use zarrs_cuda::writer::BoxWriter;
use zarrs_cuda_testing::stores::faulty::{Fault, Faulty, Operation};

fn array<S: ?Sized>(store: &Arc<S>, length: u64) -> Array<S> {
    let mut builder = ArrayBuilder::new(vec![length, 6], vec![4, 6], data_type::uint16(), 0_u16);
    builder.subchunk_shape(vec![2, 3]);
    let attributes = serde_json::json!({ "by": "hand" });
    builder.attributes(attributes.as_object().unwrap().clone());
    builder.build(store.clone(), "/a").unwrap()
}

fn grows<S: ReadableWritableListableStorageTraits + 'static>(store: &Arc<S>) {
    let array = array(store, 3);
    array.store_metadata().unwrap();
    let before: Value = metadata(store);
    let refused = BoxWriter::builder(&array).build().unwrap();
    refused.write(&[2..5, 0..6], &[1_u16; 18]).unwrap_err();
    let writer = BoxWriter::builder(&array).with_growth().with_sync(false);
    let writer = writer.build().unwrap();
    // Inside the array, behind its end, far behind its end, and inside again.
    for (rows, length) in [(0..2, 3), (2..5, 5), (13..14, 14), (3..9, 14)] {
        let elements = vec![rows.start as u16 + 1; 6 * (rows.end - rows.start) as usize];
        let report = writer.write(&[rows, 0..6], &elements).unwrap();
        assert_eq!(report.length, Some(length));
        let now = Array::open(store.clone(), "/a").unwrap();
        assert_eq!(now.shape(), [length, 6]);
    }
    let now = Array::open(store.clone(), "/a").unwrap();
    let column: Vec<u16> = now.retrieve_array_subset(&[0..14, 5..6]).unwrap();
    assert_eq!(column, [1, 1, 3, 4, 4, 4, 4, 4, 4, 0, 0, 0, 0, 14]);
    let mut after = metadata(store);
    after["shape"] = before["shape"].clone();
    assert_eq!(after, before, "nothing but the shape has changed");
    // The other axes do not grow.
    writer.write(&[0..1, 0..7], &[1_u16; 7]).unwrap_err();
}

fn metadata(store: &impl ReadableStorageTraits) -> Value {
    let text = store.get(&"a/zarr.json".try_into().unwrap()).unwrap();
    serde_json::from_slice(&text.unwrap()).unwrap()
}

#[test]
fn an_array_grows() {
    grows(&Arc::new(MemoryStore::new()));
    let folder = TempDir::new().unwrap();
    grows(&Arc::new(FilesystemStore::new(folder.path()).unwrap()));
}

/// Shards come first: a shape never covers elements that are not stored.
#[test]
fn a_call_that_fails_does_not_let_the_array_grow() {
    let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
    let array = array(&store, 0);
    array.store_metadata().unwrap();
    let writer = BoxWriter::builder(&array).with_growth().build().unwrap();
    let of = |operation: Operation, part: &'static str| {
        move |request: &zarrs_cuda_testing::stores::faulty::Request| {
            let is_it = request.operation == operation && request.key.contains(part);
            is_it.then_some(Fault::Refused)
        }
    };
    store.fail(of(Operation::Set, "c/1/0"));
    writer.write(&[0..8, 0..6], &[1_u16; 48]).unwrap_err();
    store.work();
    assert_eq!(Array::open(store.clone(), "/a").unwrap().shape(), [0, 6]);
    store.fail(of(Operation::Set, "zarr.json"));
    let error = writer.write(&[0..8, 0..6], &[1_u16; 48]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("let the array grow in a/zarr.json"),
        "{error}"
    );
    assert_eq!(error.report.stored.len(), 2);
    store.work();
    writer.write(&[0..8, 0..6], &[1_u16; 48]).unwrap();
    assert_eq!(Array::open(store.clone(), "/a").unwrap().shape(), [8, 6]);
    // Metadata that are those of another array, or are not there.
    let key = "a/zarr.json".try_into().unwrap();
    let other = br#"{"shape": [8, 7]}"#;
    store.set(&key, other[..].into()).unwrap();
    let error = writer.write(&[8..9, 0..6], &[1_u16; 6]).unwrap_err();
    assert!(error.to_string().contains("another array"), "{error}");
    store.erase(&key).unwrap();
    let error = writer.write(&[8..9, 0..6], &[1_u16; 6]).unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
}

/// Threads append to one array, each with a writer of its own, and meet in shards.
#[test]
fn threads_that_let_an_array_grow_lose_nothing() {
    let folder = TempDir::new().unwrap();
    let store = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    array(&store, 0).store_metadata().unwrap();
    thread::scope(|scope| {
        for thread in 0..4_u64 {
            let store = &store;
            scope.spawn(move || {
                let array = array(store, 0);
                let writer = BoxWriter::builder(&array).with_growth().with_sync(false);
                let writer = writer.build().unwrap();
                for n in 0..25 {
                    let row = n * 4 + thread;
                    let elements = [row as u16 + 1; 6];
                    writer.write(&[row..row + 1, 0..6], &elements).unwrap();
                }
            });
        }
    });
    let now = Array::open(store, "/a").unwrap();
    assert_eq!(now.shape(), [100, 6]);
    let column: Vec<u16> = now.retrieve_array_subset(&[0..100, 2..3]).unwrap();
    assert_eq!(column, (1..=100).collect::<Vec<u16>>());
}

/// Lock files change nothing for one process, also if an update leaves no file.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[test]
fn with_lock_files() {
    use zarrs_cuda::writer::ShardUpdate;

    for update in [ShardUpdate::Rewrite, ShardUpdate::InPlace] {
        let folder = TempDir::new().unwrap();
        let store = Arc::new(FilesystemStore::new(folder.path()).unwrap());
        let array = array(&store, 0);
        array.store_metadata().unwrap();
        let limit = std::time::Duration::from_millis(50);
        let writer = BoxWriter::builder(&array)
            .with_update(update)
            .with_growth()
            .with_locks(limit)
            .build()
            .unwrap();
        writer.write(&[0..1, 0..6], &[0_u16; 6]).unwrap();
        writer.write(&[0..6, 0..6], &[1_u16; 36]).unwrap();
        writer.write(&[4..6, 0..6], &[0_u16; 12]).unwrap();
        assert_eq!(Array::open(store.clone(), "/a").unwrap().shape(), [6, 6]);
        let files = std::fs::read_dir(folder.path().join("a/c/0")).unwrap();
        assert_eq!(files.count(), 1, "the shard, and no lock file");
        // Another process, or tensorstore, has the lock of a shard.
        let shard = folder.path().join("a/c/0/0");
        let held = zarrs_cuda::storage::LockFile::take(&shard, limit).unwrap();
        let error = writer.write(&[0..1, 0..6], &[2_u16; 6]).unwrap_err();
        assert!(error.to_string().contains("a/c/0/0"), "{error}");
        drop(held);
        writer.write(&[0..1, 0..6], &[2_u16; 6]).unwrap();
    }
}

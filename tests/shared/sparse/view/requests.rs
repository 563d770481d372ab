//! The requests to the store.

use std::sync::Arc;
use std::time::Duration;

use zarrs::array::Array;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{ReadableStorageTraits, StoreKey, WritableStorageTraits};
use zarrs_cuda::storage::SparseShardStore;

use super::stores::{Layout, files};
use zarrs_cuda_testing::stores::faulty::{Fault, Faulty, Operation};

type Files = Faulty<zarrs_filesystem::FilesystemStore>;

fn watched() -> (tempfile::TempDir, Arc<Files>, Layout) {
    let (folder, store) = files();
    let layout = Layout::new(&[8, 8], &[8, 8], &[2, 2]);
    layout.create(&*store);
    (folder, Arc::new(Faulty::new(store)), layout)
}

fn operations(store: &Files) -> Vec<Operation> {
    let requests = store.requests();
    store.work();
    requests.iter().map(|request| request.operation).collect()
}

#[test]
fn a_write_is_a_put_between_two_lists() {
    let (_folder, store, layout) = watched();
    let sparse = layout.open(&store);
    let key = "group/array/c/1/3".try_into().unwrap();
    store.work();
    // The first one puts the marker before its version.
    sparse.set(&key, vec![0, 2, 3, 4].into()).unwrap();
    let expected = [
        Operation::List,
        Operation::Size,
        Operation::Set,
        Operation::Set,
        Operation::List,
    ];
    assert_eq!(operations(&store), expected);
    // Another adapter finds it.
    let other = layout.open(&store);
    store.work();
    other.set(&key, vec![0, 2, 3, 4].into()).unwrap();
    assert_eq!(counted(&store, Operation::Set), 1);
    store.work();
    for _ in 0..2 {
        sparse.set(&key, vec![1, 2, 3, 4].into()).unwrap();
        let expected = [Operation::List, Operation::Set, Operation::List];
        assert_eq!(operations(&store), expected);
    }
    // A subchunk in the frame: one object.
    sparse.get(&key).unwrap().unwrap();
    assert_eq!(operations(&store), [Operation::List, Operation::Get]);
    // Erasing an absent subchunk does not write another version.
    sparse
        .erase(&"group/array/c/0/0".try_into().unwrap())
        .unwrap();
    assert!(!operations(&store).contains(&Operation::Set));
    sparse.consolidate(&[0, 0]).unwrap().unwrap();
    operations(&store);
    // A subchunk in the shard: the index, then the subchunk and the index in one request.
    sparse.get(&key).unwrap().unwrap();
    assert_eq!(
        operations(&store),
        [
            Operation::List,
            Operation::Get,
            Operation::Get,
            Operation::Get
        ]
    );
}

/// How often each kind of request was made.
fn counted(store: &Files, operation: Operation) -> usize {
    let requests = store.requests();
    let requests = requests.iter();
    requests
        .filter(|request| request.operation == operation)
        .count()
}

#[test]
fn a_batch_lists_each_frame_twice() {
    let (_folder, store) = files();
    // Two shards of 64 subchunks.
    let layout = Layout::new(&[32, 16], &[16, 16], &[2, 2]);
    layout.create(&*store);
    let store = Arc::new(Faulty::new(store));
    let sparse = layout.open(&store);
    let subchunks = Array::open(sparse.clone(), layout.path).unwrap();
    let write = |ranges: [std::ops::Range<u64>; 2], value: u8| {
        let batch = Arc::new(sparse.batch());
        let kept = subchunks.with_storage(batch.clone());
        let subset = zarrs::array::ArraySubset::from(ranges);
        let elements = usize::try_from(subset.num_elements()).unwrap();
        kept.store_array_subset(&subset, vec![value; elements])
            .unwrap();
        batch.write().unwrap();
    };
    assert!(!SparseShardStore::is_marked(&*store, layout.path).unwrap());
    write([0..2, 0..2], 9);
    assert!(SparseShardStore::is_marked(&*store, layout.path).unwrap());
    store.work();
    // All of both shards.
    write([0..32, 0..16], 1);
    assert_eq!(counted(&store, Operation::List), 4);
    assert_eq!(counted(&store, Operation::Set), 128);
    assert_eq!(counted(&store, Operation::Get), 0);
    store.work();
    // Parts of 28 subchunks at the borders, which are read after one listing more.
    write([1..15, 1..15], 2);
    assert_eq!(counted(&store, Operation::List), 3);
    assert_eq!(counted(&store, Operation::Set), 64);
    assert_eq!(counted(&store, Operation::Get), 28);
    store.work();
    // All of a shard is the fill value: its subchunks are erased.
    write([16..32, 0..16], 0);
    assert_eq!(counted(&store, Operation::List), 2);
    assert_eq!(counted(&store, Operation::Set), 64);
    store.work();
    // The subchunks are empty already.
    write([16..32, 0..16], 0);
    assert_eq!(counted(&store, Operation::List), 1);
    assert_eq!(counted(&store, Operation::Set), 0);
    store.work();
    let read: Vec<u8> = subchunks
        .retrieve_array_subset(&subchunks.subset_all())
        .unwrap();
    let expected = (0..32 * 16).map(|at| match (at / 16, at % 16) {
        (1..15, 1..15) => 2,
        (0..16, _) => 1,
        _ => 0,
    });
    assert_eq!(read, expected.collect::<Vec<u8>>());
}

/// A batch that failed keeps what it has, and is written by another call.
#[test]
fn batches_that_fail() {
    for fault in Fault::ALL {
        for number in 0..14 {
            let (_folder, store, layout) = watched();
            let sparse = layout.open(&store);
            let key =
                |at: u64| StoreKey::new(format!("group/array/c/{}/{}", at / 4, at % 4)).unwrap();
            sparse.set(&key(0), vec![1; 4].into()).unwrap();
            sparse.set(&key(1), vec![1; 4].into()).unwrap();
            let batch = sparse.batch();
            batch.set(&key(0), vec![2; 4].into()).unwrap();
            batch.erase(&key(1)).unwrap();
            batch.erase(&key(2)).unwrap();
            for at in 3..6 {
                batch.set(&key(at), vec![2; 4].into()).unwrap();
            }
            let all = || -> Vec<Option<Vec<u8>>> {
                let read = (0..6).map(|at| sparse.get(&key(at)).unwrap());
                read.map(|value| value.map(Vec::from)).collect()
            };
            let before = all();
            let one = |value: u8| Some(vec![value; 4]);
            let after = [one(2), None, None, one(2), one(2), one(2)];
            store.work();
            store.fail(move |request| (request.number == number).then_some(fault));
            let written = batch.write();
            store.work();
            let now = all();
            for (at, value) in now.iter().enumerate() {
                let is_old = written.is_err() && *value == before[at];
                assert!(is_old || *value == after[at], "{fault:?} {number} {at}");
            }
            batch.write().unwrap();
            assert_eq!(all(), after, "{fault:?} {number} {written:?}");
            sparse.consolidate(&[0, 0]).unwrap();
            assert_eq!(all(), after, "{fault:?} {number}");
        }
    }
}

#[test]
fn one_listing_for_many_reads() {
    let (_folder, store, layout) = watched();
    let other = layout.open(&store);
    let all = |adapter: &Arc<SparseShardStore<Files>>| {
        let array = Array::open(adapter.clone(), layout.path).unwrap();
        store.work();
        let read = array
            .retrieve_array_subset::<Vec<u8>>(&array.subset_all())
            .unwrap();
        let listings = operations(&store)
            .into_iter()
            .filter(|o| *o == Operation::List)
            .count();
        (read, listings)
    };
    let sparse = SparseShardStore::open(store.clone(), layout.path).unwrap();
    let sparse = Arc::new(sparse.with_listing_age(Duration::from_hours(1)));
    assert_eq!(all(&other).1, 16);
    // Threads that start at the same time may each list.
    assert!(all(&sparse).1 <= 4);
    assert_eq!(all(&sparse), (vec![0; 64], 0));
    // New subchunks are not seen.
    let key = |text: &str| text.try_into().unwrap();
    for chunk in ["group/array/c/0/0", "group/array/c/3/3"] {
        other.set(&key(chunk), vec![1; 4].into()).unwrap();
    }
    assert_eq!(all(&sparse), (vec![0; 64], 0));
    let reader = || SparseShardStore::open(store.clone(), layout.path).unwrap();
    let later = Arc::new(reader().with_listing_age(Duration::from_hours(1)));
    let (read, _) = all(&later);
    assert_eq!((read[0], read[63]), (1, 1));
    // The listed version was deleted.
    other.consolidate(&[0, 0]).unwrap().unwrap();
    let (read, listings) = all(&later);
    assert_eq!((read[0], read[63], listings), (1, 1, 2));
}

/// A failed write is not taken for a completed one, whichever request failed, and can be repeated.
#[test]
fn stores_that_fail() {
    for fault in Fault::ALL {
        for number in 0..12 {
            let (_folder, store, layout) = watched();
            let sparse = SparseShardStore::open_renaming(store.clone(), layout.path, store.clone());
            let sparse = sparse.unwrap();
            let keys =
                ["group/array/c/0/0", "group/array/c/3/1"].map(|key| key.try_into().unwrap());
            sparse.set(&keys[0], vec![1; 4].into()).unwrap();
            sparse.set(&keys[1], vec![1; 4].into()).unwrap();
            sparse.consolidate(&[0, 0]).unwrap();
            sparse.set(&keys[0], vec![2; 4].into()).unwrap();
            store.work();
            store.fail(move |request| (request.number == number).then_some(fault));
            let written = sparse.set(&keys[1], vec![3; 4].into());
            let consolidated = sparse.consolidate(&[0, 0]);
            let read = sparse.get(&keys[0]);
            store.work();
            assert!(read.is_err() || read.unwrap().unwrap() == vec![2; 4]);
            let get = |key| sparse.get(key).unwrap().unwrap().to_vec();
            assert_eq!(get(&keys[0]), [2; 4], "{fault:?} {number} {consolidated:?}");
            let now = get(&keys[1]);
            assert!(
                now == [3; 4] || written.is_err() && now == [1; 4],
                "{fault:?} {number}"
            );
            sparse.set(&keys[1], vec![4; 4].into()).unwrap();
            sparse.consolidate(&[0, 0]).unwrap();
            assert_eq!((get(&keys[0]), get(&keys[1])), (vec![2; 4], vec![4; 4]));
            let shards = Array::open(store.inner().clone(), layout.path).unwrap();
            let shard: Vec<u8> = shards.retrieve_chunk(&[0, 0]).unwrap();
            assert_eq!((shard[0], shard[63 - 8 - 5]), (2, 4), "{fault:?} {number}");
        }
    }
}

#[test]
fn another_store_cannot_rename() {
    let (_folder, store) = files();
    let layout = Layout::new(&[8], &[4], &[2]);
    layout.create(&*store);
    let (_other_folder, other) = files();
    let sparse = |renaming| SparseShardStore::open_renaming(store.clone(), layout.path, renaming);
    let error = sparse(other).unwrap_err().to_string();
    assert!(error.contains("group/array/zarr.json"), "{error}");
    assert!(sparse(store.clone()).is_ok());
    assert!(SparseShardStore::open(Arc::new(MemoryStore::new()), "/none").is_err());
    assert!(SparseShardStore::open(store, "not a path").is_err());
}

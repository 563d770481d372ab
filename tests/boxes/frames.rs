//! Subchunks that are stored beside shards: no other writer writes under them.

use std::sync::Arc;

use tempfile::TempDir;
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::ReadableWritableListableStorageTraits;
use zarrs::storage::store::MemoryStore;
use zarrs_cuda::storage::SparseShardStore;
use zarrs_cuda::writer::{BoxWriter, BoxWriterErrorKind, ShardUpdate};
use zarrs_cuda_testing::stores::faulty::{Faulty, Operation};

fn array<S: ?Sized>(store: &Arc<S>) -> Array<S> {
    let mut builder = ArrayBuilder::new(vec![8, 8], vec![4, 4], data_type::uint16(), 0_u16);
    builder.subchunk_shape(vec![2, 2]);
    builder.build(store.clone(), "/a").unwrap()
}

fn check<S: ReadableWritableListableStorageTraits + 'static>(store: &Arc<S>) {
    let array = array(store);
    array.store_metadata().unwrap();
    let by = |update| {
        let builder = BoxWriter::builder(&array).with_update(update);
        builder.with_sync(false).build().unwrap()
    };
    let (rewrites, in_place) = (by(ShardUpdate::Rewrite), by(ShardUpdate::InPlace));
    let shared = by(ShardUpdate::Shared);
    rewrites.write(&[0..8, 0..8], &[1_u16; 64]).unwrap();
    // A covered shard, and a part of another.
    shared.write(&[0..4, 0..5], &[2_u16; 20]).unwrap();
    for writer in [&rewrites, &in_place] {
        // The whole shard, and a part of it.
        for rows in [0..4, 1..3] {
            let elements = vec![3_u16; 4 * (rows.end - rows.start) as usize];
            let error = writer.write(&[rows, 0..4], &elements).unwrap_err();
            let BoxWriterErrorKind::FramesPending { key, when } = &*error.kind else {
                panic!("{error}");
            };
            assert_eq!((key.as_str(), *when), ("a/c/0/0", "before"));
            assert!(error.to_string().contains("consolidate"), "{error}");
        }
        // None of several shards is written if one has subchunks beside it.
        let error = writer.write(&[0..8, 0..8], &[9_u16; 64]).unwrap_err();
        assert!(error.report.stored.is_empty(), "{error}");
        let last: Vec<u16> = array.retrieve_array_subset(&[7..8, 7..8]).unwrap();
        assert_eq!(last, [1]);
        // Other shards have no subchunks beside them.
        writer.write(&[4..7, 0..8], &[4_u16; 24]).unwrap();
    }
    let read = || -> Vec<u16> { array.retrieve_array_subset(&[0..8, 3..6]).unwrap() };
    assert_eq!(
        read()[..3],
        [1, 1, 1],
        "readers of shards do not see them yet"
    );
    let sparse = SparseShardStore::open(store.clone(), "/a").unwrap();
    sparse.consolidate_all(&|_| {}).unwrap();
    assert_eq!(read()[..3], [2, 2, 1]);
    assert_eq!(read()[18..], [4, 4, 4, 1, 1, 1]);
    rewrites.write(&[0..4, 0..4], &[5_u16; 16]).unwrap();
    assert_eq!(read()[..3], [5, 2, 1]);
}

#[test]
fn frames_are_never_written_under() {
    check(&Arc::new(MemoryStore::new()));
    let folder = TempDir::new().unwrap();
    check(&Arc::new(FilesystemStore::new(folder.path()).unwrap()));
}

/// A process stores a subchunk beside a shard while the shard is written.
#[test]
fn frames_that_appear_meanwhile_are_found() {
    for update in [ShardUpdate::Rewrite, ShardUpdate::InPlace] {
        for marked in [false, true] {
            let inner = Arc::new(MemoryStore::new());
            let store = Arc::new(Faulty::new(inner.clone()));
            let array = array(&store);
            array.store_metadata().unwrap();
            let plain = array.with_storage(inner.clone());
            let other = BoxWriter::builder(&plain).with_update(ShardUpdate::Shared);
            let other = other.build().unwrap();
            if marked {
                other.write(&[4..6, 4..6], &[9_u16; 4]).unwrap();
            }
            let writer = BoxWriter::builder(&array)
                .with_update(update)
                .build()
                .unwrap();
            // A covered shard, and parts of the same and of another.
            for (shard, rows) in [("a/c/0/0", 0..4_u64), ("a/c/0/0", 1..3), ("a/c/1/0", 5..7)] {
                let (other, row) = (other.clone(), rows.start);
                store.fail(move |request| {
                    let writes = [Operation::Set, Operation::SetPartial];
                    if writes.contains(&request.operation) && request.key == shard {
                        other.write(&[row..row + 1, 0..2], &[9_u16; 2]).unwrap();
                    }
                    None
                });
                let elements = vec![1_u16; 4 * (rows.end - rows.start) as usize];
                let error = writer.write(&[rows, 0..4], &elements).unwrap_err();
                let BoxWriterErrorKind::FramesPending { when: "after", .. } = &*error.kind else {
                    panic!("{error}");
                };
                assert_eq!(error.report.stored.len(), 1, "the shard is written");
                store.work();
                let sparse = SparseShardStore::open(inner.clone(), "/a").unwrap();
                sparse.consolidate_all(&|_| {}).unwrap();
            }
        }
    }
}

/// For an array that never had such subchunks, a call makes two requests besides those for its shards.
#[test]
fn few_requests() {
    let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
    let array = array(&store);
    array.store_metadata().unwrap();
    let writer = BoxWriter::builder(&array).build().unwrap();
    store.work();
    writer.write(&[0..8, 0..8], &[1_u16; 64]).unwrap();
    let count = |operation| {
        let requests = store.requests();
        let these = requests
            .iter()
            .filter(|request| request.operation == operation);
        these.count()
    };
    assert_eq!(count(Operation::Set), 4);
    assert_eq!(count(Operation::Size), 2);
    assert_eq!(store.requests().len(), 6);
}

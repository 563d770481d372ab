//! Reads and refused writes of an adapter while other programs change the store.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use zarrs::array::{Array, ArraySubset};
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    Bytes, ListableStorageTraits, ReadableStorageTraits, StorageError, StoreKey, StorePrefix,
    WritableStorageTraits,
};
use zarrs_cuda::storage::SparseShardStore;

use super::stores::{Layout, files};
use zarrs_cuda_testing::stores::faulty::{Fault, Faulty, Operation, Request};

fn key(key: &str) -> StoreKey {
    StoreKey::new(key).unwrap()
}

fn prefix(prefix: &str) -> StorePrefix {
    StorePrefix::new(prefix).unwrap()
}

/// zarrs writes a part of a subchunk by reading and storing it. With an old listing it would
/// restore elements that another program has replaced since.
#[test]
fn who_reads_by_old_listings_does_not_write() {
    let store = Arc::new(MemoryStore::new());
    let layout = Layout::new(&[2], &[2], &[2]);
    layout.create(&*store);
    let reader = SparseShardStore::open(store.clone(), layout.path).unwrap();
    let reader = Arc::new(reader.with_listing_age(Duration::from_hours(1)));
    let a = Array::open(layout.open(&store), layout.path).unwrap();
    let b = Array::open(reader.clone(), layout.path).unwrap();
    assert_eq!(b.retrieve_chunk::<Vec<u8>>(&[0]).unwrap(), [0, 0]);
    a.store_chunk(&[0], vec![1_u8, 1]).unwrap();
    let part = ArraySubset::new_with_ranges(&[1..2]);
    b.store_array_subset(&part, vec![2_u8]).unwrap_err();
    assert_eq!(a.retrieve_chunk::<Vec<u8>>(&[0]).unwrap(), [1, 1]);

    let before = store.list().unwrap();
    let chunk = key("group/array/c/0");
    let metadata = reader.get(&layout.key()).unwrap().unwrap();
    let refused: [Result<(), StorageError>; 6] = [
        reader.set(&chunk, b"xx"[..].into()),
        reader.set_partial(&chunk, 1, b"x"[..].into()),
        reader.erase(&chunk),
        reader.erase_prefix(&prefix("group/array/")),
        reader.set(&layout.key(), metadata),
        reader.set(&key("group/other"), Bytes::new()),
    ];
    let mut errors: Vec<String> = refused
        .into_iter()
        .map(|refused| refused.unwrap_err().to_string())
        .collect();
    errors.push(reader.consolidate(&[0]).unwrap_err().to_string());
    errors.push(reader.consolidate_all(&|_| {}).unwrap_err().to_string());
    for error in errors {
        assert!(error.contains("with_listing_age"), "{error}");
        assert!(error.contains("group/"), "{error}");
    }
    assert_eq!(store.list().unwrap(), before);

    let writer = SparseShardStore::open(store.clone(), layout.path).unwrap();
    let writer = writer.with_listing_age(Duration::ZERO);
    writer.set(&chunk, b"xx"[..].into()).unwrap();
    writer.consolidate(&[0]).unwrap().unwrap();
    assert_eq!(a.retrieve_chunk::<Vec<u8>>(&[0]).unwrap(), *b"xx");
}

/// Stores the metadata of `layout` with other values at some pointers.
fn stored_anew(store: &MemoryStore, layout: &Layout, changes: &[(&str, Value)]) {
    let mut metadata = layout.metadata();
    for (pointer, value) in changes {
        *metadata.pointer_mut(pointer).unwrap() = value.clone();
    }
    let metadata = serde_json::to_vec(&metadata).unwrap();
    store.set(&layout.key(), metadata.into()).unwrap();
}

const SHARD: &str = "/chunk_grid/configuration/chunk_shape";
const SUBCHUNK: &str = "/codecs/0/configuration/chunk_shape";

#[test]
fn another_sharding_is_noticed() {
    let store = Arc::new(MemoryStore::new());
    let layout = Layout::new(&[8], &[8], &[2]);
    layout.create(&*store);
    let sparse = layout.open(&store);
    let array = Array::open(sparse.clone(), layout.path).unwrap();
    let value = |text: &str| Value::String(text.to_owned());
    for changes in [
        &[(SUBCHUNK, json!([4]))][..],
        &[(SHARD, json!([4]))],
        &[(SHARD, json!([4])), (SUBCHUNK, json!([1]))],
        &[
            ("/shape", json!([8, 8])),
            (SHARD, json!([8, 8])),
            (SUBCHUNK, json!([2, 2])),
        ],
        &[("/codecs/0/configuration/index_location", value("start"))],
        &[(
            "/codecs/0/configuration/codecs",
            json!([{ "name": "bytes" }, { "name": "crc32c" }]),
        )],
        &[("/codecs", json!([{ "name": "bytes" }]))],
        &[("/chunk_key_encoding/configuration/separator", value("."))],
        &[("/chunk_key_encoding/name", value("v2"))],
    ] {
        stored_anew(&store, &layout, changes);
        let stored = store.get(&layout.key()).unwrap().unwrap();
        let errors = [
            Array::open(sparse.clone(), layout.path)
                .unwrap_err()
                .to_string(),
            sparse.get(&layout.key()).unwrap_err().to_string(),
            sparse.size_key(&layout.key()).unwrap_err().to_string(),
            array.store_metadata().unwrap_err().to_string(),
        ];
        for error in errors {
            assert!(error.contains("group/array/zarr.json"), "{error}");
            assert!(error.contains("open the adapter anew"), "{error}");
        }
        assert_eq!(store.get(&layout.key()).unwrap().unwrap(), stored);
        if let Ok(anew) = SparseShardStore::open(store.clone(), layout.path) {
            Array::open(Arc::new(anew), layout.path).unwrap();
        }
    }
    // The same sharding with another description, and other members that may change.
    for changes in [
        &[][..],
        &[("/shape", json!([80]))],
        &[("/attributes", json!({ "made by": "a test" }))],
        &[("/chunk_key_encoding", value("default"))],
        &[("/chunk_key_encoding", json!({ "name": "default" }))],
        &[("/codecs/0/configuration/index_codecs/1", value("crc32c"))],
    ] {
        stored_anew(&store, &layout, changes);
        let array = Array::open(sparse.clone(), layout.path).unwrap();
        array.store_metadata().unwrap();
        Array::open(sparse.clone(), layout.path).unwrap();
    }
}

/// Two adapters store the metadata at the same time. One of them dies in the middle.
#[test]
fn half_a_document_is_not_put_in_place() {
    let (_folder, store) = files();
    let layout = Layout::new(&[8], &[8], &[2]);
    layout.create(&*store);
    let open = || {
        let faulty = Arc::new(Faulty::new(store.clone()));
        let sparse = SparseShardStore::open_renaming(faulty.clone(), layout.path, faulty.clone());
        (sparse.unwrap(), faulty)
    };
    let (one, of_one) = open();
    let (other, of_other) = open();
    let metadata = one.get(&layout.key()).unwrap().unwrap();
    let mut stored: Value = serde_json::from_slice(&metadata).unwrap();
    stored["attributes"] = json!({ "made by": "one" });
    let stored = Bytes::from(serde_json::to_vec(&stored).unwrap());
    let (key, dies) = (layout.key(), stored.clone());
    of_other.fail(|request| (request.operation != Operation::Get).then_some(Fault::Torn));
    // The adapter has written, and has not renamed yet.
    of_one.fail(move |request| {
        if request.operation == Operation::Rename {
            other.set(&key, dies.clone()).unwrap_err();
        }
        None
    });
    one.set(&layout.key(), stored.clone()).unwrap();
    assert_eq!(one.get(&layout.key()).unwrap().unwrap(), stored);
    let is_rename = |request: &Request| request.operation == Operation::Rename;
    assert!(of_one.requests().iter().any(is_rename));

    // An adapter that fails and lives on removes its temporary.
    let before = store.list().unwrap();
    of_one.fail(|request| (request.operation == Operation::Set).then_some(Fault::Torn));
    one.set(&layout.key(), metadata).unwrap_err();
    assert_eq!(store.list().unwrap(), before);
    assert_eq!(one.get(&layout.key()).unwrap().unwrap(), stored);
}

/// A store with a shard. One of its subchunks is in the frame, and one is packed.
fn framed() -> (Arc<MemoryStore>, Arc<SparseShardStore<MemoryStore>>) {
    let store = Arc::new(MemoryStore::new());
    let layout = Layout::new(&[8, 8], &[4, 4], &[2, 2]);
    layout.create(&*store);
    let sparse = layout.open(&store);
    sparse
        .set(&key("group/array/c/0/3"), b"pack"[..].into())
        .unwrap();
    sparse.consolidate(&[0, 1]).unwrap().unwrap();
    sparse
        .set(&key("group/array/c/1/2"), b"kept"[..].into())
        .unwrap();
    (store, sparse)
}

#[test]
fn there_is_nothing_in_frames() {
    let (store, sparse) = framed();
    let before = store.list().unwrap();
    for frame in [
        "group/array/c/0/1.frame/",
        "group/array/c/0/1.frame/x/",
        "group/array/c/1/1.frame/",
    ] {
        let frame = prefix(frame);
        assert_eq!(sparse.list_prefix(&frame).unwrap(), []);
        assert_eq!(sparse.size_prefix(&frame).unwrap(), 0);
        let below = sparse.list_dir(&frame).unwrap();
        assert_eq!((below.keys(), below.prefixes()), (&vec![], &vec![]));
        sparse.erase_prefix(&frame).unwrap();
        assert_eq!(store.list().unwrap(), before);
    }
    let chunks = ["group/array/c/0/3", "group/array/c/1/2"].map(key);
    assert_eq!(
        sparse.list_prefix(&prefix("group/array/c/")).unwrap(),
        chunks
    );
}

/// A walk through all directories finds the same keys as one listing.
#[test]
fn what_is_beside_shards_is_found_in_directories() {
    let (_, sparse) = framed();
    for beside in ["c/0/notes/a/b", "c/0/x", "c/y", "c/notes/z", "notes/1"] {
        let beside = key(&format!("group/array/{beside}"));
        sparse
            .set(&beside, beside.as_str().to_owned().into())
            .unwrap();
    }
    let mut found = BTreeSet::new();
    let mut left = vec![StorePrefix::root()];
    while let Some(directory) = left.pop() {
        let below = sparse.list_dir(&directory).unwrap();
        let all = sparse.list_prefix(&directory).unwrap();
        assert!(below.keys().iter().all(|key| all.contains(key)));
        for key in &all {
            let is_below = below.keys().contains(key)
                || below.prefixes().iter().any(|below| key.has_prefix(below));
            assert!(is_below, "{key} in {directory:?}");
        }
        found.extend(below.keys().iter().cloned());
        left.extend(below.prefixes().iter().cloned());
    }
    assert_eq!(Vec::from_iter(found), sparse.list().unwrap());
    sparse.erase_prefix(&prefix("group/array/c/0/")).unwrap();
    assert_eq!(sparse.list_prefix(&prefix("group/array/c/0/")).unwrap(), []);
    assert_eq!(
        sparse.get(&key("group/array/c/1/2")).unwrap().unwrap(),
        "kept"
    );
}

#[test]
fn arrays_of_zarr_v2_have_no_shards() {
    let store = Arc::new(MemoryStore::new());
    let open = || {
        let opened = SparseShardStore::open(store.clone(), "/group/array");
        opened.unwrap_err().to_string()
    };
    assert!(open().contains("there is no array"), "{}", open());
    store
        .set(&key("group/array/.zarray"), b"{}"[..].into())
        .unwrap();
    assert!(open().contains("Zarr V2"), "{}", open());
}

/// A write to a frame is only acknowledged if the shard can hold it.
#[test]
fn an_index_that_cannot_be_encoded_is_refused() {
    let store = Arc::new(MemoryStore::new());
    let layout = Layout::new(&[8], &[8], &[2]);
    let without_endian = json!([{ "name": "bytes" }]);
    stored_anew(
        &store,
        &layout,
        &[("/codecs/0/configuration/index_codecs", without_endian)],
    );
    let opened = SparseShardStore::open(store, layout.path);
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("index codecs"), "{error}");
    assert!(error.contains("endian"), "{error}");
}

/// Clones act as one adapter: threads that write parts of a subchunk take turns.
#[test]
fn clones_take_turns() {
    const THREADS: u64 = 4;
    const PARTS: u64 = 100;
    let store = Arc::new(MemoryStore::new());
    let subchunk = THREADS * PARTS;
    Layout::new(&[4 * subchunk], &[4 * subchunk], &[subchunk]).create(&*store);
    let sparse = SparseShardStore::open(store.clone(), "/group/array").unwrap();
    assert!(Arc::ptr_eq(sparse.inner(), &store));
    let reader = sparse.clone().with_listing_age(Duration::from_hours(1));
    let chunk = key("group/array/c/2");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (sparse, chunk) = (sparse.clone(), &chunk);
            scope.spawn(move || {
                for at in 0..PARTS {
                    let at = THREADS * at + thread;
                    sparse.set_partial(chunk, at, b"x"[..].into()).unwrap();
                }
            });
        }
    });
    let written = sparse.get(&chunk).unwrap().unwrap();
    let lost = written.iter().filter(|&&byte| byte != b'x').count();
    assert_eq!((written.len() as u64, lost), (THREADS * PARTS, 0));
    // The option of one clone does not affect the others.
    reader.set(&chunk, b"reader"[..].into()).unwrap_err();
    assert_eq!(reader.get(&chunk).unwrap().unwrap(), written);
    sparse.consolidate(&[0]).unwrap().unwrap();
    assert_eq!(reader.get(&chunk).unwrap().unwrap(), written);
}

//! Store operations with the keys of chunks. They run over stores of every kind, in both encodings,
//! with both separators, and with 0 to 3 axes. zarrs' own tests of stores run too, with keys that
//! pass through.

use std::sync::Arc;

use futures::executor::block_on;
use zarrs::storage::byte_range::ByteRange;
use zarrs::storage::store::{AsyncMemoryStore, MemoryStore};
use zarrs::storage::{
    Bytes, ListableStorageTraits, ReadableStorageTraits, StoreKey, WritableStorageTraits,
    store_test,
};
use zarrs_cuda::storage::BinaryFormat;

use super::model::Keys;
use super::subject::{Sharded, Subject, prefix};

fn suite(subject: &Subject, keys: Keys, rank: usize) {
    let at = |chunk: &[u64]| keys.key("a/b/", &chunk[..rank]);
    let store = &*subject.store;
    let (first, second, far) = (at(&[0, 0, 0]), at(&[1, 0, 1]), at(&[7, 9, 5]));
    let read = |key: &StoreKey| store.get(key).unwrap();
    assert_eq!(read(&first), None);
    assert_eq!(store.size_key(&first).unwrap(), None);
    assert_eq!(
        store.get_partial(&first, ByteRange::Suffix(4)).unwrap(),
        None
    );
    store.erase(&first).unwrap();

    store.set(&first, b"0123"[..].into()).unwrap();
    assert_eq!(read(&first).unwrap(), b"0123"[..]);
    assert_eq!(store.size_key(&first).unwrap(), Some(4));
    let parts = |ranges: &[ByteRange]| {
        let ranges = Box::new(ranges.iter().copied());
        let parts = store.get_partial_many(&first, ranges)?;
        parts.unwrap().collect::<Result<Vec<_>, _>>()
    };
    use ByteRange::{FromStart, Suffix};
    let ranges = [
        FromStart(1, Some(2)),
        Suffix(3),
        FromStart(4, None),
        FromStart(0, None),
        Suffix(0),
    ];
    let expected: [&[u8]; 5] = [b"12", b"123", b"", b"0123", b""];
    assert_eq!(parts(&ranges).unwrap(), expected);
    assert!(parts(&[]).unwrap().is_empty());
    for range in [
        FromStart(5, None),
        FromStart(3, Some(2)),
        FromStart(u64::MAX, Some(2)),
        Suffix(5),
    ] {
        let error = parts(&[range]).unwrap_err().to_string();
        assert!(error.contains("invalid byte range"), "{error}");
        let error = subject
            .many
            .get_many(&[(first.clone(), range)])
            .unwrap_err()
            .to_string();
        assert!(error.contains("for bytes of length 4"), "{error}");
    }
    store.set_partial(&first, 2, b"ab"[..].into()).unwrap();
    store.set_partial(&first, 5, b"c"[..].into()).unwrap();
    assert_eq!(read(&first).unwrap(), b"01ab\0c"[..]);
    store.set(&first, b""[..].into()).unwrap();
    assert_eq!(read(&first).unwrap(), b""[..]);
    assert_eq!(store.size_key(&first).unwrap(), Some(0));

    if rank > 0 {
        store.set(&second, b"second"[..].into()).unwrap();
        store.set_partial(&far, 1, b"far"[..].into()).unwrap();
        assert_eq!(read(&far).unwrap(), b"\0far"[..]);
        let mut all = [first.clone(), second.clone(), far.clone()];
        all.sort();
        // Leases, as a writer has them on files and on objects, and a lock file.
        let leases = [
            ".zarrs-cuda-writer",
            ".zarrs-cuda-writers/all",
            "zarr.json.__lock",
        ];
        let leases = leases.map(|name| StoreKey::new(format!("a/b/{name}")).unwrap());
        for lease in &leases {
            subject.inner.set(lease, b"lease"[..].into()).unwrap();
        }
        assert_eq!(store.list().unwrap(), all);
        assert_eq!(store.list_prefix(&prefix("a/b/")).unwrap(), all);
        assert_eq!(store.size_prefix(&prefix("a/")).unwrap(), 10);
        let parent = second.parent();
        let siblings: Vec<_> = all
            .iter()
            .filter(|key| key.parent() == parent)
            .cloned()
            .collect();
        assert_eq!(store.list_dir(&parent).unwrap().keys(), &siblings);
        let below = store.list_dir(&prefix("a/b/")).unwrap();
        let is_lease = |name: &str| name.contains("writer");
        assert!(
            !below
                .prefixes()
                .iter()
                .any(|below| is_lease(below.as_str()))
        );
        for lease in &leases {
            subject.inner.erase(lease).unwrap();
        }
        // One object for each shard.
        assert_eq!(subject.inner.list().unwrap().len(), 2);
        store
            .erase_many(&[second.clone(), at(&[50, 50, 50])])
            .unwrap();
        assert_eq!(read(&second), None);
        store.erase(&far).unwrap();
    }
    assert_eq!(store.list().unwrap(), std::slice::from_ref(&first));
    store.erase_prefix(&prefix("a/b/")).unwrap();
    assert_eq!(store.list().unwrap(), []);
    assert_eq!(subject.inner.list().unwrap(), []);
}

#[test]
fn keys_of_chunks_are_keys() {
    for rank in 0..4 {
        for format in [BinaryFormat::Indexed, BinaryFormat::IndexedCrc32c] {
            for keys in Keys::ALL {
                let sharded = Sharded {
                    format,
                    ..Sharded::new("/a/b", &[2, 3, 2][..rank])
                };
                for subject in sharded.subjects() {
                    suite(&subject, keys, rank);
                }
            }
        }
    }
}

/// An adapter over an adapter: each sees the chunks of its array in the shards of its array.
#[test]
fn adapters_over_adapters() {
    let inner = Arc::new(MemoryStore::new());
    let one = Arc::new(Sharded::new("/one", &[4]).over(inner.clone()));
    let both = Sharded::new("/two", &[2, 2]).over(one);
    let key = |text: &str| StoreKey::new(text).unwrap();
    let chunks = ["one/c/5", "one/c/6", "three/c/1", "two/c/1/1", "two/c/3/2"].map(key);
    for chunk in &chunks {
        both.set(chunk, Bytes::copy_from_slice(chunk.as_str().as_bytes()))
            .unwrap();
    }
    assert_eq!(both.list().unwrap(), chunks);
    let shards = ["one/c/1", "three/c/1", "two/c/0/0", "two/c/1/1"].map(key);
    assert_eq!(inner.list().unwrap(), shards);
    for chunk in &chunks {
        assert_eq!(both.get(chunk).unwrap().unwrap(), chunk.as_str().as_bytes());
    }
    both.erase_prefix(&prefix("one/")).unwrap();
    assert_eq!(both.list().unwrap(), chunks[2..]);
}

/// The store tests of `zarrs_storage`. None of their keys is the key of a chunk.
#[test]
fn other_keys_pass_zarrs_own_tests() {
    for subject in Sharded::new("/x/y", &[2, 2]).subjects() {
        let store = &*subject.store;
        // On a file system, the root to erase exists only after the first object was stored.
        store
            .set(&StoreKey::new("b").unwrap(), b""[..].into())
            .unwrap();
        store_test::store_write(&subject.store).unwrap();
        store_test::store_read(&subject.store).unwrap();
        store_test::store_list(&subject.store).unwrap();
        store_test::store_list_size(&subject.store).unwrap();
    }
}

#[test]
fn other_keys_pass_zarrs_own_asynchronous_tests() {
    let store = Sharded::new("/x/y", &[2, 2]).over(Arc::new(AsyncMemoryStore::new()));
    block_on(async {
        store_test::async_store_write(&store).await.unwrap();
        store_test::async_store_read(&store).await.unwrap();
        store_test::async_store_list(&store).await.unwrap();
        store_test::async_store_list_size(&store).await.unwrap();
    });
}

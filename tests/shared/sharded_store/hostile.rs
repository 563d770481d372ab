//! Invalid shards are errors. They cause no panic and no allocation larger than the shard, and are
//! never replaced by a guess.

use std::sync::Arc;

use futures::executor::block_on;
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::byte_range::ByteRange;
use zarrs::storage::{Bytes, ReadableStorageTraits, StorageError, WritableStorageTraits};
use zarrs_cuda::storage::{BinaryFormat, ShardedStore};

use super::subject::{Sharded, Subject, key, prefix};
use zarrs_cuda_testing::Rng;

const SHARD: &str = "a/c/0";

/// A shard of four chunks; the third is empty.
fn shard(format: BinaryFormat) -> Vec<u8> {
    let sharded = Sharded {
        format,
        ..Sharded::new("/a", &[4])
    };
    let inner = Arc::new(zarrs::storage::store::MemoryStore::new());
    let chunks = sharded.over(inner.clone());
    for (at, value) in [
        ("a/c/0", &b"first"[..]),
        ("a/c/1", b"second"),
        ("a/c/3", b"last"),
    ] {
        chunks.set(&key(at), Bytes::copy_from_slice(value)).unwrap();
    }
    inner.get(&key(SHARD)).unwrap().unwrap().to_vec()
}

/// Every operation that reads the shard or changes a part of it.
fn all_operations(subject: &Subject) -> Vec<(&'static str, Result<(), StorageError>)> {
    let store = &*subject.store;
    let first = key("a/c/0");
    let part = || Box::new([(1, Bytes::from_static(b"x"))].into_iter());
    let range = ByteRange::FromStart(1, Some(2));
    vec![
        ("get", store.get(&first).map(drop)),
        ("get_partial", store.get_partial(&first, range).map(drop)),
        (
            "get_many",
            subject.many.get_many(&[(first.clone(), range)]).map(drop),
        ),
        ("size_key", store.size_key(&first).map(drop)),
        ("list_prefix", store.list_prefix(&prefix("a/")).map(drop)),
        ("list_dir", store.list_dir(&prefix("a/c/")).map(drop)),
        ("size_prefix", store.size_prefix(&prefix("a/")).map(drop)),
        ("set", store.set(&key("a/c/1"), b"x"[..].into())),
        ("set_partial", store.set_partial_many(&first, part())),
        ("erase", store.erase(&key("a/c/1"))),
    ]
}

fn subjects(format: BinaryFormat) -> Vec<Subject> {
    // Other programs replace the shards, so the adapters must not keep indices.
    let sharded = Sharded {
        format,
        index_cache: 0,
        ..Sharded::new("/a", &[4])
    };
    sharded.subjects()
}

#[test]
fn truncated_shards() {
    for format in [BinaryFormat::Indexed, BinaryFormat::IndexedCrc32c] {
        let shard = shard(format);
        let index = 64
            + if format == BinaryFormat::Indexed {
                0
            } else {
                4
            };
        for subject in subjects(format) {
            for len in [0, 1, index - 1] {
                let object = Bytes::copy_from_slice(&shard[..len]);
                subject.inner.set(&key(SHARD), object.clone()).unwrap();
                for (operation, result) in all_operations(&subject) {
                    let error = result.unwrap_err().to_string();
                    assert!(
                        error.contains(SHARD),
                        "{} {operation}: {error}",
                        subject.name
                    );
                    let bytes = format!("{len} bytes");
                    assert!(
                        error.contains(&bytes),
                        "{} {operation}: {error}",
                        subject.name
                    );
                }
                assert_eq!(subject.inner.get(&key(SHARD)).unwrap().unwrap(), object);
            }
        }
    }
}

#[test]
fn flipped_bits_of_an_index_with_a_checksum() {
    let shard = shard(BinaryFormat::IndexedCrc32c);
    let index = shard.len() - 68;
    for subject in subjects(BinaryFormat::IndexedCrc32c) {
        if subject.has_files() {
            continue;
        }
        for at in index..shard.len() {
            let mut flipped = shard.clone();
            flipped[at] ^= 4;
            let object = Bytes::from(flipped);
            subject.inner.set(&key(SHARD), object.clone()).unwrap();
            for (operation, result) in all_operations(&subject) {
                let error = result.unwrap_err().to_string();
                assert!(error.contains(SHARD), "{operation}: {error}");
            }
            assert_eq!(subject.inner.get(&key(SHARD)).unwrap().unwrap(), object);
        }
    }
}

/// Extents beyond the end of the shard, for which a store would allocate memory.
#[test]
fn extents_outside_of_the_shard() {
    let shard = shard(BinaryFormat::Indexed);
    let index = shard.len() - 64;
    for subject in subjects(BinaryFormat::Indexed) {
        for (offset, nbytes) in [
            (0, 1_000_u64),
            (1_000, 9),
            (0, 17 << 20),
            (0, 1 << 50),
            (1 << 40, 1 << 40),
            (0, i64::MAX.cast_unsigned()),
            (0, u64::MAX),
            (u64::MAX, 0),
            (u64::MAX - 1, 0),
            (u64::MAX - 1, 2),
            (1 << 63, 1 << 63),
        ] {
            let mut object = shard.clone();
            object[index..index + 8].copy_from_slice(&u64::to_le_bytes(offset));
            object[index + 8..index + 16].copy_from_slice(&u64::to_le_bytes(nbytes));
            let object = Bytes::from(object);
            subject.inner.set(&key(SHARD), object.clone()).unwrap();
            let is_impossible = offset
                .checked_add(nbytes)
                .is_none_or(|end| end > i64::MAX.cast_unsigned());
            for (operation, result) in all_operations(&subject) {
                // Operations that only need lengths do not check the length of the shard.
                let is_length = ["size_key", "list_prefix", "list_dir", "size_prefix"];
                // Reads of a few bytes that exist.
                let is_there = operation.starts_with("get_") && offset == 0 && !is_impossible;
                if (is_length.contains(&operation) && !is_impossible) || is_there {
                    result.unwrap();
                    continue;
                }
                let error = result.unwrap_err().to_string();
                let shown = format!("{} {offset} {nbytes} {operation}: {error}", subject.name);
                assert!(error.contains(SHARD), "{shown}");
            }
            assert_eq!(subject.inner.get(&key(SHARD)).unwrap().unwrap(), object);
            // The whole shard can be replaced without reading it.
            let all = (0..4).map(|at| (key(&format!("a/c/{at}")), Bytes::from_static(b"new")));
            subject.many.set_many(all.collect()).unwrap();
            assert_eq!(
                subject.store.get(&key("a/c/0")).unwrap().unwrap(),
                b"new"[..]
            );
        }
    }
}

#[test]
fn a_chunk_without_bytes_is_within_its_shard_too() {
    let shard = shard(BinaryFormat::Indexed);
    let (index, size) = (shard.len() - 64, shard.len() as u64);
    for subject in subjects(BinaryFormat::Indexed) {
        for (offset, is_valid) in [(0, true), (size, true), (size + 1, false), (1 << 40, false)] {
            let mut object = shard.clone();
            object[index..index + 8].copy_from_slice(&u64::to_le_bytes(offset));
            object[index + 8..index + 16].fill(0);
            subject.inner.set(&key(SHARD), object.into()).unwrap();
            let read = subject.store.get(&key("a/c/0"));
            if is_valid {
                assert_eq!(read.unwrap().unwrap(), b""[..], "{}", subject.name);
            } else {
                let error = read.unwrap_err().to_string();
                assert!(error.contains(SHARD), "{} {offset}: {error}", subject.name);
            }
        }
    }
}

/// Chunks that share bytes can be read. Each is as long as the shard at most.
#[test]
fn chunks_that_share_bytes() {
    for subject in subjects(BinaryFormat::Indexed) {
        let mut object = vec![7; 100];
        for _ in 0..4 {
            object.extend(u64::to_le_bytes(0));
            object.extend(u64::to_le_bytes(164));
        }
        subject
            .inner
            .set(&key(SHARD), object.clone().into())
            .unwrap();
        let wanted: Vec<_> = (0..4)
            .map(|at| (key(&format!("a/c/{at}")), ByteRange::FromStart(0, None)))
            .collect();
        let read = subject.many.get_many(&wanted).unwrap();
        assert!(read.iter().all(|bytes| bytes.as_ref().unwrap() == &object));
    }
}

#[test]
fn random_bytes() {
    let mut rng = Rng(3);
    for subject in subjects(BinaryFormat::Indexed) {
        for _ in 0..(if subject.has_files() { 20 } else { 500 }) {
            let mut object = shard(BinaryFormat::Indexed);
            for _ in 0..=rng.below(4) {
                let at = usize::try_from(rng.below(object.len() as u64)).unwrap();
                object[at] = rng.byte();
            }
            if rng.one_in(3) {
                object.truncate(usize::try_from(rng.below(object.len() as u64)).unwrap());
            }
            subject.inner.set(&key(SHARD), object.into()).unwrap();
            for (_, result) in all_operations(&subject) {
                // Any result is fine, but no panic.
                if let Err(error) = result {
                    assert!(!error.to_string().is_empty());
                }
            }
        }
    }
}

/// Metadata can claim any number of chunks in a shard.
#[test]
fn shards_of_too_many_chunks() {
    let directory = tempfile::tempdir().unwrap();
    let files = Arc::new(FilesystemStore::new(directory.path()).unwrap());
    for counts in [
        "[0]",
        "[16777217]",
        "[4096, 4097]",
        "[18446744073709551615]",
        "[-1]",
        "[1.5]",
        "2",
    ] {
        let shape = if counts == "[4096, 4097]" {
            "[9, 9]"
        } else {
            "[9]"
        };
        let metadata = format!(
            r#"{{"zarr_format":3,"node_type":"array","shape":{shape},"storage_transformers":[{{"name":"https://purl.org/zarr/spec/storage_transformers/sharding/1.0","configuration":{{"type":"indexed","chunks_per_shard":{counts}}}}}]}}"#
        );
        files.set(&key("a/zarr.json"), metadata.into()).unwrap();
        let error = ShardedStore::open(files.clone(), "/a")
            .unwrap_err()
            .to_string();
        assert!(error.contains("chunks_per_shard"), "{error}");
    }
    // The largest allowed number: the index is read only if the object is long enough.
    for format in [BinaryFormat::Indexed, BinaryFormat::IndexedCrc32c] {
        let chunks = ShardedStore::new(files.clone(), "/b", &[1 << 24], format).unwrap();
        files.set(&key("b/c/0"), b"short"[..].into()).unwrap();
        let error = chunks.get(&key("b/c/77")).unwrap_err().to_string();
        assert!(error.contains("it has 5 bytes"), "{error}");
        assert_eq!(chunks.get(&key("b/c/99999999")).unwrap(), None);
    }
}

/// Writes at offsets that no memory can hold.
#[test]
fn offsets_that_are_too_large() {
    for subject in subjects(BinaryFormat::Indexed) {
        subject
            .store
            .set(&key("a/c/0"), b"0123"[..].into())
            .unwrap();
        for offset in [u64::MAX, u64::MAX - 1, 1 << 63, 1 << 60] {
            let part = Box::new([(offset, Bytes::from_static(b"ab"))].into_iter());
            let error = subject
                .store
                .set_partial_many(&key("a/c/0"), part)
                .unwrap_err();
            assert!(error.to_string().contains(&offset.to_string()), "{error}");
        }
        assert_eq!(
            subject.store.get(&key("a/c/0")).unwrap().unwrap(),
            b"0123"[..]
        );
    }
}

/// A failing store: its error is passed on, and nothing is lost.
#[test]
fn failing_stores() {
    use zarrs_cuda_testing::stores::faulty::Fault;
    let adapter = super::requests::Adapter::of(&Sharded::new("/a", &[2]));
    adapter.set("a/c/0", b"abc");
    for number in 0..2 {
        adapter.chunks.clear_index_cache();
        adapter.inner.fail_at(number, Fault::Refused);
        let error = adapter.chunks.get(&key("a/c/0")).unwrap_err().to_string();
        assert!(error.contains("failed as it was told to"), "{error}");
        adapter.inner.fail_at(number, Fault::Refused);
        adapter
            .chunks
            .set(&key("a/c/1"), b"x"[..].into())
            .unwrap_err();
        adapter.inner.work();
        assert_eq!(adapter.get("a/c/0").unwrap(), b"abc");
        assert_eq!(adapter.get("a/c/1"), None);
    }
    // The write may have been done or not: reads return the stored value.
    adapter.inner.fail_at(1, Fault::Denied);
    adapter
        .chunks
        .set(&key("a/c/1"), b"x"[..].into())
        .unwrap_err();
    adapter.inner.work();
    assert_eq!(adapter.get("a/c/1").unwrap(), b"x");
    assert_eq!(adapter.get("a/c/0").unwrap(), b"abc");
}

/// A write that is abandoned halfway leaves no outdated index in the cache.
#[test]
fn writes_that_are_given_up() {
    use std::task::{Context, Waker};
    let inner = Arc::new(super::threads::Slow::default());
    let chunks = Sharded::new("/a", &[2]).over(inner.clone());
    block_on(chunks.async_set_many([(key("a/c/0"), Bytes::from_static(b"before"))])).unwrap();
    let get = |at| {
        block_on(zarrs::storage::AsyncReadableStorageTraits::get(
            &chunks,
            &key(at),
        ))
    };
    assert_eq!(get("a/c/0").unwrap().unwrap(), b"before"[..]);
    for polls in 0..20 {
        let value = Bytes::from(vec![b'x'; polls + 1]);
        let entry = [(key("a/c/0"), value.clone())];
        let mut write = Box::pin(chunks.async_set_many(entry));
        let mut context = Context::from_waker(Waker::noop());
        let mut is_done = false;
        for _ in 0..polls {
            is_done = is_done || write.as_mut().poll(&mut context).is_ready();
        }
        drop(write);
        let _ = get("a/c/0").unwrap();
        // The store completes its requests even though the caller dropped the future.
        inner.settle();
        let read = get("a/c/0").unwrap().unwrap();
        let stored = inner.inner.get(&key(SHARD)).unwrap().unwrap();
        assert_eq!(read, stored[..stored.len() - 32], "{polls}");
        assert!(!is_done || read == value);
    }
}

/// A temporary that remained after a full disk or a crash: zarrs' adapter does not overwrite it.
#[test]
fn a_temporary_that_was_left() {
    use zarrs::storage::storage_adapter::atomic_write::AtomicWriteStorageAdapter;

    use zarrs_cuda_testing::stores::faulty::{Fault, Faulty, Operation};

    let folder = tempfile::tempdir().unwrap();
    let files = Arc::new(FilesystemStore::new(folder.path()).unwrap());
    let faulty = Arc::new(Faulty::new(files.clone()));
    let atomic = Arc::new(AtomicWriteStorageAdapter::new(faulty.clone()));
    let chunks = ShardedStore::new(atomic, "/a", &[4], BinaryFormat::IndexedCrc32c).unwrap();
    let (first, other) = (key("a/c/0"), key("a/c/1"));
    for before in [None, Some(Bytes::from_static(b"first"))] {
        if let Some(before) = &before {
            chunks.set(&first, before.clone()).unwrap();
        }
        faulty.fail(|request| (request.operation == Operation::Set).then_some(Fault::Torn));
        chunks.set(&other, b"other"[..].into()).unwrap_err();
        faulty.work();
        // The shard is unchanged. Each write is refused with the reason until the temporary is
        // erased.
        let read = |key| chunks.get(key).unwrap();
        assert_eq!((read(&first), read(&other)), (before.clone(), None));
        for _ in 0..2 {
            let error = chunks
                .set(&other, b"other"[..].into())
                .unwrap_err()
                .to_string();
            assert!(error.contains("a/c/0.tmp already exists"), "{error}");
        }
        files.erase(&key("a/c/0.tmp")).unwrap();
        chunks.set(&other, b"other"[..].into()).unwrap();
        assert_eq!(
            (read(&first), read(&other)),
            (before, Some(b"other"[..].into()))
        );
        chunks.erase(&other).unwrap();
    }
}

//! `BlockingObjectStore` over objects in memory, and over those of a server of S3.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and says where"
)]

mod double;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use zarrs_cuda::objects::BlockingObjectStore;
use zarrs_cuda::objects::object_store::memory::InMemory;
use zarrs_cuda::objects::object_store::path::Path;
use zarrs_cuda::objects::object_store::{Error, ObjectStore, ObjectStoreExt};
use zarrs_cuda::storage::slice;
use zarrs_cuda::writer::ConditionalStore;
use zarrs_cuda_object_store_tests::Server;
use zarrs_storage::byte_range::ByteRange::{self, FromStart, Suffix};
use zarrs_storage::{
    Bytes, ListableStorageTraits, ReadableStorageTraits, StorageError, StoreKey, StorePrefix,
    WritableStorageTraits, store_test,
};

use double::{Double, with_status};

/// Calls `test` with objects in memory, and with those of a server.
fn each(test: impl Fn(Arc<dyn ObjectStore>)) {
    test(Arc::new(InMemory::new()));
    let server = Server::start();
    test(Arc::new(server.objects()));
}

fn key(name: &str) -> StoreKey {
    StoreKey::new(name).unwrap()
}

/// The parts of a value; the first error, if a part has one.
fn parts(
    store: &BlockingObjectStore,
    name: &str,
    ranges: &[ByteRange],
) -> Result<Option<Vec<Bytes>>, StorageError> {
    let got = store.get_partial_many(&key(name), Box::new(ranges.iter().copied()))?;
    got.map(Iterator::collect).transpose()
}

#[test]
fn it_is_a_store_of_zarrs() {
    each(|objects| {
        let store = BlockingObjectStore::new(objects);
        store_test::store_write(&store).unwrap();
        store_test::store_read(&store).unwrap();
        store_test::store_list(&store).unwrap();
        store_test::store_list_size(&store).unwrap();
        assert!(store.supports_get_partial() && !store.supports_set_partial());
    });
}

/// Ranges that begin at each of `numbers`, and have as many bytes.
fn ranges(numbers: &[u64]) -> Vec<ByteRange> {
    let lens = || numbers.iter().copied().map(Some).chain([None]);
    let from_start = numbers
        .iter()
        .flat_map(|start| lens().map(|len| FromStart(*start, len)));
    let suffixes = numbers.iter().copied().map(Suffix);
    from_start.chain(suffixes).collect()
}

/// Compares the parts that `store` has of a value of `len` bytes with those of the value in memory.
fn compare_parts(store: &BlockingObjectStore, len: u8, requests: &[Vec<ByteRange>]) {
    let value: Bytes = (10..10 + len).collect();
    store.set(&key("a/b"), value.clone()).unwrap();
    for wanted in requests {
        let expected: Result<Vec<_>, _> =
            wanted.iter().map(|range| slice(&value, *range)).collect();
        match (expected, parts(store, "a/b", wanted)) {
            (Ok(expected), Ok(Some(found))) => assert_eq!(found, expected, "{wanted:?}"),
            (Err(expected), Err(found)) => {
                assert_eq!(found.to_string(), expected.to_string(), "{wanted:?}");
            }
            (expected, found) => panic!("{wanted:?}: {found:?}, not {expected:?}"),
        }
    }
    assert_eq!(store.get(&key("a/b")).unwrap(), Some(value));
    assert_eq!(store.size_key(&key("a/b")).unwrap(), Some(u64::from(len)));
}

#[test]
fn parts_are_those_of_the_value() {
    each(|objects| {
        let store = BlockingObjectStore::new(objects);
        let alone: Vec<_> = ranges(&[0, 1, 3, 4])
            .into_iter()
            .map(|range| vec![range])
            .collect();
        for len in [0, 3] {
            compare_parts(&store, len, &alone);
        }
        compare_parts(
            &store,
            3,
            &[vec![], vec![Suffix(1), FromStart(1, None), Suffix(4)]],
        );
    });
    let store = BlockingObjectStore::new(Arc::new(InMemory::new()));
    let ranges = ranges(&[0, 1, 2, 3, 4, u64::MAX]);
    let pairs = ranges
        .iter()
        .flat_map(|one| ranges.iter().map(|two| vec![*one, *two]));
    let pairs: Vec<_> = pairs.collect();
    for len in 0..=4 {
        compare_parts(&store, len, &pairs);
    }
}

#[test]
fn nothing_is_found_where_nothing_is() {
    each(|objects| {
        let store = BlockingObjectStore::new(objects);
        let absent = key("a/b");
        assert_eq!(store.get(&absent).unwrap(), None);
        assert_eq!(store.size_key(&absent).unwrap(), None);
        assert_eq!(store.object(&absent).unwrap(), None);
        assert_eq!(store.get_with_version(&absent).unwrap(), None);
        for ranges in [
            &[][..],
            &[Suffix(4)],
            &[Suffix(0)],
            &[FromStart(3, None)],
            &[FromStart(0, Some(2)), Suffix(4)],
        ] {
            assert_eq!(parts(&store, "a/b", ranges).unwrap(), None, "{ranges:?}");
        }
        store.erase(&absent).unwrap();
        store.set(&key("c"), vec![1].into()).unwrap();
        store.erase_many(&[absent, key("c")]).unwrap();
        store
            .erase_prefix(&StorePrefix::new("a/").unwrap())
            .unwrap();
        assert_eq!(store.list().unwrap(), []);
    });
}

#[test]
fn keys_are_paths_as_they_are() {
    each(|objects| {
        let store = BlockingObjectStore::new(objects.clone());
        for name in ["õ/a", "a b", "100%", "%25", "a~b", "[0]", "a#b", "a?b"] {
            store.set(&key(name), vec![1].into()).unwrap();
            assert_eq!(store.list().unwrap(), [key(name)]);
            let path = Path::parse(name).unwrap();
            let got = store.run(|store| async move { store.head(&path).await });
            assert_eq!(got.unwrap().unwrap().size, 1);
            store.erase(&key(name)).unwrap();
        }
        let error = store.get(&key("a/../b")).unwrap_err();
        assert!(
            error.to_string().contains("no object can have the name"),
            "{error}"
        );
    });
}

#[test]
fn one_of_two_writers_wins() {
    each(|objects| {
        let store = BlockingObjectStore::new(objects);
        let lease = key("lease");
        let set = |value: &'static str, version| {
            store.set_if(&lease, Bytes::from_static(value.as_bytes()), version)
        };
        let first = set("first", None).unwrap().unwrap();
        assert_eq!(set("another", None).unwrap(), None);
        assert_eq!(
            store.get_with_version(&lease).unwrap(),
            Some(("first".into(), first.clone()))
        );
        let second = set("second", Some(&first)).unwrap().unwrap();
        assert_ne!(first, second);
        assert_eq!(set("late", Some(&first)).unwrap(), None);
        assert_eq!(store.get(&lease).unwrap(), Some("second".into()));
        store.erase(&lease).unwrap();
        assert_eq!(set("late", Some(&second)).unwrap(), None);
        assert_eq!(store.get(&lease).unwrap(), None);
    });
}

/// Objects of which another one is stored after each of the first `times` requests for bytes.
fn replaced(objects: Arc<dyn ObjectStore>, times: usize, has_versions: bool) -> Double {
    let writer = BlockingObjectStore::new(objects.clone());
    let count = AtomicUsize::new(0);
    let mut double = Double::new(objects);
    double.answer = Box::new(move |meta| {
        let number = count.fetch_add(1, Ordering::Relaxed);
        if number < times {
            let byte = u8::try_from(number).unwrap() + 1;
            let writer = writer.clone();
            // A thread of a runtime must not wait.
            let stored = std::thread::spawn(move || writer.set(&key("a"), vec![byte; 8].into()));
            stored.join().unwrap().unwrap();
        }
        if !has_versions {
            meta.e_tag = None;
            meta.version = None;
        }
    });
    double
}

#[test]
fn parts_are_of_one_version() {
    each(|objects| {
        let plain = BlockingObjectStore::new(objects.clone());
        let wanted = [FromStart(0, Some(2)), FromStart(4, Some(2)), Suffix(2)];
        for (times, attempts) in [(1, 2), (4, 3)] {
            plain.set(&key("a"), vec![0; 8].into()).unwrap();
            let double = Arc::new(replaced(objects.clone(), times, true));
            // One after the other, so that the other object comes between two of them.
            let store = BlockingObjectStore::new(double).with_requests(NonZeroUsize::MIN);
            let got = parts(&store, "a", &wanted).unwrap().unwrap();
            let byte = u8::try_from(times).unwrap();
            assert_eq!(got, [&[byte, byte][..]; 3], "after {attempts} attempts");
        }
        let double = Arc::new(replaced(objects.clone(), 9, true));
        let store = BlockingObjectStore::new(double).with_requests(NonZeroUsize::MIN);
        let error = parts(&store, "a", &wanted).unwrap_err().to_string();
        assert_eq!(error, "it was replaced 3 times while it was read");
    });
}

#[test]
fn the_last_part_is_the_newest_where_there_are_no_versions() {
    each(|objects| {
        let plain = BlockingObjectStore::new(objects.clone());
        plain.set(&key("a"), vec![0; 8].into()).unwrap();
        let double = Arc::new(replaced(objects.clone(), 2, false));
        let store = BlockingObjectStore::new(double).with_requests(NonZeroUsize::MIN);
        let got = parts(&store, "a", &[FromStart(0, Some(2)), Suffix(2)]).unwrap();
        assert_eq!(got.unwrap(), [&[0, 0][..], &[2, 2]]);
        let error = store.get_with_version(&key("a")).unwrap_err();
        assert!(matches!(error, StorageError::Unsupported(_)), "{error}");
    });
}

#[test]
fn requests_for_parts_are_limited() {
    each(|objects| {
        let plain = BlockingObjectStore::new(objects.clone());
        plain
            .set(&key("a"), (0..32).collect::<Vec<u8>>().into())
            .unwrap();
        let wanted: Vec<_> = (0..32).map(|at| FromStart(at, Some(1))).collect();
        for requests in [1, 3] {
            let double = Arc::new(Double::new(objects.clone()));
            let limit = NonZeroUsize::new(requests).unwrap();
            let store = BlockingObjectStore::new(double.clone()).with_requests(limit);
            std::thread::scope(|scope| {
                for store in [store.clone(), store] {
                    let wanted = &wanted;
                    scope.spawn(move || {
                        let got = parts(&store, "a", wanted).unwrap().unwrap();
                        assert_eq!(got.concat(), (0..32).collect::<Vec<u8>>());
                    });
                }
            });
            // A busy machine may not make all of them at once.
            let most = double.most.load(Ordering::Relaxed);
            assert!(most <= requests && (requests == 1 || most > 1), "{most}");
        }
    });
}

/// Objects whose requests of one kind fail.
fn failing(
    objects: &Arc<dyn ObjectStore>,
    kind: &'static str,
    error: impl Fn() -> Error + Send + Sync + 'static,
) -> BlockingObjectStore {
    let mut double = Double::new(objects.clone());
    double.before = Box::new(move |asked| if asked == kind { Err(error()) } else { Ok(()) });
    BlockingObjectStore::new(Arc::new(double))
}

#[test]
fn listings_that_are_refused() {
    each(|objects| {
        let refusing = failing(&objects, "LIST", || with_status("403 Forbidden"));
        let without = BlockingObjectStore::new(objects.clone()).without_listings("there is none");
        for (store, why) in [(refusing, "lists no objects"), (without, "there is none")] {
            let root = StorePrefix::root();
            for error in [
                store.list().map(drop),
                store.list_prefix(&root).map(drop),
                store.list_dir(&root).map(drop),
                store.size_prefix(&root).map(drop),
                store.for_each_object(&root, |_| {}),
            ] {
                let Err(StorageError::Unsupported(error)) = error else {
                    panic!("{error:?}")
                };
                assert!(error.contains(why), "{error}");
            }
        }
        let broken = failing(&objects, "LIST", || {
            with_status("500 Internal Server Error")
        });
        let error = broken.list().unwrap_err();
        assert!(matches!(error, StorageError::IOError(_)), "{error:?}");
    });
}

#[test]
fn requests_that_a_store_has_not() {
    each(|objects| {
        let plain = BlockingObjectStore::new(objects.clone());
        plain.set(&key("a"), vec![1, 2, 3].into()).unwrap();
        let version = plain.get_with_version(&key("a")).unwrap().unwrap().1;
        let unsupported = |result: Result<(), StorageError>| {
            assert!(
                matches!(result, Err(StorageError::Unsupported(_))),
                "{result:?}"
            );
        };
        for store in [
            failing(&objects, "PUT", || with_status("501 Not Implemented")),
            failing(&objects, "PUT", || Error::NotImplemented {
                operation: "conditions".to_owned(),
                implementer: "a double".to_owned(),
            }),
            plain.clone().without_conditions("there are none"),
            plain.clone().without_writes("it is read"),
        ] {
            for version in [None, Some(&version)] {
                unsupported(store.set_if(&key("a"), vec![4].into(), version).map(drop));
            }
        }
        let read = plain.clone().without_writes("it is read");
        unsupported(read.set(&key("a"), vec![4].into()));
        unsupported(read.erase(&key("a")));
        unsupported(read.erase_many(&[key("a")]));
        unsupported(read.erase_prefix(&StorePrefix::root()));
        assert_eq!(plain.get(&key("a")).unwrap(), Some(vec![1, 2, 3].into()));
        // Azure has no requests for the end of an object.
        let azure = failing(&objects, "SUFFIX", || Error::NotSupported {
            source: "no suffixes".into(),
        });
        let got = parts(&azure, "a", &[FromStart(0, Some(1)), Suffix(2)]).unwrap();
        assert_eq!(got.unwrap(), [&[1][..], &[2, 3]]);
        assert!(parts(&azure, "a", &[Suffix(4)]).is_err());
    });
}

#[test]
fn errors_keep_their_source_and_their_words() {
    each(|objects| {
        let path = || "a".to_owned();
        let denied = move || Error::PermissionDenied {
            path: path(),
            source: "<Error><Code>AccessDenied</Code><Key>secret</Key></Error>".into(),
        };
        BlockingObjectStore::new(objects.clone())
            .set(&key("a"), vec![1].into())
            .unwrap();
        let reading = failing(&objects, "GET", denied)
            .with_words(|message| message.replace("AccessDenied", "no access"));
        let writing = failing(&objects, "PUT", denied)
            .with_words(|message| message.replace("AccessDenied", "no access"));
        for error in [
            reading.get(&key("a")).map(drop),
            parts(&reading, "a", &[FromStart(0, Some(1))]).map(drop),
            writing.set(&key("a"), vec![2].into()),
            writing.set_if(&key("a"), vec![2].into(), None).map(drop),
        ] {
            let Err(StorageError::IOError(error)) = error else {
                panic!("{error:?}")
            };
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
            let text = error.to_string();
            assert!(text.ends_with("for path a: no access"), "{text}");
            let source = error.get_ref().unwrap().source().unwrap();
            let source = source.downcast_ref::<Error>().unwrap();
            assert!(matches!(source, Error::PermissionDenied { .. }), "{source}");
        }
    });
}

#[test]
fn a_server_that_does_not_answer_is_asked_once() {
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let mut double = Double::new(objects);
    let noted = asked.clone();
    double.before = Box::new(move |kind| {
        noted.lock().unwrap().push(kind);
        Err(with_status("nothing: operation timed out"))
    });
    let store = BlockingObjectStore::new(Arc::new(double));
    for range in [Suffix(2), FromStart(1, None), FromStart(1, Some(1))] {
        let Err(StorageError::IOError(error)) = parts(&store, "a", &[range]) else {
            panic!("{range} was read")
        };
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        assert_eq!(std::mem::take(&mut *asked.lock().unwrap()).len(), 1);
    }
}

#[test]
fn long_values_are_sent_in_parts() {
    each(|objects| {
        let kinds = Arc::new(Mutex::new(Vec::new()));
        let noted = kinds.clone();
        let mut double = Double::new(objects);
        double.before = Box::new(move |kind| {
            noted.lock().unwrap().push(kind);
            Ok(())
        });
        let store = BlockingObjectStore::new(Arc::new(double));
        let long: Vec<u8> = (0..(64 << 20) + 3_u32)
            .map(|n| (n / 7 % 251) as u8)
            .collect();
        let long = Bytes::from(long);
        for (value, kind) in [(long.slice(..(64 << 20) - 1), "PUT"), (long, "UPLOAD")] {
            store.set(&key("a/long"), value.clone()).unwrap();
            assert_eq!(std::mem::take(&mut *kinds.lock().unwrap()), [kind]);
            assert!(store.get(&key("a/long")).unwrap().unwrap() == value);
            kinds.lock().unwrap().clear();
        }
    });
}

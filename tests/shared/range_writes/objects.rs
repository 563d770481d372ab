//! The content of the store after partial writes, and the requests to the store.

use std::sync::Arc;

use futures::executor::block_on;
use futures::future::join_all;
use proptest::prelude::*;
use zarrs::storage::byte_range::ByteRange;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::store_test;
use zarrs::storage::{
    AsyncReadableStorageTraits, AsyncReadableWritableListableStorageTraits,
    AsyncWritableStorageTraits, Bytes, ReadableStorageTraits,
    ReadableWritableListableStorageTraits, StorageError, StoreKey, StorePrefix,
    WritableStorageTraits,
};
use zarrs_cuda::storage::RangeWrites;

use super::waiting::{Waiting, Yields};
use zarrs_cuda_testing::stores::faulty::{Fault, Faulty, Operation};

/// A store that only replaces whole objects.
type Whole = Faulty<MemoryStore>;

fn whole() -> Arc<Whole> {
    Arc::new(Faulty::new(Arc::new(MemoryStore::new())).without_parts())
}

fn awaited(store: &Arc<Whole>) -> Arc<Waiting<Whole>> {
    Arc::new(Waiting::new(store.clone(), Yields))
}

fn key(key: &str) -> StoreKey {
    StoreKey::new(key).unwrap()
}

fn value(bytes: &'static [u8]) -> Bytes {
    Bytes::from_static(bytes)
}

/// The operations of the store since `work` was last called.
fn operations(store: &Whole) -> Vec<Operation> {
    let requests = store.requests().into_iter();
    requests.map(|request| request.operation).collect()
}

/// An operation on a store.
#[derive(Clone, Debug)]
enum Step {
    SetPartial(StoreKey, u64, Vec<u8>),
    SetPartialMany(StoreKey, Vec<(u64, Vec<u8>)>),
    Set(StoreKey, Vec<u8>),
    /// Another program sets the object; then it is read through the store under test.
    SetElsewhere(StoreKey, Vec<u8>),
    Get(StoreKey),
    GetPart(StoreKey),
    Erase(StoreKey),
    EraseMany(Vec<StoreKey>),
    ErasePrefix(StorePrefix),
}

const KEYS: [&str; 4] = ["a", "d/a", "d/b", "d/e/a"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || prop::sample::select(KEYS.map(key).to_vec());
    let prefix = prop::sample::select(["", "d/", "d/e/", "x/"].to_vec());
    let prefix = prefix.prop_map(|prefix| StorePrefix::new(prefix).unwrap());
    let bytes = || prop::collection::vec(1_u8.., 0..20);
    let part = || (0_u64..40, bytes());
    let step = prop_oneof![
        8 => (key(), part()).prop_map(|(key, (at, bytes))| Step::SetPartial(key, at, bytes)),
        8 => (key(), prop::collection::vec(part(), 0..4))
            .prop_map(|(key, parts)| Step::SetPartialMany(key, parts)),
        2 => (key(), bytes()).prop_map(|(key, bytes)| Step::Set(key, bytes)),
        1 => (key(), bytes()).prop_map(|(key, bytes)| Step::SetElsewhere(key, bytes)),
        1 => key().prop_map(Step::Get),
        1 => key().prop_map(Step::GetPart),
        1 => key().prop_map(Step::Erase),
        1 => prop::collection::vec(key(), 0..3).prop_map(Step::EraseMany),
        1 => prefix.prop_map(Step::ErasePrefix),
    ];
    prop::collection::vec(step, 0..40)
}

fn parts(parts: &[(u64, Vec<u8>)]) -> Vec<(u64, Bytes)> {
    let parts = parts.iter().cloned();
    parts.map(|(at, bytes)| (at, bytes.into())).collect()
}

/// Performs the step, and returns the bytes that it read.
fn act(
    step: &Step,
    store: &dyn ReadableWritableListableStorageTraits,
    elsewhere: &MemoryStore,
) -> Result<Option<Bytes>, StorageError> {
    match step {
        Step::SetPartial(key, at, bytes) => store.set_partial(key, *at, bytes.clone().into())?,
        Step::SetPartialMany(key, many) => {
            store.set_partial_many(key, Box::new(parts(many).into_iter()))?;
        }
        Step::Set(key, bytes) => store.set(key, bytes.clone().into())?,
        Step::SetElsewhere(key, bytes) => {
            elsewhere.set(key, bytes.clone().into())?;
            return store.get(key);
        }
        Step::Get(key) => return store.get(key),
        Step::GetPart(key) => return store.get_partial(key, ByteRange::FromStart(0, Some(1))),
        Step::Erase(key) => store.erase(key)?,
        Step::EraseMany(keys) => store.erase_many(keys)?,
        Step::ErasePrefix(prefix) => store.erase_prefix(prefix)?,
    }
    Ok(None)
}

/// The same, asynchronously.
async fn act_async(
    step: &Step,
    store: &dyn AsyncReadableWritableListableStorageTraits,
    elsewhere: &MemoryStore,
) -> Result<Option<Bytes>, StorageError> {
    match step {
        Step::SetPartial(key, at, bytes) => {
            store.set_partial(key, *at, bytes.clone().into()).await?;
        }
        Step::SetPartialMany(key, many) => {
            let parts = Box::new(parts(many).into_iter());
            store.set_partial_many(key, parts).await?;
        }
        Step::Set(key, bytes) => store.set(key, bytes.clone().into()).await?,
        Step::SetElsewhere(key, bytes) => {
            elsewhere.set(key, bytes.clone().into())?;
            return store.get(key).await;
        }
        Step::Get(key) => return store.get(key).await,
        Step::GetPart(key) => {
            let range = ByteRange::FromStart(0, Some(1));
            return store.get_partial(key, range).await;
        }
        Step::Erase(key) => store.erase(key).await?,
        Step::EraseMany(keys) => store.erase_many(keys).await?,
        Step::ErasePrefix(prefix) => store.erase_prefix(prefix).await?,
    }
    Ok(None)
}

proptest! {
    #![proptest_config(zarrs_cuda_testing::effort::config(128))]

    /// The oracle is a store that writes parts itself. The objects are compared in the inner store,
    /// since a read through the adapter drops the objects that it keeps.
    #[test]
    fn the_store_has_what_one_that_writes_parts_has(
        steps in steps(),
        kept in prop::sample::select(vec![0, 30, 60, 1 << 20]),
        asynchronous: bool,
    ) {
        let (store, oracle) = (whole(), MemoryStore::new());
        let ours = RangeWrites::new(store.clone()).with_kept_bytes(kept);
        let ours_async = RangeWrites::new(awaited(&store)).with_kept_bytes(kept);
        for step in &steps {
            let expected = act(step, &oracle, &oracle).map_err(|error| error.to_string());
            let read = if asynchronous {
                block_on(act_async(step, &ours_async, store.inner()))
            } else {
                act(step, &ours, store.inner())
            };
            prop_assert_eq!(read.map_err(|error| error.to_string()), expected);
            for name in KEYS {
                let (stored, expected) = (store.inner().get(&key(name)), oracle.get(&key(name)));
                prop_assert_eq!(stored.unwrap(), expected.unwrap(), "{} after {:?}", name, step);
            }
        }
        prop_assert!(!operations(&store).contains(&Operation::SetPartial));
    }
}

#[test]
fn the_suite_of_zarrs() {
    let ours = RangeWrites::new(whole());
    store_test::store_write(&ours).unwrap();
    store_test::store_read(&ours).unwrap();
    store_test::store_list(&ours).unwrap();
    store_test::store_list_size(&ours).unwrap();
    assert!(ours.supports_set_partial());
}

#[test]
fn the_suite_of_zarrs_asynchronously() {
    let ours = RangeWrites::new(awaited(&whole()));
    block_on(async {
        store_test::async_store_write(&ours).await.unwrap();
        store_test::async_store_read(&ours).await.unwrap();
        store_test::async_store_list(&ours).await.unwrap();
        store_test::async_store_list_size(&ours).await.unwrap();
    });
    assert!(ours.supports_set_partial());
}

#[test]
fn calls_in_a_row_read_an_object_once() {
    use Operation::{Erase, Get, Set};
    let (store, a) = (whole(), key("a"));
    let ours = RangeWrites::new(store.clone());
    let asked = || {
        let asked = operations(&store);
        store.work();
        asked
    };
    for at in 0..3 {
        ours.set_partial(&a, at, value(b"x")).unwrap();
    }
    assert_eq!(asked(), [Get, Set, Set, Set]);
    // A read through the adapter drops the kept object. The next write therefore reads it again.
    ours.get_partial(&a, ByteRange::Suffix(1)).unwrap();
    store.inner().set(&a, value(b"others")).unwrap();
    ours.set_partial(&a, 0, value(b"O")).unwrap();
    assert_eq!(asked(), [Get, Get, Set]);
    assert_eq!(store.inner().get(&a).unwrap().unwrap(), "Others");
    // Objects that were stored or erased through the adapter are not kept either.
    ours.set(&a, value(b"new")).unwrap();
    ours.set_partial(&a, 0, value(b"N")).unwrap();
    assert_eq!(asked(), [Set, Get, Set]);
    ours.erase(&a).unwrap();
    ours.set_partial(&a, 1, value(b"N")).unwrap();
    assert_eq!(asked(), [Erase, Get, Set]);
    assert_eq!(store.inner().get(&a).unwrap().unwrap(), "\0N");
    // An empty write does not reach the store.
    ours.set_partial_many(&a, Box::new(std::iter::empty()))
        .unwrap();
    assert_eq!(asked(), []);
}

#[test]
fn few_objects_are_kept() {
    let asked = |kept: usize, names: &[&str]| {
        let store = whole();
        let ours = RangeWrites::new(store.clone()).with_kept_bytes(kept);
        for name in names {
            ours.set_partial(&key(name), 0, value(b"0123456789"))
                .unwrap();
        }
        let gets = operations(&store).into_iter();
        gets.filter(|operation| *operation == Operation::Get)
            .count()
    };
    assert_eq!(asked(20, &["a", "b", "a", "b"]), 2);
    assert_eq!(asked(19, &["a", "b", "a", "b"]), 4);
    assert_eq!(asked(9, &["a", "a"]), 2);
    // The number of kept objects is limited, too, however small they are.
    let names: Vec<String> = (0..65).map(|number| number.to_string()).collect();
    let names: Vec<&str> = names
        .iter()
        .chain(&names[..1])
        .map(String::as_str)
        .collect();
    assert_eq!(asked(1 << 20, &names), 66);
    assert_eq!(asked(1 << 20, &[&names[1..65], &names[1..2]].concat()), 64);
}

#[test]
fn after_an_error_an_object_is_read_again() {
    for fault in Fault::ALL {
        let (store, a) = (whole(), key("a"));
        let ours = RangeWrites::new(store.clone());
        ours.set_partial(&a, 0, value(b"before")).unwrap();
        store.fail_at(0, fault);
        ours.set_partial(&a, 0, value(b"B")).unwrap_err();
        store.work();
        ours.set_partial(&a, 5, value(b"E")).unwrap();
        assert_eq!(operations(&store), [Operation::Get, Operation::Set]);
        let expected: &[u8] = match fault {
            Fault::Refused => b"beforE",
            Fault::Torn => b"Bef\0\0E",
            Fault::Denied => b"BeforE",
        };
        assert_eq!(store.inner().get(&a).unwrap().unwrap(), expected);
    }
}

#[test]
fn a_dropped_future_keeps_nothing() {
    use futures::FutureExt;
    let (store, a) = (whole(), key("a"));
    let ours = RangeWrites::new(awaited(&store));
    block_on(ours.set_partial(&a, 0, value(b"before"))).unwrap();
    store.work();
    // Each call of the store is pending twice. The future is dropped at each of these points.
    let mut dropped = 0;
    for polls in 0.. {
        let mut writing = ours.set_partial(&a, 0, value(b"B"));
        if (0..=polls).any(|_| (&mut writing).now_or_never().is_some()) {
            break;
        }
        dropped += 1;
        drop(writing);
        block_on(ours.set_partial(&a, 5, value(b"E"))).unwrap();
        let stored = store.inner().get(&a).unwrap().unwrap();
        assert!(stored == "beforE" || stored == "BeforE", "{stored:?}");
        block_on(ours.set(&a, value(b"before"))).unwrap();
    }
    assert_eq!(dropped, 4);
}

#[test]
fn parts_of_one_object_by_many_threads() {
    const THREADS: u8 = 8;
    const LEN: u8 = 100;
    let (store, a) = (whole(), key("a"));
    let ours = RangeWrites::new(store.clone());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (ours, a) = (&ours, &a);
            scope.spawn(move || {
                for number in 0..LEN {
                    let at = u64::from(number) * u64::from(THREADS) + u64::from(thread);
                    ours.set_partial(a, at, vec![number + 1].into()).unwrap();
                    // The read drops the kept object, so that the next write has to read it.
                    if number % 3 == thread % 3 {
                        ours.get(a).unwrap();
                    }
                }
            });
        }
    });
    let expected = (1..=LEN).flat_map(|number| [number; THREADS as usize]);
    let stored = store.inner().get(&a).unwrap().unwrap();
    assert_eq!(stored, expected.collect::<Vec<u8>>());
}

#[test]
fn parts_of_one_object_by_many_tasks() {
    let (store, a) = (whole(), key("a"));
    let ours = RangeWrites::new(awaited(&store));
    let writes = (0..100_u8).map(|number| {
        let (ours, a) = (&ours, &a);
        async move {
            if number % 3 == 0 {
                ours.get(a).await.unwrap();
            }
            let at = u64::from(number);
            ours.set_partial(a, at, vec![number + 1].into())
                .await
                .unwrap();
        }
    });
    block_on(join_all(writes));
    let stored = store.inner().get(&a).unwrap().unwrap();
    assert_eq!(stored, (1..=100).collect::<Vec<u8>>());
}

/// A concurrent partial write does not restore the old content of an object that is stored as a
/// whole or erased.
#[test]
fn whole_objects_and_parts_take_turns() {
    let a = key("d/a");
    for other in [Operation::Set, Operation::Erase, Operation::List] {
        let store = whole();
        store.inner().set(&a, value(b"before")).unwrap();
        let ours = RangeWrites::new(awaited(&store));
        let part = async {
            ours.set_partial(&a, 0, value(b"B")).await.unwrap();
        };
        let whole = async {
            match other {
                Operation::Set => ours.set(&a, value(b"new")).await.unwrap(),
                Operation::Erase => ours.erase(&a).await.unwrap(),
                _ => ours
                    .erase_prefix(&StorePrefix::new("d/").unwrap())
                    .await
                    .unwrap(),
            }
        };
        block_on(async { futures::join!(part, whole) });
        // The partial write came first.
        let stored = store.inner().get(&a).unwrap();
        let expected = (other == Operation::Set).then_some(&b"new"[..]);
        assert_eq!(stored.as_deref(), expected, "{other:?}");
    }
}

#[test]
fn hostile_offsets_are_errors() {
    let (store, a) = (whole(), key("a"));
    let ours = RangeWrites::new(store.clone()).with_max_object_len(10);
    ours.set(&a, value(b"0123456789")).unwrap();
    store.work();
    for (at, message) in [
        (u64::MAX, "beyond 2^64 bytes"),
        (u64::MAX - 1, "18446744073709551615 bytes"),
        (1 << 60, "1152921504606846977 bytes"),
        (10, "11 bytes, and 10 is the most"),
    ] {
        let error = ours
            .set_partial(&a, at, value(b"x"))
            .unwrap_err()
            .to_string();
        assert!(error.contains(message), "{error}");
        assert!(error.contains(" a"), "{error}");
    }
    // The store got no request.
    assert_eq!(operations(&store), []);
    ours.set_partial(&a, 9, value(b"x")).unwrap();
    // Many parts are written all or none.
    let many = [(0, value(b"y")), (10, value(b"y"))];
    ours.set_partial_many(&a, Box::new(many.into_iter()))
        .unwrap_err();
    assert_eq!(store.inner().get(&a).unwrap().unwrap(), "012345678x");
    // Without a limit on the length, no memory is allocated for the impossible object.
    let ours = RangeWrites::new(store.clone()).with_max_object_len(u64::MAX);
    for at in [1 << 60, u64::MAX - 1] {
        let error = ours
            .set_partial(&a, at, value(b"x"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("no memory"), "{error}");
    }
    // Another program made the object longer than the limit.
    store.inner().set(&a, value(b"01234567890")).unwrap();
    let ours = RangeWrites::new(store.clone()).with_max_object_len(10);
    let error = ours
        .set_partial(&a, 0, value(b"x"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("11 bytes, and 10"), "{error}");
    assert_eq!(store.inner().get(&a).unwrap().unwrap(), "01234567890");
}

/// A store that can write parts gets the partial writes itself.
#[test]
fn stores_that_write_parts_do_so_themselves() {
    let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new())));
    let a = key("a");
    let ours = RangeWrites::new(store.clone());
    ours.set_partial(&a, 0, value(b"x")).unwrap();
    let ours = RangeWrites::new(Arc::new(Waiting::new(store.clone(), Yields)));
    block_on(ours.set_partial(&a, 1, value(b"y"))).unwrap();
    assert_eq!(operations(&store), [Operation::SetPartial; 2]);
    assert_eq!(store.inner().get(&a).unwrap().unwrap(), "xy");
}

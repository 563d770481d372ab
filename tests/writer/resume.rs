//! A writer goes on behind the last slice of its array, inside a shard. The stored slices stay readable at
//! every moment.

use std::sync::Arc;
use std::time::Duration;

use zarrs::array::Array;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    ListableStorageTraits, ReadableStorageTraits, ReadableWritableStorageTraits, StoreKey,
    WritableStorageTraits,
};
use zarrs_cuda::Options;
use zarrs_cuda::writer::{ArrayWriter, ArrayWriterBuilder, Resume, Start, WriterError};
use zarrs_cuda_testing::codecs;
use zarrs_cuda_testing::stores::faulty::{Fault, Faulty};
use zarrs_cuda_testing::stores::renaming::RenamingStore;

use super::probe::{Change, Probe, is_temporary};
use super::simple::{
    SHARD, SHARDS, SLICE, SLICE_BYTES, array_at, array_of, builder, check, shards, slices,
};
use super::watchdog::within;

/// The array as it is stored, with this crate's codec.
fn opened<S>(store: &Arc<S>) -> Array<S>
where
    S: ?Sized + ReadableWritableStorageTraits + 'static,
{
    opened_with(store, vec![codecs::bytes("little")])
}

/// The array as it is stored, whose inner codecs are these.
fn opened_with<S>(store: &Arc<S>, codecs: Vec<serde_json::Value>) -> Array<S>
where
    S: ?Sized + ReadableWritableStorageTraits + 'static,
{
    let stored = Array::open(store.clone(), "/array").unwrap();
    let slices = stored.shape()[0];
    array_of(&shards(codecs), store, "/array", slices, Options::default())
}

fn resuming<S>(store: &Arc<S>) -> ArrayWriterBuilder<S>
where
    S: ?Sized + ReadableWritableStorageTraits + 'static,
{
    builder(&opened(store)).with_start(Resume)
}

/// Stores the first slices.
fn store_first<S>(store: &Arc<S>, end: u64)
where
    S: ?Sized + ReadableWritableStorageTraits + 'static,
{
    let array = array_at(store, "/array", 0, Options::default());
    let mut writer = builder(&array).build().unwrap();
    writer.append(&slices(0..end)).unwrap();
    writer.finish().unwrap();
}

/// Sessions of some slices each store the same bytes as one.
#[test]
fn sessions_store_what_one_writer_stores() {
    const END: u64 = 4 * SHARD + 1;
    let zstd = codecs::zstd(1, true);
    for codecs in [
        vec![codecs::bytes("little")],
        vec![codecs::bytes("little"), zstd],
    ] {
        let one = Probe::new();
        let array = array_of(
            &shards(codecs.clone()),
            &one,
            "/array",
            0,
            Options::default(),
        );
        let mut writer = builder(&array).build().unwrap();
        writer.append(&slices(0..END)).unwrap();
        writer.finish().unwrap();
        for (session, renames) in [(1, false), (1, true), (3, false), (3, true), (5, true)] {
            let store = Probe::new();
            array_of(
                &shards(codecs.clone()),
                &store,
                "/array",
                0,
                Options::default(),
            );
            let mut end = 0;
            while end < END {
                let array = opened_with(&store, codecs.clone());
                let mut sessions = builder(&array).with_start(Start::Resume);
                if renames {
                    sessions = sessions.with_atomic_rename(store.clone());
                }
                let mut writer = sessions.build().unwrap();
                assert_eq!(writer.start(), end);
                let first = end;
                end = END.min(end + session);
                writer.append(&slices(first..end)).unwrap();
                let report = writer.finish().unwrap();
                assert_eq!((report.first_slice, report.finished_slices), (first, end));
                assert_eq!(report.raw_bytes, (end - first) * SLICE_BYTES);
                check(&store, end);
            }
            assert!(
                store.values() == one.values(),
                "sessions of {session}, renames: {renames}"
            );
        }
    }
}

/// Returns the changes of `store` from number `begin` on, each with what is stored after it.
fn states(store: &Probe, begin: usize) -> Vec<(Change, Arc<MemoryStore>)> {
    let changes = store.changes();
    let replayed = Probe::new();
    let mut states = Vec::new();
    for (number, change) in changes.into_iter().enumerate() {
        match &change {
            Change::Set(key, value) => replayed.set(key, value.clone()).unwrap(),
            Change::Write(key, parts) => {
                let parts = parts.clone().into_iter();
                replayed.set_partial_many(key, Box::new(parts)).unwrap();
            }
            Change::Erase(key) => replayed.erase(key).unwrap(),
            Change::Rename(from, to) => {
                let value = replayed.get(from).unwrap().unwrap();
                replayed.set(to, value).unwrap();
                replayed.erase(from).unwrap();
            }
        }
        if number >= begin {
            let memory = MemoryStore::new();
            for (key, value) in replayed.values() {
                memory.set(&StoreKey::new(key).unwrap(), value).unwrap();
            }
            states.push((change, Arc::new(memory)));
        }
    }
    states
}

/// After each change, a reader finds the slices that were stored before, and the length never shrinks.
#[test]
fn a_reader_finds_the_stored_slices_at_every_moment() {
    for renames in [false, true] {
        for begin in 1..=2 * SHARD {
            let store = Probe::new();
            store_first(&store, begin);
            let mut sessions = resuming(&store).with_metadata_interval(Duration::ZERO);
            let stored = store.changes().len();
            if renames {
                sessions = sessions.with_atomic_rename(store.clone());
            }
            let mut writer = sessions.build().unwrap();
            let end = begin + SHARD + 2;
            writer.append(&slices(begin..end)).unwrap();
            writer.finish().unwrap();
            check(&store, end);
            let mut length = begin;
            for (change, state) in states(&store, stored) {
                let array = Array::open(state.clone(), "/array").unwrap();
                assert!(array.shape()[0] >= length, "{change:?}");
                length = array.shape()[0];
                check(&state, length);
                let in_place = !renames || matches!(change, Change::Rename(..));
                assert!(in_place || is_temporary(change.key()), "{change:?}");
                // A shard is replaced by one change.
                assert!(renames || matches!(change, Change::Set(..)), "{change:?}");
            }
            assert_eq!(length, end);
        }
    }
}

/// A writer that gets no slice, or none that is stored, leaves everything as it was.
#[test]
fn without_a_slice_everything_stays() {
    for renames in [false, true] {
        for begin in [1, SHARD - 1, SHARD, SHARD + 3] {
            let store = Probe::new();
            store_first(&store, begin);
            let before = store.values();
            let build = || {
                let sessions = resuming(&store);
                let sessions = if renames {
                    sessions.with_atomic_rename(store.clone())
                } else {
                    sessions
                };
                sessions.build().unwrap()
            };
            let unchanged = |what| assert!(store.values() == before, "{what}, from {begin}");
            let mut writer = build();
            let progress = writer.progress();
            assert_eq!((progress.appended_bytes, progress.appended_slices), (0, 0));
            assert_eq!((progress.finished_slices, progress.at_risk), (begin, 0));
            assert_eq!((progress.waits, progress.covered_slices), (0, begin));
            writer.flush().unwrap();
            let report = writer.finish().unwrap();
            assert_eq!((report.first_slice, report.finished_slices), (begin, begin));
            assert_eq!((report.shards, report.raw_bytes), (0, 0));
            assert_eq!(report.elapsed, Duration::ZERO);
            assert_eq!(writer.finish().unwrap(), report);
            let error = writer.append(&slices(begin..begin + 1)).unwrap_err();
            assert!(
                matches!(error, WriterError::Finished { end } if end == begin),
                "{error}"
            );
            drop(writer);
            unchanged("finished");

            drop(build());
            unchanged("dropped");
            assert_eq!(build().abort().unwrap(), begin);
            unchanged("aborted");
            assert_eq!(build().stop(Duration::from_secs(10)).unwrap(), begin);
            unchanged("stopped");

            // Parts of slices, and slices that do not complete their shard.
            let mut writer = build();
            writer.append_bytes(&[7; 5]).unwrap();
            let error = writer.finish().unwrap_err();
            assert!(
                matches!(error, WriterError::IncompleteSlice { slice, got: 5, .. } if slice == begin),
                "{error}"
            );
            assert_eq!(writer.discard_partial_slice(), 5);
            writer.finish().unwrap();
            unchanged("a part of a slice");
            if !(begin + 1).is_multiple_of(SHARD) {
                let mut writer = build();
                writer.append(&slices(begin..begin + 1)).unwrap();
                assert_eq!(writer.progress().at_risk, 1);
                writer.flush().unwrap();
                drop(writer);
                unchanged("dropped with a slice");
                let mut writer = build();
                writer.append(&slices(begin..begin + 1)).unwrap();
                assert_eq!(writer.abort().unwrap(), begin);
                unchanged("aborted with a slice");
            }
        }
    }
}

#[test]
fn an_array_without_slices_begins_at_slice_0() {
    let store = Probe::new();
    array_at(&store, "/array", 0, Options::default());
    let mut writer = resuming(&store).build().unwrap();
    assert_eq!(writer.start(), 0);
    writer.append(&slices(0..3)).unwrap();
    assert_eq!(writer.finish().unwrap().shards, SHARDS);
    check(&store, 3);
}

/// A shard may have elements behind the end of the array: another program has cut the array.
#[test]
fn elements_behind_the_end_become_the_fill_value() {
    let store = Probe::new();
    store_first(&store, SHARD);
    array_at(&store, "/array", 1, Options::default());
    let mut writer = resuming(&store).build().unwrap();
    writer.append(&slices(1..2)).unwrap();
    writer.finish().unwrap();
    check(&store, 2);
    let array = array_at(&store, "/array", SHARD, Options::default());
    let behind = array.subset_all();
    let read = array.retrieve_array_subset::<Vec<u16>>(&behind).unwrap();
    assert_eq!(read[..2 * SLICE], slices(0..2));
    assert!(read[2 * SLICE..].iter().all(|element| *element == 0));
}

#[test]
fn what_cannot_be_resumed_is_refused() {
    let store = Probe::new();
    // The array was made with its final shape.
    let six = array_at(&store, "/array", 6, Options::default());
    let build = |array: &Array<Probe>| builder(array).with_start(Resume).build();
    let error = build(&six).unwrap_err().to_string();
    for words in [
        "with_start(0)",
        "with_start(4)",
        "none of them is stored",
        "slices 4 to 5",
    ] {
        assert!(error.contains(words), "{error}");
    }
    // The error of the default start names both ways.
    store_first(&store, 6);
    let error = builder(&opened(&store)).build().unwrap_err().to_string();
    assert!(
        error.contains("slice 4") && error.contains("with_start(Resume)"),
        "{error}"
    );
    // Another process has extended the array.
    let mut second = resuming(&store).build().unwrap();
    second.append(&slices(6..7)).unwrap();
    second.finish().unwrap();
    let error = build(&six).unwrap_err().to_string();
    assert!(error.contains("7 slices now"), "{error}");
    assert!(resuming(&store).memory_estimate().is_ok());
}

/// A last shard that cannot be read is an error with the slices, and stays as it is.
#[test]
fn a_damaged_shard_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(zarrs::filesystem::FilesystemStore::new(directory.path()).unwrap());
    store_first(&store, 6);
    let shard = directory.path().join("array/c/1/1/0");
    let mut bytes = std::fs::read(&shard).unwrap();
    let end = bytes.len();
    bytes[end - 20..].fill(0x55);
    std::fs::write(&shard, &bytes).unwrap();
    for _ in 0..2 {
        let sessions = resuming(&store).with_atomic_rename(store.clone());
        let error = sessions.build().unwrap_err();
        let WriterError::Read {
            path, first, last, ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!((path.as_str(), *first, *last), ("/array", 4, 5));
        assert_eq!(std::fs::read(&shard).unwrap(), bytes);
        let left = store.list().unwrap();
        assert!(
            left.iter().all(|key| !is_temporary(key.as_str())),
            "{left:?}"
        );
        assert!(!directory.path().join("array/.zarrs-cuda-writer").exists());
    }
}

/// A store that fails from any request on, in any way, loses no stored slice, and another writer goes on.
fn interrupted_anywhere<S>(
    new: impl Fn() -> Arc<Faulty<S>>,
    sessions: impl Fn(&Array<Faulty<S>>, &Arc<Faulty<S>>) -> ArrayWriterBuilder<Faulty<S>>,
    faults: &[Fault],
) where
    S: ReadableStorageTraits + 'static,
    Faulty<S>: ReadableWritableStorageTraits + 'static,
{
    const END: u64 = 2 * SHARD + 1;
    let go_on = |array: &Array<Faulty<S>>, store: &Arc<Faulty<S>>| {
        let begin = array.shape()[0];
        let sessions = sessions(array, store).with_metadata_interval(Duration::ZERO);
        let mut writer = sessions.build()?;
        assert_eq!(writer.start(), begin);
        writer.append(&slices(begin..END))?;
        writer.finish()
    };
    for begin in [1, 2, SHARD + 2] {
        for fault in faults {
            for number in 0.. {
                let (store, fault) = (new(), *fault);
                store_first(&store, begin);
                let array = opened(&store);
                store.fail(move |request| (request.number >= number).then_some(fault));
                let done = go_on(&array, &store);
                let is_over = store.requests().len() <= number;
                store.work();
                let stored = Array::open(store.inner().clone(), "/array").unwrap();
                let length = stored.shape()[0];
                assert!((begin..=END).contains(&length), "{length} of {done:?}");
                check(store.inner(), length);
                if length < END {
                    go_on(&opened(&store), &store).unwrap();
                }
                check(store.inner(), END);
                if is_over {
                    done.unwrap();
                    break;
                }
            }
        }
    }
}

#[test]
fn interrupted_where_shards_are_renamed() {
    let _watchdog = within(100, "interrupted sessions");
    interrupted_anywhere(
        || Arc::new(Faulty::new(Arc::new(RenamingStore::default()))),
        |array, store| {
            let sessions = builder(array).with_start(Resume);
            sessions.with_atomic_rename(store.clone())
        },
        &Fault::ALL,
    );
}

/// A store whose values appear as a whole.
#[test]
fn interrupted_where_shards_are_set() {
    let _watchdog = within(100, "interrupted sessions");
    interrupted_anywhere(
        || Arc::new(Faulty::new(Arc::new(MemoryStore::new()))),
        |array, _| ArrayWriter::builder(array).with_start(Resume),
        &[Fault::Refused, Fault::Denied],
    );
}

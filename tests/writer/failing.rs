//! A failing store: the writer returns the error and accepts no more data. It can be finished when
//! the store works again, and nothing is lost.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use zarrs::storage::StorageError;
use zarrs_cuda::writer::{ArrayWriter, WriterError};

use super::probe::{Change, Probe, is_temporary};
use super::simple::{SHARD, array, builder, check, slices};
use super::watchdog::{eventually, within};
use zarrs_cuda_testing::Rng;

fn broken() -> StorageError {
    StorageError::Other("the disk is full".to_owned())
}

/// Appends slices, starting at the first that is not appended yet, until an append fails.
fn append_until_refused(writer: &mut ArrayWriter, length: u64) -> (u64, WriterError) {
    for slice in writer.progress().appended_slices..length {
        if let Err(error) = writer.append(&slices(slice..slice + 1)) {
            return (slice, error);
        }
    }
    panic!("{length} slices were taken");
}

#[test]
fn a_failed_shard_is_told_and_tried_again() {
    let _watchdog = within(60, "a store that fails");
    for renamed in [false, true] {
        let store = Probe::new();
        let fails = Arc::new(AtomicBool::new(true));
        let failing = fails.clone();
        store.before_changes(move |change| {
            // The second shard along the first axis fails.
            let fails = change.key().contains("/c/1/0/") && failing.load(Ordering::SeqCst);
            if fails { Err(broken()) } else { Ok(()) }
        });
        let array = array(&store);
        let mut build = builder(&array).with_metadata_interval(Duration::ZERO);
        if renamed {
            build = build.with_atomic_rename(store.clone());
        }
        let mut writer = build.build().unwrap();
        // The first row is stored before the second row fails.
        writer.append(&slices(0..SHARD)).unwrap();
        writer.flush().unwrap();
        let (taken, error) = append_until_refused(&mut writer, 10_000);
        let WriterError::Store {
            key,
            finished_slices,
            ..
        } = &error
        else {
            panic!("{error:?}");
        };
        assert!(key.as_str().contains("c/1/0/0"), "{key}");
        assert_eq!(*finished_slices, SHARD);
        let text = error.to_string();
        assert!(text.contains("c/1/0/0") && text.contains('4'), "{text}");
        assert!(
            text.contains("disk is full") || error.source().is_some(),
            "{text}"
        );
        // A new reader sees the finished slices.
        eventually("covered", || {
            let array = zarrs::array::Array::open(store.clone(), "/array").unwrap();
            array.shape()[0] == SHARD
        });
        check(&store, SHARD);
        // The writer still refuses data, and accepted none of it.
        for _ in 0..2 {
            assert!(writer.append(&slices(taken..taken + 1)).is_err());
            assert!(writer.try_append(&slices(taken..taken + 1)).is_err());
        }
        assert_eq!(writer.progress().appended_slices, taken);
        assert!(writer.flush().is_err(), "it still fails");
        assert!(writer.finish().is_err(), "it still fails");
        assert_eq!(writer.progress().finished_slices, SHARD);

        fails.store(false, Ordering::SeqCst);
        let report = writer.finish().unwrap();
        assert_eq!(report.finished_slices, taken);
        check(&store, taken);
        let temporaries = store.values().into_keys().filter(|key| is_temporary(key));
        assert_eq!(temporaries.count(), 0);
    }
}

/// The writer accepts data again after a successful flush.
#[test]
fn appending_goes_on_after_a_flush_that_works() {
    let _watchdog = within(60, "a store that works again");
    let store = Probe::new();
    let fails = Arc::new(AtomicBool::new(true));
    let failing = fails.clone();
    store.before_changes(move |change| {
        let fails = change.is_shard() && failing.load(Ordering::SeqCst);
        if fails { Err(broken()) } else { Ok(()) }
    });
    let mut writer = builder(&array(&store)).build().unwrap();
    let (taken, _) = append_until_refused(&mut writer, 10_000);
    fails.store(false, Ordering::SeqCst);
    writer.flush().unwrap();
    writer.append(&slices(taken..taken + 9)).unwrap();
    assert_eq!(writer.finish().unwrap().finished_slices, taken + 9);
    check(&store, taken + 9);
}

#[test]
fn metadata_that_cannot_be_written_are_an_error() {
    let _watchdog = within(60, "metadata that fail");
    for renamed in [false, true] {
        let store = Probe::new();
        let fails = Arc::new(AtomicBool::new(false));
        let failing = fails.clone();
        store.before_changes(move |change| {
            let fails = change.key().contains("zarr.json") && failing.load(Ordering::SeqCst);
            if fails { Err(broken()) } else { Ok(()) }
        });
        let array = array(&store);
        let mut build = builder(&array).with_metadata_interval(Duration::from_hours(1));
        if renamed {
            build = build.with_atomic_rename(store.clone());
        }
        let mut writer = build.build().unwrap();
        writer.append(&slices(0..6)).unwrap();
        fails.store(true, Ordering::SeqCst);
        let error = writer.finish().unwrap_err();
        let WriterError::Store { key, .. } = &error else {
            panic!("{error:?}");
        };
        assert!(key.as_str().contains("zarr.json"), "{key}");
        fails.store(false, Ordering::SeqCst);
        writer.finish().unwrap();
        check(&store, 6);
    }
}

/// A store error is reported even if nothing is appended afterwards.
#[test]
fn an_error_is_told_at_the_end() {
    let store = Probe::new();
    store.before_changes(|change| {
        if change.is_shard() {
            Err(broken())
        } else {
            Ok(())
        }
    });
    let mut writer = builder(&array(&store)).build().unwrap();
    writer.append(&slices(0..4)).unwrap();
    assert!(matches!(writer.flush(), Err(WriterError::Store { .. })));
    assert!(matches!(writer.finish(), Err(WriterError::Store { .. })));
    check(&store, 0);
    assert_eq!(writer.abort().unwrap(), 0);
    check(&store, 0);
}

/// A store that panics causes an error, or a panic of the caller; nothing hangs.
#[test]
fn a_store_that_panics_does_not_hang_the_writer() {
    let _watchdog = within(30, "a store that panics");
    let store = Probe::new();
    store.before_changes(|change| {
        assert!(!change.is_shard(), "made to panic by the test");
        Ok(())
    });
    let array = array(&store);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut writer = builder(&array).build().unwrap();
        for slice in 0..3000 {
            writer.append(&slices(slice..slice + 1))?;
        }
        writer.finish().map(|_| ())
    }));
    assert!(!matches!(result, Ok(Ok(()))), "the shards cannot be stored");
    check(&store, 0);
}

proptest! {
    #![proptest_config(zarrs_cuda_testing::effort::config(30))]

    /// The store fails at random, and the writer is retried. The array is complete in the end, and
    /// its shape never exceeded the stored slices.
    #[test]
    fn a_store_that_fails_now_and_then(
        seed in any::<u64>(),
        one_in in 2..20_u64,
        renamed in any::<bool>(),
        store_threads in 1..=3_usize,
        length in 1..60_u64,
    ) {
        let _watchdog = within(100, "a store that fails now and then");
        let store = Probe::new();
        let array = array(&store);
        let rng = std::sync::Mutex::new(Rng(seed));
        let failures = Arc::new(AtomicUsize::new(0));
        let failed = failures.clone();
        store.before_changes(move |_| {
            if rng.lock().unwrap().one_in(one_in) {
                failed.fetch_add(1, Ordering::SeqCst);
                Err(broken())
            } else {
                Ok(())
            }
        });
        let mut builder = builder(&array)
            .with_store_threads(store_threads)
            .with_metadata_interval(Duration::ZERO);
        if renamed {
            builder = builder.with_atomic_rename(store.clone());
        }
        let mut writer = builder.build().unwrap();
        let mut slice = 0;
        let mut tries = 0;
        while slice < length {
            tries += 1;
            prop_assert!(tries < 10_000);
            let appended = writer.progress().appended_bytes;
            prop_assert_eq!(appended, slice * 96);
            match writer.append(&slices(slice..slice + 1)) {
                Ok(()) => slice += 1,
                Err(_) => while writer.flush().is_err() {},
            }
        }
        let report = loop {
            if let Ok(report) = writer.finish() {
                break report;
            }
        };
        prop_assert_eq!(report.finished_slices, length);
        check(&store, length);
        let mut covered = 0;
        for change in store.changes() {
            if let (Change::Set(_, value), true) = (&change, change.key().contains("zarr.json")) {
                let metadata: serde_json::Value = serde_json::from_slice(value).unwrap();
                covered = covered.max(metadata["shape"][0].as_u64().unwrap());
            }
        }
        prop_assert_eq!(covered, length);
        let temporaries = store.values().into_keys().filter(|key| is_temporary(key));
        prop_assert_eq!(temporaries.count(), 0);
    }
}

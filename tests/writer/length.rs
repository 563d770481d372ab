//! The shape of the array only grows to cover stored shards, as often as requested. Readers never
//! see incomplete shards.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use zarrs::storage::Bytes;
use zarrs_cuda::writer::Progress;

use super::probe::{Change, Probe, is_temporary};
use super::simple::{SHARD, SHARDS, SLICE, SLICE_BYTES, array, array_at, builder, check, slices};
use zarrs_cuda_testing::Rng;

fn length(metadata: &Bytes) -> u64 {
    let metadata: Value = serde_json::from_slice(metadata).unwrap();
    metadata["shape"][0].as_u64().unwrap()
}

/// Returns the lengths in the metadata, in order. Checks that at each of them all covered shards
/// are stored.
fn check_order(store: &Probe, renamed: bool) -> Vec<u64> {
    let mut lengths = Vec::new();
    let mut shards = BTreeSet::new();
    let mut temporaries = std::collections::BTreeMap::new();
    // The test itself made the first change.
    for change in &store.changes()[1..] {
        let key = change.key();
        match change {
            Change::Set(_, value) if key == "array/zarr.json" => {
                assert!(!renamed, "metadata that are written in place");
                lengths.push(length(value));
            }
            Change::Set(_, value) if key == "array/zarr.json.tmp" => {
                temporaries.insert(key.to_owned(), length(value));
            }
            Change::Rename(from, _) if key == "array/zarr.json" => {
                lengths.push(temporaries[from.as_str()]);
            }
            Change::Set(..) | Change::Write(..) if renamed => {
                assert!(is_temporary(key), "{change:?}");
                continue;
            }
            Change::Set(..) | Change::Rename(..) => {
                assert!(shards.insert(key.to_owned()), "{key} appears twice");
                continue;
            }
            Change::Erase(key) => {
                assert!(is_temporary(key.as_str()), "{change:?}");
                continue;
            }
            Change::Write(..) => panic!("{change:?} is seen before it is complete"),
        }
        let Some(&length) = lengths.last() else {
            continue;
        };
        for row in 0..length.div_ceil(SHARD) {
            for shard in 0..SHARDS {
                let key = format!("array/c/{row}/{shard}/0");
                assert!(shards.contains(&key), "{length} slices, but no {key}");
            }
        }
    }
    assert!(lengths.is_sorted(), "{lengths:?}");
    lengths
}

#[test]
fn the_shape_grows_only_past_shards_that_are_stored() {
    for (seed, renamed) in [(1, false), (2, true), (3, false), (4, true)] {
        let store = Probe::new();
        let array = array(&store);
        // Shards take random times.
        let rng = Mutex::new(Rng(seed));
        store.before_changes(move |change| {
            if change.is_shard() {
                let micros = rng.lock().unwrap().below(2500);
                std::thread::sleep(Duration::from_micros(micros));
            }
            Ok(())
        });
        let mut builder = builder(&array)
            .with_store_threads(4)
            .with_metadata_interval(Duration::ZERO);
        if renamed {
            builder = builder.with_atomic_rename(store.clone());
        }
        let mut writer = builder.build().unwrap();
        for first in (0..100).step_by(5) {
            writer.append(&slices(first..first + 5)).unwrap();
        }
        writer.append(&slices(100..101)).unwrap();
        writer.finish().unwrap();
        check(&store, 101);
        let lengths = check_order(&store, renamed);
        assert_eq!(*lengths.last().unwrap(), 101);
        // Shard epochs that finish while the metadata are written are covered by the next update.
        assert!(lengths.len() > 5, "{lengths:?}");
        assert!(
            lengths[..lengths.len() - 1]
                .iter()
                .all(|length| length % SHARD == 0)
        );
    }
}

/// The metadata are updated even if the store is always busy with shards, so that readers can
/// follow.
#[test]
fn the_shape_grows_while_the_store_is_behind() {
    let store = Probe::new();
    let array = array(&store);
    store.before_changes(|change| {
        if change.is_shard() {
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    });
    let mut writer = builder(&array)
        .with_metadata_interval(Duration::from_millis(20))
        .build()
        .unwrap();
    // 200 shards take at least 400 ms, one after the other.
    writer.append(&slices(0..400)).unwrap();
    writer.finish().unwrap();
    check(&store, 400);
    let lengths = check_order(&store, false);
    assert!(lengths.len() >= 4, "{lengths:?}");
}

#[test]
fn without_an_interval_every_shard_epoch_is_covered_at_once() {
    let store = Probe::new();
    let mut writer = builder(&array(&store))
        .with_metadata_interval(Duration::ZERO)
        .build()
        .unwrap();
    for first in (0..20).step_by(4) {
        writer.append(&slices(first..first + 4)).unwrap();
        super::watchdog::eventually("covered", || {
            check_order(&store, false).last() == Some(&(first + 4))
        });
    }
    writer.finish().unwrap();
    assert_eq!(check_order(&store, false), [4, 8, 12, 16, 20]);
}

#[test]
fn a_long_interval_leaves_the_metadata_alone_until_the_end() {
    let store = Probe::new();
    let mut writer = builder(&array(&store))
        .with_metadata_interval(Duration::from_hours(1))
        .build()
        .unwrap();
    writer.append(&slices(0..50)).unwrap();
    super::watchdog::eventually("stored", || writer.progress().finished_slices == 48);
    std::thread::sleep(Duration::from_millis(20));
    let lengths = check_order(&store, false);
    assert!(lengths.len() <= 1, "{lengths:?}");
    writer.finish().unwrap();
    check(&store, 50);
    assert_eq!(check_order(&store, false).last(), Some(&50));
}

#[test]
fn the_metadata_is_written_no_more_often_than_asked() {
    let store = Probe::new();
    let interval = Duration::from_millis(60);
    let mut writer = builder(&array(&store))
        .with_metadata_interval(interval)
        // A pause lets the metadata cover its shards at once.
        .with_flush_after(None)
        .build()
        .unwrap();
    let times = Arc::new(Mutex::new(Vec::new()));
    let noted = times.clone();
    store.before_changes(move |change| {
        if !change.is_shard() {
            noted.lock().unwrap().push(Instant::now());
        }
        Ok(())
    });
    for slice in 0..160 {
        writer.append(&slices(slice..slice + 1)).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let before_finish = times.lock().unwrap().clone();
    writer.finish().unwrap();
    assert!(before_finish.len() >= 3, "{}", before_finish.len());
    for pair in before_finish.windows(2) {
        let between = pair[1] - pair[0];
        assert!(between + Duration::from_millis(5) > interval, "{between:?}");
    }
    check_order(&store, false);
    check(&store, 160);
}

/// A writer that starts after the end leaves a gap, as soon as it has stored a shard.
#[test]
fn a_start_behind_the_end_leaves_a_hole() {
    let store = Probe::new();
    let empty = array(&store);
    builder(&empty)
        .with_start(8)
        .build()
        .unwrap()
        .abort()
        .unwrap();
    check(&store, 0);
    let mut writer = builder(&empty)
        .with_start(8)
        .with_metadata_interval(Duration::ZERO)
        .build()
        .unwrap();
    writer.append(&slices(8..9)).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    check(&store, 0);
    writer.append(&slices(9..13)).unwrap();
    writer.finish().unwrap();
    let array = zarrs::array::Array::open(store.clone(), "/array").unwrap();
    assert_eq!(array.shape()[0], 13);
    let read = array
        .retrieve_array_subset::<Vec<u16>>(&array.subset_all())
        .unwrap();
    assert_eq!(read[..8 * SLICE], [0; 8 * SLICE]);
    assert_eq!(read[8 * SLICE..], slices(8..13));
}

/// The remaining slices of a longer array stay, and its shape does not shrink.
#[test]
fn an_array_does_not_shrink() {
    let store = Probe::new();
    let mut writer = builder(&array(&store)).build().unwrap();
    writer.append(&slices(0..12)).unwrap();
    writer.finish().unwrap();
    let longer = array_at(&store, "/array", 12, zarrs_cuda::Options::default());
    let mut writer = builder(&longer).with_start(4).build().unwrap();
    writer.append(&slices(4..8)).unwrap();
    writer.finish().unwrap();
    check(&store, 12);
}

/// The metadata of an array are stored if they were not yet, with the current shape.
#[test]
fn metadata_that_were_never_stored() {
    let store = Probe::new();
    let array = array_at(&store, "/array", 12, zarrs_cuda::Options::default());
    zarrs::storage::WritableStorageTraits::erase(&*store, &"array/zarr.json".try_into().unwrap())
        .unwrap();
    let mut writer = builder(&array).with_start(0).build().unwrap();
    writer.append(&slices(0..4)).unwrap();
    writer.finish().unwrap();
    let array = zarrs::array::Array::open(store.clone(), "/array").unwrap();
    assert_eq!(array.shape()[0], 12);
    let read = array.retrieve_array_subset::<Vec<u16>>(&array.subset_all());
    assert_eq!(read.unwrap()[..4 * SLICE], slices(0..4));
}

/// Attributes and other members of the metadata stay.
#[test]
fn metadata_keeps_what_else_is_in_it() {
    let store = Probe::new();
    let mut array = array(&store);
    array
        .attributes_mut()
        .insert("microscope".to_owned(), Value::from("three"));
    array.store_metadata().unwrap();
    let before: Value = serde_json::from_slice(&store.values()["array/zarr.json"]).unwrap();
    let mut writer = builder(&array).build().unwrap();
    writer.append(&slices(0..3)).unwrap();
    writer.finish().unwrap();
    let mut after: Value = serde_json::from_slice(&store.values()["array/zarr.json"]).unwrap();
    assert_eq!(after["attributes"]["microscope"], "three");
    assert_eq!(after["shape"][0], 3);
    after["shape"] = before["shape"].clone();
    assert_eq!(after, before);
}

#[test]
fn progress_is_told_after_each_shard() {
    let store = Probe::new();
    let told: Arc<Mutex<Vec<Progress>>> = Arc::default();
    let noted = told.clone();
    let mut writer = builder(&array(&store))
        .with_store_threads(3)
        .with_progress_callback(move |progress| noted.lock().unwrap().push(*progress))
        .build()
        .unwrap();
    writer.append(&slices(0..42)).unwrap();
    // Only the fill value: no shard is stored, but this counts as progress.
    writer.append(&vec![0_u16; 6 * SLICE]).unwrap();
    writer.finish().unwrap();
    let told = told.lock().unwrap();
    assert!(told.len() as u64 >= 11 * SHARDS, "{}", told.len());
    for pair in told.windows(2) {
        let (one, next) = (&pair[0], &pair[1]);
        assert!(one.shards_stored + one.shards_empty <= next.shards_stored + next.shards_empty);
        assert!(one.finished_slices <= next.finished_slices);
        assert!(one.stored_bytes <= next.stored_bytes);
        assert!(one.appended_bytes <= next.appended_bytes);
        assert!(one.encoded_bytes <= next.encoded_bytes);
    }
    let last = told.last().unwrap();
    assert_eq!(last.shards_stored + last.shards_empty, 12 * SHARDS);
    assert_eq!(writer.progress().encoded_bytes, 2 * 48 * SLICE as u64);
    // Encoded bytes were appended before.
    for one in told.iter() {
        assert!(one.encoded_bytes <= one.appended_bytes, "{one:?}");
        assert_eq!(one.appended_slices, one.appended_bytes / SLICE_BYTES);
    }
}

//! Complete shards are stored while the input rests, and at the end of a writer that was not finished.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use zarrs::array::Array;
use zarrs::storage::{Bytes, StorageError};
use zarrs_cuda::Options;
use zarrs_cuda::writer::{
    ArrayWriter, ArrayWriterBuilder, Axis, MultiscaleBuilder, MultiscaleWriter, WriterError,
};

use super::probe::Probe;
use super::simple::{SHARD, SLICE, array, builder, check, shards, slices};
use zarrs_cuda_testing::{Rng, codecs, effort};

/// How long a complete shard waits in these tests.
const AFTER: Duration = Duration::from_millis(40);

/// A batch of several shard epochs, which no test fills.
const EPOCHS: usize = 40;

fn resting(array: &Array<Probe>) -> ArrayWriterBuilder<Probe> {
    let builder = builder(array).with_epochs_per_batch(EPOCHS);
    // Nothing but a pause stores or covers anything.
    builder
        .with_flush_after(AFTER)
        .with_metadata_interval(Duration::from_mins(10))
}

/// The slices that the metadata cover.
fn covered(store: &Arc<Probe>, path: &str) -> u64 {
    Array::open(store.clone(), path).unwrap().shape()[0]
}

#[track_caller]
fn wait_for(what: &str, mut happened: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !happened() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn stored_shards(store: &Probe) -> BTreeMap<String, Bytes> {
    let mut values = store.values();
    values.retain(|key, _| key.contains("/c/"));
    values
}

#[test]
fn complete_shards_are_stored_and_covered_while_the_input_rests() {
    for slices_appended in [SHARD, SHARD + 1, 3 * SHARD + 3] {
        let store = Probe::new();
        let mut writer = resting(&array(&store)).build().unwrap();
        writer.append(&slices(0..slices_appended)).unwrap();
        let complete = slices_appended / SHARD * SHARD;
        wait_for("a pause stores", || covered(&store, "/array") == complete);
        wait_for("it is told", || {
            writer.progress().at_risk == slices_appended - complete
        });
        check(&store, complete);
        // A process that is killed now leaves just that.
        std::mem::forget(writer);
    }
}

/// Lets the store refuse shards until the result is set. Returns how often it did, too.
fn refuse_shards(store: &Probe) -> (Arc<AtomicBool>, Arc<AtomicUsize>) {
    let is_well = Arc::new(AtomicBool::new(false));
    let refused = Arc::new(AtomicUsize::new(0));
    let (well, count) = (is_well.clone(), refused.clone());
    store.before_changes(move |change| {
        if well.load(Ordering::SeqCst) || !change.is_shard() {
            return Ok(());
        }
        count.fetch_add(1, Ordering::SeqCst);
        Err(StorageError::Other("the store is away".to_owned()))
    });
    (is_well, refused)
}

#[test]
fn a_pause_tries_again_what_the_store_has_refused() {
    let store = Probe::new();
    let mut writer = resting(&array(&store)).build().unwrap();
    let (is_well, refused) = refuse_shards(&store);
    writer.append(&slices(0..2 * SHARD + 1)).unwrap();
    wait_for("pauses try again", || refused.load(Ordering::SeqCst) > 3);
    // Calls return the error meanwhile.
    let next = slices(2 * SHARD + 1..2 * SHARD + 2);
    assert!(writer.flush().is_err());
    assert_eq!(covered(&store, "/array"), 0);
    is_well.store(true, Ordering::SeqCst);
    wait_for("a pause stores", || covered(&store, "/array") == 2 * SHARD);
    writer.append(&next).unwrap();
    writer.finish().unwrap();
    check(&store, 2 * SHARD + 2);
}

#[test]
fn a_pause_tries_again_for_all_levels() {
    let store = Probe::new();
    let shards = shards(vec![codecs::bytes("little")]);
    let array = super::simple::array_of(&shards, &store, "/image/0", 0, Options::default());
    let mut writer = levels(&array).build().unwrap();
    let (is_well, refused) = refuse_shards(&store);
    writer.append(&slices(0..3 * SHARD + 2)).unwrap();
    wait_for("pauses try again", || refused.load(Ordering::SeqCst) > 3);
    is_well.store(true, Ordering::SeqCst);
    for (level, slices) in [(0, 12), (1, 6), (2, 3)] {
        wait_for(&format!("level {level}"), || {
            covered(&store, &format!("/image/{level}")) == slices
        });
    }
    assert_eq!(writer.finish().unwrap()[0].finished_slices, 14);
}

#[test]
fn a_part_of_a_shard_is_never_stored() {
    let store = Probe::new();
    let mut writer = resting(&array(&store)).build().unwrap();
    let before = store.changes().len();
    for slice in 0..SHARD - 1 {
        writer.append(&slices(slice..slice + 1)).unwrap();
        std::thread::sleep(AFTER);
    }
    std::thread::sleep(3 * AFTER);
    assert_eq!(store.changes().len(), before);
    assert_eq!(writer.progress().at_risk, SHARD - 1);
}

#[test]
fn without_a_time_nothing_is_stored_in_a_pause() {
    let store = Probe::new();
    let mut writer = resting(&array(&store))
        .with_flush_after(None)
        .build()
        .unwrap();
    writer.append(&slices(0..SHARD)).unwrap();
    std::thread::sleep(4 * AFTER);
    assert_eq!(stored_shards(&store).len(), 0);
    assert_eq!(writer.finish().unwrap().finished_slices, SHARD);
}

/// Slices that come all the time, too slowly to fill a batch, do not keep complete shards back.
#[test]
fn a_slow_stream_that_never_rests_is_stored() {
    let store = Probe::new();
    let mut writer = resting(&array(&store)).build().unwrap();
    let begin = Instant::now();
    let mut slice = 0;
    while covered(&store, "/array") == 0 {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "nothing is stored"
        );
        // The batch is not full before.
        if slice < 70 {
            writer.append(&slices(slice..slice + 1)).unwrap();
            slice += 1;
        }
        std::thread::sleep(AFTER / 10);
    }
    assert!(slice < 70, "{slice} slices had to come");
    writer.finish().unwrap();
    check(&store, slice);
}

#[test]
fn two_writers_and_one_that_is_stuck_have_one_timer() {
    let (stuck, store) = (Probe::new(), Probe::new());
    let gate = stuck.gate_shards();
    let mut first = resting(&array(&stuck)).build().unwrap();
    let mut second = resting(&array(&store)).build().unwrap();
    first.append(&slices(0..3 * SHARD)).unwrap();
    std::thread::sleep(2 * AFTER);
    second.append(&slices(0..SHARD)).unwrap();
    wait_for("the other one stores", || {
        covered(&store, "/array") == SHARD
    });
    gate.open();
    assert_eq!(first.finish().unwrap().finished_slices, 3 * SHARD);
    assert_eq!(second.finish().unwrap().finished_slices, SHARD);
}

/// What is stored of a stream whose slices come in pieces with pauses, so that the timer finds any state.
fn stored_with(
    pauses: Option<u64>,
    image: bool,
    codecs: &[serde_json::Value],
) -> BTreeMap<String, Bytes> {
    let store = Probe::new();
    let end = 9 * SHARD + 3;
    let elements: Vec<u8> = slices(0..end)
        .iter()
        .flat_map(|e| e.to_ne_bytes())
        .collect();
    let mut random = Rng(pauses.unwrap_or(0));
    let after = pauses.map(|_| Duration::from_millis(1));
    let mut next = 0;
    let mut append = |append: &mut dyn FnMut(&[u8])| {
        while next < elements.len() {
            let len = 1 + usize::try_from(random.below(5 * 96)).unwrap();
            let till = elements.len().min(next + len);
            append(&elements[next..till]);
            next = till;
            if pauses.is_some() && random.below(3) == 0 {
                std::thread::sleep(Duration::from_micros(random.below(4000)));
            }
        }
    };
    let shards = shards(codecs.to_vec());
    if image {
        let array = super::simple::array_of(&shards, &store, "/image/0", 0, Options::default());
        let mut writer = levels(&array).with_flush_after(after).build().unwrap();
        append(&mut |bytes| writer.append_bytes(bytes).unwrap());
        writer.finish().unwrap();
    } else {
        let array = super::simple::array_of(&shards, &store, "/array", 0, Options::default());
        let mut writer = resting(&array).with_flush_after(after).build().unwrap();
        append(&mut |bytes| writer.append_bytes(bytes).unwrap());
        writer.finish().unwrap();
    }
    store.values()
}

fn levels(array: &Array<Probe>) -> MultiscaleBuilder<Probe> {
    MultiscaleWriter::builder(array)
        .with_axes([
            Axis::time("t").with_factor(2),
            Axis::space("y"),
            Axis::space("x"),
        ])
        .with_levels(3)
        .with_level_shapes(1, [1, 3, 4], [2, 3, 4])
        .with_level_shapes(2, [1, 2, 2], [3, 2, 2])
        .with_epochs_per_batch(EPOCHS)
        .with_flush_after(AFTER)
        .with_metadata_interval(Duration::from_mins(10))
}

/// All bytes of every shard and level, and all metadata.
#[test]
fn the_stored_bytes_are_the_same_with_and_without_pauses() {
    let zstd =
        serde_json::json!({ "name": "zstd", "configuration": { "level": 1, "checksum": false } });
    for codecs in [
        vec![codecs::bytes("little")],
        vec![codecs::bytes("little"), zstd],
    ] {
        for image in [false, true] {
            let expected = stored_with(None, image, &codecs);
            for round in 0..u64::from(effort::times(6)) {
                let seed = effort::seed() + round;
                let stored = stored_with(Some(seed), image, &codecs);
                assert!(stored == expected, "image: {image}, seed {seed}");
            }
        }
    }
}

#[test]
fn all_levels_of_an_image_are_stored_in_a_pause() {
    let store = Probe::new();
    let shards = shards(vec![codecs::bytes("little")]);
    let array = super::simple::array_of(&shards, &store, "/image/0", 0, Options::default());
    let mut writer = levels(&array).build().unwrap();
    writer.append(&slices(0..3 * SHARD + 2)).unwrap();
    // Level 1 has 7 slices in shards of 2, level 2 has 3 slices in shards of 3.
    for (level, slices) in [(0, 12), (1, 6), (2, 3)] {
        wait_for(&format!("level {level}"), || {
            covered(&store, &format!("/image/{level}")) == slices
        });
    }
    let at_risk: Vec<u64> = writer.progress().iter().map(|p| p.at_risk).collect();
    assert_eq!(at_risk, [2, 1, 0]);
    let reports = writer.finish().unwrap();
    assert_eq!(reports[0].finished_slices, 14);
}

/// A writer that ends early.
fn unfinished(store: &Arc<Probe>) -> ArrayWriter {
    let array = array(store);
    let builder = resting(&array).with_flush_after(None);
    let mut writer = builder
        .with_drop_limit(Duration::from_millis(300))
        .build()
        .unwrap();
    writer.append(&slices(0..2 * SHARD + 1)).unwrap();
    writer
        .append(&slices(2 * SHARD + 1..2 * SHARD + 2)[..SLICE / 2])
        .unwrap();
    writer
}

#[test]
fn what_ends_a_writer_stores_complete_shards() {
    let store = Probe::new();
    drop(unfinished(&store));
    check(&store, 2 * SHARD);

    let store = Probe::new();
    let stopped = unfinished(&store).stop(Duration::from_mins(1)).unwrap();
    assert_eq!(stopped, 2 * SHARD);
    check(&store, 2 * SHARD);

    let store = Probe::new();
    assert_eq!(unfinished(&store).abort().unwrap(), 0);
    assert_eq!(stored_shards(&store).len(), 0);

    let store = Probe::new();
    let writer = unfinished(&store);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _dropped = writer;
        panic!("the application");
    }));
    assert!(panicked.is_err());
    assert_eq!(stored_shards(&store).len(), 0);
}

#[test]
fn dropping_an_image_stores_all_levels() {
    let store = Probe::new();
    let shards = shards(vec![codecs::bytes("little")]);
    let array = super::simple::array_of(&shards, &store, "/image/0", 0, Options::default());
    let mut writer = levels(&array).with_flush_after(None).build().unwrap();
    writer.append(&slices(0..3 * SHARD + 2)).unwrap();
    drop(writer);
    for (level, slices) in [(0, 12), (1, 6), (2, 3)] {
        assert_eq!(covered(&store, &format!("/image/{level}")), slices);
    }
}

#[test]
fn dropping_survives_a_store_that_panics_or_fails() {
    for panics in [true, false] {
        let store = Probe::new();
        let writer = unfinished(&store);
        store.before_changes(move |_| {
            assert!(!panics, "the store panics");
            Err(StorageError::Other("the store fails".to_owned()))
        });
        drop(writer);
        assert_eq!(stored_shards(&store).len(), 0);
    }
}

/// A store that hangs is waited for no longer than the limit.
#[test]
fn dropping_waits_for_its_limit_at_most() {
    let store = Probe::new();
    let writer = unfinished(&store);
    let gate = store.gate_shards();
    let begin = Instant::now();
    drop(writer);
    let time = begin.elapsed();
    assert!(
        (Duration::from_millis(300)..Duration::from_secs(3)).contains(&time),
        "{time:?}"
    );
    gate.open();
}

#[test]
fn a_call_that_waits_can_be_interrupted_and_repeated() {
    let store = Probe::new();
    let asked = Arc::new(AtomicBool::new(false));
    let interrupts = asked.clone();
    let array = array(&store);
    let builder = resting(&array).with_interrupt(move || interrupts.load(Ordering::Relaxed));
    let mut writer = builder.build().unwrap();
    let gate = store.gate_shards();
    writer.append(&slices(0..2 * SHARD + 1)).unwrap();
    asked.store(true, Ordering::Relaxed);
    for call in [ArrayWriter::flush, |writer: &mut ArrayWriter| {
        writer.finish().map(drop)
    }] {
        let begin = Instant::now();
        let error = call(&mut writer).unwrap_err();
        assert!(matches!(error, WriterError::Cancelled), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(3));
    }
    // A second interrupt ends the end, too.
    asked.store(false, Ordering::Relaxed);
    gate.open();
    writer.finish().unwrap();
    check(&store, 2 * SHARD + 1);

    let store = Probe::new();
    let array = super::simple::array(&store);
    let builder = resting(&array).with_interrupt(|| true);
    let mut writer = builder.build().unwrap();
    let gate = store.gate_shards();
    writer.append(&slices(0..SHARD)).unwrap();
    let begin = Instant::now();
    writer.stop(Duration::from_mins(1)).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(3));
    gate.open();
}

/// The timer does not keep a store that its writer has given back.
#[test]
fn the_store_is_free_when_a_writer_has_ended() {
    for ends in [
        |writer: ArrayWriter| drop(writer),
        |mut writer: ArrayWriter| drop(writer.finish()),
        |writer: ArrayWriter| drop(writer.abort()),
    ] {
        let store = Probe::new();
        let array = array(&store);
        let mut writer = resting(&array)
            .with_flush_after(Duration::from_millis(1))
            .build()
            .unwrap();
        writer.append(&slices(0..SHARD)).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        ends(writer);
        drop(array);
        assert_eq!(Arc::strong_count(&store), 1);
    }
}

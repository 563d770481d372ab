//! The end of a writer: finished, aborted, or dropped.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span;
use zarrs::storage::Bytes;

use zarrs_cuda::writer::WriterError;

use super::probe::{Change, Probe};
use super::simple::{SHARD, SHARDS, SLICE, array, builder, check, slices};

#[test]
fn finishing_twice_is_finishing_once() {
    let store = Probe::new();
    let mut writer = builder(&array(&store)).build().unwrap();
    writer.append(&slices(0..7)).unwrap();
    let report = writer.finish().unwrap();
    let changes = store.changes().len();
    for _ in 0..2 {
        let again = writer.finish().unwrap();
        assert_eq!(again.finished_slices, 7);
        assert_eq!(again.shards, report.shards);
        assert_eq!(again.stored_bytes, report.stored_bytes);
        assert_eq!(again.encoding, report.encoding);
        assert_eq!(again.storing, report.storing);
    }
    writer.flush().unwrap();
    assert_eq!(store.changes().len(), changes, "nothing is stored again");
    check(&store, 7);
}

#[test]
fn the_report_counts_what_is_in_the_store() {
    let store = Probe::new();
    let mut writer = builder(&array(&store)).build().unwrap();
    // A shard epoch that holds only the fill value, between two others.
    writer.append(&slices(0..4)).unwrap();
    writer.append(&vec![0_u16; 4 * SLICE]).unwrap();
    writer.append(&slices(8..11)).unwrap();
    let report = writer.finish().unwrap();
    assert_eq!((report.shards, report.shards_empty), (2 * SHARDS, SHARDS));
    assert_eq!(report.raw_bytes, 2 * 11 * SLICE as u64);
    let mut values = store.values();
    values.remove("array/zarr.json").unwrap();
    assert_eq!(values.len() as u64, report.shards);
    let stored: usize = values.values().map(Bytes::len).sum();
    assert_eq!(report.stored_bytes, stored as u64);
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let ratio = report.raw_bytes as f64 / report.stored_bytes as f64;
    assert!((report.ratio() - ratio).abs() < 1e-9, "{}", report.ratio());
    assert_eq!(report.engine, "host");
    assert_eq!(writer.progress().finished_slices, 11);
    assert_eq!(writer.progress().stored_bytes, report.stored_bytes);
}

#[test]
fn nothing_at_all_can_be_finished() {
    let store = Probe::new();
    let mut writer = builder(&array(&store)).build().unwrap();
    let report = writer.finish().unwrap();
    assert_eq!((report.finished_slices, report.shards), (0, 0));
    assert!(report.ratio().is_finite());
    check(&store, 0);
    assert_eq!(store.values().len(), 1);
}

#[test]
fn what_comes_after_the_end_is_refused() {
    let store = Probe::new();
    let mut writer = builder(&array(&store)).build().unwrap();
    writer.append(&slices(0..5)).unwrap();
    writer.finish().unwrap();
    let more = slices(5..6);
    let bytes = [0_u8; 96];
    let errors = [
        writer.append(&more).unwrap_err(),
        writer.append_bytes(&bytes).unwrap_err(),
        writer.try_append(&more).unwrap_err(),
        writer.try_append_bytes(&bytes).unwrap_err(),
    ];
    for error in errors {
        assert!(error.to_string().contains("finished"), "{error}");
    }
    assert_eq!(writer.progress().appended_slices, 5);
    assert_eq!(writer.finish().unwrap().finished_slices, 5);
    check(&store, 5);
}

#[test]
fn half_a_slice_cannot_be_finished_but_completed() {
    let store = Probe::new();
    let mut writer = builder(&array(&store)).build().unwrap();
    let all = slices(0..6);
    let bytes: Vec<u8> = all
        .iter()
        .flat_map(|element| element.to_ne_bytes())
        .collect();
    // Five slices, ten elements, and a byte.
    let taken = 5 * 96 + 21;
    writer.append_bytes(&bytes[..taken]).unwrap();
    let error = writer.finish().unwrap_err().to_string();
    // The error names the bytes of the incomplete slice: 21 of 96.
    for number in ["21", "96"] {
        assert!(error.contains(number), "{error}");
    }
    // The failed call changed nothing.
    assert_eq!(writer.progress().appended_bytes, taken as u64);
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.contains("21"), "{error}");
    writer.append_bytes(&bytes[taken..]).unwrap();
    assert_eq!(writer.finish().unwrap().finished_slices, 6);
    check(&store, 6);
}

#[test]
fn elements_of_another_type_are_refused() {
    let store = Probe::new();
    let mut writer = builder(&array(&store)).build().unwrap();
    for error in [
        writer.append(&[1.0_f32; SLICE]).unwrap_err(),
        writer.append(&[1_i16; SLICE]).unwrap_err(),
        writer.try_append(&[1_u8; SLICE]).unwrap_err(),
        writer
            .append_ndarray(&ndarray::Array3::<i32>::zeros((1, 6, 8)).view())
            .unwrap_err(),
    ] {
        assert!(matches!(error, WriterError::Element(_)), "{error:?}");
    }
    assert_eq!(writer.progress().appended_bytes, 0);
    writer.append(&slices(0..3)).unwrap();
    writer.finish().unwrap();
    check(&store, 3);
}

#[test]
fn views_of_any_layout_are_appended_in_c_order() {
    let store = Probe::new();
    let mut writer = builder(&array(&store)).build().unwrap();
    let all = ndarray::Array3::from_shape_vec((9, 6, 8), slices(0..9)).unwrap();
    // Contiguous, transposed in memory, every other column of a wider array, and backwards.
    writer
        .append_ndarray(&all.slice(ndarray::s![0..3, .., ..]))
        .unwrap();
    let mut transposed = ndarray::Array3::zeros((8, 6, 2));
    transposed.assign(&all.slice(ndarray::s![3..5, .., ..]).reversed_axes());
    writer
        .append_ndarray(&transposed.view().reversed_axes())
        .unwrap();
    let mut wide = ndarray::Array3::zeros((2, 12, 8));
    wide.slice_mut(ndarray::s![.., ..;2, ..])
        .assign(&all.slice(ndarray::s![5..7, .., ..]));
    writer
        .append_ndarray(&wide.slice(ndarray::s![.., ..;2, ..]))
        .unwrap();
    let backwards = all.slice(ndarray::s![7..9;-1, .., ..]).to_owned();
    writer
        .append_ndarray(&backwards.slice(ndarray::s![..;-1, .., ..]))
        .unwrap();
    writer.finish().unwrap();
    check(&store, 9);
}

/// A subscriber that keeps warnings and errors.
#[derive(Clone, Debug, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                write!(self.0, "{}={value:?} ", field.name()).unwrap();
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The warnings of this thread while `f` runs.
fn warnings(f: impl FnOnce()) -> Vec<String> {
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), f);
    let warnings = warnings.0.lock().unwrap();
    warnings.clone()
}

#[test]
fn dropping_an_unfinished_writer_is_loud() {
    let store = Probe::new();
    let said = warnings(|| {
        let mut writer = builder(&array(&store)).build().unwrap();
        writer.append(&slices(0..4)).unwrap();
        writer.flush().unwrap();
        writer.append(&slices(4..6)).unwrap();
        writer.append(&slices(6..7)[..SLICE / 2]).unwrap();
    });
    let [warning] = &said[..] else {
        panic!("{said:?}")
    };
    // The array and the lost slices: from slice 4 on.
    assert!(warning.contains("/array"), "{warning}");
    for number in ['4', '6'] {
        assert!(warning.contains(number), "{warning}");
    }
    // Finished shards stay; nothing else appears.
    check(&store, SHARD);
    let keys: Vec<String> = store.values().into_keys().collect();
    assert_eq!(keys, ["array/c/0/0/0", "array/c/0/1/0", "array/zarr.json"]);
}

#[test]
fn dropping_a_finished_writer_or_aborting_one_is_not() {
    let store = Probe::new();
    let said = warnings(|| {
        let mut writer = builder(&array(&store)).build().unwrap();
        writer.append(&slices(0..5)).unwrap();
        writer.finish().unwrap();
        drop(writer);
        let mut writer = builder(&array(&store)).build().unwrap();
        writer.append(&slices(0..5)).unwrap();
        writer.flush().unwrap();
        assert_eq!(writer.abort().unwrap(), SHARD);
        // Nothing was appended, so nothing is lost.
        drop(builder(&array(&store)).build().unwrap());
    });
    assert_eq!(said, Vec::<String>::new());
}

/// Everything is stored: nothing is lost, and no loss is reported.
#[test]
fn dropping_a_writer_that_was_flushed_does_not_speak_of_losses() {
    let store = Probe::new();
    let said = warnings(|| {
        let mut writer = builder(&array(&store)).build().unwrap();
        writer.append(&slices(0..2 * SHARD)).unwrap();
        writer.flush().unwrap();
    });
    let lost = said.iter().filter(|warning| warning.contains("lost"));
    assert_eq!(lost.collect::<Vec<_>>(), Vec::<&String>::new());
    check(&store, 2 * SHARD);
}

#[test]
fn half_a_slice_can_be_discarded() {
    let store = Probe::new();
    let mut writer = builder(&array(&store)).build().unwrap();
    assert_eq!(writer.discard_partial_slice(), 0);
    let all = slices(0..9);
    writer.append(&all[..5 * SLICE + 7]).unwrap();
    assert_eq!(writer.discard_partial_slice(), 14);
    assert_eq!(writer.discard_partial_slice(), 0);
    assert_eq!(writer.progress().appended_slices, 5);
    assert_eq!(writer.progress().appended_bytes, 5 * 2 * SLICE as u64);
    writer.append(&all[5 * SLICE..8 * SLICE]).unwrap();
    writer.append(&all[3..SLICE - 1]).unwrap();
    assert!(writer.finish().is_err());
    writer.discard_partial_slice();
    let report = writer.finish().unwrap();
    assert_eq!(report.finished_slices, 8);
    assert_eq!(report.raw_bytes, 8 * 2 * SLICE as u64);
    check(&store, 8);
}

#[test]
fn aborting_leaves_only_what_was_finished() {
    for renamed in [false, true] {
        let store = Probe::new();
        let mut builder = builder(&array(&store));
        if renamed {
            builder = builder.with_atomic_rename(store.clone());
        }
        let mut writer = builder.build().unwrap();
        writer.append(&slices(0..5)).unwrap();
        writer.flush().unwrap();
        // A complete epoch, and a part of another one, in the next shard epoch.
        writer.append(&slices(5..7)).unwrap();
        writer.append(&slices(7..8)[..1]).unwrap();
        // Time for the writer's threads to write.
        std::thread::sleep(std::time::Duration::from_millis(50));
        let began = store.changes().iter().any(
            |change| matches!(change, Change::Write(key, _) | Change::Set(key, _) if key.as_str().contains("c/1/")),
        );
        assert_eq!(began, renamed, "shards grow where they can be renamed");
        assert_eq!(writer.abort().unwrap(), SHARD);
        check(&store, SHARD);
        let keys: Vec<String> = store.values().into_keys().collect();
        assert_eq!(
            keys,
            ["array/c/0/0/0", "array/c/0/1/0", "array/zarr.json"],
            "renamed: {renamed}"
        );
    }
}

#[test]
fn shards_that_are_empty_now_are_erased() {
    for renamed in [false, true] {
        let store = Probe::new();
        let write = |elements: &[u16]| {
            let array = array(&store);
            let mut builder = builder(&array).with_start(0);
            if renamed {
                builder = builder.with_atomic_rename(store.clone());
            }
            let mut writer = builder.build().unwrap();
            writer.append(elements).unwrap();
            writer.finish().unwrap()
        };
        assert_eq!(write(&slices(0..8)).shards, 4);
        // The second shard of the first shard epoch becomes empty, and so does the whole second
        // one.
        let mut elements = slices(0..8);
        for (number, element) in elements.iter_mut().enumerate() {
            if number >= 4 * SLICE || number % SLICE >= SLICE / 2 {
                *element = 0;
            }
        }
        let report = write(&elements);
        assert_eq!((report.shards, report.shards_empty), (1, 3));
        let keys: Vec<String> = store.values().into_keys().collect();
        assert_eq!(keys, ["array/c/0/0/0", "array/zarr.json"]);
        let array = zarrs::array::Array::open(store.clone(), "/array").unwrap();
        let read = array
            .retrieve_array_subset::<Vec<u16>>(&array.subset_all())
            .unwrap();
        assert_eq!(read, elements);
    }
}

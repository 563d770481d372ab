//! A slow store: `append` waits for it, `try_append` does not, and `flush` waits until everything
//! complete is stored.

use std::time::{Duration, Instant};

use super::probe::{Change, Probe};
use super::simple::{SHARD, SHARDS, SLICE, SLICE_BYTES, array, array_at, builder, check, slices};
use super::watchdog::{eventually, within};
use zarrs_cuda_testing::processes::on_its_own;

#[test]
fn try_append_never_waits_and_hands_back_what_it_did_not_take() {
    let _watchdog = within(60, "try_append");
    let store = Probe::new();
    let gate = store.gate_shards();
    let mut writer = builder(&array(&store)).build().unwrap();
    let _open = gate.open_at_the_end();
    let all = slices(0..4001);
    let mut rest = &all[..];
    let mut refusals = 0_u64;
    // Pieces that end within slices.
    while refusals < 10 {
        let piece = &rest[..rest.len().min(SLICE * 5 + 7)];
        let start = Instant::now();
        let left = writer.try_append(piece).unwrap();
        assert!(start.elapsed() < Duration::from_secs(5), "it waited");
        assert!(std::ptr::eq(
            left,
            &raw const piece[piece.len() - left.len()..]
        ));
        rest = &rest[piece.len() - left.len()..];
        let progress = writer.progress();
        assert_eq!(progress.appended_bytes, 2 * (all.len() - rest.len()) as u64);
        if left.is_empty() {
            refusals = 0;
        } else {
            // While the store stands still, no data are accepted. Encoding may still be under way
            // if other tests use the cores.
            refusals += 1;
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(
            !rest.is_empty(),
            "a store that takes nothing was given 4001 slices"
        );
    }
    assert!(writer.progress().refusals >= refusals);
    assert_eq!(writer.progress().waits, 0, "it does not wait");
    assert_eq!(
        writer.progress().waiting,
        Duration::ZERO,
        "it does not wait"
    );
    assert_eq!(writer.progress().finished_slices, 0);
    let taken = 2 * (all.len() - rest.len());
    assert!(
        taken <= writer.memory_estimate().host,
        "{taken} bytes are held"
    );
    let same = writer.try_append(rest).unwrap();
    assert_eq!(same.len(), rest.len());

    gate.open();
    while !rest.is_empty() {
        rest = writer.try_append(rest).unwrap();
        std::thread::sleep(Duration::from_micros(100));
    }
    let report = writer.finish().unwrap();
    assert_eq!(report.finished_slices, 4001);
    check(&store, 4001);
}

#[test]
fn bytes_can_be_tried_too() {
    let _watchdog = within(60, "try_append_bytes");
    let store = Probe::new();
    let gate = store.gate_shards();
    let mut writer = builder(&array(&store)).build().unwrap();
    let _open = gate.open_at_the_end();
    let all: Vec<u8> = slices(0..2000)
        .into_iter()
        .flat_map(u16::to_ne_bytes)
        .collect();
    let mut rest = &all[..];
    loop {
        let piece = &rest[..rest.len().min(333)];
        let left = writer.try_append_bytes(piece).unwrap();
        assert!(std::ptr::eq(
            left,
            &raw const piece[piece.len() - left.len()..]
        ));
        rest = &rest[piece.len() - left.len()..];
        if !left.is_empty() {
            break;
        }
    }
    gate.open();
    while !rest.is_empty() {
        rest = writer.try_append_bytes(rest).unwrap();
    }
    writer.finish().unwrap();
    check(&store, 2000);
}

#[test]
fn append_waits_for_the_store_and_says_so() {
    let _watchdog = within(60, "append");
    let before = zarrs_cuda::metrics();
    let store = Probe::new();
    let gate = store.gate_shards();
    let mut writer = builder(&array(&store)).build().unwrap();
    let opened = std::thread::spawn(move || {
        eventually("a shard", || gate.waiting() > 0);
        std::thread::sleep(Duration::from_millis(300));
        gate.open();
        Instant::now()
    });
    // More slices than a writer can hold; the shards have 192 bytes.
    writer.append(&slices(0..4000)).unwrap();
    assert!(
        opened.join().unwrap() <= Instant::now(),
        "append did not wait"
    );
    let progress = writer.progress();
    assert!(progress.waits > 0);
    assert!(
        progress.waiting > Duration::from_millis(200),
        "{:?}",
        progress.waiting
    );
    let report = writer.finish().unwrap();
    assert!(report.waiting >= progress.waiting);
    let after = zarrs_cuda::metrics();
    assert!(after.writer_waits >= before.writer_waits + progress.waits);
    assert!(after.writer_wait >= before.writer_wait + progress.waiting);
    check(&store, 4000);
}

#[test]
fn a_store_that_keeps_up_is_not_waited_for() {
    let store = Probe::new();
    let mut writer = builder(&array(&store)).build().unwrap();
    for slice in 0..8 {
        writer.append(&slices(slice..slice + 1)).unwrap();
        writer.flush().unwrap();
    }
    assert_eq!(writer.progress().waits, 0);
    writer.finish().unwrap();
    check(&store, 8);
}

#[test]
fn flush_returns_when_everything_complete_is_stored_and_covered() {
    let _watchdog = within(60, "flush");
    let store = Probe::new();
    let gate = store.gate_shards();
    // The metadata would not be updated without a flush.
    let mut writer = builder(&array(&store))
        .with_metadata_interval(Duration::from_hours(1))
        .build()
        .unwrap();
    let _open = gate.open_at_the_end();
    // One shard epoch and a half, and half a slice.
    let all = slices(0..8);
    let half = SLICE * 6 + SLICE / 2;
    writer.append(&all[..half]).unwrap();
    std::thread::scope(|scope| {
        let flushing = scope.spawn(|| writer.flush());
        eventually("a shard", || gate.waiting() > 0);
        std::thread::sleep(Duration::from_millis(50));
        assert!(!flushing.is_finished(), "nothing is stored yet");
        gate.admit(1);
        std::thread::sleep(Duration::from_millis(50));
        assert!(!flushing.is_finished(), "one shard is not stored yet");
        gate.open();
        flushing.join().unwrap().unwrap();
    });
    // One shard epoch is complete; nothing of the second one is visible.
    check(&store, SHARD);
    assert_eq!(store.values().len() as u64, 1 + SHARDS);
    let progress = writer.progress();
    assert_eq!(progress.finished_slices, SHARD);
    assert_eq!(progress.appended_slices, 6);
    assert_eq!(progress.appended_bytes, 6 * SLICE_BYTES + SLICE_BYTES / 2);
    assert_eq!(progress.shards_stored, SHARDS);

    // A flush does not affect later writes.
    let changes = store.changes().len();
    writer.flush().unwrap();
    assert_eq!(store.changes().len(), changes);
    writer.append(&all[half..]).unwrap();
    writer.flush().unwrap();
    check(&store, 2 * SHARD);
    writer.finish().unwrap();
    check(&store, 2 * SHARD);
}

/// Other writers of the process would take a part of the budget.
#[test]
fn a_small_budget_is_kept_and_gives_the_same_array() {
    let test = "a_small_budget_is_kept_and_gives_the_same_array";
    on_its_own(module_path!(), test, keep_a_small_budget);
}

fn keep_a_small_budget() {
    let _watchdog = within(60, "a small budget");
    let store = Probe::new();
    let generous = builder(&array(&store)).memory_estimate().unwrap();
    let mut budget = generous.host;
    // The smallest accepted budget.
    let mut smallest = None;
    while budget > 0 {
        let options = zarrs_cuda::Options::default().with_host_memory(budget);
        let array = array_at(&store, "/array", 0, options);
        let Ok(estimate) = zarrs_cuda::writer::ArrayWriter::builder(&array)
            .with_store_threads(1)
            .memory_estimate()
        else {
            break;
        };
        assert!(estimate.host <= budget, "{} of {budget}", estimate.host);
        smallest = Some(budget);
        budget = budget * 7 / 8;
    }
    let smallest = smallest.expect("the estimate itself fits");
    let options = zarrs_cuda::Options::default().with_host_memory(smallest);
    let array = array_at(&store, "/array", 0, options);
    let mut writer = zarrs_cuda::writer::ArrayWriter::builder(&array)
        .with_store_threads(1)
        .build()
        .unwrap();
    writer.append(&slices(0..101)).unwrap();
    writer.finish().unwrap();
    check(&store, 101);
}

/// A batch that spans several shard epochs does not delay the complete ones.
#[test]
fn flush_stores_what_is_complete_in_a_batch_that_is_not_full() {
    let store = Probe::new();
    let mut writer = zarrs_cuda::writer::ArrayWriter::builder(&array(&store))
        .with_epochs_per_batch(8)
        .build()
        .unwrap();
    writer.append(&slices(0..6)).unwrap();
    writer.flush().unwrap();
    check(&store, SHARD);
    writer.append(&slices(6..21)).unwrap();
    writer.flush().unwrap();
    check(&store, 5 * SHARD);
    writer.append(&slices(21..30)).unwrap();
    assert_eq!(writer.finish().unwrap().finished_slices, 30);
    check(&store, 30);
}

/// Not even for the rest of an element that was split.
#[test]
fn try_append_does_not_wait_in_the_middle_of_an_element() {
    let _watchdog = within(60, "try_append");
    let store = Probe::new();
    let gate = store.gate_shards();
    let mut writer = builder(&array(&store)).build().unwrap();
    let _open = gate.open_at_the_end();
    writer.append_bytes(&[1]).unwrap();
    let opening = gate.clone();
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = done.clone();
    let opener = std::thread::spawn(move || {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            if seen.load(std::sync::atomic::Ordering::SeqCst) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        opening.open();
        false
    });
    // `try_append` may accept nothing, but it does not wait.
    let all = slices(0..400);
    let mut rest = &all[..];
    for _ in 0..400 {
        let Ok(left) = writer.try_append(&rest[..SLICE.min(rest.len())]) else {
            break;
        };
        if !left.is_empty() {
            break;
        }
        rest = &rest[SLICE..];
    }
    done.store(true, std::sync::atomic::Ordering::SeqCst);
    assert!(opener.join().unwrap(), "it waited for the store");
    gate.open();
    writer.abort().unwrap();
}

/// Stores charge by the call: waiting pieces of a shard are written together.
#[test]
fn pieces_that_waited_are_written_together() {
    let _watchdog = within(60, "pieces that wait");
    let store = Probe::new();
    let gate = store.gate_shards();
    let mut writer = builder(&array(&store))
        .with_atomic_rename(store.clone())
        .build()
        .unwrap();
    let _open = gate.open_at_the_end();
    // Two epochs of two shards. The first piece of one shard waits at the gate.
    writer.append(&slices(0..SHARD)).unwrap();
    eventually("encoded", || {
        writer.progress().encoded_bytes == SHARD * SLICE_BYTES && gate.waiting() > 0
    });
    gate.open();
    writer.finish().unwrap();
    check(&store, SHARD);
    for shard in 0..SHARDS {
        let temporary = format!("array/c/0/{shard}/0.tmp");
        let of_shard = |change: &&Change| {
            matches!(change, Change::Write(..) | Change::Set(..)) && change.key() == temporary
        };
        let calls = store.changes().iter().filter(of_shard).count();
        assert!(calls <= 2, "{calls} calls for {temporary}");
    }
}

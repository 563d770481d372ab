//! Several writers at the same time, and writers inside of rayon's pools.

use std::sync::Arc;
use std::time::Duration;

use zarrs::storage::store::MemoryStore;
use zarrs_cuda::Options;
use zarrs_cuda::writer::{ArrayWriter, Progress};

use super::probe::Probe;
use super::simple::{array_at, array_of, check_at, shards, slices};
use super::watchdog::{eventually, within};
use zarrs_cuda_testing::codecs;
use zarrs_cuda_testing::processes::on_its_own;

/// Writes this many slices to the array at `path`, in pieces.
fn write(store: &Arc<MemoryStore>, path: &str, length: u64, chain: Option<&str>) {
    let array = match chain {
        None => array_at(store, path, 0, Options::default()),
        Some(chain) => {
            let codec = match chain {
                "zstd" => codecs::zstd(1, false),
                "unknown" => codecs::xor(),
                other => panic!("no chain {other}"),
            };
            let shards = shards(vec![codecs::bytes("little"), codec]);
            array_of(&shards, store, path, 0, Options::default())
        }
    };
    let mut writer = ArrayWriter::builder(&array).build().unwrap();
    for first in (0..length).step_by(7) {
        let end = length.min(first + 7);
        writer.append(&slices(first..end)).unwrap();
    }
    writer.finish().unwrap();
    check_at(store, path, length);
}

#[test]
fn several_writers_at_once() {
    let _watchdog = within(60, "several writers");
    let store = Arc::new(MemoryStore::new());
    std::thread::scope(|scope| {
        for number in 0..6 {
            let store = &store;
            scope.spawn(move || {
                let chain = [None, Some("zstd"), Some("unknown")][number % 3];
                write(store, &format!("/array{number}"), 150, chain);
            });
        }
    });
}

/// The only thread of the pool waits in `append`, so the writers must not need the pool.
#[test]
fn a_pool_of_one_thread_is_enough() {
    let _watchdog = within(60, "writers in a pool of one thread");
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build()
        .unwrap();
    let store = Arc::new(MemoryStore::new());
    pool.scope(|scope| {
        for number in 0..6 {
            let store = &store;
            scope.spawn(move |_| {
                let chain = [None, Some("zstd"), Some("unknown")][number % 3];
                write(store, &format!("/array{number}"), 60, chain);
            });
        }
    });
}

/// The same in the global pool: all of its threads write.
#[test]
fn all_threads_of_the_global_pool_write() {
    let _watchdog = within(60, "writers on all of rayon's threads");
    let store = Arc::new(MemoryStore::new());
    rayon::scope(|scope| {
        for number in 0..4 * rayon::current_num_threads() {
            let store = &store;
            scope.spawn(move |_| {
                let chain = [None, Some("zstd"), Some("unknown")][number % 3];
                write(store, &format!("/array{number}"), 40, chain);
            });
        }
    });
}

/// A writer that waits for its store does not occupy threads that another writer needs for
/// encoding.
#[test]
fn stores_that_stand_still_stop_nobody_else() {
    let _watchdog = within(60, "a writer beside others whose stores stand still");
    let still = Probe::new();
    let gate = still.gate_shards();
    let shards = shards(vec![codecs::bytes("little"), codecs::zstd(1, false)]);
    let all = slices(0..400);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let mut writers = Vec::new();
    let _open = gate.open_at_the_end();
    for number in 0..=threads {
        let path = format!("/array{number}");
        let array = array_of(&shards, &still, &path, 0, Options::default());
        // Batches of whole shards.
        let builder = ArrayWriter::builder(&array).with_epochs_per_batch(2);
        let mut writer = builder.build().unwrap();
        let mut rest = &all[..];
        // The buffers hold the shards of three batches, two each. Another batch waits for a buffer.
        let is_full = |now: Progress| now.batches_encoding > 0 && now.shards_waiting == 6;
        while !is_full(writer.progress()) {
            rest = writer.try_append(rest).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!rest.is_empty());
        writers.push(writer);
    }
    write(&Arc::new(MemoryStore::new()), "/array", 60, Some("zstd"));
}

/// More stores hang than there are threads that store, and another writer goes on.
#[test]
fn stores_that_hang_on_all_threads_stop_nobody_else() {
    let test = "stores_that_hang_on_all_threads_stop_nobody_else";
    on_its_own(module_path!(), test, hang_on_all_threads);
}

fn hang_on_all_threads() {
    /// Each hangs on as many threads as its buffers hold shards.
    const WRITERS: usize = 16;
    const SHARDS: usize = 6;
    let _watchdog = within(60, "a writer beside many whose stores hang");
    let still = Probe::new();
    let gate = still.gate_shards();
    let shards = shards(vec![codecs::bytes("little"), codecs::zstd(1, false)]);
    let all = slices(0..400);
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| {
            let path = format!("/array{number}");
            let array = array_of(&shards, &still, &path, 0, Options::default());
            let builder = ArrayWriter::builder(&array).with_epochs_per_batch(2);
            let mut writer = builder.with_store_threads(SHARDS).build().unwrap();
            let mut rest = &all[..];
            while writer.progress().shards_waiting < SHARDS {
                rest = writer.try_append(rest).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
            writer
        })
        .collect();
    let _open = gate.open_at_the_end();
    write(&Arc::new(MemoryStore::new()), "/array", 60, Some("zstd"));
    // All of them hang, and none has a thread more than it may have.
    eventually("all hang", || gate.waiting() == WRITERS * SHARDS);
    for writer in &writers {
        assert_eq!(writer.progress().shards_waiting, SHARDS);
    }
}

/// One storing thread stores one shard at a time.
#[test]
fn no_more_stores_at_once_than_a_writer_may_have() {
    let _watchdog = within(60, "stores at once");
    for threads in [1, 3] {
        let store = Probe::new();
        let gate = store.gate_shards();
        let shards = shards(vec![codecs::bytes("little"), codecs::zstd(1, false)]);
        let array = array_of(&shards, &store, "/array", 0, Options::default());
        let builder = ArrayWriter::builder(&array).with_epochs_per_batch(2);
        let mut writer = builder.with_store_threads(threads).build().unwrap();
        let _open = gate.open_at_the_end();
        let all = slices(0..400);
        let mut rest = &all[..];
        while writer.progress().shards_waiting < 6 {
            rest = writer.try_append(rest).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        eventually("all threads store", || gate.waiting() == threads);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(gate.waiting(), threads);
    }
}

/// A callback may use rayon, and zarrs.
#[test]
fn a_callback_may_use_rayon() {
    use rayon::prelude::*;
    let _watchdog = within(60, "a callback with rayon");
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build()
        .unwrap();
    let store = Arc::new(MemoryStore::new());
    pool.install(|| {
        let array = array_at(&store, "/array", 0, Options::default());
        let mut writer = ArrayWriter::builder(&array)
            .with_progress_callback(|progress| {
                let sum: u64 = (0..100_u64).into_par_iter().sum();
                assert!(sum == 4950 && progress.shards_stored > 0);
            })
            .build()
            .unwrap();
        writer.append(&slices(0..40)).unwrap();
        writer.finish().unwrap();
    });
    check_at(&store, "/array", 40);
}

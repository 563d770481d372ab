//! Writers beside each other, and inside of rayon's pools.

use std::sync::Arc;

use zarrs::storage::store::MemoryStore;
use zarrs_cuda::Options;
use zarrs_cuda::writer::ArrayWriter;

use crate::common::{codecs, xor};
use crate::simple::{array_at, array_of, check_at, shards, slices};
use crate::watchdog::within;

/// Write so many slices to the array at `path`, in pieces.
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
    xor::register();
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

/// Every thread of the pool waits in `append`: nothing that the writers need may run there.
#[test]
fn a_pool_of_one_thread_is_enough() {
    let _watchdog = within(60, "writers in a pool of one thread");
    xor::register();
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

/// The same in the pool of all, whose threads all write.
#[test]
fn all_threads_of_the_global_pool_write() {
    let _watchdog = within(60, "writers on all of rayon's threads");
    xor::register();
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
            .on_progress(|progress| {
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

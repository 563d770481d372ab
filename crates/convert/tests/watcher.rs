//! Runs that are watched, stopped by their watcher, and gone on with.

#![allow(clippy::unwrap_used, reason = "a test's way to fail")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda_convert::{Event, Failure, FailureKind, Layout, Reencode, Report, Reshard, Watcher};

/// Stops a run when so many units are done.
struct Stops {
    at: u64,
    done: AtomicU64,
    total: AtomicU64,
    /// Steps that have begun and not ended.
    open: AtomicI64,
}

impl Stops {
    fn at(at: u64) -> Self {
        Self {
            at,
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
            open: AtomicI64::new(0),
        }
    }
}

impl Watcher for Stops {
    fn hear(&self, event: Event<'_>) {
        match event {
            Event::Begin { total, .. } => {
                self.total.store(total, Ordering::Relaxed);
                self.open.fetch_add(1, Ordering::Relaxed);
            }
            Event::Advance(units) => _ = self.done.fetch_add(units, Ordering::Relaxed),
            Event::End => _ = self.open.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
    }

    fn is_stopping(&self) -> bool {
        self.done.load(Ordering::Relaxed) >= self.at
    }
}

fn elements() -> Vec<u16> {
    (0..64 * 64).collect()
}

/// An array of 16 chunks.
fn made(path: &Path) {
    let store = Arc::new(FilesystemStore::new(path).unwrap());
    let array = ArrayBuilder::new(vec![64, 64], vec![16, 16], data_type::uint16(), 0_u16)
        .build(store, "/")
        .unwrap();
    array.store_metadata().unwrap();
    array
        .store_array_subset(&array.subset_all(), elements())
        .unwrap();
}

/// Runs until the watcher stops the run, then again to the end. Returns the work of the first run.
fn stopped_and_gone_on_with<T>(
    output: &Path,
    at: u64,
    run: impl Fn(&dyn Watcher) -> Result<T, Failure>,
) -> (Stops, T) {
    // Nothing is written by a run that is stopped before its first step.
    let failure = run(&Stops::at(0)).err().unwrap();
    assert_eq!(failure.kind(), FailureKind::Interrupted);
    assert!(!output.exists());

    let stops = Stops::at(at);
    let failure = run(&stops).err().unwrap();
    assert_eq!(failure.kind(), FailureKind::Interrupted, "{failure:?}");
    assert!(failure.remedy().is_some());
    assert_eq!(stops.open.load(Ordering::Relaxed), 0);
    assert!(output.exists() && !output.join("zarr.json").exists());

    let all = Stops::at(u64::MAX);
    let report = run(&all).unwrap();
    assert_eq!(all.open.load(Ordering::Relaxed), 0);
    let [done, total] = [&all.done, &all.total].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(done, total);
    let array = Array::open(Arc::new(FilesystemStore::new(output).unwrap()), "/").unwrap();
    let read: Vec<u16> = array.retrieve_array_subset(&array.subset_all()).unwrap();
    assert_eq!(read, elements());
    (stops, report)
}

/// One run of `Reencode` at a time has a registration, so this file has one test.
#[test]
fn runs_are_stopped_and_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let [input, encoded, moved] = ["in", "encoded", "moved"].map(|name| folder.path().join(name));
    made(&input);

    let mut reencode = Reencode::new(input.clone(), encoded.clone());
    reencode.shapes.shard = Some(vec![32.try_into().unwrap(); 2]);
    reencode.shapes.subchunk = Some(vec![16.try_into().unwrap(); 2]);
    reencode.threads = 1; // one shard at once
    // A shard of 32 × 32 elements of 2 bytes.
    let (stops, report) = stopped_and_gone_on_with(&encoded, 2 * 32 * 32, |watcher| {
        let mut reencode = reencode.clone();
        reencode.resume = encoded.exists();
        reencode.run(watcher)
    });
    assert_eq!(stops.done.into_inner(), 2 * 32 * 32);
    let Report::Array(report) = report else {
        panic!("an array became a group");
    };
    // The shard that the first run stored was not decoded again.
    assert_eq!(report.copied.unwrap().bytes_decoded, 3 * 2 * 32 * 32);

    let mut reshard = Reshard::new(encoded, moved.clone());
    reshard.layout = Some(Layout::Chunks);
    reshard.threads = 1;
    let (_, report) = stopped_and_gone_on_with(&moved, 1, |watcher| reshard.run(watcher));
    assert_eq!((report.stored, report.written + report.kept), (4, 16));
    assert!(report.kept > 0 && report.written > 0, "{report:?}");
}

//! Too few file descriptors: each call is right or an error, and no acknowledged write is lost.

use std::fs::File;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::array::{SHARDS, SUBCHUNKS, create, open, packed, read, subchunks, write};
use super::process::{descriptors, folder, limit, run, run_with};

const ALL: u64 = SHARDS * SUBCHUNKS;

/// Opens files until no descriptor is left.
fn hoard() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[test]
#[ignore = "a process of another test"]
fn without_descriptors() {
    let Some(folder) = folder() else { return };
    create(&folder);
    let adapter = open(&folder);
    let array = subchunks(&adapter);
    for subchunk in 0..ALL {
        write(&array, subchunk, 1).unwrap();
    }
    limit(libc::RLIMIT_NOFILE, descriptors());
    let hoarded = hoard();
    let told = [
        write(&array, 3, 2).err(),
        read(&array, 3).err(),
        array.erase_chunk(&[4]).err().map(|error| error.to_string()),
        adapter.pending().err().map(|error| error.to_string()),
        adapter
            .consolidate(&[0])
            .err()
            .map(|error| error.to_string()),
        adapter
            .consolidate_all(&|_| {})
            .err()
            .map(|error| error.to_string()),
    ];
    drop(hoarded);
    for (call, error) in told.into_iter().enumerate() {
        assert!(
            error
                .as_ref()
                .is_some_and(|error| error.contains("os error 24")),
            "{call}: {error:?}"
        );
    }
    let done = adapter.consolidate_all(&|_| {}).unwrap();
    assert_eq!((done.done as u64, done.sum.subchunks as u64), (SHARDS, ALL));
    assert_eq!(packed(&folder), vec![1; ALL as usize]);
}

/// For one subchunk: the last acknowledged value, and the last value that was tried.
type Value = Mutex<(u32, u32)>;

#[derive(Default)]
struct Counts {
    right: AtomicUsize,
    refused: AtomicUsize,
    stale: AtomicUsize,
    lost: AtomicUsize,
}

impl Counts {
    fn add(count: &AtomicUsize) {
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until a call has succeeded: on a busy machine, none may have yet.
    fn wait_for_one(&self) {
        let end = Instant::now() + Duration::from_secs(30);
        while self.right.load(Ordering::Relaxed) == 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
#[ignore = "a process of another test"]
fn with_few_descriptors() {
    const WRITERS: u64 = 3;
    let Some(folder) = folder() else { return };
    create(&folder);
    let adapters: Vec<_> = (0..=WRITERS).map(|_| open(&folder)).collect();
    let values: Vec<Value> = (0..ALL).map(|_| Value::default()).collect();
    let (writes, reads) = (Counts::default(), Counts::default());
    let consolidations = Counts::default();
    let [over, hoards] = [false, true].map(AtomicBool::new);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let (values, writes, reads, over) = (&values, &writes, &reads, &over);
        let mut working = Vec::new();
        for (writer, adapter) in (0..WRITERS).zip(&adapters) {
            let array = subchunks(adapter);
            working.push(scope.spawn(move || {
                for round in 1..400_u32 {
                    for subchunk in (writer..ALL).step_by(WRITERS as usize) {
                        let mut value = values[subchunk as usize].lock().unwrap();
                        value.1 = round;
                        match write(&array, subchunk, round) {
                            Ok(()) => {
                                value.0 = round;
                                Counts::add(&writes.right);
                            }
                            Err(_) => Counts::add(&writes.refused),
                        }
                        match read(&array, subchunk) {
                            Ok(read) if (value.0..=value.1).contains(&read) => {
                                Counts::add(&reads.right);
                            }
                            Ok(_) => Counts::add(&reads.stale),
                            Err(_) => Counts::add(&reads.refused),
                        }
                    }
                    if begin.elapsed() > Duration::from_secs(4) {
                        break;
                    }
                }
            }));
        }
        limit(libc::RLIMIT_NOFILE, descriptors());
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let done = adapters[WRITERS as usize].consolidate_all(&|_| {});
                Counts::add(if done.is_ok() {
                    &consolidations.right
                } else {
                    &consolidations.refused
                });
            }
        });
        scope.spawn(|| {
            let mut round = 0;
            while hoards.load(Ordering::Relaxed) {
                let hoarded = hoard();
                round += 1;
                std::thread::sleep(Duration::from_micros(10 * (round % 30)));
                drop(hoarded);
                std::thread::sleep(Duration::from_micros(40 * (round % 30)));
            }
        });
        for working in working {
            working.join().unwrap();
        }
        hoards.store(false, Ordering::Relaxed);
        consolidations.wait_for_one();
        over.store(true, Ordering::Relaxed);
    });
    // Another process reads and packs each subchunk.
    let array = subchunks(&open(&folder));
    let is_right = |read: u32, subchunk: u64| {
        let (least, most) = *values[subchunk as usize].lock().unwrap();
        (least..=most).contains(&read)
    };
    let is_lost = |subchunk: &u64| !is_right(read(&array, *subchunk).unwrap(), *subchunk);
    let lost = (0..ALL).filter(is_lost).count();
    writes.lost.store(lost, Ordering::Relaxed);
    let in_frames: Vec<_> = (0..ALL)
        .map(|subchunk| read(&array, subchunk).unwrap())
        .collect();
    adapters[0].consolidate_all(&|_| {}).unwrap();
    let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    for (what, counts) in [
        ("writes", &writes),
        ("reads", &reads),
        ("consolidations", &consolidations),
    ] {
        println!(
            "{what}: {} right, {} refused, {} stale, {} subchunks lost",
            count(&counts.right),
            count(&counts.refused),
            count(&counts.stale),
            count(&counts.lost)
        );
    }
    assert_eq!((count(&reads.stale), count(&writes.lost)), (0, 0));
    assert_eq!(packed(&folder), in_frames);
    // Descriptors were scarce: some calls were refused, and some succeeded.
    for counts in [&writes, &reads, &consolidations] {
        assert!(count(&counts.right) > 0 && count(&counts.refused) > 0);
    }
}

#[test]
fn errors_where_nothing_can_be_opened() {
    run(
        module_path!(),
        "without_descriptors",
        tempfile::tempdir().unwrap().path(),
    );
}

#[test]
fn nothing_is_lost_with_few_descriptors() {
    for descriptors in [32, 48, 64] {
        let folder = tempfile::tempdir().unwrap();
        run_with(
            module_path!(),
            "with_few_descriptors",
            folder.path(),
            descriptors,
        );
    }
}

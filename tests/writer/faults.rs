//! Failing stores: a writer returns the error, readers see nothing wrong, and in the end everything
//! is stored.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use zarrs::array::Array;
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{
    ListableStorageTraits, ReadableStorageTraits, StorePrefix, WritableStorageTraits,
};
use zarrs_cuda::writer::{ArrayWriter, WriterError};
use zarrs_cuda_testing::Rng;
use zarrs_cuda_testing::frames::{Frames, Generations, PATH, snapshot, temporaries};
use zarrs_cuda_testing::stores::faulty::{Fault, Faulty, Operation, Request};
use zarrs_cuda_testing::stores::renaming::RenamingStore;

/// A store for shards, and the way of writing to it.
trait Subject: ReadableStorageTraits + WritableStorageTraits + ListableStorageTraits + Sized {
    /// Whether values appear complete, by renaming.
    const RENAMES: bool;

    fn writer(array: &Array<Faulty<Self>>, epochs: usize, threads: usize) -> Writer;
}

type Writer = Result<ArrayWriter, WriterError>;

impl Subject for FilesystemStore {
    const RENAMES: bool = true;

    fn writer(array: &Array<Faulty<Self>>, epochs: usize, threads: usize) -> Writer {
        ArrayWriter::builder(array)
            .with_atomic_rename(array.storage())
            .with_metadata_interval(Duration::ZERO)
            .with_epochs_per_batch(epochs)
            .with_store_threads(threads)
            // A pause would try again before the test does.
            .with_flush_after(None)
            .build()
    }
}

impl Subject for RenamingStore {
    const RENAMES: bool = true;

    fn writer(array: &Array<Faulty<Self>>, epochs: usize, threads: usize) -> Writer {
        ArrayWriter::builder(array)
            .with_atomic_rename(array.storage())
            .with_metadata_interval(Duration::ZERO)
            .with_epochs_per_batch(epochs)
            .with_store_threads(threads)
            // A pause would try again before the test does.
            .with_flush_after(None)
            .build()
    }
}

impl Subject for MemoryStore {
    const RENAMES: bool = false;

    fn writer(array: &Array<Faulty<Self>>, epochs: usize, threads: usize) -> Writer {
        ArrayWriter::builder(array)
            .with_metadata_interval(Duration::ZERO)
            .with_epochs_per_batch(epochs)
            .with_store_threads(threads)
            // A pause would try again before the test does.
            .with_flush_after(None)
            .build()
    }
}

fn frames() -> Frames {
    Frames {
        compressors: json!([{ "name": "crc32c" }]),
        ..Frames::default()
    }
}

/// The last shard epoch is short, and so is its last epoch.
const END: u64 = 3 * 8 + 5;

/// A run of a writer, and its results.
struct Run<S> {
    frames: Frames,
    store: Arc<Faulty<S>>,
    array: Array<Faulty<S>>,
    /// Whether a value may be stored in part.
    torn: bool,
    errors: usize,
    finished: u64,
}

impl<S: Subject + 'static> Run<S> {
    fn new(store: S, frames: &Frames) -> Self {
        let store = Arc::new(Faulty::new(Arc::new(store)));
        let array = frames.ours(store.clone(), 0);
        array.store_metadata().unwrap();
        store.work();
        Self {
            frames: frames.clone(),
            store,
            array,
            torn: false,
            errors: 0,
            finished: 0,
        }
    }

    /// Checks everything that readers can see now.
    fn check(&self) {
        let (store, all) = (self.store.inner(), Generations::one());
        if self.torn && !S::RENAMES {
            return;
        }
        let array = Array::open(store.clone(), PATH).unwrap();
        let slices = array.shape()[0];
        assert!(slices <= END, "{slices}");
        self.frames.check_slices(&array, &all, 0..slices).unwrap();
        self.frames.check_shards(store, &all, 0, END).unwrap();
        // Finished slices are stored, even if the metadata do not cover them.
        let array = self.frames.stock(store.clone(), END);
        self.frames
            .check_slices(&array, &all, 0..self.finished)
            .unwrap();
    }

    /// Checks that the error comes from the store.
    fn failed(&mut self, error: &WriterError) {
        let WriterError::Store {
            finished_slices, ..
        } = error
        else {
            panic!("{error}")
        };
        assert!(*finished_slices >= self.finished);
        self.finished = *finished_slices;
        self.errors += 1;
        assert!(self.errors < 10_000, "{error}");
        self.check();
    }

    /// Appends everything, and continues after every error as the documentation describes.
    fn append_all(&mut self, writer: &mut ArrayWriter) {
        let elements: Vec<u16> = (0..END).flat_map(|s| self.frames.slice(0, s)).collect();
        loop {
            let done = usize::try_from(writer.progress().appended_bytes).unwrap();
            let rest = &elements[done / 2..];
            if rest.is_empty() {
                return;
            }
            // Pieces that cross the borders of slices.
            let some = &rest[..rest.len().min(50)];
            if let Err(error) = writer.append(some) {
                self.failed(&error);
                // The writer accepts no data until it is flushed.
                let before = writer.progress().appended_bytes;
                assert!(writer.append(&elements[..1]).is_err());
                assert!(writer.try_append(&elements[..1]).is_err());
                assert_eq!(writer.progress().appended_bytes, before);
                if let Err(error) = writer.flush() {
                    self.failed(&error);
                }
            }
        }
    }

    fn finish(&mut self, writer: &mut ArrayWriter) {
        loop {
            match writer.finish() {
                Ok(report) => {
                    assert_eq!(report.finished_slices, END);
                    assert_eq!(writer.finish().unwrap(), report);
                    return;
                }
                Err(error) => self.failed(&error),
            }
        }
    }

    fn build(&mut self, epochs: usize, threads: usize) -> ArrayWriter {
        loop {
            match S::writer(&self.array, epochs, threads) {
                Ok(writer) => return writer,
                Err(error) => {
                    assert!(matches!(error, WriterError::Array(_)), "{error}");
                    self.errors += 1;
                    self.check();
                }
            }
        }
    }

    /// Runs a writer from the start to the end.
    fn run(&mut self, epochs: usize, threads: usize) -> BTreeMap<String, Vec<u8>> {
        let mut writer = self.build(epochs, threads);
        self.append_all(&mut writer);
        self.finish(&mut writer);
        snapshot(&**self.store.inner())
    }
}

fn files() -> (TempDir, FilesystemStore) {
    let directory = TempDir::new().unwrap();
    let store = FilesystemStore::new(directory.path()).unwrap();
    (directory, store)
}

/// Kinds of shards, and the number of epochs in a batch: several batches in a shard, and whole
/// shards.
fn kinds() -> Vec<(Frames, usize)> {
    let at_start = Frames {
        index_at_start: true,
        ..frames()
    };
    let zstd = json!([{ "name": "zstd", "configuration": { "level": 1, "checksum": false } }]);
    let compressed = Frames {
        compressors: zstd,
        ..frames()
    };
    vec![(frames(), 1), (at_start, 2), (compressed, 4)]
}

/// Each request fails once, in each way.
fn each_request<S: Subject + 'static, G>(
    kinds: impl IntoIterator<Item = (Frames, usize)>,
    make: impl Fn() -> (G, S),
) {
    for (frames, epochs) in kinds {
        // Two shards in a shard epoch are enough: each request needs a run of its own.
        let frames = Frames {
            frame: [9, 8],
            ..frames
        };
        let (_guard, store) = make();
        let mut clean = Run::new(store, &frames);
        let expected = clean.run(epochs, 1);
        let requests = clean.store.requests();
        assert!(requests.len() > 15);
        let array = Array::open(clean.store.inner().clone(), PATH).unwrap();
        frames
            .check_slices(&array, &Generations::one(), 0..END)
            .unwrap();
        for fault in Fault::ALL {
            let mut hits = 0;
            for request in &requests {
                let (_guard, store) = make();
                let mut run = Run::new(store, &frames);
                run.torn = fault == Fault::Torn;
                run.store.fail_at(request.number, fault);
                let end = run.run(epochs, 1);
                assert_eq!(end, expected, "{fault:?} {request:?}");
                hits += run.errors;
            }
            // A denied request was carried out, and the writer may notice that instead of failing.
            let least = if fault == Fault::Denied {
                1
            } else {
                requests.len()
            };
            assert!(hits > least / 2, "{fault:?}: {hits} of {}", requests.len());
        }
    }
}

#[test]
fn each_request_of_a_renaming_store_fails_once() {
    each_request(kinds(), || ((), RenamingStore::default()));
}

#[test]
fn each_request_of_a_filesystem_fails_once() {
    each_request(kinds().into_iter().take(1), files);
}

#[test]
fn each_request_of_a_plain_store_fails_once() {
    each_request(kinds(), || ((), MemoryStore::new()));
}

/// Any number of requests fail at random, with several threads.
fn random_requests<S: Subject + 'static, G>(seeds: u64, make: impl Fn() -> (G, S)) {
    let kinds = kinds();
    let expected: Vec<_> = kinds
        .iter()
        .map(|(frames, epochs)| {
            let (_guard, store) = make();
            Run::new(store, frames).run(*epochs, 1)
        })
        .collect();
    let mut errors = 0;
    for seed in 0..seeds {
        let number = usize::try_from(seed).unwrap() % kinds.len();
        let (frames, epochs) = &kinds[number];
        let (_guard, store) = make();
        let mut run = Run::new(store, frames);
        run.torn = true;
        let mut random = Rng(seed << 32);
        let one_in = 2 + random.below(20);
        run.store.fail(move |_| {
            let fault = Fault::ALL[usize::try_from(random.below(3)).unwrap()];
            (random.below(one_in) == 0).then_some(fault)
        });
        let threads = usize::try_from(seed % 4).unwrap() + 1;
        assert_eq!(run.run(*epochs, threads), expected[number], "seed {seed}");
        errors += run.errors;
    }
    assert!(errors > usize::try_from(seeds).unwrap(), "{errors}");
}

#[test]
fn requests_of_a_renaming_store_fail_at_random() {
    random_requests(80, || ((), RenamingStore::default()));
}

#[test]
fn requests_of_a_filesystem_fail_at_random() {
    random_requests(12, files);
}

#[test]
fn requests_of_a_plain_store_fail_at_random() {
    random_requests(300, || ((), MemoryStore::new()));
}

type Which = fn(&Request) -> bool;

/// Some requests fail for a while. The writer accepts no more than its buffers hold, and tells how
/// far the finished slices reach. It stores everything when the store works again.
#[test]
fn a_store_fails_for_some_time() {
    const FAULTS: [(&str, Which); 6] = [
        ("everything", |_| true),
        ("set", |r| r.operation == Operation::Set),
        ("set_partial", |r| r.operation == Operation::SetPartial),
        ("rename", |r| r.operation == Operation::Rename),
        ("metadata", |r| r.key.contains("zarr.json")),
        // Neither the first nor the last shard of its shard epoch.
        ("one shard", |r| r.key.contains("c/1/0/1")),
    ];
    for (frames, epochs) in kinds() {
        let (_guard, store) = files();
        let expected = Run::new(store, &frames).run(epochs, 2);
        for (name, fails) in FAULTS {
            let (_guard, store) = files();
            let mut run = Run::new(store, &frames);
            let mut writer = run.build(epochs, 2);
            run.store
                .fail(move |request| fails(request).then_some(Fault::Refused));
            let first = |error: Result<(), WriterError>| {
                let Some(WriterError::Store {
                    finished_slices, ..
                }) = error.err()
                else {
                    return None;
                };
                Some(finished_slices)
            };
            // The appends must stop with an error at some slice.
            let mut refused = None;
            for slice in 0..END {
                refused = first(writer.append(&frames.slice(0, slice)));
                if refused.is_some() {
                    break;
                }
            }
            if epochs == 4 && name == "set_partial" {
                // Whole shards are not written in parts.
                assert_eq!(refused, None);
                continue;
            }
            for _ in 0..3 {
                refused = first(writer.flush());
                run.finished = refused.unwrap_or_else(|| panic!("{name}: no error"));
                run.check();
            }
            // The fault hit the second shard epoch, the metadata, or everything.
            match name {
                "metadata" => {
                    let array = Array::open(run.store.inner().clone(), PATH).unwrap();
                    assert_eq!(array.shape()[0], 0);
                }
                "one shard" => assert_eq!(run.finished, 8),
                _ => assert!(run.finished <= 8, "{name}: {}", run.finished),
            }
            let error = writer.append(&[0_u16]).unwrap_err().to_string();
            assert!(
                error.contains("as it was told to") && error.contains("flush"),
                "{error}"
            );
            run.store.work();
            run.append_all(&mut writer);
            run.finish(&mut writer);
            assert_eq!(snapshot(&**run.store.inner()), expected, "{name}");
        }
    }
}

/// A writer that is given up after an error leaves only finished shards.
#[test]
fn giving_up_after_an_error() {
    for (frames, epochs) in kinds() {
        let (_guard, store) = files();
        let mut run = Run::new(store, &frames);
        let mut writer = run.build(epochs, 2);
        run.store.fail(|request| {
            let fails = request.key.contains("c/1/") && request.operation != Operation::Erase;
            fails.then_some(Fault::Torn)
        });
        let refused = (0..END).find_map(|slice| writer.append(&frames.slice(0, slice)).err());
        let error = refused.or_else(|| writer.flush().err()).unwrap();
        run.failed(&error);
        run.store.work();
        assert_eq!(writer.abort().unwrap(), run.finished);
        run.check();
        assert_eq!(temporaries(&**run.store.inner()), [""; 0]);

        // Another writer continues from there.
        let slices = Array::open(run.store.inner().clone(), PATH)
            .unwrap()
            .shape()[0];
        run.array = frames.ours(run.store.clone(), slices);
        let mut writer = run.build(epochs, 2);
        for slice in slices..END {
            writer.append(&frames.slice(0, slice)).unwrap();
        }
        run.finish(&mut writer);
        let (_guard, store) = files();
        let expected = Run::new(store, &frames).run(epochs, 2);
        assert_eq!(snapshot(&**run.store.inner()), expected);
    }
}

/// A writer cannot be built while the store fails, and can afterwards.
#[test]
fn building_fails() {
    let (_guard, store) = files();
    let array = frames().ours(Arc::new(Faulty::new(Arc::new(store))), 0);
    let store = array.storage();
    let put = |key: &str| {
        let key = key.try_into().unwrap();
        store.inner().set(&key, b"left".to_vec().into()).unwrap();
    };
    put("a/c/0/0/0.tmp");
    put("a/zarr.json.tmp");
    for number in 0.. {
        store.fail_at(number, Fault::Refused);
        match Subject::writer(&array, 1, 1) {
            Ok(writer) => {
                assert!(number > 4, "{number}");
                drop(writer);
                break;
            }
            Err(error) => assert!(error.to_string().contains("as it was told to"), "{error}"),
        }
    }
    assert_eq!(temporaries(&**store.inner()), [""; 0]);
    assert!(
        store
            .inner()
            .list_prefix(&StorePrefix::root())
            .unwrap()
            .is_empty()
    );
}

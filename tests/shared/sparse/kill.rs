//! Consolidations on a filesystem that are killed at each of their calls to the store.
//!
//! A process consolidates an array and dies at one call: before the call does anything, or when
//! half of a value is written. Afterwards everything is read, through the adapter and with zarrs
//! alone; zarrs cannot see subchunks that are not packed yet. Another consolidation must then leave
//! the same files as one that was not killed.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use zarrs::array::{Array, ArrayMetadata};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::{
    ListableStorageTraits, ReadableStorageTraits, StoreKey, WritableStorageTraits,
};
use zarrs_cuda::storage::SparseShardStore;
use zarrs_cuda_testing::processes;
use zarrs_cuda_testing::stores::faulty::{Fault, Faulty, Operation, Request};

const PATH: &str = "/volume";

/// An array of 6 shards of 4 subchunks. 20 subchunks are within the array.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// With compression the index of a shard does not determine its content.
    compressed: bool,
    index_at_start: bool,
    separator: &'static str,
}

const CASES: [Case; 3] = [
    Case {
        compressed: false,
        index_at_start: false,
        separator: "/",
    },
    Case {
        compressed: true,
        index_at_start: true,
        separator: "/",
    },
    Case {
        compressed: true,
        index_at_start: false,
        separator: ".",
    },
];

impl Case {
    fn metadata(self) -> ArrayMetadata {
        let mut codecs = vec![json!({ "name": "bytes", "configuration": { "endian": "little" } })];
        if self.compressed {
            codecs.push(json!({ "name": "gzip", "configuration": { "level": 1 } }));
        }
        let metadata: Value = json!({
            "zarr_format": 3,
            "node_type": "array",
            "shape": [12, 18],
            "data_type": "uint16",
            "fill_value": 7,
            "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": [6, 8] } },
            "chunk_key_encoding": { "name": "default", "configuration": { "separator": self.separator } },
            "codecs": [{ "name": "sharding_indexed", "configuration": {
                "chunk_shape": [3, 4],
                "codecs": codecs,
                "index_codecs": [
                    { "name": "bytes", "configuration": { "endian": "little" } }, { "name": "crc32c" },
                ],
                "index_location": if self.index_at_start { "start" } else { "end" },
            } }],
        });
        serde_json::from_value(metadata).unwrap()
    }

    /// Creates an array with frames in `directory`, and returns its elements.
    fn prepare(self, directory: &Path) -> Vec<u16> {
        let store = Arc::new(FilesystemStore::new(directory).unwrap());
        let plain = Array::new_with_metadata(store.clone(), PATH, self.metadata()).unwrap();
        plain.store_metadata().unwrap();
        // Three packed shards.
        for (shard, value) in [([0, 0], 100), ([0, 1], 200), ([1, 0], 300)] {
            plain.store_chunk(&shard, elements(value, 48)).unwrap();
        }

        let sparse = Arc::new(SparseShardStore::open(store.clone(), PATH).unwrap());
        let subchunks = Array::open(sparse, PATH).unwrap();
        let write = |subchunk: [u64; 2], value| {
            let elements = elements(value, 12);
            subchunks.store_chunk(&subchunk, elements).unwrap();
        };
        // In (0, 0): one subchunk is written twice, one is erased, one is written without a change.
        write([0, 0], 1000);
        write([0, 0], 1100);
        write([0, 1], 1200);
        subchunks.erase_chunk(&[1, 0]).unwrap();
        // In (0, 1): all subchunks are erased, one of them after a write.
        write([1, 3], 1300);
        for subchunk in [[0, 2], [0, 3], [1, 2], [1, 3]] {
            subchunks.erase_chunk(&subchunk).unwrap();
        }
        // (1, 1) is a new shard, at the end of the array.
        write([2, 2], 1400);
        write([3, 3], 1500);
        // Torn versions: in (1, 0), which has no other updates, and in (0, 0).
        let separator = self.separator;
        for (shard, number) in [([1, 0], 2), ([0, 0], 1)] {
            let [a, b] = shard;
            let key = format!(
                "volume/c{separator}{a}{separator}{b}.frame/{number:08X}.0000000000000007.DEAD.chunk"
            );
            let torn = b"a part of a subchunk".to_vec().into();
            store.set(&StoreKey::new(key).unwrap(), torn).unwrap();
        }
        read(&subchunks).unwrap()
    }
}

/// Elements that differ from the fill value.
fn elements(value: u16, len: u16) -> Vec<u16> {
    (value..value + len).collect()
}

fn read<S: ReadableStorageTraits + ?Sized + 'static>(array: &Array<S>) -> Result<Vec<u16>, String> {
    let read = array.retrieve_array_subset(&array.subset_all());
    read.map_err(|error| error.to_string())
}

/// The content of a directory.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let store = FilesystemStore::new(directory).unwrap();
    let keys = store.list().unwrap().into_iter();
    keys.map(|key| (key.to_string(), store.get(&key).unwrap().unwrap().to_vec()))
        .collect()
}

fn copy(files: &BTreeMap<String, Vec<u8>>, directory: &Path) {
    for (key, value) in files {
        let path = directory.join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, value).unwrap();
    }
}

type Killed = Faulty<FilesystemStore>;

/// Works on one shard at a time, so that the calls always have the same order.
fn adapter<S>(store: Arc<S>) -> SparseShardStore<S>
where
    S: ReadableStorageTraits
        + WritableStorageTraits
        + zarrs::storage::AtomicRenameStorageTraits
        + 'static,
{
    let sparse = SparseShardStore::open_renaming(store.clone(), PATH, store);
    sparse.unwrap().with_memory(1)
}

/// The task: the number of the call at which to die, whether half of it is done, and the directory.
const TASK: &str = "ZARRS_CUDA_TEST_CONSOLIDATION";

/// A process that consolidates until it dies. The test below starts it.
#[test]
#[ignore = "a process of another test"]
fn consolidating_process() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let task: Vec<&str> = task.splitn(3, ' ').collect();
    let (last, torn) = (task[0].parse::<usize>().unwrap(), task[1] == "true");
    let store = Arc::new(Killed::new(Arc::new(
        FilesystemStore::new(task[2]).unwrap(),
    )));
    let sparse = adapter(store.clone());
    store.fail(move |request| {
        if request.number == last && torn {
            return Some(Fault::Torn);
        }
        if request.number >= last {
            std::process::abort();
        }
        None
    });
    let done = sparse.consolidate_all(&|_| {});
    // The process got an error for its last value, and made no further request.
    assert!(torn && done.is_err(), "{done:?}");
    std::process::abort();
}

/// Runs a process that consolidates, and dies.
fn kill(directory: &Path, last: usize, torn: bool) {
    let output = processes::again(module_path!(), "consolidating_process", true)
        .env(TASK, format!("{last} {torn} {}", directory.display()))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let signal = output.status.signal();
    assert_eq!(signal, Some(6), "call {last}: {}\n{errors}", output.status);
}

/// Returns the requests of an undisturbed consolidation, and the files that it leaves.
fn undisturbed(before: &BTreeMap<String, Vec<u8>>) -> (Vec<Request>, BTreeMap<String, Vec<u8>>) {
    let directory = TempDir::new().unwrap();
    copy(before, directory.path());
    let store = Arc::new(Killed::new(Arc::new(
        FilesystemStore::new(directory.path()).unwrap(),
    )));
    let sparse = adapter(store.clone());
    store.work();
    let done = sparse.consolidate_all(&|_| {}).unwrap();
    assert_eq!(
        (done.shards, done.done, done.sum.invalid),
        (4, 4, 2),
        "{done}"
    );
    (store.requests(), files(directory.path()))
}

/// Checks that both readers can read everything.
fn check(directory: &Path, expected: &[u16], is_packed: bool) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let store = Arc::new(FilesystemStore::new(directory).unwrap());
    let sparse = Arc::new(adapter(store.clone()));
    let subchunks = Array::open(sparse.clone(), PATH).map_err(|error| text(&error))?;
    if read(&subchunks)? != expected {
        return Err("other elements are read".to_owned());
    }
    // Temporaries and torn versions are not listed.
    for key in sparse.list().map_err(|error| text(&error))? {
        let name = key.as_str().strip_prefix("volume/").unwrap_or_default();
        let is_chunk = name
            .strip_prefix('c')
            .is_some_and(|name| name.chars().all(|c| c.is_ascii_digit() || "./".contains(c)));
        if !is_chunk && name != "zarr.json" {
            return Err(format!("{key} is listed"));
        }
    }
    // Other readers find whole shards, old or new.
    let plain = Array::open(store, PATH).map_err(|error| text(&error))?;
    let packed = read(&plain)?;
    if is_packed && packed != expected {
        return Err("other elements are in the shards".to_owned());
    }
    Ok(())
}

#[test]
fn killed_at_each_call() {
    for case in CASES {
        let directory = TempDir::new().unwrap();
        let expected = case.prepare(directory.path());
        let before = files(directory.path());
        let (requests, after) = undisturbed(&before);
        check(directory.path(), &expected, false).unwrap();
        // The metadata, the marker of frames, the shards, and frames with torn versions.
        let left = after.keys().filter(|key| key.contains(".frame/")).count();
        assert_eq!((left, after.len()), (2, 7), "{after:?}");

        let sets = |request: &Request| request.operation == Operation::Set;
        let mut kills: Vec<(usize, bool)> = (0..requests.len()).map(|n| (n, false)).collect();
        kills.extend(
            requests
                .iter()
                .filter(|r| sets(r))
                .map(|r| (r.number, true)),
        );
        let mut temporaries = 0;
        for (last, torn) in &kills {
            let directory = TempDir::new().unwrap();
            let path = directory.path();
            copy(&before, path);
            kill(path, *last, *torn);
            let request = &requests[*last];
            let wrong = |error: String| panic!("{case:?}, {request:?}, torn: {torn}: {error}");
            temporaries += usize::from(files(path).keys().any(|key| key.contains(".tmp")));
            check(path, &expected, false).unwrap_or_else(wrong);
            let store = Arc::new(FilesystemStore::new(path).unwrap());
            let done = adapter(store).consolidate_all(&|_| {});
            done.map_err(|error| error.to_string())
                .map_or_else(wrong, drop);
            check(path, &expected, true).unwrap_or_else(wrong);
            let found = files(path);
            if found != after {
                let found: Vec<_> = found.keys().collect();
                wrong(format!("other files are left: {found:?}"));
            }
        }
        println!(
            "{case:?}: {} calls, {} kills, {temporaries} temporaries",
            requests.len(),
            kills.len()
        );
        // Two shards are replaced, one is erased, and eleven versions are deleted.
        let erased = requests.iter().filter(|r| r.operation == Operation::Erase);
        assert!(erased.count() >= 12, "{requests:?}");
        assert_eq!(kills.len() - requests.len(), 2, "{requests:?}");
        // For each replaced shard: a half and a whole temporary.
        assert_eq!(temporaries, 4);
    }
}

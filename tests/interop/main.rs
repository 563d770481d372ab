//! Other readers and writers: zarr-python, tensorstore and zarrita.js read this crate's arrays, and
//! this crate reads theirs, bit for bit.
//!
//! The arrays are in `cases.rs`. The implementations come from `PyPI` and npm, in the versions of
//! `requirements.txt` and `package-lock.json`. The first test that needs them installs them under
//! `target/interop`. That needs Python 3.11, its `venv` and a network. Without those the tests fail
//! and say what to install.
//!
//! Each script lists the cases that its implementation does not support, with the reason. A listed
//! case must fail with the listed error, and every other case must work.
//!
//! zarrita.js cannot write shards: it answers "Unsupported: set on sharded arrays".
//! [`zarrita_writes`] makes sure that this is still so.

#![allow(clippy::unwrap_used, missing_docs)]

use std::{
    collections::{BTreeMap, HashMap},
    env, fs,
    io::{self, Write},
    path::Path,
    sync::{Arc, Mutex, Once, PoisonError, Weak},
};

use serde_json::Value;
use tempfile::TempDir;
use zarrs::{
    array::{Array, ArrayBytes, ArrayMetadata, ArraySubset},
    filesystem::FilesystemStore,
};

mod cases;
mod environment;
#[cfg(target_os = "linux")]
mod locks;
mod lost_updates;

use cases::Case;
use environment::Tool;

#[test]
fn zarr_python_reads() {
    reads(Tool::ZarrPython);
}

#[test]
fn tensorstore_reads() {
    reads(Tool::Tensorstore);
}

#[test]
fn zarrita_reads() {
    reads(Tool::Zarrita);
}

#[test]
fn zarr_python_writes() {
    assert!(writes(Tool::ZarrPython) > 0);
}

#[test]
fn tensorstore_writes() {
    assert!(writes(Tool::Tensorstore) > 0);
}

#[test]
fn zarrita_writes() {
    assert_eq!(writes(Tool::Zarrita), 0);
}

/// The environment variable for arrays from another machine, such as one with a GPU. It names a
/// folder with the output of [`cases::hand_over`] and [`write`].
const ARRAYS: &str = "ZARRS_CUDA_INTEROP_ARRAYS";

#[test]
fn arrays_from_another_machine_are_read() {
    let Some(folder) = env::var_os(ARRAYS) else {
        say(&format!(
            "no arrays of another machine: {ARRAYS} names none"
        ));
        return;
    };
    let folder = Path::new(&folder);
    let list = fs::read(folder.join("cases.json")).unwrap();
    let list: BTreeMap<String, Value> = serde_json::from_slice(&list).unwrap();
    assert!(!list.is_empty());
    for tool in [Tool::ZarrPython, Tool::Tensorstore, Tool::Zarrita] {
        tool.reads_all(folder, list.len());
        let name = tool.name();
        say(&format!(
            "{name} reads {} arrays of another machine",
            list.len()
        ));
    }
}

/// Lets a tool read our arrays and compare their values.
fn reads(tool: Tool) {
    let arrays = our_arrays();
    judge(tool, "read", arrays.path());
}

/// Lets a tool write arrays. Reads and compares them, and returns their number.
fn writes(tool: Tool) -> usize {
    register();
    let directory = temporary_directory();
    cases::hand_over(directory.path());
    let written = judge(tool, "write", directory.path());
    for case in &written {
        read_and_compare(case, &directory.path().join(&case.name));
    }
    written.len()
}

/// Runs a tool's script for all cases. A case that is listed as unsupported must fail with the
/// listed error, and every other case must work. Returns the working cases.
fn judge(tool: Tool, operation: &str, directory: &Path) -> Vec<&'static Case> {
    let output = tool.run(operation, directory);
    let mut reports: HashMap<String, Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .map(|report: Value| (report["case"].as_str().unwrap().to_owned(), report))
        .collect();

    let mut worked = Vec::new();
    let mut unsupported = BTreeMap::<String, Vec<&str>>::new();
    let mut problems = Vec::new();
    for case in cases::all() {
        let report = reports.remove(&case.name).unwrap_or_default();
        let listed = &report["unsupported"];
        match (report["error"].as_str(), listed["error"].as_str()) {
            _ if report.is_null() => problems.push(format!("{}: no report", case.name)),
            (None, None) => worked.push(case),
            (Some(error), Some(expected)) if error.contains(expected) => {
                let reason = listed["reason"].as_str().unwrap().to_owned();
                unsupported.entry(reason).or_default().push(&case.name);
            }
            (Some(error), _) => problems.push(format!("{}: {error}", case.name)),
            (None, Some(_)) => problems.push(format!("{}: works, but is listed", case.name)),
        }
    }
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        problems.push(format!("the script failed: {}\n{stderr}", output.status));
    }
    let name = tool.name();
    assert!(
        problems.is_empty(),
        "{name}, {operation}:\n{}",
        problems.join("\n")
    );
    for (reason, cases) in unsupported {
        let cases = match cases.len() {
            0..16 => cases.join(", "),
            many => format!("{many} of {} cases", cases::all().len()),
        };
        say(&format!(
            "{operation} unsupported by {name}: {cases} ({reason})"
        ));
    }
    worked
}

/// All cases, written by this crate. Concurrent tests share them.
fn our_arrays() -> Arc<TempDir> {
    static ARRAYS: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());
    let mut shared = ARRAYS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(arrays) = shared.upgrade() {
        return arrays;
    }
    register();
    let arrays = Arc::new(temporary_directory());
    cases::hand_over(arrays.path());
    for case in cases::all() {
        write(case, &arrays.path().join(&case.name));
    }
    *shared = Arc::downgrade(&arrays);
    arrays
}

fn write(case: &Case, path: &Path) {
    let name = &case.name;
    let store = Arc::new(FilesystemStore::new(path).unwrap());
    let metadata: ArrayMetadata = serde_json::from_value(case.metadata.clone()).unwrap();
    let array = Array::new_with_metadata(store, "/", metadata).expect(name);
    zarrs_cuda::explain(&array).expect(name);
    array.store_metadata().unwrap();

    // Writes two parts. The border lies within a shard, so that the second part updates it.
    let shape = case.shape;
    let cut = shape[0] * 5 / 8;
    let row = case.values.len() / usize::try_from(shape[0]).unwrap();
    let (head, tail) = case.values.split_at(usize::try_from(cut).unwrap() * row);
    for (rows, values) in [(0..cut, head), (cut..shape[0], tail)] {
        let mut ranges: Vec<_> = shape.iter().map(|&n| 0..n).collect();
        ranges[0] = rows;
        let subset = ArraySubset::new_with_ranges(&ranges);
        let values = ArrayBytes::new_flen(values.to_vec());
        array.store_array_subset(&subset, values).expect(name);
    }

    if let Some(shard) = &case.empty_shard {
        let directory = path.join("c");
        let key = (shard.iter()).fold(directory, |key, index| key.join(index.to_string()));
        assert!(!key.exists(), "{name}: an empty shard is stored");
    }
}

/// Compares the whole array, and a grid of overlapping boxes.
fn read_and_compare(case: &Case, path: &Path) {
    let name = &case.name;
    let store = Arc::new(FilesystemStore::new(path).unwrap());
    let array = Array::open(store, "/").expect(name);
    zarrs_cuda::explain(&array).expect(name);
    assert_eq!(array.shape(), case.shape, "{name}");
    let compare = |subset: &ArraySubset| {
        let found: ArrayBytes = array.retrieve_array_subset(subset).expect(name);
        let found = found.into_fixed().unwrap();
        assert!(*found == case.subset(subset), "{name}: {subset} is wrong");
    };
    compare(&array.subset_all());
    let step = |n: u64| n * 2 / 5;
    let counts = case.shape.iter().map(|&n| n.div_ceil(step(n))).collect();
    for position in &ArraySubset::new_with_shape(counts).indices() {
        let position = position.iter().zip(case.shape);
        let ranges: Vec<_> = position
            .map(|(at, &n)| at * step(n)..n.min(at * step(n) + n / 2))
            .collect();
        compare(&ArraySubset::new_with_ranges(&ranges));
    }
}

fn register() {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        zarrs_cuda::register(zarrs_cuda::Options::default())
            .unwrap()
            .leak();
    });
}

fn temporary_directory() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Prints a line even when the test passes.
fn say(line: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(format!("interop: {line}\n").as_bytes());
}

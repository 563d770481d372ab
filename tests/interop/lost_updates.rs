//! The program in `eight_processes/`: eight processes update subchunks of the
//! same shards. With zarrs alone they lose updates, which shows that the test can detect losses.
//! With `SparseShardStore` they lose none. zarrs, zarr-python and tensorstore read the consolidated
//! shards.
//!
//! `main.rs` describes the installation of the Python implementations.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde_json::{Map, Value};
use tempfile::TempDir;
use zarrs::array::Array;
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda_testing::processes;

use crate::environment::Tool;

const SUBCHUNKS: u64 = 384;

fn program() -> PathBuf {
    processes::example("lost_updates")
}

/// Runs the example, and returns its output.
fn demonstrate(directory: &Path) -> String {
    let output = Command::new(program()).arg(directory).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}\n{text}{errors}", output.status);
    text
}

/// The number that follows `before`.
fn number(text: &str, before: &str) -> u64 {
    let at = text
        .find(before)
        .unwrap_or_else(|| panic!("no `{before}` in\n{text}"));
    let digits = text[at + before.len()..].chars();
    let digits: String = digits.take_while(char::is_ascii_digit).collect();
    digits
        .parse()
        .unwrap_or_else(|_| panic!("no number after `{before}` in\n{text}"))
}

/// The expected elements of the array: 16 subchunks of 8 × 8 in a row.
fn expected() -> Vec<u16> {
    let element = |at: u64| {
        let (row, column) = (at / 128, at % 128);
        u16::try_from(row / 8 * 16 + column / 8).unwrap()
    };
    (0..192 * 128).map(element).collect()
}

/// The number of lost updates in an array, as zarrs alone reads it.
fn lost(path: &Path) -> u64 {
    let store = Arc::new(FilesystemStore::new(path).unwrap());
    let array = Array::open(store, "/").unwrap();
    let expected = expected();
    let mut lost = 0;
    for subchunk in 0..SUBCHUNKS {
        let (row, column) = (subchunk / 16 * 8, subchunk % 16 * 8);
        let read = array.retrieve_array_subset::<Vec<u16>>(&[row..row + 8, column..column + 8]);
        let value = expected[usize::try_from(row * 128 + column).unwrap()];
        lost += u64::from(read.ok() != Some(vec![value; 64]));
    }
    lost
}

#[test]
fn eight_processes() {
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let arrays = directory.path().join("arrays");
    let text = demonstrate(&arrays);
    say(&text);

    let is_lost = lost(&arrays.join("ordinary.zarr"));
    // At least a tenth is lost; usually most updates are.
    assert!(is_lost > SUBCHUNKS / 10, "{is_lost}:\n{text}");
    assert_eq!(number(&text, "zarrs alone: "), is_lost, "{text}");

    assert_eq!(lost(&arrays.join("sparse.zarr")), 0, "{text}");
    assert_eq!(number(&text, "SparseShardStore: "), 0, "{text}");
    assert_eq!(
        number(&text, "lost (0 writes failed, "),
        number(&text, "failed, "),
        "{text}"
    );
    assert_eq!(number(&text, "zarrs alone, then: "), 0, "{text}");
    // The other subchunks were packed at the end.
    let (_, consolidated) = text.split_once("consolidated: ").unwrap();
    let packed = number(&text, "failed, ") + number(consolidated, "shards, ");
    assert!(packed >= SUBCHUNKS, "{packed}:\n{text}");

    // The input for tests/interop/interop.py.
    let metadata = fs::read(arrays.join("sparse.zarr/zarr.json")).unwrap();
    let metadata: Value = serde_json::from_slice(&metadata).unwrap();
    let cases = Value::Object(Map::from_iter([("sparse.zarr".to_owned(), metadata)]));
    fs::write(arrays.join("cases.json"), cases.to_string()).unwrap();
    let bytes: Vec<u8> = expected().iter().flat_map(|x| x.to_le_bytes()).collect();
    fs::write(arrays.join("sparse.zarr.raw"), bytes).unwrap();
    for tool in [Tool::ZarrPython, Tool::Tensorstore] {
        let output = tool.run("read", &arrays);
        let (text, errors) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        let name = tool.name();
        let reports: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(reports.len(), 1, "{name}: {text}{errors}");
        assert_eq!(reports[0]["case"], "sparse.zarr", "{name}: {text}");
        assert!(reports[0]["error"].is_null(), "{name}: {text}");
        assert!(output.status.success(), "{name}: {errors}");
    }
}

#[test]
fn wrong_usage() {
    for (arguments, code, message) in [
        (&[][..], 2, "a DIRECTORY is needed"),
        (&["a", "b"], 2, "unexpected argument"),
        (&["a", "--writer", "1", "neither"], 2, "no way `neither`"),
        (&["/proc/none"], 1, "cannot make /proc/none"),
    ] {
        let output = Command::new(program()).args(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(message), "{arguments:?}: {errors}");
    }
    let output = Command::new(program()).arg("--help").output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("Usage: lost_updates DIRECTORY"));
}

/// Prints a line even when the test passes.
pub(crate) fn say(line: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(format!("lost_updates: {line}\n").as_bytes());
}

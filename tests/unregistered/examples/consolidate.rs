//! The `consolidate` example, run like a user's program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use tempfile::TempDir;
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::storage::SparseShardStore;
use zarrs_cuda_testing::processes;

fn program() -> PathBuf {
    processes::example("consolidate")
}

fn run(path: &Path, more: &[&str]) -> Output {
    Command::new(program())
        .arg(path)
        .args(more)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn store(path: &Path) -> Arc<FilesystemStore> {
    Arc::new(FilesystemStore::new(path).unwrap())
}

/// An array of 2 × 2 shards of 2 × 2 subchunks of one element. No shard is stored.
fn array(path: &Path) {
    let mut builder = ArrayBuilder::new(vec![4, 4], vec![2, 2], data_type::uint8(), 0u8);
    builder.subchunk_shape(vec![1, 1]);
    let array = builder.build(store(path), "/").unwrap();
    array.store_metadata().unwrap();
}

#[test]
fn an_array_is_consolidated() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    array(path);
    let sparse = Arc::new(SparseShardStore::open(store(path), "/").unwrap());
    let subchunks = Array::open(sparse, "/").unwrap();
    for (indices, value) in [([0, 0], 1_u8), ([0, 0], 2), ([1, 1], 3), ([2, 3], 4)] {
        subchunks.store_chunk(&indices, vec![value]).unwrap();
    }
    let pending = run(path, &["--pending"]);
    assert!(pending.status.success(), "{}", text(&pending.stderr));
    assert_eq!(text(&pending.stdout), "0,0\n1,1\n");
    assert_eq!(text(&pending.stderr), "2 shards to pack\n");

    let plain = Array::open(store(path), "/").unwrap();
    let read = || {
        plain
            .retrieve_array_subset::<Vec<u8>>(&plain.subset_all())
            .unwrap()
    };
    assert_eq!(read(), [0; 16]);
    for (shards, expected) in [
        (2, "2 of 2 shards, 3 subchunks, 0 -> "),
        (0, "0 of 0 shards, "),
    ] {
        let done = run(path, &[]);
        assert!(done.status.success(), "{shards}: {}", text(&done.stderr));
        let line = text(&done.stdout);
        assert!(line.starts_with(expected), "{line}");
        assert!(
            line.lines().count() == 1 && line.ends_with(" s\n"),
            "{line}"
        );
        // Without a terminal no progress is shown.
        assert_eq!(text(&done.stderr), "");
        assert_eq!(read(), [2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
    }
}

#[test]
fn what_cannot_be_consolidated() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    let case = |name: &str, more: &[&str], code: i32, message: &str| {
        let output = run(&path.join(name), more);
        let errors = text(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{name} {more:?}: {errors}"
        );
        assert!(errors.contains(message), "{name} {more:?}: {errors}");
    };
    std::fs::create_dir(path.join("empty")).unwrap();
    let unsharded = ArrayBuilder::new(vec![4, 4], vec![2, 2], data_type::uint8(), 0u8);
    let unsharded = unsharded
        .build(store(&path.join("unsharded")), "/")
        .unwrap();
    unsharded.store_metadata().unwrap();
    array(&path.join("damaged"));
    let shard = path.join("damaged/c/0/0");
    std::fs::create_dir_all(shard.parent().unwrap()).unwrap();
    std::fs::write(shard, b"no shard").unwrap();
    let sparse = SparseShardStore::open(store(&path.join("damaged")), "/").unwrap();
    let subchunks = Array::open(Arc::new(sparse), "/").unwrap();
    subchunks.store_chunk(&[0, 0], vec![1_u8]).unwrap();

    case("none", &[], 1, "cannot open");
    case("empty", &[], 1, "there is no array");
    case("unsharded", &[], 1, "not shards");
    case("damaged", &[], 1, "c/0/0");
    case("damaged", &["more"], 2, "unexpected argument");
    case("damaged", &["--fast"], 2, "--fast");
    // The remaining frames are still readable.
    assert_eq!(subchunks.retrieve_chunk::<Vec<u8>>(&[0, 0]).unwrap(), [1]);

    let none = Command::new(program()).output().unwrap();
    assert_eq!(none.status.code(), Some(2));
    let help = Command::new(program()).arg("--help").output().unwrap();
    assert!(help.status.success() && text(&help.stdout).contains("Usage: consolidate ARRAY"));
}

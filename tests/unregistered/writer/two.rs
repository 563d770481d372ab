//! Two writers of one array on a filesystem: the second is refused, or the first finds out.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::Options;
use zarrs_cuda::storage::Owner;
use zarrs_cuda::writer::{ArrayWriter, ArrayWriterBuilder, WriterError};

use super::simple::{SHARD, array_at, builder, check, slices};
use zarrs_cuda_testing::processes;

const LEASE: &str = "array/.zarrs-cuda-writer";
const ROOT: &str = "ZARRS_CUDA_TEST_ROOT";

/// Writers of an array that has so many slices.
fn builder_of(root: &Path, slices: u64) -> ArrayWriterBuilder<FilesystemStore> {
    let store = Arc::new(FilesystemStore::new(root).unwrap());
    let array = array_at(&store, "/array", slices, Options::default());
    builder(&array).with_atomic_rename(store)
}

fn is_refused(built: Result<ArrayWriter, WriterError>) -> bool {
    match built {
        Ok(_) => false,
        Err(error) => {
            assert!(error.to_string().contains("has the lease"), "{error}");
            true
        }
    }
}

#[test]
fn the_second_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let builder = builder_of(directory.path(), 0);
    let lease = directory.path().join(LEASE);
    // However the first ends.
    for end in 0..3 {
        let mut first = builder.build().unwrap();
        let owner = std::fs::read_to_string(&lease).unwrap();
        assert!(owner.starts_with(&Owner::this().to_string()), "{owner}");
        first.append(&slices(0..1)).unwrap();
        assert!(is_refused(builder.build()) && is_refused(builder.build()));
        assert!(lease.exists());
        match end {
            0 => drop(first),
            1 => assert_eq!(first.abort().unwrap(), 0),
            _ => {
                first.append(&slices(1..SHARD)).unwrap();
                first.finish().unwrap();
                assert!(!lease.exists());
                // What has finished is in nobody's way.
                let second = builder_of(directory.path(), SHARD).build().unwrap();
                drop((first, second));
            }
        }
        assert!(!lease.exists());
    }
    let store = Arc::new(FilesystemStore::new(directory.path()).unwrap());
    check(&store, SHARD);
}

/// Writers within the array have no lease: they may be several.
#[test]
fn writers_within_the_array_are_not_refused() {
    let directory = tempfile::tempdir().unwrap();
    let builder = builder_of(directory.path(), 4 * SHARD);
    let extends = builder.build().unwrap();
    let within = builder_of(directory.path(), 4 * SHARD).with_start(SHARD);
    let both = [within.build().unwrap(), within.build().unwrap()];
    drop((both, extends));
    let names = std::fs::read_dir(directory.path().join("array")).unwrap();
    assert_eq!(names.count(), 1, "the metadata");
}

#[test]
fn another_process_is_refused_until_the_first_is_killed() {
    if let Some(root) = std::env::var_os(ROOT) {
        let _writer = builder_of(Path::new(&root), 0).build().unwrap();
        println!("begun");
        std::thread::sleep(std::time::Duration::from_mins(1));
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let test = "another_process_is_refused_until_the_first_is_killed";
    let mut command: Command = processes::again(module_path!(), test, false);
    let mut first = command
        .env(ROOT, directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(first.stdout.take().unwrap());
    assert!(std::io::BufRead::lines(lines).any(|line| line.unwrap().contains("begun")));
    let builder = builder_of(directory.path(), 0);
    let error = builder.build().unwrap_err().to_string();
    assert!(
        error.contains(&format!("process {}", first.id())),
        "{error}"
    );
    first.kill().unwrap();
    // The process is dead before its parent has asked for it.
    let since = std::time::Instant::now();
    while is_refused(builder.build()) {
        assert!(since.elapsed().as_secs() < 5);
    }
    first.wait().unwrap();
    assert!(!directory.path().join(LEASE).exists());
}

/// zarr-python's `append` resizes the array before it writes, and knows no lease.
#[test]
fn a_resize_by_other_software_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = builder_of(directory.path(), 0).build().unwrap();
    writer.append(&slices(0..SHARD)).unwrap();
    writer.flush().unwrap();
    let metadata = directory.path().join("array/zarr.json");
    let ours = std::fs::read_to_string(&metadata).unwrap();
    let mut theirs: serde_json::Value = serde_json::from_str(&ours).unwrap();
    theirs["shape"][0] = (SHARD + 1).into();
    let theirs = serde_json::to_string(&theirs).unwrap();
    std::fs::write(&metadata, &theirs).unwrap();
    writer.append(&slices(SHARD..2 * SHARD)).unwrap();
    for _ in 0..2 {
        let error = writer.finish().unwrap_err().to_string();
        assert!(error.contains("another process resizes"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&metadata).unwrap(), theirs);
    drop(writer);
    assert_eq!(std::fs::read_to_string(&metadata).unwrap(), theirs);
}

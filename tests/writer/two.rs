//! Two writers of one array on a filesystem: the second is refused, or the first finds out.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use zarrs::filesystem::FilesystemStore;
use zarrs::storage::{ListableStorageTraits, ReadableStorageTraits};
use zarrs_cuda::Options;
use zarrs_cuda::maintenance::{ArrayLease, Shards};
use zarrs_cuda::reader::Cancel;
use zarrs_cuda::storage::Owner;
use zarrs_cuda::writer::{
    ArrayWriter, ArrayWriterBuilder, Axis, MultiscaleBuilder, MultiscaleWriter, Resume, WriterError,
};

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

/// The names of the files of the array, and what they hold. Leases are not among them.
fn files_of(root: &Path) -> Vec<(String, Vec<u8>)> {
    let store = FilesystemStore::new(root).unwrap();
    let keys = store.list().unwrap().into_iter();
    keys.filter(|key| !ArrayLease::is_key(key.as_str()))
        .map(|key| (key.to_string(), store.get(&key).unwrap().unwrap().to_vec()))
        .collect()
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

/// An array that ends within a shard epoch is extended from the border before its end.
#[test]
fn a_writer_of_the_last_shards_is_alone() {
    let directory = tempfile::tempdir().unwrap();
    let end = SHARD + 1;
    let last = || builder_of(directory.path(), end).with_start(SHARD);
    let mut first = last().build().unwrap();
    assert!(first.explain().has_lease);
    assert!(is_refused(last().build()));
    assert!(is_refused(last().with_start(Resume).build()));
    // Before that border there may be several.
    let within = builder_of(directory.path(), end).with_start(0);
    let within = within.build().unwrap();
    let explanation = within.explain();
    assert!(!explanation.has_lease);
    assert!(
        explanation.to_string().contains("lease: none"),
        "{explanation}"
    );
    drop(within);
    first.append(&slices(SHARD..2 * SHARD)).unwrap();
    first.finish().unwrap();
    assert!(!directory.path().join(LEASE).exists());
    // The array was opened before it grew.
    let store = Arc::new(FilesystemStore::new(directory.path()).unwrap());
    let grown = zarrs::array::Array::open(store.clone(), "/array").unwrap();
    assert_eq!(grown.shape()[0], 2 * SHARD);
}

/// A writer that goes on inside a shard is alone, too.
#[test]
fn a_writer_that_resumes_is_alone() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = builder_of(directory.path(), 0).build().unwrap();
    writer.append(&slices(0..SHARD + 1)).unwrap();
    writer.finish().unwrap();
    let resuming = || builder_of(directory.path(), SHARD + 1).with_start(Resume);
    let mut first = resuming().build().unwrap();
    assert!(first.explain().has_lease);
    let stored = files_of(directory.path());
    assert!(is_refused(resuming().build()));
    assert!(is_refused(resuming().with_start(SHARD).build()));
    assert!(files_of(directory.path()) == stored, "a temporary is gone");
    first.append(&slices(SHARD + 1..SHARD + 3)).unwrap();
    first.finish().unwrap();
    assert!(!directory.path().join(LEASE).exists());
    let store = Arc::new(FilesystemStore::new(directory.path()).unwrap());
    check(&store, SHARD + 3);
}

/// Maintenance and a writer that extends the array refuse each other.
#[test]
fn maintenance_is_refused_beside_a_writer() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = builder_of(directory.path(), 0).build().unwrap();
    writer.append(&slices(0..SHARD)).unwrap();
    writer.finish().unwrap();
    let store = Arc::new(FilesystemStore::new(directory.path()).unwrap());
    let array = zarrs::array::Array::open(store, "/array").unwrap();
    let shards = Shards::of(&array).unwrap();
    let is_busy = |error: &zarrs_cuda::Error| {
        let text = error.to_string();
        text.contains("has the lease") && text.contains("this process")
    };
    let place = directory.path().join("array");
    let one = std::num::NonZeroU64::new(2).unwrap();
    let extends = builder_of(directory.path(), SHARD);
    let writer = extends.build().unwrap();
    assert!(is_busy(&shards.compact(&[0, 0, 0]).unwrap_err()));
    assert!(is_busy(&shards.recover(&[0, 0, 0]).unwrap_err()));
    assert!(is_busy(&shards.compact_pending().unwrap_err()));
    assert!(shards.inspect(&[0, 0, 0]).unwrap().is_some());
    assert!(ArrayLease::take(&place).is_err());
    assert!(ArrayLease::take_part(&place, 0, one).is_err());
    drop(writer);
    shards.compact(&[0, 0, 0]).unwrap();
    shards.recover(&[0, 0, 0]).unwrap();
    shards.compact_pending().unwrap();
    let parts = [0, 1].map(|part| ArrayLease::take_part(&place, part, one).unwrap());
    assert!(is_refused(extends.build()));
    assert!(is_busy(&shards.recover(&[0, 0, 0]).unwrap_err()));
    drop(parts);
    let all = ArrayLease::take(&place).unwrap();
    assert!(is_refused(extends.build()));
    // Values of one process share it.
    shards.recover(&[0, 0, 0]).unwrap();
    assert!(is_refused(extends.build()));
    drop(all);
    drop(extends.build().unwrap());
    let store = Arc::new(FilesystemStore::new(directory.path()).unwrap());
    check(&store, SHARD);
}

/// Parts of different numbers of parts overlap, and so do a part and a writer of all.
#[test]
fn parts_of_levels() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(FilesystemStore::new(directory.path()).unwrap());
    let array = array_at(&store, "/image/0", 0, Options::default());
    let mut writer = builder(&array)
        .with_atomic_rename(store.clone())
        .build()
        .unwrap();
    writer.append(&slices(0..4 * SHARD)).unwrap();
    writer.finish().unwrap();
    let array = Arc::new(zarrs::array::Array::open(store.clone(), "/image/0").unwrap());
    let levels = move || {
        MultiscaleWriter::builder(&array)
            .with_axes([Axis::other("n", None), Axis::space("y"), Axis::space("x")])
            .with_levels(2)
            .with_atomic_rename(store.clone())
    };
    let part = |builder: MultiscaleBuilder<FilesystemStore>, part: u64, of: u64| {
        let of = std::num::NonZeroU64::new(of).unwrap();
        builder.write_part_of_lower_levels(part, of, &Cancel::new())
    };
    let is_busy = |error: WriterError| {
        use std::error::Error as _;
        let cause = error.source().map(ToString::to_string);
        format!("{error} {cause:?}").contains("has the lease")
    };
    let all = |levels: &dyn Fn() -> MultiscaleBuilder<FilesystemStore>| {
        levels().write_lower_levels(&Cancel::new()).map(drop)
    };
    let level = directory.path().join("image/1");
    let held = ArrayLease::take(&level).unwrap();
    assert!(is_busy(part(levels(), 0, 2).unwrap_err()));
    assert!(is_busy(all(&levels).unwrap_err()));
    assert!(is_busy(levels().build().map(drop).unwrap_err()));
    drop(held);
    assert!(!level.exists(), "nothing was written");
    let tried = Arc::new(std::sync::Mutex::new(Vec::new()));
    let within = levels().with_progress_callback({
        let (levels, tried) = (levels.clone(), tried.clone());
        move |_, _| {
            let mut tried = tried.lock().unwrap();
            if tried.is_empty() {
                let others = [(0, 2), (1, 3), (0, 3)].map(|(i, n)| part(levels(), i, n).map(drop));
                tried.extend(others.map(|other| other.is_err_and(is_busy)));
                tried.push(all(&levels).is_err_and(is_busy));
                tried.push(levels().build().map(drop).is_err_and(is_busy));
            }
        }
    });
    part(within, 0, 2).unwrap();
    assert_eq!(*tried.lock().unwrap(), [true; 5]);
    part(levels(), 1, 2).unwrap();
    let names = std::fs::read_dir(&level).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        names.iter().all(|name| name == "zarr.json" || name == "c"),
        "{names:?}"
    );
}

/// Writers within the array have no lease: they may be several.
#[test]
fn writers_within_the_array_are_not_refused() {
    let directory = tempfile::tempdir().unwrap();
    let builder = builder_of(directory.path(), 4 * SHARD).with_start(4 * SHARD);
    let extends = builder.build().unwrap();
    let within = builder_of(directory.path(), 4 * SHARD).with_start(SHARD);
    let both = [within.build().unwrap(), within.build().unwrap()];
    drop((both, extends));
    let names = std::fs::read_dir(directory.path().join("array")).unwrap();
    assert_eq!(names.count(), 1, "the metadata");
}

/// A writer that begins within the array has the lease from the moment on that it extends the array.
#[test]
fn a_writer_from_within_that_extends_the_array_is_alone() {
    let directory = tempfile::tempdir().unwrap();
    let end = 2 * SHARD;
    let mut first = builder_of(directory.path(), 0).build().unwrap();
    first.append(&slices(0..end)).unwrap();
    first.finish().unwrap();
    drop(first);
    let within = || builder_of(directory.path(), end).with_start(0);
    let lease = directory.path().join(LEASE);
    let mut writer = within().build().unwrap();
    writer.append(&slices(0..end)).unwrap();
    writer.flush().unwrap();
    assert!(!lease.exists());
    // Another process extends it now, and its shards are left alone.
    let mut extends = builder_of(directory.path(), end).build().unwrap();
    extends.append(&slices(end..end + SHARD)).unwrap();
    extends.flush().unwrap();
    let theirs = files_of(directory.path());
    // The shard is stored meanwhile, so the call that appends it may fail already.
    let appended = writer.append(&slices(end..end + SHARD));
    let error = appended.and_then(|()| writer.flush()).unwrap_err();
    assert!(error.to_string().contains("has the lease"), "{error}");
    assert!(files_of(directory.path()) == theirs);
    // It has extended the array.
    extends.finish().unwrap();
    let error = writer.flush().unwrap_err();
    assert!(
        error.to_string().contains("another process resizes"),
        "{error}"
    );
    drop(writer);
    drop(extends);
    assert!(!lease.exists());
    let store = Arc::new(FilesystemStore::new(directory.path()).unwrap());
    check(&store, end + SHARD);
    // Nobody else does.
    let mut writer = builder_of(directory.path(), end + SHARD)
        .with_start(SHARD)
        .build()
        .unwrap();
    writer.append(&slices(SHARD..end + SHARD)).unwrap();
    writer.flush().unwrap();
    assert!(!lease.exists());
    writer
        .append(&slices(end + SHARD..end + 2 * SHARD))
        .unwrap();
    writer.flush().unwrap();
    assert!(lease.exists());
    let end = end + SHARD;
    assert!(is_refused(
        builder_of(directory.path(), end + SHARD).build()
    ));
    // It finds out whether other software resizes the array, too.
    let resize = |slices: u64| {
        let mut array = zarrs::array::Array::open(store.clone(), "/array").unwrap();
        let shape = [&[slices], &array.shape()[1..]].concat();
        array.set_shape(shape).unwrap();
        array.store_metadata().unwrap();
    };
    resize(end + SHARD + 1);
    writer
        .append(&slices(end + SHARD..end + 2 * SHARD))
        .unwrap();
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.contains("another process resizes"), "{error}");
    resize(end + SHARD);
    writer.finish().unwrap();
    assert!(!lease.exists());
    check(&store, end + 2 * SHARD);
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

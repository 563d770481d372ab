//! Readers that follow a writer. Whenever they open the array, they see whole slices and no error.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use zarrs::array::Array;
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::writer::ArrayWriter;
use zarrs_cuda::{Backend, Options};
use zarrs_cuda_testing::frames::{Frames, Generations, PATH};
use zarrs_cuda_testing::{Rng, processes};

/// The observations of a follower.
#[derive(Debug, Default)]
struct Seen {
    opened: usize,
    lengths: BTreeSet<u64>,
}

/// Opens the array and reads it, repeatedly, until it has `end` slices.
fn follow(frames: &Frames, directory: &Path, end: u64) -> Result<Seen, String> {
    let generations = Generations::one();
    let mut random = Rng(end);
    let mut seen = Seen::default();
    let begin = Instant::now();
    loop {
        // Nothing is shared with the writer, as in another process.
        let store = Arc::new(FilesystemStore::new(directory).unwrap());
        let array = Array::open(store, PATH).map_err(|error| format!("cannot open: {error}"))?;
        let slices = array.shape()[0];
        if seen.lengths.last().is_some_and(|last| *last > slices) {
            return Err(format!("{slices} slices, and before {:?}", seen.lengths));
        }
        seen.opened += 1;
        seen.lengths.insert(slices);
        if slices > 0 {
            frames.check_slices(&array, &generations, 0..slices)?;
            let [height, width] = frames.frame;
            for _ in 0..3 {
                let ranges = [slices, height, width].map(|n| random.range(n));
                frames.check_subset(&array, &generations, &ranges)?;
            }
        }
        if slices == end {
            return Ok(seen);
        }
        if begin.elapsed() > Duration::from_mins(2) {
            return Err(format!("it does not end: {seen:?}"));
        }
    }
}

fn frames() -> Frames {
    Frames {
        compressors: json!([{ "name": "zstd", "configuration": { "level": 1, "checksum": false } }]),
        ..Frames::default()
    }
}

/// The final number of slices: in the middle of a shard.
const END: u64 = 8 * 60 + 3;

/// An array without slices.
fn create(frames: &Frames) -> (TempDir, Array<FilesystemStore>) {
    let directory = TempDir::new().unwrap();
    let store = Arc::new(FilesystemStore::new(directory.path()).unwrap());
    let array = frames.ours(store, 0);
    array.store_metadata().unwrap();
    (directory, array)
}

/// Writes like a camera until there are `END` slices.
fn write(frames: &Frames, array: &Array<FilesystemStore>, renames: bool) {
    let mut builder = ArrayWriter::builder(array)
        .with_epochs_per_batch(1)
        .with_metadata_interval(Duration::ZERO);
    if renames {
        builder = builder.with_atomic_rename(array.storage());
    }
    let mut writer = builder.build().unwrap();
    for slice in 0..END {
        writer.append(&frames.slice(0, slice)).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(writer.finish().unwrap().finished_slices, END);
}

const DIRECTORY: &str = "ZARRS_CUDA_TEST_FOLLOWED";

/// A follower with our codec in another process, which the test below starts.
#[test]
#[ignore = "a process of another test"]
fn following_process() {
    let Some(directory) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let options = Options::default().with_backend(Backend::Host);
    let _registration = zarrs_cuda::register(options).unwrap();
    let seen = follow(&frames(), Path::new(&directory), END).unwrap();
    println!("saw {} lengths", seen.lengths.len());
}

#[test]
fn followers_see_whole_slices() {
    let frames = frames();
    let (directory, array) = create(&frames);
    let _alone = crate::alone();
    let process = processes::again(module_path!(), "following_process", true)
        .env(DIRECTORY, directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A follower with zarrs' codec.
    let seen = std::thread::scope(|scope| {
        let follower = scope.spawn(|| follow(&frames, directory.path(), END));
        write(&frames, &array, true);
        follower.join().unwrap().unwrap()
    });
    let output = process.wait_with_output().unwrap();
    let (out, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}\n{errors}");
    println!(
        "{} lengths in {} openings; the process {out}",
        seen.lengths.len(),
        seen.opened
    );
    // The follower read the array many times while it grew.
    assert!(seen.lengths.len() > 20, "{seen:?}");
    let lengths = out
        .split("saw ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    assert!(lengths.unwrap().parse::<usize>().unwrap() > 10, "{out}");
    assert!(
        seen.lengths
            .iter()
            .all(|n| *n == END || n.is_multiple_of(8)),
        "{seen:?}"
    );
}

/// Without renaming of the metadata, followers see errors. So the test above can detect them.
#[test]
fn followers_of_a_plain_store_see_errors() {
    let _alone = crate::alone();
    let frames = frames();
    for attempt in 1..=20 {
        let (directory, array) = create(&frames);
        let seen = std::thread::scope(|scope| {
            let follower = scope.spawn(|| follow(&frames, directory.path(), END));
            write(&frames, &array, false);
            follower.join().unwrap()
        });
        if let Err(error) = seen {
            println!("attempt {attempt}: {error}");
            assert!(error.starts_with("cannot open"), "{error}");
            return;
        }
    }
    panic!("the followers above would not see a torn `zarr.json`");
}

//! Writers that are killed at random moments, and others that continue.
//!
//! A process appends to an array on a filesystem until it gets a signal that it cannot catch. Then
//! zarrs' own codec checks everything that is stored. Each process writes elements of its own, so
//! that the remains of earlier processes are detected.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use zarrs::array::Array;
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::writer::{ArrayWriter, Start};
use zarrs_cuda::{Backend, Options};
use zarrs_cuda_testing::frames::{self, Frames, Generations, PATH};
use zarrs_cuda_testing::{Rng, effort, processes};

const KILLS: u32 = 100;

/// The array that a process writes, and the options of the writer.
struct Setup {
    frames: Frames,
    epochs_per_batch: Option<usize>,
    metadata_interval: Duration,
    store_threads: usize,
    /// After how many slices the process flushes.
    flushes: Option<u64>,
}

impl Default for Setup {
    /// Two batches in each shard.
    fn default() -> Self {
        Self {
            frames: Frames::default(),
            epochs_per_batch: Some(2),
            metadata_interval: Duration::ZERO,
            store_threads: 2,
            flushes: None,
        }
    }
}

fn setups() -> Vec<Setup> {
    let zstd = json!([{ "name": "zstd", "configuration": { "level": 1, "checksum": false } }]);
    let gzip = json!([{ "name": "gzip", "configuration": { "level": 1 } }, { "name": "crc32c" }]);
    let compressed = |compressors: &serde_json::Value| Frames {
        compressors: compressors.clone(),
        ..Frames::default()
    };
    let later = Duration::from_millis(15);
    vec![
        Setup::default(),
        Setup {
            frames: compressed(&zstd),
            epochs_per_batch: Some(1),
            ..Setup::default()
        },
        // Each batch has whole shards, of several shard epochs.
        Setup {
            frames: compressed(&gzip),
            epochs_per_batch: Some(12),
            metadata_interval: later,
            flushes: Some(13),
            ..Setup::default()
        },
        // Each slice is an epoch. The index is at the start, and is written last.
        Setup {
            frames: Frames {
                subchunk: [1, 4, 8],
                index_at_start: true,
                ..Frames::default()
            },
            metadata_interval: later,
            ..Setup::default()
        },
        // All keys are in one directory.
        Setup {
            frames: Frames {
                separator: '.',
                ..compressed(&zstd)
            },
            epochs_per_batch: None,
            store_threads: 5,
            ..Setup::default()
        },
        // Each slice is a shard epoch of many shards.
        Setup {
            frames: Frames {
                shard: [1, 4, 4],
                subchunk: [1, 2, 4],
                ..Frames::default()
            },
            epochs_per_batch: Some(1),
            metadata_interval: later,
            store_threads: 3,
            ..Setup::default()
        },
        // A long shard, written by one thread.
        Setup {
            frames: Frames {
                frame: [8, 8],
                shard: [32, 8, 8],
                ..Frames::default()
            },
            epochs_per_batch: Some(4),
            store_threads: 1,
            ..Setup::default()
        },
    ]
}

/// The task of the process: setup, generation, the slice to finish at, and the folder.
const TASK: &str = "ZARRS_CUDA_TEST_WRITER";

/// A process that appends. The test below starts it.
#[test]
#[ignore = "a process of another test"]
fn writing_process() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let task: Vec<&str> = task.splitn(4, ' ').collect();
    let [setup, generation, end] = [0, 1, 2].map(|i| task[i].parse::<u64>().unwrap());
    let Setup {
        frames,
        epochs_per_batch,
        metadata_interval,
        store_threads,
        flushes,
    } = setups().remove(usize::try_from(setup).unwrap());

    let options = Options::default().with_backend(Backend::Host);
    let _registration = zarrs_cuda::register(options).unwrap();
    let store = Arc::new(FilesystemStore::new(task[3]).unwrap());
    let array = Array::open(store.clone(), PATH).unwrap();
    // Slices that are all of the fill value are not told from those of an array with its final shape.
    let end_stored = array.shape()[0];
    let is_border = end_stored.is_multiple_of(frames.shard[0]);
    let build = |start| {
        let builder = ArrayWriter::builder(&array)
            .with_start(start)
            .with_atomic_rename(store.clone())
            .with_metadata_interval(metadata_interval)
            .with_store_threads(store_threads);
        match epochs_per_batch {
            Some(epochs) => builder.with_epochs_per_batch(epochs).build(),
            None => builder.build(),
        }
    };
    let mut writer = if is_border {
        build(Start::Slice(end_stored)).unwrap()
    } else {
        build(Start::Resume).unwrap_or_else(|error| {
            assert!(error.to_string().contains("none of them is stored"));
            let border = end_stored / frames.shard[0] * frames.shard[0];
            let mut writer = build(Start::Slice(border)).unwrap();
            for _ in border..end_stored {
                writer.append(&vec![0_u16; frames.frame_len()]).unwrap();
            }
            writer
        })
    };
    let left = frames::temporaries(&*store);
    // A writer that resumes may have begun the temporaries of the last shards.
    let last = end_stored / frames.shard[0];
    let is_begun = |key: &String| {
        let shard = key
            .strip_suffix(".tmp")
            .and_then(|key| frames.shard_of(key));
        !is_border && shard.is_some_and(|shard| shard[0] == last)
    };
    assert!(left.iter().all(is_begun), "not cleaned: {left:?}");
    println!("begun");
    std::io::stdout().flush().unwrap();

    for slice in end_stored..end {
        let elements = frames.slice(generation, slice);
        let (some, others) = elements.split_at(elements.len() / 3);
        writer.append(some).unwrap();
        writer.append(others).unwrap();
        if flushes.is_some_and(|flushes| slice.is_multiple_of(flushes)) {
            writer.flush().unwrap();
        }
    }
    assert_eq!(writer.finish().unwrap().finished_slices, end);
}

fn start(setup: usize, generation: u64, end: u64, directory: &Path) -> Command {
    let mut command = processes::again(module_path!(), "writing_process", true);
    let directory = directory.to_str().unwrap();
    command.env(TASK, format!("{setup} {generation} {end} {directory}"));
    command
}

/// An array that several processes write, one after the other.
struct Subject {
    setup: Setup,
    directory: TempDir,
    generations: Generations,
    /// The number of slices.
    slices: u64,
}

/// The remains of the killed writers.
#[derive(Debug, Default)]
struct Left {
    /// The number of writers that were killed before they began to append.
    early: u64,
    temporaries: u64,
    metadata_temporaries: u64,
    /// The number of shards that the metadata do not cover.
    uncovered: u64,
    slices: u64,
}

impl Subject {
    fn new(setup: Setup) -> Self {
        let directory = TempDir::new().unwrap();
        let store = Arc::new(FilesystemStore::new(directory.path()).unwrap());
        setup.frames.stock(store, 0).store_metadata().unwrap();
        Self {
            setup,
            directory,
            generations: Generations::default(),
            slices: 0,
        }
    }

    fn store(&self) -> Arc<FilesystemStore> {
        Arc::new(FilesystemStore::new(self.directory.path()).unwrap())
    }

    /// Starts a process that writes, kills it after `time`, and checks the remains.
    fn kill(
        &mut self,
        number: usize,
        generation: u64,
        time: Duration,
        early: bool,
        left: &mut Left,
    ) {
        let case = format!("setup {number}, generation {generation}, {time:?}, early: {early}");
        self.generations.begin(self.slices, generation);
        let mut child = start(number, generation, u64::MAX, self.directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut lines = String::new();
        while !early && !lines.ends_with("begun\n") && output.read_line(&mut lines).unwrap() > 0 {}
        std::thread::sleep(time);
        child.kill().unwrap();
        let status = child.wait().unwrap();
        output.read_to_string(&mut lines).unwrap();
        let mut errors = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut errors)
            .unwrap();
        assert_eq!(
            status.signal(),
            Some(9),
            "{case}: {status}\n{lines}\n{errors}"
        );
        left.early += u64::from(!lines.contains("begun"));
        self.check(left)
            .unwrap_or_else(|error| panic!("{case}: {error}"));
    }

    /// Checks that the metadata cover only finished slices, and that the keys of shards hold whole
    /// shards.
    fn check(&mut self, left: &mut Left) -> Result<(), String> {
        let frames = &self.setup.frames;
        let array = Array::open(self.store(), PATH).map_err(|error| error.to_string())?;
        let (before, slices) = (self.slices, array.shape()[0]);
        if slices < before || (slices != before && !slices.is_multiple_of(frames.shard[0])) {
            return Err(format!("it has {slices} slices, after {before}"));
        }
        // The shards with the end of a session have slices of several generations.
        let begin = before / frames.shard[0] * frames.shard[0];
        frames.check_slices(&array, &self.generations, begin..slices)?;
        let first = before.div_ceil(frames.shard[0]);
        let (temporaries, shards) =
            frames.check_shards(&self.store(), &self.generations, first, u64::MAX)?;
        let covered = slices.div_ceil(frames.shard[0]);
        left.uncovered += shards.iter().filter(|s| s[0] >= covered).count() as u64;
        left.temporaries += temporaries.len() as u64;
        let of_metadata = |temporary: &&String| temporary.contains("zarr.json");
        left.metadata_temporaries += temporaries.iter().filter(of_metadata).count() as u64;
        left.slices += slices - before;
        self.slices = slices;
        Ok(())
    }

    /// Runs a process to the end, which is in the middle of a shard, and compares everything. The next process
    /// resumes there.
    fn finish(&mut self, number: usize, generation: u64, epochs: u64) {
        let frames = self.setup.frames.clone();
        self.generations.begin(self.slices, generation);
        let end = self.slices / frames.shard[0] * frames.shard[0];
        let end = end + epochs * frames.shard[0] + frames.shard[0] / 2 + 1;
        let output = start(number, generation, end, self.directory.path())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "setup {number}: {errors}");
        let array = Array::open(self.store(), PATH).unwrap();
        assert_eq!(array.shape(), [end, frames.frame[0], frames.frame[1]]);
        assert_eq!(array.attributes()["a"], "test");
        frames
            .check_slices(&array, &self.generations, 0..end)
            .unwrap();
        let left = frames::temporaries(&*self.store());
        assert!(left.is_empty(), "setup {number}: {left:?}");
        assert!(!self.directory.path().join(frames::LEASE).exists());
        self.slices = end;
    }
}

#[test]
fn killed_at_any_moment() {
    let _alone = crate::alone();
    let kills = u64::from(effort::times(KILLS));
    let mut random = Rng(effort::seed());
    let begin = Instant::now();
    let mut subjects: Vec<Subject> = setups().into_iter().map(Subject::new).collect();
    let count = subjects.len();
    let mut left = Left::default();
    for kill in 0..kills {
        let number = usize::try_from(kill).unwrap() % count;
        if random.below(3) == 0 {
            subjects[number].finish(number, kills + kill, random.below(2));
        }
        let early = random.below(5) == 0;
        let time = Duration::from_micros(random.below(40_000));
        subjects[number].kill(number, kill, time, early, &mut left);
    }
    println!("{kills} kills in {:?}: {left:?}", begin.elapsed());
    for (number, mut subject) in subjects.into_iter().enumerate() {
        subject.finish(number, 2 * kills, 3);
    }
    // The processes were killed in the middle of their work.
    assert!(
        left.temporaries > kills / 4 && left.uncovered > kills / 8,
        "{left:?}"
    );
    assert!(
        left.slices > kills / 2 && left.early < kills / 2,
        "{left:?}"
    );
}

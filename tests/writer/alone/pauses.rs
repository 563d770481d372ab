//! Writers whose input rests, killed at random moments: shards that were complete for long enough are covered.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use zarrs::array::Array;
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::writer::{ArrayWriter, ArrayWriterBuilder};
use zarrs_cuda::{Backend, Options};
use zarrs_cuda_testing::frames::{Frames, Generations, PATH};
use zarrs_cuda_testing::{Rng, effort, processes};

/// Processes at a time, and how often.
const AT_ONCE: u64 = 20;
const ROUNDS: u32 = 2;

/// How long a complete shard waits.
const AFTER: Duration = Duration::from_millis(100);

/// How long it may take to store and cover a shard, on a machine that has twenty other processes to run.
const STORING: Duration = Duration::from_millis(600);

/// The longest time until a process is killed.
const LIFE: u64 = 2_500;

/// The task of a process: its seed and its folder.
const TASK: &str = "ZARRS_CUDA_TEST_PAUSES";

fn builder(store: &Arc<FilesystemStore>) -> ArrayWriterBuilder<FilesystemStore> {
    let array = Array::open(store.clone(), PATH).unwrap();
    ArrayWriter::builder(&array)
        .with_atomic_rename(store.clone())
        // A batch of sixteen shard epochs.
        .with_epochs_per_batch(64)
}

/// A process that appends slices with pauses, and says which shards are complete.
#[test]
#[ignore = "a process of another test"]
fn writing_process() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let (seed, directory) = task.split_once(' ').unwrap();
    let mut random = Rng(seed.parse().unwrap());
    let frames = Frames::default();
    let options = Options::default().with_backend(Backend::Host);
    let _registration = zarrs_cuda::register(options).unwrap();
    let store = Arc::new(FilesystemStore::new(directory).unwrap());
    let mut writer = builder(&store).with_flush_after(AFTER).build().unwrap();
    let mut output = std::io::stdout().lock();
    writeln!(output, "begun").unwrap();
    output.flush().unwrap();
    for slice in 0.. {
        writer.append(&frames.slice(0, slice)).unwrap();
        if (slice + 1).is_multiple_of(frames.shard[0]) {
            writeln!(output, "complete {}", slice + 1).unwrap();
            output.flush().unwrap();
        }
        let pause = match random.below(20) {
            0 => random.below(300_000),
            1..10 => random.below(8_000),
            _ => 0,
        };
        std::thread::sleep(Duration::from_micros(pause));
    }
}

/// A process that writes, and when which slices were complete at the latest.
struct Writing {
    process: Child,
    told: JoinHandle<Vec<(u64, Instant)>>,
    directory: TempDir,
    life: Duration,
}

fn start(seed: u64, life: Duration) -> Writing {
    let directory = TempDir::new().unwrap();
    let store = Arc::new(FilesystemStore::new(directory.path()).unwrap());
    Frames::default().stock(store, 0).store_metadata().unwrap();
    let path = directory.path().to_str().unwrap();
    let mut process = processes::again(module_path!(), "writing_process", true)
        .env(TASK, format!("{seed} {path}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    // The harness writes before it, on the same line.
    while !lines.next().unwrap().unwrap().ends_with("begun") {}
    let told = std::thread::spawn(move || {
        let lines = lines.map_while(Result::ok);
        let complete = lines.filter_map(|line| line.strip_prefix("complete ")?.parse().ok());
        complete.map(|slices| (slices, Instant::now())).collect()
    });
    Writing {
        process,
        told,
        directory,
        life,
    }
}

/// The slices that the metadata of the array in `directory` cover; all of them are as they were appended.
fn covered(directory: &Path) -> u64 {
    let store = Arc::new(FilesystemStore::new(directory).unwrap());
    let array = Array::open(store, PATH).unwrap();
    let covered = array.shape()[0];
    let frames = Frames::default();
    frames
        .check_slices(&array, &Generations::one(), 0..covered)
        .unwrap();
    covered
}

#[test]
fn what_was_complete_for_long_enough_survives_a_kill() {
    let _alone = crate::alone();
    let seed = effort::seed();
    let mut random = Rng(seed);
    let (mut kills, mut judged, mut rest) = (0, 0, 0);
    for round in 0..u64::from(effort::times(ROUNDS)) {
        let seeds = (0..AT_ONCE).map(|n| seed ^ (round * AT_ONCE + n));
        let mut writers: Vec<_> = seeds
            .map(|seed| start(seed, Duration::from_millis(random.below(LIFE))))
            .collect();
        writers.sort_by_key(|writing| writing.life);
        let begin = Instant::now();
        for mut writing in writers {
            std::thread::sleep(writing.life.saturating_sub(begin.elapsed()));
            let killed = Instant::now();
            writing.process.kill().unwrap();
            assert_eq!(writing.process.wait().unwrap().signal(), Some(9));
            let told = writing.told.join().unwrap();
            let long_before = |at: Instant| killed.duration_since(at) >= AFTER + STORING;
            let due = told
                .iter()
                .filter(|(_, at)| *at <= killed && long_before(*at));
            let due = due.map(|(slices, _)| *slices).max().unwrap_or(0);
            let covered = covered(writing.directory.path());
            assert!(
                covered >= due,
                "slices below {due} were complete for {:?}, and {covered} are covered",
                AFTER + STORING
            );
            kills += 1;
            judged += u64::from(due > 0);
            rest += told
                .last()
                .map_or(0, |(last, _)| last.saturating_sub(covered));
        }
    }
    println!(
        "{kills} kills, {judged} after a shard was due, {rest} slices younger than that were lost"
    );
    assert!(judged > kills / 4, "{judged} of {kills}");
}

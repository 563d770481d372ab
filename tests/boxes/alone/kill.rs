//! Writers of boxes that are killed at random moments: each shard is old or new, and the shape covers nothing that
//! is not stored.
//!
//! Covered subchunks that are stored beside shards are old or new, each for itself. A killed process has no lock file:
//! the next one writes at once.
//!
//! A process writes boxes in rounds, and all elements of a round are its number. So a shard that is not torn has, in
//! each box of the round, one number alone.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use zarrs::array::{Array, ArrayBuilder, ArraySubset, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::maintenance::Shards;
use zarrs_cuda::storage::SparseShardStore;
use zarrs_cuda::writer::{BoxWriter, ShardUpdate};
use zarrs_cuda_testing::{Rng, effort, processes};

const KILLS: u32 = 40;
const SHARD: u64 = 8;
/// The number of shards along the second axis.
const WIDE: u64 = 3;

/// The task of the process: the number of the case, the first round, and the folder.
const TASK: &str = "ZARRS_CUDA_TEST_BOXES";

/// The ways to write: the update, and whether with lock files.
const CASES: [(ShardUpdate, bool); 4] = [
    (ShardUpdate::Rewrite, false),
    (ShardUpdate::InPlace, false),
    (ShardUpdate::Shared, false),
    (ShardUpdate::Rewrite, true),
];

fn array(directory: &Path, slices: u64) -> Array<FilesystemStore> {
    let store = Arc::new(FilesystemStore::new(directory).unwrap());
    let shape = vec![slices, WIDE * SHARD];
    let mut builder = ArrayBuilder::new(shape, vec![SHARD; 2], data_type::uint32(), 0_u32);
    builder.subchunk_shape(vec![SHARD / 2; 2]);
    builder.build(store, "/a").unwrap()
}

/// Returns the boxes of a round: all shards of a row, which it lets the array grow by, and a box in each shard of the
/// row before.
fn boxes(round: u64) -> (ArraySubset, Option<ArraySubset>) {
    let row = |round: u64| round * SHARD..(round + 1) * SHARD;
    let whole = ArraySubset::new_with_ranges(&[row(round), 0..WIDE * SHARD]);
    let part = round.checked_sub(1).map(|before| {
        let rows = before * SHARD + 1..(before + 1) * SHARD - 1;
        ArraySubset::new_with_ranges(&[rows, 3..WIDE * SHARD - 3])
    });
    (whole, part)
}

/// A process that writes. The test below starts it.
#[test]
#[ignore = "a process of another test"]
fn writing_process() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let task: Vec<&str> = task.splitn(3, ' ').collect();
    let (update, is_locked) = CASES[task[0].parse::<usize>().unwrap()];
    let array = array(Path::new(task[2]), 0);
    let writer = BoxWriter::builder(&array).with_update(update).with_growth();
    let mut writer = writer.with_sync(false);
    if is_locked {
        writer = writer.with_locks(Duration::from_secs(1));
    }
    let writer = writer.build().unwrap();
    println!("begun");
    std::io::stdout().flush().unwrap();
    for round in task[1].parse::<u64>().unwrap().. {
        let (whole, part) = boxes(round);
        for subset in std::iter::once(whole).chain(part) {
            let elements = vec![round as u32 + 1; subset.num_elements() as usize];
            writer.write(&subset, &elements).unwrap();
        }
    }
}

/// Checks what the killed process has left. Returns the first round that is not stored whole.
fn check(directory: &Path, update: ShardUpdate) -> u64 {
    let opened = Array::open(array(directory, 0).storage(), "/a").unwrap();
    let slices = opened.shape()[0];
    assert_eq!(
        slices % SHARD,
        0,
        "a shape of {slices} rows covers a part of a round"
    );
    if update == ShardUpdate::Shared {
        let sparse = SparseShardStore::open(opened.storage(), "/a").unwrap();
        sparse.consolidate_all(&|_| {}).unwrap();
    }
    if update == ShardUpdate::InPlace {
        let shards = Shards::of(&opened).unwrap();
        for (shard, _) in shards.stored().unwrap() {
            shards.recover(&shard).unwrap();
        }
    }
    let rounds = slices / SHARD;
    for round in 0..rounds {
        for column in 0..WIDE {
            let shard: Vec<u32> = opened.retrieve_chunk(&[round, column]).unwrap();
            let (_, part) = boxes(round + 1);
            let part = part.unwrap();
            let mut inside = Vec::new();
            for (number, element) in shard.iter().enumerate() {
                let at = [
                    round * SHARD + number as u64 / SHARD,
                    column * SHARD + number as u64 % SHARD,
                ];
                let is_inside = (0..2).all(|axis| {
                    let start = part.start()[axis];
                    (start..start + part.shape()[axis]).contains(&at[axis])
                });
                if is_inside {
                    inside.push(*element);
                } else {
                    assert_eq!(u64::from(*element), round + 1, "{at:?}");
                }
            }
            let known = inside.iter().all(|element| {
                let number = u64::from(*element);
                number == round + 1 || number == round + 2
            });
            assert!(known, "round {round}, column {column}: {inside:?}");
            let is_torn = inside.windows(2).any(|pair| pair[0] != pair[1]);
            // Subchunks that are written for themselves may be old and new side by side.
            assert!(!is_torn || update != ShardUpdate::Rewrite, "{inside:?}");
        }
    }
    rounds
}

#[test]
fn killed_at_any_moment() {
    let _alone = crate::alone();
    let mut random = Rng(effort::seed());
    for (case, (update, _)) in CASES.into_iter().enumerate() {
        let directory = TempDir::new().unwrap();
        array(directory.path(), 0).store_metadata().unwrap();
        let mut rounds = 0;
        for _ in 0..effort::times(KILLS) / 2 {
            let mut command = processes::again(module_path!(), "writing_process", true);
            command.env(
                TASK,
                format!("{case} {rounds} {}", directory.path().display()),
            );
            let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
            let mut output = BufReader::new(child.stdout.take().unwrap());
            let mut line = String::new();
            while !line.ends_with("begun\n") && output.read_line(&mut line).unwrap() > 0 {}
            std::thread::sleep(Duration::from_micros(random.below(20_000)));
            child.kill().unwrap();
            assert_eq!(child.wait().unwrap().signal(), Some(9));
            let now = check(directory.path(), update);
            assert!(now >= rounds, "{now} rounds after {rounds}");
            rounds = now;
        }
        assert!(rounds > 10, "{rounds} rounds of case {case}");
    }
}

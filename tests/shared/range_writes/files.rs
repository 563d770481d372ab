//! Files of which several processes update parts where they are.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use zarrs::array::codec::ShardingIndexLocation as Location;
use zarrs::array::{Array, ArrayBytes, ArrayError, ArraySubset};
use zarrs::filesystem::FilesystemStore;
use zarrs_codec::{CodecError, CodecOptions};
use zarrs_cuda::storage::RangeWrites;
use zarrs_cuda::{Options, WriteStrategy};

use crate::updates::case::{Case, STRATEGIES, Values, chain_named};
use zarrs_cuda_testing::processes;

const PROCESSES: u64 = 4;
/// Subchunks that each process writes, in each of two shards that do not exist at first.
const ROUNDS: u64 = 12;
const LEN: u64 = 8;
const ROOT: &str = "ZARRS_CUDA_TEST_ROOT";
const PROCESS: &str = "ZARRS_CUDA_TEST_PROCESS";
const STRATEGY: &str = "ZARRS_CUDA_TEST_STRATEGY";

fn case() -> Case {
    Case {
        shape: vec![PROCESSES * ROUNDS * LEN],
        subchunk: vec![LEN],
        ..Case::new(chain_named("zstd"), Location::End)
    }
}

fn array(root: &Path, options: Options) -> Array<RangeWrites<FilesystemStore>> {
    let store = Arc::new(FilesystemStore::new(root).unwrap());
    case().ours(&Arc::new(RangeWrites::on_filesystem(store)), options)
}

fn store(
    array: &Array<RangeWrites<FilesystemStore>>,
    shard: u64,
    number: u64,
) -> Result<(), ArrayError> {
    let values = Values::Any(1 + number).elements(&case(), 8);
    let options = CodecOptions::default().with_experimental_partial_encoding(true);
    let bytes = case().to_bytes(&values);
    array.store_chunk_subset_opt(&[shard], &subchunk(number), bytes, &options)
}

fn subchunk(number: u64) -> ArraySubset {
    ArraySubset::new_with_ranges(&[number * LEN..(number + 1) * LEN])
}

/// In a process of its own, which begins when it is told.
fn write_as_one_of_several(process: u64) {
    let root = std::env::var(ROOT).unwrap();
    let strategy: usize = std::env::var(STRATEGY).unwrap().parse().unwrap();
    let options = Options::default()
        .with_write_strategy(STRATEGIES[strategy])
        .with_turn_limit(Duration::from_mins(1));
    let array = array(Path::new(&root), options);
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    for round in 0..ROUNDS {
        for shard in 0..2 {
            store(&array, shard, round * PROCESSES + process).unwrap();
        }
    }
}

#[test]
fn processes_lose_nothing() {
    if let Ok(process) = std::env::var(PROCESS) {
        write_as_one_of_several(process.parse().unwrap());
        return;
    }
    for (number, strategy) in STRATEGIES.into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let started = (0..PROCESSES).map(|process| {
            let mut command = processes::again(module_path!(), "processes_lose_nothing", false);
            command
                .env(ROOT, directory.path())
                .env(PROCESS, process.to_string())
                .env(STRATEGY, number.to_string())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        });
        let mut started: Vec<_> = started.collect();
        let mut outputs = Vec::new();
        for child in &mut started {
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap().contains("ready")));
            outputs.push(lines);
        }
        for child in &mut started {
            child.stdin.take().unwrap().write_all(b"\n").unwrap();
        }
        for (mut child, lines) in started.into_iter().zip(outputs) {
            let output: Vec<_> = lines.map(Result::unwrap).collect();
            assert!(child.wait().unwrap().success(), "{output:?}");
        }
        check(directory.path(), strategy);
    }
}

/// Every subchunk of every process is there, for zarrs' own codec.
fn check(root: &Path, strategy: WriteStrategy) {
    let store = Arc::new(FilesystemStore::new(root).unwrap());
    let stock = case().stock(&store);
    for shard in 0..2 {
        for number in 0..PROCESSES * ROUNDS {
            let read = stock.retrieve_chunk_subset::<ArrayBytes>(&[shard], &subchunk(number));
            let expected = Values::Any(1 + number).elements(&case(), 8);
            assert_eq!(
                case().parse(read.unwrap()),
                expected,
                "{number} of {shard}, {strategy:?}"
            );
        }
    }
    let names = std::fs::read_dir(root.join("array/c")).unwrap();
    assert_eq!(names.count(), 2, "no temporary is left");
}

/// Another process holds the file, and goes on holding it.
#[test]
fn a_held_file_is_refused_in_time() {
    let directory = tempfile::tempdir().unwrap();
    let limit = Duration::from_millis(200);
    let array = array(directory.path(), Options::default().with_turn_limit(limit));
    // The directory of a shard that does not exist, and then its file.
    std::fs::create_dir_all(directory.path().join("array/c")).unwrap();
    for place in ["array/c", "array/c/0"] {
        let path = directory.path().join(place);
        let held = std::fs::File::open(&path).unwrap();
        held.lock().unwrap();
        let before = std::fs::read(&path).ok();
        let since = std::time::Instant::now();
        let error = store(&array, 0, 1).unwrap_err();
        let ArrayError::CodecError(CodecError::IOError(error)) = &error else {
            panic!("{error}");
        };
        assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
        assert!(since.elapsed() >= limit && since.elapsed() < 20 * limit);
        assert_eq!(std::fs::read(&path).ok(), before);
        drop(held);
        store(&array, 0, 1).unwrap();
    }
}

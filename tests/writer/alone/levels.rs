//! Writers of images that are killed at random moments while every level is followed, and others that
//! continue. In the end all files are the same as if one writer had done it all.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use zarrs::array::codec::ZstdCodec;
use zarrs::array::{Array, ArrayBuilder, ArraySubset, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::{ListableStorageTraits, ReadableStorageTraits, StoreKey};
use zarrs_cuda::writer::{Axis, MultiscaleWriter, Reduction, Resume};
use zarrs_cuda::{Backend, CudaShardingCodecBuilder, Options};
use zarrs_cuda_testing::{Rng, effort, processes};

const KILLS: u32 = 40;
const FRAME: [u64; 2] = [13, 22];
const LEVELS: usize = 3;

/// An image, and how it is written.
#[derive(Clone, Copy)]
struct Setup {
    factors: [u64; 3],
    shard: [u64; 3],
    subchunk: [u64; 3],
    is_compressed: bool,
    epochs: usize,
    /// After how many slices the process flushes.
    flushes: u64,
    slices: u64,
}

/// The shards of the levels end at the same slices of level 0, or at others.
const SETUPS: [Setup; 3] = [
    Setup {
        factors: [2, 2, 2],
        shard: [4, 8, 16],
        subchunk: [2, 4, 8],
        is_compressed: true,
        epochs: 1,
        flushes: u64::MAX,
        slices: 203,
    },
    Setup {
        factors: [2, 2, 1],
        shard: [3, 16, 32],
        subchunk: [1, 16, 16],
        is_compressed: false,
        epochs: 3,
        flushes: 11,
        slices: 202,
    },
    Setup {
        factors: [1, 2, 2],
        shard: [2, 8, 8],
        subchunk: [1, 8, 4],
        is_compressed: true,
        epochs: 4,
        flushes: u64::MAX,
        slices: 150,
    },
];

/// The elements of a slice, which are never all 0.
fn slice(number: u64) -> Vec<u16> {
    let mut random = Rng(number);
    (0..FRAME[0] * FRAME[1])
        .map(|_| u16::try_from(random.below(1 << 16)).unwrap())
        .collect()
}

fn writer(setup: &Setup, directory: &Path) -> MultiscaleWriter {
    let store = Arc::new(FilesystemStore::new(directory).unwrap());
    let subchunk = setup.subchunk.map(|extent| extent.try_into().unwrap());
    let mut codec = CudaShardingCodecBuilder::new(subchunk.to_vec(), &data_type::uint16());
    codec.options(Options::default().with_backend(Backend::Host));
    if setup.is_compressed {
        codec.bytes_to_bytes_codecs(vec![Arc::new(ZstdCodec::new(1, false))]);
    }
    let shape = vec![0, FRAME[0], FRAME[1]];
    let mut builder = ArrayBuilder::new(shape, setup.shard, data_type::uint16(), 0_u16);
    builder.array_to_bytes_codec(codec.build_arc().unwrap());
    let array = builder.build(store.clone(), "/image/0").unwrap();
    let axes = std::iter::zip(["z", "y", "x"], setup.factors);
    MultiscaleWriter::builder(&array)
        .with_axes(axes.map(|(name, factor)| Axis::space(name).with_factor(factor)))
        // A writer that was killed while it finished may have left a short last shard.
        .with_start(Resume)
        .with_levels(LEVELS)
        .with_reduction(Reduction::Mean)
        .with_epochs_per_batch(setup.epochs)
        .with_metadata_interval(Duration::ZERO)
        .with_store_threads(3)
        .with_atomic_rename(store)
        .build()
        .unwrap()
}

/// Appends everything that is not stored yet.
fn write(setup: &Setup, directory: &Path, begun: impl FnOnce()) {
    let mut writer = writer(setup, directory);
    begun();
    for number in writer.start()..setup.slices {
        let elements = slice(number);
        let (some, others) = elements.split_at(elements.len() / 3);
        writer.append(some).unwrap();
        writer.append(others).unwrap();
        if number.is_multiple_of(setup.flushes) {
            writer.flush().unwrap();
        }
    }
    writer.finish().unwrap();
}

/// The task of the process: the setup, and the folder.
const TASK: &str = "ZARRS_CUDA_TEST_LEVELS";

/// A process that appends. The test below starts it.
#[test]
#[ignore = "a process of another test"]
fn writing_process() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let (setup, directory) = task.split_once(' ').unwrap();
    let setup = &SETUPS[setup.parse::<usize>().unwrap()];
    write(setup, Path::new(directory), || {
        println!("begun");
        std::io::stdout().flush().unwrap();
    });
}

/// All files of a folder.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let store = FilesystemStore::new(directory).unwrap();
    let keys = store.list().unwrap();
    let value = |key: &StoreKey| {
        let value = store.get(key).unwrap().unwrap().to_vec();
        if key.as_str() != "image/zarr.json" {
            return value;
        }
        // The times of files differ.
        let mut group: serde_json::Value = serde_json::from_slice(&value).unwrap();
        let image = &mut group["attributes"]["ome"]["multiscales"][0];
        let metadata = image["metadata"].as_object_mut().unwrap();
        metadata.remove("made_from");
        group.to_string().into_bytes()
    };
    keys.iter()
        .map(|key| (key.as_str().to_owned(), value(key)))
        .collect()
}

fn elements(directory: &Path, level: usize) -> Option<(u64, Vec<u16>)> {
    let store = Arc::new(FilesystemStore::new(directory).unwrap());
    // There may be no array yet.
    let array = Array::open(store, &format!("/image/{level}")).ok()?;
    let shape = array.shape().to_vec();
    let all = ArraySubset::new_with_shape(shape.clone());
    Some((shape[0], array.retrieve_array_subset(&all).unwrap()))
}

/// Reads all that a level's shape covers until `stop`, and compares it with the undisturbed level.
/// Returns how many lengths it saw.
fn follow(directory: &Path, level: usize, undisturbed: &[u16], stop: &AtomicBool) -> usize {
    let mut lengths = std::collections::BTreeSet::new();
    while !stop.load(Ordering::Relaxed) {
        if let Some((length, elements)) = elements(directory, level) {
            lengths.insert(length);
            assert!(
                elements == undisturbed[..elements.len()],
                "level {level}, {length} slices"
            );
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    lengths.len()
}

/// Ends the followers when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn killed_while_all_levels_are_followed() {
    let _alone = crate::alone();
    let kills = effort::times(KILLS);
    let mut random = Rng(effort::seed());
    for (number, setup) in SETUPS.iter().enumerate() {
        let undisturbed = TempDir::new().unwrap();
        write(setup, undisturbed.path(), || {});
        let expected = files(undisturbed.path());
        let levels: Vec<Vec<u16>> = (0..LEVELS)
            .map(|level| elements(undisturbed.path(), level).unwrap().1)
            .collect();

        let directory = TempDir::new().unwrap();
        let stop = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let followers: Vec<_> = (levels.iter().enumerate())
                .map(|(level, elements)| {
                    let (directory, stop) = (directory.path(), &stop);
                    scope.spawn(move || follow(directory, level, elements, stop))
                })
                .collect();
            {
                // Followers end after a failure, too.
                let _stop = Stop(&stop);
                for _ in 0..kills / u32::try_from(SETUPS.len()).unwrap() {
                    kill(number, directory.path(), &mut random);
                }
                write(setup, directory.path(), || {});
            }
            let seen = followers.into_iter().map(|thread| thread.join().unwrap());
            seen.collect::<Vec<_>>()
        });
        let found = files(directory.path());
        let keys = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&found), keys(&expected), "setup {number}");
        let other = expected.iter().find(|(key, value)| found[*key] != **value);
        assert_eq!(other.map(|(key, _)| key), None, "setup {number}");
        // Followers saw the levels grow.
        assert!(seen[0] > 3 && seen[2] > 1, "setup {number}: {seen:?}");
    }
}

/// Starts a process that writes, and kills it at a random moment.
fn kill(setup: usize, directory: &Path, random: &mut Rng) {
    let task = format!("{setup} {}", directory.to_str().unwrap());
    let mut child = processes::again(module_path!(), "writing_process", true)
        .env(TASK, task)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let is_early = random.below(5) == 0;
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = String::new();
    while !is_early && !lines.ends_with("begun\n") && output.read_line(&mut lines).unwrap() > 0 {}
    std::thread::sleep(Duration::from_micros(random.below(30_000)));
    child.kill().unwrap();
    let status = child.wait().unwrap();
    let mut errors = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut errors)
        .unwrap();
    // It may have finished, but did not fail.
    assert!(
        status.signal() == Some(9) || status.success(),
        "{status}\n{errors}"
    );
}

//! Ctrl-C, SIGTERM and kills while shards are worked on. (`reencode.rs` and `stream.rs` have their own.)
#![cfg(unix)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use zarrs::array::{Array, ArrayBuilder, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::storage::SparseShardStore;
use zarrs_cuda_testing::{Rng, effort};

use crate::arrays::{chain, open, sharded, store, update, values};
use crate::program::{files, program, said, said_with_code, send};

/// How often a run is killed before one may end.
const KILLS: u64 = 12;
/// How long a run may take until something is done.
const PATIENCE: Duration = Duration::from_mins(1);
/// The bytes of a shard that has two subchunks of two bytes: these, and an index at the end.
const LIVE: usize = 4;
const INDEX: usize = 4 * 16 + 4;

/// Work on the shards of an array: what is to be done, and whether it is done.
trait Work {
    const SUBCOMMAND: &'static str;
    /// Makes an array of so many shards, each with something to do.
    fn new(path: PathBuf, shards: u64) -> Self;
    fn path(&self) -> &Path;
    /// Makes everything undone.
    fn undo(&self);
    /// How many shards are done.
    fn done(&self) -> usize;
    /// Fails if something is lost.
    fn check(&self);
}

/// An array of shards of eight bytes in four subchunks.
fn array(path: &Path, shards: u64) -> Array<FilesystemStore> {
    let shape = vec![shards * 8];
    let mut builder = ArrayBuilder::new(shape, vec![8], data_type::uint8(), 0_u8);
    builder.subchunk_shape(vec![2]);
    let array = builder.build(store(path), "/").unwrap();
    array.store_metadata().unwrap();
    array
}

fn all(path: &Path) -> Vec<u8> {
    let array = open(path);
    array.retrieve_array_subset(&array.subset_all()).unwrap()
}

fn file(path: &Path, shard: u64) -> PathBuf {
    path.join(format!("c/{shard}"))
}

/// Subchunks wait beside each shard.
struct Consolidation {
    path: PathBuf,
    shards: u64,
    subchunks: Array<SparseShardStore<FilesystemStore>>,
}

impl Consolidation {
    fn is_right(elements: &[u8]) -> bool {
        let mut shards = elements.chunks(8);
        shards.all(|shard| shard == [7, 7, 0, 0, 5, 5, 0, 0])
    }
}

impl Work for Consolidation {
    const SUBCOMMAND: &'static str = "consolidate";

    fn new(path: PathBuf, shards: u64) -> Self {
        array(&path, shards);
        let sparse = Arc::new(SparseShardStore::open(store(&path), "/").unwrap());
        let subchunks = Array::open(sparse, "/").unwrap();
        Self {
            path,
            shards,
            subchunks,
        }
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn undo(&self) {
        for shard in 0..self.shards {
            let _ = fs::remove_file(file(&self.path, shard)); // there may be none
        }
        for shard in 0..self.shards {
            for (subchunk, value) in [(0, 7_u8), (2, 5)] {
                let indices = [4 * shard + subchunk];
                self.subchunks
                    .store_chunk(&indices, vec![value; 2])
                    .unwrap();
            }
        }
    }

    fn done(&self) -> usize {
        let is_done = |shard: &u64| file(&self.path, *shard).is_file();
        (0..self.shards).filter(is_done).count()
    }

    fn check(&self) {
        let elements: Vec<u8> = self
            .subchunks
            .retrieve_array_subset(&self.subchunks.subset_all())
            .unwrap();
        assert!(Self::is_right(&elements), "something was lost");
        if self.done() as u64 == self.shards {
            assert!(Self::is_right(&all(&self.path)), "something was lost");
        }
    }
}

/// Each shard has unused bytes between the subchunks and the index.
struct Compaction {
    path: PathBuf,
    shards: u64,
    small: Vec<u8>,
    large: Vec<u8>,
}

impl Work for Compaction {
    const SUBCOMMAND: &'static str = "compact";

    fn new(path: PathBuf, shards: u64) -> Self {
        let array = array(&path, shards);
        array
            .store_chunk(&[0], vec![3_u8, 3, 0, 0, 4, 4, 0, 0])
            .unwrap();
        let stored = fs::read(file(&path, 0)).unwrap();
        assert_eq!(stored.len(), LIVE + INDEX);
        let mut large = stored[..LIVE].to_vec();
        large.extend([0xee; 4000]);
        large.extend(&stored[LIVE..]);
        // zarrs stores the subchunks in any order.
        fs::write(file(&path, 0), &large).unwrap();
        said(&[&"compact", &path], 0);
        let small = fs::read(file(&path, 0)).unwrap();
        assert_eq!(small.len(), LIVE + INDEX);
        Self {
            path,
            shards,
            small,
            large,
        }
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn undo(&self) {
        for shard in 0..self.shards {
            fs::write(file(&self.path, shard), &self.large).unwrap();
        }
    }

    fn done(&self) -> usize {
        let is_done = |shard: &u64| fs::read(file(&self.path, *shard)).unwrap() == self.small;
        (0..self.shards).filter(is_done).count()
    }

    fn check(&self) {
        for shard in 0..self.shards {
            let bytes = fs::read(file(&self.path, shard)).unwrap();
            let is_whole = bytes == self.small || bytes == self.large;
            assert!(is_whole, "shard {shard} is torn");
        }
    }
}

/// Each shard has an update that was interrupted.
struct Recovery {
    path: PathBuf,
    shards: u64,
    torn: Vec<u8>,
    /// What one uninterrupted recovery makes of it.
    whole: Vec<u8>,
    elements: Vec<u16>,
}

impl Work for Recovery {
    const SUBCOMMAND: &'static str = "recover";

    fn new(path: PathBuf, shards: u64) -> Self {
        let one = TempDir::new().unwrap();
        sharded(one.path(), &chain(&[json!({ "name": "crc32c" })]));
        update(one.path(), 3);
        let shard = one.path().join("c/0/0");
        let mut torn = fs::read(&shard).unwrap();
        torn.truncate(torn.len() - 40);
        fs::write(&shard, &torn).unwrap();
        let text = said(&[&"recover", &one.path()], 0);
        assert!(text.contains("was undone"), "{text}");
        let whole = fs::read(&shard).unwrap();
        assert_ne!(whole, torn);
        let array = open(one.path());
        let elements = array.retrieve_chunk(&[0, 0]).unwrap();
        // The same shard many times.
        let metadata = fs::read_to_string(one.path().join("zarr.json")).unwrap();
        let mut metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
        metadata["shape"] = json!([16 * shards, 16]);
        fs::write(path.join("zarr.json"), metadata.to_string()).unwrap();
        Self {
            path,
            shards,
            torn,
            whole,
            elements,
        }
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn undo(&self) {
        for shard in 0..self.shards {
            let folder = file(&self.path, shard);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("0"), &self.torn).unwrap();
        }
    }

    /// The old index is at the end again. (A run that was killed right after it wrote the index leaves a
    /// record that says nothing any more.)
    fn done(&self) -> usize {
        let is_done = |shard: &u64| {
            let bytes = fs::read(file(&self.path, *shard).join("0")).unwrap();
            let index = |bytes: &[u8]| bytes[bytes.len() - INDEX..].to_vec();
            bytes.len() == self.whole.len() && index(&bytes) == index(&self.whole)
        };
        (0..self.shards).filter(is_done).count()
    }

    fn check(&self) {
        if self.done() as u64 == self.shards {
            let all = values(&self.path);
            assert!(
                all.chunks(self.elements.len())
                    .all(|shard| shard == self.elements),
                "something was lost"
            );
            let text = said(&[&"verify", &self.path], 0);
            assert!(text.contains("no damage found"), "{text}");
        }
    }
}

fn spawned(subcommand: &str, path: &Path) -> Child {
    program()
        .arg(subcommand)
        .arg(path)
        .args(["--threads", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Begins the work, and waits until something is done, but not everything. Tries again if it was too
/// fast.
fn half_done<W: Work>(work: &W, stop: impl Fn(&mut Child)) -> std::process::Output {
    for _ in 0..8 {
        work.undo();
        assert_eq!(work.done(), 0);
        let mut child = spawned(W::SUBCOMMAND, work.path());
        let start = Instant::now();
        while work.done() == 0 && child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < PATIENCE, "nothing is done");
            sleep(Duration::from_micros(200));
        }
        stop(&mut child);
        let ended = child.wait_with_output().unwrap();
        if ended.status.code() != Some(0) {
            return ended;
        }
    }
    panic!("{} was too fast", W::SUBCOMMAND);
}

/// No file but the array's: shards have numbers for names.
fn check_leftovers(path: &Path) {
    let is_left = |path: &PathBuf| path.extension().is_some() && !path.ends_with("zarr.json");
    let left: Vec<_> = files(path).into_iter().filter(is_left).collect();
    assert!(
        left.is_empty(),
        "{} files are left: {}",
        left.len(),
        left[0].display()
    );
}

fn ctrl_c<W: Work>(stays: &str) {
    for signal in ["-INT", "-TERM"] {
        stopped_by::<W>(signal, stays);
    }
}

fn stopped_by<W: Work>(signal: &str, stays: &str) {
    const SHARDS: u64 = 1000;
    let folder = TempDir::new().unwrap();
    let work = W::new(folder.path().to_path_buf(), SHARDS);
    let ended = half_done(&work, |child| {
        if child.try_wait().unwrap().is_none() {
            send(signal, child);
        }
    });
    let text = said_with_code(&ended, 130);
    assert!(text.contains(&format!("of {SHARDS} shards")), "{text}");
    let help = format!("help: {stays}: run the same command again");
    assert!(text.contains(&help), "{text}");
    work.check();
    said(&[&W::SUBCOMMAND, &work.path()], 0);
    assert_eq!(work.done() as u64, SHARDS);
    work.check();
    check_leftovers(work.path());
}

/// Killed at any moment and run again until one run ends.
fn kills<W: Work>() {
    const SHARDS: u64 = 150;
    let mut rng = Rng(effort::seed());
    let folder = TempDir::new().unwrap();
    let work = W::new(folder.path().to_path_buf(), SHARDS);
    work.undo();
    let start = Instant::now();
    said(&[&W::SUBCOMMAND, &work.path(), &"--threads", &"1"], 0);
    let whole = start.elapsed();
    let first = half_done(&work, |child| child.kill().unwrap());
    assert_eq!(first.status.code(), None, "it ended by itself");
    let mut between = 0;
    for _ in 0..KILLS {
        let done = work.done();
        between += usize::from(0 < done && done < SHARDS as usize);
        work.check();
        let mut child = spawned(W::SUBCOMMAND, work.path());
        sleep(Duration::from_micros(rng.below(whole.as_micros() as u64)));
        child.kill().unwrap();
        let ended = child.wait_with_output().unwrap();
        if ended.status.code().is_some() {
            said_with_code(&ended, 0);
            break;
        }
    }
    assert!(between > 0, "no kill was in the middle");
    said(&[&W::SUBCOMMAND, &work.path()], 0);
    assert_eq!(work.done() as u64, SHARDS);
    work.check();
    check_leftovers(work.path());
}

#[test]
fn ctrl_c_in_consolidate() {
    ctrl_c::<Consolidation>("nothing is lost");
}

#[test]
fn ctrl_c_in_compact() {
    ctrl_c::<Compaction>("no shard was left torn");
}

#[test]
fn ctrl_c_in_recover() {
    ctrl_c::<Recovery>("shards that were repaired stay so");
}

#[test]
fn kills_of_consolidate() {
    kills::<Consolidation>();
}

#[test]
fn kills_of_compact() {
    kills::<Compaction>();
}

#[test]
fn kills_of_recover() {
    kills::<Recovery>();
}

/// Stops the program after half of the time that it takes, until it says all `words`.
fn stopped_in_the_middle(subcommand: &str, path: &Path, words: &[&str]) {
    let start = Instant::now();
    said(&[&subcommand, &path, &"--threads", &"1"], 0);
    let mut half = start.elapsed() / 2;
    let mut texts = Vec::new();
    for attempt in 0..20 {
        let child = spawned(subcommand, path);
        sleep(half);
        send(["-INT", "-TERM"][attempt % 2], &child);
        let ended = child.wait_with_output().unwrap();
        match ended.status.code() {
            // It was too fast.
            Some(0) => half = half * 3 / 4,
            // It did not listen yet.
            None => half = half * 5 / 4,
            Some(_) => {
                texts.push(said_with_code(&ended, 130));
                if words
                    .iter()
                    .all(|words| texts[texts.len() - 1].contains(words))
                {
                    return;
                }
            }
        }
    }
    panic!("{subcommand} never said {words:?}: {texts:?}");
}

#[test]
fn ctrl_c_in_what_only_reads() {
    let folder = TempDir::new().unwrap();
    let work = Compaction::new(folder.path().to_path_buf(), 3000);
    work.undo();
    let words = [
        "verifying stopped after",
        "help: nothing was changed: run the same command again",
    ];
    stopped_in_the_middle("verify", work.path(), &words);
    stopped_in_the_middle("inspect", work.path(), &["interrupted"]);
    assert_eq!(work.done(), 0);
    work.check();
}

#[test]
fn ctrl_c_in_bench() {
    for signal in ["-INT", "-TERM"] {
        bench_stopped_by(signal);
    }
}

fn bench_stopped_by(signal: &str) {
    let folder = TempDir::new().unwrap();
    let mut child = program()
        .arg("bench")
        .arg(folder.path())
        .args(["--size", "1MiB", "--rounds", "100000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while files(folder.path()).is_empty() {
        assert!(child.try_wait().unwrap().is_none());
        sleep(Duration::from_millis(1));
    }
    send(signal, &child);
    let text = said_with_code(&child.wait_with_output().unwrap(), 130);
    assert!(text.contains("its files are deleted"), "{text}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

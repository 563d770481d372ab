//! Runs the targets on the inputs of their corpora, and on new ones.
//!
//! `ZARRS_CUDA_FUZZ_SECONDS` sets how long each target gets new inputs. `ZARRS_CUDA_FUZZ_SEED`
//! repeats the inputs of an earlier run. `ZARRS_CUDA_FUZZ_TARGETS` selects targets, by names with
//! commas.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{TARGETS, Target, run};
use zarrs_cuda_testing::Rng;

/// The largest length of an input, in bytes.
const MOST_BYTES: usize = 1024;

fn main_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn from_environment<T: std::str::FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    let parsed = value.parse().ok();
    assert!(parsed.is_some(), "{name}={value} is not understood");
    parsed
}

fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files: Vec<PathBuf> = fs::read_dir(main_folder().join(name))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
        .into_iter()
        .map(|file| (file.clone(), fs::read(file).unwrap()))
        .collect()
}

fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| rng.byte()).collect()
}

fn below(rng: &mut Rng, n: usize) -> usize {
    usize::try_from(rng.below(n as u64)).unwrap()
}

/// A new input: random bytes, or one of the corpus with some bytes changed.
fn input(rng: &mut Rng, corpus: &[(PathBuf, Vec<u8>)]) -> Vec<u8> {
    if corpus.is_empty() || rng.one_in(2) {
        let len = below(rng, MOST_BYTES);
        return bytes(rng, len);
    }
    let mut input = corpus[below(rng, corpus.len())].1.clone();
    for _ in 0..=below(rng, 8) {
        if let Some(len) = input.len().checked_sub(1) {
            let at = below(rng, len + 1);
            input[at] = rng.byte();
        }
    }
    input
}

/// All targets in one test: their allocations are measured for the whole process, and the last
/// target registers a codec with zarrs.
#[test]
fn targets_find_nothing() {
    let seconds = from_environment("ZARRS_CUDA_FUZZ_SECONDS").unwrap_or(2);
    let seed = from_environment("ZARRS_CUDA_FUZZ_SEED")
        .unwrap_or_else(|| RandomState::new().hash_one(std::process::id()));
    println!("ZARRS_CUDA_FUZZ_SEED={seed}");
    let names: Option<String> = from_environment("ZARRS_CUDA_FUZZ_TARGETS");
    let is_wanted = |name| {
        names
            .as_ref()
            .is_none_or(|names| names.split(',').any(|n| n == name))
    };
    let wanted: Vec<_> = TARGETS
        .iter()
        .filter(|(name, _)| is_wanted(*name))
        .collect();
    assert!(!wanted.is_empty(), "no target is called {names:?}");
    for (name, target) in wanted {
        let corpus = corpus(name);
        for (file, input) in &corpus {
            println!("{}", file.display());
            run(*target, input);
        }
        let tries = try_new(*target, &corpus, Rng(seed), Duration::from_secs(seconds));
        println!("{name}: {} inputs, and {tries} new ones", corpus.len());
    }
}

fn try_new(target: Target, corpus: &[(PathBuf, Vec<u8>)], mut rng: Rng, time: Duration) -> usize {
    let begin = Instant::now();
    let mut tries = 0;
    while begin.elapsed() < time {
        let state = rng.0;
        let input = input(&mut rng, corpus);
        let tried = std::panic::catch_unwind(|| run(target, &input));
        if let Err(panic) = tried {
            println!("ZARRS_CUDA_FUZZ_SEED={state} makes this input first");
            std::panic::resume_unwind(panic);
        }
        tries += 1;
    }
    tries
}

/// Each target has a corpus, and each corpus is small.
#[test]
fn corpora_are_small() {
    let folders = fs::read_dir(main_folder()).unwrap();
    let folders: BTreeSet<_> = folders
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let names = TARGETS.iter().map(|(name, _)| (*name).to_owned());
    assert_eq!(folders, names.collect());
    for folder in folders {
        let corpus = corpus(&folder);
        assert!((1..=40).contains(&corpus.len()), "{folder}");
        let largest = corpus.iter().map(|(_, input)| input.len()).max();
        assert!(largest <= Some(4096), "{folder}");
    }
}

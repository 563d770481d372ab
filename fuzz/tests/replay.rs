//! The targets, on the inputs of their corpora and on new ones.
//!
//! `ZARRS_CUDA_FUZZ_SECONDS` says how long new inputs are tried, per target; `ZARRS_CUDA_FUZZ_SEED`
//! tries those of an earlier run.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, and says where"
)]

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use zarrs_cuda_fuzz::{TARGETS, Target, run};

/// Bytes of an input, at most.
const MOST_BYTES: usize = 1024;

fn main_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn from_environment<T: std::str::FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    let parsed = value.parse().ok();
    assert!(parsed.is_some(), "{name}={value} is not a number");
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

/// Numbers that look random (`SplitMix64`).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }

    /// A new input: random bytes, or one of the corpus with some bytes changed.
    fn input(&mut self, corpus: &[(PathBuf, Vec<u8>)]) -> Vec<u8> {
        if corpus.is_empty() || self.next().is_multiple_of(2) {
            let len = self.below(MOST_BYTES);
            return self.bytes(len);
        }
        let mut input = corpus[self.below(corpus.len())].1.clone();
        for _ in 0..=self.below(8) {
            if input.is_empty() {
                break;
            }
            let at = self.below(input.len());
            input[at] = self.next().to_le_bytes()[0];
        }
        input
    }
}

/// All targets in one test: what they allocate is counted, and the last one changes what zarrs does.
#[test]
fn targets_find_nothing() {
    let seconds = from_environment("ZARRS_CUDA_FUZZ_SECONDS").unwrap_or(2);
    let seed = from_environment("ZARRS_CUDA_FUZZ_SEED")
        .unwrap_or_else(|| RandomState::new().hash_one(std::process::id()));
    println!("ZARRS_CUDA_FUZZ_SEED={seed}");
    for (name, target) in TARGETS {
        let corpus = corpus(name);
        for (file, input) in &corpus {
            println!("{}", file.display());
            run(target, input);
        }
        let tries = try_new(target, &corpus, Rng(seed), Duration::from_secs(seconds));
        println!("{name}: {} inputs, and {tries} new ones", corpus.len());
    }
}

fn try_new(target: Target, corpus: &[(PathBuf, Vec<u8>)], mut rng: Rng, time: Duration) -> usize {
    let begin = Instant::now();
    let mut tries = 0;
    while begin.elapsed() < time {
        let state = rng.0;
        let input = rng.input(corpus);
        let tried = std::panic::catch_unwind(|| run(target, &input));
        if let Err(panic) = tried {
            println!("ZARRS_CUDA_FUZZ_SEED={state} makes this input first: {input:?}");
            std::panic::resume_unwind(panic);
        }
        tries += 1;
    }
    tries
}

/// A corpus is small, and each target has one.
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

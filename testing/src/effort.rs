//! How much is tried, and from which seed.
//!
//! The environment variable `ZARRS_CUDA_TEST_EFFORT` multiplies the number of cases of every property:
//! 1 unless it is set, to land a change; 10 or 100 to search by hand; a fraction where every case is
//! slow. `ZARRS_CUDA_TEST_SEED` repeats the cases of an earlier run. Without it each run has a new
//! seed, which a test prints, and the test harness shows if the test fails.

use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::str::FromStr;
use std::sync::OnceLock;

use proptest::prelude::ProptestConfig;
use proptest::strategy::Strategy;
use proptest::test_runner::{RngSeed, TestCaseError, TestRunner};

const EFFORT: &str = "ZARRS_CUDA_TEST_EFFORT";
const SEED: &str = "ZARRS_CUDA_TEST_SEED";

fn from_environment<T: FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    let parsed = value.parse().ok();
    assert!(parsed.is_some(), "{name}={value} is not a number");
    parsed
}

/// How many cases are tried where `usual` are usual: one at least.
pub fn times(usual: u32) -> u32 {
    static FACTOR: OnceLock<f64> = OnceLock::new();
    let factor = *FACTOR.get_or_init(|| from_environment(EFFORT).unwrap_or(1.0));
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, and one that is not a number is 0"
    )]
    let cases = (f64::from(usual) * factor).ceil() as u32;
    cases.max(1)
}

/// The seed of this run. Printed, for the report of a test that fails.
pub fn seed() -> u64 {
    static RUN: OnceLock<u64> = OnceLock::new();
    let fresh = || RandomState::new().hash_one(std::process::id());
    let seed = *RUN.get_or_init(|| from_environment(SEED).unwrap_or_else(fresh));
    println!("{SEED}={seed}");
    seed
}

/// [`times`] `usual` seeds, which follow from the [`seed`] of this run. They follow each other, so that
/// remainders of them come equally often.
pub fn seeds(usual: u32) -> Range<u64> {
    let first = seed() >> 16;
    first..first + u64::from(times(usual))
}

/// For `proptest!`: [`times`] `usual` cases from the [`seed`] of this run.
pub fn config(usual: u32) -> ProptestConfig {
    ProptestConfig {
        cases: times(usual),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed()),
        ..ProptestConfig::default()
    }
}

/// Try [`times`] `usual` values of `strategy`. The first that fails is made as small as possible.
pub fn property<S>(usual: u32, strategy: &S, test: impl Fn(S::Value) -> Result<(), TestCaseError>)
where
    S: Strategy<Value: Debug>,
{
    TestRunner::new(config(usual))
        .run(strategy, test)
        .unwrap_or_else(|error| panic!("{error}"));
}

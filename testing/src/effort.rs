//! The number of test cases, and their seeds.
//!
//! The environment variable `ZARRS_CUDA_TEST_EFFORT` multiplies the number of cases of every
//! property. Its default is 1, for checking a change. 10 or 100 are for longer searches, and
//! fractions for tests whose cases are slow. `ZARRS_CUDA_TEST_SEED` repeats the cases of an earlier
//! run. Without it each run has a new seed. Tests print it, and the test harness shows it if the
//! test fails.

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

/// The number of cases to try if `usual` is the usual number: at least one.
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

/// Returns the seed of this run, and prints it for the report of a failed test.
pub fn seed() -> u64 {
    static RUN: OnceLock<u64> = OnceLock::new();
    let fresh = || RandomState::new().hash_one(std::process::id());
    let seed = *RUN.get_or_init(|| from_environment(SEED).unwrap_or_else(fresh));
    println!("{SEED}={seed}");
    seed
}

/// Returns [`times`] `usual` seeds that derive from this run's [`seed`]. They are consecutive, so
/// that all remainders occur equally often.
pub fn seeds(usual: u32) -> Range<u64> {
    let first = seed() >> 16;
    first..first + u64::from(times(usual))
}

/// A configuration for `proptest!`: [`times`] `usual` cases from this run's [`seed`].
pub fn config(usual: u32) -> ProptestConfig {
    ProptestConfig {
        cases: times(usual),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed()),
        ..ProptestConfig::default()
    }
}

/// Tries [`times`] `usual` values of `strategy`. Shrinks the first that fails.
pub fn property<S>(usual: u32, strategy: &S, test: impl Fn(S::Value) -> Result<(), TestCaseError>)
where
    S: Strategy<Value: Debug>,
{
    TestRunner::new(config(usual))
        .run(strategy, test)
        .unwrap_or_else(|error| panic!("{error}"));
}

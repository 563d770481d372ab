//! Random sequences of updates, compared with a list of elements.

use std::panic::{AssertUnwindSafe, catch_unwind};

use zarrs_cuda::WriteStrategy;

use super::Location;
use zarrs_cuda_testing::effort;

use super::case::{CHAINS, Case, Chain, LOCATIONS, NUM_SHARDS, Outer, Values};
use super::invariants::{self, Slots};
use super::step::{By, Step, What};
use super::subject::{Setting, Subject};
use zarrs_cuda_testing::Rng;
use zarrs_cuda_testing::index::IndexLayout;

/// The number of steps in a sequence.
const STEPS: usize = 30;

/// A case with this chain and location; the rest is random.
fn case(chain: Chain, location: Location, rng: &mut Rng) -> (Case, Setting) {
    let geometries: [(&[u64], &[u64]); 4] = [
        (&[8, 12], &[4, 4]),
        (&[40], &[2]),
        (&[4, 6, 4], &[2, 3, 2]),
        (&[4, 8], &[4, 8]),
    ];
    // Half of the time the first one.
    let geometry = geometries[usize::try_from(rng.below(7).saturating_sub(3)).unwrap()];
    let case = Case {
        chain,
        shape: geometry.0.to_vec(),
        subchunk: geometry.1.to_vec(),
        index: IndexLayout {
            location,
            big_endian: rng.one_in(4),
            checksum: !rng.one_in(3),
        },
        outer: match rng.below(8) {
            0 => Outer::Transpose,
            1 => Outer::Compressor,
            _ => Outer::Nothing,
        },
    };
    let setting = Setting {
        filesystem: rng.one_in(6),
        store_empty_chunks: rng.one_in(6),
    };
    (case, setting)
}

/// Applies the steps, and checks everything after each. Returns the first error.
fn run(case: &Case, setting: Setting, steps: &[Step]) -> Result<(), String> {
    let mut subject = Subject::new(case, setting);
    let mut slots = Slots::default();
    for (number, step) in steps.iter().enumerate() {
        let done = catch_unwind(AssertUnwindSafe(|| do_step(&mut subject, step, &mut slots)))
            .unwrap_or_else(|_| Err("a panic".to_owned()));
        done.map_err(|error| format!("step {number}: {error}"))?;
    }
    Ok(())
}

fn do_step(subject: &mut Subject, step: &Step, slots: &mut Slots) -> Result<(), String> {
    let before: Vec<_> = (0..NUM_SHARDS).map(|s| subject.object(s)).collect();
    match subject.apply(step) {
        Ok(changes) => {
            for change in &changes {
                let (case, setting) = (&subject.case, subject.setting());
                let model = &subject.model[change.shard];
                invariants::check(case, setting, step, change, model, slots).map_err(|error| {
                    format!("shard {}: {error}; {:?}", change.shard, change.calls)
                })?;
            }
        }
        Err(error) => {
            // Slots need a size, which some chains do not have.
            let no_slots = step.strategy == WriteStrategy::Slots && !subject.case.chain.bounded;
            if !(no_slots && error.contains("WriteStrategy::Slots needs")) {
                return Err(error);
            }
            let after: Vec<_> = (0..NUM_SHARDS).map(|s| subject.object(s)).collect();
            if after != before {
                return Err(format!("refused, and done in part: {error}"));
            }
        }
    }
    subject.check(step)
}

/// Removes steps as long as the sequence still fails.
fn shrink(case: &Case, setting: Setting, mut steps: Vec<Step>) -> Vec<Step> {
    let mut at = steps.len();
    while at > 0 {
        at -= 1;
        let mut fewer = steps.clone();
        fewer.remove(at);
        if run(case, setting, &fewer).is_err() {
            steps = fewer;
        }
    }
    steps
}

/// Sequences for every chain and index location, with one strategy or with all of them in turn.
fn sequences(strategy: Option<WriteStrategy>) {
    zarrs_cuda_testing::panics::watch();
    let mut number = effort::seed() >> 16;
    for round in 0..effort::times(1) {
        for chain in CHAINS {
            for location in LOCATIONS {
                number += 1;
                let seed = number << 8 | strategy.map_or(9, |s| s as u64);
                let mut rng = Rng(seed);
                let (case, setting) = case(chain, location, &mut rng);
                let mut steps = Vec::new();
                if rng.one_in(2) {
                    // A shard that zarrs wrote.
                    steps.push(Step {
                        strategy: WriteStrategy::Auto,
                        asynchronous: false,
                        what: What::Store(0, Values::Any(rng.next()), By::Zarrs),
                    });
                }
                while steps.len() < STEPS {
                    let step = Step::random(&case, strategy, &mut rng);
                    // Skipped, since one of the two shards might be refused and the other written.
                    let unsure = !chain.bounded && step.strategy == WriteStrategy::Slots;
                    if !(unsure && matches!(step.what, What::ArraySubset(..))) {
                        steps.push(step);
                    }
                }
                if let Err(error) = run(&case, setting, &steps) {
                    let steps = shrink(&case, setting, steps);
                    let again = run(&case, setting, &steps);
                    let lines: Vec<_> = steps.iter().map(|step| format!("{step:?}")).collect();
                    panic!(
                        "{case:?}\n{setting:?}\nround {round}, seed {seed}: {error}\n\
                         as short as it gets: {again:?}\n{}",
                        lines.join("\n")
                    );
                }
            }
        }
    }
    zarrs_cuda_testing::panics::assert_none("updates");
}

#[test]
fn auto() {
    sequences(Some(WriteStrategy::Auto));
}

#[test]
fn append() {
    sequences(Some(WriteStrategy::Append));
}

#[test]
fn in_place() {
    sequences(Some(WriteStrategy::InPlace));
}

#[test]
fn slots() {
    sequences(Some(WriteStrategy::Slots));
}

#[test]
fn strategies_by_turns() {
    sequences(None);
}

//! Ratios of the times of contenders that take turns, and the table of the rows that have goals.

use std::time::Duration;

use serde_json::{Value, json};
use zarrs_cuda_benches::{Result, median};

/// The rounds of a row, unless the command says more.
pub(crate) const ROUNDS: usize = 11;
/// The time for which a contender makes its call in a round.
pub(crate) const TURN: Duration = Duration::from_millis(20);
/// The number of places of the array at which a call is made, one after the other.
pub(crate) const PLACES: u64 = 16;

/// Calls `turn(who, round)` for each contender in each round, and returns the seconds of each contender, one for
/// each round. Each round begins with another contender. The first round does not count.
pub(crate) fn in_turns(
    rounds: usize,
    contenders: usize,
    mut turn: impl FnMut(usize, usize) -> Result<Option<f64>>,
) -> Result<Vec<Vec<f64>>> {
    let mut seconds = vec![Vec::new(); contenders];
    for round in 0..=rounds {
        for number in 0..contenders {
            let who = (round + number) % contenders;
            let of_call = turn(who, round)?;
            if round > 0 {
                seconds[who].extend(of_call);
            }
        }
    }
    Ok(seconds)
}

/// A median, and the ends of an interval that has the true median with a probability of 90 %.
type Interval = (f64, [f64; 2]);

/// Returns the median of `ratios`, one for each round, and its interval.
fn interval(mut ratios: Vec<f64>) -> Interval {
    ratios.sort_by(f64::total_cmp);
    let rounds = ratios.len();
    let at = |index: usize| ratios.get(index).copied().unwrap_or(f64::NAN);
    // The median is below the k-th ratio if fewer than k ratios are below it: a binomial distribution.
    let (mut cut, mut below, mut one) = (
        0,
        0.0,
        0.5_f64.powi(i32::try_from(rounds).unwrap_or(i32::MAX)),
    );
    for k in 0..rounds / 2 {
        below += one;
        if 2.0 * below > 0.1 {
            break;
        }
        cut = k;
        one *= (rounds - k) as f64 / (k + 1) as f64;
    }
    (at(rounds / 2), [at(cut), at(rounds - 1 - cut)])
}

/// The times of another contender, and the least ratio of its times to ours that is a success.
pub(crate) struct Other<'t> {
    pub(crate) seconds: &'t [f64],
    pub(crate) goal: Option<f64>,
}

/// The rows that were measured. Each row is printed as soon as it is measured.
pub(crate) struct Table {
    others: &'static [&'static str],
    failed: Vec<String>,
    rows: Vec<Value>,
}

impl Table {
    /// Prints the head of a table with a column for each of `others`.
    pub(crate) fn new(others: &'static [&'static str]) -> Self {
        print!("{:50} {:>9}", "row", "ms");
        for other in others {
            print!(" {:>22}", format!("x {other} (90 %)"));
        }
        println!();
        Self {
            others,
            failed: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Adds the row `name`, which took `ours` seconds in each round. `others` are in the order of the columns, and
    /// `parameters` is an object, to which the results are added.
    pub(crate) fn add(
        &mut self,
        name: &str,
        mut parameters: Value,
        ours: &[f64],
        others: &[Other<'_>],
    ) {
        let milliseconds = median(ours.to_vec()).map(|seconds| seconds * 1e3);
        parameters["milliseconds"] = json!(milliseconds);
        print!("{name:50} {:>9.3}", milliseconds.unwrap_or(f64::NAN));
        for (column, Other { seconds, goal }) in self.others.iter().zip(others) {
            let pairs = std::iter::zip(ours, *seconds);
            let ratios: Vec<f64> = pairs.map(|(ours, other)| other / ours).collect();
            let key = format!("over_{}", column.replace(' ', "_"));
            if ratios.is_empty() {
                parameters[key] = Value::Null;
                print!(" {:>22}", "-");
                continue;
            }
            let (median, [low, high]) = interval(ratios);
            parameters[key] = json!({ "median": median, "interval": [low, high], "goal": goal });
            let missed = goal.filter(|goal| high < *goal);
            let mark = if missed.is_some() { " <" } else { "" };
            print!(" {:>22}", format!("{median:.2} ({low:.2}-{high:.2}){mark}"));
            if let Some(goal) = missed {
                self.failed.push(format!(
                    "{name}: {median:.2} x {column}, at most {high:.2}, goal {goal}"
                ));
            }
        }
        println!();
        self.rows.push(parameters);
    }

    /// Prints the goals that were missed, and returns the rows.
    pub(crate) fn end(self) -> Vec<Value> {
        println!(
            "\n{} goals are missed, of {} rows",
            self.failed.len(),
            self.rows.len()
        );
        for row in self.failed {
            println!("- {row}");
        }
        self.rows
    }
}

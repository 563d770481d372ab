//! Repeated measurements of a duration.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::failure::Result;

/// Durations in seconds, the shortest first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn new(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        Self(seconds)
    }

    pub(crate) fn median(&self) -> f64 {
        self.at(self.0.len() / 2)
    }

    fn at(&self, place: usize) -> f64 {
        // Avoids division by zero; no clock has a finer resolution.
        self.0.get(place).copied().unwrap_or(f64::NAN).max(1e-9)
    }

    /// The median rate in GB/s if each sample moved `bytes`.
    pub(crate) fn rate(&self, bytes: usize) -> f64 {
        rate(bytes, self.median())
    }

    /// The ratio of this rate to the rate of `other`, whose samples each moved `bytes_of_other`.
    pub(crate) fn by(&self, bytes: usize, other: &Self, bytes_of_other: usize) -> Ratio {
        let best = |samples: &Self, bytes| rate(bytes, samples.at(0));
        Ratio {
            median: self.rate(bytes) / other.rate(bytes_of_other),
            best: best(self, bytes) / best(other, bytes_of_other),
        }
    }

    pub(crate) fn seconds(&self) -> Value {
        json!({
            "median": self.median(),
            "min": self.at(0),
            "max": self.at(self.0.len().saturating_sub(1)),
            "rounds": self.0.len(),
        })
    }

    /// The rates in GB/s.
    pub(crate) fn rates(&self, bytes: usize) -> Value {
        json!({
            "median": self.rate(bytes),
            "min": rate(bytes, self.at(self.0.len().saturating_sub(1))),
            "max": rate(bytes, self.at(0)),
        })
    }
}

/// The ratio of two rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    /// The ratio of the medians, to which goals apply.
    pub(crate) median: f64,
    /// The ratio of the shortest times.
    pub(crate) best: f64,
}

/// The rate in GB/s.
#[allow(clippy::cast_precision_loss, reason = "for people")]
pub(crate) fn rate(bytes: usize, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e9
}

/// An operation to time. It gets the number of the round, and returns its duration in seconds.
/// Rounds with the number 0 do not count.
pub(crate) type Contestant<'a> = &'a mut dyn FnMut(usize) -> Result<f64>;

/// Times `contestants` in turns, `rounds` times. At least one round before them does not count, and
/// more until `warm_up` has passed, so that clocks rise.
pub(crate) fn race<const N: usize>(
    warm_up: Duration,
    rounds: usize,
    mut contestants: [Contestant<'_>; N],
) -> Result<[Samples; N]> {
    let mut seconds = [const { Vec::new() }; N];
    let begin = Instant::now();
    loop {
        for contestant in &mut contestants {
            contestant(0)?;
        }
        if begin.elapsed() >= warm_up {
            break;
        }
    }
    for round in 1..=rounds {
        for (contestant, seconds) in contestants.iter_mut().zip(&mut seconds) {
            seconds.push(contestant(round)?);
        }
    }
    Ok(seconds.map(Samples::new))
}

#[cfg(test)]
#[allow(
    unused_imports,
    reason = "the benchmark itself has no harness, and leaves out its tests"
)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_medians_and_of_the_best() {
        let (a, b) = (
            Samples::new(vec![4.0, 1.0, 2.0]),
            Samples::new(vec![8.0, 8.0, 2.0]),
        );
        let expected = Ratio {
            median: 8.0,
            best: 4.0,
        };
        assert_eq!(a.by(200, &b, 100), expected);
    }

    #[test]
    fn what_comes_before_the_first_round_does_not_count() {
        let mut before = 0;
        let begin = Instant::now();
        let warm_up = Duration::from_millis(20);
        let samples = race(
            warm_up,
            3,
            [&mut |round: usize| {
                before += usize::from(round == 0);
                std::thread::sleep(Duration::from_millis(1));
                Ok([100.0, 1.0, 2.0, 3.0][round])
            }],
        );
        assert!(begin.elapsed() >= warm_up);
        let [samples] = samples.unwrap_or_else(|failure| panic!("{failure:?}"));
        assert_eq!(samples, Samples(vec![1.0, 2.0, 3.0]));
        assert!(before > 1);
    }
}

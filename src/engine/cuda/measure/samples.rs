//! How long something took, several times.

use serde_json::{Value, json};

use super::failure::Result;

/// Seconds, shortest first.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Samples(Vec<f64>);

impl Samples {
    pub(super) fn new(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        Self(seconds)
    }

    pub(super) fn median(&self) -> f64 {
        self.at(self.0.len() / 2)
    }

    fn at(&self, place: usize) -> f64 {
        // No clock is finer.
        self.0.get(place).copied().unwrap_or(f64::NAN).max(1e-9)
    }

    /// Of `bytes` each time, in GB/s, at the median.
    pub(super) fn rate(&self, bytes: usize) -> f64 {
        rate(bytes, self.median())
    }

    pub(super) fn seconds(&self) -> Value {
        json!({
            "median": self.median(),
            "min": self.at(0),
            "max": self.at(self.0.len().saturating_sub(1)),
            "rounds": self.0.len(),
        })
    }

    /// GB/s.
    pub(super) fn rates(&self, bytes: usize) -> Value {
        json!({
            "median": self.rate(bytes),
            "min": rate(bytes, self.at(self.0.len().saturating_sub(1))),
            "max": rate(bytes, self.at(0)),
        })
    }
}

/// GB/s.
#[allow(clippy::cast_precision_loss, reason = "for people")]
pub(super) fn rate(bytes: usize, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e9
}

/// Something to time: given the number of the round, how many seconds it took.
pub(super) type Contestant<'a> = &'a mut dyn FnMut(usize) -> Result<f64>;

/// Time each of `contestants` in turns, `rounds` times after once that does not count.
pub(super) fn race<const N: usize>(
    rounds: usize,
    mut contestants: [Contestant<'_>; N],
) -> Result<[Samples; N]> {
    let mut seconds = [const { Vec::new() }; N];
    for round in 0..=rounds {
        for (contestant, seconds) in contestants.iter_mut().zip(&mut seconds) {
            let time = contestant(round)?;
            if round > 0 {
                seconds.push(time);
            }
        }
    }
    Ok(seconds.map(Samples::new))
}

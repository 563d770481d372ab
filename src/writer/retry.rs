//! When a pause tries again what a store has refused.

use std::time::{Duration, Instant};

/// The shortest and the longest time between two attempts.
const LEAST: Duration = Duration::from_millis(10);
const MOST: Duration = Duration::from_mins(1);

/// The attempts of a writer whose store fails: each comes later than the one before, by twice the time.
#[derive(Debug)]
pub(crate) struct Retry {
    first: Duration,
    interval: Duration,
    /// When the next attempt is due; `None` until a failure was seen.
    next: Option<Instant>,
}

/// The answer for a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// Nothing has failed.
    NotNeeded,
    Now,
    /// In so long.
    Later(Duration),
}

impl Retry {
    /// The first attempt comes `first` after the failure was seen.
    pub(crate) fn new(first: Duration) -> Self {
        let first = first.clamp(LEAST, MOST);
        Self {
            first,
            interval: first,
            next: None,
        }
    }

    /// Whether to try again at `now`, if the store `has_failed`. A writer that has stored everything `is_well`.
    pub(crate) fn look(&mut self, now: Instant, has_failed: bool, is_well: bool) -> Attempt {
        if !has_failed {
            self.next = None;
            if is_well {
                self.interval = self.first;
            }
            return Attempt::NotNeeded;
        }
        let next = *self.next.get_or_insert_with(|| now + self.interval);
        let left = next.saturating_duration_since(now);
        if !left.is_zero() {
            return Attempt::Later(left);
        }
        self.next = None;
        self.interval = (2 * self.interval).min(MOST);
        Attempt::Now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_come_later_and_later_until_the_store_is_well() {
        let first = Duration::from_secs(1);
        let mut retry = Retry::new(first);
        let mut now = Instant::now();
        assert_eq!(retry.look(now, false, true), Attempt::NotNeeded);
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            let wait = Duration::from_secs(seconds);
            assert_eq!(retry.look(now, true, false), Attempt::Later(wait));
            now += wait.saturating_sub(LEAST);
            assert_eq!(retry.look(now, true, false), Attempt::Later(LEAST));
            now += LEAST;
            assert_eq!(retry.look(now, true, false), Attempt::Now);
            // The attempt is under way.
            assert_eq!(retry.look(now, false, false), Attempt::NotNeeded);
        }
        assert_eq!(retry.look(now, false, true), Attempt::NotNeeded);
        assert_eq!(retry.look(now, true, false), Attempt::Later(first));
        assert_eq!(Retry::new(Duration::ZERO).first, LEAST);
    }
}

//! Decides when the timer, in a pause of the input, tries again to store what a store has refused.

use std::time::{Duration, Instant};

/// The shortest and the longest time between two attempts.
const LEAST: Duration = Duration::from_millis(10);
const MOST: Duration = Duration::from_mins(1);

/// The attempts to store again after a failure of the store. The time before each attempt is twice the time
/// before the last one.
#[derive(Debug)]
pub(crate) struct Retry {
    first: Duration,
    interval: Duration,
    /// The time at which the next attempt is due; `None` until a failure was seen.
    next: Option<Instant>,
}

/// The answer whether the timer is to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// No attempt is needed, because nothing has failed.
    NotNeeded,
    Now,
    /// The next attempt is due after this time.
    Later(Duration),
}

impl Retry {
    /// Makes attempts, the first of which comes the time `first` after the failure was seen.
    pub(crate) fn new(first: Duration) -> Self {
        let first = first.clamp(LEAST, MOST);
        Self {
            first,
            interval: first,
            next: None,
        }
    }

    /// Decides whether to try again at `now`, if the store `has_failed`. `is_well` says that the writer has
    /// stored everything.
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

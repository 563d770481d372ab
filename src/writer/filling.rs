//! How shards fill: since when complete ones wait, and whether one takes too long.

use std::fmt;
use std::time::{Duration, Instant};

use zarrs_cuda_engine::layout::StreamGrid;

/// The longest time that a shard may take to fill before the application is told.
const PATIENCE: Duration = Duration::from_mins(1);

/// How shards of a stream fill. It looks at a clock only where a shard begins or ends.
#[derive(Debug)]
pub(crate) struct Filling {
    slice_bytes: u64,
    shard_bytes: u64,
    epoch_slices: u64,
    /// For how long a complete shard may wait for the rest of its batch.
    flush_after: Option<Duration>,
    /// When the first shard became complete that the open batch has.
    open: Option<Instant>,
    /// When the first shard became complete that the metadata need not cover yet.
    unpromised: Option<Instant>,
    /// When the shard that is being filled began.
    began: Option<Instant>,
    is_quiet: bool,
}

/// A shard that takes long to fill. `Display` says what came, and what to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slow {
    /// The slices that came, and the time they took.
    pub(crate) slices: u64,
    pub(crate) time: Duration,
    /// The slices that come within [`PATIENCE`]: whole subchunks, if there are any.
    pub(crate) in_time: u64,
    epoch_slices: u64,
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            slices, in_time, ..
        } = self;
        let (time, patience) = (self.time.as_secs(), PATIENCE.as_secs());
        write!(
            f,
            "{slices} slices came in {time} s; shards of {in_time} slices would be full within {patience} s"
        )?;
        if *in_time < self.epoch_slices {
            write!(
                f,
                ", with subchunks of as many slices, which have {} now",
                self.epoch_slices
            )?;
        }
        Ok(())
    }
}

impl Filling {
    pub(crate) fn new(grid: &StreamGrid, flush_after: Option<Duration>) -> Self {
        let slice_bytes = grid.slice_bytes() as u64;
        Self {
            slice_bytes,
            shard_bytes: slice_bytes.saturating_mul(grid.shard_slices() as u64),
            epoch_slices: grid.epoch_slices() as u64,
            flush_after,
            open: None,
            unpromised: None,
            began: None,
            is_quiet: false,
        }
    }

    /// Does not tell that a shard takes long: another level does.
    pub(crate) fn be_quiet(&mut self) {
        self.is_quiet = true;
    }

    /// Notes that `len` bytes were appended, which are `appended` now. Returns a shard that took long, once.
    pub(crate) fn advance(&mut self, len: u64, appended: u64) -> Option<Slow> {
        let begins = self.began.is_none();
        let complete = appended / self.shard_bytes;
        let ends = complete > appended.saturating_sub(len) / self.shard_bytes;
        if !begins && !ends {
            return None;
        }
        let now = Instant::now();
        let began = *self.began.get_or_insert(now);
        if !ends {
            return None;
        }
        if self.flush_after.is_some() {
            self.open.get_or_insert(now);
            self.unpromised.get_or_insert(now);
        }
        let rest = !appended.is_multiple_of(self.shard_bytes);
        self.began = rest.then_some(now);
        self.slow(self.shard_bytes / self.slice_bytes, now - began)
    }

    /// Returns the shard that is being filled, if it takes long and nothing was told of one before.
    pub(crate) fn overdue(&mut self, now: Instant, appended: u64) -> Option<Slow> {
        let time = now.saturating_duration_since(self.began?);
        let slices = appended % self.shard_bytes / self.slice_bytes;
        self.slow(slices, time)
    }

    fn slow(&mut self, slices: u64, time: Duration) -> Option<Slow> {
        if self.is_quiet || time <= PATIENCE {
            return None;
        }
        self.is_quiet = true;
        let in_time = slices.saturating_mul(PATIENCE.as_secs()) / time.as_secs().max(1);
        let whole = in_time / self.epoch_slices * self.epoch_slices;
        Some(Slow {
            slices,
            time,
            in_time: if whole > 0 { whole } else { in_time.max(1) },
            epoch_slices: self.epoch_slices,
        })
    }

    /// The open batch was submitted, or all of its complete shards were.
    pub(crate) fn submitted(&mut self) {
        self.open = None;
    }

    /// Whether a complete shard of the open batch has waited long enough.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.has_passed(self.open, now)
    }

    /// Whether a complete shard is to be covered without further waiting. It is then, with all that are
    /// complete by now.
    pub(crate) fn takes_promise(&mut self, now: Instant) -> bool {
        let takes = self.has_passed(self.unpromised, now);
        if takes {
            self.unpromised = None;
        }
        takes
    }

    fn has_passed(&self, since: Option<Instant>, now: Instant) -> bool {
        match (since, self.flush_after) {
            (Some(since), Some(after)) => now.saturating_duration_since(since) >= after,
            _ => false,
        }
    }

    /// In how long a complete shard has waited long enough; a shard that completes from now on has not before.
    pub(crate) fn next(&self, now: Instant) -> Duration {
        let after = self.flush_after.unwrap_or(PATIENCE);
        let first = [self.open, self.unpromised].into_iter().flatten().min();
        match first {
            Some(first) => after.saturating_sub(now.saturating_duration_since(first)),
            None => after,
        }
    }

    /// For how long a complete shard may wait.
    pub(crate) fn flush_after(&self) -> Duration {
        self.flush_after.unwrap_or(PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filling(flush_after: Option<Duration>) -> Filling {
        // Slices of 10 bytes, subchunks of 4 slices, shards of 8.
        Filling {
            slice_bytes: 10,
            shard_bytes: 80,
            epoch_slices: 4,
            flush_after,
            open: None,
            unpromised: None,
            began: None,
            is_quiet: false,
        }
    }

    #[test]
    fn only_complete_shards_wait() {
        let after = Duration::from_secs(1);
        let mut filling = filling(Some(after));
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        assert_eq!(filling.advance(79, 79), None);
        assert!(!filling.is_due(later(100)));
        filling.advance(1, 80);
        assert!(!filling.is_due(Instant::now()) && filling.is_due(later(1)));
        assert!(filling.next(Instant::now()) <= after);
        filling.submitted();
        assert!(!filling.is_due(later(1)));
        assert!(!filling.takes_promise(Instant::now()));
        assert!(filling.takes_promise(later(1)) && !filling.takes_promise(later(1)));
        // Over a border, and never without a time.
        filling.advance(100, 180);
        assert!(filling.is_due(later(1)));
        let mut filling = self::filling(None);
        filling.advance(160, 160);
        assert!(!filling.is_due(later(100)) && !filling.takes_promise(later(100)));
    }

    #[test]
    fn a_slow_shard_is_told_once_with_a_length_that_is_not() {
        for (slices, seconds, in_time) in [(7, 61, 4), (7, 100, 4), (2, 100, 1), (0, 61, 1)] {
            let mut filling = filling(None);
            let begin = Instant::now();
            filling.advance(1, 1);
            assert_eq!(filling.overdue(begin + PATIENCE, 10), None);
            let now = Instant::now() + Duration::from_secs(seconds);
            let slow = filling.overdue(now, slices * 10);
            let slow = slow.expect("it is slow");
            assert_eq!((slow.slices, slow.in_time), (slices, in_time));
            let told = slow.to_string();
            assert!(
                told.contains(&format!("shards of {in_time} slices")),
                "{told}"
            );
            assert_eq!(told.contains("subchunks"), in_time < 4, "{told}");
            assert_eq!(filling.overdue(now, slices * 10), None);
        }
        let mut filling = filling(None);
        filling.be_quiet();
        filling.advance(1, 1);
        let now = Instant::now() + Duration::from_secs(100);
        assert_eq!(filling.overdue(now, 10), None);
    }
}

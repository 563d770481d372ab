//! Notes how shards fill: how long complete shards wait, and whether a shard takes too long.

use std::time::{Duration, Instant};

use zarrs_cuda_engine::layout::StreamGrid;

use super::slow_shard::{PATIENCE, SlowShard};

/// The times at which shards of a stream began or became complete. The clock is read only where a shard
/// begins or ends.
#[derive(Debug)]
pub(crate) struct Filling {
    slice_bytes: u64,
    shard_bytes: u64,
    epoch_slices: u64,
    /// The longest time that a complete shard waits for the rest of its batch; `None` if it waits without
    /// limit.
    flush_after: Option<Duration>,
    /// The time at which the first complete shard of the open batch became complete.
    open: Option<Instant>,
    /// The time at which a shard became complete that the metadata are not yet promised to cover: the first
    /// of them.
    uncovered_since: Option<Instant>,
    /// The time at which the shard that is being filled began.
    began: Option<Instant>,
    /// The number of slices of the shard that is being filled that were read back, which took no time of the
    /// application.
    read_back: u64,
    is_quiet: bool,
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
            uncovered_since: None,
            began: None,
            read_back: 0,
            is_quiet: false,
        }
    }

    /// Notes that the stream has `slices` that were read back, and that the application has appended none.
    pub(crate) fn has_read_back(&mut self, slices: u64) {
        (self.began, self.read_back) = (None, slices);
    }

    /// Never reports a slow shard from now on, because another level of the image reports it.
    pub(crate) fn be_quiet(&mut self) {
        self.is_quiet = true;
    }

    /// Notes that `len` bytes were appended, so that `appended` bytes were appended in all. Returns a shard
    /// that took too long to fill, unless one was returned before.
    pub(crate) fn advance(&mut self, len: u64, appended: u64) -> Option<SlowShard> {
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
            self.uncovered_since.get_or_insert(now);
        }
        let rest = !appended.is_multiple_of(self.shard_bytes);
        self.began = rest.then_some(now);
        let read_back = std::mem::take(&mut self.read_back);
        self.slow(
            (self.shard_bytes / self.slice_bytes).saturating_sub(read_back),
            now - began,
        )
    }

    /// Returns the shard that is being filled, if it takes too long and no slow shard was returned before.
    pub(crate) fn overdue(&mut self, now: Instant, appended: u64) -> Option<SlowShard> {
        let time = now.saturating_duration_since(self.began?);
        let slices = appended % self.shard_bytes / self.slice_bytes;
        self.slow(slices.saturating_sub(self.read_back), time)
    }

    fn slow(&mut self, slices: u64, time: Duration) -> Option<SlowShard> {
        if self.is_quiet || time <= PATIENCE {
            return None;
        }
        self.is_quiet = true;
        let in_time = slices.saturating_mul(PATIENCE.as_secs()) / time.as_secs().max(1);
        let whole = in_time / self.epoch_slices * self.epoch_slices;
        Some(SlowShard {
            slices,
            time,
            in_time: if whole > 0 { whole } else { in_time.max(1) },
            epoch_slices: self.epoch_slices,
        })
    }

    /// Notes that the open batch was submitted, or that all of its complete shards were.
    pub(crate) fn submitted(&mut self) {
        self.open = None;
    }

    /// Returns whether a complete shard of the open batch has waited long enough for the rest of its batch.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.has_passed(self.open, now)
    }

    /// Returns whether the metadata must now cover the complete shards, because one of them has waited for
    /// `flush_after`. If so, ends that wait.
    pub(crate) fn take_metadata_due(&mut self, now: Instant) -> bool {
        let due = self.has_passed(self.uncovered_since, now);
        if due {
            self.uncovered_since = None;
        }
        due
    }

    fn has_passed(&self, since: Option<Instant>, now: Instant) -> bool {
        match (since, self.flush_after) {
            (Some(since), Some(after)) => now.saturating_duration_since(since) >= after,
            _ => false,
        }
    }

    /// Returns the time until a complete shard has waited long enough. No shard that completes from now on
    /// has waited long enough before.
    pub(crate) fn next(&self, now: Instant) -> Duration {
        let after = self.flush_after.unwrap_or(PATIENCE);
        let first = [self.open, self.uncovered_since]
            .into_iter()
            .flatten()
            .min();
        match first {
            Some(first) => after.saturating_sub(now.saturating_duration_since(first)),
            None => after,
        }
    }

    /// Returns the longest time that a complete shard waits; [`PATIENCE`] if there is no limit.
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
            uncovered_since: None,
            began: None,
            read_back: 0,
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
        assert!(!filling.take_metadata_due(Instant::now()));
        assert!(filling.take_metadata_due(later(1)) && !filling.take_metadata_due(later(1)));
        // Over a border, and never without a time.
        filling.advance(100, 180);
        assert!(filling.is_due(later(1)));
        let mut filling = self::filling(None);
        filling.advance(160, 160);
        assert!(!filling.is_due(later(100)) && !filling.take_metadata_due(later(100)));
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
        // Slices that were read back took no time: of 7 slices, 5 came.
        let mut resumed = filling(None);
        resumed.advance(20, 20);
        resumed.has_read_back(2);
        let later = Instant::now() + Duration::from_secs(100);
        assert_eq!(resumed.overdue(later, 20), None, "no slice came");
        resumed.advance(50, 70);
        let slow = resumed.overdue(later, 70).expect("it is slow");
        assert_eq!(slow.slices, 5);
        let mut filling = filling(None);
        filling.be_quiet();
        filling.advance(1, 1);
        let now = Instant::now() + Duration::from_secs(100);
        assert_eq!(filling.overdue(now, 10), None);
    }
}

//! How far the results of a device were compared with those of the host, for one kind of shards.
//!
//! A kind passes on a device when every buffer of a lane was used three times, and 64 subchunks that are not
//! empty were compared. Until then, every batch is compared. Later, one batch of some is compared.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How often each buffer of a lane is used before a kind has passed: a buffer that keeps bytes of an earlier
/// batch then had them twice.
const USES: u32 = 3;

/// The number of subchunks that are not empty, and that are compared before a kind has passed.
const SUBCHUNKS: u64 = 64;

/// The most lanes whose buffers are counted before a kind has passed.
const MOST_LANES: usize = 16;

/// The work of a device whose results are compared. Each kind of work passes for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Encoding whole shards.
    Encode,
    /// Decoding whole shards.
    Decode,
    /// Encoding batches of a stream, whose slices come from here.
    Stream(Source),
}

/// The origin of the slices of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Host,
    /// The memory that an application has on the device.
    Application,
    /// The slices of the level above, which the device has reduced.
    Reduction,
}

/// How often each buffer of a lane was used: the buffers by class, and the number of the lane in its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LaneUses {
    pub(super) lane: u64,
    pub(super) classes: [Vec<u32>; 3],
}

impl LaneUses {
    fn add(&mut self, other: &Self) {
        for (uses, more) in std::iter::zip(&mut self.classes, &other.classes) {
            uses.resize(uses.len().max(more.len()), 0);
            for (uses, more) in std::iter::zip(uses, more) {
                *uses = uses.saturating_add(*more);
            }
        }
    }

    fn are_enough(&self) -> bool {
        self.classes.iter().flatten().all(|uses| *uses >= USES)
    }
}

/// Returns how often each place of a ring of `places` places is used, if `uses` uses take turns.
pub(super) fn ring_uses(uses: usize, places: usize) -> Vec<u32> {
    let used = uses.min(places);
    let of_place =
        |place: usize| u32::try_from((uses - place).div_ceil(places)).unwrap_or(u32::MAX);
    (0..used).map(of_place).collect()
}

/// The results that were returned since the last comparison that found no difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unchecked {
    pub(super) shards: u64,
    pub(super) batches: u64,
}

impl fmt::Display for Unchecked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shards, batches } = self;
        f.write_str("returned since the last comparison without a difference: ")?;
        match (shards, batches) {
            (0, 0) => f.write_str("nothing of this kind"),
            (0, _) => write!(f, "batches of this kind: {batches}"),
            _ => write!(f, "batches of this kind: {batches}, whole shards: {shards}"),
        }
    }
}

/// The progress of one kind of work on one device.
#[derive(Debug, Default)]
struct Progress {
    passed: bool,
    /// The number of compared subchunks that are not empty, until the kind has passed.
    subchunks: u64,
    lanes: Vec<LaneUses>,
    /// The number of batches since the kind has passed.
    batches: u64,
    unchecked: Unchecked,
}

/// The progress of all work on all devices, for one kind of shards.
#[derive(Debug, Default)]
pub(super) struct CheckProgress(Mutex<Vec<(usize, Work, Progress)>>);

impl CheckProgress {
    /// Returns whether the next batch has to be compared: each batch until the kind has passed on the device
    /// with this ordinal, and one of `every` batches later.
    pub(super) fn is_due(&self, ordinal: usize, work: Work, every: u32) -> bool {
        self.with(ordinal, work, |progress| {
            if !progress.passed {
                return true;
            }
            progress.batches += 1;
            progress.batches.is_multiple_of(u64::from(every.max(1)))
        })
    }

    /// Returns whether the kind has passed on the device.
    pub(super) fn has_passed(&self, ordinal: usize, work: Work) -> bool {
        self.with(ordinal, work, |progress| progress.passed)
    }

    /// Notes that a comparison found no difference. It compared `subchunks` subchunks that are not empty, and
    /// the work has used the buffers of a lane as `uses` says.
    pub(super) fn equal(&self, ordinal: usize, work: Work, subchunks: u64, uses: &LaneUses) {
        self.with(ordinal, work, |progress| {
            progress.unchecked = Unchecked::default();
            if progress.passed {
                return;
            }
            progress.subchunks += subchunks;
            let mut lanes = progress.lanes.iter_mut();
            if let Some(known) = lanes.find(|known| known.lane == uses.lane) {
                known.add(uses);
            } else {
                if progress.lanes.len() == MOST_LANES {
                    progress.lanes.remove(0);
                }
                progress.lanes.push(uses.clone());
            }
            progress.passed =
                progress.subchunks >= SUBCHUNKS && progress.lanes.iter().any(LaneUses::are_enough);
            if progress.passed {
                progress.lanes.clear();
                tracing::info!(
                    device = ordinal,
                    ?work,
                    subchunks = progress.subchunks,
                    "the results of a CUDA device have passed the comparison with the host"
                );
            }
        });
    }

    /// Notes that results are returned without a comparison.
    pub(super) fn returned(&self, ordinal: usize, work: Work, unchecked: Unchecked) {
        self.with(ordinal, work, |progress| {
            progress.unchecked.shards += unchecked.shards;
            progress.unchecked.batches += unchecked.batches;
        });
    }

    /// Returns the results that were returned since the last comparison without a difference.
    pub(super) fn unchecked(&self, ordinal: usize, work: Work) -> Unchecked {
        self.with(ordinal, work, |progress| progress.unchecked)
    }

    fn with<T>(&self, ordinal: usize, work: Work, then: impl FnOnce(&mut Progress) -> T) -> T {
        let mut all = self.lock();
        let is_it = |(device, of, _): &(usize, Work, Progress)| (*device, *of) == (ordinal, work);
        let at = all.iter().position(is_it).unwrap_or_else(|| {
            all.push((ordinal, work, Progress::default()));
            all.len() - 1
        });
        then(&mut all[at].2)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(usize, Work, Progress)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn uses(lane: u64, classes: [&[u32]; 3]) -> LaneUses {
        LaneUses {
            lane,
            classes: classes.map(<[u32]>::to_vec),
        }
    }

    #[test]
    fn a_kind_passes_with_enough_uses_of_one_lane_and_enough_subchunks() {
        let progress = CheckProgress::default();
        let one = uses(1, [&[1, 1], &[1], &[]]);
        let other = uses(2, [&[1, 1], &[1], &[]]);
        for _ in 0..2 {
            progress.equal(0, Work::Encode, 100, &one);
            progress.equal(0, Work::Encode, 100, &other);
        }
        assert!(!progress.has_passed(0, Work::Encode), "two uses of each");
        assert!(progress.is_due(0, Work::Encode, 64));
        progress.equal(0, Work::Encode, 0, &one);
        assert!(progress.has_passed(0, Work::Encode));
        for others in [(1, Work::Encode), (0, Work::Decode)] {
            assert!(!progress.has_passed(others.0, others.1), "{others:?}");
        }
        let due = (0..128).filter(|_| progress.is_due(0, Work::Encode, 64));
        assert_eq!(due.count(), 2);
        assert!(progress.is_due(0, Work::Encode, 1));
    }

    #[test]
    fn empty_subchunks_and_unused_buffers_do_not_count() {
        let progress = CheckProgress::default();
        for _ in 0..10 {
            progress.equal(0, Work::Encode, 0, &uses(1, [&[1], &[1], &[1]]));
        }
        assert!(!progress.has_passed(0, Work::Encode), "no subchunks");
        let stream = Work::Stream(Source::Host);
        for _ in 0..10 {
            progress.equal(0, stream, 64, &uses(1, [&[1], &[1, 0], &[1]]));
        }
        assert!(!progress.has_passed(0, stream), "a buffer without a use");
    }

    #[test]
    fn results_without_a_comparison_are_counted_until_the_next_comparison() {
        let progress = CheckProgress::default();
        let said = || progress.unchecked(0, Work::Encode).to_string();
        assert!(said().ends_with("nothing of this kind"));
        for shards in [0, 2] {
            let unchecked = Unchecked { shards, batches: 3 };
            progress.returned(0, Work::Encode, unchecked);
        }
        let expected = "batches of this kind: 6, whole shards: 2";
        assert!(said().ends_with(expected), "{}", said());
        progress.equal(0, Work::Encode, 1, &uses(1, [&[], &[], &[]]));
        assert!(said().ends_with("nothing of this kind"));
    }

    proptest! {
        /// Counts one use after the other.
        #[test]
        fn uses_take_turns(uses in 0_usize..50, places in 1_usize..8) {
            let mut expected = vec![0; places];
            (0..uses).for_each(|n| expected[n % places] += 1);
            expected.retain(|uses| *uses > 0);
            prop_assert_eq!(ring_uses(uses, places), expected);
        }
    }
}

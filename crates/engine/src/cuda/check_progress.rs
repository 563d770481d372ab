//! How far the results of a device were compared with those of the host, for one kind of shards.
//!
//! A kind passes on a device when every buffer of a lane was used three times, and 64 subchunks that are not
//! empty were compared. Until then, every batch is compared. Later, one batch of some is compared, and each
//! shard that uses a buffer for the first, second or third time.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::reduce::Reducer;

/// How often each buffer of a lane is used before a kind has passed: a buffer that keeps bytes of an earlier
/// batch then had them twice.
const USES: u32 = 3;

/// The uses of a buffer that a lane does not have. It needs no use, and counts as unused for other lanes.
pub(super) const MISSING: u32 = u32::MAX;

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
    /// Reading subchunks into the memory of the device.
    Read,
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

/// The work that is checked, on one device, with the values that are no part of a kind of shards. The results
/// depend on these values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Subject<'a> {
    pub(super) ordinal: usize,
    pub(super) work: Work,
    pub(super) fill_value: Cow<'a, [u8]>,
    pub(super) store_empty: bool,
    /// Whether slices of a stream are padded.
    pub(super) pads: bool,
    /// The reduction that makes the slices of a stream.
    pub(super) reducer: Option<Cow<'a, Reducer>>,
}

impl Subject<'_> {
    fn into_owned(self) -> Subject<'static> {
        Subject {
            fill_value: Cow::Owned(self.fill_value.into_owned()),
            reducer: self.reducer.map(|reducer| Cow::Owned(reducer.into_owned())),
            ..self
        }
    }
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

    /// Returns the same uses, where buffers that are missing are unused.
    fn existing(&self) -> Self {
        let mut uses = self.clone();
        let missing = uses.classes.iter_mut().flatten();
        missing
            .filter(|uses| **uses == MISSING)
            .for_each(|uses| *uses = 0);
        uses
    }

    fn are_enough(&self) -> bool {
        self.classes.iter().flatten().all(|uses| *uses >= USES)
    }

    /// Returns whether each buffer that `other` uses was used often enough.
    fn cover(&self, other: &Self) -> bool {
        std::iter::zip(&self.classes, &other.classes).all(|(uses, of_other)| {
            let mut used = of_other.iter().enumerate().filter(|(_, uses)| **uses > 0);
            used.all(|(buffer, _)| uses.get(buffer).is_some_and(|uses| *uses >= USES))
        })
    }
}

/// Returns a number that looks like a random one, by the last steps of `SplitMix64`.
fn hash(number: u64) -> u64 {
    let number = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
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

/// The progress of one subject.
#[derive(Debug, Default)]
struct Progress {
    /// The compared uses of the buffers of a lane, after the kind has passed.
    passed: Option<LaneUses>,
    /// The number of compared subchunks that are not empty, until the kind has passed.
    subchunks: u64,
    /// The compared uses of the buffers of each lane, until the kind has passed.
    lanes: Vec<LaneUses>,
    /// The number of batches since the kind has passed.
    batches: u64,
    unchecked: Unchecked,
}

/// The progress of all work on all devices, for one kind of shards.
#[derive(Debug, Default)]
pub(super) struct CheckProgress(Mutex<Vec<(Subject<'static>, Progress)>>);

impl CheckProgress {
    /// Returns whether the next batch has to be compared: each batch until the kind has passed, and one of each
    /// `every` batches later. Its place among them differs, so that it is not always the same batch of a shard,
    /// in the same buffers.
    pub(super) fn is_due(&self, subject: &Subject<'_>, every: u32) -> bool {
        self.with(subject, |progress| {
            if progress.passed.is_none() {
                return true;
            }
            let every = u64::from(every.max(1));
            let (window, batch) = (progress.batches / every, progress.batches % every);
            progress.batches += 1;
            batch == hash(window) % every
        })
    }

    /// Returns whether the kind has passed.
    pub(super) fn has_passed(&self, subject: &Subject<'_>) -> bool {
        self.with(subject, |progress| progress.passed.is_some())
    }

    /// Returns whether `uses` has a buffer that was not used often enough in compared work. A large shard
    /// reaches buffers that smaller ones never use, also after the kind has passed.
    pub(super) fn reaches_new(&self, subject: &Subject<'_>, uses: &LaneUses) -> bool {
        self.with(subject, |progress| {
            progress
                .passed
                .as_ref()
                .is_none_or(|passed| !passed.cover(uses))
        })
    }

    /// Notes that a comparison found no difference. It compared `subchunks` subchunks that are not empty and that
    /// the device has made, and the work has used the buffers of a lane as `uses` says. Without such a subchunk,
    /// nothing of the device was compared: the buffers do not count as used.
    pub(super) fn equal(&self, subject: &Subject<'_>, subchunks: u64, uses: &LaneUses) {
        self.with(subject, |progress| {
            if subchunks == 0 {
                return;
            }
            progress.unchecked = Unchecked::default();
            if let Some(passed) = &mut progress.passed {
                passed.add(&uses.existing());
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
            let mut lanes = progress.lanes.iter();
            if progress.subchunks >= SUBCHUNKS
                && let Some(lane) = lanes.find(|lane| lane.are_enough())
            {
                progress.passed = Some(lane.existing());
                progress.lanes.clear();
                tracing::info!(
                    device = subject.ordinal,
                    work = ?subject.work,
                    subchunks = progress.subchunks,
                    "the results of a CUDA device have passed the comparison with the host"
                );
            }
        });
    }

    /// Notes that results are returned without a comparison.
    pub(super) fn returned(&self, subject: &Subject<'_>, unchecked: Unchecked) {
        self.with(subject, |progress| {
            progress.unchecked.shards += unchecked.shards;
            progress.unchecked.batches += unchecked.batches;
        });
    }

    /// Returns the results that were returned since the last comparison without a difference.
    pub(super) fn unchecked(&self, subject: &Subject<'_>) -> Unchecked {
        self.with(subject, |progress| progress.unchecked)
    }

    fn with<T>(&self, subject: &Subject<'_>, then: impl FnOnce(&mut Progress) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|(known, _)| known == subject);
        let at = at.unwrap_or_else(|| {
            all.push((subject.clone().into_owned(), Progress::default()));
            all.len() - 1
        });
        then(&mut all[at].1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn subject(work: Work) -> Subject<'static> {
        Subject {
            ordinal: 0,
            work,
            fill_value: Cow::Borrowed(&[0]),
            store_empty: false,
            pads: false,
            reducer: None,
        }
    }

    fn uses(lane: u64, classes: [&[u32]; 3]) -> LaneUses {
        LaneUses {
            lane,
            classes: classes.map(<[u32]>::to_vec),
        }
    }

    #[test]
    fn a_kind_passes_with_enough_uses_of_one_lane_and_enough_subchunks() {
        let progress = CheckProgress::default();
        let encode = subject(Work::Encode);
        let one = uses(1, [&[1, 1], &[1], &[]]);
        let other = uses(2, [&[1, 1], &[1], &[]]);
        for _ in 0..2 {
            progress.equal(&encode, 100, &one);
            progress.equal(&encode, 100, &other);
        }
        assert!(!progress.has_passed(&encode), "two uses of each");
        assert!(progress.is_due(&encode, 64));
        progress.equal(&encode, 1, &one);
        assert!(progress.has_passed(&encode));
        let others = [
            subject(Work::Decode),
            Subject {
                ordinal: 1,
                ..encode.clone()
            },
            Subject {
                fill_value: Cow::Borrowed(&[1]),
                ..encode.clone()
            },
            Subject {
                store_empty: true,
                ..encode.clone()
            },
            Subject {
                pads: true,
                ..encode.clone()
            },
        ];
        for other in &others {
            assert!(!progress.has_passed(other), "{other:?}");
        }
        let due = (0..128).filter(|_| progress.is_due(&encode, 64));
        assert_eq!(due.count(), 2);
        assert!(progress.is_due(&encode, 1));
    }

    #[test]
    fn empty_subchunks_and_unused_buffers_do_not_count() {
        let progress = CheckProgress::default();
        let encode = subject(Work::Encode);
        for _ in 0..10 {
            progress.equal(&encode, 0, &uses(1, [&[1], &[1], &[1]]));
        }
        assert!(!progress.has_passed(&encode), "no subchunks");
        let stream = subject(Work::Stream(Source::Host));
        for _ in 0..10 {
            progress.equal(&stream, 64, &uses(1, [&[1], &[1, 0], &[1]]));
        }
        assert!(!progress.has_passed(&stream), "a buffer without a use");
    }

    #[test]
    fn a_missing_buffer_needs_no_use_and_has_none() {
        let progress = CheckProgress::default();
        let encode = subject(Work::Encode);
        let fewer = uses(1, [&[1], &[1, MISSING], &[]]);
        for _ in 0..3 {
            progress.equal(&encode, 64, &fewer);
        }
        assert!(progress.has_passed(&encode));
        progress.equal(&encode, 64, &fewer);
        assert!(!progress.reaches_new(&encode, &uses(2, [&[1], &[1, 0], &[]])));
        assert!(progress.reaches_new(&encode, &uses(2, [&[1], &[1, 1], &[]])));
    }

    /// A shard of 1, 2, 4 … batches: each batch of it is compared sometimes, and one in 64.
    #[test]
    fn no_batch_of_a_shard_is_left_out() {
        let encode = subject(Work::Encode);
        for batches in [1, 2, 3, 4, 8, 16, 32, 64] {
            let progress = CheckProgress::default();
            progress.equal(&encode, 64, &uses(1, [&[3], &[3], &[3]]));
            let mut compared = vec![0_u32; batches];
            for batch in 0..64 * 64 * 8 {
                compared[batch % batches] += u32::from(progress.is_due(&encode, 64));
            }
            assert!(compared.iter().all(|times| *times > 0), "{compared:?}");
            assert_eq!(compared.iter().sum::<u32>(), 64 * 8);
        }
    }

    #[test]
    fn a_buffer_that_is_used_later_is_new_until_its_third_use() {
        let progress = CheckProgress::default();
        let encode = subject(Work::Encode);
        let (few, more) = (uses(1, [&[3], &[3], &[]]), uses(2, [&[1, 1], &[1], &[]]));
        assert!(progress.reaches_new(&encode, &few), "not passed");
        progress.equal(&encode, 64, &few);
        assert!(!progress.reaches_new(&encode, &few));
        for _ in 0..3 {
            assert!(progress.reaches_new(&encode, &more));
            progress.equal(&encode, 1, &more);
        }
        assert!(!progress.reaches_new(&encode, &more));
    }

    #[test]
    fn results_without_a_comparison_are_counted_until_the_next_comparison() {
        let progress = CheckProgress::default();
        let encode = subject(Work::Encode);
        let said = || progress.unchecked(&encode).to_string();
        assert!(said().ends_with("nothing of this kind"));
        for shards in [0, 2] {
            let unchecked = Unchecked { shards, batches: 3 };
            progress.returned(&encode, unchecked);
        }
        let expected = "batches of this kind: 6, whole shards: 2";
        assert!(said().ends_with(expected), "{}", said());
        progress.equal(&encode, 1, &uses(1, [&[], &[], &[]]));
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

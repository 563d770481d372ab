//! A device's answer about a batch: where the encoded subchunks lie, and their outcomes.

use super::driver::DriverError;
use super::kernels::compressed_frames::FrameOutcome;
use super::session::Session;
use super::sizing::BatchRegions;
use crate::layout::ShardPermutation;

/// The offsets of all places in the shard, and the outcome of each subchunk. `outcomes` is empty if the chain
/// has no compressor.
pub(super) struct Answer {
    offsets: Vec<u64>,
    outcomes: Vec<FrameOutcome>,
}

impl Answer {
    /// Reads the device's answer about the batch in `regions`. The caller has waited until the answer was
    /// copied to pinned memory.
    ///
    /// # Errors
    /// A subchunk has no possible outcome.
    pub(super) fn read(
        session: &Session<'_>,
        regions: &BatchRegions,
        permutation: &ShardPermutation,
    ) -> Result<Self, DriverError> {
        let lane = session.lane;
        let (offsets, outcomes) = regions
            .answer
            .split_at((permutation.padded_slots() + 1) * 8);
        let outcomes = if session.sizing.compresses() {
            outcomes.part(0..permutation.subchunks() * 4)
        } else {
            outcomes.part(0..0)
        };
        let offsets = lane.read(lane.pinned_out(offsets))?.as_chunks::<8>().0;
        let flags = lane.read(lane.pinned_out(outcomes))?.as_chunks::<4>().0;
        let outcomes = flags.iter().enumerate().map(|(subchunk, flag)| {
            let flag = u32::from_le_bytes(*flag);
            FrameOutcome::of_flag(flag).ok_or_else(|| {
                let what = format!("subchunk {subchunk} has the outcome {flag}, which none has");
                wrong_answer(session, &what)
            })
        });
        Ok(Self {
            offsets: offsets.iter().map(|n| u64::from_le_bytes(*n)).collect(),
            outcomes: outcomes.collect::<Result<_, _>>()?,
        })
    }

    /// Returns whether the compressor failed on `subchunk`.
    pub(super) fn has_failed(&self, subchunk: usize) -> bool {
        self.outcomes.get(subchunk) == Some(&FrameOutcome::Failed)
    }

    /// Returns the subchunks that the host has to encode because the compressor failed on them, in ascending
    /// order.
    pub(super) fn failed(&self) -> impl Iterator<Item = usize> {
        let outcomes = self.outcomes.iter().enumerate();
        let failed = outcomes.filter(|(_, outcome)| **outcome == FrameOutcome::Failed);
        failed.map(|(subchunk, _)| subchunk)
    }

    /// Returns where the bytes of `place` end in the encoded batch. These bytes have to begin at `start`.
    ///
    /// # Errors
    /// The offsets are impossible: the bytes do not begin at `start`, or end before `start`.
    pub(super) fn end_of(
        &self,
        session: &Session<'_>,
        place: usize,
        start: usize,
    ) -> Result<usize, DriverError> {
        let offsets = (self.offsets.get(place), self.offsets.get(place + 1));
        if let (Some(&from), Some(&to)) = offsets
            && from == start as u64
            && to >= from
            && let Ok(end) = usize::try_from(to)
        {
            return Ok(end);
        }
        let what =
            format!("place {place} is at {offsets:?}, and the one before it ends at {start}");
        Err(wrong_answer(session, &what))
    }

    /// Checks that an encoded `subchunk` can have `len` bytes. Without a compressor, every encoded subchunk
    /// has the full encoded size, or 0 bytes if it is not stored. With a compressor, it has at most the full
    /// size if it has a frame, and 0 bytes if not.
    ///
    /// # Errors
    /// The length is impossible.
    pub(super) fn check_size(
        &self,
        session: &Session<'_>,
        subchunk: usize,
        len: usize,
        store_empty: bool,
    ) -> Result<(), DriverError> {
        let most = session.sizing.encoded;
        let outcome = self.outcomes.get(subchunk);
        let is_possible = match outcome {
            None => len == most || len == 0 && !store_empty,
            Some(FrameOutcome::Framed) => (1..=most).contains(&len),
            Some(FrameOutcome::Failed) => len == 0,
            Some(FrameOutcome::Empty) => len == 0 && !store_empty,
        };
        if is_possible {
            return Ok(());
        }
        let outcome = outcome.map_or_else(String::new, |outcome| format!(" ({outcome:?})"));
        Err(wrong_answer(
            session,
            &format!(
                "subchunk {subchunk}{outcome} has {len} bytes, where an encoded one has {most}"
            ),
        ))
    }
}

/// Returns the error for an impossible answer of the device. `what` says what is impossible.
pub(super) fn wrong_answer(session: &Session<'_>, what: &str) -> DriverError {
    let reason = format!("the device returned an impossible answer: {what}");
    session.wrong("aggregating subchunks", &reason)
}

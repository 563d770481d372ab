//! A device's answer about a batch: where the encoded subchunks lie, and on which subchunks the
//! compressor failed.

use super::driver::{DriverError, Fault};
use super::session::Session;
use super::sizing::BatchRegions;
use crate::layout::ShardPermutation;

/// The offsets of all places in the shard, and for each subchunk whether the compressor failed on the
/// subchunk. `failed` is empty if the chain has no compressor.
pub(super) struct Answer {
    offsets: Vec<u64>,
    failed: Vec<bool>,
}

impl Answer {
    /// Reads the device's answer about the batch in `regions`. The caller has waited until the answer was
    /// copied to pinned memory.
    pub(super) fn read(
        session: &Session<'_>,
        regions: &BatchRegions,
        permutation: &ShardPermutation,
    ) -> Result<Self, DriverError> {
        let lane = session.lane;
        let (offsets, failed) = regions
            .answer
            .split_at((permutation.padded_slots() + 1) * 8);
        let failed = if session.sizing.compresses() {
            failed.part(0..permutation.subchunks() * 4)
        } else {
            failed.part(0..0)
        };
        let offsets = lane.read(lane.pinned_out(offsets))?.as_chunks::<8>().0;
        let failed = lane.read(lane.pinned_out(failed))?.as_chunks::<4>().0;
        Ok(Self {
            offsets: offsets.iter().map(|n| u64::from_le_bytes(*n)).collect(),
            failed: failed.iter().map(|flag| *flag != [0; 4]).collect(),
        })
    }

    /// Returns whether the compressor failed on `subchunk`; `None` if the chain has no compressor.
    pub(super) fn has_failed(&self, subchunk: usize) -> Option<bool> {
        self.failed.get(subchunk).copied()
    }

    /// Returns the subchunks that the host has to encode because the compressor failed on them, in ascending
    /// order.
    pub(super) fn failed(&self) -> impl Iterator<Item = usize> {
        let failed = self.failed.iter().enumerate();
        failed.filter_map(|(number, failed)| failed.then_some(number))
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
    /// has the full encoded size. With a compressor, it has at most the full size, and 0 bytes where the
    /// compressor failed. A subchunk that is not stored has 0 bytes.
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
        let elided = len == 0 && !store_empty;
        let is_possible = match self.has_failed(subchunk) {
            None => len == most || elided,
            Some(failed) => len <= most && (len > 0) != failed || elided,
        };
        if is_possible {
            return Ok(());
        }
        Err(wrong_answer(
            session,
            &format!("subchunk {subchunk} has {len} bytes, where an encoded one has {most}"),
        ))
    }
}

/// Returns the error for an impossible answer of the device. `what` says what is impossible.
pub(super) fn wrong_answer(session: &Session<'_>, what: &str) -> DriverError {
    let reason = format!("the device returned an impossible table of offsets: {what}");
    session.counters.mismatch();
    DriverError {
        fault: Fault::Wrong,
        ..session.refused("aggregating subchunks", &reason)
    }
}

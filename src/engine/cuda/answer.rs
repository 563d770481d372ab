//! The answer of a device about a batch: where the encoded subchunks lie, and on which subchunks the
//! compressor failed.

use super::driver::DriverError;
use super::session::Session;
use super::sizing::BatchRegions;
use crate::layout::ShardPermutation;

/// The offsets of all places, and of each subchunk whether the compressor failed on it; of none, if
/// there is no compressor.
pub(super) struct Answer {
    offsets: Vec<u64>,
    failed: Vec<bool>,
}

impl Answer {
    /// Read what the device says of the batch in `regions`. The caller has synchronised with that.
    pub(super) fn read(
        session: &Session<'_>,
        regions: &BatchRegions,
        permutation: &ShardPermutation,
    ) -> Result<Self, DriverError> {
        let lane = session.lane;
        let (offsets, failed) = regions
            .answer
            .split_at((permutation.padded_slots() + 1) * 8);
        let failed = match session.sizing.compression {
            Some(_) => failed.part(0..permutation.subchunks() * 4),
            None => failed.part(0..0),
        };
        let offsets = lane.read(lane.pinned_out(offsets))?.as_chunks::<8>().0;
        let failed = lane.read(lane.pinned_out(failed))?.as_chunks::<4>().0;
        Ok(Self {
            offsets: offsets.iter().map(|n| u64::from_le_bytes(*n)).collect(),
            failed: failed.iter().map(|flag| *flag != [0; 4]).collect(),
        })
    }

    /// Whether the compressor failed on a subchunk, if there is one.
    pub(super) fn has_failed(&self, subchunk: usize) -> Option<bool> {
        self.failed.get(subchunk).copied()
    }

    /// The subchunks that the host has to encode, in their order.
    pub(super) fn failed(&self) -> impl Iterator<Item = usize> {
        let failed = self.failed.iter().enumerate();
        failed.filter_map(|(number, failed)| failed.then_some(number))
    }

    /// The end of what is in `place`, which has to begin at `start`.
    ///
    /// # Errors
    /// It does not: the answer is an impossible one.
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

    /// Whether `subchunk` can have `len` bytes: all of an encoded one, or, if there is a compressor,
    /// at most as many, and none where it has failed.
    ///
    /// # Errors
    /// It cannot.
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

/// A lane's answer that cannot be: what it was asked for is done elsewhere.
pub(super) fn wrong_answer(session: &Session<'_>, what: &str) -> DriverError {
    let reason = format!("the device returned an impossible table of offsets: {what}");
    session.refused("aggregating subchunks", &reason)
}

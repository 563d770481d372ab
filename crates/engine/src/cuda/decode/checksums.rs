//! The verdicts of a device on the checksums of the subchunks that it decodes. The host confirms those that find a
//! checksum wrong.

use super::{Decoder, EnqueuedBatch};
use crate::contract::EngineError;
use crate::cuda::arena::Region;
use crate::cuda::counters::TimedStage;
use crate::cuda::driver::DriverError;
use crate::cuda::kernels::crc32c;
use crate::cuda::kernels::crc32c::Verdict;
use crate::cuda::kernels::spans::{Lengths, Slots};
use crate::cuda::lane::NO_ANSWER;
use crate::cuda::session::{Session, Timed};
use crate::subchunk::stages::decode_fixed_size;

/// Enqueues the comparison of `checksums` checksums behind the `bytes` bytes of the elements in each of `slots`, which
/// are those of batch `number`. The verdicts go to the batch's region for them.
pub(in crate::cuda) fn verify(
    session: &Session<'_>,
    number: usize,
    slots: Slots,
    (checksums, bytes): (usize, usize),
    timed: &mut Vec<Timed>,
) -> Result<(), DriverError> {
    let lane = session.lane;
    let (regions, count) = (session.batch(number), slots.count);
    let (_, stream) = session.workspace(regions);
    session.run(stream, TimedStage::Crc32c, timed, || {
        for stage in 0..checksums {
            let len = bytes + stage * crc32c::CHECKSUM;
            let verdicts = regions
                .verdicts
                .part(stage * count * 4..(stage + 1) * count * 4);
            lane.fill(stream, verdicts, NO_ANSWER)?;
            // SAFETY: the spans are regions of the lane, and the kernels on them run in one stream.
            unsafe {
                crc32c::verify(
                    lane.driver,
                    stream,
                    slots,
                    Lengths::All(len),
                    Some(lane.device(regions.stored)),
                    lane.device(verdicts),
                )?;
            }
        }
        Ok(())
    })
}

impl Decoder<'_, '_> {
    /// Returns the number of checksums that each slot has behind its elements.
    pub(super) fn checksums(&self) -> usize {
        match &self.decompression {
            Some(decompression) => decompression.parts.layout.before,
            None => self.kind.chain.stages.len(),
        }
    }

    /// Returns whether the device has to compare checksums.
    pub(super) fn validates(&self) -> bool {
        self.job.validate_checksums && self.checksums() > 0
    }

    /// Returns the regions of the results of comparing the checksums of `count` subchunks: one on the device,
    /// and one in pinned memory.
    pub(super) fn verdicts(&self, number: usize, count: usize) -> (Region, Region) {
        let regions = self.session.batch(number);
        let len = self.checksums() * count * 4;
        (regions.verdicts.part(0..len), regions.answer.part(0..len))
    }

    /// Checks the results of comparing a batch's checksums. The results came before the batch's first slab.
    ///
    /// # Errors
    /// A checksum is wrong in the host's view, too, or the results are wrong. With a compressor, the error
    /// makes the host decode the shard.
    pub(super) fn check_checksums(&self, batch: &EnqueuedBatch) -> Result<(), EngineError> {
        if !self.validates() {
            return Ok(());
        }
        let count = batch.batch.len();
        let (_, answer) = self.verdicts(batch.number, count);
        let lane = self.session.lane;
        let flags = lane.read(lane.pinned_out(answer))?.as_chunks::<4>().0;
        let mut wrong = None;
        for (i, flag) in flags.iter().enumerate() {
            let (within, flag) = (i % count, u32::from_le_bytes(*flag));
            let subchunk = batch.batch.first + within;
            let is_stored = matches!(self.extents.get(subchunk), Some(Some(_)));
            match Verdict::of_flag(flag) {
                Some(Verdict::Right) if is_stored => {}
                Some(Verdict::Absent) if !is_stored => {}
                Some(Verdict::Wrong) if is_stored => {
                    wrong = Some(wrong.map_or(within, |first: usize| first.min(within)));
                }
                verdict => {
                    let stored = if is_stored { "stored" } else { "not stored" };
                    return Err(self.wrong(&format!(
                        "the device returned {flag} ({verdict:?}) for a checksum of subchunk {subchunk}, which is {stored}"
                    )));
                }
            }
        }
        match wrong {
            None => Ok(()),
            Some(_) if self.decompression.is_some() => Err(EngineError::Unsuitable(
                "a checksum in front of the compressor is invalid".to_string(),
            )),
            Some(subchunk) => Err(self.confirm(batch.batch.first + subchunk)),
        }
    }

    /// Returns the error for `subchunk`, whose checksum is wrong in the device's view: the host's error, or,
    /// if the host finds no fault, the error of a device that returned a wrong result.
    fn confirm(&self, subchunk: usize) -> EngineError {
        let bytes = self.extents.get(subchunk).cloned().flatten();
        let bytes = bytes.and_then(|extent| self.encoded.get(extent));
        let expected = self.job.grid.subchunk_bytes();
        let chain = &self.kind.chain;
        let by_host = bytes.map_or(Ok(()), |bytes| {
            decode_fixed_size(chain, subchunk, bytes, expected, true).map(|_| ())
        });
        by_host.err().unwrap_or_else(|| {
            self.wrong(&format!(
                "the device found a wrong checksum in subchunk {subchunk}, and the host found it right"
            ))
        })
    }

    fn wrong(&self, reason: &str) -> EngineError {
        EngineError::Device(self.session.wrong("comparing checksums", &reason))
    }
}

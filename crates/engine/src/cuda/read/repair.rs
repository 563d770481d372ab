//! Subchunks that the device could not decode: the host decodes them, and copies their elements to their slots.

use super::SubchunkToPlace;
use super::batch::InFlight;
use super::in_lane::{Reading, UPLOADED, UPLOADED_WAIT, subchunks};
use crate::contract::EngineError;
use crate::cuda::kernels::crc32c::Verdict;

impl Reading<'_, '_> {
    /// Returns the slots of a batch that the device could not decode, with the reason.
    pub(super) fn failed(
        &self,
        flight: &InFlight,
    ) -> Result<Vec<(usize, &'static str)>, EngineError> {
        let Some(decompression) = self.decompression(flight.parts.as_ref())? else {
            return Ok(Vec::new());
        };
        let (session, lane) = (self.session, self.session.lane);
        let mut failed = decompression.failed(session, subchunks(&flight.batch))?;
        let count = flight.batch.offsets.len();
        let answer = session.batch(flight.batch.number).answer;
        let answer = answer.part(0..self.checksums() * count * 4);
        let flags = lane.read(lane.pinned_out(answer))?.as_chunks::<4>().0;
        for (at, flag) in flags.iter().enumerate() {
            let (slot, flag) = (at % count, u32::from_le_bytes(*flag));
            // The host has compared the checksums of what it decoded.
            if flight.batch.copied.get(slot) != Some(&0) {
                continue;
            }
            match Verdict::of_flag(flag) {
                Some(Verdict::Right) => {}
                Some(Verdict::Wrong) => {
                    if failed.iter().all(|(known, _)| *known != slot) {
                        failed.push((slot, "a checksum in front of the compressor is invalid"));
                    }
                }
                verdict => {
                    let reason = format!(
                        "the device returned {flag} ({verdict:?}) for a checksum of a stored subchunk"
                    );
                    return Err(session.wrong("comparing checksums", &reason).into());
                }
            }
        }
        Ok(failed)
    }

    /// Decodes the subchunks in the slots `failed` on the host, and copies their elements to the slots.
    pub(super) fn repair(
        &mut self,
        flight: &mut InFlight,
        failed: &[(usize, &'static str)],
        damaged: &mut dyn FnMut(usize, EngineError) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let (session, lane) = (self.session, self.session.lane);
        flight.repaired.extend(failed.iter().map(|(slot, _)| *slot));
        let batch = &mut flight.batch;
        batch.copied.fill(0);
        let mut contents: Vec<(usize, Vec<u8>)> = Vec::new();
        for (slot, reason) in failed {
            session.counters.fell_back(reason);
            let found = batch.slots.iter().position(|of| *of == Some(*slot));
            let at = found.ok_or(EngineError::Internal("a slot of no subchunk"))?;
            let SubchunkToPlace {
                tag,
                number,
                content,
                ..
            } = &batch.subchunks[at];
            let encoded = content.encoded().unwrap_or_default();
            match self
                .reads
                .decode(*number, encoded, self.job.validate_checksums)
            {
                Ok(elements) => contents.push((*slot, elements)),
                Err(error @ EngineError::OutOfMemory { .. }) => return Err(error),
                Err(error) => {
                    damaged(*tag, error)?;
                    batch.slots[at] = None;
                }
            }
        }
        // The host has seen the answers, so nothing reads the encoded bytes and the tables any more.
        let regions = session.batch(batch.number);
        let mut end = 0;
        for (slot, elements) in &contents {
            (batch.offsets[*slot], batch.copied[*slot]) = (end as u64, elements.len() as u64);
            for piece in elements.chunks(session.sizing.staging_in[0].len) {
                let staging = self.uploads.reserve(session, piece.len())?;
                // SAFETY: the place of the ring has as many bytes, which only this thread writes now.
                unsafe {
                    let from = piece.as_ptr();
                    staging.start.copy_from_nonoverlapping(from, piece.len());
                }
                let to = lane.device(regions.dense.part(end..end + piece.len()));
                self.uploads.start(session, &staging, to)?;
                end += piece.len();
            }
        }
        if contents.is_empty() {
            return Ok(());
        }
        self.upload_tables(batch)?;
        let (_, stream) = session.workspace(regions);
        session.order((lane.up, UPLOADED), (stream, UPLOADED_WAIT))?;
        let group = self.group(batch.number);
        let mut timed = std::mem::take(&mut self.timed[group]);
        self.split(batch, lane.device(regions.dense.part(0..end)), &mut timed)?;
        self.timed[group] = timed;
        Ok(())
    }
}

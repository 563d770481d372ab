//! Collects the subchunks of a batch, and starts the copies of their bytes to the device.
//!
//! Bytes that lie together in a slab are a run, and a long run is copied to the device from the slab. Shorter runs, and bytes
//! in other memory, are copied on the host first, to the ring of the lane: a call of the driver for each would take longer.

use std::ops::Range;
use std::sync::Arc;

use super::batch::{Batch, Collecting};
use super::in_lane::Reading;
use super::{Content, SubchunkToPlace};
use crate::contract::{EncodedBytes, EngineError};
use crate::cuda::counters::TimedStage;
use crate::cuda::driver::DriverError;
use crate::cuda::slabs::PinnedSlab;

/// The most subchunks without bytes that a batch has for each slot.
const FILLED_PER_SLOT: usize = 4;

/// A run joins bytes that wait in the ring if it is shorter than so many times the least run that is copied from a slab.
const JOINING: usize = 8;

impl Reading<'_, '_> {
    /// Adds a subchunk to the batch that is being collected. Starts the batch before if it is full.
    pub(super) fn add(
        &mut self,
        subchunk: SubchunkToPlace,
        damaged: &mut dyn FnMut(usize, EngineError) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let most = self.session.sizing.batch;
        let is_full = self.collecting.as_ref().is_some_and(|collecting| {
            let batch = &collecting.batch;
            batch.offsets.len() == most
                || batch.subchunks.len() >= most.saturating_mul(FILLED_PER_SLOT)
        });
        if is_full {
            self.launch()?;
        }
        if self.collecting.is_none() {
            self.begin(damaged)?;
        }
        let slot = match &subchunk.content {
            Content::Fill => None,
            Content::Frame(_, bytes) => Some(self.put_encoded(bytes, 0)?),
            Content::Plain(bytes) => {
                let elements = bytes.part(0..self.reads.grid.subchunk_bytes());
                let elements = elements.ok_or(EngineError::Internal("a short subchunk"))?;
                Some(self.put_encoded(&elements, elements.get().len())?)
            }
            Content::Decoded(elements, _) => {
                let slot = self.slot(elements.len(), elements.len())?;
                self.end_run()?;
                self.put(elements)?;
                Some(slot)
            }
        };
        if let Some(Collecting { batch, .. }) = &mut self.collecting {
            batch.slots.push(slot);
            batch.subchunks.push(subchunk);
        }
        Ok(())
    }

    /// Begins to collect a batch, in buffers that nothing uses any more.
    fn begin(
        &mut self,
        damaged: &mut dyn FnMut(usize, EngineError) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let sizing = self.session.sizing;
        // A batch in flight has its slots for itself.
        while self.in_flight.len() >= sizing.workspaces.len()
            && let Some(oldest) = self.in_flight.pop_front()
        {
            self.place(oldest, damaged)?;
        }
        let number = self.begun;
        self.wait_for(self.group(number))?;
        self.begun += 1;
        self.collecting = Some(Collecting {
            batch: Batch {
                number,
                ..Batch::default()
            },
            run: None,
            staging: None,
            started: 0,
            ring_before: self.uploads.uses(self.session),
        });
        Ok(())
    }

    fn collecting(&mut self) -> Result<&mut Collecting, EngineError> {
        let collecting = self.collecting.as_mut();
        collecting.ok_or(EngineError::Internal("no batch is being collected"))
    }

    /// Returns the next slot of the batch that is being collected, for `len` bytes behind the bytes that the batch has. The first
    /// `copied` of them are the content of the slot.
    fn slot(&mut self, len: usize, copied: usize) -> Result<usize, EngineError> {
        let batch = &mut self.collecting()?.batch;
        batch.offsets.push(batch.end as u64);
        batch.copied.push(copied as u64);
        batch.end += len;
        Ok(batch.offsets.len() - 1)
    }

    /// Puts encoded bytes behind the bytes of the batch that is being collected, and returns their slot. The first
    /// `copied` of them are the content of the slot.
    fn put_encoded(&mut self, bytes: &EncodedBytes, copied: usize) -> Result<usize, EngineError> {
        let slot = self.slot(bytes.get().len(), copied)?;
        let Some((slab, range)) = bytes.owner::<PinnedSlab>() else {
            self.end_run()?;
            self.session.counters.copied_for_read(bytes.get().len());
            self.put(bytes.get())?;
            return Ok(slot);
        };
        if let Some((last, run)) = &mut self.collecting()?.run
            && Arc::ptr_eq(last, &slab)
            && run.end == range.start
        {
            run.end = range.end;
            return Ok(slot);
        }
        self.end_run()?;
        self.collecting()?.run = Some((slab, range));
        Ok(slot)
    }

    /// Ends the run of bytes of the batch that is being collected, if there is one: copies it from its slab, or on the host.
    fn end_run(&mut self) -> Result<(), EngineError> {
        let Some((slab, run)) = self.collecting()?.run.take() else {
            return Ok(());
        };
        let sizing = self.session.sizing;
        let least = sizing.tuning.least_direct;
        let room = sizing.staging_in[0].len;
        let staging = &self.collecting()?.staging;
        // A copy from the slab would first start the copy of these bytes, however few they are.
        let joins = run.len() < least.saturating_mul(JOINING)
            && staging
                .as_ref()
                .is_some_and(|(_, filled)| run.len() <= room - filled);
        if run.len() >= least && !joins {
            self.flush()?;
            return Ok(self.copy_run(&slab, run)?);
        }
        let bytes: &[u8] = (*slab).as_ref();
        let bytes = bytes.get(run);
        let bytes = bytes.ok_or(EngineError::Internal("a slab with fewer bytes"))?;
        self.session.counters.copied_for_read(bytes.len());
        self.put(bytes)
    }

    /// Starts the copy of a run from its slab. The bytes before it were flushed.
    fn copy_run(&mut self, slab: &Arc<PinnedSlab>, run: Range<usize>) -> Result<(), DriverError> {
        let (session, lane, len) = (self.session, self.session.lane, run.len());
        let Some(collecting) = &mut self.collecting else {
            return Ok(());
        };
        let (number, from) = (collecting.batch.number, collecting.started);
        collecting.started += len;
        let to = lane.device(session.batch(number).dense.part(from..from + len));
        let group = self.group(number);
        let timed = &mut self.timed[group];
        session.run(lane.up, TimedStage::ToDevice, timed, || {
            lane.copy_of_slab(lane.up, (slab, run), to, group)
        })?;
        session.counters.add_to_device(len);
        Ok(())
    }

    /// Copies `bytes` on the host, behind the bytes of the batch that is being collected.
    fn put(&mut self, bytes: &[u8]) -> Result<(), EngineError> {
        let room = self.session.sizing.staging_in[0].len;
        let mut rest = bytes;
        while !rest.is_empty() {
            let Some(collecting) = &mut self.collecting else {
                return Err(EngineError::Internal("no batch is being collected"));
            };
            let (staging, filled) = match &mut collecting.staging {
                Some(staging) => staging,
                none => none.insert((self.uploads.reserve(self.session, room)?, 0)),
            };
            let len = rest.len().min(room - *filled);
            // SAFETY: the place of the ring has `room` bytes, which only this thread writes now.
            unsafe {
                let to = staging.start.add(*filled);
                to.copy_from_nonoverlapping(rest.as_ptr(), len);
            }
            *filled += len;
            rest = &rest[len..];
            if *filled == room {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Starts the copy of the bytes that are in the ring.
    fn flush(&mut self) -> Result<(), DriverError> {
        let (session, lane) = (self.session, self.session.lane);
        let Some(collecting) = &mut self.collecting else {
            return Ok(());
        };
        let Some((staging, filled)) = collecting.staging.take() else {
            return Ok(());
        };
        let dense = session.batch(collecting.batch.number).dense;
        let to = dense.part(collecting.started..collecting.started + filled);
        self.uploads
            .start(session, &staging.cut(filled), lane.device(to))?;
        collecting.started += filled;
        Ok(())
    }

    /// Starts the copies of all bytes of the batch that is being collected, and returns the batch; `None` if there is none.
    pub(super) fn take_collected(&mut self) -> Result<Option<Collecting>, EngineError> {
        if self.collecting.is_some() {
            self.end_run()?;
            self.flush()?;
        }
        Ok(self.collecting.take())
    }
}

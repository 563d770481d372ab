//! Compares the subchunks of a batch with those of the host: the device places them whole, in its own memory, and the
//! host decodes them, too.

use super::batch::{Batch, InFlight};
use super::in_lane::Reading;
use crate::contract::{Chain, EngineError, ShardJob};
use crate::cuda::arena::Region;
use crate::cuda::check_progress::{Unchecked, Work};
use crate::cuda::driver::Site;
use crate::cuda::kernels::place::PlacedBox;
use crate::cuda::transfers::Downloads;
use crate::layout::{SubchunkGrid, strides};
use crate::memory::allocate;
use crate::subchunk::compare::{Comparison, Unequal, compare_all};

/// The record of the event after which subchunks are placed for a comparison.
const COMPARED: Site = Site("record: subchunks were placed for a comparison");
const COMPARED_WAIT: Site = Site("wait: copies of subchunks for a comparison");

/// The name of the memory of compared elements, in errors.
const ELEMENTS: &str = "elements of a device, to compare them";

impl Reading<'_, '_> {
    /// Compares the subchunks of a batch if a comparison is due. The kernels that decode the batch were enqueued.
    /// `damaged` is told of subchunks that the host cannot decode, which has the last word on the data: see
    /// [`CudaReads::read`](super::CudaReads::read).
    ///
    /// # Errors
    /// [`EngineError::Device`] if the device is wrong; errors of the device, and of `damaged`.
    pub(super) fn compare(
        &mut self,
        flight: &mut InFlight,
        damaged: &mut dyn FnMut(usize, EngineError) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let device = self.session.lane.device_of();
        let checks = (self.reads.engine).checks(device, self.kind, self.job);
        if !checks.is_due_in(Work::Read, &flight.uses) {
            let unchecked = Unchecked {
                shards: 0,
                batches: 1,
            };
            if checks.every > 0 {
                let subject = checks.subject(Work::Read);
                self.kind.checks.returned(&subject, unchecked);
            }
            return Ok(());
        }
        let bytes = self.reads.grid.subchunk_bytes();
        let dense = self.session.batch(flight.batch.number).dense;
        let most = (dense.len / bytes.max(1)).max(1);
        let all: Vec<usize> = (0..flight.batch.subchunks.len()).collect();
        let mut undecoded = Vec::new();
        for round in all.chunks(most) {
            let elements = self.elements(&flight.batch, round, dense)?;
            while let Some((at, error)) =
                self.compare_elements(&flight.batch, (round, &undecoded), &elements)?
            {
                damaged(flight.batch.subchunks[at].tag, error)?;
                undecoded.push(at);
            }
        }
        for at in undecoded {
            flight.batch.slots[at] = None;
        }
        let compared = flight.batch.made(&flight.repaired) as u64;
        self.session.counters.batch_checked();
        let subject = checks.subject(Work::Read);
        self.kind.checks.equal(&subject, compared, &flight.uses);
        Ok(())
    }

    /// Returns the elements of the subchunks at the positions `round` of a batch, one subchunk behind the other in C
    /// order, as the device places them in `to`.
    fn elements(
        &mut self,
        batch: &Batch,
        round: &[usize],
        to: Region,
    ) -> Result<Vec<u8>, EngineError> {
        let (session, lane) = (self.session, self.session.lane);
        let grid = &self.reads.grid;
        let (bytes, subchunk) = (grid.subchunk_bytes(), grid.subchunk().to_vec());
        let boxes = round.iter().enumerate().map(|(number, &at)| PlacedBox {
            slot: batch.slots[at],
            start: vec![0; subchunk.len()],
            shape: subchunk.clone(),
            target: number * bytes,
        });
        let boxes: Vec<_> = boxes.collect();
        let array = strides(&subchunk, grid.element_size());
        let layout = self.reads.layout(session.sizing.slot_stride, &array);
        let to = to.part(0..round.len() * bytes);
        let span = lane.device(to);
        let pointer = span.memory.0 + span.offset as u64;
        self.place_boxes(batch, &boxes, &layout, (pointer, span))?;
        let (_, stream) = session.workspace(session.batch(batch.number));
        session.order((stream, COMPARED), (lane.down, COMPARED_WAIT))?;
        let mut elements = allocate::with_capacity(to.len, ELEMENTS, false)?;
        let mut downloads = Downloads::<()>::default();
        let mut started = 0;
        while elements.len() < to.len {
            while started < to.len && !downloads.is_full(session) {
                let len = Downloads::<()>::most(session).min(to.len - started);
                downloads.start(session, to.part(started..started + len), ())?;
                started += len;
            }
            let arrived = downloads.next(session, true)?;
            let arrived = arrived.ok_or(EngineError::Internal("no copy is in flight"))?;
            elements.extend_from_slice(arrived.bytes(session)?);
            arrived.finish(session)?;
        }
        Ok(elements)
    }

    /// Compares `elements` with the subchunks at the positions `round` of a batch, except the positions `undecoded`.
    /// Returns the position of a subchunk that the host cannot decode, and its error.
    fn compare_elements(
        &self,
        batch: &Batch,
        (round, undecoded): (&[usize], &[usize]),
        elements: &[u8],
    ) -> Result<Option<(usize, EngineError)>, EngineError> {
        let shape: Vec<u64> = (self.reads.grid.subchunk().iter())
            .map(|&extent| extent as u64)
            .collect();
        let grid = SubchunkGrid::new(&shape, &shape, self.reads.grid.element_size())
            .map_err(|error| EngineError::Unsuitable(error.to_string()))?;
        let job = ShardJob {
            grid: &grid,
            chain: Chain::Known(&self.reads.chain),
            ..*self.job
        };
        let comparison = Comparison::new(&job, &self.reads.chain);
        let bytes = grid.subchunk_bytes();
        let subchunks: Vec<(usize, Option<&[u8]>)> = round
            .iter()
            .enumerate()
            .filter(|(_, at)| !undecoded.contains(at))
            .map(|(number, &at)| {
                let is_stored = batch.slots[at].is_some();
                let encoded = batch.subchunks[at].content.encoded();
                (number, encoded.filter(|_| is_stored))
            })
            .collect();
        let compared = compare_all(&subchunks, self.job.threads, |number, encoded| {
            let elements = elements.get(number * bytes..(number + 1) * bytes);
            comparison.check_decoded(elements.unwrap_or_default(), 0, encoded)
        });
        let Err((number, unequal)) = compared else {
            return Ok(None);
        };
        let at = *round.get(number).unwrap_or(&0);
        let device = self.session.lane.device_of();
        let checks = (self.reads.engine).checks(device, self.kind, self.job);
        match unequal {
            Unequal::Failed(error @ EngineError::OutOfMemory { .. }) => Err(error),
            Unequal::Failed(error) if !matches!(error, EngineError::Checksum { .. }) => {
                Ok(Some((at, error)))
            }
            unequal => {
                let unequal = (batch.subchunks[at].number, unequal);
                checks.result_of(Work::Read, Err(unequal), None)?;
                Ok(None)
            }
        }
    }
}

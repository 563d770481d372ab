//! The order of batches in a lane.
//!
//! | edge | producer | consumer | guards |
//! |---|---|---|---|
//! | [`UPLOADED`] | copies of a batch, or of its repairs (`up`) | split (kernels) | the encoded bytes and the tables |
//! | [`DECODED`] | decompression and checksums (kernels) | copies of the answers (`down`) | the answers |
//! | [`ANSWERED`] | copies of the answers (`down`) | the host | the answers in pinned memory, and the encoded bytes |
//! | [`PLACED`] | place (kernels) | place of the next batch, and the host | the output, all buffers of the batch, and the slabs from which it was copied |
//!
//! The host waits for the place of a batch before it collects another batch in the same buffers, so that they need
//! no other edge. Batches are placed in order, also in several streams of kernels, because their boxes lie in one
//! array.

use std::collections::VecDeque;

use super::batch::{Batch, Collecting, InFlight};
use super::{Content, CudaReads, Next, SubchunkToPlace};
use crate::contract::coded_bytes::StoredBytes;
use crate::contract::{DeviceArray, EngineError, ShardJob};
use crate::cuda::check_progress::LaneUses;
use crate::cuda::compressed_frame_parts::CompressedFrameParts;
use crate::cuda::counters::TimedStage;
use crate::cuda::decode::checksums::verify;
use crate::cuda::decompress::{Decompression, Subchunks};
use crate::cuda::driver::{DeviceSpan, DriverError, EventId, Site, Span, StreamId};
use crate::cuda::enqueue::prepare;
use crate::cuda::kernels::place::{PlaceLayout, PlacePlan, PlacedBox};
use crate::cuda::kernels::spans::Slots;
use crate::cuda::kernels::split;
use crate::cuda::session::{Session, Timed};
use crate::cuda::sizing::ShardKind;
use crate::cuda::transfers::Uploads;

/// The record of the event after which the bytes and the tables of a batch are on the device.
pub(super) const UPLOADED: Site = Site("record: subchunks to read were copied to the device");
pub(super) const UPLOADED_WAIT: Site = Site("wait: split of subchunks to read for their copies");
/// The record of the event after which the device has judged the subchunks of a batch.
const DECODED: Site = Site("record: subchunks to read were decompressed");
const DECODED_WAIT: Site = Site("wait: copies of the answers about subchunks to read");
const ANSWERED: Site = Site("record: the answers about subchunks to read were copied");
const ANSWERED_HOST: Site = Site("synchronise: the answers about subchunks to read");
/// The record of the event after which the boxes of a batch are in their places.
const PLACED: Site = Site("record: boxes were placed");
const PLACED_WAIT: Site = Site("wait: place for the boxes of the batch before");
const PLACED_HOST: Site = Site("synchronise: buffers of boxes that were placed");
const END: Site = Site("synchronise: all boxes are in their places");

/// How a lane ends.
pub(super) enum ReadOutcome {
    /// There are no more subchunks.
    End,
    /// There is no subchunk yet.
    NotYet,
    /// This subchunk has a frame of another layout.
    OtherLayout(Box<SubchunkToPlace>),
}

/// Subchunks that are read in a lane.
pub(super) struct Reading<'a, 'l> {
    pub(super) reads: &'a CudaReads,
    pub(super) session: &'a Session<'l>,
    pub(super) job: &'a ShardJob<'a>,
    pub(super) kind: &'a ShardKind,
    array: &'a DeviceArray,
    span: DeviceSpan,
    layout: PlaceLayout,
    pub(super) uploads: Uploads,
    pub(super) collecting: Option<Collecting>,
    pub(super) in_flight: VecDeque<InFlight>,
    /// The number of batches that have begun.
    pub(super) begun: usize,
    /// For each group of buffers, the event after which the boxes of its last batch are in their places.
    placed: Vec<Option<EventId>>,
    /// The stages of these batches.
    pub(super) timed: Vec<Vec<Timed>>,
    /// The stream and the event of the last place of all.
    last: Option<(StreamId, EventId)>,
}

impl<'a, 'l> Reading<'a, 'l> {
    /// # Safety
    /// The requirements of [`CudaReads::read`].
    pub(super) unsafe fn new(
        reads: &'a CudaReads,
        session: &'a Session<'l>,
        (job, kind): (&'a ShardJob<'a>, &'a ShardKind),
        array: &'a DeviceArray,
    ) -> Result<Self, EngineError> {
        let (lane, sizing) = (session.lane, session.sizing);
        let bytes = reads.grid.subchunk_bytes();
        prepare(lane, sizing, bytes, job.fill_value)?;
        Decompression::prepare(session)?;
        Ok(Self {
            reads,
            session,
            job,
            kind,
            array,
            span: lane.driver.adopt(array.pointer, array.len)?,
            layout: reads.layout(sizing.slot_stride, &array.strides),
            uploads: Uploads::default(),
            collecting: None,
            in_flight: VecDeque::new(),
            begun: 0,
            placed: vec![None; sizing.batches.len()],
            timed: vec![Vec::new(); sizing.batches.len()],
            last: None,
        })
    }

    /// Reads the subchunks that `next` returns without waiting. [`CudaReads::read`] says what `damaged` is told.
    pub(super) fn run(
        mut self,
        next: &mut dyn FnMut() -> Next,
        damaged: &mut dyn FnMut(usize, EngineError) -> Result<(), EngineError>,
    ) -> Result<ReadOutcome, EngineError> {
        let layout = (self.kind.decompressor.as_ref()).map(|prepared| prepared.layout);
        let outcome = loop {
            let subchunk = match next() {
                Next::Subchunk(subchunk) => *subchunk,
                Next::NotYet => break ReadOutcome::NotYet,
                Next::End => break ReadOutcome::End,
            };
            if let Content::Frame(frame, _) = &subchunk.content
                && Some(frame.layout) != layout
            {
                break ReadOutcome::OtherLayout(Box::new(subchunk));
            }
            self.add(subchunk, damaged)?;
        };
        self.launch()?;
        while let Some(batch) = self.in_flight.pop_front() {
            self.place(batch, damaged)?;
        }
        for stream in self.session.lane.kernel_streams {
            self.session.lane.synchronize_stream(*stream, END)?;
        }
        // Everything is complete, also the copies to the device.
        for timed in &mut self.timed {
            self.session.finish_timed(timed.drain(..))?;
        }
        self.uploads.finish(self.session)?;
        self.session.lane.kept.give_all_back();
        Ok(outcome)
    }

    /// Returns the number of the group of buffers that the batch `number` uses.
    pub(super) fn group(&self, number: usize) -> usize {
        number % self.session.sizing.batches.len()
    }

    /// Waits until the last batch in a group of buffers is in its place.
    pub(super) fn wait_for(&mut self, group: usize) -> Result<(), DriverError> {
        let Some(event) = self.placed[group].take() else {
            return Ok(());
        };
        self.session.lane.synchronize(event, PLACED_HOST)?;
        // The bytes were copied to the device before the boxes were placed.
        self.session.lane.kept.give_back(group);
        self.session.finish_timed(self.timed[group].drain(..))?;
        if self.last.is_some_and(|(_, last)| last == event) {
            self.last = None;
        }
        self.session.events.give(event);
        Ok(())
    }

    /// Enqueues the kernels that decode the batch that is being collected, and the copies of their answers.
    pub(super) fn launch(&mut self) -> Result<(), EngineError> {
        let Some(collecting) = self.take_collected()? else {
            return Ok(());
        };
        let (session, lane) = (self.session, self.session.lane);
        let number = collecting.batch.number;
        let uses = self.uses_since(number, &collecting.ring_before);
        let batch = collecting.batch;
        let (regions, slots) = (session.batch(number), self.slots(&batch));
        let (_, stream) = session.workspace(regions);
        let parts = batch.parts();
        self.upload_tables(&batch)?;
        let decompression = self.decompression(parts.as_ref())?;
        if let Some(decompression) = &decompression {
            decompression.upload(session, subchunks(&batch), &batch.offsets, slots)?;
        }
        session.order((lane.up, UPLOADED), (stream, UPLOADED_WAIT))?;
        let mut timed = Vec::new();
        let dense = lane.device(regions.dense.part(0..batch.end));
        let mut answered = None;
        if let Some(decompression) = &decompression {
            decompression.decompress(session, subchunks(&batch), dense, slots, &mut timed)?;
        }
        // Undoing a shuffle writes every slot, so the slots that take bytes as they are come after it.
        self.split(&batch, dense, &mut timed)?;
        if let Some(decompression) = &decompression {
            if self.checksums() > 0 {
                let checksums = (self.checksums(), self.reads.grid.subchunk_bytes());
                verify(session, number, slots, checksums, &mut timed)?;
            }
            session.order((stream, DECODED), (lane.down, DECODED_WAIT))?;
            if self.checksums() > 0 {
                let len = self.checksums() * batch.offsets.len() * 4;
                let answer = lane.pinned_out(regions.answer.part(0..len));
                lane.clear_answer(answer)?;
                let verdicts = lane.device(regions.verdicts.part(0..len));
                lane.copy(lane.down, Span::Device(verdicts), Span::Pinned(answer))?;
                session.counters.add_from_device(len);
            }
            decompression.download(session, subchunks(&batch))?;
            answered = Some(session.record(lane.down, ANSWERED)?);
        }
        self.in_flight.push_back(InFlight {
            batch,
            parts,
            answered,
            timed,
            uses,
            repaired: Vec::new(),
        });
        Ok(())
    }

    /// Returns how often the batch `number` has used each buffer of the lane, whose ring was used as `before` says when
    /// the batch began.
    fn uses_since(&self, number: usize, before: &[u32]) -> LaneUses {
        let mut ring = self.uploads.uses(self.session);
        for (uses, before) in ring.iter_mut().zip(before) {
            *uses -= before;
        }
        let mut uses = self.session.uses(0, [ring, Vec::new()]);
        let group = self.group(number);
        uses.classes[0] = vec![0; group];
        uses.classes[0].push(1);
        uses
    }

    pub(super) fn slots(&self, batch: &Batch) -> Slots {
        let session = self.session;
        let (workspace, _) = session.workspace(session.batch(batch.number));
        Slots {
            span: session.lane.device(workspace.slots),
            stride: session.sizing.slot_stride,
            count: batch.offsets.len(),
        }
    }

    pub(super) fn decompression<'p>(
        &self,
        parts: Option<&'p CompressedFrameParts>,
    ) -> Result<Option<Decompression<'p>>, EngineError>
    where
        'a: 'p,
    {
        match (parts, &self.kind.decompressor) {
            (None, _) => Ok(None),
            (Some(parts), Some(prepared)) => Ok(Some(Decompression { prepared, parts })),
            (Some(_), None) => Err(EngineError::Internal("a lane without a decompressor")),
        }
    }

    /// Returns the number of checksums between the elements and the compressor that the device compares.
    pub(super) fn checksums(&self) -> usize {
        let prepared = self.kind.decompressor.as_ref();
        let before = prepared.map_or(0, |prepared| prepared.layout.before);
        if self.job.validate_checksums {
            before
        } else {
            0
        }
    }

    /// Copies the tables of a batch to the device: offsets, sizes, and that all of its subchunks are stored.
    pub(super) fn upload_tables(&self, batch: &Batch) -> Result<(), DriverError> {
        let (session, lane) = (self.session, self.session.lane);
        let regions = session.batch(batch.number);
        let mut table = regions.table;
        for (numbers, to) in [
            (&batch.offsets, regions.offsets),
            (&batch.copied, regions.sizes),
        ] {
            let span = lane.write_values(
                lane.pinned_in(table),
                numbers.iter().map(|number| number.to_le_bytes()),
            )?;
            let to = lane.device(to.part(0..span.len));
            lane.copy(lane.up, Span::Pinned(span), Span::Device(to))?;
            session.counters.add_to_device(span.len);
            table = table.part(span.len..table.len);
        }
        let stored = batch.offsets.iter().map(|_| 1_u32.to_le_bytes());
        let span = lane.write_values(lane.pinned_in(table), stored)?;
        let to = lane.device(regions.stored.part(0..span.len));
        lane.copy(lane.up, Span::Pinned(span), Span::Device(to))?;
        session.counters.add_to_device(span.len);
        Ok(())
    }

    /// Enqueues the copies of bytes to slots as they are.
    pub(super) fn split(
        &self,
        batch: &Batch,
        dense: DeviceSpan,
        timed: &mut Vec<Timed>,
    ) -> Result<(), DriverError> {
        if !batch.copies() {
            return Ok(());
        }
        let (session, lane) = (self.session, self.session.lane);
        let regions = session.batch(batch.number);
        let (_, stream) = session.workspace(regions);
        let (offsets, sizes) = (lane.device(regions.offsets), lane.device(regions.sizes));
        session.run(stream, TimedStage::Split, timed, || {
            // SAFETY: the spans are regions of the lane. The kernels on them run in one stream, after the copies to
            // them.
            unsafe {
                let slots = self.slots(batch);
                split::split(lane.driver, stream, dense, offsets, sizes, slots)
            }
        })
    }

    /// Waits for the answers of a batch, repairs the subchunks on which the device has failed, and enqueues the kernels
    /// that place the batch.
    pub(super) fn place(
        &mut self,
        mut flight: InFlight,
        damaged: &mut dyn FnMut(usize, EngineError) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let (session, lane) = (self.session, self.session.lane);
        if let Some(answered) = flight.answered.take() {
            lane.synchronize(answered, ANSWERED_HOST)?;
            session.events.give(answered);
            let failed = self.failed(&flight)?;
            if !failed.is_empty() {
                self.repair(&mut flight, &failed, damaged)?;
            }
        }
        let encoded = flight.batch.stored();
        let encoded = encoded.filter_map(|(_, subchunk)| subchunk.content.encoded());
        let bytes = self.reads.grid.subchunk_bytes();
        let bytes = StoredBytes::new(bytes, encoded.map(<[u8]>::len));
        let stored = flight.batch.stored().count();
        session.counters.read(stored as u64, bytes);
        self.compare(&mut flight, damaged)?;
        let boxes: Vec<PlacedBox> = flight
            .batch
            .subchunks
            .iter()
            .zip(&flight.batch.slots)
            .flat_map(|(subchunk, slot)| {
                subchunk.boxes.iter().map(|placed| PlacedBox {
                    slot: *slot,
                    start: placed.start.clone(),
                    shape: placed.shape.clone(),
                    target: placed.target,
                })
            })
            .collect();
        let (layout, span) = (self.layout.clone(), self.span);
        let group = self.group(flight.batch.number);
        self.timed[group].append(&mut flight.timed);
        self.place_boxes(&flight.batch, &boxes, &layout, (self.array.pointer, span))
    }

    /// Enqueues the kernels that place `boxes` of a batch in the array at `pointer`, whose memory is `span`.
    pub(super) fn place_boxes(
        &mut self,
        batch: &Batch,
        boxes: &[PlacedBox],
        layout: &PlaceLayout,
        (pointer, span): (u64, DeviceSpan),
    ) -> Result<(), EngineError> {
        let (session, lane) = (self.session, self.session.lane);
        let regions = session.batch(batch.number);
        let (_, stream) = session.workspace(regions);
        let group = self.group(batch.number);
        let record = crate::cuda::kernels::place::table_bytes(1, layout.array_strides.len());
        let slots = self.slots(batch);
        let most = regions.boxes.len / record.unwrap_or(usize::MAX).max(1);
        for round in boxes.chunks(most.max(1)) {
            self.wait_for(group)?;
            let plan = PlacePlan::new(layout, round, pointer)
                .map_err(|error| EngineError::Unsuitable(error.to_string()))?;
            let from = lane.write_values(
                lane.pinned_in(regions.table_of_boxes),
                plan.table.as_chunks::<32>().0.iter().copied(),
            )?;
            let table = lane.device(regions.boxes.part(0..from.len));
            lane.copy(stream, Span::Pinned(from), Span::Device(table))?;
            session.counters.add_to_device(from.len);
            if let Some((other, event)) = self.last
                && other != stream
            {
                lane.driver.wait(stream, event, PLACED_WAIT)?;
            }
            session.run(
                stream,
                TimedStage::Unscatter,
                &mut self.timed[group],
                || {
                    let fill = lane.device(session.sizing.fill);
                    // SAFETY: the slots and the table are regions of the lane, whose kernels run in this stream. The caller
                    // of `read` promises that the array is memory of the device which nothing else uses.
                    unsafe { plan.enqueue(lane.driver, stream, (table, slots), fill, span) }
                },
            )?;
            let event = session.record(stream, PLACED)?;
            self.placed[group] = Some(event);
            self.last = Some((stream, event));
        }
        Ok(())
    }
}

/// Returns the slots of a batch, as the decompressor numbers them.
pub(super) fn subchunks(batch: &Batch) -> Subchunks {
    Subchunks {
        batch: batch.number,
        first: 0,
        count: batch.offsets.len(),
    }
}

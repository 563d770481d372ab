//! A whole shard, decoded on a device.
//!
//! ```text
//! for each batch of subchunks
//!     places and sizes of its subchunks -> device         stream `up`
//!     for each piece of its encoded subchunks
//!         shard -> pinned -> device                       copiers, stream `up`
//!     encoded bytes -> slots                              stream `compute`: split
//!     checksums                                           stream `compute`: crc32c
//!     slots -> the batch's elements                       stream `compute`: unscatter
//!     checksums that are wrong -> pinned                  stream `down`
//!     for each slab of the batch's elements
//!         device -> pinned -> caller's memory             stream `down`, copiers
//! ```
//!
//! The slabs of one batch come back while the pieces of the next go up; one thread sees to both.
//! Every place and size is checked on the host before the device sees it.
//!
//! | edge | producer | consumer | guards |
//! |---|---|---|---|
//! | [`STAGED_HOST`] | copy of a piece (`up`) | copiers | the piece in pinned memory |
//! | [`UPLOADED`] | copies of a batch (`up`) | split (`compute`) | the encoded bytes and the table |
//! | [`UNSCATTERED`] | unscatter (`compute`) | copies (`down`) | the batch's elements |
//! | [`RETURNED`] | copy of a slab (`down`) | copiers | the slab in pinned memory |
//!
//! The buffers of a batch are used again after its last slab has come back, which the host has
//! waited for: no edge guards that.

use std::collections::VecDeque;
use std::ops::Range;

use super::copiers::Copy;
use super::driver::{DriverError, EventId, Site, Span};
use super::kernels::scatter::Scatter;
use super::kernels::spans::{Lengths, Slots};
use super::kernels::{crc32c, split};
use super::metrics::TimedStage;
use super::session::{Session, Timed, copy_to_slab};
use super::sizing::Region;
use crate::engine::host::memory;
use crate::engine::{EngineError, Job, KnownChain};
use crate::layout::{self, Batch, Extent, Slab};

/// The pinned memory of a piece can be written again.
const STAGED: Site = Site("record: a piece of a shard was copied to the device");
const STAGED_HOST: Site = Site("synchronise: pinned memory of a piece before it is reused");
/// Everything of a batch is on the device.
const UPLOADED: Site = Site("record: a batch of encoded subchunks was copied to the device");
const UPLOADED_WAIT: Site = Site("wait: split for its batch");
/// The elements of a batch are complete, and its checksums were compared.
const UNSCATTERED: Site = Site("record: a batch was unscattered");
const UNSCATTERED_WAIT: Site = Site("wait: copies of elements from the device for their batch");
/// A slab is in pinned memory.
const RETURNED: Site = Site("record: a slab was copied from the device");
const RETURNED_HOST: Site = Site("synchronise: a slab before it is read");

/// Bytes that one launch unscatters at most: a kernel counts units, of 1 byte at least, below 2³¹.
const UNSCATTERED_AT_ONCE: usize = 1 << 30;

/// What the memory is for, in errors.
const OUTPUT: &str = "a decoded shard";

/// Why a shard was not decoded.
enum Failure {
    Driver(DriverError),
    Engine(EngineError),
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

/// A piece on its way to the device.
struct Staged {
    begin: EventId,
    done: EventId,
}

/// A batch whose kernels were enqueued.
struct Decoded {
    number: usize,
    batch: Batch,
    slabs: Vec<Slab>,
    timed: Vec<Timed>,
    /// How many slabs are on their way, or have come back.
    issued: usize,
    returned: usize,
    /// Where the next slab begins in the batch's elements, in bytes.
    offset: usize,
}

/// A slab on its way back.
struct Piece {
    ring: usize,
    begin: EventId,
    done: EventId,
    len: usize,
}

struct Decoder<'a, 'l> {
    session: &'a Session<'l>,
    job: &'a Job<'a>,
    chain: &'a KnownChain,
    encoded: &'a [u8],
    extents: &'a [Extent],
    output: Vec<u8>,
    staged: VecDeque<Staged>,
    pieces_up: usize,
    batches: VecDeque<Decoded>,
    pieces: VecDeque<Piece>,
    issued_pieces: usize,
    /// Bytes that were copied to the output.
    written: usize,
}

/// Check that every subchunk lies in the shard and has the size that the chain gives it.
///
/// # Errors
/// As the host engine's.
pub(super) fn check(
    job: &Job<'_>,
    chain: &KnownChain,
    encoded: &[u8],
    extents: &[Extent],
) -> Result<(), EngineError> {
    if extents.len() != job.grid.num_subchunks() {
        return Err(EngineError::Internal("an index of another shard"));
    }
    for (subchunk, extent) in extents.iter().enumerate() {
        if let Some(extent) = extent {
            let bytes = encoded.get(extent.clone()).ok_or(EngineError::Extent {
                subchunk,
                end: extent.end,
                shard: encoded.len(),
            })?;
            let expected = job.grid.subchunk_bytes();
            crate::engine::host::decode_fixed_size(chain, subchunk, bytes, expected, false)?;
        }
    }
    Ok(())
}

/// Decode the shard `encoded`, which was [checked](check), in the lane of `session`.
pub(super) fn decode(
    session: &Session<'_>,
    job: &Job<'_>,
    chain: &KnownChain,
    encoded: &[u8],
    extents: &[Extent],
) -> Result<Vec<u8>, EngineError> {
    let len = job.grid.shard_bytes();
    let mut decoder = Decoder {
        session,
        job,
        chain,
        encoded,
        extents,
        output: memory::with_capacity(len, OUTPUT, job.huge_pages)?,
        staged: VecDeque::new(),
        pieces_up: 0,
        batches: VecDeque::new(),
        pieces: VecDeque::new(),
        issued_pieces: 0,
        written: 0,
    };
    decoder.run().map_err(|failure| match failure {
        Failure::Driver(error) => EngineError::Device(error),
        Failure::Engine(error) => error,
    })?;
    if decoder.written != len {
        return Err(EngineError::Internal("a slab of the output is missing"));
    }
    // SAFETY: the slabs of all batches are the elements of the shard, each once, and as many bytes
    // were written.
    Ok(unsafe { memory::assume_filled(decoder.output, len) })
}

impl Decoder<'_, '_> {
    fn run(&mut self) -> Result<(), Failure> {
        let session = self.session;
        session.prepare(self.job)?;
        for (number, batch) in layout::batches(self.job.grid, session.sizing.batch)
            .into_iter()
            .enumerate()
        {
            while self.batches.len() >= session.sizing.batches.len() {
                self.take_back(true, &[])?;
            }
            self.upload(number, &batch)?;
            self.decode(number, batch)?;
        }
        while !self.batches.is_empty() {
            self.take_back(true, &[])?;
        }
        while let Some(staged) = self.staged.pop_front() {
            // Batches that have come back waited for all of their pieces.
            session.time(TimedStage::ToDevice, staged.begin, staged.done)?;
        }
        Ok(())
    }

    /// Copy the subchunks of a batch to the device, one after the other, and say where they are.
    fn upload(&mut self, number: usize, batch: &Batch) -> Result<(), Failure> {
        let _span = tracing::trace_span!("upload").entered();
        let session = self.session;
        let lane = session.lane;
        let regions = session.batch(number);
        let extents = &self.extents[batch.first..batch.first + batch.len()];
        let (mut end, mut offsets, mut sources) = (0_usize, Vec::new(), Vec::<Range<usize>>::new());
        for extent in extents {
            offsets.push(end as u64);
            let Some(extent) = extent else { continue };
            end += extent.len();
            match sources.last_mut() {
                Some(last) if last.end == extent.start => last.end = extent.end,
                _ => sources.push(extent.clone()),
            }
        }
        let sizes = extents
            .iter()
            .map(|extent| extent.as_ref().map_or(0, |extent| extent.len() as u64));
        let stored = extents.iter().map(|extent| u32::from(extent.is_some()));

        let mut table = regions.table;
        let upload = |span, to: Region| -> Result<(), DriverError> {
            let on_device = lane.device(to.part(0..span_len(span)));
            lane.copy(lane.up, Span::Pinned(span), Span::Device(on_device))?;
            session.counters.add_to_device(span_len(span));
            Ok(())
        };
        let span = lane.write_values(
            lane.pinned_in(table),
            offsets.iter().map(|offset| offset.to_le_bytes()),
        )?;
        upload(span, regions.offsets)?;
        table = table.part(span.len..table.len);
        let span = lane.write_values(lane.pinned_in(table), sizes.map(u64::to_le_bytes))?;
        upload(span, regions.sizes)?;
        table = table.part(span.len..table.len);
        let span = lane.write_values(lane.pinned_in(table), stored.map(u32::to_le_bytes))?;
        upload(span, regions.stored)?;

        let mut at = 0;
        let mut rest = sources.into_iter().peekable();
        while at < end {
            at += self.stage(&mut rest, regions.dense.part(at..end))?;
        }
        Ok(())
    }

    /// Move the next piece of `sources` to the begin of `to`, and return how long it is; meanwhile,
    /// take back a slab of an earlier batch.
    fn stage(
        &mut self,
        sources: &mut std::iter::Peekable<impl Iterator<Item = Range<usize>>>,
        to: Region,
    ) -> Result<usize, Failure> {
        let session = self.session;
        let lane = session.lane;
        let ring = self.pieces_up % session.sizing.staging_in.len();
        if self.staged.len() == session.sizing.staging_in.len()
            && let Some(staged) = self.staged.pop_front()
        {
            lane.driver.synchronize(staged.done, STAGED_HOST)?;
            session.time(TimedStage::ToDevice, staged.begin, staged.done)?;
            session.events.give([staged.begin, staged.done]);
        }
        let len = session.sizing.staging_in[ring].len.min(to.len);
        let staging = lane.pinned_in(session.sizing.staging_in[ring].part(0..len));
        let staging_start = lane.write(staging)?;
        let mut copies = Vec::new();
        let mut filled = 0;
        while filled < len
            && let Some(source) = sources.peek_mut()
        {
            let part = source.len().min(len - filled);
            let Some(from) = self.encoded.get(source.start..source.start + part) else {
                return Err(EngineError::Internal("a subchunk outside its shard").into());
            };
            // SAFETY: `filled + part` is at most the length of the region, which the copy that read
            // it was synchronised with above.
            copies.push(unsafe { Copy::bytes(from.as_ptr(), staging_start.add(filled), part) });
            filled += part;
            source.start += part;
            if source.start == source.end {
                sources.next();
            }
        }
        if filled < len {
            return Err(EngineError::Internal("subchunks shorter than their extents").into());
        }
        self.take_back(false, &copies)?;

        let (begin, done) = (session.events.take()?, session.events.take()?);
        let on_device = lane.device(to.part(0..len));
        session.begin(lane.up, begin)?;
        lane.copy(lane.up, Span::Pinned(staging), Span::Device(on_device))?;
        lane.driver.record(done, lane.up, STAGED)?;
        session.counters.add_to_device(len);
        self.staged.push_back(Staged { begin, done });
        self.pieces_up += 1;
        Ok(len)
    }

    /// Enqueue the kernels of a batch.
    fn decode(&mut self, number: usize, batch: Batch) -> Result<(), Failure> {
        let _span = tracing::trace_span!("decode").entered();
        let session = self.session;
        let lane = session.lane;
        let regions = session.batch(number);
        let count = batch.len();
        let uploaded = session.events.take()?;
        lane.driver.record(uploaded, lane.up, UPLOADED)?;
        lane.driver.wait(lane.compute, uploaded, UPLOADED_WAIT)?;
        session.events.give([uploaded]);

        let slots = Slots {
            span: lane.device(regions.slots),
            stride: session.sizing.slot_stride,
            count,
        };
        let mut timed = Vec::new();
        let splitting = session.timed(TimedStage::Split)?;
        session.begin(lane.compute, splitting.begin)?;
        let encoded = self.extents[batch.first..batch.first + count]
            .iter()
            .flatten()
            .count()
            * session.sizing.encoded;
        // SAFETY: the lane's regions, in one stream, after what was copied to them.
        unsafe {
            split::split(
                lane.driver,
                lane.compute,
                lane.device(regions.dense.part(0..encoded)),
                lane.device(regions.offsets),
                lane.device(regions.sizes),
                slots,
            )?;
        }
        session.end(lane.compute, splitting.end)?;
        timed.push(splitting);

        if self.validates() {
            timed.push(self.verify(number, slots)?);
        }

        let unscatter = session.timed(TimedStage::Unscatter)?;
        session.begin(lane.compute, unscatter.begin)?;
        let element = self.job.grid.element_size();
        let mut end = 0;
        for slab in layout::slabs(self.job.grid, &batch, UNSCATTERED_AT_ONCE / element) {
            let scatter = Scatter::new(
                &session.lift(self.job, &self.chain.order, &batch, &slab)?,
                self.chain.swap,
                self.job.fill_value,
            )
            .map_err(|error| session.refused("planning an unscatter", &error))?;
            let start = end;
            end += slab.len() * element;
            // SAFETY: the lane's regions, in one stream: the encoded bytes were split, so that their
            // memory can take the elements.
            unsafe {
                scatter.enqueue_unscatter(
                    lane.driver,
                    lane.compute,
                    lane.device(regions.slots),
                    lane.device(regions.dense.part(start..end)),
                    Some(lane.device(regions.stored)),
                    lane.device(session.sizing.fill),
                )?;
            }
        }
        lane.driver
            .record(unscatter.end, lane.compute, UNSCATTERED)?;
        lane.driver
            .wait(lane.down, unscatter.end, UNSCATTERED_WAIT)?;
        timed.push(unscatter);
        if self.validates() {
            let (bad, answer) = self.bad_flags(number, count);
            lane.copy(
                lane.down,
                Span::Device(lane.device(bad)),
                Span::Pinned(lane.pinned_out(answer)),
            )?;
            session.counters.add_from_device(bad.len);
        }
        self.batches.push_back(Decoded {
            number,
            slabs: layout::slabs(self.job.grid, &batch, session.sizing.slab),
            batch,
            timed,
            issued: 0,
            returned: 0,
            offset: 0,
        });
        Ok(())
    }

    /// Enqueue the comparison of the checksums of a batch.
    fn verify(&self, number: usize, slots: Slots) -> Result<Timed, DriverError> {
        let session = self.session;
        let lane = session.lane;
        let (regions, count) = (session.batch(number), slots.count);
        let checksums = session.timed(TimedStage::Crc32c)?;
        session.begin(lane.compute, checksums.begin)?;
        for stage in 0..self.chain.stages.len() {
            let len = self.job.grid.subchunk_bytes() + stage * crc32c::CHECKSUM;
            let bad = regions.bad.part(stage * count * 4..(stage + 1) * count * 4);
            // SAFETY: the lane's regions, in one stream.
            unsafe {
                crc32c::verify(
                    lane.driver,
                    lane.compute,
                    slots,
                    Lengths::All(len),
                    Some(lane.device(regions.stored)),
                    lane.device(bad),
                )?;
            }
        }
        session.end(lane.compute, checksums.end)?;
        Ok(checksums)
    }

    /// Whether there are checksums to compare.
    fn validates(&self) -> bool {
        self.job.validate_checksums && !self.chain.stages.is_empty()
    }

    /// The results of comparing the checksums of `count` subchunks: on the device, and pinned.
    fn bad_flags(&self, number: usize, count: usize) -> (Region, Region) {
        let regions = self.session.batch(number);
        let len = self.chain.stages.len() * count * 4;
        (regions.bad.part(0..len), regions.answer.part(0..len))
    }

    /// Do `copies`, and take back a slab that has come from the device meanwhile, or the next one
    /// if `wait`.
    fn take_back(&mut self, wait: bool, copies: &[Copy<'_>]) -> Result<(), Failure> {
        self.issue()?;
        let piece = self.returned_piece(wait)?;
        self.finish(piece, copies)
    }

    /// Start copies of slabs from the device, as many as there is room for.
    fn issue(&mut self) -> Result<(), DriverError> {
        let session = self.session;
        let lane = session.lane;
        for batch in &mut self.batches {
            while batch.issued < batch.slabs.len() {
                if self.pieces.len() == session.sizing.staging_out.len() {
                    return Ok(());
                }
                let ring = self.issued_pieces % session.sizing.staging_out.len();
                let len = batch.slabs[batch.issued].len() * self.job.grid.element_size();
                let from = session.batch(batch.number).dense;
                let from = lane.device(from.part(batch.offset..batch.offset + len));
                let to = lane.pinned_out(session.sizing.staging_out[ring].part(0..len));
                let (begin, done) = (session.events.take()?, session.events.take()?);
                session.begin(lane.down, begin)?;
                lane.copy(lane.down, Span::Device(from), Span::Pinned(to))?;
                lane.driver.record(done, lane.down, RETURNED)?;
                session.counters.add_from_device(len);
                self.pieces.push_back(Piece {
                    ring,
                    begin,
                    done,
                    len,
                });
                batch.issued += 1;
                batch.offset += len;
                self.issued_pieces += 1;
            }
        }
        Ok(())
    }

    /// The oldest slab, if it has come back, or when it has come back if `wait`.
    fn returned_piece(&mut self, wait: bool) -> Result<Option<Piece>, DriverError> {
        let driver = self.session.lane.driver;
        let Some(piece) = self.pieces.front() else {
            return Ok(None);
        };
        // With every place of the ring in use, nothing more can come back before this one has.
        let wait = wait || self.pieces.len() == self.session.sizing.staging_out.len();
        if !wait && !driver.query_event(piece.done)? {
            return Ok(None);
        }
        driver.synchronize(piece.done, RETURNED_HOST)?;
        Ok(self.pieces.pop_front())
    }

    /// Copy `piece` to its place, and do `copies`.
    fn finish(&mut self, piece: Option<Piece>, copies: &[Copy<'_>]) -> Result<(), Failure> {
        let _span = tracing::trace_span!("copy").entered();
        let session = self.session;
        let mut copies = copies.to_vec();
        if let Some(piece) = &piece {
            session.time(TimedStage::FromDevice, piece.begin, piece.done)?;
            let Some(batch) = self.batches.front() else {
                return Err(EngineError::Internal("a slab of no batch").into());
            };
            if batch.returned == 0 {
                self.check_checksums(batch)?;
            }
            let slab = &batch.slabs[batch.returned];
            let region = session.sizing.staging_out[piece.ring].part(0..piece.len);
            let from = session.lane.read(session.lane.pinned_out(region))?;
            // SAFETY: the slab lies within the shard, for which the output has room; its dense form
            // is the region's; every element is in one slab, and is copied once.
            copies.push(unsafe {
                let to = self.output.as_mut_ptr();
                copy_to_slab(self.job, from.as_ptr(), &batch.batch, slab, to)
            });
        }
        session.copiers.run(&copies, self.job.threads);
        if let Some(piece) = piece {
            self.written += piece.len;
            session.events.give([piece.begin, piece.done]);
            if let Some(batch) = self.batches.front_mut() {
                batch.returned += 1;
                for timed in batch.timed.drain(..) {
                    session.finish_timed(&timed)?;
                    session.events.give([timed.begin, timed.end]);
                }
                if batch.returned == batch.slabs.len() {
                    self.batches.pop_front();
                }
            }
        }
        Ok(())
    }

    /// The first slab of a batch is here, and so is what became of its checksums.
    fn check_checksums(&self, batch: &Decoded) -> Result<(), Failure> {
        if !self.validates() {
            return Ok(());
        }
        let count = batch.batch.len();
        let (_, answer) = self.bad_flags(batch.number, count);
        let lane = self.session.lane;
        let bad = lane.read(lane.pinned_out(answer))?;
        let wrong = bad
            .as_chunks::<4>()
            .0
            .iter()
            .enumerate()
            .filter(|(_, flag)| u32::from_le_bytes(**flag) != 0)
            .map(|(i, _)| i % count)
            .min();
        match wrong {
            None => Ok(()),
            Some(subchunk) => Err(EngineError::Checksum {
                subchunk: batch.batch.first + subchunk,
            }
            .into()),
        }
    }
}

/// The length of a span of pinned memory.
fn span_len(span: super::driver::PinnedSpan) -> usize {
    span.len
}

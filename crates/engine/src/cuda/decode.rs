//! A whole shard, decoded on a device.
//!
//! ```text
//! for each batch of subchunks
//!     places and sizes of its subchunks -> device         stream `up`
//!     for each piece of its encoded subchunks
//!         shard -> pinned -> device                       copiers, stream `up`
//!     encoded bytes -> slots                              stream `compute`: split, decompression
//!     checksums                                           stream `compute`: crc32c
//!     slots -> the batch's elements                       stream `compute`: unscatter
//!     checksums that are wrong -> pinned                  stream `down`
//!     chunks that could not be decompressed -> pinned     stream `down`
//!     for each slab of the batch's elements
//!         device -> pinned -> caller's memory             stream `down`, copiers
//! ```
//!
//! The slabs of one batch are copied to the host while the pieces of the next batch are copied to the device.
//! One thread controls both. `compute` is one of the streams of kernels, which batches use in turn. The host
//! checks every offset and size before the device uses it. With a compressor, the device compares only the
//! checksums before the compressor. The host compares the checksums after it before anything is launched. If
//! anything is wrong with such a shard, the host decodes it.
//!
//! | edge | producer | consumer | guards |
//! |---|---|---|---|
//! | [`UPLOADED`] | copies of a batch (`up`) | split (`compute`) | the encoded bytes and the tables |
//! | [`UNSCATTERED`] | unscatter (`compute`) | copies (`down`) | the elements, and the results |
//!
//! The edges of pinned memory are in `transfers`. The buffers of a batch are used again when the host has its
//! last slab. The host has waited for that slab, so this needs no edge.

pub(super) mod checksums;

use std::collections::VecDeque;
use std::ops::Range;

use super::arena::Region;
use super::check_progress::LaneUses;
use super::copiers::Copy;
use super::counters::TimedStage;
use super::decompress::{Decompression, Subchunks};
use super::driver::{DriverError, EventId, Site, Span};
use super::enqueue::prepare;
use super::kernels::spans::Slots;
use super::kernels::split;
use super::session::{Session, Timed, copy_to_slab};
use super::sizing::{PlannedSlab, ShardKind};
use super::transfers::{Download, Downloads, Uploads};
use crate::contract::{EngineError, KnownChain, ShardJob};
use crate::layout;
use crate::layout::{Batch, Extent, Slab};
use crate::memory::allocate;
use crate::memory::fresh::Fresh;
use crate::subchunk::stages::decode_fixed_size;

/// The record of the event after which the encoded bytes and the tables of a batch are on the device.
const UPLOADED: Site = Site("record: a batch of encoded subchunks was copied to the device");
const UPLOADED_WAIT: Site = Site("wait: split for its batch");
/// The record of the event after which the elements of a batch are complete and its checksums were compared.
const UNSCATTERED: Site = Site("record: a batch was unscattered");
const UNSCATTERED_WAIT: Site = Site("wait: copies of elements from the device for their batch");
/// The most bytes that one launch unscatters. A kernel counts units, of at least 1 byte, below 2³¹.
const UNSCATTERED_AT_ONCE: usize = 1 << 30;

/// The name of the output's memory, in errors.
const OUTPUT: &str = "a decoded shard";

/// A batch whose kernels were enqueued.
struct EnqueuedBatch {
    number: usize,
    batch: Batch,
    slabs: Vec<Slab>,
    timed: Vec<Timed>,
    /// The event at the end of the batch's kernels; `None` after the copies to the host have waited for it.
    unscattered: Option<EventId>,
    /// The number of slabs whose copies to the host were started, and the number of slabs that the host has
    /// taken back.
    issued: usize,
    returned: usize,
    /// The offset of the next slab to copy in the batch's elements, in bytes.
    offset: usize,
}

/// A shard that a device has decoded, and that was not checked yet.
#[derive(Debug)]
pub(super) struct DecodedShard {
    pub(super) decoded: Vec<u8>,
    /// The most subchunks of a batch.
    pub(super) batch: usize,
    pub(super) uses: LaneUses,
}

/// Marks a download as the next slab of the first incomplete batch. Slabs come back in order, so no fields
/// are needed.
struct NextSlab;

struct Decoder<'a, 'l> {
    session: &'a Session<'l>,
    job: &'a ShardJob<'a>,
    kind: &'a ShardKind,
    decompression: Option<Decompression<'a>>,
    encoded: &'a [u8],
    extents: &'a [Extent],
    output: Vec<u8>,
    /// The part of the output's memory whose pages the system has not made yet.
    fresh: Fresh,
    uploads: Uploads,
    batches: VecDeque<EnqueuedBatch>,
    slabs: Downloads<NextSlab>,
    /// The number of bytes that were copied to the output.
    written: usize,
}

/// Checks that every subchunk lies in the shard and has the size that the chain gives it.
pub(super) fn check(
    job: &ShardJob<'_>,
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
            decode_fixed_size(chain, subchunk, bytes, expected, false)?;
        }
    }
    Ok(())
}

/// Decodes the encoded shard `encoded` in the lane of `session`. The caller has [checked](check) the shard,
/// or has parsed its frames for `decompression`.
pub(super) fn decode(
    session: &Session<'_>,
    job: &ShardJob<'_>,
    kind: &ShardKind,
    encoded: &[u8],
    extents: &[Extent],
    decompression: Option<Decompression<'_>>,
) -> Result<DecodedShard, EngineError> {
    let len = job.grid.shard_bytes();
    let mut output = allocate::with_capacity(len, OUTPUT, job.huge_pages)?;
    let mut decoder = Decoder {
        session,
        job,
        kind,
        decompression,
        encoded,
        extents,
        fresh: Fresh::of(&mut output),
        output,
        uploads: Uploads::default(),
        batches: VecDeque::new(),
        slabs: Downloads::default(),
        written: 0,
    };
    let uses = decoder.run()?;
    if decoder.written != len {
        return Err(EngineError::Internal("a slab of the output is missing"));
    }
    // SAFETY: the slabs of all batches are the elements of the shard, each element once. By the check, all
    // of these bytes were written.
    let decoded = unsafe { allocate::assume_filled(decoder.output, len) };
    Ok(DecodedShard {
        decoded,
        batch: session.sizing.batch,
        uses,
    })
}

impl Decoder<'_, '_> {
    /// Decodes all batches. Returns how often each buffer of the lane was used.
    fn run(&mut self) -> Result<LaneUses, EngineError> {
        let session = self.session;
        let (grid, fill_value) = (self.job.grid, self.job.fill_value);
        prepare(
            session.lane,
            session.sizing,
            grid.subchunk_bytes(),
            fill_value,
        )?;
        if self.decompression.is_some() {
            Decompression::prepare(session)?;
        }
        let batches = layout::batches(self.job.grid, session.sizing.batch);
        let count = batches.len();
        for (number, batch) in batches.into_iter().enumerate() {
            while self.batches.len() >= session.sizing.batches.len() {
                self.take_back(true, &[])?;
            }
            self.upload(number, &batch)?;
            self.decode(number, batch)?;
        }
        while !self.batches.is_empty() {
            self.take_back(true, &[])?;
        }
        // The host has taken back all batches, so all copies to the device are complete.
        self.uploads.finish(session)?;
        let rings = [self.uploads.uses(session), self.slabs.uses(session)];
        Ok(session.uses(count, rings))
    }

    /// Copies the encoded subchunks of a batch to the device, one after the other, and the tables with their
    /// offsets and sizes.
    fn upload(&mut self, number: usize, batch: &Batch) -> Result<(), EngineError> {
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
        if let Some(decompression) = &self.decompression {
            let slots = self.slots(number, batch.len());
            decompression.upload(session, subchunks(number, batch), &offsets, slots)?;
        } else {
            let span = lane.write_values(
                lane.pinned_in(table),
                offsets.iter().map(|offset| offset.to_le_bytes()),
            )?;
            upload(span, regions.offsets)?;
            table = table.part(span.len..table.len);
            let span = lane.write_values(lane.pinned_in(table), sizes.map(u64::to_le_bytes))?;
            upload(span, regions.sizes)?;
            table = table.part(span.len..table.len);
        }
        let span = lane.write_values(lane.pinned_in(table), stored.map(u32::to_le_bytes))?;
        upload(span, regions.stored)?;

        let mut at = 0;
        let mut rest = sources.into_iter().peekable();
        while at < end {
            at += self.stage(&mut rest, regions.dense.part(at..end))?;
        }
        Ok(())
    }

    /// Copies the next piece of `sources` to the begin of `to`, and returns its length. Meanwhile,
    /// takes back a slab of an earlier batch.
    fn stage(
        &mut self,
        sources: &mut std::iter::Peekable<impl Iterator<Item = Range<usize>>>,
        to: Region,
    ) -> Result<usize, EngineError> {
        let session = self.session;
        let lane = session.lane;
        let len = to.len.min(session.sizing.staging_in[0].len);
        let staging = self.uploads.reserve(session, len)?;
        let mut copies = Vec::new();
        let mut filled = 0;
        while filled < len
            && let Some(source) = sources.peek_mut()
        {
            let part = source.len().min(len - filled);
            let Some(from) = self.encoded.get(source.start..source.start + part) else {
                return Err(EngineError::Internal("a subchunk outside its shard"));
            };
            // SAFETY: `filled + part` is at most the length of the region. The earlier copy that
            // read the region was synchronised with above.
            copies.push(unsafe { Copy::bytes(from.as_ptr(), staging.start.add(filled), part) });
            filled += part;
            source.start += part;
            if source.start == source.end {
                sources.next();
            }
        }
        if filled < len {
            return Err(EngineError::Internal(
                "subchunks shorter than their extents",
            ));
        }
        self.take_back(false, &copies)?;

        let on_device = lane.device(to.part(0..len));
        self.uploads.start(session, &staging, on_device)?;
        Ok(len)
    }

    /// Enqueues the kernels that decode a batch.
    fn decode(&mut self, number: usize, batch: Batch) -> Result<(), EngineError> {
        let _span = tracing::trace_span!("decode").entered();
        let session = self.session;
        let lane = session.lane;
        let regions = session.batch(number);
        let count = batch.len();
        let (_, stream) = session.workspace(regions);
        session.order((lane.up, UPLOADED), (stream, UPLOADED_WAIT))?;

        let slots = self.slots(number, count);
        let mut timed = Vec::new();
        let encoded = self.extents[batch.first..batch.first + count]
            .iter()
            .flatten()
            .map(ExactSizeIterator::len)
            .sum();
        let encoded = lane.device(regions.dense.part(0..encoded));
        if let Some(decompression) = &self.decompression {
            let subchunks = subchunks(number, &batch);
            decompression.decompress(session, subchunks, encoded, slots, &mut timed)?;
        } else {
            // SAFETY: the spans are regions of the lane. The kernels on them run in one stream, after the
            // copies to them.
            session.run(stream, TimedStage::Split, &mut timed, || unsafe {
                split::split(
                    lane.driver,
                    stream,
                    encoded,
                    lane.device(regions.offsets),
                    lane.device(regions.sizes),
                    slots,
                )
            })?;
        }

        if self.validates() {
            let checksums = (self.checksums(), self.job.grid.subchunk_bytes());
            checksums::verify(session, number, slots, checksums, &mut timed)?;
        }

        let element = self.job.grid.element_size();
        let most = UNSCATTERED_AT_ONCE / element;
        let at_once = session.planned(self.kind, self.job.fill_value, &batch, most)?;
        session.run(stream, TimedStage::Unscatter, &mut timed, || {
            let mut end = 0;
            for PlannedSlab { slab, scatter } in &*at_once {
                let start = end;
                end += slab.len() * element;
                // SAFETY: the spans are regions of the lane, and the kernels on them run in one stream: the
                // encoded bytes were split before, so the elements may overwrite them.
                unsafe {
                    scatter.enqueue_unscatter(
                        lane.driver,
                        stream,
                        slots.span,
                        lane.device(regions.dense.part(start..end)),
                        Some(lane.device(regions.stored)),
                        lane.device(session.sizing.fill),
                    )?;
                }
            }
            Ok(())
        })?;
        let unscattered = Some(session.record(stream, UNSCATTERED)?);
        self.batches.push_back(EnqueuedBatch {
            number,
            slabs: layout::slabs(self.job.grid, &batch, session.sizing.slab),
            batch,
            timed,
            unscattered,
            issued: 0,
            returned: 0,
            offset: 0,
        });
        Ok(())
    }

    /// Returns the slots of batch `number`, which has `count` subchunks.
    fn slots(&self, number: usize, count: usize) -> Slots {
        let session = self.session;
        let (workspace, _) = session.workspace(session.batch(number));
        Slots {
            span: session.lane.device(workspace.slots),
            stride: session.sizing.slot_stride,
            count,
        }
    }

    /// Performs `copies`, and also takes back a slab that has arrived from the device. If `wait`, blocks
    /// until the next slab has arrived.
    fn take_back(&mut self, wait: bool, copies: &[Copy<'_>]) -> Result<(), EngineError> {
        self.issue()?;
        let slab = self.slabs.next(self.session, wait)?;
        if wait && slab.is_none() {
            return Err(EngineError::Internal("a batch without slabs"));
        }
        self.finish(slab, copies)
    }

    /// Starts copies of slabs from the device, as many as the pinned memory has room for. The first slab of a
    /// batch comes after the results of the batch. Before the batch has results, nothing of the batch is put
    /// in the stream, where slabs of an earlier batch would wait for the kernels of this batch.
    fn issue(&mut self) -> Result<(), DriverError> {
        let session = self.session;
        for at in 0..self.batches.len() {
            while self.batches[at].issued < self.batches[at].slabs.len() {
                if self.slabs.is_full(session) {
                    return Ok(());
                }
                if let Some(unscattered) = self.batches[at].unscattered.take() {
                    let lane = session.lane;
                    lane.driver.wait(lane.down, unscattered, UNSCATTERED_WAIT)?;
                    session.events.give(unscattered);
                    self.issue_results(&self.batches[at])?;
                }
                let batch = &mut self.batches[at];
                let len = batch.slabs[batch.issued].len() * self.job.grid.element_size();
                let from = session.batch(batch.number).dense;
                let from = from.part(batch.offset..batch.offset + len);
                self.slabs.start(session, from, NextSlab)?;
                batch.issued += 1;
                batch.offset += len;
            }
        }
        Ok(())
    }

    /// Starts the copies of a batch's results from the device.
    fn issue_results(&self, batch: &EnqueuedBatch) -> Result<(), DriverError> {
        let session = self.session;
        let lane = session.lane;
        if self.validates() {
            let (verdicts, answer) = self.verdicts(batch.number, batch.batch.len());
            let answer = lane.pinned_out(answer);
            lane.clear_answer(answer)?;
            let verdicts = lane.device(verdicts);
            lane.copy(lane.down, Span::Device(verdicts), Span::Pinned(answer))?;
            session.counters.add_from_device(verdicts.len);
        }
        match &self.decompression {
            Some(decompression) => {
                decompression.download(session, subchunks(batch.number, &batch.batch))
            }
            None => Ok(()),
        }
    }

    /// Copies the slab `returned` to its place in the output, and performs `copies`.
    fn finish(
        &mut self,
        returned: Option<Download<NextSlab>>,
        copies: &[Copy<'_>],
    ) -> Result<(), EngineError> {
        let _span = tracing::trace_span!("copy").entered();
        let session = self.session;
        let mut copies = copies.to_vec();
        let mut len = 0;
        if let Some(returned) = &returned {
            let Some(batch) = self.batches.front() else {
                return Err(EngineError::Internal("a slab of no batch"));
            };
            if batch.returned == 0 {
                if let Some(decompression) = &self.decompression {
                    decompression.check(session, subchunks(batch.number, &batch.batch))?;
                }
                self.check_checksums(batch)?;
            }
            let slab = &batch.slabs[batch.returned];
            let from = returned.bytes(session)?;
            len = from.len();
            // SAFETY: the slab lies within the shard, for which the output has room. The bytes that came are
            // the dense form of the slab. Every element is in one slab, and is copied once.
            copies.push(unsafe {
                let to = self.output.as_mut_ptr();
                copy_to_slab(self.job, from.as_ptr(), &batch.batch, slab, to)
            });
        }
        let next = Downloads::<NextSlab>::most(session);
        let ahead = (next, self.job.grid.shard_bytes());
        let (copiers, fresh, threads) = (session.copiers, &mut self.fresh, self.job.threads);
        // SAFETY: `fresh` is the memory of the output, and only these copies write to it.
        unsafe { copiers.run_into(fresh, &copies, ahead, threads, || ()) };
        if let Some(returned) = returned {
            self.written += len;
            let NextSlab = returned.finish(session)?;
            if let Some(batch) = self.batches.front_mut() {
                batch.returned += 1;
                session.finish_timed(batch.timed.drain(..))?;
                if batch.returned == batch.slabs.len() {
                    self.batches.pop_front();
                }
            }
        }
        Ok(())
    }
}

/// Returns the subchunks of batch `number`.
fn subchunks(number: usize, batch: &Batch) -> Subchunks {
    Subchunks {
        batch: number,
        first: batch.first,
        count: batch.len(),
    }
}

/// Returns the length of a span of pinned memory.
fn span_len(span: super::driver::PinnedSpan) -> usize {
    span.len
}

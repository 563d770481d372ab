//! A whole shard, encoded on a device.
//!
//! ```text
//! for each batch of subchunks
//!     for each slab of the batch's elements
//!         caller's memory -> pinned           copiers
//!         pinned -> device                    stream `up`
//!         slab -> slots, stored?              stream `compute`: scatter
//!     slots -> slots with checksums           stream `compute`: crc32c
//!     slots -> frames                         stream `compute`: compression
//!     slots or frames -> offsets, dense bytes           stream `compute`: permute, scan, gather
//!     offsets, failed? -> pinned              stream `down`
//!     subchunks that failed -> caller's memory      by the host, on this thread
//!     for each piece of exactly the bytes used
//!         device -> pinned                    stream `down`
//!         pinned -> caller's memory           copiers
//! ```
//!
//! The pieces of one batch come back while the slabs of the next go up; one thread sees to both.
//!
//! | edge | producer | consumer | guards |
//! |---|---|---|---|
//! | [`STAGED_WAIT`] | copy of a slab (`up`) | scatter (`compute`) | the slab on the device |
//! | [`SCATTERED`] | scatter (`compute`) | copy of a later slab (`up`) | the slab on the device |
//! | [`AGGREGATED`] | gather (`compute`) | copies (`down`) | offsets and dense bytes |
//! | [`ANSWERED`] | copy of the offsets (`down`) | this thread | the offsets in pinned memory |
//!
//! Those of pinned memory are in `transfers`.

use std::collections::VecDeque;
use std::ops::Range;

use super::compression::{Prepared, compress};
use super::copiers::Copy;
use super::counters::TimedStage;
use super::driver::{DeviceSpan, DriverError, EventId, Site, Span};
use super::kernels::crc32c;
use super::kernels::scatter::Scatter;
use super::kernels::spans::{Lengths, Slots};
use super::session::{Aggregation, Session, Timed, copy_of_slab};
use super::sizing::{Region, ShardKind};
use super::transfers::{Download, Downloads, Uploads};
use crate::engine::host::{encode_subchunk, encoded_bound, memory};
use crate::engine::{EncodedShard, EngineError, Job, KnownChain};
use crate::layout::{self, Batch, Extent, ShardPermutation, Slab};

/// A slab is on the device: recorded where it was copied.
const STAGED_WAIT: Site = Site("wait: scatter for its slab");
/// The device's memory of a slab can be written again.
const SCATTERED: Site = Site("record: a slab was scattered");
const SCATTERED_WAIT: Site =
    Site("wait: copy of a slab for the scatter that reads the same memory");
/// Offsets and dense bytes of a batch are complete.
const AGGREGATED: Site = Site("record: a batch was aggregated");
const AGGREGATED_WAIT: Site = Site("wait: copies from the device for their batch");
/// The offsets of a batch are in pinned memory.
const ANSWERED: Site = Site("record: the offsets of a batch were copied from the device");
const ANSWERED_HOST: Site = Site("synchronise: the offsets of a batch before they are read");
/// What the memory is for, in errors.
const OUTPUT: &str = "an encoded shard";

/// A slab that was enqueued for scattering.
struct Staged {
    batch: usize,
    /// Until the host knows that the scatter is complete.
    scattered: Option<EventId>,
}

/// A batch whose kernels were enqueued.
struct Aggregated {
    number: usize,
    batch: Batch,
    answered: EventId,
    timed: Vec<Timed>,
    /// What lies where, once the offsets were read.
    answer: Option<Answer>,
    /// How many of the dense bytes are on their way, or have come back.
    issued: usize,
    returned: usize,
}

/// Where the dense bytes of a batch go.
struct Answer {
    /// How many there are.
    total: usize,
    /// Ascending and without gaps: where a part of them begins, and where it goes in the shard; to
    /// nowhere, if the host has encoded that subchunk.
    parts: Vec<(usize, Option<usize>)>,
}

impl Answer {
    /// The parts of some of the bytes, as ranges within them, and where they go.
    fn places(&self, bytes: Range<usize>) -> impl Iterator<Item = (Range<usize>, usize)> {
        let first = self
            .parts
            .partition_point(|(start, _)| *start <= bytes.start)
            .saturating_sub(1);
        let ends = self.parts[first..]
            .iter()
            .skip(1)
            .map(|(start, _)| *start)
            .chain([self.total]);
        std::iter::zip(&self.parts[first..], ends)
            .take_while({
                let end = bytes.end;
                move |((start, _), _)| *start < end
            })
            .filter_map(move |(&(start, to), end)| {
                let part = start.max(bytes.start)..end.min(bytes.end);
                let to = to? + (part.start - start);
                Some((part.start - bytes.start..part.end - bytes.start, to))
            })
    }
}

/// Where a piece of a batch goes.
struct Piece {
    /// The number of its batch.
    batch: usize,
    /// Where it begins in the dense bytes.
    start: usize,
}

/// An encoder of one shard.
struct Encoder<'a, 'l> {
    session: &'a Session<'l>,
    job: &'a Job<'a>,
    chain: &'a KnownChain,
    compressor: Option<&'a Prepared>,
    decoded: &'a [u8],
    output: Vec<u8>,
    extents: Vec<Extent>,
    /// The end of what batches that have answered take in the shard.
    end: usize,
    uploads: Uploads,
    /// What lies in the ring of slabs on the device.
    staged: VecDeque<Staged>,
    batches: VecDeque<Aggregated>,
    pieces: Downloads<Piece>,
    /// Subchunks that the compressor failed on.
    on_host: usize,
}

/// Encode `decoded`, whose length was checked, in the lane of `session`.
pub(super) fn encode(
    session: &Session<'_>,
    job: &Job<'_>,
    kind: &ShardKind,
    decoded: &[u8],
    (head, tail): (usize, usize),
) -> Result<EncodedShard, EngineError> {
    // What the host compresses may be longer.
    let encoded = encoded_bound(&kind.chain, job.grid.subchunk_bytes());
    let bound = encoded
        .map(|on_host| on_host.max(session.sizing.encoded))
        .and_then(|encoded| encoded.checked_mul(job.grid.num_subchunks()))
        .and_then(|encoded| head.checked_add(encoded)?.checked_add(tail))
        .ok_or(EngineError::OutOfMemory {
            what: OUTPUT,
            bytes: usize::MAX,
        })?;
    let mut output = memory::with_capacity(bound, OUTPUT, job.huge_pages)?;
    output.resize(head, 0);
    let mut encoder = Encoder {
        session,
        job,
        chain: &kind.chain,
        compressor: kind.compressor.as_ref(),
        decoded,
        output,
        extents: vec![None; job.grid.num_subchunks()],
        end: head,
        uploads: Uploads::default(),
        staged: VecDeque::new(),
        batches: VecDeque::new(),
        pieces: Downloads::default(),
        on_host: 0,
    };
    encoder.run()?;
    if encoder.on_host > 0 {
        let (subchunks, all) = (encoder.on_host, job.grid.num_subchunks());
        tracing::warn!(
            subchunks,
            all,
            "nvCOMP failed on subchunks: the host compressed them"
        );
    }
    let Encoder {
        output,
        extents,
        end,
        ..
    } = encoder;
    // SAFETY: the head was written above, and `run` returns when the copiers have written all bytes
    // from there to `end`, which `returns` keeps below the capacity.
    let mut bytes = unsafe { memory::assume_filled(output, end) };
    if bytes.capacity() - bytes.len() > tail.saturating_add(bytes.len()) {
        // Mostly empty subchunks: do not keep room for all of them.
        bytes.shrink_to(end + tail);
    }
    Ok(EncodedShard { bytes, extents })
}

impl Encoder<'_, '_> {
    fn run(&mut self) -> Result<(), EngineError> {
        let session = self.session;
        session.prepare(self.job)?;
        for (number, batch) in layout::batches(self.job.grid, session.sizing.batch)
            .into_iter()
            .enumerate()
        {
            let regions = session.batch(number);
            if !self.job.store_empty {
                let flags = regions.stored.part(0..batch.len() * 4);
                session.lane.zero(session.lane.compute, flags)?;
            }
            let mut timed = Vec::new();
            for slab in layout::slabs(self.job.grid, &batch, session.sizing.slab) {
                timed.push(self.stage(number, &batch, &slab)?);
            }
            // What was used until here is free once the kernels of the batch before it in the same
            // buffers are through, and those ran in the same stream. What comes now is free once
            // that batch has come back.
            while self.batches.len() >= session.sizing.batches.len() {
                self.take_back()?;
            }
            self.aggregate(number, batch, timed)?;
        }
        while !self.batches.is_empty() {
            self.take_back()?;
        }
        // Batches that have answered waited for all of their slabs.
        self.uploads.finish(session)?;
        Ok(())
    }

    /// Move a slab to the device and scatter it; meanwhile, take back a piece of an earlier batch.
    fn stage(&mut self, number: usize, batch: &Batch, slab: &Slab) -> Result<Timed, EngineError> {
        let _span = tracing::trace_span!("stage").entered();
        let session = self.session;
        let lane = session.lane;
        let place = self.uploads.place(session);
        let len = slab.len() * self.job.grid.element_size();
        let (staging, to) = self.uploads.next(session, len)?;
        // SAFETY: the slab lies within the shard, whose length was checked, and its dense form
        // within the region, which `Sizing` made for it. The copy that read the region was
        // synchronised with.
        let copy = unsafe { copy_of_slab(self.job, self.decoded.as_ptr(), batch, slab, to) };
        self.take_back_while(&[copy])?;

        if self.staged.len() == session.sizing.slabs.len()
            && let Some(staged) = self.staged.pop_front()
            && let Some(scattered) = staged.scattered
        {
            lane.driver.wait(lane.up, scattered, SCATTERED_WAIT)?;
        }
        let on_device = lane.device(session.sizing.slabs[place].part(0..len));
        let done = self.uploads.start(session, staging, on_device)?;

        lane.driver.wait(lane.compute, done, STAGED_WAIT)?;
        let regions = session.batch(number);
        let scatter = Scatter::new(
            &session.lift(self.job, &self.chain.order, batch, slab)?,
            self.chain.swap,
            self.job.fill_value,
        )
        .map_err(|error| session.refused("planning a scatter", &error))?;
        let timed = session.timed(TimedStage::Scatter)?;
        session.begin(lane.compute, timed.begin)?;
        let flags = (!self.job.store_empty).then(|| lane.device(regions.stored));
        // SAFETY: the lane's regions, ordered by the edges above.
        unsafe {
            scatter.enqueue_scatter(
                lane.driver,
                lane.compute,
                on_device,
                lane.device(session.sizing.slots),
                flags,
                lane.device(session.sizing.fill),
            )?;
        }
        lane.driver.record(timed.end, lane.compute, SCATTERED)?;
        self.staged.push_back(Staged {
            batch: number,
            scattered: Some(timed.end),
        });
        Ok(timed)
    }

    /// Enqueue everything behind the scatter of a batch, up to the copy of its offsets.
    fn aggregate(
        &mut self,
        number: usize,
        batch: Batch,
        mut timed: Vec<Timed>,
    ) -> Result<(), DriverError> {
        let _span = tracing::trace_span!("aggregate").entered();
        let session = self.session;
        let lane = session.lane;
        let regions = session.batch(number);
        let count = batch.len();
        let slots = Slots {
            span: lane.device(session.sizing.slots),
            stride: session.sizing.slot_stride,
            count,
        };
        let mut stored = (!self.job.store_empty).then(|| lane.device(regions.stored));
        let before = match self.compressor {
            Some(prepared) => prepared.compression.before,
            None => self.chain.stages.len(),
        };
        let bytes = self.job.grid.subchunk_bytes();
        let lengths = |stage| Lengths::All(bytes + stage * crc32c::CHECKSUM);
        session.checksums(before, slots, lengths, stored, &mut timed)?;
        let (mut encoded, mut lengths) = (slots, Lengths::All(session.sizing.encoded));
        let mut failed = None;
        if let (Some(prepared), Some(buffers)) = (self.compressor, &session.sizing.compression) {
            let flags = lane.device(regions.failed.part(0..count * 4));
            let frames = compress(session, prepared, buffers, slots, stored, flags, &mut timed)?;
            let after = prepared.compression.after;
            let framed = Some(frames.framed);
            let sizes = Lengths::Each(frames.sizes);
            session.checksums(after, frames.slots, |_| sizes, framed, &mut timed)?;
            (encoded, lengths, stored) = (frames.slots, sizes, framed);
            failed = Some(flags);
        }
        let aggregate = session.timed(TimedStage::Aggregate)?;
        session.begin(lane.compute, aggregate.begin)?;
        // One shard: its subchunks are in C order already.
        let permutation = ShardPermutation::new(&[count], &[count])
            .map_err(|error| session.refused("planning an aggregation", &error))?;
        let offsets = regions.offsets.part(0..(count + 1) * 8);
        let to = Aggregation {
            sizes: regions.sizes,
            source: regions.source,
            offsets,
            scratch: regions.scratch,
            dense: regions.dense.part(0..session.sizing.encoded * count),
        };
        session.aggregate(&permutation, encoded, lengths, stored, to)?;
        lane.driver
            .record(aggregate.end, lane.compute, AGGREGATED)?;
        lane.driver
            .wait(lane.down, aggregate.end, AGGREGATED_WAIT)?;
        let (answer, answer_failed) = regions.answer.split_at(offsets.len);
        let download = |from: DeviceSpan, to: Region| -> Result<(), DriverError> {
            let to = lane.pinned_out(to.part(0..from.len));
            session.counters.add_from_device(from.len);
            lane.copy(lane.down, Span::Device(from), Span::Pinned(to))
        };
        download(lane.device(offsets), answer)?;
        if let Some(failed) = failed {
            download(failed, answer_failed)?;
        }
        let answered = session.events.take()?;
        lane.driver.record(answered, lane.down, ANSWERED)?;
        timed.push(aggregate);
        self.batches.push_back(Aggregated {
            number,
            batch,
            answered,
            timed,
            answer: None,
            issued: 0,
            returned: 0,
        });
        Ok(())
    }

    /// Do `copies`, and take back what has come from the device meanwhile.
    fn take_back_while(&mut self, copies: &[Copy<'_>]) -> Result<(), EngineError> {
        self.issue(false)?;
        let piece = self.pieces.next(self.session, false)?;
        self.finish(piece, copies)
    }

    /// Wait for a piece, or for a batch that has none, and take it back.
    fn take_back(&mut self) -> Result<(), EngineError> {
        let batches = self.batches.len();
        self.issue(true)?;
        let piece = self.pieces.next(self.session, true)?;
        let came = piece.is_some();
        self.finish(piece, &[])?;
        if came || self.batches.len() < batches {
            return Ok(());
        }
        let reason = format!("{batches} batches are unfinished, and nothing is on its way");
        Err(self.session.refused("waiting for a device", &reason).into())
    }

    /// Start copies from the device: of batches whose offsets are known, as many as there is room
    /// for. Wait for the offsets of the first batch if `wait` and nothing else is on its way.
    fn issue(&mut self, wait: bool) -> Result<(), EngineError> {
        let session = self.session;
        let lane = session.lane;
        for at in 0..self.batches.len() {
            if self.batches[at].answer.is_none() {
                let answered = self.batches[at].answered;
                let wait = wait && self.pieces.is_empty();
                if !wait && !lane.driver.query_event(answered)? {
                    return Ok(());
                }
                self.answer(at)?;
            }
            let batch = &mut self.batches[at];
            let total = batch.answer.as_ref().map_or(0, |answer| answer.total);
            while batch.issued < total {
                if self.pieces.is_full(session) {
                    return Ok(());
                }
                let len = Downloads::<Piece>::most(session).min(total - batch.issued);
                let from = session.batch(batch.number).dense;
                let from = from.part(batch.issued..batch.issued + len);
                let piece = Piece {
                    batch: batch.number,
                    start: batch.issued,
                };
                self.pieces.start(session, from, piece)?;
                batch.issued += len;
            }
        }
        Ok(())
    }

    /// Read the offsets of the batch in place `at`.
    fn answer(&mut self, at: usize) -> Result<(), EngineError> {
        let _span = tracing::trace_span!("offsets").entered();
        let session = self.session;
        let batch = &mut self.batches[at];
        session
            .lane
            .driver
            .synchronize(batch.answered, ANSWERED_HOST)?;
        for timed in &batch.timed {
            session.finish_timed(timed)?;
        }
        // The host knows that these scatters are complete: nothing need wait for them any more.
        for staged in &mut self.staged {
            if staged.batch <= batch.number {
                staged.scattered = None;
            }
        }
        for timed in batch.timed.drain(..) {
            session.events.give([timed.begin, timed.end]);
        }
        let count = batch.batch.len();
        let first = batch.batch.first;
        let answer = session.batch(batch.number).answer;
        let (offsets, failed) = answer.split_at((count + 1) * 8);
        let offsets = session.lane.read(session.lane.pinned_out(offsets))?;
        let offsets = offsets.as_chunks::<8>().0.iter();
        let offsets: Vec<u64> = offsets.map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let failed = match self.compressor {
            Some(_) => {
                let failed = session.lane.pinned_out(failed.part(0..count * 4));
                session.lane.read(failed)?.as_chunks::<4>().0.to_vec()
            }
            None => Vec::new(),
        };
        let mut answer = Answer {
            total: 0,
            parts: Vec::new(),
        };
        for (i, pair) in offsets.windows(2).enumerate() {
            let subchunk = first + i;
            let len = pair[1].checked_sub(pair[0]).map(usize::try_from);
            let (true, Some(Ok(len))) = (pair[0] == answer.total as u64, len) else {
                let (from, to, end) = (pair[0], pair[1], answer.total);
                let what = format!(
                    "subchunk {subchunk} is at {from} to {to}, and the one before it ends at {end}"
                );
                return Err(session.wrong_answer(&what).into());
            };
            let has_failed = failed.get(i).is_some_and(|flag| *flag != [0; 4]);
            self.check_size(subchunk, len, has_failed)?;
            let (to, encoded) = if has_failed {
                let on_host = encode_subchunk(self.job, self.chain, self.decoded, subchunk)?;
                session.counters.subchunk_on_host();
                self.on_host += 1;
                self.write(self.end, &on_host)?;
                (None, on_host.len())
            } else {
                (Some(self.end), len)
            };
            if encoded > 0 {
                self.extents[subchunk] = Some(self.end..self.end + encoded);
            }
            let continues = answer.parts.last().is_some_and(|(start, last_to)| {
                last_to.map(|last_to| last_to + (answer.total - start)) == to && to.is_some()
            });
            if len > 0 && !continues {
                answer.parts.push((answer.total, to));
            }
            answer.total += len;
            self.end += encoded;
        }
        self.batches[at].answer = Some(answer);
        Ok(())
    }

    /// Whether a subchunk can have been encoded to `len` bytes.
    fn check_size(&self, subchunk: usize, len: usize, failed: bool) -> Result<(), DriverError> {
        let most = self.session.sizing.encoded;
        let (compressed, store_empty) = (self.compressor.is_some(), self.job.store_empty);
        if is_possible(len, most, compressed.then_some(failed), store_empty) {
            return Ok(());
        }
        Err(self.session.wrong_answer(&format!(
            "subchunk {subchunk} has {len} bytes, where an encoded one has {most}"
        )))
    }

    /// Copy `bytes` to `start` of the shard.
    fn write(&mut self, start: usize, bytes: &[u8]) -> Result<(), DriverError> {
        self.check_place(start, bytes.len())?;
        // SAFETY: within the capacity, by the check, and behind the head; these are no bytes that
        // come from the device.
        unsafe {
            let to = self.output.as_mut_ptr().add(start);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        Ok(())
    }

    /// Whether the shard has room for `len` bytes at `start`.
    fn check_place(&self, start: usize, len: usize) -> Result<(), DriverError> {
        let most = self.output.capacity();
        match start.checked_add(len) {
            Some(end) if end <= most => Ok(()),
            _ => Err(self.session.wrong_answer(&format!(
                "{len} bytes at {start} of a shard of at most {most}"
            ))),
        }
    }

    /// Copy `piece` to the shard, and do `copies`.
    fn finish(
        &mut self,
        piece: Option<Download<Piece>>,
        copies: &[Copy<'_>],
    ) -> Result<(), EngineError> {
        let _span = tracing::trace_span!("copy").entered();
        let session = self.session;
        let mut copies = copies.to_vec();
        let mut len = 0;
        if let Some(piece) = &piece {
            let from = piece.bytes(session)?;
            len = from.len();
            // Not always of the first batch: one without encoded bytes has no pieces.
            let mut batches = self.batches.iter();
            let answer = batches
                .find(|batch| batch.number == piece.to.batch)
                .and_then(|batch| batch.answer.as_ref())
                .ok_or(EngineError::Internal("a piece of no batch"))?;
            for (part, to) in answer.places(piece.to.start..piece.to.start + len) {
                self.check_place(to, part.len())?;
                // SAFETY: within the capacity, by the check above, and behind the head; every byte
                // is in one piece, and nothing else goes there.
                unsafe {
                    let to = self.output.as_mut_ptr().add(to);
                    copies.push(Copy::bytes(from[part.clone()].as_ptr(), to, part.len()));
                }
            }
        }
        session.copiers.run(&copies, self.job.threads);
        if let Some(piece) = piece {
            let number = piece.finish(session)?.batch;
            let mut batches = self.batches.iter_mut();
            if let Some(batch) = batches.find(|batch| batch.number == number) {
                batch.returned += len;
            }
        }
        while let Some(batch) = self.batches.front()
            && let Some(answer) = &batch.answer
            && answer.total == batch.returned
        {
            session.events.give([batch.answered]);
            self.batches.pop_front();
        }
        Ok(())
    }
}

/// Whether a subchunk can have `len` bytes, where an encoded one has `most`. If there is a compressor,
/// these are the most, and it is known whether it failed on this one.
pub(super) fn is_possible(
    len: usize,
    most: usize,
    failed: Option<bool>,
    store_empty: bool,
) -> bool {
    let elided = len == 0 && !store_empty;
    match failed {
        None => len == most || elided,
        Some(failed) => len <= most && (len > 0) != failed || elided,
    }
}

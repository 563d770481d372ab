//! Encodes a whole shard on a device.
//!
//! ```text
//! for each batch of subchunks
//!     for each slab of the batch's elements
//!         caller's memory -> pinned           copiers, while the slab before is enqueued
//!         pinned -> device                    stream `up`
//!         slab -> slots, stored?              stream `compute`: scatter
//!     slots -> slots with checksums           stream `compute`: crc32c
//!     slots -> frames                         stream `compute`: compression
//!     frames -> frames with checksums         stream `compute`: crc32c
//!     slots or frames -> offsets, dense bytes           stream `compute`: permute, scan, gather
//!     offsets, outcomes -> pinned             stream `answers`
//!     subchunks that failed -> caller's memory      by the host, on this thread
//!     for each piece of exactly the bytes used
//!         device -> pinned                    stream `down`
//!         pinned -> caller's memory           copiers
//! ```
//!
//! The pieces of one batch are copied to the host while the slabs of the next batch are copied to the device.
//! One thread controls both. `compute` is one of the streams of kernels of the lane, which batches use in
//! turn.
//!
//! | edge | producer | consumer | guards |
//! |---|---|---|---|
//! | [`STAGED_WAIT`] | copy of a slab (`up`) | scatter (`compute`) | the slab on the device |
//! | [`SCATTERED`] | scatter (`compute`) | copy of a later slab (`up`) | the slab on the device |
//!
//! The edges of a batch are in `enqueue`, the edges of pinned memory in `transfers`. Between the
//! first copy to the device and the last copy back, the host waits in three places: for a free place in
//! either ring of pinned memory (`transfers`), and for the offsets of a batch ([`ANSWERED_HOST`]).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::answer::{Answer, wrong_answer};
use super::check_progress::LaneUses;
use super::copiers::Copy;
use super::driver::{DriverError, EventId, Site};
use super::enqueue::{self, DeviceEncoding};
use super::session::{Session, Timed, copy_of_slab};
use super::sizing::{PlannedSlab, ShardKind};
use super::transfers::{Download, Downloads, Staging, Uploads};
use crate::contract::{EncodedShard, EngineError, ShardJob};
use crate::layout;
use crate::layout::{Batch, Extent, ShardPermutation};
use crate::memory::allocate;
use crate::memory::fresh::Fresh;
use crate::subchunk::encode::encode_stored_subchunk;
use crate::subchunk::stages::encoded_bound;

/// The wait for the event after which a slab is on the device. `transfers` records that event.
const STAGED_WAIT: Site = Site("wait: scatter for its slab");
/// The record of the event after which the device memory of a slab may be written again.
const SCATTERED: Site = Site("record: a slab was scattered");
const SCATTERED_WAIT: Site =
    Site("wait: copy of a slab for the scatter that reads the same memory");
const ANSWERED_HOST: Site = Site("synchronise: the offsets of a batch before they are read");
/// The name of the output's memory, in errors.
const OUTPUT: &str = "an encoded shard";

/// A slab that was copied to pinned memory.
struct Filled {
    staging: Staging,
    /// The number of the slab's batch, and the number of the slab in this batch.
    batch: usize,
    slab: usize,
    slabs: Arc<[PlannedSlab]>,
    /// The batch, if this slab is its last; otherwise `None`.
    ends: Option<Batch>,
}

/// A slab that was enqueued for scattering.
struct Staged {
    batch: usize,
    /// The event at the end of the scatter; `None` after the host has learned that the scatter is complete.
    scattered: Option<EventId>,
}

/// A batch whose kernels were all enqueued.
struct Aggregated {
    number: usize,
    batch: Batch,
    answered: EventId,
    timed: Vec<Timed>,
    /// The places of the dense bytes in the shard; `None` until the host has read the offsets.
    places: Option<Places>,
    /// The number of dense bytes whose copies to the host were started, and the number that the host has
    /// taken back.
    issued: usize,
    returned: usize,
}

/// The places in the shard to which the dense bytes of a batch are copied.
struct Places {
    /// The number of dense bytes.
    total: usize,
    /// The parts of the dense bytes, ascending and without gaps: the beginning of each part, and its place in
    /// the shard. The place is `None` if the host has encoded the part's subchunk.
    parts: Vec<(usize, Option<usize>)>,
}

impl Places {
    /// Returns the parts of the range `bytes`, as ranges within `bytes`, each with its place in the shard.
    fn of(&self, bytes: Range<usize>) -> impl Iterator<Item = (Range<usize>, usize)> {
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

/// A piece of a batch's dense bytes.
struct DensePiece {
    /// The number of the batch.
    batch: usize,
    /// The offset of the piece in the dense bytes of the batch.
    start: usize,
}

/// A shard that a device has encoded, and that was not checked yet.
#[derive(Debug)]
pub struct DeviceShard {
    pub shard: EncodedShard,
    /// The subchunks that the host has encoded because the compressor failed on them, in ascending order.
    pub(super) on_host: Vec<usize>,
    /// The most subchunks of a batch.
    pub(super) batch: usize,
    pub(super) uses: LaneUses,
}

/// An encoder of one shard.
struct ShardEncoder<'a, 'l> {
    session: &'a Session<'l>,
    job: &'a ShardJob<'a>,
    encoding: DeviceEncoding<'a>,
    decoded: &'a [u8],
    output: Vec<u8>,
    /// The part of the output's memory whose pages the system has not made yet.
    fresh: Fresh,
    extents: Vec<Extent>,
    /// The end, in the shard, of the batches whose offsets were read.
    end: usize,
    uploads: Uploads,
    /// The slab that is in pinned memory and is enqueued next.
    filled: Option<Filled>,
    /// The slabs in the ring of device memory.
    staged: VecDeque<Staged>,
    /// The measured stages of the batch whose slabs are being enqueued.
    timed: Vec<Timed>,
    batches: VecDeque<Aggregated>,
    pieces: Downloads<DensePiece>,
    /// The subchunks on which the compressor failed, so that the host encoded them.
    on_host: Vec<usize>,
}

/// Encodes `decoded`, whose length the caller has checked, in the lane of `session`.
pub fn encode(
    session: &Session<'_>,
    job: &ShardJob<'_>,
    kind: &ShardKind,
    decoded: &[u8],
    (head, tail): (usize, usize),
) -> Result<DeviceShard, EngineError> {
    // A subchunk that the host compresses may be longer than one that the device compresses.
    let encoded = encoded_bound(&kind.chain, job.grid.subchunk_bytes());
    let bound = encoded
        .map(|on_host| on_host.max(session.sizing.encoded))
        .and_then(|encoded| encoded.checked_mul(job.grid.num_subchunks()))
        .and_then(|encoded| head.checked_add(encoded)?.checked_add(tail))
        .ok_or(EngineError::OutOfMemory {
            what: OUTPUT,
            bytes: usize::MAX,
        })?;
    let mut output = allocate::with_capacity(bound, OUTPUT, job.huge_pages)?;
    output.resize(head, 0);
    let mut encoder = ShardEncoder {
        session,
        job,
        encoding: DeviceEncoding {
            kind,
            fill_value: job.fill_value,
            store_empty: job.store_empty,
        },
        decoded,
        fresh: Fresh::of(&mut output),
        output,
        extents: vec![None; job.grid.num_subchunks()],
        end: head,
        uploads: Uploads::default(),
        filled: None,
        staged: VecDeque::new(),
        timed: Vec::new(),
        batches: VecDeque::new(),
        pieces: Downloads::default(),
        on_host: Vec::new(),
    };
    let uses = encoder.run()?;
    if !encoder.on_host.is_empty() {
        let (subchunks, all) = (encoder.on_host.len(), job.grid.num_subchunks());
        tracing::warn!(
            subchunks,
            all,
            "nvCOMP failed on subchunks: the host compressed them"
        );
    }
    let ShardEncoder {
        output,
        extents,
        end,
        on_host,
        ..
    } = encoder;
    // SAFETY: the head was written above. `run` returns when the copiers have written all bytes from the head
    // to `end`, which `check_place` keeps within the capacity.
    let mut bytes = unsafe { allocate::assume_filled(output, end) };
    if bytes.capacity() - bytes.len() > tail.saturating_add(bytes.len()) {
        // Most subchunks are empty: do not keep the memory that they do not need.
        bytes.shrink_to(end + tail);
    }
    Ok(DeviceShard {
        shard: EncodedShard { bytes, extents },
        on_host,
        batch: session.sizing.batch,
        uses,
    })
}

impl ShardEncoder<'_, '_> {
    /// Encodes all batches. Returns how often each buffer of the lane was used.
    fn run(&mut self) -> Result<LaneUses, EngineError> {
        let session = self.session;
        let (grid, fill_value) = (self.job.grid, self.job.fill_value);
        enqueue::prepare(
            session.lane,
            session.sizing,
            grid.subchunk_bytes(),
            fill_value,
        )?;
        let batches = layout::batches(self.job.grid, session.sizing.batch);
        let count = batches.len();
        for (number, batch) in batches.into_iter().enumerate() {
            let slabs = self.encoding.slabs(session, &batch)?;
            for slab in 0..slabs.len() {
                self.make_room()?;
                self.stage(number, &batch, &slabs, slab)?;
            }
        }
        self.make_room()?;
        if let Some(filled) = self.filled.take() {
            self.enqueue(filled)?;
        }
        while !self.batches.is_empty() {
            self.take_back()?;
        }
        // The host has taken back all batches, so all copies to the device are complete.
        self.uploads.finish(session)?;
        let rings = [self.uploads.uses(session), self.pieces.uses(session)];
        Ok(session.uses(count, rings))
    }

    /// Takes batches back until the slab in `filled` can be enqueued.
    ///
    /// Before a batch's last slab, only kernels use the batch's buffers, in the same stream as the kernels of
    /// the earlier batch in these buffers. After the last slab, the host reads the buffers, too, so that the
    /// host must have taken back the earlier batch.
    fn make_room(&mut self) -> Result<(), EngineError> {
        let ends_batch = matches!(&self.filled, Some(Filled { ends: Some(_), .. }));
        while ends_batch && self.batches.len() >= self.session.sizing.batches.len() {
            self.take_back()?;
        }
        Ok(())
    }

    /// Copies slab `number` of `slabs` to pinned memory. Meanwhile, takes back a piece that has arrived from
    /// the device, and enqueues the slab before.
    fn stage(
        &mut self,
        of_batch: usize,
        batch: &Batch,
        slabs: &Arc<[PlannedSlab]>,
        number: usize,
    ) -> Result<(), EngineError> {
        let _span = tracing::trace_span!("stage").entered();
        let session = self.session;
        let slab = &slabs[number].slab;
        let len = slab.len() * self.job.grid.element_size();
        self.issue(false)?;
        // Before this thread waits for the device, it takes back every piece that has arrived.
        while self.uploads.would_wait(session)?
            && let Some(piece) = self.pieces.next(session, false)?
        {
            self.take_back_piece(piece)?;
            self.issue(false)?;
        }
        let piece = self.pieces.next(session, false)?;
        let staging = self.uploads.reserve(session, len)?;
        let mut copies = self.copies_of(piece.as_ref())?;
        // SAFETY: the slab lies within the shard, whose length was checked. Its dense form lies within the
        // region, which `Sizing` made for it. The host has synchronised with the earlier copy that read the
        // region.
        copies.push(unsafe {
            copy_of_slab(self.job, self.decoded.as_ptr(), batch, slab, staging.start)
        });
        let before = self.filled.take();
        let enqueue = |encoder: &mut Self| before.map_or(Ok(()), |before| encoder.enqueue(before));
        self.copy_while(&copies, self.end, enqueue)?;
        // Operations were enqueued while the copiers used these spans of pinned memory.
        staging.declare(session)?;
        if let Some(piece) = piece {
            piece.bytes(session)?;
            self.came_back(piece)?;
        }
        self.filled = Some(Filled {
            staging,
            batch: of_batch,
            slab: number,
            slabs: slabs.clone(),
            ends: (number + 1 == slabs.len()).then(|| batch.clone()),
        });
        Ok(())
    }

    /// Enqueues the copy of a slab to the device and its scatter. After the last slab of a batch, also
    /// enqueues all later steps, up to the copy of the batch's offsets.
    fn enqueue(&mut self, filled: Filled) -> Result<(), DriverError> {
        let _span = tracing::trace_span!("enqueue").entered();
        let session = self.session;
        let lane = session.lane;
        let regions = session.batch(filled.batch);
        let (_, stream) = session.workspace(regions);
        if filled.slab == 0 {
            self.encoding.begin(session, regions)?;
        }
        if self.staged.len() == session.sizing.slabs.len()
            && let Some(staged) = self.staged.pop_front()
            && let Some(scattered) = staged.scattered
        {
            lane.driver.wait(lane.up, scattered, SCATTERED_WAIT)?;
            session.events.give(scattered);
        }
        let place = session.sizing.slabs[filled.staging.place];
        let on_device = lane.device(place.part(0..filled.staging.len()));
        let done = self.uploads.start(session, &filled.staging, on_device)?;
        lane.driver.wait(stream, done, STAGED_WAIT)?;
        let slab = &filled.slabs[filled.slab];
        (self.encoding).scatter(session, regions, slab, on_device, &mut self.timed)?;
        self.staged.push_back(Staged {
            batch: filled.batch,
            scattered: Some(session.record(stream, SCATTERED)?),
        });
        match filled.ends {
            Some(batch) => self.aggregate(filled.batch, batch),
            None => Ok(()),
        }
    }

    /// Enqueues all steps after the scatter of a batch, up to the copy of the batch's offsets.
    fn aggregate(&mut self, number: usize, batch: Batch) -> Result<(), DriverError> {
        let _span = tracing::trace_span!("aggregate").entered();
        let session = self.session;
        let permutation = in_order(session, &batch)?;
        let regions = session.batch(number);
        let mut timed = std::mem::take(&mut self.timed);
        let answered = self
            .encoding
            .encode(session, regions, &permutation, &mut timed)?;
        self.batches.push_back(Aggregated {
            number,
            batch,
            answered,
            timed,
            places: None,
            issued: 0,
            returned: 0,
        });
        Ok(())
    }

    /// Blocks until a piece has arrived, or a batch without pieces is complete. Takes back the piece or the
    /// batch.
    fn take_back(&mut self) -> Result<(), EngineError> {
        let batches = self.batches.len();
        self.issue(true)?;
        if let Some(piece) = self.pieces.next(self.session, true)? {
            return self.take_back_piece(piece);
        }
        // A batch without encoded bytes has no pieces.
        self.drop_complete();
        if self.batches.len() < batches {
            return Ok(());
        }
        let reason = format!("{batches} batches are unfinished, and nothing is on its way");
        Err(self.session.refused("waiting for a device", &reason).into())
    }

    /// Copies a piece to the shard, and gives the piece's pinned memory back to the ring.
    fn take_back_piece(&mut self, piece: Download<DensePiece>) -> Result<(), EngineError> {
        let copies = self.copies_of(Some(&piece))?;
        self.copy(&copies, self.end);
        Ok(self.came_back(piece)?)
    }

    /// Starts copies from the device for batches whose offsets are known, while the ring has room. If `wait`
    /// and no copy is in flight, waits for the offsets of a batch.
    fn issue(&mut self, wait: bool) -> Result<(), EngineError> {
        let session = self.session;
        let lane = session.lane;
        for at in 0..self.batches.len() {
            if self.batches[at].places.is_none() {
                let answered = self.batches[at].answered;
                if wait && self.pieces.is_empty() {
                    lane.synchronize(answered, ANSWERED_HOST)?;
                } else if !lane.driver.query_event(answered)? {
                    return Ok(());
                }
                self.answer(at)?;
            }
            let batch = &mut self.batches[at];
            let total = batch.places.as_ref().map_or(0, |places| places.total);
            while batch.issued < total {
                if self.pieces.is_full(session) {
                    return Ok(());
                }
                let len = Downloads::<DensePiece>::most(session).min(total - batch.issued);
                let from = session.batch(batch.number).dense;
                let from = from.part(batch.issued..batch.issued + len);
                let piece = DensePiece {
                    batch: batch.number,
                    start: batch.issued,
                };
                self.pieces.start(session, from, piece)?;
                batch.issued += len;
            }
        }
        Ok(())
    }

    /// Reads the offsets of the batch at position `at` of `batches`, which are in pinned memory, and plans
    /// the places of the batch's bytes.
    fn answer(&mut self, at: usize) -> Result<(), EngineError> {
        let _span = tracing::trace_span!("offsets").entered();
        let session = self.session;
        let batch = &mut self.batches[at];
        session.events.give(batch.answered);
        session.finish_timed(batch.timed.drain(..))?;
        // The host now knows that the scatters of this batch are complete: nothing needs to wait for their
        // events.
        for staged in &mut self.staged {
            if staged.batch == batch.number
                && let Some(scattered) = staged.scattered.take()
            {
                session.events.give(scattered);
            }
        }
        let (first, count) = (batch.batch.first, batch.batch.len());
        let permutation = in_order(session, &batch.batch)?;
        let answer = Answer::read(session, session.batch(batch.number), &permutation)?;
        let mut places = Places {
            total: 0,
            parts: Vec::new(),
        };
        for i in 0..count {
            let subchunk = first + i;
            let start = places.total;
            places.total = answer.end_of(session, i, start)?;
            let len = places.total - start;
            answer.check_size(session, i, len, self.job.store_empty)?;
            let (to, encoded) = if answer.has_failed(i) {
                let chain = &self.encoding.kind.chain;
                let on_host = encode_stored_subchunk(self.job, chain, self.decoded, subchunk)?;
                let on_host = on_host.unwrap_or_default();
                session.counters.subchunk_on_host();
                self.on_host.push(subchunk);
                self.write(self.end, &on_host)?;
                (None, on_host.len())
            } else {
                (Some(self.end), len)
            };
            if encoded > 0 {
                self.extents[subchunk] = Some(self.end..self.end + encoded);
            }
            let continues = places.parts.last().is_some_and(|(first, first_to)| {
                first_to.map(|first_to| first_to + (start - first)) == to && to.is_some()
            });
            if len > 0 && !continues {
                places.parts.push((start, to));
            }
            self.end += encoded;
        }
        self.batches[at].places = Some(places);
        Ok(())
    }

    /// Copies `bytes` to the offset `start` of the shard.
    fn write(&mut self, start: usize, bytes: &[u8]) -> Result<(), DriverError> {
        self.check_place(start, bytes.len())?;
        // SAFETY: the bytes lie within the capacity, by the check, and behind the head. No bytes from the
        // device are copied to the same place.
        let copy = unsafe {
            let to = self.output.as_mut_ptr().add(start);
            Copy::bytes(bytes.as_ptr(), to, bytes.len())
        };
        self.copy(&[copy], start + bytes.len());
        Ok(())
    }

    /// Performs `copies`, some of which write to the shard. The shard will have at least `end` bytes.
    fn copy(&mut self, copies: &[Copy<'_>], end: usize) {
        self.copy_while(copies, end, |_| ());
    }

    /// Performs `copies` like [`copy`](Self::copy), but this thread does `work` first. `work` does
    /// not write to the shard.
    fn copy_while<T>(
        &mut self,
        copies: &[Copy<'_>],
        end: usize,
        work: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let (session, threads) = (self.session, self.job.threads);
        let ahead = (Downloads::<DensePiece>::most(session), end);
        let mut fresh = std::mem::take(&mut self.fresh);
        // SAFETY: `fresh` is the memory of the output. Only copies of this function write to it behind the
        // head.
        let result = unsafe {
            let work = || work(self);
            session
                .copiers
                .run_into(&mut fresh, copies, ahead, threads, work)
        };
        self.fresh = fresh;
        result
    }

    /// Checks that the shard has room for `len` bytes at `start`.
    fn check_place(&self, start: usize, len: usize) -> Result<(), DriverError> {
        let most = self.output.capacity();
        match start.checked_add(len) {
            Some(end) if end <= most => Ok(()),
            _ => Err(wrong_answer(
                self.session,
                &format!("{len} bytes at {start} of a shard of at most {most}"),
            )),
        }
    }

    /// Returns the copies that bring a piece to its places in the shard.
    fn copies_of<'c>(
        &mut self,
        piece: Option<&Download<DensePiece>>,
    ) -> Result<Vec<Copy<'c>>, EngineError> {
        let mut copies = Vec::new();
        let Some(piece) = piece else {
            return Ok(copies);
        };
        let from = piece.bytes(self.session)?;
        let output = self.output.as_mut_ptr();
        // The piece may belong to a later batch than the first: a batch without encoded bytes has no pieces.
        let mut batches = self.batches.iter();
        let places = batches
            .find(|batch| batch.number == piece.to.batch)
            .and_then(|batch| batch.places.as_ref())
            .ok_or(EngineError::Internal("a piece of no batch"))?;
        for (part, to) in places.of(piece.to.start..piece.to.start + from.len()) {
            self.check_place(to, part.len())?;
            // SAFETY: the bytes lie within the capacity, by the check above, and behind the head. Every byte
            // is in one piece, and nothing else is copied to its place. The ring keeps the bytes until the
            // piece is given back.
            unsafe {
                let from = from[part.clone()].as_ptr();
                copies.push(Copy::bytes(from, output.add(to), part.len()));
            }
        }
        Ok(copies)
    }

    /// Gives back the pinned memory of a piece whose bytes are in the shard, and drops batches that are
    /// complete.
    fn came_back(&mut self, piece: Download<DensePiece>) -> Result<(), DriverError> {
        let len = piece.len();
        let number = piece.finish(self.session)?.batch;
        let mut batches = self.batches.iter_mut();
        if let Some(batch) = batches.find(|batch| batch.number == number) {
            batch.returned += len;
        }
        self.drop_complete();
        Ok(())
    }

    /// Drops the first batches as long as the host has taken back all of their bytes.
    fn drop_complete(&mut self) {
        while let Some(batch) = self.batches.front()
            && let Some(places) = &batch.places
            && places.total == batch.returned
        {
            self.batches.pop_front();
        }
    }
}

/// Returns the order of a batch's subchunks in the output. Within one shard, the subchunks are in C order
/// already.
fn in_order(session: &Session<'_>, batch: &Batch) -> Result<ShardPermutation, DriverError> {
    ShardPermutation::new(&[batch.len()], &[batch.len()])
        .map_err(|error| session.refused("planning an aggregation", &error))
}

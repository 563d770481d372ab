//! Enqueues the kernels that encode a batch of subchunks, for shards and for streams.
//!
//! ```text
//! slab -> slots, stored?              scatter
//! slots -> slots with checksums       crc32c
//! slots -> frames                     compression
//! frames -> frames with checksums     crc32c
//! slots or frames -> offsets, dense bytes      permute, scan, gather
//! offsets, outcomes -> pinned         stream `answers`
//! ```
//!
//! All steps but the last run in one stream of kernels, `compute` below, which batches of a lane use in turn.
//! The offsets have a stream of their own. In the stream `down`, the bytes of an earlier batch would wait
//! behind these offsets for the kernels of this batch.
//!
//! | edge | producer | consumer | guards |
//! |---|---|---|---|
//! | [`AGGREGATED`] | gather (`compute`) | copy of the offsets (`answers`) | offsets and dense bytes |
//! | [`ANSWERED`] | copy of the offsets (`answers`) | the host | the offsets in pinned memory, and the dense bytes |

use std::sync::Arc;

use super::compress::compress;
use super::counters::TimedStage;
use super::driver::{DeviceSpan, DriverError, EventId, Site, Span, StreamId};
use super::kernels::scatter::SlabScatter;
use super::kernels::spans::{Lengths, Slots};
use super::kernels::{aggregate, crc32c};
use super::lane::{NO_ANSWER, Running};
use super::session::{Session, Timed};
use super::sizing::{BatchRegions, PlannedSlab, ShardKind, Sizing};
use crate::layout::{Batch, ShardPermutation};

/// The record of the event after which the offsets and the dense bytes of a batch are complete.
const AGGREGATED: Site = Site("record: a batch was aggregated");
const AGGREGATED_WAIT: Site = Site("wait: copy of the offsets for their batch");
/// The record of the event after which the offsets of a batch are in pinned memory.
const ANSWERED: Site = Site("record: the offsets of a batch were copied from the device");

/// Enqueues the operations before the first batch. The fill value is copied to the device, ahead of every
/// other copy in its stream. If slots are longer than their elements, or the lane decompresses, the slots are
/// zeroed once: kernels read slots by whole words, and decompression does not write the slots of empty
/// subchunks.
pub(super) fn prepare(
    lane: Running<'_>,
    sizing: &Sizing,
    subchunk_bytes: usize,
    fill_value: &[u8],
) -> Result<(), DriverError> {
    if sizing.slot_stride > subchunk_bytes || sizing.decompresses() {
        for (workspace, stream) in std::iter::zip(&sizing.workspaces, lane.kernel_streams) {
            lane.zero(*stream, workspace.slots)?;
        }
    }
    let pattern = SlabScatter::fill_pattern(fill_value);
    let staging = lane.pinned_in(sizing.fill_staging);
    let staging = lane.write_values(staging, pattern.iter().map(|byte| [*byte]))?;
    let to = lane.device(sizing.fill.part(0..staging.len));
    lane.copy(lane.up, Span::Pinned(staging), Span::Device(to))
}

/// The parameters with which the subchunks of a shard, or of a stream, are encoded.
#[derive(Clone, Copy)]
pub(super) struct DeviceEncoding<'a> {
    pub(super) kind: &'a ShardKind,
    pub(super) fill_value: &'a [u8],
    pub(super) store_empty: bool,
}

impl DeviceEncoding<'_> {
    /// Returns the flags that say which subchunks are stored; `None` if all subchunks are stored.
    fn stored(&self, session: &Session<'_>, regions: &BatchRegions) -> Option<DeviceSpan> {
        (!self.store_empty).then(|| session.lane.device(regions.stored))
    }

    /// Begins a batch: clears the flags that say which subchunks are stored.
    pub(super) fn begin(
        &self,
        session: &Session<'_>,
        regions: &BatchRegions,
    ) -> Result<(), DriverError> {
        if self.store_empty {
            return Ok(());
        }
        let (_, stream) = session.workspace(regions);
        session.lane.zero(stream, regions.stored)
    }

    /// Returns the planned slabs of a batch.
    pub(super) fn slabs(
        &self,
        session: &Session<'_>,
        batch: &Batch,
    ) -> Result<Arc<[PlannedSlab]>, DriverError> {
        session.planned(self.kind, self.fill_value, batch, session.sizing.slab)
    }

    /// Enqueues the scatter of a slab, which is at `from` on the device, to the slots of its batch.
    pub(super) fn scatter(
        &self,
        session: &Session<'_>,
        regions: &BatchRegions,
        slab: &PlannedSlab,
        from: DeviceSpan,
        timed: &mut Vec<Timed>,
    ) -> Result<(), DriverError> {
        let (lane, (workspace, stream)) = (session.lane, session.workspace(regions));
        session.run(stream, TimedStage::Scatter, timed, || {
            // SAFETY: the spans are regions of the lane, and the edges of the caller order all operations on
            // them.
            unsafe {
                slab.scatter.enqueue_scatter(
                    lane.driver,
                    stream,
                    from,
                    lane.device(workspace.slots),
                    self.stored(session, regions),
                    lane.device(session.sizing.fill),
                )
            }
        })
    }

    /// Enqueues all steps after the scatter of the subchunks of `permutation`, up to the copy of their
    /// offsets. Returns the event at the end of that copy.
    pub(super) fn encode(
        &self,
        session: &Session<'_>,
        regions: &BatchRegions,
        permutation: &ShardPermutation,
        timed: &mut Vec<Timed>,
    ) -> Result<EventId, DriverError> {
        let (lane, sizing, kind) = (session.lane, session.sizing, self.kind);
        let (workspace, stream) = session.workspace(regions);
        let (count, places) = (permutation.subchunks(), permutation.padded_slots());
        let mut stored = self.stored(session, regions);
        let mut encoded = Slots {
            span: lane.device(workspace.slots),
            stride: sizing.slot_stride,
            count,
        };
        let before = match &kind.compressor {
            Some(prepared) => prepared.compression.before,
            None => kind.chain.stages.len(),
        };
        let bytes = kind.grid.subchunk_bytes();
        let lengths = |stage| Lengths::All(bytes + stage * crc32c::CHECKSUM);
        checksums(session, stream, before, encoded, lengths, stored, timed)?;
        let mut lengths = Lengths::All(sizing.encoded);
        let outcomes = regions.outcomes.part(0..count * 4);
        if let (Some(prepared), Some(buffers)) = (&kind.compressor, &workspace.compression) {
            lane.fill(stream, outcomes, NO_ANSWER)?;
            let outcomes = lane.device(outcomes);
            let at = (buffers, stream);
            let frames = compress(session, prepared, at, encoded, stored, outcomes, timed)?;
            (encoded, stored) = (frames.slots, Some(frames.framed));
            lengths = Lengths::Each(frames.sizes);
            let after = prepared.compression.after;
            checksums(session, stream, after, encoded, |_| lengths, stored, timed)?;
        }
        let offsets = regions.offsets.part(0..(places + 1) * 8);
        session.run(stream, TimedStage::Aggregate, timed, || {
            let (sizes, source) = (lane.device(regions.sizes), lane.device(regions.source));
            let (offsets, scratch) = (lane.device(offsets), lane.device(regions.scratch));
            let dense = lane.device(regions.dense.part(0..sizing.encoded * count));
            let driver = lane.driver;
            // SAFETY: the spans are regions of the lane, and the kernels on them run in one stream; the sizes
            // are at most a slot's.
            unsafe {
                aggregate::permute_sizes(
                    driver,
                    stream,
                    permutation,
                    lengths,
                    stored,
                    sizes,
                    source,
                )?;
                aggregate::scan(driver, stream, sizes, offsets, scratch, places)?;
                aggregate::gather(driver, stream, encoded, source, offsets, places, dense)
            }
        })?;
        session.order((stream, AGGREGATED), (lane.answers, AGGREGATED_WAIT))?;
        let (answer, answer_outcomes) = regions.answer.split_at(offsets.len);
        for (from, to) in [(offsets, answer), (outcomes, answer_outcomes)] {
            if from.len == 0 {
                continue;
            }
            let to = lane.pinned_out(to.part(0..from.len));
            lane.clear_answer(to)?;
            session.counters.add_from_device(from.len);
            let from = Span::Device(lane.device(from));
            lane.copy(lane.answers, from, Span::Pinned(to))?;
        }
        session.record(lane.answers, ANSWERED)
    }
}

/// Enqueues the kernels that append `number` checksums to the contents of the slots. `lengths` returns the
/// number of bytes in the slots before each checksum.
fn checksums(
    session: &Session<'_>,
    stream: StreamId,
    number: usize,
    slots: Slots,
    lengths: impl Fn(usize) -> Lengths,
    stored: Option<DeviceSpan>,
    timed: &mut Vec<Timed>,
) -> Result<(), DriverError> {
    if number == 0 {
        return Ok(());
    }
    let lane = session.lane;
    session.run(stream, TimedStage::Crc32c, timed, || {
        for stage in 0..number {
            // SAFETY: the spans are regions of the lane, and the kernels on them run in one stream; the slots
            // were sized with room for the checksums.
            unsafe {
                crc32c::append(lane.driver, stream, slots, lengths(stage), stored)?;
            }
        }
        Ok(())
    })
}

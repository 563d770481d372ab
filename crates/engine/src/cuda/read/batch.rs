//! A batch of subchunks: copied to the device while it is collected, and then in flight.

use std::ops::Range;
use std::sync::Arc;

use super::{Content, SubchunkToPlace};
use crate::cuda::check_progress::LaneUses;
use crate::cuda::compressed_frame_parts::CompressedFrameParts;
use crate::cuda::driver::EventId;
use crate::cuda::session::Timed;
use crate::cuda::slabs::PinnedSlab;
use crate::cuda::transfers::Staging;

/// The subchunks of a batch, and their places in its buffers. A stored subchunk has a slot.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The number of the batch in its lane.
    pub(super) number: usize,
    pub(super) subchunks: Vec<SubchunkToPlace>,
    /// The slot of each subchunk; `None` if its elements are the fill value.
    pub(super) slots: Vec<Option<usize>>,
    /// For each slot: the offset of its bytes in the batch's encoded bytes, and the number of bytes that are copied to
    /// the slot as they are; 0 for a frame.
    pub(super) offsets: Vec<u64>,
    pub(super) copied: Vec<u64>,
    /// The number of bytes that were put behind one another for the device.
    pub(super) end: usize,
}

impl Batch {
    /// Returns the stored subchunks, each with its slot.
    pub(super) fn stored(&self) -> impl Iterator<Item = (usize, &SubchunkToPlace)> {
        let all = self.subchunks.iter().zip(&self.slots);
        all.filter_map(|(subchunk, slot)| Some(((*slot)?, subchunk)))
    }

    /// Returns the streams of the batch's frames; `None` if there is no frame.
    pub(super) fn parts(&self) -> Option<CompressedFrameParts> {
        let frames = || {
            self.stored().map(|(_, subchunk)| match &subchunk.content {
                Content::Frame(frame, _) => Some(frame),
                _ => None,
            })
        };
        let layout = frames().flatten().next()?.layout;
        Some(CompressedFrameParts::of_frames(layout, frames()))
    }

    /// Returns the number of stored subchunks that the device has made. The host has made the subchunks in the slots
    /// `repaired`.
    pub(super) fn made(&self, repaired: &[usize]) -> usize {
        let by_device = self.stored().filter(|(slot, subchunk)| {
            !matches!(subchunk.content, Content::Decoded(..)) && !repaired.contains(slot)
        });
        by_device.count()
    }

    /// Returns whether bytes are copied to a slot as they are.
    pub(super) fn copies(&self) -> bool {
        self.copied.iter().any(|bytes| *bytes > 0)
    }
}

/// A batch that is being collected.
#[derive(Debug)]
pub(super) struct Collecting {
    pub(super) batch: Batch,
    /// Bytes at the end that lie together in a slab, and whose copy was not started.
    pub(super) run: Option<(Arc<PinnedSlab>, Range<usize>)>,
    /// The place of the ring that is being filled, and the number of bytes in it. They are before the run.
    pub(super) staging: Option<(Staging, usize)>,
    /// The number of bytes whose copies to the device were started.
    pub(super) started: usize,
    /// How often each place of the ring was used when the batch began.
    pub(super) ring_before: Vec<u32>,
}

/// A batch whose kernels were enqueued.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) batch: Batch,
    pub(super) parts: Option<CompressedFrameParts>,
    /// The event after which the answers of the batch are in pinned memory; `None` if it has none.
    pub(super) answered: Option<EventId>,
    pub(super) timed: Vec<Timed>,
    /// How often the batch has used each buffer of the lane.
    pub(super) uses: LaneUses,
    /// The slots whose subchunks the host has decoded, because the device could not.
    pub(super) repaired: Vec<usize>,
}

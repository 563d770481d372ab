//! The memory of a lane: three allocations, each divided into regions. All other modules that size
//! a lane build on this one.

use std::ops::Range;

use crate::contract::BufferBytes;

/// The tuned parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Bytes that are staged and scattered at once: enough to be worth the start of a copy. Shards
    /// of more than [`SLABS`](Self::SLABS) slabs have longer ones, up to `long_slab`.
    pub slab: usize,
    pub long_slab: usize,
    /// Slabs in flight at once, in each direction.
    pub ring: usize,
    /// Decoded bytes of a batch, the subchunks that are aggregated at once: a few slabs, so that
    /// copies back to the host begin early. A batch has at least two slabs.
    pub batch: usize,
    /// The same for chains with a compressor, over all streams of kernels.
    pub compressed_batch: usize,
    /// Subchunks that are compressed at once, over all streams of kernels, for each multiprocessor
    /// of a device: fewer would leave some idle. Batches of fewer subchunks are made longer.
    pub per_multiprocessor: usize,
    /// Batches in flight at once. One is copied to the device and one is copied back, while the
    /// kernels process the batch in between.
    pub batches: usize,
    /// Streams of kernels, at most [`STREAMS`](Self::STREAMS): batches of one shard whose kernels
    /// may run at the same time.
    pub streams: usize,
    /// Parts of a stream's batch with at most this many bytes are copied to the host together, and
    /// the host moves them to their places. A call of the driver for each part would take longer.
    pub small_part: usize,
}

impl Tuning {
    /// So small that a shard of a few KiB has many batches of many slabs, and every ring wraps around.
    #[cfg(any(test, feature = "fakes"))]
    pub const TINY: Self = Self {
        slab: 384,
        long_slab: 384,
        ring: 2,
        batch: 1200,
        compressed_batch: 2000,
        per_multiprocessor: 0,
        batches: 2,
        streams: 1,
        small_part: 40,
    };

    pub const DEFAULT: Self = Self {
        slab: 2 << 20,
        long_slab: 8 << 20,
        ring: 4,
        batch: 8 << 20,
        compressed_batch: 128 << 20,
        per_multiprocessor: 4,
        batches: 3,
        streams: 1,
        small_part: 16 << 10,
    };

    /// A shard of more slabs than this has longer ones: the first copy to the device, and the last
    /// one back, overlap with nothing.
    pub const SLABS: usize = 32;

    /// The most streams of kernels.
    pub const STREAMS: usize = 3;

    /// Returns the same, with the slabs of shards of `bytes`.
    #[must_use]
    pub fn for_shards_of(self, bytes: usize) -> Self {
        let slab = (bytes / Self::SLABS).min(self.long_slab).max(self.slab);
        Self {
            slab,
            long_slab: slab,
            batch: self.batch.max(slab.saturating_mul(2)),
            ..self
        }
    }

    /// Returns the number of streams of kernels.
    pub(super) fn kernel_streams(&self) -> usize {
        self.streams.clamp(1, Self::STREAMS)
    }
}

/// Alignment of every buffer of a lane, in bytes.
const ALIGNMENT: usize = 256;

/// Alignment of slots, in bytes: the widest load.
pub const SLOT_ALIGNMENT: usize = 16;

/// Slots of at least this many bytes are aligned to cache lines.
pub(super) const LONG_SLOT: usize = 4096;
pub(super) const LINE: usize = 128;

/// A range of bytes in one of a lane's allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl Region {
    /// Splits the region into its first `len` bytes and the rest.
    pub(super) fn split_at(self, len: usize) -> (Self, Self) {
        (self.part(0..len), self.part(len..self.len))
    }

    /// Returns a part of the region, cut off at the region's end.
    pub(super) fn part(self, range: Range<usize>) -> Self {
        let start = range.start.min(self.len);
        Self {
            offset: self.offset + start,
            len: range.end.clamp(start, self.len) - start,
        }
    }
}

/// Divides one allocation.
#[derive(Debug, Default)]
pub(super) struct Arena(usize);

/// Divides all three allocations.
#[derive(Debug, Default)]
pub(super) struct Arenas {
    pub(super) device: Arena,
    pub(super) pinned_in: Arena,
    pub(super) pinned_out: Arena,
}

impl Arenas {
    /// Returns the number of bytes that were divided so far.
    pub(super) fn capacity(&self) -> Capacity {
        Capacity {
            device: self.device.0,
            pinned_in: self.pinned_in.0,
            pinned_out: self.pinned_out.0,
            ..Capacity::default()
        }
    }
}

impl Arena {
    /// Returns the next `len` bytes; `None` if they are more than this machine can address.
    pub(super) fn region(&mut self, len: usize) -> Option<Region> {
        let offset = self.0;
        self.0 = offset
            .checked_add(len)?
            .checked_next_multiple_of(ALIGNMENT)
            .filter(|&end| isize::try_from(end).is_ok())?;
        Some(Region { offset, len })
    }
}

/// The sizes of a lane's allocations, in bytes, and its streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Capacity {
    pub(super) device: usize,
    pub(super) pinned_in: usize,
    pub(super) pinned_out: usize,
    /// Whether the host also reads the memory for uploads.
    pub(super) reads_uploads: bool,
    /// Streams of kernels.
    pub(super) kernel_streams: usize,
}

impl Capacity {
    /// Page-locked bytes in both directions.
    pub(super) fn pinned(&self) -> usize {
        self.pinned_in + self.pinned_out
    }

    /// Returns the memory of a lane of this capacity.
    pub(super) fn takes(&self) -> BufferBytes {
        BufferBytes {
            device: self.device,
            pinned: self.pinned(),
            ..BufferBytes::default()
        }
    }

    /// Returns whether a lane of this capacity has room for one of `other`.
    pub(super) fn holds(&self, other: &Self) -> bool {
        self.device >= other.device
            && self.pinned_in >= other.pinned_in
            && self.pinned_out >= other.pinned_out
            && self.reads_uploads >= other.reads_uploads
            && self.kernel_streams >= other.kernel_streams
    }
}

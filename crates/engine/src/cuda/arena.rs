//! The memory of a lane: three allocations, each divided into regions. All other modules that compute the
//! sizes of a lane's memory use this module.

use std::ops::Range;

use crate::contract::BufferBytes;

/// The parameters of the CUDA engine that measurements chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// The number of bytes that are staged and scattered at once: enough to be worth the start of a copy.
    /// Shards of more than [`SLABS`](Self::SLABS) slabs have longer slabs, of up to `long_slab` bytes.
    pub slab: usize,
    pub long_slab: usize,
    /// The number of slabs that are in flight at once, in each direction.
    pub ring: usize,
    /// The number of decoded bytes of a batch, whose subchunks are aggregated at once. A batch has a few
    /// slabs, so that copies back to the host begin early, and at least two.
    pub batch: usize,
    /// The number of decoded bytes of a batch for chains with a compressor, over all streams of kernels.
    pub compressed_batch: usize,
    /// The number of subchunks that are compressed at once, over all streams of kernels, for each
    /// multiprocessor of a device. Fewer subchunks would leave some multiprocessors idle, so a batch of fewer
    /// is made longer.
    pub per_multiprocessor: usize,
    /// The number of batches in flight at once. One is copied to the device and one is copied back, while the
    /// kernels process the batch in between.
    pub batches: usize,
    /// The number of CUDA streams that run kernels, at most [`STREAMS`](Self::STREAMS). Kernels of different
    /// batches of one shard may run at the same time in different streams.
    pub streams: usize,
    /// Parts of a stream's batch with at most this many bytes are copied to the host together, and
    /// the host moves them to their places. A call of the driver for each part would take longer.
    pub small_part: usize,
    /// Encoded bytes of a read that lie together in page-locked memory are copied to the device from there if they
    /// are at least this many. The host copies fewer bytes to the ring of the lane first, because a call of the
    /// driver would take longer.
    pub least_direct: usize,
}

impl Tuning {
    /// Parameters so small that a shard of a few KiB has many batches of many slabs, and every ring wraps
    /// around.
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
        least_direct: 100,
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
        least_direct: 32 << 10,
    };

    /// The most slabs of the shortest length that a shard has. A larger shard has longer slabs, because the
    /// first copy to the device, and the last copy back, overlap with nothing.
    pub const SLABS: usize = 32;

    /// The most CUDA streams that run kernels.
    pub const STREAMS: usize = 3;

    /// The number of batches in flight in a lane that reads into device memory. Each has its own slots, and its own
    /// stream of kernels.
    pub const READ_BATCHES: usize = 2;

    /// Returns these parameters, with the lengths of slabs and batches that shards of `bytes` bytes need.
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

    /// Returns the number of CUDA streams that run kernels.
    pub(super) fn kernel_streams(&self) -> usize {
        self.streams.clamp(1, Self::STREAMS)
    }
}

/// The alignment of every buffer of a lane, in bytes.
const ALIGNMENT: usize = 256;

/// The alignment of slots, in bytes: the widest load of a kernel.
pub const SLOT_ALIGNMENT: usize = 16;

/// The least number of bytes of a slot that is aligned to a cache line, of `LINE` bytes.
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

/// Divides one allocation into regions. The field is the number of bytes that regions take so far.
#[derive(Debug, Default)]
pub(super) struct Arena(usize);

/// Divides the three allocations of a lane into regions.
#[derive(Debug, Default)]
pub(super) struct Arenas {
    pub(super) device: Arena,
    pub(super) pinned_in: Arena,
    pub(super) pinned_out: Arena,
}

impl Arenas {
    /// Returns the number of bytes that regions take so far, in each allocation.
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
    /// Returns a region of the next `len` bytes; `None` if the allocation becomes larger than this machine
    /// can address.
    pub(super) fn region(&mut self, len: usize) -> Option<Region> {
        let offset = self.0;
        self.0 = offset
            .checked_add(len)?
            .checked_next_multiple_of(ALIGNMENT)
            .filter(|&end| isize::try_from(end).is_ok())?;
        Some(Region { offset, len })
    }
}

/// The sizes of a lane's allocations, in bytes, and the number of streams of the lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Capacity {
    pub(super) device: usize,
    pub(super) pinned_in: usize,
    pub(super) pinned_out: usize,
    /// Whether the host also reads the pinned memory for uploads.
    pub(super) reads_uploads: bool,
    /// The number of CUDA streams that run kernels.
    pub(super) kernel_streams: usize,
}

impl Capacity {
    /// Returns the number of page-locked bytes, of both directions.
    pub(super) fn pinned(&self) -> usize {
        self.pinned_in + self.pinned_out
    }

    /// Returns the bytes of memory that a lane of this capacity takes.
    pub(super) fn takes(&self) -> BufferBytes {
        BufferBytes {
            device: self.device,
            pinned: self.pinned(),
            ..BufferBytes::default()
        }
    }

    /// Returns whether everything that needs the capacity `other` fits into a lane of this capacity.
    pub(super) fn holds(&self, other: &Self) -> bool {
        self.device >= other.device
            && self.pinned_in >= other.pinned_in
            && self.pinned_out >= other.pinned_out
            && self.reads_uploads >= other.reads_uploads
            && self.kernel_streams >= other.kernel_streams
    }
}

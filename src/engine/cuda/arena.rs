//! The memory of a lane: three allocations, each divided into regions. Below everything else that
//! knows what a lane takes.

use std::ops::Range;

use crate::MemoryEstimate;

/// The numbers that were tuned, together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Bytes that are staged and scattered at once: long enough that a copy is worth its start,
    /// short enough that a ring of them stays in the cache of the processor.
    pub slab: usize,
    /// Slabs on their way at once, in each direction.
    pub ring: usize,
    /// Decoded bytes of the subchunks that are aggregated at once: a few slabs, so that the way
    /// back begins early.
    pub batch: usize,
    /// The same for chains with a compressor: enough subchunks at once to fill a GPU.
    pub compressed_batch: usize,
    /// Batches on their way at once: one goes up and one comes back, and the bus need not wait for
    /// the kernels of the one between.
    pub batches: usize,
}

impl Tuning {
    pub const DEFAULT: Self = Self {
        slab: 2 << 20,
        ring: 4,
        batch: 8 << 20,
        compressed_batch: 128 << 20,
        batches: 3,
    };
}

/// Alignment of every buffer of a lane, in bytes.
const ALIGNMENT: usize = 256;

/// Alignment of slots, in bytes: the widest load.
pub const SLOT_ALIGNMENT: usize = 16;

/// Slots of this many bytes and more begin with a line of the cache.
pub(super) const LONG_SLOT: usize = 4096;
pub(super) const LINE: usize = 128;

/// Some bytes of one of a lane's allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl Region {
    /// The first `len` bytes, and what is behind them.
    pub(super) fn split_at(self, len: usize) -> (Self, Self) {
        (self.part(0..len), self.part(len..self.len))
    }

    /// A part of the region; the part of it that exists, if it ends beyond.
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
    /// What was divided.
    pub(super) fn capacity(&self) -> Capacity {
        Capacity {
            device: self.device.0,
            pinned_in: self.pinned_in.0,
            pinned_out: self.pinned_out.0,
        }
    }
}

impl Arena {
    /// The next `len` bytes; `None` if they are more than this machine can address.
    pub(super) fn region(&mut self, len: usize) -> Option<Region> {
        let offset = self.0;
        self.0 = offset
            .checked_add(len)?
            .checked_next_multiple_of(ALIGNMENT)
            .filter(|&end| isize::try_from(end).is_ok())?;
        Some(Region { offset, len })
    }
}

/// What a lane's allocations hold, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Capacity {
    pub(super) device: usize,
    pub(super) pinned_in: usize,
    pub(super) pinned_out: usize,
}

impl Capacity {
    /// Page-locked bytes in both directions.
    pub(super) fn pinned(&self) -> usize {
        self.pinned_in + self.pinned_out
    }

    /// What a lane of this capacity takes.
    pub(super) fn takes(&self) -> MemoryEstimate {
        MemoryEstimate {
            device: self.device,
            pinned: self.pinned(),
            ..MemoryEstimate::default()
        }
    }

    /// Whether a lane of this capacity has room for one of `other`.
    pub(super) fn holds(&self, other: &Self) -> bool {
        self.device >= other.device
            && self.pinned_in >= other.pinned_in
            && self.pinned_out >= other.pinned_out
    }
}

//! What a lane takes. The same numbers estimate it, allocate it and divide it into buffers.

use std::fmt;

use super::kernels::{aggregate, crc32c::CHECKSUM};
use crate::engine::{Chain, KnownChain, Stage};
use crate::layout::SubchunkGrid;

/// The numbers that were tuned, together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tuning {
    /// Bytes that are staged and scattered at once: long enough that a copy is worth its start,
    /// short enough that a ring of them stays in the cache of the processor.
    pub(crate) slab: usize,
    /// Slabs on their way at once, in each direction.
    pub(crate) ring: usize,
    /// Decoded bytes of the subchunks that are aggregated at once: a few slabs, so that the way
    /// back begins early.
    pub(crate) batch: usize,
    /// Batches on their way at once: one goes up and one comes back, and the bus need not wait for
    /// the kernels of the one between.
    pub(crate) batches: usize,
}

impl Tuning {
    pub(crate) const DEFAULT: Self = Self {
        slab: 2 << 20,
        ring: 4,
        batch: 8 << 20,
        batches: 3,
    };
}

/// The fewest bytes and slabs that a ring is made smaller to, where the budget asks for it.
const LEAST_SLAB: usize = 64 << 10;
const LEAST_RING: usize = 2;

/// Alignment of every buffer of a lane, in bytes.
const ALIGNMENT: usize = 256;

/// Alignment of slots, in bytes: the widest load.
const SLOT_ALIGNMENT: usize = 16;

/// Slots of this many bytes and more begin with a line of the cache.
const LONG_SLOT: usize = 4096;
const LINE: usize = 128;

/// The most bytes that an element may have: its fill value is repeated to the widest load.
const MOST_ELEMENT_SIZE: usize = 64 << 10;

/// Some bytes of one of a lane's allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) offset: usize,
    pub(super) len: usize,
}

/// Memory that a lane takes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryEstimate {
    /// On the device.
    pub device: usize,
    /// Page-locked, on the host.
    pub pinned: usize,
}

impl fmt::Display for MemoryEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes on the device, {} bytes page-locked",
            self.device, self.pinned
        )
    }
}

/// The buffers of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchRegions {
    /// Device: `u32` per slot: whether it is stored.
    pub(super) stored: Region,
    /// Device: `u32` per checksum of each slot: whether it is wrong.
    pub(super) bad: Region,
    /// Device: `u64` per slot: encoded bytes.
    pub(super) sizes: Region,
    /// Device: `u32` per slot: which subchunk lies there.
    pub(super) source: Region,
    /// Device: `u64` per slot and one more: where encoded subchunks start.
    pub(super) offsets: Region,
    /// Device: what the scan needs.
    pub(super) scratch: Region,
    /// Device: encoded subchunks, one after the other.
    pub(super) dense: Region,
    /// Pinned, to the device: `offsets`, `sizes` and `stored`, when decoding.
    pub(super) table: Region,
    /// Pinned, from the device: `offsets` when encoding, `bad` when decoding.
    pub(super) answer: Region,
}

/// A lane's buffers, for shards of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sizing {
    tuning: Tuning,
    /// The most subchunks in a batch.
    pub(super) batch: usize,
    /// The most elements in a slab.
    pub(super) slab: usize,
    /// Bytes of an encoded subchunk.
    pub(super) encoded: usize,
    /// Bytes from one slot to the next.
    pub(super) slot_stride: usize,
    /// Device: slabs on their way.
    pub(super) slabs: Vec<Region>,
    /// Pinned, to the device.
    pub(super) staging_in: Vec<Region>,
    /// Pinned, from the device.
    pub(super) staging_out: Vec<Region>,
    /// Device: a slot per subchunk of a batch. One batch at a time: only kernels use it, in one
    /// stream.
    pub(super) slots: Region,
    /// Device: the fill value, repeated.
    pub(super) fill: Region,
    /// Pinned, to the device: the same.
    pub(super) fill_staging: Region,
    pub(super) batches: Vec<BatchRegions>,
    /// Bytes of each allocation.
    pub(super) device: usize,
    pub(super) pinned_in: usize,
    pub(super) pinned_out: usize,
}

/// Divides one allocation.
#[derive(Debug, Default)]
struct Arena(usize);

impl Arena {
    /// The next `len` bytes; `None` if they are more than this machine can address.
    fn region(&mut self, len: usize) -> Option<Region> {
        let offset = self.0;
        self.0 = offset
            .checked_add(len)?
            .checked_next_multiple_of(ALIGNMENT)
            .filter(|&end| isize::try_from(end).is_ok())?;
        Some(Region { offset, len })
    }
}

/// The chain of a job, or why a device cannot run it.
pub(crate) fn on_device<'a>(
    grid: &SubchunkGrid,
    chain: &Chain<'a>,
) -> Result<&'a KnownChain, String> {
    let Chain::Known(chain) = *chain else {
        return Err("the inner codecs are not ones that the CUDA engine knows".to_string());
    };
    chain_on_device(grid, chain)?;
    Ok(chain)
}

/// Why a device cannot run `chain`, if it cannot.
pub(crate) fn chain_on_device(grid: &SubchunkGrid, chain: &KnownChain) -> Result<(), String> {
    if let Some(stage) = chain.stages.iter().find(|stage| **stage != Stage::Crc32c) {
        return Err(format!(
            "{} runs on the host only, in this release",
            stage.name()
        ));
    }
    if !matches!(chain.swap, 0 | 1 | 2 | 4 | 8 | 16) {
        return Err(format!(
            "bytes are reversed in groups of {}, the device does 2, 4, 8 and 16",
            chain.swap
        ));
    }
    if grid.element_size() > MOST_ELEMENT_SIZE {
        return Err(format!(
            "an element has {} bytes, the device takes {MOST_ELEMENT_SIZE} at most",
            grid.element_size()
        ));
    }
    Ok(())
}

impl Sizing {
    /// The buffers for shards of `grid` and `chain`, with batches of at most `batch` subchunks.
    ///
    /// # Errors
    /// A device cannot run the chain, or the shard is too large for any: the reason.
    pub(super) fn new(
        grid: &SubchunkGrid,
        chain: &KnownChain,
        batch: usize,
        tuning: Tuning,
    ) -> Result<Self, String> {
        chain_on_device(grid, chain)?;
        Self::divide(grid, chain, batch, tuning).ok_or_else(|| {
            format!(
                "subchunks of {} bytes are too large for a device",
                grid.subchunk_bytes()
            )
        })
    }

    fn divide(
        grid: &SubchunkGrid,
        chain: &KnownChain,
        batch: usize,
        tuning: Tuning,
    ) -> Option<Self> {
        let element = grid.element_size();
        let batch = batch.clamp(1, grid.num_subchunks());
        let encoded = grid
            .subchunk_bytes()
            .checked_add(chain.stages.len().checked_mul(CHECKSUM)?)?;
        let alignment = if encoded < LONG_SLOT {
            SLOT_ALIGNMENT
        } else {
            LINE
        };
        let slot_stride = encoded.checked_next_multiple_of(alignment)?;
        let batch_bytes = grid.subchunk_bytes().checked_mul(batch)?;
        let slab = (tuning.slab.min(batch_bytes) / element).max(1);
        let slab_bytes = slab * element;

        let (mut device, mut pinned_in, mut pinned_out) =
            (Arena::default(), Arena::default(), Arena::default());
        let ring = |arena: &mut Arena| -> Option<Vec<Region>> {
            (0..tuning.ring).map(|_| arena.region(slab_bytes)).collect()
        };
        let slabs = ring(&mut device)?;
        let staging_in = ring(&mut pinned_in)?;
        let staging_out = ring(&mut pinned_out)?;
        let slots = device.region(slot_stride.checked_mul(batch)?)?;
        let fill = device.region(element * SLOT_ALIGNMENT)?;
        let fill_staging = pinned_in.region(fill.len)?;
        let in_flight = tuning
            .batches
            .clamp(1, 8)
            .min(grid.num_subchunks().div_ceil(batch));
        let u32s = batch.checked_mul(4)?;
        let u64s = batch.checked_mul(8)?;
        let batches = (0..in_flight)
            .map(|_| {
                let offsets = device.region(u64s.checked_add(8)?)?;
                Some(BatchRegions {
                    stored: device.region(u32s)?,
                    bad: device.region(u32s.checked_mul(chain.stages.len())?)?,
                    sizes: device.region(u64s)?,
                    source: device.region(u32s)?,
                    offsets,
                    scratch: device.region(aggregate::scan_scratch_bytes(batch))?,
                    dense: device.region(encoded.checked_mul(batch)?)?,
                    table: pinned_in.region(u64s.checked_mul(3)?)?,
                    answer: pinned_out
                        .region(offsets.len.max(u32s.checked_mul(chain.stages.len())?))?,
                })
            })
            .collect::<Option<Vec<_>>>()?;
        Some(Self {
            tuning,
            batch,
            slab,
            encoded,
            slot_stride,
            slabs,
            slots,
            staging_in,
            staging_out,
            fill,
            fill_staging,
            batches,
            device: device.0,
            pinned_in: pinned_in.0,
            pinned_out: pinned_out.0,
        })
    }

    /// The subchunks in a batch that `tuning` asks for.
    fn tuned_batch(grid: &SubchunkGrid, tuning: Tuning) -> usize {
        (tuning.batch / grid.subchunk_bytes()).clamp(1, grid.num_subchunks())
    }

    /// The largest batches and slabs, from what `tuning` asks for down, whose lane is within `most`.
    ///
    /// # Errors
    /// As for [`new`](Self::new), or that the smallest lane takes more than `most`.
    pub(super) fn within(
        grid: &SubchunkGrid,
        chain: &KnownChain,
        most: MemoryEstimate,
        tuning: Tuning,
    ) -> Result<Self, String> {
        let mut sizing = Self::new(grid, chain, Self::tuned_batch(grid, tuning), tuning)?;
        loop {
            let takes = sizing.estimate();
            if takes.device <= most.device && takes.pinned <= most.pinned {
                return Ok(sizing);
            }
            let Some(smaller) = sizing.smaller(grid, chain)? else {
                return Err(format!(
                    "a lane for one subchunk at a time takes {takes}, and the budget is {most}: give more by `Options::with_device_memory` or `Options::with_pinned_memory`, or use smaller subchunks"
                ));
            };
            sizing = smaller;
        }
    }

    /// A lane that takes less, for shards of the same kind: half the batch, or when that is one
    /// subchunk, one batch at a time, then half the slabs and half the ring. `None` if this is the
    /// smallest.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub(super) fn smaller(
        &self,
        grid: &SubchunkGrid,
        chain: &KnownChain,
    ) -> Result<Option<Self>, String> {
        let (mut batch, mut tuning) = (self.batch, self.tuning);
        if batch > 1 {
            batch /= 2;
        } else if self.batches.len() > 1 {
            tuning.batches = 1;
        } else if tuning.slab > LEAST_SLAB {
            tuning.slab = (tuning.slab / 2).max(LEAST_SLAB);
        } else if tuning.ring > LEAST_RING {
            tuning.ring = LEAST_RING;
        } else {
            return Ok(None);
        }
        Self::new(grid, chain, batch, tuning).map(Some)
    }

    /// What the lane takes.
    pub(super) fn estimate(&self) -> MemoryEstimate {
        MemoryEstimate {
            device: self.device,
            pinned: self.pinned_in + self.pinned_out,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_made_smaller_until_it_does() {
        // Subchunks of 4 MiB.
        let grid = SubchunkGrid::new(&[512, 128, 256], &[64, 128, 256], 2).expect("divides");
        let chain = KnownChain {
            order: vec![0, 1, 2],
            swap: 1,
            stages: vec![],
        };
        let all = MemoryEstimate {
            device: usize::MAX,
            pinned: usize::MAX,
        };
        let mut sizing = Sizing::within(&grid, &chain, all, Tuning::DEFAULT).expect("fits");
        let mut lanes = vec![sizing.estimate()];
        while let Some(smaller) = sizing.smaller(&grid, &chain).expect("as before") {
            sizing = smaller;
            lanes.push(sizing.estimate());
        }
        assert!(lanes.is_sorted_by(|a, b| a.device >= b.device && a.pinned >= b.pinned));
        let least = sizing.estimate();
        assert!(least.pinned < 512 << 10, "{least}");
        // One subchunk, in its slot and dense, and two slabs.
        assert!(least.device < (8 << 20) + (512 << 10), "{least}");
        for most in lanes {
            let fits = Sizing::within(&grid, &chain, most, Tuning::DEFAULT).expect("fits");
            assert!(fits.device <= most.device && fits.estimate().pinned <= most.pinned);
        }
        let less = MemoryEstimate {
            pinned: least.pinned - 1,
            ..all
        };
        let reason = Sizing::within(&grid, &chain, less, Tuning::DEFAULT).expect_err("too little");
        assert!(reason.contains(&(least.pinned - 1).to_string()), "{reason}");
    }
}

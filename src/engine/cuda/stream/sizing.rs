//! What a stream takes. The same numbers estimate it, allocate it and divide it into buffers.

use super::padding::Padding;
use crate::MemoryEstimate;
use crate::engine::cuda::compression::Buffers;
use crate::engine::cuda::kernels::aggregate;
use crate::engine::cuda::lane::Capacity;
use crate::engine::cuda::session::Aggregation;
use crate::engine::cuda::sizing::{Arena, Region, SLOT_ALIGNMENT, ShardKind, Tuning};
use crate::engine::host::encoded_bound;
use crate::engine::stream::StreamJob;

/// The most batches under way at once: one goes up, one is in the kernels and one comes back.
const DEPTH: usize = 3;

/// A slab of a stream is this many of a shard's: it is in pinned memory already, so that nothing is
/// won by small ones but an early begin.
const SLABS: usize = 8;

/// The buffers of a batch under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flight {
    /// Device: `u32` per subchunk: whether the compressor failed on it.
    pub(super) failed: Region,
    /// Device: `u64` per place and one more: where encoded subchunks start.
    pub(super) offsets: Region,
    /// Device: encoded subchunks, one after the other.
    pub(super) dense: Region,
    /// Pinned, from the device: `offsets` and `failed`.
    pub(super) answer: Region,
}

/// What compresses, and where frames of a whole batch lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compressing {
    /// For `most` subchunks at once.
    pub(super) buffers: Buffers,
    pub(super) most: usize,
    frames: Region,
    sizes: Region,
    framed: Region,
}

impl Compressing {
    /// The buffers, with room for frames of the subchunks from `first` on.
    pub(super) fn part(&self, first: usize, count: usize) -> Buffers {
        let end = first + count;
        let stride = self.buffers.frame_stride;
        self.buffers.with_frames(
            self.frames.part(first * stride..end * stride),
            self.sizes.part(first * 8..end * 8),
            self.framed.part(first * 4..end * 4),
        )
    }

    /// The frames of all subchunks, their sizes, and whether there are any.
    pub(super) fn all(&self) -> [Region; 3] {
        [self.frames, self.sizes, self.framed]
    }
}

/// A stream's buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StreamSizing {
    pub(super) padding: Padding,
    /// The most elements in a slab.
    pub(super) slab: usize,
    /// Bytes of an encoded subchunk; at most, if there is a compressor.
    pub(super) encoded: usize,
    pub(super) compressing: Option<Compressing>,
    /// Bytes from one slot to the next.
    pub(super) slot_stride: usize,
    /// Pinned, to the device: the slices of a batch, padded.
    pub(super) inputs: Vec<Region>,
    /// Device: the same, for each input.
    pub(super) raws: Vec<Region>,
    /// Device: a slot per subchunk of a batch. One batch at a time, as all that only kernels use,
    /// in one stream.
    pub(super) slots: Region,
    /// Device: `u32` per subchunk: whether it is stored.
    pub(super) stored: Region,
    /// Device: `u64` per place: encoded bytes.
    sizes: Region,
    /// Device: `u32` per place: which subchunk lies there.
    source: Region,
    /// Device: what the scan needs.
    scratch: Region,
    /// Device: the fill value, repeated; and pinned, to the device.
    pub(super) fill: Region,
    pub(super) fill_staging: Region,
    pub(super) flights: Vec<Flight>,
    /// Pinned, from the device: encoded batches.
    pub(super) outputs: Vec<Region>,
    pub(super) capacity: Capacity,
}

impl StreamSizing {
    /// The buffers for `job`, whose chain and subchunks are those of `kind`.
    ///
    /// # Errors
    /// A batch is too large for any device, or the compressor's library cannot take it: the reason.
    pub(super) fn new(kind: &ShardKind, job: &StreamJob, tuning: Tuning) -> Result<Self, String> {
        let permutation = (job.grid.batch_permutation(job.epochs)).map_err(|e| e.to_string())?;
        Self::divide(kind, job, tuning, permutation.padded_slots())?.ok_or_else(|| {
            format!(
                "batches of {} epochs, with {} subchunks of {} bytes each, are too large for a device: use fewer",
                job.epochs,
                job.grid.subchunks_per_epoch(),
                job.grid.shard().subchunk_bytes()
            )
        })
    }

    /// How many subchunks of a batch are compressed at once.
    pub(super) fn compressed_at_once(job: &StreamJob, tuning: Tuning) -> usize {
        let all = job.grid.subchunks_per_epoch().saturating_mul(job.epochs);
        let most = tuning.compressed_batch / job.grid.shard().subchunk_bytes().max(1);
        let rounds = all.div_ceil(most.max(1)).max(1);
        all.div_ceil(rounds).max(1)
    }

    /// `None` if they are more than this machine can address.
    fn divide(
        kind: &ShardKind,
        job: &StreamJob,
        tuning: Tuning,
        places: usize,
    ) -> Result<Option<Self>, String> {
        let compressor = match &kind.compressor {
            Some(prepared) => {
                let most = Self::compressed_at_once(job, tuning);
                Some((&prepared.compression, *prepared.requirements(most)?, most))
            }
            None => None,
        };
        Ok((|| {
            let grid = &kind.grid;
            let (count, parts) = job.grid.batch_counts(job.epochs)?;
            let element = grid.element_size();
            let padded = grid.subchunk_bytes().checked_mul(count)?;
            let (in_slot, slot_stride) = kind.slot()?;
            let slab = (tuning.slab.checked_mul(SLABS)?.min(padded) / element).max(1);
            let (mut device, mut pinned_in, mut pinned_out) =
                (Arena::default(), Arena::default(), Arena::default());
            let u32s = count.checked_mul(4)?;
            let slots = device.region(slot_stride.checked_mul(count)?)?;
            let compressing = match compressor {
                Some((compression, requirements, most)) => {
                    let buffers =
                        Buffers::new(&mut device, compression, requirements, most, slot_stride)?;
                    Some(Compressing {
                        buffers,
                        most,
                        frames: device.region(buffers.frame_stride.checked_mul(count)?)?,
                        sizes: device.region(count.checked_mul(8)?)?,
                        framed: device.region(u32s)?,
                    })
                }
                None => None,
            };
            let encoded = compressing.map_or(in_slot, |compressing| compressing.buffers.encoded);
            let fill = device.region(element * SLOT_ALIGNMENT)?;
            let fill_staging = pinned_in.region(fill.len)?;
            let failed = compressing.map_or(0, |_| u32s);
            let inputs = job.inputs.max(1);
            let flights = (0..inputs.min(DEPTH))
                .map(|_| {
                    let offsets = device.region(places.checked_add(1)?.checked_mul(8)?)?;
                    Some(Flight {
                        failed: device.region(failed)?,
                        offsets,
                        dense: device.region(encoded.checked_mul(count)?)?,
                        answer: pinned_out.region(offsets.len.checked_add(failed)?)?,
                    })
                })
                .collect::<Option<_>>()?;
            // What the host encodes instead may be longer.
            let room = job.room.head.checked_add(job.room.tail)?;
            let output = encoded_bound(&kind.chain, grid.subchunk_bytes())?
                .max(encoded)
                .checked_mul(count)?
                .checked_add(room.checked_mul(parts)?)?;
            Some(Self {
                padding: Padding::new(&job.grid),
                slab,
                encoded,
                compressing,
                slot_stride,
                inputs: (0..inputs)
                    .map(|_| pinned_in.region(padded))
                    .collect::<Option<_>>()?,
                raws: (0..inputs)
                    .map(|_| device.region(padded))
                    .collect::<Option<_>>()?,
                slots,
                stored: device.region(u32s)?,
                sizes: device.region(places.checked_mul(8)?)?,
                source: device.region(places.checked_mul(4)?)?,
                scratch: device.region(aggregate::scan_scratch_bytes(places))?,
                fill,
                fill_staging,
                flights,
                outputs: (0..job.outputs.max(1))
                    .map(|_| pinned_out.region(output))
                    .collect::<Option<_>>()?,
                capacity: Capacity {
                    device: device.len(),
                    pinned_in: pinned_in.len(),
                    pinned_out: pinned_out.len(),
                },
            })
        })())
    }

    /// Where a batch of `subchunks` in `places` is aggregated.
    pub(super) fn aggregation(
        &self,
        flight: &Flight,
        subchunks: usize,
        places: usize,
    ) -> Aggregation {
        Aggregation {
            sizes: self.sizes,
            source: self.source,
            offsets: flight.offsets.part(0..(places + 1) * 8),
            scratch: self.scratch,
            dense: flight.dense.part(0..self.encoded * subchunks),
        }
    }

    /// What the stream takes.
    pub(super) fn estimate(&self) -> MemoryEstimate {
        self.capacity.takes()
    }

    /// Whether a budget is enough.
    ///
    /// # Errors
    /// It is not: the numbers, and what would help.
    pub(super) fn check(&self, job: &StreamJob, budget: MemoryEstimate) -> Result<(), String> {
        let takes = self.capacity.takes();
        if takes.device <= budget.device && takes.pinned <= budget.pinned {
            return Ok(());
        }
        Err(format!(
            "a stream in batches of {} epochs takes {takes}, and the budget is {budget}: give more by `Options::with_device_memory` or `Options::with_pinned_memory`, or use fewer epochs",
            job.epochs
        ))
    }
}

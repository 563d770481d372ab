//! The memory of a stream. The same numbers estimate it, allocate it and divide it into buffers.

use super::padding::Padding;
use super::reduction::Reduction;
use crate::contract::BufferBytes;
use crate::contract::stream::StreamJob;
use crate::cuda::arena::{Arena, Arenas, Capacity, Region, Tuning};
use crate::cuda::sizing::{BatchRegions, KernelRegions, ShardKind, Sizing};
use crate::subchunk::stages::encoded_bound;

/// The most batches in flight at once: one is copied to the device, one is in the kernels and one is copied
/// back.
const DEPTH: usize = 3;

/// The length of a stream's slab, in slabs of a shard. The bytes of the slices are in pinned memory already,
/// so smaller slabs would only let the kernels begin earlier.
const SLABS: usize = 8;

/// The buffers of a stream.
#[derive(Clone, Debug)]
pub(super) struct StreamSizing {
    /// The buffers that kernels use, and the buffers of each batch in flight.
    pub(super) lane: Sizing,
    pub(super) padding: Padding,
    /// The plan by which the device makes slices from those of the level above, and room for one slice.
    pub(super) reduction: Option<Reduction>,
    /// In pinned memory, to the device: the padded slices of a batch, for the first input. Each other input
    /// has an allocation of the same length to itself.
    pub(super) input: Region,
    /// In device memory: the padded slices of each input, at least one.
    pub(super) raws: Vec<Region>,
    /// In pinned memory, from the device: an encoded batch, for each output.
    pub(super) outputs: Vec<Region>,
    /// The most bytes of a part that is copied to the host together with other parts.
    pub(super) small_part: usize,
}

/// Returns the number of CUDA streams that run kernels for `job`: at most the number of batches in flight.
fn kernel_streams(job: &StreamJob, tuning: Tuning) -> usize {
    tuning.kernel_streams().min(job.inputs.clamp(1, DEPTH))
}

impl StreamSizing {
    /// Returns the buffers for `job`, whose chain and subchunks are those of `kind`.
    ///
    /// # Errors
    /// A batch is too large for any device, or nvCOMP cannot take the batch. The error has the reason.
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

    /// Returns the number of subchunks of a batch that are compressed at once.
    pub(super) fn compressed_at_once(
        job: &StreamJob,
        multiprocessors: usize,
        tuning: Tuning,
    ) -> usize {
        let all = job.grid.subchunks_per_epoch().saturating_mul(job.epochs);
        let tuning = Tuning {
            streams: kernel_streams(job, tuning),
            ..tuning
        };
        let most = Sizing::compressed_at_once(job.grid.shard(), multiprocessors, tuning);
        let rounds = all.div_ceil(most.max(1)).max(1);
        all.div_ceil(rounds).max(1)
    }

    /// Returns the buffers like [`new`](Self::new), for batches of `places` places. Returns `None`
    /// if the buffers are more than this machine can address.
    fn divide(
        kind: &ShardKind,
        job: &StreamJob,
        tuning: Tuning,
        places: usize,
    ) -> Result<Option<Self>, String> {
        let compressor = match &kind.compressor {
            Some(prepared) => {
                let most = kind.most;
                Some((&prepared.compression, *prepared.requirements(most)?, most))
            }
            None => None,
        };
        Ok((|| {
            let grid = &kind.grid;
            let (count, parts) = job.grid.batch_counts(job.epochs)?;
            let padded = grid.subchunk_bytes().checked_mul(count)?;
            let slab = tuning.slab.checked_mul(SLABS)?.min(padded) / grid.element_size();
            let mut arenas = Arenas::default();
            let inputs = job.inputs.max(1);
            let in_flight = inputs.min(DEPTH);
            let kernel_streams = kernel_streams(job, tuning);
            let mut lane = Sizing::of_kernels(
                kind,
                count,
                slab.max(1),
                compressor,
                kernel_streams,
                &mut arenas,
            )?;
            let kernels = (0..kernel_streams)
                .map(|_| KernelRegions::new(count, places, &mut arenas.device))
                .collect::<Option<Vec<_>>>()?;
            for number in 0..in_flight {
                let workspace = number % kernel_streams;
                let regions = kernels[workspace];
                let regions = lane.batch_regions(kind, regions, (count, places), 0, &mut arenas)?;
                lane.batches.push(BatchRegions {
                    workspace,
                    ..regions
                });
            }
            // A subchunk that the host encodes in place of the device may be longer.
            let room = job.room.head.checked_add(job.room.tail)?;
            let output = encoded_bound(&kind.chain, grid.subchunk_bytes())?
                .max(lane.encoded)
                .checked_mul(count)?
                .checked_add(room.checked_mul(parts)?)?;
            let regions = |arena: &mut Arena, number: usize, len| -> Option<Vec<Region>> {
                (0..number).map(|_| arena.region(len)).collect()
            };
            let input = arenas.pinned_in.region(padded)?;
            padded.checked_mul(inputs)?;
            let raws = regions(&mut arenas.device, inputs, padded)?;
            let outputs = regions(&mut arenas.pinned_out, job.outputs.max(1), output)?;
            let reduction = match Reduction::new(job) {
                Some(reduction) => Some(reduction.reserve(&mut arenas)?),
                None => None,
            };
            lane.capacity = Capacity {
                // The host encodes a batch that the device failed to encode.
                reads_uploads: true,
                kernel_streams,
                ..arenas.capacity()
            };
            Some(Self {
                lane,
                padding: Padding::new(&job.grid),
                reduction,
                input,
                raws,
                outputs,
                small_part: tuning.small_part,
            })
        })())
    }

    /// Returns the bytes of memory that the stream takes. On the host, the slices of the level above and the
    /// slice that is made of them, for the comparison with the device's.
    pub(super) fn estimate(&self) -> BufferBytes {
        let on_host = |reduction: &Reduction| {
            let above = reduction.from.above.slice_bytes();
            let slices = reduction.from.slices.saturating_add(1);
            let below = reduction.from.reducer.reduced_bytes();
            above.saturating_mul(slices).saturating_add(below)
        };
        let lane = self.lane.capacity.takes();
        let later = self
            .input
            .len
            .saturating_mul(self.raws.len().saturating_sub(1));
        BufferBytes {
            host: self.reduction.as_ref().map_or(0, on_host),
            pinned: lane.pinned.saturating_add(later),
            ..lane
        }
    }

    /// Checks that `budget` is enough for the stream.
    ///
    /// # Errors
    /// The budget is too small. The reason has the numbers, and the remedy.
    pub(super) fn check(&self, job: &StreamJob, budget: BufferBytes) -> Result<(), String> {
        let takes = self.estimate();
        if takes.device <= budget.device && takes.pinned <= budget.pinned {
            return Ok(());
        }
        Err(format!(
            "a stream in batches of {} epochs takes {takes}, and the budget is {budget}: give more by `Options::with_device_memory` or `Options::with_pinned_memory`, or use fewer epochs",
            job.epochs
        ))
    }
}

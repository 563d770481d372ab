//! The memory of a lane. The same numbers estimate it, allocate it and divide it into buffers.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;

use super::arena::{Arena, Arenas, Capacity, LINE, LONG_SLOT, Region, SLOT_ALIGNMENT, Tuning};
use super::check_progress::CheckProgress;
use super::compressed_frame_parts::CompressedFrameLayout;
use super::compression::{Buffers, Compression, Prepared};
use super::decompression;
use super::kernels::aggregate;
use super::kernels::crc32c::CHECKSUM;
use super::kernels::place;
use super::kernels::scatter::SlabScatter;
use super::nvcomp::Requirements;
use super::recent_answers::RecentAnswers;
use crate::contract::BufferBytes;
use crate::contract::{Chain, KnownChain};
use crate::cuda::HighestLevels;
use crate::layout;
use crate::layout::{Batch, Lift, LiftBatch, LiftSlab, Slab, SubchunkGrid};

/// The least sizes to which the buffers of a lane (the memory of one shard in flight on a device) shrink to fit
/// its budget: the bytes of a slab, which is a part of a batch that is copied at once, and the number of slabs
/// in a ring of such buffers.
const LEAST_SLAB: usize = 64 << 10;
const LEAST_RING: usize = 2;

/// The least number of boxes for which a lane for reading has a table. A batch of more is placed in rounds.
const LEAST_BOXES: usize = 64;

/// The buffers of one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BatchRegions {
    /// The number of the [`Workspace`] in which the batch's kernels run.
    pub(super) workspace: usize,
    /// In device memory, a `u32` per slot: whether the subchunk in the slot is stored.
    pub(super) stored: Region,
    /// In device memory, a `u32` per slot: the outcome of the subchunk, if there is a compressor.
    pub(super) outcomes: Region,
    /// In device memory, a `u32` per checksum of each slot: the verdict on the checksum.
    pub(super) verdicts: Region,
    /// In device memory, a `u64` per place: the number of encoded bytes of the subchunk in this place; when
    /// decoding, a `u64` per slot.
    pub(super) sizes: Region,
    /// In device memory, a `u32` per place in the order of the shards: the number of the subchunk in this
    /// place.
    pub(super) source: Region,
    /// In device memory, a `u64` per place and one more: the offset at which the encoded subchunk begins.
    pub(super) offsets: Region,
    /// In device memory: the scratch memory of the scan.
    pub(super) scratch: Region,
    /// In device memory: the encoded subchunks, one after the other.
    pub(super) dense: Region,
    /// In pinned memory, to the device: `offsets`, `sizes` and `stored`, when decoding.
    pub(super) table: Region,
    /// In pinned memory, from the device: `offsets` and `outcomes` when encoding, `verdicts` when decoding.
    pub(super) answer: Region,
    /// In device memory: the tables that a decompressor reads, and its results.
    pub(super) tables: Region,
    pub(super) results: Region,
    /// In pinned memory, to the device: a copy of `tables`.
    pub(super) table_of_chunks: Region,
    /// In pinned memory, from the device: a copy of `results`.
    pub(super) answer_of_chunks: Region,
    /// In device memory, and in pinned memory: the table of the boxes to place, in a lane for reading.
    pub(super) boxes: Region,
    pub(super) table_of_boxes: Region,
}

/// The buffers that only kernels use, in one stream. All batches whose kernels run in that stream share these
/// buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Workspace {
    /// In device memory: a slot for each subchunk of a batch.
    pub(super) slots: Region,
    /// The buffers of the compressor.
    pub(super) compression: Option<Buffers>,
    /// The buffers of the decompressor.
    pub(super) decompression: Option<decompression::Buffers>,
}

/// The regions that only the kernels of a batch use. Batches may share these regions if their kernels run in
/// one stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelRegions {
    stored: Region,
    sizes: Region,
    source: Region,
    scratch: Region,
}

impl KernelRegions {
    /// Returns the regions for batches of `subchunks` subchunks and `places` places; `None` if they are more
    /// than this machine can address.
    pub(super) fn new(subchunks: usize, places: usize, device: &mut Arena) -> Option<Self> {
        Some(Self {
            stored: device.region(subchunks.checked_mul(4)?)?,
            sizes: device.region(places.checked_mul(8)?)?,
            source: device.region(places.checked_mul(4)?)?,
            scratch: device.region(aggregate::scan_scratch_bytes(places))?,
        })
    }
}

/// A lane's buffers, for shards of one kind, or for the batches of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizing {
    pub(super) tuning: Tuning,
    /// The most subchunks in a batch.
    pub batch: usize,
    /// The most elements in a slab.
    pub(super) slab: usize,
    /// The number of bytes of an encoded subchunk; an upper bound if the chain has a compressor.
    pub(super) encoded: usize,
    /// The number of bytes from the begin of one slot to the begin of the next.
    pub slot_stride: usize,
    /// The buffers of each stream of kernels.
    pub(super) workspaces: Vec<Workspace>,
    /// The ring of slabs in device memory.
    pub(super) slabs: Vec<Region>,
    /// The ring of pinned memory for copies to the device.
    pub(super) staging_in: Vec<Region>,
    /// The ring of pinned memory for copies from the device.
    pub(super) staging_out: Vec<Region>,
    /// The repeated fill value, in device memory.
    pub(super) fill: Region,
    /// The repeated fill value, in pinned memory, from which it is copied to the device.
    pub(super) fill_staging: Region,
    pub(super) batches: Vec<BatchRegions>,
    /// The number of bytes of each allocation, and the number of streams of kernels.
    pub(super) capacity: Capacity,
}

/// The compressors that may run on devices, and the file of nvCOMP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compressors {
    pub levels: HighestLevels,
    /// The file of nvCOMP; `None` to search for one.
    pub nvcomp: Option<PathBuf>,
    /// Whether shards with a compressor are also decoded on devices.
    pub decode: bool,
}

/// The inputs from which a kind of shards is prepared: the key of the cache.
#[derive(Debug)]
pub(super) struct KindQuestion {
    /// The ordinals of the devices that may be asked; `None` for all devices.
    pub(super) devices: Option<Vec<usize>>,
    pub(super) compressors: Compressors,
    pub(super) grid: SubchunkGrid,
    pub(super) chain: KnownChain,
    /// The most subchunks to compress or decompress at once.
    pub(super) most: usize,
    /// The layout of the frames to decode, which the chain does not determine; `None` when encoding.
    pub(super) layout: Option<CompressedFrameLayout>,
    pub(super) reads: bool,
}

/// A kind of shards, with everything on which the size of a lane depends.
#[derive(Debug)]
pub struct ShardKind {
    pub(super) grid: SubchunkGrid,
    pub(super) chain: KnownChain,
    /// The chain's compressor; `None` when decoding, or if the chain has no compressor.
    pub compressor: Option<Prepared>,
    /// The chain's decompressor; `None` when encoding, or if the chain has no compressor.
    pub(super) decompressor: Option<decompression::Prepared>,
    /// The most subchunks of a batch for which nvCOMP was asked about its requirements.
    pub(super) most: usize,
    /// Whether lanes read subchunks into device memory: batches have subchunks of any shards, and nothing but
    /// answers and comparisons is copied back.
    pub(super) reads: bool,
    /// How far the results of devices were compared with those of the host.
    pub(super) checks: CheckProgress,
    /// A cache of the largest lanes within given budgets.
    sizings: RecentAnswers<(BufferBytes, Tuning), Result<Arc<Sizing>, String>>,
    /// A cache of the slabs of batches.
    slabs: RecentAnswers<SlabsQuestion, Arc<[PlannedSlab]>>,
}

/// A slab, and the plan by which a device moves it between its dense form and the slots.
#[derive(Debug)]
pub(super) struct PlannedSlab {
    pub(super) slab: Slab,
    pub(super) scatter: SlabScatter,
}

/// The inputs from which the slabs of a batch are planned: the key of the cache.
#[derive(Debug)]
struct SlabsQuestion {
    /// The number of subchunks along each axis of the batch.
    counts: Vec<usize>,
    /// The most elements of a slab.
    most: usize,
    slot_stride: usize,
    fill_value: Vec<u8>,
}

impl ShardKind {
    /// Returns a kind without a compressor and without a decompressor.
    pub(super) fn new(grid: SubchunkGrid, chain: KnownChain) -> Self {
        Self {
            grid,
            chain,
            compressor: None,
            decompressor: None,
            most: usize::MAX,
            reads: false,
            checks: CheckProgress::default(),
            sizings: RecentAnswers::default(),
            slabs: RecentAnswers::default(),
        }
    }

    /// Divides a batch into slabs of at most `most` elements, and plans their scatter. The result is cached.
    ///
    /// # Errors
    /// A device cannot scatter a slab. The error has the reason.
    pub(super) fn slabs(
        &self,
        fill_value: &[u8],
        batch: &Batch,
        (most, slot_stride): (usize, usize),
    ) -> Result<Arc<[PlannedSlab]>, String> {
        self.slabs.get_or(
            |known| {
                known.counts == batch.counts
                    && (known.most, known.slot_stride) == (most, slot_stride)
                    && known.fill_value == fill_value
            },
            || {
                let question = SlabsQuestion {
                    counts: batch.counts.clone(),
                    most,
                    slot_stride,
                    fill_value: fill_value.to_vec(),
                };
                let of_batch = LiftBatch {
                    counts: &batch.counts,
                    subchunk: self.grid.subchunk(),
                    element_size: self.grid.element_size(),
                    order: &self.chain.order,
                    slot_stride,
                };
                let plan = |slab: Slab| {
                    let of_slab = LiftSlab {
                        start: &slab.start,
                        shape: &slab.shape,
                    };
                    let lift = Lift::new(&of_batch, &of_slab).map_err(|error| error.to_string())?;
                    let scatter = SlabScatter::new(&lift, self.chain.swap, fill_value)
                        .map_err(|error| error.to_string())?;
                    Ok(PlannedSlab { slab, scatter })
                };
                let slabs = layout::slabs(&self.grid, batch, most).into_iter().map(plan);
                Ok((question, slabs.collect::<Result<_, String>>()?))
            },
        )
    }

    /// Returns the result of [`Sizing::within`], from a cache if it is there.
    pub(super) fn sizing(&self, most: BufferBytes, tuning: Tuning) -> Result<Arc<Sizing>, String> {
        let asked = (most, tuning);
        let found = self.sizings.get_or::<Infallible>(
            |known| *known == asked,
            || Ok((asked, Sizing::within(self, most, tuning).map(Arc::new))),
        );
        match found {
            Ok(sizing) => sizing,
        }
    }

    /// Checks that the buffers have the sizes that nvCOMP requires on the device with the number `device`,
    /// whose context is current on this thread.
    ///
    /// # Errors
    /// The buffers are too small. The reason has the numbers.
    pub(super) fn check(&self, sizing: &Sizing, device: usize) -> Result<(), String> {
        // All workspaces have buffers of the same sizes.
        let workspace = sizing.workspaces.first().copied().unwrap_or_default();
        if let (Some(prepared), Some(buffers)) = (&self.compressor, &workspace.compression) {
            prepared.check(buffers, device)?;
        }
        if let (Some(prepared), Some(buffers)) = (&self.decompressor, &workspace.decompression) {
            prepared.check(buffers, device)?;
        }
        Ok(())
    }

    /// Returns whether the kind has a compressor or a decompressor.
    fn compresses(&self) -> bool {
        self.compressor.is_some() || self.decompressor.is_some()
    }

    /// Returns the number of bytes that a slot holds, and the number of bytes from one slot to the next;
    /// `None` if the numbers are more than this machine can address.
    pub(super) fn slot(&self) -> Option<(usize, usize)> {
        let checksums = match (&self.compressor, &self.decompressor) {
            (Some(prepared), _) => prepared.compression.before,
            (None, Some(prepared)) => prepared.layout.before,
            (None, None) => self.chain.stages.len(),
        };
        let in_slot = self
            .grid
            .subchunk_bytes()
            .checked_add(checksums.checked_mul(CHECKSUM)?)?;
        let for_kernels = if in_slot >= LONG_SLOT {
            LINE
        } else {
            SLOT_ALIGNMENT
        };
        let alignment = match &self.compressor {
            Some(prepared) => prepared.slot_alignment().max(for_kernels),
            None => for_kernels,
        };
        let stride = match &self.decompressor {
            Some(prepared) => prepared.slot_stride()?,
            None => in_slot.checked_next_multiple_of(alignment)?,
        };
        Some((in_slot, stride))
    }
}

/// Returns the chain of a job. The error is the reason why a device cannot run the chain.
pub(super) fn known<'a>(chain: &Chain<'a>) -> Result<&'a KnownChain, String> {
    match *chain {
        Chain::Known(chain) => Ok(chain),
        Chain::Foreign(_) => {
            Err("the inner codecs are not ones that the CUDA engine knows".to_string())
        }
    }
}

impl Sizing {
    /// Returns the buffers for shards of a kind, with batches of at most `batch` subchunks.
    ///
    /// # Errors
    /// The shard is too large for any device, or nvCOMP cannot take the batch. The error has the reason.
    pub(super) fn new(kind: &ShardKind, batch: usize, tuning: Tuning) -> Result<Self, String> {
        let most = if kind.reads {
            usize::MAX
        } else {
            kind.grid.num_subchunks().max(1)
        };
        let batch = batch.clamp(1, most);
        let compressor = match &kind.compressor {
            Some(prepared) => Some((&prepared.compression, *prepared.requirements(batch)?)),
            None => None,
        };
        let decompressor = match &kind.decompressor {
            Some(prepared) => Some((prepared, *prepared.requirements(batch)?)),
            None => None,
        };
        Self::divide(kind, batch, tuning, compressor, decompressor).ok_or_else(|| {
            format!(
                "subchunks of {} bytes are too large for a device",
                kind.grid.subchunk_bytes()
            )
        })
    }

    fn divide(
        kind: &ShardKind,
        batch: usize,
        tuning: Tuning,
        compressor: Option<(&Compression, Requirements)>,
        decompressor: Option<(&decompression::Prepared, Requirements)>,
    ) -> Option<Self> {
        let (grid, chain) = (&kind.grid, &kind.chain);
        let batch_bytes = grid.subchunk_bytes().checked_mul(batch)?;
        let mut arenas = Arenas::default();
        let slab = (tuning.slab.min(batch_bytes) / grid.element_size()).max(1);
        let compressor = compressor.map(|(compression, asked)| (compression, asked, batch));
        let num_batches = if kind.reads {
            Tuning::READ_BATCHES
        } else {
            grid.num_subchunks().div_ceil(batch).max(1)
        };
        let kernel_streams = tuning.kernel_streams().min(num_batches);
        let mut sizing =
            Self::of_kernels(kind, batch, slab, compressor, kernel_streams, &mut arenas)?;
        sizing.tuning = tuning;
        let slab_bytes = slab * grid.element_size();
        let ring = |arena: &mut Arena| -> Option<Vec<Region>> {
            (0..tuning.ring.max(LEAST_RING))
                .map(|_| arena.region(slab_bytes))
                .collect()
        };
        if !kind.reads {
            sizing.slabs = ring(&mut arenas.device)?;
        }
        sizing.staging_in = ring(&mut arenas.pinned_in)?;
        sizing.staging_out = if kind.reads {
            let comparison = slab_bytes.min(LEAST_SLAB);
            let regions = (0..LEAST_RING).map(|_| arenas.pinned_out.region(comparison));
            regions.collect::<Option<_>>()?
        } else {
            ring(&mut arenas.pinned_out)?
        };
        let boxes = if kind.reads {
            let rank = grid.subchunk().len();
            place::table_bytes(batch.checked_mul(2)?.max(LEAST_BOXES), rank)?
        } else {
            0
        };
        let (mut tables, mut results) = (0, 0);
        if let Some((prepared, requirements)) = decompressor {
            sizing.encoded = prepared.layout.encoded;
            for workspace in &mut sizing.workspaces {
                let buffers = decompression::Buffers::new(
                    &mut arenas.device,
                    prepared.layout,
                    requirements,
                    batch,
                    sizing.slot_stride,
                )?;
                (tables, results) = (buffers.tables, buffers.results);
                workspace.decompression = Some(buffers);
            }
        }
        // The buffers of a batch are used again in the same stream of kernels, so each stream of kernels has
        // the same number of batches.
        let in_flight = tuning
            .batches
            .clamp(1, 8)
            .min(num_batches)
            .max(kernel_streams);
        let in_flight = in_flight / kernel_streams * kernel_streams;
        let u64s = batch.checked_mul(8)?;
        let verdicts = batch.checked_mul(4)?.checked_mul(chain.stages.len())?;
        for number in 0..in_flight {
            let regions = KernelRegions::new(batch, batch, &mut arenas.device)?;
            let regions =
                sizing.batch_regions(kind, regions, (batch, batch), verdicts, &mut arenas)?;
            sizing.batches.push(BatchRegions {
                workspace: number % kernel_streams,
                verdicts: arenas.device.region(verdicts)?,
                table: arenas.pinned_in.region(u64s.checked_mul(3)?)?,
                tables: arenas.device.region(tables)?,
                results: arenas.device.region(results)?,
                table_of_chunks: arenas.pinned_in.region(tables)?,
                answer_of_chunks: arenas.pinned_out.region(results)?,
                boxes: arenas.device.region(boxes)?,
                table_of_boxes: arenas.pinned_in.region(boxes)?,
                ..regions
            });
        }
        sizing.capacity = Capacity {
            kernel_streams,
            ..arenas.capacity()
        };
        Some(sizing)
    }

    /// Returns the regions that kernels use, in a lane that encodes batches of `batch` subchunks in
    /// `kernel_streams` streams, scattered in slabs of `slab` elements. The compressor takes some subchunks
    /// of a batch at a time. Buffers of batches, and rings, are left out. `None` if this machine cannot
    /// address the regions.
    pub(super) fn of_kernels(
        kind: &ShardKind,
        batch: usize,
        slab: usize,
        compressor: Option<(&Compression, Requirements, usize)>,
        kernel_streams: usize,
        arenas: &mut Arenas,
    ) -> Option<Self> {
        let (in_slot, slot_stride) = kind.slot()?;
        let mut encoded = in_slot;
        let mut workspaces = Vec::new();
        for _ in 0..kernel_streams {
            let slots = arenas.device.region(slot_stride.checked_mul(batch)?)?;
            let compression = match compressor {
                Some((compression, requirements, at_once)) => Some(Buffers::new(
                    &mut arenas.device,
                    compression,
                    requirements,
                    (at_once, batch),
                    slot_stride,
                )?),
                None => None,
            };
            encoded = compression.map_or(in_slot, |buffers| buffers.encoded);
            workspaces.push(Workspace {
                slots,
                compression,
                decompression: None,
            });
        }
        let fill = kind.grid.element_size().checked_mul(SLOT_ALIGNMENT)?;
        let fill = arenas.device.region(fill)?;
        Some(Self {
            tuning: Tuning::DEFAULT,
            batch,
            slab,
            encoded,
            slot_stride,
            workspaces,
            slabs: Vec::new(),
            staging_in: Vec::new(),
            staging_out: Vec::new(),
            fill,
            fill_staging: arenas.pinned_in.region(fill.len)?,
            batches: Vec::new(),
            capacity: Capacity::default(),
        })
    }

    /// Returns the buffers of one batch of `subchunks` subchunks and `places` places, whose kernels use
    /// `regions`. The field `answer` has room for at least `answer` bytes.
    pub(super) fn batch_regions(
        &self,
        kind: &ShardKind,
        regions: KernelRegions,
        (subchunks, places): (usize, usize),
        answer: usize,
        arenas: &mut Arenas,
    ) -> Option<BatchRegions> {
        let outcomes = if self.compresses() {
            subchunks.checked_mul(4)?
        } else {
            0
        };
        let offsets = places.checked_add(1)?.checked_mul(8)?;
        // When decoding, `dense` also receives the decoded elements.
        let subchunk = self.encoded.max(kind.grid.subchunk_bytes());
        Some(BatchRegions {
            stored: regions.stored,
            sizes: regions.sizes,
            source: regions.source,
            scratch: regions.scratch,
            outcomes: arenas.device.region(outcomes)?,
            offsets: arenas.device.region(offsets)?,
            dense: arenas.device.region(subchunk.checked_mul(subchunks)?)?,
            answer: arenas
                .pinned_out
                .region(offsets.checked_add(outcomes)?.max(answer))?,
            ..BatchRegions::default()
        })
    }

    /// Returns whether this lane compresses subchunks.
    pub(super) fn compresses(&self) -> bool {
        let mut workspaces = self.workspaces.iter();
        workspaces.any(|workspace| workspace.compression.is_some())
    }

    /// Returns whether this lane decompresses subchunks.
    pub(super) fn decompresses(&self) -> bool {
        let mut workspaces = self.workspaces.iter();
        workspaces.any(|workspace| workspace.decompression.is_some())
    }

    /// Returns the number of subchunks that `tuning` asks to compress at once in one stream, on devices of up
    /// to `multiprocessors` multiprocessors.
    pub(super) fn compressed_at_once(
        grid: &SubchunkGrid,
        multiprocessors: usize,
        tuning: Tuning,
    ) -> usize {
        let bytes = tuning.compressed_batch / grid.subchunk_bytes().max(1);
        let to_fill = tuning.per_multiprocessor.saturating_mul(multiprocessors);
        bytes.max(to_fill).div_ceil(tuning.kernel_streams()).max(1)
    }

    /// Returns the number of subchunks of a shard that `tuning` asks to compress at once in one stream. The
    /// number is raised to fill a device only as far as a shard keeps three batches: one that is copied to
    /// the device, one in the kernels, and one that is copied back.
    pub(super) fn of_shard(grid: &SubchunkGrid, multiprocessors: usize, tuning: Tuning) -> usize {
        let third = grid.num_subchunks().div_ceil(3);
        let by_bytes = Self::compressed_at_once(grid, 0, tuning);
        Self::compressed_at_once(grid, multiprocessors, tuning)
            .min(third.max(by_bytes))
            .clamp(1, grid.num_subchunks().max(1))
    }

    /// Returns the buffers with the largest batches and slabs, up to the sizes that `tuning` asks for, whose
    /// lane takes at most the memory `most`.
    ///
    /// # Errors
    /// The errors are those of [`new`](Self::new). Another error is that the smallest lane takes more than
    /// `most`.
    pub fn within(kind: &ShardKind, most: BufferBytes, tuning: Tuning) -> Result<Self, String> {
        let mut tuning = tuning.for_shards_of(kind.grid.shard_bytes());
        if kind.reads {
            // The host reads the answers of one batch while the device decompresses the next one.
            (tuning.streams, tuning.batches) = (Tuning::READ_BATCHES, Tuning::READ_BATCHES);
        }
        let batch = if kind.compresses() {
            kind.most
        } else {
            tuning.batch / kind.grid.subchunk_bytes().max(1)
        };
        let mut sizing = Self::new(kind, batch, tuning)?;
        loop {
            let takes = sizing.estimate();
            if takes.device <= most.device && takes.pinned <= most.pinned {
                return Ok(sizing);
            }
            let Some(smaller) = sizing.smaller(kind)? else {
                return Err(format!(
                    "a lane for one subchunk at a time takes {takes}, and the budget is {most}: give more by `Options::with_device_memory` or `Options::with_pinned_memory`, or use smaller subchunks"
                ));
            };
            sizing = smaller;
        }
    }

    /// Returns the buffers of a smaller lane for shards of the same kind. It has one stream of kernels less,
    /// or half the batch; with one subchunk in a batch, it has one batch at a time, then half the slabs, then
    /// a smaller ring. `None` if this is the smallest lane.
    pub(super) fn smaller(&self, kind: &ShardKind) -> Result<Option<Self>, String> {
        let (mut batch, mut tuning) = (self.batch, self.tuning);
        if self.workspaces.len() > 1 {
            tuning.streams = self.workspaces.len() - 1;
            // With fewer streams, more batches may divide evenly, which would take more memory.
            tuning.batches = tuning.batches.min(self.batches.len());
        } else if batch > 1 {
            batch /= 2;
        } else if self.batches.len() > 1 {
            tuning.batches = 1;
        } else if tuning.slab > LEAST_SLAB {
            tuning.slab = (tuning.slab / 2).max(LEAST_SLAB);
            tuning.long_slab = tuning.slab;
        } else if tuning.ring > LEAST_RING {
            tuning.ring = LEAST_RING;
        } else {
            return Ok(None);
        }
        Self::new(kind, batch, tuning).map(Some)
    }

    /// Returns the bytes of memory that the lane takes.
    pub(super) fn estimate(&self) -> BufferBytes {
        self.capacity.takes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches fill a device as far as a shard has three of them, and are never smaller than the
    /// bytes say.
    #[test]
    fn batches_with_a_compressor_fill_a_device() {
        // An edge of subchunks of two-byte elements, streams of kernels, and subchunks at once.
        for (edge, streams, at_once) in [
            (32, 1, 2048),
            (64, 1, 256),
            (128, 1, 32),
            (32, 3, 683),
            (64, 3, 171),
            (128, 3, 22),
        ] {
            let grid = SubchunkGrid::new(&[512; 3], &[edge; 3], 2).expect("divides");
            let tuning = Tuning {
                streams,
                ..Tuning::DEFAULT
            };
            assert_eq!(Sizing::of_shard(&grid, 132, tuning), at_once, "{edge}");
        }
        // A long shard has three batches that fill the device.
        let grid = SubchunkGrid::new(&[2048; 3], &[128; 3], 2).expect("divides");
        assert_eq!(Sizing::of_shard(&grid, 132, Tuning::DEFAULT), 528);
    }

    #[test]
    fn what_does_not_fit_is_made_smaller_until_it_does() {
        // Subchunks of 4 MiB.
        let grid = SubchunkGrid::new(&[512, 128, 256], &[64, 128, 256], 2).expect("divides");
        let chain = KnownChain {
            order: vec![0, 1, 2],
            swap: 1,
            stages: vec![],
        };
        let kind = ShardKind::new(grid, chain);
        let all = BufferBytes {
            device: usize::MAX,
            pinned: usize::MAX,
            host: 0,
        };
        let tuning = Tuning {
            streams: 3,
            ..Tuning::DEFAULT
        };
        let mut sizing = Sizing::within(&kind, all, tuning).expect("fits");
        let mut lanes = vec![sizing.estimate()];
        while let Some(smaller) = sizing.smaller(&kind).expect("as before") {
            sizing = smaller;
            lanes.push(sizing.estimate());
        }
        assert!(lanes.is_sorted_by(|a, b| a.device >= b.device && a.pinned >= b.pinned));
        let least = sizing.estimate();
        assert!(least.pinned < 512 << 10, "{least}");
        // One subchunk, in its slot and dense, and two slabs.
        assert!(least.device < (8 << 20) + (512 << 10), "{least}");
        for most in lanes {
            let fits = Sizing::within(&kind, most, tuning).expect("fits");
            assert!(fits.capacity.device <= most.device && fits.estimate().pinned <= most.pinned);
        }
        let less = BufferBytes {
            pinned: least.pinned - 1,
            ..all
        };
        let reason = Sizing::within(&kind, less, tuning).expect_err("too little");
        assert!(reason.contains(&(least.pinned - 1).to_string()), "{reason}");
    }
}

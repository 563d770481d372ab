//! A chain's decompressor on a device: nvCOMP's requirements, and its buffers.

#[allow(unsafe_code)]
pub(super) mod apart;

use super::arena::{Arena, LINE, LONG_SLOT, Region, SLOT_ALIGNMENT};
use super::compressed_frame_parts::CompressedFrameLayout;
use super::compression::BatchRequirements;
use super::frame_parsing::LEAST_APART;
use super::nvcomp::{Decompressor, Nvcomp, Requirements};
use apart::Apart;

/// The number of tables that have one number for each stream, and for each slot that a stream takes.
const PER_STREAM: usize = 4;
const PER_STREAM_SLOT: usize = 2;
/// The number of tables that have one number for each step, if chunks may be stored without compression.
const PER_STEP: usize = 2;
/// The number of bytes of a number in the tables, of nvCOMP's status and of a CRC-32.
pub(super) const NUMBER: usize = 8;
pub(super) const STATUS: usize = 4;
pub(super) const CRC32: usize = 4;

/// A chain's decompressor, and nvCOMP's requirements for it.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    pub(super) layout: CompressedFrameLayout,
    pub(super) decompressor: Decompressor,
    requirements: BatchRequirements,
}

impl Prepared {
    /// Prepares the decompressor for batches of up to `most` subchunks. The context of the device with the
    /// number `device` is current on this thread.
    pub(super) fn new(
        layout: CompressedFrameLayout,
        nvcomp: &Nvcomp,
        device: usize,
        most: usize,
    ) -> Result<Self, String> {
        let decompressor = nvcomp.decompressor(layout.format)?;
        let step = layout.chunking.step();
        let alignment = decompressor.alignments().output.max(SLOT_ALIGNMENT);
        if !layout.chunking.begins_at(alignment) && step < LEAST_APART {
            return Err(format!(
                "a device decompresses to multiples of {alignment} bytes, and Blosc's blocks or their parts have {step}"
            ));
        }
        let query = |chunks, block, total| decompressor.requirements(chunks, block, total);
        Ok(Self {
            layout,
            requirements: BatchRequirements::new(layout.chunking, device, most, &query)?,
            decompressor,
        })
    }

    /// Returns the number of bytes from the begin of one slot to the begin of the next. A slot to which several
    /// chunks are decompressed has whole steps of its chunking. `None` if the number overflows.
    pub(super) fn slot_stride(&self) -> Option<usize> {
        let chunking = self.layout.chunking;
        let alignment = self.decompressor.alignments().output.max(SLOT_ALIGNMENT);
        let (bytes, steps) = (chunking.bytes, chunking.steps());
        if steps > 1 && chunking.begins_at(alignment) {
            return chunking.step().checked_mul(steps);
        }
        bytes.checked_next_multiple_of(if bytes >= LONG_SLOT {
            alignment.max(LINE)
        } else {
            alignment
        })
    }

    /// Returns nvCOMP's requirements for the decompression of `count` subchunks at once.
    ///
    /// # Errors
    /// nvCOMP was not asked about so many subchunks.
    pub(super) fn requirements(&self, count: usize) -> Result<&Requirements, String> {
        self.requirements.of_batch(count)
    }

    /// Checks that the buffers have the sizes that nvCOMP requires on the device with the number `device`,
    /// whose context is current on this thread.
    ///
    /// # Errors
    /// The buffers are too small. The reason has the numbers.
    pub(super) fn check(&self, buffers: &Buffers, device: usize) -> Result<(), String> {
        self.requirements
            .check(&buffers.requirements, device, &|chunks, block, total| {
                self.decompressor.requirements(chunks, block, total)
            })
    }
}

/// The buffers of a decompressor, all in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buffers {
    pub(super) requirements: Requirements,
    /// The compressed streams, each in a slot of `stream_stride` bytes. The stream of a chunk that is longer than
    /// a step takes several slots, as many as the chunk has steps at most.
    pub(super) streams: Region,
    pub(super) stream_stride: usize,
    /// The slots before Blosc's shuffle is undone; empty if the chain does not shuffle.
    pub(super) shuffled: Region,
    /// The chunks, if they are not decompressed to their places.
    pub(super) apart: Option<Apart>,
    pub(super) temp: Region,
    /// The number of bytes of a batch's tables, and of a batch's results.
    pub(super) tables: usize,
    pub(super) results: usize,
}

impl Buffers {
    /// Returns the buffers for batches of `count` subchunks in slots of `slot_stride` bytes; `None` if the
    /// buffers are more than this machine can address.
    pub(super) fn new(
        arena: &mut Arena,
        layout: CompressedFrameLayout,
        requirements: Requirements,
        count: usize,
        slot_stride: usize,
    ) -> Option<Self> {
        let chunks = requirements.chunks;
        let alignment = requirements.alignments.input.max(SLOT_ALIGNMENT);
        // If chunks may be stored without compression, a compressed stream is shorter than its chunk.
        let in_slot = if layout.raw {
            layout.chunking.step()
        } else {
            layout.encoded
        };
        let stream_stride = in_slot.checked_next_multiple_of(alignment)?;
        let steps = count.checked_mul(layout.chunking.steps())?;
        let shuffled = match layout.shuffle {
            Some(_) => slot_stride.checked_mul(count)?,
            None => 0,
        };
        let per_step = PER_STREAM_SLOT + if layout.raw { PER_STEP } else { 0 };
        let of_streams = chunks.checked_mul(PER_STREAM * NUMBER)?;
        let output = requirements.alignments.output.max(SLOT_ALIGNMENT);
        let apart = if layout.chunking.begins_at(output) {
            None
        } else {
            let slots = (count, slot_stride);
            Some(Apart::new(arena, layout.chunking, slots, output)?)
        };
        let [run_offsets, run_sources] = match &apart {
            Some(apart) => apart.table_bytes(count)?,
            None => [0, 0],
        };
        let checksums = count.checked_mul(CRC32)?;
        Some(Self {
            requirements,
            streams: arena.region(stream_stride.checked_mul(steps)?)?,
            stream_stride,
            shuffled: arena.region(shuffled)?,
            apart,
            temp: arena.region(requirements.temp)?,
            tables: steps
                .checked_mul(per_step * NUMBER)?
                .checked_add(of_streams)?
                .checked_add(run_offsets)?
                .checked_add(run_sources)?,
            results: chunks
                .checked_mul(NUMBER + STATUS)?
                .checked_add(checksums)?,
        })
    }
}

//! Chunks that are decompressed apart from one another, and then put together.
//!
//! nvCOMP and the kernels write at multiples of some bytes. The chunks of a Blosc frame may begin anywhere in their
//! subchunk: the second stream of a block of 1001 elements of 2 bytes begins at byte 1001. Such chunks are decompressed
//! to slots of their own, and the kernel `gather` copies them to their places.

use super::NUMBER;
use crate::cuda::arena::{Arena, Region};
use crate::cuda::driver::{DeviceSpan, Driver, DriverError, StreamId};
use crate::cuda::kernels::aggregate;
use crate::cuda::kernels::chunk_tables::Chunking;
use crate::cuda::kernels::spans::Slots;

/// The memory for chunks that are decompressed apart, in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Apart {
    pub(in crate::cuda) region: Region,
    /// The number of bytes for each step of a subchunk.
    pub(in crate::cuda) stride: usize,
    /// The number of runs that make a slot of a subchunk.
    runs: usize,
}

/// Bytes from the begin of a slot for a step on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// The number of the slot, counted from the first of its subchunk.
    source: usize,
    len: usize,
}

/// Returns the runs that follow one another in the slot of a subchunk, which has `slot_stride` bytes, from steps that
/// are `stride` bytes apart. A chunk of several steps lies in consecutive ones. The bytes behind the last chunk are
/// any bytes.
fn runs(chunking: Chunking, slot_stride: usize, stride: usize) -> impl Iterator<Item = Run> {
    let whole = move |first: usize, len: usize| {
        let starts = (0..len).step_by(stride.max(1)).enumerate();
        starts.map(move |(number, start)| Run {
            source: first + number,
            len: stride.min(len - start),
        })
    };
    let chunks = (0..chunking.chunks()).flat_map(move |number| {
        let chunk = chunking.chunk(number);
        whole(chunk.start / chunking.step(), chunk.len())
    });
    let behind = whole(0, slot_stride.saturating_sub(chunking.bytes));
    chunks.chain(behind.map(|run| Run { source: 0, ..run }))
}

impl Apart {
    /// Returns the memory for `count` subchunks, whose slots have `slot_stride` bytes and whose chunks begin at
    /// multiples of `alignment`; `None` if it is more than this machine can address.
    pub(in crate::cuda) fn new(
        arena: &mut Arena,
        chunking: Chunking,
        (count, slot_stride): (usize, usize),
        alignment: usize,
    ) -> Option<Self> {
        let stride = chunking.step().checked_next_multiple_of(alignment)?;
        let steps = count.checked_mul(chunking.steps())?;
        // The tables number the steps by `u32`s.
        u32::try_from(steps).ok()?;
        Some(Self {
            region: arena.region(stride.checked_mul(steps)?)?,
            stride,
            runs: runs(chunking, slot_stride, stride).count(),
        })
    }

    /// Returns the numbers of bytes of the two tables for `count` subchunks: the offset of each run and the end of
    /// the last one, and the source of each run. `None` if they are more than this machine can address.
    pub(in crate::cuda) fn table_bytes(&self, count: usize) -> Option<[usize; 2]> {
        let runs = self.runs.checked_mul(count)?;
        let offsets = runs.checked_add(1)?.checked_mul(NUMBER)?;
        Some([offsets, runs.div_ceil(2).checked_mul(NUMBER)?])
    }

    /// Returns the two tables for the subchunks in `slots`. Two sources are one number.
    pub(in crate::cuda) fn tables(&self, chunking: Chunking, slots: Slots) -> Vec<u64> {
        let (mut offsets, mut sources) = (vec![0], Vec::new());
        let mut end = 0;
        for subchunk in 0..slots.count {
            for run in runs(chunking, slots.stride, self.stride) {
                end += run.len as u64;
                offsets.push(end);
                sources.push((subchunk * chunking.steps() + run.source) as u64);
            }
        }
        let pairs = sources
            .chunks(2)
            .map(|pair| pair[0] | pair.get(1).unwrap_or(&0) << 32);
        offsets.extend(pairs);
        offsets
    }

    /// Enqueues the kernel that copies the chunks from `steps` to the subchunks in `slots`.
    ///
    /// # Errors
    /// A span is too short or misaligned, or the driver fails.
    ///
    /// # Safety
    /// The caller keeps the rules that the module `driver` lists. The spans of offsets and sources have the
    /// [`tables`](Self::tables) for these slots.
    pub(in crate::cuda) unsafe fn gather(
        &self,
        driver: &dyn Driver,
        stream: StreamId,
        steps: Slots,
        [offsets, sources]: [DeviceSpan; 2],
        slots: Slots,
    ) -> Result<(), DriverError> {
        let runs = self.runs * slots.count;
        // SAFETY: this function has the same requirements. The offsets begin at zero and do not decrease, no run is
        // longer than a step, and each source is a step of the same subchunk.
        unsafe {
            aggregate::gather(
                driver,
                stream,
                steps,
                sources,
                offsets,
                runs,
                slots.filled(),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zarrs_cuda_testing::effort;

    use super::*;

    /// Puts chunks together as the runs say, and compares them with the subchunk.
    #[test]
    fn runs_are_the_chunks_in_order() {
        let any = (
            1..4000_usize,
            1..300_usize,
            1..17_usize,
            4..9_u32,
            0..400_usize,
        );
        effort::property(256, &any, |(bytes, step, split, alignment, behind)| {
            let chunking = Chunking {
                bytes,
                block: step * split,
                split,
            };
            let stride = step.next_multiple_of(1 << alignment);
            let mut steps = vec![None; stride * chunking.steps()];
            for number in 0..chunking.chunks() {
                let chunk = chunking.chunk(number);
                let at = chunk.start / step * stride;
                for (to, byte) in steps[at..].iter_mut().zip(chunk) {
                    *to = Some(byte);
                }
            }
            let mut slot: Vec<Option<usize>> = Vec::new();
            for run in runs(chunking, bytes + behind, stride) {
                prop_assert!(run.len <= stride && run.source < chunking.steps());
                slot.extend(&steps[run.source * stride..][..run.len]);
            }
            prop_assert_eq!(slot.len(), bytes + behind);
            prop_assert!(slot[..bytes].iter().copied().eq((0..bytes).map(Some)));
            Ok(())
        });
    }
}

//! The memory of a stream on the host: the slots of a batch, to which slices are copied.

use std::sync::Arc;

use crate::contract::BufferBytes;
use crate::contract::EngineError;
use crate::contract::stream::{
    BatchInput, Lending, OnRead, Returned, Room, StreamChain, StreamJob,
};
use crate::layout::BatchGrid;
use crate::memory::buffers::{Contents, Lease, Pool};
use crate::memory::disjoint::BatchSlices;
use crate::memory::fill::fill;
use crate::process::crew::of_slices;
use crate::subchunk::crc32c;

/// A stream that is encoded on the host.
#[derive(Debug)]
pub struct HostStream {
    pub(super) job: Arc<StreamJob>,
    /// A batch of all its epochs. Shorter ones use the first slots of each part.
    pub(super) batch: BatchGrid,
    pub(super) slots: SlotLayout,
    pub(super) slices: BatchSlices,
    pub(super) inputs: Arc<Pool>,
    /// `None` if inputs become outputs.
    pub(super) outputs: Option<Arc<Pool>>,
}

/// Where the slots of a batch are in an input.
#[derive(Debug)]
pub(super) struct SlotLayout {
    /// Bytes from one slot of a part to the next.
    pub(super) stride: usize,
    /// Where the first slot of each part begins.
    pub(super) starts: Vec<usize>,
    pub(super) len: usize,
}

impl SlotLayout {
    /// `None` if it is more than this machine can address.
    fn new(job: &StreamJob, batch: &BatchGrid) -> Option<Self> {
        let stride = slot_stride(job)?;
        let Room { head, tail } = job.room;
        let mut len = 0_usize;
        let mut starts = Vec::with_capacity(batch.parts().len());
        for part in batch.parts() {
            let start = len.checked_add(head)?;
            starts.push(start);
            len = start
                .checked_add(part.len().checked_mul(stride)?)?
                .checked_add(tail)?;
        }
        Some(Self {
            stride,
            starts,
            len,
        })
    }
}

/// Returns the number of bytes from one slot of a part to the next: a subchunk, and its checksums if
/// it is encoded in place.
fn slot_stride(job: &StreamJob) -> Option<usize> {
    let subchunk = job.grid.shard().subchunk_bytes();
    match &job.chain {
        StreamChain::Known(chain) if chain.is_fixed_size() => {
            subchunk.checked_add(chain.stages.len() * crc32c::LEN)
        }
        _ => Some(subchunk),
    }
}

pub(super) fn too_large() -> EngineError {
    EngineError::OutOfMemory {
        what: "a batch of a stream",
        bytes: usize::MAX,
    }
}

/// Tables that are kept, or made while a batch is encoded, in bytes: for each subchunk, and for each
/// part of a shard. About.
const TABLES: (usize, usize) = (160, 320);

/// Returns the number of bytes of an input, of an output (`None` if inputs become outputs), and of
/// tables, for batches of all epochs.
fn sizes(job: &StreamJob) -> Option<(usize, Option<usize>, usize)> {
    let (subchunks, parts) = job.grid.batch_counts(job.epochs)?;
    let slots = subchunks.checked_mul(slot_stride(job)?)?;
    let rooms = parts.checked_mul(job.room.head.checked_add(job.room.tail)?)?;
    let subchunk = job.grid.shard().subchunk_bytes();
    let (input, output) = if job.chain.is_fixed_size() {
        (slots.checked_add(rooms)?, None)
    } else {
        let bound = encoded_bound(&job.chain, subchunk)?;
        (slots, Some(bound.checked_mul(subchunks)?))
    };
    let (of_subchunk, of_part) = TABLES;
    let tables = subchunks.checked_mul(of_subchunk)?;
    let mut tables = tables.checked_add(parts.checked_mul(of_part)?)?;
    if let StreamChain::Foreign(_) = &job.chain {
        // The encoded subchunks of a foreign chain are collected before they are copied.
        tables = tables.checked_add(subchunks.checked_mul(subchunk)?)?;
    }
    Some((input, output, tables))
}

/// The bytes to have room for where a subchunk of `len` bytes is encoded; `None` if no machine has
/// that many. A foreign chain does not say: it may need more than its subchunk has.
pub fn encoded_bound(chain: &StreamChain, len: usize) -> Option<usize> {
    match chain {
        StreamChain::Known(chain) => crate::subchunk::stages::encoded_bound(chain, len),
        StreamChain::Foreign(_) => Some(len),
    }
}

/// Returns the bytes that the buffers of a stream take on the host.
///
/// # Errors
/// [`EngineError::OutOfMemory`] if they are more than this machine can address.
pub fn stream_memory(job: &StreamJob) -> Result<BufferBytes, EngineError> {
    let host = || {
        let (input, output, tables) = sizes(job)?;
        let outputs = output.unwrap_or(0).checked_mul(job.outputs)?;
        let host = input.checked_mul(job.inputs)?.checked_add(outputs)?;
        host.checked_add(tables)
    };
    Ok(BufferBytes {
        host: host().ok_or_else(too_large)?,
        ..BufferBytes::default()
    })
}

impl HostStream {
    /// Sets up for a stream. Nothing is allocated yet.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] if the buffers are more than this machine can address.
    pub fn new(job: Arc<StreamJob>, returned: &Arc<Returned>) -> Result<Arc<Self>, EngineError> {
        if !job.chain.is_fixed_size() && job.room != Room::default() {
            return Err(EngineError::Internal("room around parts in pieces"));
        }
        let batch = job.grid.batch(job.epochs).map_err(|_| too_large())?;
        let slots = SlotLayout::new(&job, &batch).ok_or_else(too_large)?;
        let slices = BatchSlices::new(&job.grid, &batch, |place, part| {
            slots.starts[part] + (place - batch.parts()[part].first) * slots.stride
        });
        let lending = job.lending;
        let pool = |len, contents, most, own: fn(&Lending) -> usize| {
            let own = lending
                .as_ref()
                .map(|lending| (own(lending), lending.lender));
            Pool::lending(len, contents, most, own, job.huge_pages, returned.clone())
        };
        let contents = match &job.chain {
            StreamChain::Known(_) => Contents::Zeros,
            StreamChain::Foreign(_) => Contents::Nothing,
        };
        let (_, output, _) = sizes(&job).ok_or_else(too_large)?;
        let outputs = output.map(|len| pool(len, contents, job.outputs, |own| own.outputs));
        Ok(Arc::new(Self {
            inputs: pool(slots.len, Contents::Zeros, job.inputs, |own| own.inputs),
            outputs,
            batch,
            slots,
            slices,
            job,
        }))
    }

    /// Fills what the edge of the array leaves of slots.
    pub(super) fn fill_edges(&self, buffer: &mut [u8]) {
        let len = self.job.grid.shard().subchunk_bytes();
        let mut starts: Vec<usize> = self.slices.cut_slots().collect();
        starts.sort_unstable();
        let (mut rest, mut end) = (buffer, 0);
        let slots = starts.into_iter().map(|start| {
            let behind = std::mem::take(&mut rest).split_at_mut(start - end).1;
            let (slot, behind) = behind.split_at_mut(len);
            (rest, end) = (behind, start + len);
            slot
        });
        fill(slots, &self.job.fill_value, of_slices(), self.job.threads);
    }
}

/// Slots that are being filled.
#[derive(Debug)]
pub(super) struct HostInput {
    pub(super) stream: Arc<HostStream>,
    pub(super) lease: Lease,
    /// Whether each slot was encoded in place, by an attempt that failed for other slots. Empty
    /// before the first attempt.
    pub(super) in_place: Vec<bool>,
}

impl BatchInput for HostInput {
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), EngineError> {
        self.write_telling(at, bytes, &|_| ())
    }

    fn write_telling(
        &mut self,
        at: usize,
        bytes: &[u8],
        read: &OnRead<'_>,
    ) -> Result<(), EngineError> {
        let (slices, threads) = (&self.stream.slices, self.stream.job.threads);
        slices.write(self.lease.bytes(), at, bytes, (of_slices(), threads), read)
    }

    fn read(&mut self, at: usize, bytes: &mut [u8]) -> Result<(), EngineError> {
        let stream = &self.stream;
        stream.slices.read(
            self.lease.as_ref(),
            at,
            bytes,
            of_slices(),
            stream.job.threads,
        )
    }

    fn as_any_mut(&mut self) -> &mut dyn std::any::Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any + Send> {
        self
    }
}

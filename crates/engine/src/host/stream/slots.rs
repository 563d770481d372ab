//! The buffers of a stream on the host: slices are copied to the slots of a batch.

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
    /// The grid of a batch with all of its epochs. Batches with fewer epochs use the first slots of each
    /// part.
    pub(super) batch: BatchGrid,
    pub(super) slots: SlotLayout,
    pub(super) slices: BatchSlices,
    pub(super) inputs: Arc<Pool>,
    /// The pool of output buffers; `None` if inputs become outputs.
    pub(super) outputs: Option<Arc<Pool>>,
}

/// The positions of the slots of a batch in an input.
#[derive(Debug)]
pub(super) struct SlotLayout {
    /// The number of bytes from one slot of a part to the next.
    pub(super) stride: usize,
    /// The position of the first slot of each part, in bytes.
    pub(super) starts: Vec<usize>,
    pub(super) len: usize,
}

impl SlotLayout {
    /// Returns the layout; `None` if it has more bytes than this machine can address.
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

/// Returns the number of bytes from one slot of a part to the next: those of a subchunk and, if it is encoded
/// in place, of its checksums.
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

/// The approximate bytes of tables that are kept, or made while a batch is encoded: for each subchunk, and
/// for each part of a shard.
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
        // All encoded subchunks of a foreign chain are in memory before they are copied.
        tables = tables.checked_add(subchunks.checked_mul(subchunk)?)?;
    }
    Some((input, output, tables))
}

/// Returns the bytes of room that the encoding of a subchunk of `len` bytes needs; `None` if no machine has
/// that many. The output of a foreign chain is not bounded: it may need more.
pub fn encoded_bound(chain: &StreamChain, len: usize) -> Option<usize> {
    match chain {
        StreamChain::Known(chain) => crate::subchunk::stages::encoded_bound(chain, len),
        StreamChain::Foreign(_) => Some(len),
    }
}

/// Returns the bytes that the buffers of a stream take on the host.
///
/// # Errors
/// [`EngineError::OutOfMemory`] if the buffers have more bytes than this machine can address.
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
    /// Sets up a stream. Allocates no buffers yet.
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

    /// Writes the fill value to the parts of slots that lie beyond the edge of the array.
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

/// The slots of a batch, to which slices are written.
#[derive(Debug)]
pub(super) struct HostInput {
    pub(super) stream: Arc<HostStream>,
    pub(super) lease: Lease,
    /// Whether each slot was already encoded in place, by an attempt that failed at other slots. Empty before
    /// the first attempt.
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

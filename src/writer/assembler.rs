//! Puts encoded batches together to shards: places each subchunk, encodes the index, and lists the steps for
//! the store.
//!
//! For each part of a batch, in order:
//!
//! ```text
//! whole shards, with room:       copy the index into the room; set the shard
//! put together here:             append the part to the shard's buffer; at the end the index; set the shard
//! a store where shards grow:     write the part behind the earlier parts; at the end the index; complete
//! ```
//!
//! A shard without any stored subchunk is erased. The index has empty entries for subchunks that no slice
//! reaches: the missing subchunks of a short last shard epoch, and subchunks beyond the edge of the array.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::shared::{Batch, Setup, ShardId, Work};
use super::stored_bytes::StoredBytes;
use zarrs_cuda_engine::contract::stream::{BatchOutput, EncodedBatch, EncodedPart};
use zarrs_cuda_engine::layout::{Extent, ShardPart, c_order};
use zarrs_cuda_engine::memory::buffers::{Lease, Pool};
use zarrs_cuda_engine::memory::pieces;

/// Puts the parts of batches together to shards, and keeps the shards that are not complete.
#[derive(Debug)]
pub(super) struct Assembler {
    open: BTreeMap<ShardId, Open>,
    /// The pool of buffers in which shards are put together; `None` if no shard is put together in memory.
    buffers: Option<Arc<Pool>>,
    /// Buffers that were taken from the pool, for the next shards that begin.
    prepared: Vec<Lease>,
}

/// A shard of which some parts were added, and not all.
#[derive(Debug)]
struct Open {
    extents: Vec<Extent>,
    /// The number of bytes of the shard until now.
    end: usize,
    /// Whether pieces of the shard were given to the store.
    begun: bool,
    /// The bytes of the shard until now, if the shard is put together in memory.
    buffer: Option<Lease>,
}

impl Open {
    fn is_empty(&self) -> bool {
        self.extents.iter().all(Option::is_none)
    }
}

/// The steps of storing for each of some shards.
pub(super) type WorkOfShards = Vec<(ShardId, Vec<Work>)>;

const LEAVES: &str = "an encoded part leaves its buffer";

impl Assembler {
    /// Makes an assembler that puts shards together in `buffers`. `buffers` are `None` if each part of a
    /// batch is a whole shard with room for an index, or if shards grow in the store.
    pub(super) fn new(buffers: Option<Arc<Pool>>) -> Self {
        Self {
            open: BTreeMap::new(),
            buffers,
            prepared: Vec::new(),
        }
    }

    /// Takes the buffers that [`add`](Self::add) needs for `batch`, without waiting. Returns whether the pool
    /// had enough of them; then `add` does not wait for buffers.
    pub(super) fn prepare(&mut self, setup: &Setup, batch: &Batch) -> bool {
        let Some(buffers) = &self.buffers else {
            return true;
        };
        let is_new = |part: &&ShardPart| !self.open.contains_key(&id_of(setup, batch, part));
        let needed = batch.grid.parts().iter().filter(is_new).count();
        while self.prepared.len() < needed {
            match buffers.take(true) {
                Ok(Some(buffer)) => self.prepared.push(buffer),
                Ok(None) => return false,
                // `add` fails for the same reason, and reports it.
                Err(_) => return true,
            }
        }
        true
    }

    /// Adds `encoded`, the encoded `batch`, to its shards. Returns the next steps of storing these shards.
    pub(super) fn add(
        &mut self,
        setup: &Setup,
        batch: &Batch,
        encoded: EncodedBatch,
    ) -> Result<WorkOfShards, String> {
        if encoded.parts.len() != batch.grid.parts().len() {
            return Err("an engine returned a wrong number of parts".to_string());
        }
        if setup.whole_shards && self.buffers.is_none() {
            return whole_shards(setup, batch, encoded);
        }
        let output: Arc<dyn BatchOutput> = Arc::from(encoded.output);
        let first_epoch = first_within(setup, batch);
        let mut shards = Vec::with_capacity(encoded.parts.len());
        for (part, encoded) in std::iter::zip(batch.grid.parts(), &encoded.parts) {
            let id = id_of(setup, batch, part);
            let mut open = match self.open.remove(&id) {
                Some(open) => open,
                None => self.begin(setup)?,
            };
            let start = open.end;
            place(setup, part, first_epoch, encoded, &mut open)?;
            shards.push((id, open, start, part, encoded));
        }
        let bytes = (*output).as_ref();
        let mut copies = Vec::new();
        for (_, open, start, _, encoded) in &mut shards {
            if let Some(buffer) = &mut open.buffer {
                let behind = &mut room_for(buffer, open.end)?[*start..open.end];
                copies.extend(copies_of(behind, bytes, encoded).ok_or(LEAVES)?);
            }
        }
        pieces::copy(copies, setup.encoding.threads).map_err(|error| error.to_string())?;
        let mut work = Vec::with_capacity(shards.len());
        for (id, mut open, start, part, encoded) in shards {
            let mut of_shard = Vec::new();
            if open.buffer.is_none() && open.end > start {
                of_shard.push(write(&output, &mut open, start, encoded)?);
            }
            if first_epoch + part.counts[0] == setup.grid.epochs_per_shard() {
                of_shard.extend(complete(setup, open)?);
            } else {
                self.open.insert(id, open);
            }
            work.push((id, of_shard));
        }
        Ok(work)
    }

    /// Completes the open shards. Returns the last steps of storing them.
    pub(super) fn end(&mut self, setup: &Setup) -> Result<WorkOfShards, String> {
        std::mem::take(&mut self.open)
            .into_iter()
            .map(|(id, open)| Ok((id, complete(setup, open)?)))
            .collect()
    }

    fn begin(&mut self, setup: &Setup) -> Result<Open, String> {
        let (head, _) = setup.encoding.shards.index.room();
        let buffer = match (&self.buffers, self.prepared.pop()) {
            (None, _) => None,
            (Some(_), Some(prepared)) => Some(prepared),
            (Some(buffers), None) => Some(buffers.wait().map_err(|error| error.to_string())?),
        };
        Ok(Open {
            extents: vec![None; setup.encoding.shards.grid.num_subchunks()],
            end: head,
            begun: false,
            buffer,
        })
    }
}

/// Returns the first epoch of a batch, counted within its shard epoch.
fn first_within(setup: &Setup, batch: &Batch) -> usize {
    let epochs = setup.grid.epochs_per_shard();
    // The remainder is less than `epochs`, a `usize`.
    usize::try_from(batch.first_epoch % epochs as u64).unwrap_or(0)
}

fn id_of(setup: &Setup, batch: &Batch, part: &ShardPart) -> ShardId {
    let first = batch.first_epoch / setup.grid.epochs_per_shard() as u64;
    let shards = setup.grid.shards();
    let inner = c_order::number(part.shard[1..].iter().copied(), shards);
    ShardId {
        outer: first + part.shard[0] as u64,
        inner,
    }
}

/// Places the subchunks of a part behind the bytes that the shard has, and notes their extents.
fn place(
    setup: &Setup,
    part: &ShardPart,
    first_epoch: usize,
    encoded: &EncodedPart,
    open: &mut Open,
) -> Result<(), String> {
    let grid = &setup.encoding.shards.grid;
    let begin = open.end;
    if encoded.sizes.len() != part.len() {
        return Err("an engine returned a wrong number of subchunks".to_string());
    }
    for (number, size) in encoded.sizes.iter().enumerate() {
        let Some(size) = *size else { continue };
        let mut at = c_order::coordinates(number, &part.counts);
        at[0] += first_epoch;
        let slot = open.extents.get_mut(grid.number(at));
        *slot.ok_or("a subchunk is not in its shard")? = Some(open.end..open.end + size);
        open.end += size;
    }
    if open.end - begin != encoded.len() {
        return Err("an engine returned sizes that do not add up".to_string());
    }
    Ok(())
}

/// Pairs each piece of the part in `output` with its place in `to`, which is as long as the part. Returns
/// `None` if a piece is not within `output` or `to`.
fn copies_of<'a>(
    mut to: &'a mut [u8],
    output: &'a [u8],
    part: &EncodedPart,
) -> Option<Vec<(&'a mut [u8], &'a [u8])>> {
    let copies = part.pieces.iter().map(|piece| {
        let (place, behind) = std::mem::take(&mut to).split_at_mut_checked(piece.len())?;
        to = behind;
        Some((place, output.get(piece.clone())?))
    });
    copies.collect()
}

/// Returns the step that writes a part that is not empty, behind the `start` bytes that its shard has.
fn write(
    output: &Arc<dyn BatchOutput>,
    open: &mut Open,
    start: usize,
    part: &EncodedPart,
) -> Result<Work, String> {
    let first = !open.begun;
    open.begun = true;
    let mut pieces = Vec::with_capacity(part.pieces.len());
    if first && start > 0 {
        pieces.push((0, StoredBytes::owned(vec![0; start])));
    }
    let mut at = start as u64;
    for piece in &part.pieces {
        let bytes = StoredBytes::of(output, piece.clone()).ok_or(LEAVES)?;
        pieces.push((at, bytes));
        at += piece.len() as u64;
    }
    Ok(Work::Write { pieces, first })
}

/// Returns the last steps of storing a shard that has all its parts.
fn complete(setup: &Setup, open: Open) -> Result<Vec<Work>, String> {
    if open.is_empty() {
        return Ok(vec![Work::Erase]);
    }
    let index = index_of(setup, &open.extents)?;
    let first = !setup.encoding.shards.index.is_at_end();
    if let Some(mut buffer) = open.buffer {
        let len = open.end + if first { 0 } else { index.len() };
        let at = if first { 0 } else { open.end };
        room_for(&mut buffer, len)?[at..at + index.len()].copy_from_slice(&index);
        let output: Arc<dyn BatchOutput> = Arc::new(buffer);
        let all = StoredBytes::of(&output, 0..len).ok_or(LEAVES)?;
        return Ok(vec![Work::Set(all)]);
    }
    let at = if first { 0 } else { open.end as u64 };
    let pieces = vec![(at, StoredBytes::owned(index))];
    let first = !open.begun;
    Ok(vec![Work::Write { pieces, first }, Work::Complete])
}

/// Returns the steps of storing a batch, each part of which is a whole shard.
fn whole_shards(
    setup: &Setup,
    batch: &Batch,
    encoded: EncodedBatch,
) -> Result<WorkOfShards, String> {
    let EncodedBatch { mut output, parts } = encoded;
    let index_len = setup.encoding.shards.index.len();
    let mut shards = Vec::with_capacity(parts.len());
    for (part, encoded) in std::iter::zip(batch.grid.parts(), &parts) {
        let first = !setup.encoding.shards.index.is_at_end();
        let mut open = Open {
            extents: vec![None; setup.encoding.shards.grid.num_subchunks()],
            end: if first { index_len } else { 0 },
            begun: false,
            buffer: None,
        };
        place(setup, part, 0, encoded, &mut open)?;
        if open.is_empty() {
            shards.push(None);
            continue;
        }
        let index = index_of(setup, &open.extents)?;
        let [bytes] = &encoded.pieces[..] else {
            return Err("an engine returned a part in pieces".to_string());
        };
        let (room, all) = if first {
            let start = bytes.start.checked_sub(index_len).ok_or(LEAVES)?;
            (start..bytes.start, start..bytes.end)
        } else {
            let end = bytes.end + index_len;
            (bytes.end..end, bytes.start..end)
        };
        let room = (*output).as_mut().get_mut(room).ok_or(LEAVES)?;
        room.copy_from_slice(&index);
        shards.push(Some(all));
    }
    let output: Arc<dyn BatchOutput> = Arc::from(output);
    std::iter::zip(batch.grid.parts(), shards)
        .map(|(part, all)| {
            let work = match all {
                None => Work::Erase,
                Some(all) => Work::Set(StoredBytes::of(&output, all).ok_or(LEAVES)?),
            };
            Ok((id_of(setup, batch, part), vec![work]))
        })
        .collect()
}

fn index_of(setup: &Setup, extents: &[Extent]) -> Result<Vec<u8>, String> {
    let index = setup.encoding.encode_index(extents);
    index.map_err(|error| format!("the index of a shard cannot be encoded: {error}"))
}

/// Returns the first `len` bytes of a buffer. A shorter buffer grows to `len` bytes.
fn room_for(buffer: &mut Lease, len: usize) -> Result<&mut [u8], String> {
    let buffer = buffer.bytes();
    if let Some(missing) = len.checked_sub(buffer.len()) {
        // A foreign chain can encode subchunks to more bytes than the subchunks have.
        buffer
            .try_reserve(missing)
            .map_err(|_| format!("there is no memory for {len} bytes of a shard"))?;
        buffer.resize(len, 0);
    }
    Ok(&mut buffer[..len])
}

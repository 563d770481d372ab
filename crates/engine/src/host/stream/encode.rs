//! Encodes a batch of a stream on the threads of the current rayon pool.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::slots::{HostInput, HostStream, too_large};
use crate::contract::stream::{EncodedPart, StreamChain};
use crate::contract::{EngineError, KnownChain, SubchunkCodec};
use crate::host::encode as shards;
use crate::host::workers::Schedule;
use crate::layout::BatchGrid;
use crate::memory::buffers::Lease;
use crate::subchunk::scatter::ShardScatter;
use crate::subchunk::{crc32c, stages};

/// The bytes of decoded subchunks that one thread compresses before it takes more.
const COMPRESS_BATCH: usize = 256 << 10;

/// Encodes `batch`, whose slices are in `input`: into `output`, or in place if there is no output.
pub(super) fn encode(
    stream: &HostStream,
    input: &mut HostInput,
    batch: &BatchGrid,
    output: Option<Lease>,
) -> Result<(Option<Lease>, Vec<EncodedPart>), EngineError> {
    let is_prefix = batch.epochs() <= stream.batch.epochs()
        && std::iter::zip(batch.parts(), stream.batch.parts())
            .all(|(short, full)| short.shard == full.shard);
    if !is_prefix {
        return Err(EngineError::Internal("a batch is not one of its stream"));
    }
    match (&stream.job.chain, output) {
        (StreamChain::Known(chain), None) => {
            Ok((None, encode_in_place(stream, chain, input, batch)?))
        }
        (chain, Some(mut output)) => {
            let parts = match chain {
                StreamChain::Known(chain) => compress(stream, chain, input, batch, &mut output)?,
                StreamChain::Foreign(codec) => {
                    encode_foreign(stream, codec.as_ref(), input, batch, &mut output)?
                }
            };
            Ok((Some(output), parts))
        }
        _ => Err(EngineError::Internal("a stream without outputs")),
    }
}

/// Returns the range of each slot of `batch` in the input, in shard-major order.
fn slots(stream: &HostStream, batch: &BatchGrid) -> Vec<Range<usize>> {
    let len = stream.slots.stride;
    std::iter::zip(batch.parts(), &stream.slots.starts)
        .flat_map(|(part, &start)| {
            (0..part.len()).map(move |i| start + i * len..start + (i + 1) * len)
        })
        .collect()
}

/// A buffer divided into pieces. A thread takes a piece out of its lock.
type Pieces<'a> = Vec<Mutex<Option<&'a mut [u8]>>>;

/// Divides `buffer` into the ascending `ranges`; returns `None` if they do not fit.
fn divide(buffer: &mut [u8], ranges: impl Iterator<Item = Range<usize>>) -> Option<Pieces<'_>> {
    let mut rest = buffer;
    let mut end = 0;
    let mut pieces = Vec::new();
    for range in ranges {
        let (_, behind) = rest.split_at_mut_checked(range.start.checked_sub(end)?)?;
        let (piece, behind) = behind.split_at_mut_checked(range.len())?;
        pieces.push(Mutex::new(Some(piece)));
        (rest, end) = (behind, range.end);
    }
    Some(pieces)
}

fn take<'a>(piece: &Mutex<Option<&'a mut [u8]>>) -> Result<&'a mut [u8], EngineError> {
    let mut piece = piece.lock().unwrap_or_else(PoisonError::into_inner);
    piece
        .take()
        .ok_or(EngineError::Internal("a slot was taken twice"))
}

const LEAVES: EngineError = EngineError::Internal("a slot leaves its buffer");

/// Encodes with a chain without a compressor: each slot becomes its encoded subchunk in place.
fn encode_in_place(
    stream: &HostStream,
    chain: &KnownChain,
    input: &mut HostInput,
    batch: &BatchGrid,
) -> Result<Vec<EncodedPart>, EngineError> {
    let job = &stream.job;
    let one = job.grid.shard().one_subchunk();
    let scatter = ShardScatter::of_chain(&one, chain, &job.fill_value);
    let len = one.subchunk_bytes();
    let stride = stream.slots.stride;
    let slots = slots(stream, batch);
    input.in_place.resize(slots.len(), false);
    let pieces = divide(input.lease.bytes(), slots.iter().cloned()).ok_or(LEAVES)?;
    let done: Vec<Mutex<bool>> = input
        .in_place
        .iter()
        .map(|done| Mutex::new(*done))
        .collect();
    let stored: Vec<Mutex<bool>> = done.iter().map(|_| Mutex::new(true)).collect();
    let set = |flag: &Mutex<bool>, value| {
        *flag.lock().unwrap_or_else(PoisonError::into_inner) = value;
    };
    let get = |flag: &Mutex<bool>| *flag.lock().unwrap_or_else(PoisonError::into_inner);
    let schedule = Schedule::new(slots.len(), len, shards::COPY_BATCH, job.threads);
    let result = schedule.run(|scratch, _, numbers| {
        for number in numbers {
            let slot = take(&pieces[number])?;
            if get(&done[number]) {
                continue;
            }
            if !job.store_empty && scatter.is_empty(slot, 0) {
                set(&stored[number], false);
                continue;
            }
            if !scatter.is_identity() {
                // The subchunk is copied to the buffer, because in the slot its elements are not in encoded
                // order.
                scatter.subchunks(&slot[..len], 0, 1, &mut scratch.subchunk)?;
                slot[..len].copy_from_slice(&scratch.subchunk[..len]);
            }
            for at in (len..stride).step_by(crc32c::LEN) {
                let checksum = crc32c::checksum(&slot[..at]);
                slot[at..at + crc32c::LEN].copy_from_slice(&checksum);
            }
            set(&done[number], true);
        }
        Ok(())
    });
    for (flag, done) in std::iter::zip(&mut input.in_place, &done) {
        *flag = get(done);
    }
    drop(pieces);
    result?;
    let stored: Vec<bool> = stored.iter().map(get).collect();

    let buffer = input.lease.bytes();
    let mut parts = Vec::with_capacity(batch.parts().len());
    for (part, &start) in std::iter::zip(batch.parts(), &stream.slots.starts) {
        let of_part = &stored[part.first..part.first + part.len()];
        let mut end = start;
        for (i, _) in of_part.iter().enumerate().filter(|(_, stored)| **stored) {
            let from = start + i * stride;
            if from != end {
                buffer.copy_within(from..from + stride, end);
            }
            end += stride;
        }
        parts.push(EncodedPart {
            pieces: vec![start..end],
            sizes: of_part
                .iter()
                .map(|stored| stored.then_some(stride))
                .collect(),
        });
    }
    Ok(parts)
}

/// Encodes with a chain that has a compressor. Each group of subchunks lies at the bound of the sizes before
/// it, and stays there, because the thread that assembles shards copies it anyway.
fn compress(
    stream: &HostStream,
    chain: &KnownChain,
    input: &mut HostInput,
    batch: &BatchGrid,
    output: &mut Lease,
) -> Result<Vec<EncodedPart>, EngineError> {
    let job = &stream.job;
    let one = job.grid.shard().one_subchunk();
    let scatter = ShardScatter::of_chain(&one, chain, &job.fill_value);
    let len = one.subchunk_bytes();
    let bound = stages::encoded_bound(chain, len).ok_or_else(too_large)?;
    let slots = slots(stream, batch);
    let input: &[u8] = input.lease.bytes();
    let schedule = Schedule::new(slots.len(), len, COMPRESS_BATCH, job.threads);
    let groups: Vec<Range<usize>> = schedule.batches().collect();
    let place = |group: &Range<usize>| group.start * bound..group.end * bound;
    let pieces = divide(output.bytes(), groups.iter().map(place)).ok_or(LEAVES)?;
    let sizes: Vec<Mutex<Vec<Option<usize>>>> = groups.iter().map(|_| Mutex::default()).collect();
    schedule.run(|scratch, group, numbers| {
        let buffers = &mut **scratch;
        let mut to = take(&pieces[group])?;
        let mut of_group = Vec::with_capacity(numbers.len());
        for number in numbers {
            let slot = input.get(slots[number].clone()).ok_or(LEAVES)?;
            if !job.store_empty && scatter.is_empty(slot, 0) {
                of_group.push(None);
                continue;
            }
            let elements = scatter.subchunks(slot, 0, 1, &mut buffers.subchunk)?;
            let (stage_buffers, contexts) = (&mut buffers.stages, &mut buffers.contexts);
            let size = stages::encode(
                chain,
                number,
                elements,
                &mut to[..bound],
                stage_buffers,
                contexts,
            )?;
            of_group.push(Some(size));
            to = &mut to[size..];
        }
        *sizes[group].lock().unwrap_or_else(PoisonError::into_inner) = of_group;
        Ok(())
    })?;
    drop(pieces);

    // Within a group, encoded subchunks lie densely.
    let encoded = std::iter::zip(&groups, sizes).flat_map(|(group, sizes)| {
        let mut end = place(group).start;
        let sizes = sizes.into_inner().unwrap_or_else(PoisonError::into_inner);
        sizes.into_iter().map(move |size| {
            let start = end;
            end += size.unwrap_or(0);
            size.map(|_| start..end)
        })
    });
    let mut encoded = encoded.collect::<Vec<_>>().into_iter();
    let parts = batch.parts().iter().map(|part| {
        let mut pieces: Vec<Range<usize>> = Vec::new();
        let sizes = encoded.by_ref().take(part.len()).map(|place| {
            let place = place?;
            let len = place.len();
            match pieces.last_mut() {
                Some(last) if last.end == place.start => last.end = place.end,
                _ => pieces.push(place),
            }
            Some(len)
        });
        let sizes = sizes.collect();
        EncodedPart { pieces, sizes }
    });
    Ok(parts.collect())
}

/// Encodes with a chain of the layer above, whose output size is not bounded: collects all subchunks, then
/// copies them.
fn encode_foreign(
    stream: &HostStream,
    codec: &dyn SubchunkCodec,
    input: &mut HostInput,
    batch: &BatchGrid,
    output: &mut Lease,
) -> Result<Vec<EncodedPart>, EngineError> {
    let job = &stream.job;
    let one = job.grid.shard().one_subchunk();
    let scatter = ShardScatter::in_c_order(&one, &job.fill_value);
    let slots = slots(stream, batch);
    let input: &[u8] = input.lease.bytes();
    let schedule = Schedule::new(
        slots.len(),
        one.subchunk_bytes(),
        COMPRESS_BATCH,
        job.threads,
    );
    let encoded: Vec<Mutex<Option<Vec<u8>>>> = slots.iter().map(|_| Mutex::default()).collect();
    schedule.run(|_, _, numbers| {
        for number in numbers {
            let slot = input.get(slots[number].clone()).ok_or(LEAVES)?;
            if job.store_empty || !scatter.is_empty(slot, 0) {
                let bytes = codec.encode(Cow::Borrowed(slot))?.into_owned();
                *encoded[number]
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = Some(bytes);
            }
        }
        Ok(())
    })?;
    let mut encoded = encoded
        .into_iter()
        .map(|bytes| bytes.into_inner().unwrap_or_else(PoisonError::into_inner));
    let buffer = output.bytes();
    let mut parts = Vec::with_capacity(batch.parts().len());
    for part in batch.parts() {
        let start = buffer.len();
        let mut sizes = Vec::with_capacity(part.len());
        for bytes in encoded.by_ref().take(part.len()) {
            sizes.push(bytes.as_ref().map(Vec::len));
            if let Some(bytes) = bytes {
                buffer
                    .try_reserve(bytes.len())
                    .map_err(|_| EngineError::OutOfMemory {
                        what: "a batch of a stream",
                        bytes: buffer.len().saturating_add(bytes.len()),
                    })?;
                buffer.extend_from_slice(&bytes);
            }
        }
        let pieces = vec![start..buffer.len()];
        parts.push(EncodedPart { pieces, sizes });
    }
    Ok(parts)
}

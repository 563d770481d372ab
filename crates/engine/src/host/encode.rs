//! Encodes a whole shard.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

use super::aggregate::{Aggregate, EncodedRun};
use super::workers::{Schedule, make_pages};
use crate::contract::{
    Chain, EncodedShard, EngineError, KnownChain, ShardElements, ShardJob, SubchunkCodec,
};
use crate::layout::SubchunkGrid;
use crate::memory::allocate;
use crate::memory::disjoint::{Row, Segment, Segments};
use crate::memory::spares::Spares;
use crate::subchunk::scatter::ShardScatter;
use crate::subchunk::{crc32c, stages};

/// The bytes of decoded subchunks in a batch, for chains that do little more than copy: a few huge pages, so
/// that two threads rarely make the same page.
pub(super) const COPY_BATCH: usize = 8 << 20;

/// The bytes of decoded subchunks in a batch, for chains that take long: enough to hide the cost of taking
/// turns.
const COMPRESS_BATCH: usize = 256 << 10;

/// Returns the number of subchunks that are copied together before a compressor: they fit in the cache.
fn most_in_cache(job: &ShardJob<'_>) -> usize {
    const CACHE: usize = 256 << 10;
    (CACHE / job.grid.subchunk_bytes()).max(1)
}

/// The name of the output in errors about memory.
const OUTPUT: &str = "an encoded shard";

/// The memory with the elements of a shard, and the description of how subchunks are copied out of it.
struct Source<'a> {
    memory: &'a [u8],
    scatter: ShardScatter<'a>,
}

impl<'a> Source<'a> {
    fn new(job: &ShardJob<'a>, elements: &ShardElements<'a>) -> Result<Self, EngineError> {
        Ok(Self {
            memory: elements.bytes(),
            scatter: ShardScatter::of_job(job, &elements.strides_in(job.grid)?),
        })
    }
}

pub(super) fn encode(
    job: &ShardJob<'_>,
    elements: &ShardElements<'_>,
    (head, tail): (usize, usize),
    spares: Option<&Spares>,
) -> Result<EncodedShard, EngineError> {
    let source = &Source::new(job, elements)?;
    let room = Room { head, tail, spares };
    match job.chain {
        Chain::Known(chain) if chain.is_fixed_size() => encode_fixed_size(job, chain, source, room),
        Chain::Known(chain) => encode_known(job, chain, source, room),
        Chain::Foreign(codec) => encode_foreign(job, codec, source, room),
    }
}

/// Copies the elements of a shard to new memory, in C order.
pub(super) fn gather(
    job: &ShardJob<'_>,
    elements: &ShardElements<'_>,
) -> Result<Vec<u8>, EngineError> {
    /// The bytes of a copy that is worth a place in the schedule.
    const SLAB: usize = 64 << 10;
    // Slabs across the first axis, one after the other and without codecs, are the shard in C order.
    let mut slab: Vec<u64> = job.grid.shard().iter().map(|&n| n as u64).collect();
    let shard = slab.clone();
    if let (Some(slab), [all, ..], [extent, ..]) =
        (slab.first_mut(), job.grid.shard(), job.grid.subchunk())
    {
        let is_long = job.grid.shard_bytes() / (*all).max(1) >= SLAB;
        *slab = if is_long { 1 } else { *extent as u64 };
    }
    let chain = KnownChain {
        order: (0..shard.len()).collect(),
        swap: 1,
        stages: Vec::new(),
    };
    if job.grid.shard_bytes() == 0 {
        return Ok(Vec::new());
    }
    let grid = SubchunkGrid::new(&shard, &slab, job.grid.element_size())
        .map_err(|_| EngineError::Internal("a shard has no slabs"))?;
    let job = ShardJob {
        grid: &grid,
        chain: Chain::Known(&chain),
        store_empty: true,
        ..*job
    };
    let source = Source::new(&job, elements)?;
    match encode_fixed_size(&job, &chain, &source, Room::default()) {
        Ok(gathered) => Ok(gathered.bytes),
        Err(EngineError::OutOfMemory { bytes, .. }) => Err(EngineError::OutOfMemory {
            what: "the gathered elements of a shard",
            bytes,
        }),
        Err(error) => Err(error),
    }
}

/// Returns the error for more bytes than this machine can address.
fn too_large() -> EngineError {
    EngineError::OutOfMemory {
        what: OUTPUT,
        bytes: usize::MAX,
    }
}

/// The room before and behind the subchunks, and memory for the output.
#[derive(Clone, Copy, Default)]
struct Room<'s> {
    head: usize,
    tail: usize,
    spares: Option<&'s Spares>,
}

/// Takes memory for the head, `encoded` bytes and the tail together; the bytes of the head are zeros. For chains
/// that `is_fixed_size`, the pages of new memory are made: all will be used, and encoding takes little longer than
/// making them.
fn output(
    job: &ShardJob<'_>,
    Room { head, tail, spares }: Room<'_>,
    encoded: Option<usize>,
    is_fixed_size: bool,
) -> Result<Segments, EngineError> {
    let capacity = encoded
        .and_then(|encoded| head.checked_add(encoded)?.checked_add(tail))
        .ok_or_else(too_large)?;
    let output = if let Some(spare) = spares.and_then(|spares| spares.take(capacity)) {
        spare
    } else {
        let mut new = allocate::with_capacity(capacity, OUTPUT, job.huge_pages)?;
        if is_fixed_size {
            make_pages(&mut new, capacity, job.threads)?;
        }
        new
    };
    let output = Segments::new(output);
    output.reserve(head)?.append(&vec![0; head])?;
    Ok(output)
}

/// Encodes with a chain whose output has a known size: every subchunk is encoded straight into its place.
fn encode_fixed_size(
    job: &ShardJob<'_>,
    chain: &KnownChain,
    source: &Source<'_>,
    room: Room<'_>,
) -> Result<EncodedShard, EngineError> {
    let Source { memory, scatter } = source;
    let len = stages::encoded_bound(chain, job.grid.subchunk_bytes()).ok_or_else(too_large)?;
    // The only stages of a fixed-size chain are checksums.
    let trailer = chain.stages.len() * crc32c::LEN;
    let stored = stored_subchunks(job, source)?;

    let output = output(job, room, stored.len().checked_mul(len), true)?;

    let schedule = Schedule::new(stored.len(), len, COPY_BATCH, job.threads);
    // Reserve the segments in order, so that any thread may fill any of them.
    let segments = schedule
        .batches()
        .map(|items| Ok(Mutex::new(Some(output.reserve(items.len() * len)?))))
        .collect::<Result<Vec<Mutex<Option<Segment<'_>>>>, EngineError>>()?;
    schedule.run(|_, batch, items| {
        let mut segment = segments[batch]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .ok_or(EngineError::Internal("a batch ran twice"))?;
        for (first, count) in runs(&stored[items], |first, count| scatter.row_len(first, count)) {
            scatter.append(memory, (first, count), &mut segment, trailer, |bytes| {
                let start = bytes.len() - trailer;
                for at in (start..bytes.len()).step_by(crc32c::LEN) {
                    let checksum = crc32c::checksum(&bytes[..at]);
                    bytes[at..at + crc32c::LEN].copy_from_slice(&checksum);
                }
            })?;
        }
        Ok(())
    })?;
    drop(segments);

    let mut extents = vec![None; job.grid.num_subchunks()];
    for (position, &number) in stored.iter().enumerate() {
        let start = room.head + position * len;
        extents[number] = Some(start..start + len);
    }
    Ok(EncodedShard {
        bytes: output.finish()?,
        extents,
    })
}

/// Splits ascending `numbers` into runs of consecutive numbers, `(first, count)`. No run is longer than
/// `longest(first, count)`.
fn runs(
    numbers: &[usize],
    longest: impl Fn(usize, usize) -> usize,
) -> impl Iterator<Item = (usize, usize)> {
    let mut rest = numbers;
    std::iter::from_fn(move || {
        let &first = rest.first()?;
        let consecutive = rest
            .iter()
            .zip(first..)
            .take(Row::MOST)
            .take_while(|(number, expected)| *number == expected)
            .count();
        let count = longest(first, consecutive).max(1);
        rest = &rest[count..];
        Some((first, count))
    })
}

/// Returns the numbers of the subchunks that have to be stored, in order.
fn stored_subchunks(job: &ShardJob<'_>, source: &Source<'_>) -> Result<Vec<usize>, EngineError> {
    let Source { memory, scatter } = source;
    let all = 0..job.grid.num_subchunks();
    if job.store_empty {
        return Ok(all.collect());
    }
    let bytes = job.grid.subchunk_bytes();
    let schedule = Schedule::new(all.len(), bytes, COPY_BATCH, job.threads);
    let found: Vec<Mutex<Vec<usize>>> = schedule.batches().map(|_| Mutex::default()).collect();
    schedule.run(|_, batch, numbers| {
        let stored = numbers.filter(|&n| !scatter.is_empty(memory, n)).collect();
        *found[batch].lock().unwrap_or_else(PoisonError::into_inner) = stored;
        Ok(())
    })?;
    Ok(found
        .into_iter()
        .flat_map(|stored| stored.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect())
}

/// Encodes with a chain that has a compressor: threads gather and compress subchunks, and take turns for a
/// place.
fn encode_known(
    job: &ShardJob<'_>,
    chain: &KnownChain,
    source: &Source<'_>,
    room: Room<'_>,
) -> Result<EncodedShard, EngineError> {
    let Source { memory, scatter } = source;
    let bound = stages::encoded_bound(chain, job.grid.subchunk_bytes()).ok_or_else(too_large)?;
    let all = bound.checked_mul(job.grid.num_subchunks());
    let output = output(job, room, all, false)?;

    let schedule = compress_schedule(job, job.grid.num_subchunks(), 0);
    let aggregate = Aggregate::new(&output, job.grid.num_subchunks());
    let len = job.grid.subchunk_bytes();
    let most_together = most_in_cache(job);
    schedule.run(|scratch, number, subchunks| {
        let buffers = &mut **scratch;
        let mut batch = aggregate.empty_batch();
        let first_of_batch = subchunks.start;
        let stored: Vec<usize> = subchunks
            .clone()
            .filter(|&n| job.store_empty || !scatter.is_empty(memory, n))
            .collect();
        batch.extents.resize(subchunks.len(), None);
        let row_len = |first, count| scatter.row_len(first, count).min(most_together);
        for (first, count) in runs(&stored, row_len) {
            let scattered =
                source
                    .scatter
                    .subchunks(memory, first, count, &mut buffers.subchunk)?;
            for (subchunk, stored) in (first..).zip(scattered.chunks_exact(len)) {
                let extent = batch.append_with(bound, |to| {
                    let (buffers, contexts) = (&mut buffers.stages, &mut buffers.contexts);
                    stages::encode(chain, subchunk, stored, to, buffers, contexts)
                })?;
                batch.extents[subchunk - first_of_batch] = Some(extent);
            }
        }
        aggregate.push(number, batch)
    })?;
    let extents = aggregate.finish();
    let mut bytes = output.finish()?;
    // The reserved bound is nearly the decoded size. Keep only the pages that are used, and room for the
    // tail. The next shard needs the memory of a spare buffer.
    if room.spares.is_none() {
        bytes.shrink_to(bytes.len().saturating_add(room.tail));
    }
    Ok(EncodedShard { bytes, extents })
}

/// Encodes with a chain of the layer above, whose output size is not bounded: collects all subchunks, then
/// copies them.
fn encode_foreign(
    job: &ShardJob<'_>,
    codec: &dyn SubchunkCodec,
    source: &Source<'_>,
    room: Room<'_>,
) -> Result<EncodedShard, EngineError> {
    let Source { memory, scatter } = source;
    let schedule = compress_schedule(job, job.grid.num_subchunks(), 0);
    let batches: Vec<Mutex<EncodedRun>> = schedule.batches().map(|_| Mutex::default()).collect();
    schedule.run(|scratch, number, subchunks| {
        let mut batch = EncodedRun::default();
        for subchunk in subchunks {
            if !job.store_empty && scatter.is_empty(memory, subchunk) {
                batch.extents.push(None);
                continue;
            }
            let elements = source
                .scatter
                .subchunks(memory, subchunk, 1, &mut scratch.subchunk)?;
            let encoded = codec.encode(Cow::Borrowed(elements))?;
            let extent = batch.append(&encoded);
            batch.extents.push(Some(extent));
        }
        *batches[number]
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = batch;
        Ok(())
    })?;
    let batches: Vec<EncodedRun> = batches
        .into_iter()
        .map(|batch| batch.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect();

    let encoded = batches
        .iter()
        .try_fold(0_usize, |sum, batch| sum.checked_add(batch.len()));
    let output = output(job, room, encoded, false)?;
    let aggregate = Aggregate::new(&output, job.grid.num_subchunks());
    for (number, batch) in batches.into_iter().enumerate() {
        aggregate.push(number, batch)?;
    }
    let extents = aggregate.finish();
    Ok(EncodedShard {
        bytes: output.finish()?,
        extents,
    })
}

/// Returns the schedule of `count` subchunks for chains that take long for each subchunk.
pub(super) fn compress_schedule(job: &ShardJob<'_>, count: usize, batch: usize) -> Schedule {
    let batch = batch.max(COMPRESS_BATCH);
    Schedule::new(count, job.grid.subchunk_bytes(), batch, job.threads)
}

/// Returns the schedule of `count` subchunks for chains that do little more than copy.
pub(super) fn copy_schedule(job: &ShardJob<'_>, count: usize) -> Schedule {
    Schedule::new(count, job.grid.subchunk_bytes(), COPY_BATCH, job.threads)
}

#[cfg(test)]
mod tests;

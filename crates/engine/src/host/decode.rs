//! Decodes a shard, or some of its subchunks.

use std::borrow::Cow;

use super::encode::{compress_schedule, copy_schedule};
use super::workers::make_pages;
use crate::contract::{
    Chain, DecodedSubchunk, EncodedSubchunk, EngineError, NeighbourSink, ShardJob, SubchunkCodec,
    SubchunkSink,
};
use crate::layout::{Extent, StridedBox};
use crate::memory::allocate;
use crate::memory::disjoint;
use crate::memory::disjoint::{Boxes, Row};
use crate::subchunk::scatter::swap_bytes;
use crate::subchunk::scratch::ThreadBuffers;
use crate::subchunk::stages;

/// The name of the output in errors about memory.
const OUTPUT: &str = "a decoded shard";

pub(super) fn decode(
    job: &ShardJob<'_>,
    encoded: &[u8],
    extents: &[Extent],
) -> Result<Vec<u8>, EngineError> {
    let mut output = allocate::with_capacity(job.grid.shard_bytes(), OUTPUT, job.huge_pages)?;
    if let Chain::Known(chain) = job.chain
        && chain.is_fixed_size()
    {
        make_pages(&mut output, job.grid.shard_bytes(), job.threads)?;
    }
    let order = job.chain.order(job.grid.shard().len());
    let output = Boxes::new(output, job.grid, &order)?;
    decode_shard(job, encoded, extents, &output)?;
    output.finish()
}

pub(super) fn decode_shard(
    job: &ShardJob<'_>,
    encoded: &[u8],
    extents: &[Extent],
    output: &dyn NeighbourSink,
) -> Result<(), EngineError> {
    if extents.len() != job.grid.num_subchunks() {
        return Err(EngineError::Internal("an index of another shard"));
    }
    let subchunk = |number: usize| {
        let outside = |end| EngineError::Extent {
            subchunk: number,
            end,
            shard: encoded.len(),
        };
        let bytes = match &extents[number] {
            None => None,
            Some(extent) => Some(
                encoded
                    .get(extent.clone())
                    .ok_or_else(|| outside(extent.end))?,
            ),
        };
        Ok(EncodedSubchunk { number, bytes })
    };
    decode_rows(job, extents.len(), subchunk, output)
}

pub(super) fn decode_some(
    job: &ShardJob<'_>,
    subchunks: &[EncodedSubchunk<'_>],
    output: &dyn NeighbourSink,
) -> Result<(), EngineError> {
    decode_rows(job, subchunks.len(), |i| Ok(subchunks[i]), output)
}

pub(super) fn decode_each(
    job: &ShardJob<'_>,
    subchunks: &[EncodedSubchunk<'_>],
    sink: &SubchunkSink<'_>,
) -> Result<(), EngineError> {
    let order = job.chain.order(job.grid.shard().len());
    let boxed = StridedBox::new(&job.grid.one_subchunk(), &order);
    decode_some(job, subchunks, &OneByOne { boxed, sink })
}

/// Decodes `count` subchunks in rows of neighbours. `subchunk(0)` to `subchunk(count - 1)` have ascending
/// numbers.
fn decode_rows<'b>(
    job: &ShardJob<'_>,
    count: usize,
    subchunk: impl Fn(usize) -> Result<EncodedSubchunk<'b>, EngineError> + Sync,
    output: &dyn NeighbourSink,
) -> Result<(), EngineError> {
    let in_cache = (output.most_bytes() / job.grid.subchunk_bytes()).max(1);
    let (schedule, most_together) = match job.chain {
        // Such a chain needs no decoding: rows are copied from the shard itself.
        Chain::Known(chain) if chain.is_fixed_size() && chain.swap <= 1 => {
            (copy_schedule(job, count), Row::MOST)
        }
        Chain::Known(chain) if chain.is_fixed_size() => (copy_schedule(job, count), in_cache),
        _ => (compress_schedule(job, count, output.most_bytes()), in_cache),
    };
    schedule.run(|scratch, _, positions| {
        let mut rest = positions;
        while let Some(position) = rest.next() {
            let first = subchunk(position)?;
            let most = output
                .row_len(first.number, 1 + rest.len())
                .min(most_together);
            let mut bytes = Vec::with_capacity(Row::MOST);
            bytes.extend(first.bytes);
            let mut neighbours = 1;
            while neighbours < most {
                let next = subchunk(position + neighbours)?;
                if next.number != first.number + neighbours
                    || next.bytes.is_some() != first.bytes.is_some()
                {
                    break;
                }
                bytes.extend(next.bytes);
                neighbours += 1;
            }
            rest.start = position + neighbours;
            match first.bytes {
                None => output.fill_neighbours(first.number, neighbours, job.fill_value)?,
                Some(_) => decode_row(job, first.number, &bytes, output, scratch)?,
            }
        }
        Ok(())
    })
}

/// Decodes the neighbours from `first` on, whose encoded bytes are `bytes`, into their places in the output.
fn decode_row(
    job: &ShardJob<'_>,
    first: usize,
    bytes: &[&[u8]],
    output: &dyn NeighbourSink,
    buffers: &mut ThreadBuffers,
) -> Result<(), EngineError> {
    match job.chain {
        Chain::Known(chain) if chain.is_fixed_size() && chain.swap <= 1 => {
            let mut sources = Vec::with_capacity(Row::MOST);
            for (number, encoded) in (first..).zip(bytes) {
                sources.push(stages::decode_fixed_size(
                    chain,
                    number,
                    encoded,
                    job.grid.subchunk_bytes(),
                    job.validate_checksums,
                )?);
            }
            output.write_neighbours(first, &sources, &mut buffers.row)
        }
        Chain::Known(chain) => {
            let len = job.grid.subchunk_bytes();
            let stored = allocate::at_least(&mut buffers.subchunk, len * bytes.len())?;
            let each = stored.chunks_exact_mut(len);
            for ((number, encoded), stored) in (first..).zip(bytes).zip(each) {
                stages::decode(
                    chain,
                    number,
                    encoded,
                    stored,
                    job.validate_checksums,
                    &mut buffers.stages,
                    &mut buffers.contexts,
                )?;
            }
            swap_bytes(stored, chain.swap);
            let sources: Vec<&[u8]> = stored.chunks_exact(len).collect();
            output.write_neighbours(first, &sources, &mut buffers.row)
        }
        Chain::Foreign(codec) => {
            for (number, encoded) in (first..).zip(bytes) {
                let elements = decode_foreign(job, codec, number, encoded)?;
                output.write_neighbours(number, &[&elements], &mut buffers.row)?;
            }
            Ok(())
        }
    }
}

/// Gives single subchunks to a sink, with their elements in C order.
struct OneByOne<'a> {
    /// The box of a subchunk, with its axes in the order of the encoded subchunk.
    boxed: StridedBox,
    sink: &'a SubchunkSink<'a>,
}

impl NeighbourSink for OneByOne<'_> {
    fn row_len(&self, _first: usize, _count: usize) -> usize {
        1
    }

    fn write_neighbours(
        &self,
        first: usize,
        sources: &[&[u8]],
        buffer: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        (first..).zip(sources).try_for_each(|(number, stored)| {
            if self.boxed.is_contiguous() {
                return (self.sink)(number, DecodedSubchunk::Bytes(stored));
            }
            let elements = allocate::at_least(buffer, stored.len())?;
            disjoint::unscatter(stored, &self.boxed, elements)?;
            (self.sink)(number, DecodedSubchunk::Bytes(elements))
        })
    }

    fn fill_neighbours(
        &self,
        first: usize,
        count: usize,
        _element: &[u8],
    ) -> Result<(), EngineError> {
        (first..first + count).try_for_each(|number| (self.sink)(number, DecodedSubchunk::Fill))
    }
}

fn decode_foreign<'b>(
    job: &ShardJob<'_>,
    codec: &dyn SubchunkCodec,
    subchunk: usize,
    bytes: &'b [u8],
) -> Result<Cow<'b, [u8]>, EngineError> {
    let elements = codec.decode(Cow::Borrowed(bytes))?;
    let expected = job.grid.subchunk_bytes();
    if elements.len() == expected {
        Ok(elements)
    } else {
        Err(EngineError::DecodedLength {
            subchunk,
            stage: "the inner codecs",
            got: elements.len(),
            expected,
        })
    }
}

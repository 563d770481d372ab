//! A shard, or some of its subchunks, decoded.

use std::borrow::Cow;

use super::encode::{compress_schedule, copy_schedule, most_in_cache};
use super::workers::Schedule;
use crate::engine::disjoint::{self, Boxes, Row};
use crate::engine::memory;
use crate::engine::subchunk::scatter::swap_bytes;
use crate::engine::subchunk::scratch::Buffers;
use crate::engine::subchunk::stages;
use crate::engine::{
    Chain, Decoded, EncodedSubchunk, EngineError, Job, KnownChain, Sink, SubchunkCodec,
};
use crate::layout::{Extent, StridedBox, SubchunkGrid};

/// What the memory is for, in errors.
const OUTPUT: &str = "a decoded shard";

pub(super) fn decode(
    job: &Job<'_>,
    encoded: &[u8],
    extents: &[Extent],
) -> Result<Vec<u8>, EngineError> {
    if extents.len() != job.grid.num_subchunks() {
        return Err(EngineError::Internal("an index of another shard"));
    }
    let output = memory::with_capacity(job.grid.shard_bytes(), OUTPUT, job.huge_pages)?;
    let c_order: Vec<usize> = (0..job.grid.shard().len()).collect();
    let order = match job.chain {
        Chain::Known(chain) => &chain.order,
        Chain::Foreign(_) => &c_order,
    };
    let output = Boxes::new(output, job.grid, order)?;
    let most_together = match job.chain {
        Chain::Known(chain) if chain.is_fixed_size() && chain.swap <= 1 => Row::MOST,
        _ => most_in_cache(job),
    };
    let schedule = match job.chain {
        Chain::Known(chain) if chain.is_fixed_size() => copy_schedule(job, extents),
        _ => compress_schedule(job),
    };
    schedule.run(|scratch, _, subchunks| {
        let mut rest = subchunks;
        while let Some(first) = rest.next() {
            if extents[first].is_none() {
                output.fill(first, job.fill_value)?;
                continue;
            }
            let row = extents[first..rest.end]
                .iter()
                .take(Row::MOST)
                .map_while(|extent| {
                    let extent = extent.clone()?;
                    Some(encoded.get(extent.clone()).ok_or(extent.end))
                });
            let mut bytes = Vec::with_capacity(Row::MOST);
            for (number, found) in (first..).zip(row) {
                bytes.push(found.map_err(|end| EngineError::Extent {
                    subchunk: number,
                    end,
                    shard: encoded.len(),
                })?);
            }
            bytes.truncate(output.row_len(first, bytes.len()).min(most_together));
            rest.start = first + bytes.len();
            decode_row(job, first, &bytes, &output, scratch)?;
        }
        Ok(())
    })?;
    output.finish()
}

/// Decode the neighbours `first..`, whose encoded bytes are `bytes`, into their places.
fn decode_row(
    job: &Job<'_>,
    first: usize,
    bytes: &[&[u8]],
    output: &Boxes<'_>,
    buffers: &mut Buffers,
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
            output.write_row(first, &sources)
        }
        Chain::Known(chain) => {
            let stored = decode_known(job, chain, first, bytes, buffers)?;
            let sources: Vec<&[u8]> = stored.chunks_exact(job.grid.subchunk_bytes()).collect();
            output.write_row(first, &sources)
        }
        Chain::Foreign(codec) => {
            for (number, encoded) in (first..).zip(bytes) {
                let elements = decode_foreign(job, codec, number, encoded)?;
                output.write_row(number, &[&elements])?;
            }
            Ok(())
        }
    }
}

pub(super) fn decode_each(
    job: &Job<'_>,
    subchunks: &[EncodedSubchunk<'_>],
    sink: &Sink<'_>,
) -> Result<(), EngineError> {
    /// A batch is few enough subchunks that every thread gets one.
    const BATCH: usize = 256 << 10;
    let schedule = Schedule::new(
        subchunks.len(),
        job.grid.subchunk_bytes(),
        BATCH,
        job.threads,
    );
    let reorder = match job.chain {
        Chain::Known(chain) => Reorder::new(job.grid, chain),
        Chain::Foreign(_) => None,
    };
    schedule.run(|scratch, _, positions| {
        for position in positions {
            let subchunk = subchunks[position];
            let Some(bytes) = subchunk.bytes else {
                sink(position, subchunk, Decoded::Fill)?;
                continue;
            };
            match job.chain {
                Chain::Known(chain) => {
                    let stored = decode_known(job, chain, subchunk.number, &[bytes], scratch)?;
                    match &reorder {
                        None => sink(position, subchunk, Decoded::Bytes(stored))?,
                        Some(reorder) => {
                            let mut elements = Vec::new();
                            let elements = reorder.apply(stored, &mut elements)?;
                            sink(position, subchunk, Decoded::Bytes(elements))?;
                        }
                    }
                }
                Chain::Foreign(codec) => {
                    let elements = decode_foreign(job, codec, subchunk.number, bytes)?;
                    sink(position, subchunk, Decoded::Bytes(&elements))?;
                }
            }
        }
        Ok(())
    })
}

/// From the order of axes in which subchunks are stored to C order.
struct Reorder {
    boxed: StridedBox,
}

impl Reorder {
    /// `None` if subchunks are stored in C order.
    fn new(grid: &SubchunkGrid, chain: &KnownChain) -> Option<Self> {
        let boxed = StridedBox::new(&grid.one_subchunk(), &chain.order);
        (!boxed.is_contiguous()).then_some(Self { boxed })
    }

    fn apply<'b>(&self, stored: &[u8], to: &'b mut Vec<u8>) -> Result<&'b [u8], EngineError> {
        let to = memory::at_least(to, stored.len())?;
        disjoint::unscatter(stored, &self.boxed, to)?;
        Ok(to)
    }
}

/// The stored elements of the subchunks `first..`, one after the other, in this machine's byte
/// order.
fn decode_known<'b>(
    job: &Job<'_>,
    chain: &KnownChain,
    first: usize,
    bytes: &[&[u8]],
    buffers: &'b mut Buffers,
) -> Result<&'b [u8], EngineError> {
    let len = job.grid.subchunk_bytes();
    let stored = memory::at_least(&mut buffers.subchunk, len * bytes.len())?;
    for ((number, encoded), stored) in (first..).zip(bytes).zip(stored.chunks_exact_mut(len)) {
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
    Ok(stored)
}

fn decode_foreign<'b>(
    job: &Job<'_>,
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

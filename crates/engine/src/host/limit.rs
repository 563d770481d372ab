//! The benchmark's yardstick: the speed limit of this machine. For every subchunk, it gathers elements and
//! calls the libraries as the engine does. But it writes to warm buffers of each thread, and keeps no output.

use super::encode::{compress_schedule, copy_schedule};
use crate::contract::{Chain, EngineError, ShardJob};
use crate::layout::{Extent, StridedBox};
use crate::memory::allocate::at_least;
use crate::subchunk::scatter::ShardScatter;
use crate::subchunk::{crc32c, stages};

/// Gathers and encodes every subchunk of `decoded`.
pub fn encode(job: &ShardJob<'_>, decoded: &[u8]) -> Result<(), EngineError> {
    let Chain::Known(chain) = job.chain else {
        return Err(EngineError::Internal("a limit is for known chains"));
    };
    let scatter = ShardScatter::of_chain(job.grid, chain, job.fill_value);
    let bound = stages::encoded_bound(chain, job.grid.subchunk_bytes())
        .ok_or(EngineError::Internal("a limit is for shards that fit"))?;
    compress_schedule(job, job.grid.num_subchunks(), 0).run(|scratch, _, subchunks| {
        let buffers = &mut **scratch;
        // The buffer is kept from batch to batch. A chain of one stage does not use it for anything else.
        let mut output = std::mem::take(&mut buffers.stages[1]);
        at_least(&mut output, bound)?;
        for subchunk in subchunks {
            let stored = scatter.subchunks(decoded, subchunk, 1, &mut buffers.subchunk)?;
            if chain.is_fixed_size() {
                for _ in &chain.stages {
                    std::hint::black_box(crc32c::checksum(stored));
                }
            } else {
                let (buffers, contexts) = (&mut buffers.stages, &mut buffers.contexts);
                stages::encode(chain, subchunk, stored, &mut output, buffers, contexts)?;
            }
            std::hint::black_box((stored, &output));
        }
        buffers.stages[1] = output;
        Ok(())
    })
}

/// Decodes every subchunk of `encoded`, and copies it in pieces of the lengths that the pieces in a shard
/// have.
pub fn decode(job: &ShardJob<'_>, encoded: &[u8], extents: &[Extent]) -> Result<(), EngineError> {
    let Chain::Known(chain) = job.chain else {
        return Err(EngineError::Internal("a limit is for known chains"));
    };
    let run = StridedBox::new(job.grid, &chain.order).run();
    let len = job.grid.subchunk_bytes();
    copy_schedule(job, extents.len()).run(|scratch, _, subchunks| {
        let buffers = &mut **scratch;
        let mut copy = std::mem::take(&mut buffers.stages[1]);
        at_least(&mut copy, len)?;
        for subchunk in subchunks {
            let Some(bytes) = extents[subchunk].clone().and_then(|e| encoded.get(e)) else {
                continue;
            };
            let stored = if chain.is_fixed_size() {
                stages::decode_fixed_size(chain, subchunk, bytes, len, job.validate_checksums)?
            } else {
                let stored = at_least(&mut buffers.subchunk, len)?;
                stages::decode(
                    chain,
                    subchunk,
                    bytes,
                    stored,
                    job.validate_checksums,
                    &mut buffers.stages,
                    &mut buffers.contexts,
                )?;
                stored
            };
            for (to, from) in copy.chunks_mut(run).zip(stored.chunks(run)) {
                to.copy_from_slice(from);
            }
            std::hint::black_box(&copy);
        }
        buffers.stages[1] = copy;
        Ok(())
    })
}

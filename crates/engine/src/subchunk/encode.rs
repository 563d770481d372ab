//! Encodes one subchunk on the calling thread alone.

use super::scatter::ShardScatter;
use super::scratch::Scratch;
use super::stages;
use crate::contract::{EngineError, KnownChain, ShardJob};
use crate::memory::allocate;

/// Encodes the subchunk with the number `subchunk` of the decoded shard `decoded`, even if it is empty.
///
/// # Errors
/// [`EngineError::OutOfMemory`], or [`EngineError::Encode`] from a stage.
fn encode_subchunk(
    job: &ShardJob<'_>,
    chain: &KnownChain,
    decoded: &[u8],
    subchunk: usize,
) -> Result<Vec<u8>, EngineError> {
    let scatter = ShardScatter::of_chain(job.grid, chain, job.fill_value);
    let bound = stages::encoded_bound(chain, job.grid.subchunk_bytes()).unwrap_or(usize::MAX);
    let mut encoded = allocate::with_capacity(bound, "an encoded subchunk", false)?;
    encoded.resize(bound, 0);
    let mut scratch = Scratch::take();
    let buffers = &mut *scratch;
    let elements = scatter.subchunks(decoded, subchunk, 1, &mut buffers.subchunk)?;
    let (buffers, contexts) = (&mut buffers.stages, &mut buffers.contexts);
    let len = stages::encode(chain, subchunk, elements, &mut encoded, buffers, contexts)?;
    encoded.truncate(len);
    Ok(encoded)
}

/// Encodes a subchunk like [`encode_subchunk`]. Returns `None` for an empty subchunk, unless the job stores
/// empty subchunks.
pub(crate) fn encode_stored_subchunk(
    job: &ShardJob<'_>,
    chain: &KnownChain,
    decoded: &[u8],
    subchunk: usize,
) -> Result<Option<Vec<u8>>, EngineError> {
    if !job.store_empty
        && ShardScatter::of_chain(job.grid, chain, job.fill_value).is_empty(decoded, subchunk)
    {
        return Ok(None);
    }
    encode_subchunk(job, chain, decoded, subchunk).map(Some)
}

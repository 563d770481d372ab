//! Encodes a batch of a stream from memory that is padded to whole subchunks, the form of other engines.
//!
//! Speed does not matter here. The threads do not belong to rayon: they begin and end with the batch.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::contract::stream::{EncodedPart, StreamChain, StreamJob};
use crate::contract::{EngineError, KnownChain, ShardJob};
use crate::layout::BatchGrid;
use crate::subchunk::encode::encode_stored_subchunk;

/// The decoded bytes that are encoded together, before they are copied into their places. This is about the
/// memory that the function takes beside the stream's own buffers.
const TOGETHER: usize = 4 << 20;

/// Encodes `batch`, which is `padded` to a box of whole subchunks, to the beginning of `output`. Returns the
/// parts of the batch, each in one piece, and the number of bytes that they take, including the room around
/// them.
///
/// # Errors
/// - [`EngineError::Internal`] if the engines do not know the job's chain, the batch is not one of the
///   stream, or `output` is too short.
/// - The errors of a codec.
pub fn encode_padded(
    job: &StreamJob,
    batch: &BatchGrid,
    padded: &[u8],
    output: &mut [u8],
) -> Result<(Vec<EncodedPart>, usize), EngineError> {
    const NO_ROOM: EngineError = EngineError::Internal("an output without room");
    let StreamChain::Known(chain) = &job.chain else {
        return Err(EngineError::Internal("a padded batch of a foreign chain"));
    };
    let grid = (job.grid.padded_batch(batch.epochs()))
        .map_err(|_| EngineError::Internal("a batch that is no box"))?;
    if padded.len() != grid.shard_bytes() {
        return Err(EngineError::Internal("a batch of another length"));
    }
    let shard = job.as_shard(&grid, chain);
    let places = batch.places(&job.grid);
    let mut order = vec![0; places.len()];
    for (number, (place, _)) in places.iter().enumerate() {
        order[*place] = number;
    }
    let together = (TOGETHER / grid.subchunk_bytes().max(1)).max(job.threads.get());
    let mut parts: Vec<EncodedPart> = Vec::with_capacity(batch.parts().len());
    let mut at = 0;
    for part in batch.parts() {
        let first = at + job.room.head;
        at = first;
        let mut sizes = Vec::with_capacity(part.len());
        for numbers in order[part.first..part.first + part.len()].chunks(together) {
            for encoded in encode_all(&shard, chain, padded, numbers)? {
                if let Some(encoded) = &encoded {
                    output
                        .get_mut(at..at + encoded.len())
                        .ok_or(NO_ROOM)?
                        .copy_from_slice(encoded);
                    at += encoded.len();
                }
                sizes.push(encoded.map(|encoded| encoded.len()));
            }
        }
        parts.push(EncodedPart {
            pieces: vec![first..at],
            sizes,
        });
        at += job.room.tail;
    }
    if at > output.len() {
        return Err(NO_ROOM);
    }
    super::count_encoded(job, &parts);
    Ok((parts, at))
}

/// The bytes of an encoded subchunk; `None` if the subchunk is not stored.
type Encoded = Option<Vec<u8>>;

/// Encodes some subchunks, on as many threads as the job allows. Returns them in the same order.
fn encode_all(
    job: &ShardJob<'_>,
    chain: &KnownChain,
    decoded: &[u8],
    numbers: &[usize],
) -> Result<Vec<Encoded>, EngineError> {
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<Encoded>>> = numbers.iter().map(|_| Mutex::default()).collect();
    let work = || -> Result<(), EngineError> {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(&number) = numbers.get(at) else {
                return Ok(());
            };
            let encoded = encode_stored_subchunk(job, chain, decoded, number)?;
            *done[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(encoded);
        }
    };
    let helpers = (job.threads.get() - 1).min(numbers.len().saturating_sub(1));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..helpers)
            .map_while(|_| {
                let thread = std::thread::Builder::new().name("zarrs_cuda encoder".to_string());
                thread.spawn_scoped(scope, work).ok()
            })
            .collect();
        let mut result = work();
        for thread in threads {
            let joined = thread
                .join()
                .unwrap_or(Err(EngineError::Internal("a thread panicked")));
            result = result.and(joined);
        }
        result
    })?;
    done.into_iter()
        .map(|encoded| {
            encoded
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner)
                .ok_or(EngineError::Internal("a subchunk was left out"))
        })
        .collect()
}

//! A batch that a device has failed on, encoded by the host.
//!
//! It is not for speed, and it is not on rayon: the threads are its own, and end with the batch.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::buffers::{CudaInput, CudaOutput};
use super::sizing;
use crate::engine::host::encode_stored_subchunk;
use crate::engine::stream::{EncodedPart, StreamJob};
use crate::engine::{Chain, EngineError, Job, KnownChain};
use crate::layout::{BatchGrid, SubchunkGrid};

/// Decoded bytes that are encoded before they are put into their places: what they take beside the
/// stream's own buffers is about that.
const TOGETHER: usize = 4 << 20;

/// A batch has more epochs than the job says.
pub(super) const TOO_LONG: EngineError = EngineError::Internal("a batch that is too long");

/// The job of a batch as if it were one shard: its padded slices are a box of whole subchunks.
pub(super) struct Whole {
    grid: SubchunkGrid,
}

impl Whole {
    /// # Errors
    /// [`EngineError::Internal`] if the batch is not one of the stream.
    pub(super) fn new(job: &StreamJob, batch: &BatchGrid) -> Result<Self, EngineError> {
        if batch.epochs() > job.epochs {
            return Err(TOO_LONG);
        }
        let counts = sizing::counts(&job.grid, batch.epochs());
        let subchunk = job.grid.shard().subchunk();
        let shape: Vec<u64> = std::iter::zip(&counts, subchunk)
            .map(|(count, extent)| (count * extent) as u64)
            .collect();
        let subchunk: Vec<u64> = subchunk.iter().map(|&extent| extent as u64).collect();
        let grid = SubchunkGrid::new(&shape, &subchunk, job.grid.shard().element_size());
        let grid = grid.map_err(|_| EngineError::Internal("a batch that is no box"))?;
        Ok(Self { grid })
    }

    pub(super) fn job<'a>(&'a self, job: &'a StreamJob, chain: &'a KnownChain) -> Job<'a> {
        Job {
            grid: &self.grid,
            chain: Chain::Known(chain),
            fill_value: &job.fill_value,
            store_empty: job.store_empty,
            validate_checksums: true,
            threads: job.threads,
            huge_pages: job.huge_pages,
        }
    }
}

/// Encode a batch, all of which is in pinned memory.
///
/// # Errors
/// The host's.
pub(super) fn encode(
    input: &CudaInput,
    batch: &BatchGrid,
    output: &mut CudaOutput,
) -> Result<Vec<EncodedPart>, EngineError> {
    let shared = input.shared.clone();
    let whole = Whole::new(&shared.job, batch)?;
    let job = whole.job(&shared.job, &shared.chain);
    let decoded = input.bytes(batch.epochs());
    let places = batch.places(&shared.job.grid);
    let mut order = vec![0; places.len()];
    for (number, (place, _)) in places.iter().enumerate() {
        order[*place] = number;
    }
    let together = (TOGETHER / job.grid.subchunk_bytes().max(1)).max(job.threads.get());
    let room = shared.job.room;
    let to = output.as_mut();
    let mut parts: Vec<EncodedPart> = Vec::with_capacity(batch.parts().len());
    let mut at = 0;
    for part in batch.parts() {
        let first = at + room.head;
        at = first;
        let mut sizes = Vec::with_capacity(part.len());
        for numbers in order[part.first..part.first + part.len()].chunks(together) {
            for encoded in encode_all(&job, &shared.chain, decoded, numbers)? {
                if let Some(encoded) = &encoded {
                    to.get_mut(at..at + encoded.len())
                        .ok_or(EngineError::Internal("an output without room"))?
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
        at += room.tail;
    }
    if at > to.len() {
        return Err(EngineError::Internal("an output without room"));
    }
    output.truncate(at);
    Ok(parts)
}

/// What a subchunk is encoded to, if it is stored.
type Encoded = Option<Vec<u8>>;

/// Encode some subchunks, in their order, on as many threads as the job allows.
fn encode_all(
    job: &Job<'_>,
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

//! Encodes updates of elements of a fixed size: the engines decode and encode the subchunks that an update
//! touches, as one batch.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use rayon::iter::{IndexedParallelIterator, IntoParallelRefIterator, ParallelIterator};
use zarrs_codec::{CodecError, CodecOptions};

use super::reads::FetchedRanges;
use super::update::{Changes, TouchedSubchunk, Update, not_read};
use crate::plan;
use crate::shard::error::other;
use crate::shard::error::{caused, codec_error, no_memory, sourced};
use crate::shard::selection::Selection;
use zarrs_cuda_engine::contract::{DecodedSubchunk, EncodedSubchunk, EngineError, ShardJob};
use zarrs_cuda_engine::layout::{RECORD_LEN, SubchunkGrid, SubchunkPart};

/// Encodes the changed subchunks of `update`, whose elements have a fixed size, by the engines.
pub(super) fn encode(
    update: &Update<'_>,
    elements: &[u8],
    fetched: &FetchedRanges<'_>,
    options: &CodecOptions,
) -> Result<Changes, CodecError> {
    if let Selection::Window { shape, .. } = &update.selection
        && update.touched.iter().all(|touched| touched.whole)
    {
        // The elements are already laid out as a smaller shard of the touched subchunks.
        let to_u64 = |shape: &[usize]| shape.iter().map(|&n| n as u64).collect::<Vec<_>>();
        let (window, subchunk) = (to_u64(shape), to_u64(update.grid.subchunk()));
        let batch = SubchunkGrid::new(&window, &subchunk, update.grid.element_size());
        return encode_batch(update, &batch.map_err(too_large)?, elements, options);
    }
    let batch = update
        .grid
        .stacked(update.touched.len())
        .map_err(too_large)?;
    let mut decoded = Vec::new();
    let len = batch.shard_bytes();
    decoded
        .try_reserve_exact(len)
        .map_err(|_| no_memory("the subchunks that a partial write touches", len))?;
    decoded.resize(len, 0);
    decode_and_patch(update, &mut decoded, elements, fetched, options)?;
    encode_batch(update, &batch, &decoded, options)
}

/// Writes the new content of the touched subchunks to `decoded`, one subchunk after the other.
fn decode_and_patch(
    update: &Update<'_>,
    decoded: &mut [u8],
    elements: &[u8],
    fetched: &FetchedRanges<'_>,
    options: &CodecOptions,
) -> Result<(), CodecError> {
    let subchunks: Vec<Mutex<&mut [u8]>> = decoded
        .chunks_exact_mut(update.grid.subchunk_bytes())
        .map(Mutex::new)
        .collect();
    let mut straddled = HashMap::new();
    let mut encoded = Vec::new();
    for (subchunk, touched) in subchunks.iter().zip(&update.touched) {
        if touched.whole {
            continue;
        }
        let bytes = match &touched.extent {
            None => None,
            Some(extent) => Some(fetched.get(extent).ok_or_else(not_read)?),
        };
        straddled.insert(touched.number, subchunk);
        encoded.push(EncodedSubchunk {
            number: touched.number,
            bytes,
        });
    }
    update
        .target
        .with_job(options, |job| {
            plan::host_engine().decode_each(job, &encoded, &|number, decoded| {
                let mut subchunk = lock(straddled[&number]);
                match decoded {
                    DecodedSubchunk::Bytes(bytes) => subchunk.copy_from_slice(bytes),
                    DecodedSubchunk::Fill => fill(&mut subchunk, job.fill_value),
                }
                Ok(())
            })
        })
        .map_err(codec_error)?;
    let patch = |(subchunk, touched): (&Mutex<&mut [u8]>, &TouchedSubchunk)| {
        patch(update, touched.number, &mut lock(subchunk), elements);
    };
    // The number of bytes from which copying on several threads is faster: fewer bytes are copied before
    // another thread has begun.
    const WORTH_A_THREAD: usize = 1 << 20;
    if options.concurrent_target() == 1 || elements.len() < WORTH_A_THREAD {
        subchunks.iter().zip(&update.touched).for_each(patch);
    } else {
        subchunks.par_iter().zip(&update.touched).for_each(patch);
    }
    Ok(())
}

/// Writes those `elements` that lie in subchunk `number` to the decoded bytes `subchunk`.
fn patch(update: &Update<'_>, number: usize, subchunk: &mut [u8], elements: &[u8]) {
    match &update.selection {
        Selection::Window { start, shape } => {
            let part = SubchunkPart::new(update.grid, number, start, shape);
            let len = part.row_len();
            for (to, from) in part.rows(shape) {
                subchunk[to..to + len].copy_from_slice(&elements[from..from + len]);
            }
        }
        Selection::Points(points) => {
            let size = update.grid.element_size();
            // The points are in the order of the indexer. If several points name one element, the last one
            // counts.
            for point in points.get(&number).into_iter().flatten() {
                let from = point.position * size;
                subchunk[point.offset..point.offset + size]
                    .copy_from_slice(&elements[from..from + size]);
            }
        }
    }
}

/// Encodes the elements `decoded`, laid out as a shard of `grid` whose subchunks are the touched subchunks.
fn encode_batch(
    update: &Update<'_>,
    grid: &SubchunkGrid,
    decoded: &[u8],
    options: &CodecOptions,
) -> Result<Changes, CodecError> {
    let engine = update.target.choose_engine_for(grid).map_err(other)?.engine;
    let encoded = update
        .target
        .with_job(options, |job| {
            let job = ShardJob { grid, ..*job };
            engine.encode(&job, decoded, RECORD_LEN, 0)
        })
        .map_err(codec_error)?;
    if encoded.extents.len() != update.touched.len() {
        return Err(codec_error(EngineError::Internal(
            "a batch of other subchunks",
        )));
    }
    let numbers = update.touched.iter().map(|touched| touched.number);
    Ok(Changes {
        subchunks: numbers.zip(encoded.extents).collect(),
        bytes: encoded.bytes,
        fragile: Vec::new(),
    })
}

fn lock<'m, 's>(subchunk: &'m Mutex<&'s mut [u8]>) -> std::sync::MutexGuard<'m, &'s mut [u8]> {
    subchunk.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fill(bytes: &mut [u8], value: &[u8]) {
    for element in bytes.chunks_exact_mut(value.len()) {
        element.copy_from_slice(value);
    }
}

fn too_large(error: impl std::error::Error + Send + Sync + 'static) -> CodecError {
    let message = format!("the subchunks of a partial write: {error}");
    caused(message, &sourced(error))
}

//! Where the subchunks of a batch go, by the device's answer.

use std::ops::Range;

use super::shared::Shared;
use crate::engine::cuda::answer::{Answer, wrong_answer};
use crate::engine::cuda::driver::DriverError;
use crate::engine::cuda::session::Session;
use crate::engine::stream::EncodedPart;
use crate::layout::BatchGrid;

/// Where a batch goes.
pub(super) struct Layout {
    pub(super) parts: Vec<EncodedPart>,
    /// The copies to make: a range of the dense bytes, and where it goes in the output.
    pub(super) copies: Vec<(Range<usize>, usize)>,
    /// The subchunks that the host has encoded: the number of each, and where it goes in the
    /// output.
    pub(super) on_host: Vec<(usize, usize)>,
    /// Bytes of the output.
    pub(super) len: usize,
}

impl Layout {
    /// Computes where everything goes. `on_host` returns the length of a subchunk that the host has
    /// encoded.
    ///
    /// # Errors
    /// The answer is impossible.
    pub(super) fn new(
        session: &Session<'_>,
        shared: &Shared,
        batch: &BatchGrid,
        answer: &Answer,
        on_host: &dyn Fn(usize) -> usize,
    ) -> Result<Self, DriverError> {
        let job = &shared.job;
        let per_shard = job.grid.batch_subchunks_per_shard(batch.epochs());
        let counts = job.grid.batch_subchunks(batch.epochs());
        let places: usize = per_shard.iter().product();
        let mut layout = Self {
            parts: Vec::with_capacity(batch.parts().len()),
            copies: Vec::new(),
            on_host: Vec::new(),
            len: 0,
        };
        let mut end = 0;
        for (part_number, part) in batch.parts().iter().enumerate() {
            let first = layout.len + job.room.head;
            let mut at = first;
            let mut sizes = Vec::with_capacity(part.len());
            for place in 0..places {
                let number = subchunk(place, &per_shard, &part.shard, &part.counts, &counts);
                let place = part_number * places + place;
                let start = end;
                end = answer.end_of(session, place, start)?;
                let len = end - start;
                let Some(number) = number else {
                    if len > 0 {
                        let what = format!("place {place}, of no subchunk, has {len} bytes");
                        return Err(wrong_answer(session, &what));
                    }
                    continue;
                };
                answer.check_size(session, number, len, job.store_empty)?;
                let encoded = if answer.has_failed(number) == Some(true) {
                    layout.on_host.push((number, at));
                    on_host(number)
                } else {
                    match layout.copies.last_mut() {
                        Some((from, to)) if from.end == start && *to + from.len() == at => {
                            from.end = end;
                        }
                        _ if len > 0 => layout.copies.push((start..end, at)),
                        _ => {}
                    }
                    len
                };
                sizes.push((encoded > 0).then_some(encoded));
                at += encoded;
            }
            layout.parts.push(EncodedPart {
                pieces: vec![first..at],
                sizes,
            });
            layout.len = at + job.room.tail;
        }
        Ok(layout)
    }
}

/// The number of the subchunk in a place of a shard, in C order of the batch. `None` if the shard
/// has no subchunk in that place.
fn subchunk(
    mut place: usize,
    per_shard: &[usize],
    shard: &[usize],
    in_shard: &[usize],
    counts: &[usize],
) -> Option<usize> {
    let (mut number, mut stride) = (0, 1);
    for axis in (0..counts.len()).rev() {
        let within = place % per_shard[axis];
        place /= per_shard[axis];
        if within >= in_shard[axis] {
            return None;
        }
        number += (shard[axis] * per_shard[axis] + within) * stride;
        stride *= counts[axis];
    }
    Some(number)
}

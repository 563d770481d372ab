//! What a device says about a batch: where its encoded subchunks are, and which ones it has not.

use std::ops::Range;

use super::encoder::StreamSession;
use super::shared::Shared;
use crate::engine::cuda::driver::DriverError;
use crate::engine::cuda::encode::is_possible;
use crate::engine::stream::EncodedPart;
use crate::layout::BatchGrid;

/// The offsets of all places, and of each subchunk whether the compressor failed on it; of none, if
/// there is no compressor.
pub(super) struct Answer {
    pub(super) offsets: Vec<u64>,
    pub(super) failed: Vec<bool>,
}

/// Where a batch goes.
pub(super) struct Layout {
    pub(super) parts: Vec<EncodedPart>,
    /// What to copy: from where in the dense bytes, and to where in the output.
    pub(super) copies: Vec<(Range<usize>, usize)>,
    /// Of the subchunks that the host has encoded: which of them, and where it goes.
    pub(super) on_host: Vec<(usize, usize)>,
    /// Bytes of the output.
    pub(super) len: usize,
}

impl Answer {
    /// The subchunks that the host has to encode, in the order of their places.
    pub(super) fn failed(&self) -> impl Iterator<Item = usize> {
        let failed = self.failed.iter().enumerate();
        failed.filter_map(|(number, failed)| failed.then_some(number))
    }

    /// Where everything goes, if `on_host` has the bytes of each subchunk that the host has encoded.
    ///
    /// # Errors
    /// The answer is an impossible one.
    pub(super) fn layout(
        &self,
        session: &StreamSession<'_>,
        shared: &Shared,
        batch: &BatchGrid,
        on_host: &dyn Fn(usize) -> usize,
    ) -> Result<Layout, DriverError> {
        let job = &shared.job;
        let per_shard = job.grid.batch_subchunks_per_shard(batch.epochs());
        let counts = job.grid.batch_subchunks(batch.epochs());
        let places: usize = per_shard.iter().product();
        let mut layout = Layout {
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
                end = self.end_of(session, place, start)?;
                let len = end - start;
                let Some(number) = number else {
                    if len > 0 {
                        let what = format!("place {place}, of no subchunk, has {len} bytes");
                        return Err(session.wrong_answer(&what));
                    }
                    continue;
                };
                let most = session.sizing.encoded;
                let failed = self.failed.get(number).copied();
                if !is_possible(len, most, failed, job.store_empty) {
                    return Err(session.wrong_answer(&format!(
                        "subchunk {number} has {len} bytes, where an encoded one has {most}"
                    )));
                }
                let encoded = if failed == Some(true) {
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

    /// The end of what is in `place`, which has to begin at `start`.
    fn end_of(
        &self,
        session: &StreamSession<'_>,
        place: usize,
        start: usize,
    ) -> Result<usize, DriverError> {
        let offsets = (self.offsets.get(place), self.offsets.get(place + 1));
        if let (Some(&from), Some(&to)) = offsets
            && from == start as u64
            && to >= from
            && let Ok(end) = usize::try_from(to)
        {
            return Ok(end);
        }
        let what =
            format!("place {place} is at {offsets:?}, and the one before it ends at {start}");
        Err(session.wrong_answer(&what))
    }
}

/// The number of the subchunk in a place of a shard, in C order of the batch. `None` if the shard has
/// none there.
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

//! Computes the places of a batch's subchunks in the output from the device's answer.

use std::ops::Range;

use super::shared::StreamLane;
use crate::contract::stream::EncodedPart;
use crate::cuda::answer::{Answer, wrong_answer};
use crate::cuda::driver::DriverError;
use crate::cuda::session::Session;
use crate::layout::BatchGrid;

/// The layout of an encoded batch in its output.
pub(super) struct Layout {
    pub(super) parts: Vec<EncodedPart>,
    /// The copies to make: each is a range of the dense bytes, and its place in the output.
    pub(super) copies: Vec<(Range<usize>, usize)>,
    /// All subchunks of the batch.
    pub(super) subchunks: Vec<PlacedSubchunk>,
    /// The number of bytes of the output.
    pub(super) len: usize,
}

/// A subchunk of a batch, and its place in the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlacedSubchunk {
    /// The number of the subchunk, in C order of the batch.
    pub(super) number: usize,
    /// The place of the encoded subchunk in the output; `None` if the subchunk is not stored.
    pub(super) place: Option<Range<usize>>,
    /// Whether the host has encoded the subchunk, because the compressor failed on it.
    pub(super) by_host: bool,
}

/// One copy from the device, of parts that lie next to each other in the dense bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transfer<'a> {
    /// The range of the dense bytes that is copied.
    pub(super) from: Range<usize>,
    /// The first place of these bytes in the output. They end where the last part ends.
    pub(super) to: usize,
    /// The range and the place of each part. The place of no part is behind the part's bytes in the transfer.
    pub(super) parts: &'a [(Range<usize>, usize)],
}

impl Transfer<'_> {
    /// Returns the range of the output from the first part to the last, with the room between parts.
    pub(super) fn place(&self) -> Range<usize> {
        let first = self.parts.first().map_or(self.to, |(_, to)| *to);
        first..self.to + self.from.len()
    }

    /// Moves the parts from the transfer's bytes in `output` to the parts' places.
    pub(super) fn spread(&self, output: &mut [u8]) {
        let mut at = self.to;
        for (from, to) in self.parts {
            // Nothing is overwritten before it is moved: all bytes are moved towards the front, in order.
            if at != *to {
                output.copy_within(at..at + from.len(), *to);
            }
            at += from.len();
        }
    }
}

/// Divides `copies`, in their order, into few transfers. Neighbours of at most `small` bytes each are copied
/// in one transfer.
pub(super) fn transfers(copies: &[(Range<usize>, usize)], small: usize) -> Vec<Transfer<'_>> {
    let are_one = |(a, _): &(Range<usize>, usize), (b, _): &(Range<usize>, usize)| {
        a.len() <= small && b.len() <= small && a.end == b.start
    };
    let together = copies.chunk_by(are_one);
    let transfers = together.filter_map(|parts| {
        let ((first, _), (last, to)) = (parts.first()?, parts.last()?);
        let from = first.start..last.end;
        Some(Transfer {
            to: to + last.len() - from.len(),
            from,
            parts,
        })
    });
    transfers.collect()
}

impl Layout {
    /// Computes the layout of a batch. `on_host` returns the length of a subchunk that the host has encoded.
    ///
    /// # Errors
    /// The device's answer is impossible.
    pub(super) fn new(
        session: &Session<'_>,
        shared: &StreamLane,
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
            subchunks: Vec::with_capacity(counts.iter().product()),
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
                let by_host = answer.has_failed(number);
                let encoded = if by_host {
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
                layout.subchunks.push(PlacedSubchunk {
                    number,
                    place: (encoded > 0).then_some(at..at + encoded),
                    by_host,
                });
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

/// Returns the number of the subchunk at `place` of a shard, in C order of the batch. `None` if the shard has
/// no subchunk in that place.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_neighbours_are_one_transfer() {
        // Two small parts, a large one, and three small ones with room around each. Between the
        // last two, the host has encoded 9 bytes.
        let copies = [
            (0..4, 3),
            (4..8, 10),
            (8..18, 17),
            (18..20, 30),
            (20..24, 35),
            (24..25, 51),
        ];
        let found = transfers(&copies, 4);
        let expected = [(0..8, 6, 0..2), (8..18, 17, 2..3), (18..25, 45, 3..6)];
        assert_eq!(found.len(), expected.len());
        for (found, (from, to, parts)) in std::iter::zip(&found, expected) {
            let parts = &copies[parts];
            assert_eq!(found, &Transfer { from, to, parts });
        }
        assert_eq!(found[2].place(), 30..52);
        assert_eq!(transfers(&copies, 0).len(), copies.len());
        assert!(transfers(&[], 4).is_empty());
    }

    proptest! {
        #![proptest_config(zarrs_cuda_testing::effort::config(128))]

        /// Compares the transfers with one copy for each part.
        #[test]
        fn parts_end_where_copies_of_their_own_would_put_them(
            parts in prop::collection::vec((0..3_usize, 0..7_usize, 1..12_usize), 0..12),
            small in 0..12_usize,
        ) {
            let (mut dense, mut end) = (0, 0);
            let mut copies = Vec::new();
            for (skipped, room, len) in parts {
                // Dense bytes that no part has do not occur, but would be no mistake here.
                dense += if skipped == 2 { 3 } else { 0 };
                copies.push((dense..dense + len, end + room));
                (dense, end) = (dense + len, end + room + len);
            }
            let bytes: Vec<u8> = (0..dense).map(|n| n as u8).collect();
            let mut expected = vec![None; end];
            for (from, to) in &copies {
                for (i, byte) in bytes[from.clone()].iter().enumerate() {
                    expected[to + i] = Some(*byte);
                }
            }
            let mut output = vec![0xee; end];
            let mut places = 0;
            let transfers = transfers(&copies, small);
            for transfer in &transfers {
                let place = transfer.place();
                prop_assert!(places <= place.start && place.start <= transfer.to);
                places = place.end;
                output[transfer.to..place.end].copy_from_slice(&bytes[transfer.from.clone()]);
            }
            for transfer in &transfers {
                transfer.spread(&mut output);
            }
            for (at, byte) in expected.into_iter().enumerate() {
                prop_assert!(byte.is_none_or(|byte| byte == output[at]), "byte {}", at);
            }
        }
    }
}

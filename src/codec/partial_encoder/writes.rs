//! Makes the store's writes of changed subchunks, records and index, in the order that the protocol asks for.

use std::ops::Range;

use super::commit::Placed;
use super::reads::FetchedRanges;
use super::update::{Changes, Update};
use zarrs_cuda_engine::layout::placement::Commit;
use zarrs_cuda_engine::layout::{Extent, RECORD_LEN, Record};

/// The bytes that one call of the store writes, each with its offset, in this order.
pub(super) type WriteCall = Vec<(u64, Vec<u8>)>;

/// The number of bytes from which a piece is written by itself, and not copied into one piece with its
/// neighbours.
const LARGE: usize = 256 << 10;

/// Returns the calls of the store, one after the other. Each call has pieces of bytes with their offsets, in
/// this order.
///
/// For a subchunk that is overwritten where it was, bytes that do not change are left out, if its bytes do
/// not depend on each other and `fetched` has the old bytes.
pub(super) fn writes(
    update: &Update<'_>,
    placed: Placed,
    changes: &mut Changes,
    fetched: &FetchedRanges<'_>,
) -> Vec<WriteCall> {
    let Placed {
        commit,
        extents,
        index,
        record,
        creates,
        ..
    } = placed;
    let index = index.unwrap_or_default();
    let record_bytes = record.to_bytes();
    let before_index = |at: usize| {
        let offset = (at - RECORD_LEN) as u64;
        Record { offset, ..record }.to_bytes()
    };
    if let Commit::Grow { record, index: at } = commit
        && is_one_run(&extents, changes, record, at)
    {
        // The encoded bytes have the same order as in the shard, with room for the record before them.
        changes.bytes[..RECORD_LEN].copy_from_slice(&record_bytes);
        if at > record + RECORD_LEN {
            changes.bytes.extend_from_slice(&before_index(at));
        }
        let first = vec![(record as u64, std::mem::take(&mut changes.bytes))];
        return with_index(update, first, at, index);
    }
    let data = data(update, &extents, changes, fetched);
    match commit {
        Commit::DataOnly => {
            let data = joined(&data);
            if data.is_empty() { vec![] } else { vec![data] }
        }
        Commit::Grow { record, index: at } => {
            let second = before_index(at);
            let mut pieces = data;
            pieces.push((record, &record_bytes));
            if at > record + RECORD_LEN {
                pieces.push((at - RECORD_LEN, &second));
            }
            // Until a byte is written behind the old end there is nothing to undo. But if the update creates
            // the shard, the record comes first, because `recover` knows such a shard by its record.
            pieces.sort_by_key(|&(offset, _)| (offset != record || !creates, offset));
            with_index(update, joined(&pieces), at, index)
        }
        Commit::Rewrite { record, copy } => {
            // The record and the copy lie behind all data, in this order. If the index is at the end, a
            // complete record then shows that the copy is complete; if it is at the start, the order does not
            // matter.
            let mut pieces = data;
            pieces.push((record, &record_bytes));
            pieces.push((copy, &index));
            pieces.sort_by_key(|&(offset, _)| offset);
            let first = joined(&pieces);
            if !update.target.index.is_at_end() {
                return vec![first, vec![(0, index)]];
            }
            let end = (record + RECORD_LEN) as u64;
            vec![first, vec![(end, index)]]
        }
    }
}

/// Returns the bytes of changed subchunks to write, each with its offset.
fn data<'c>(
    update: &Update<'_>,
    extents: &[Extent],
    changes: &'c Changes,
    fetched: &FetchedRanges<'_>,
) -> Vec<(usize, &'c [u8])> {
    let in_pieces = update.target.is_written_in_pieces();
    let mut data = Vec::new();
    for ((number, new), extent) in changes.subchunks.iter().zip(extents) {
        let (Some(new), Some(extent)) = (new, extent) else {
            continue;
        };
        let new = changes.encoded(new);
        let touched = update
            .touched
            .binary_search_by_key(number, |touched| touched.number)
            .ok()
            .map(|at| &update.touched[at]);
        let old = touched
            .filter(|touched| in_pieces && !touched.whole)
            .and_then(|touched| touched.extent.as_ref())
            .filter(|old| old.start == extent.start)
            .and_then(|old| fetched.get(old));
        match old {
            Some(old) => data.extend(
                differences(old, new)
                    .into_iter()
                    .map(|range| (extent.start + range.start, &new[range])),
            ),
            None => data.push((extent.start, new)),
        }
    }
    data
}

/// Returns the call `first` with the index, or its copy, added at the offset `at`. If the index is at the
/// start, a second call writes it.
fn with_index(
    update: &Update<'_>,
    mut first: WriteCall,
    at: usize,
    index: Vec<u8>,
) -> Vec<WriteCall> {
    let again = (!update.target.index.is_at_end()).then(|| vec![(0, index.clone())]);
    match first.last_mut() {
        Some((start, before)) if follows(*start, before, at) && index.len() < LARGE => {
            before.reserve_exact(index.len());
            before.extend_from_slice(&index);
        }
        _ => first.push((at as u64, index)),
    }
    std::iter::once(first).chain(again).collect()
}

/// Returns whether a piece at `at` follows directly on the bytes `before`, which begin at `start` and are
/// fewer than [`LARGE`].
fn follows(start: u64, before: &[u8], at: usize) -> bool {
    start + before.len() as u64 == at as u64 && before.len() < LARGE
}

/// Returns whether record, changes, record and index follow one another in the shard in the order of
/// `changes`.
fn is_one_run(extents: &[Extent], changes: &Changes, record: usize, index: usize) -> bool {
    let mut next = RECORD_LEN;
    let mut placed = changes.subchunks.iter().zip(extents);
    let in_order = placed.all(|((_, new), extent)| match new {
        None => true,
        Some(new) => {
            let follows = new.start == next;
            next = new.end;
            let there = extent.as_ref().map(|extent| extent.start);
            follows && there == Some(record + new.start)
        }
    });
    let second_record = if next > RECORD_LEN { RECORD_LEN } else { 0 };
    in_order && next == changes.bytes.len() && index == record + next + second_record
}

/// Joins pieces that follow one another in the shard, unless they are large.
fn joined(mut pieces: &[(usize, &[u8])]) -> WriteCall {
    let mut joined = WriteCall::new();
    while let [(offset, first), rest @ ..] = pieces {
        let mut len = first.len();
        let follow = rest.iter().take_while(|(at, piece)| {
            let follows = *at == offset + len && len < LARGE && piece.len() < LARGE;
            len += if follows { piece.len() } else { 0 };
            follows
        });
        let (run, others) = pieces.split_at(1 + follow.count());
        // The capacity is exact: a large index would take its memory twice in a vector that grows.
        let mut bytes = Vec::with_capacity(len);
        for (_, piece) in run {
            bytes.extend_from_slice(piece);
        }
        joined.push((*offset as u64, bytes));
        pieces = others;
    }
    joined
}

/// Returns the ranges of `new` that differ from `old`. Short runs of equal bytes between them are included.
fn differences(old: &[u8], new: &[u8]) -> Vec<Range<usize>> {
    /// Two runs with fewer bytes than this between them are written as one run.
    const NEAR: usize = 4 << 10;
    /// The number of bytes that are compared at once.
    const BLOCK: usize = 256;
    let mut runs: Vec<Range<usize>> = Vec::new();
    for start in (0..new.len()).step_by(BLOCK) {
        let end = (start + BLOCK).min(new.len());
        if old.get(start..end) == Some(&new[start..end]) {
            continue;
        }
        match runs.last_mut() {
            Some(last) if start < last.end + NEAR => last.end = end,
            _ => runs.push(start..end),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_written() {
        let old = vec![0_u8; 100_000];
        let mut new = old.clone();
        assert!(differences(&old, &new).is_empty());
        new[300] = 1;
        new[600] = 1;
        new[50_000] = 1;
        new.push(0);
        let runs = differences(&old, &new);
        assert_eq!(runs, [256..768, 49_920..50_176, 99_840..100_001]);
        assert_eq!(differences(&[], &new[..10]), [0..10]);
        assert!(differences(&new, &new[..10]).is_empty());
    }
}

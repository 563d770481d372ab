//! Gives lower levels the stored slices of the level above.

use std::ops::Range;
use std::sync::mpsc::sync_channel;

use zarrs::array::{Array, ArraySubset};
use zarrs_storage::ReadableWritableStorageTraits;

use super::cascade::Cascade;
use super::plan::Plan;
use crate::reader::{ArrayReader, Cancel, Output, ReaderError};
use crate::writer::WriterError;

/// Gives each level the stored slices of the level above that it lacks.
///
/// The lowest level comes first: all slices that its writer lacks can be made of stored slices. The slices
/// that a level gets here go on to the levels below, which then lack no earlier slices.
pub(super) fn feed<TStorage>(
    plan: &Plan<TStorage>,
    lower: &mut Cascade,
    cancel: &Cancel,
) -> Result<(), WriterError>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
{
    for level in (0..lower.levels.len()).rev() {
        let above = &plan.arrays[level];
        let first = plan.length(level + 1) * plan.levels[level + 1].factors[0];
        let slices = first..plan.length(level);
        let block = plan.levels[level].subchunk[0];
        for_each_slice(above, slices, block, cancel, &mut |slice| {
            lower.settle(true)?;
            lower.add(level, slice)
        })?;
    }
    lower.settle(true).map(|_| ())
}

/// Calls `take` with the bytes of each of the `slices` of `array`. Meanwhile a thread reads the next slices,
/// `block` slices at once.
pub(super) fn for_each_slice<TStorage>(
    array: &Array<TStorage>,
    slices: Range<u64>,
    block: u64,
    cancel: &Cancel,
    take: &mut dyn FnMut(&[u8]) -> Result<(), WriterError>,
) -> Result<(), WriterError>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
{
    let Range { start, end } = slices;
    if start >= end {
        return Ok(());
    }
    let failed = |range: &Range<u64>, source| WriterError::Read {
        path: array.path().to_string(),
        first: range.start,
        last: range.end - 1,
        source: Box::new(source),
    };
    let reader = ArrayReader::builder(array).build();
    let reader = reader.map_err(|error| failed(&(start..end), error))?;
    let element = array.data_type().fixed_size().unwrap_or(1);
    let slice: u64 = array.shape()[1..].iter().product();
    let slice = usize::try_from(slice)
        .unwrap_or(usize::MAX)
        .saturating_mul(element);
    std::thread::scope(|scope| {
        let (send, blocks) = sync_channel(1);
        let read = move || {
            let mut at = start;
            while at < end {
                // A block ends at the border of a subchunk, so that no subchunk is read twice.
                let range = at..end.min((at / block + 1).saturating_mul(block));
                at = range.end;
                let read = read_block(&reader, &range, slice);
                let is_last = read.is_err();
                let block = read.map_err(|error| failed(&range, error));
                if send.send(block).is_err() || is_last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("zarrs_cuda levels".to_owned());
        thread
            .spawn_scoped(scope, read)
            .map_err(|error| WriterError::Unsupported {
                reason: format!("no thread to read the level above: {error}"),
            })?;
        for block in blocks {
            for slice in block?.chunks_exact(slice.max(1)) {
                if cancel.is_cancelled() {
                    return Err(WriterError::Cancelled);
                }
                take(slice)?;
            }
        }
        Ok(())
    })
}

fn read_block<TStorage>(
    reader: &ArrayReader<TStorage>,
    slices: &Range<u64>,
    slice: usize,
) -> Result<Vec<u8>, ReaderError>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
{
    let len =
        slice.saturating_mul(usize::try_from(slices.end - slices.start).unwrap_or(usize::MAX));
    let inner = reader.array().shape()[1..].iter().map(|extent| 0..*extent);
    let ranges: Vec<_> = std::iter::once(slices.clone()).chain(inner).collect();
    let subset = ArraySubset::new_with_ranges(&ranges);
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(len)
        .map_err(|_| ReaderError::Memory {
            what: "slices of a level",
            bytes: len,
        })?;
    bytes.resize(len, 0);
    reader.read_bytes_into(&subset, Output::contiguous(&mut bytes))?;
    Ok(bytes)
}

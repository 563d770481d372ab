//! Gives lower levels the stored slices of the level above.

use std::ops::Range;
use std::sync::mpsc::sync_channel;

use zarrs::array::Array;
use zarrs_storage::ReadableWritableStorageTraits;

use super::cascade::Cascade;
use super::plan::Plan;
use crate::reader::Cancel;
use crate::writer::WriterError;
use crate::writer::read_back::{StoredSlices, blocks};

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
    let options = zarrs::config::global_config().codec_options();
    let stored = StoredSlices::new(array, &(start..end), options)?;
    let slice = stored.slice_bytes();
    std::thread::scope(|scope| {
        let (send, read) = sync_channel(1);
        let work = move || {
            for block in blocks(start..end, block) {
                let read = stored.read(&block);
                let is_last = read.is_err();
                if send.send(read).is_err() || is_last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("zarrs_cuda levels".to_owned());
        thread
            .spawn_scoped(scope, work)
            .map_err(|error| WriterError::Unsupported {
                reason: format!("no thread to read the level above: {error}"),
            })?;
        for block in read {
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

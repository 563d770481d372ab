//! Levels that are made of slices that are stored.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::mpsc::sync_channel;

use zarrs::array::{Array, ArraySubset};
use zarrs_storage::ReadableWritableStorageTraits;

use super::MultiscaleBuilder;
use super::builder::{Plan, patiently};
use super::cascade::{Cascade, at_level};
use super::pyramid;
use crate::reader::{ArrayReader, Cancel, Output, ReaderError};
use crate::writer::{WriterError, WriterReport};

/// Gives each level the stored slices of the level above that it lacks.
///
/// The lowest level comes first: all that its writer lacks is stored. The slices that a level gets here
/// go on to the levels below, which then lack nothing before them.
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

impl<TStorage> MultiscaleBuilder<TStorage>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
{
    /// Writes the levels below level 0, from the slices of level 0 that are stored. Level 0 stays as it
    /// is. Returns a report for each level from level 1 on.
    ///
    /// Complete shards of a level are kept, but for the last ones: after a kill, or when level 0 has
    /// grown, another call goes on behind them. Give a [start](Self::with_start) of level 0 to make the levels again from there
    /// on. `cancel` ends it early; complete shards stay.
    ///
    /// # Errors
    /// [`WriterError::Cancelled`] after `cancel`. Otherwise as for [`build`](Self::build).
    pub fn write_lower_levels(&self, cancel: &Cancel) -> Result<Vec<WriterReport>, WriterError> {
        let mut plan = self.plan()?;
        let (stored, end) = (plan.lengths(), plan.length(0));
        let first = self.first_slice(&plan)?;
        // The window of the last slice may have had no second slice when it was made.
        let whole = pyramid::whole_windows(&plan.levels, first.unwrap_or(end));
        let whole = std::iter::zip(whole, stored).map(|(whole, stored)| match first {
            Some(_) => whole.min(stored),
            None => whole.min(stored.saturating_sub(1)),
        });
        let kept: Vec<u64> = whole.collect();
        let starts = pyramid::starts(&plan.levels, &kept, end);
        for (level, start) in starts.into_iter().enumerate().skip(1) {
            plan.set_length(level, start)?;
        }
        let mut lower = self.cascade(&plan)?;
        self.describe(&plan, true)?;
        feed(&plan, &mut lower, cancel)?;
        finish(&mut lower)
    }

    /// Writes a part of the levels below level 0, while other processes write the other parts: blocks
    /// number *k* with *k* mod `parts` = `part`. A block is the fewest slices of level 0 that make whole
    /// shards of all levels. Returns how many blocks it wrote. After a kill the same part is written
    /// again.
    ///
    /// All levels have their final shapes from the beginning. A reader sees the fill value where a part
    /// is not written yet.
    ///
    /// # Errors
    /// [`WriterError::Pyramid`] if `part` is not less than `parts`. Otherwise as for
    /// [`write_lower_levels`](Self::write_lower_levels).
    pub fn write_part_of_lower_levels(
        &self,
        part: u64,
        parts: NonZeroU64,
        cancel: &Cancel,
    ) -> Result<u64, WriterError> {
        let mut plan = self.plan()?;
        let parts = parts.get();
        if part >= parts {
            return Err(plan.refused(format!(
                "part {part} of {parts} does not exist: parts count from 0 to {}",
                parts - 1
            )));
        }
        let too_long =
            || plan.refused("its blocks have more slices than there are numbers".to_owned());
        let block = pyramid::block(&plan.levels).ok_or_else(too_long)?;
        let slices = plan.length(0);
        let lengths = pyramid::lengths(&plan.levels, slices);
        for (level, length) in lengths.into_iter().enumerate().skip(1) {
            plan.set_length(level, length)?;
            self.lengthen(level, &plan.arrays[level])?;
        }
        self.describe(&plan, false)?;
        let mut written = 0;
        for number in
            (part..slices.div_ceil(block)).step_by(usize::try_from(parts).unwrap_or(usize::MAX))
        {
            let of_block = number * block..slices.min((number + 1) * block);
            let mut lower = self.cascade_from(&plan, &of_block)?;
            let above = plan.levels[0].subchunk[0];
            for_each_slice(&plan.arrays[0], of_block, above, cancel, &mut |slice| {
                lower.settle(true)?;
                lower.add(0, slice)
            })?;
            finish(&mut lower)?;
            written += 1;
        }
        Ok(written)
    }

    /// Lets the stored array of a level have its final length, while other processes do the same.
    fn lengthen(&self, level: usize, array: &Array<TStorage>) -> Result<(), WriterError> {
        let writer = self.writer(level, array);
        let length = Some(array.shape()[0]);
        let result = patiently(|| {
            if writer.stored_length().is_ok_and(|stored| stored == length) {
                return Ok(());
            }
            writer.lengthen()
        });
        at_level(level - 1, result)
    }
}

/// Ends all windows and all writers.
fn finish(lower: &mut Cascade) -> Result<Vec<WriterReport>, WriterError> {
    lower.end_windows()?;
    let levels = lower.levels.iter_mut().enumerate();
    levels
        .map(|(level, lower)| at_level(level, lower.writer.finish()))
        .collect()
}

/// Calls `take` with the bytes of each of the `slices` of `array`. Meanwhile a thread reads the next
/// ones, `block` at once.
fn for_each_slice<TStorage>(
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
                // Blocks end where subchunks do.
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

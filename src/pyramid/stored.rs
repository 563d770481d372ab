//! Makes levels from slices that are stored.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use zarrs::node::meta_key_v3;
use zarrs_storage::{ReadableWritableStorageTraits, StorageError};

use super::MultiscaleBuilder;
use super::cascade::{Cascade, at_level};
use super::describe::patiently;
use super::feed::{feed, for_each_slice};
use super::levels;
use super::made_from::Source;
use super::plan::Plan;
use crate::error::Error;
use crate::reader::Cancel;
use crate::store::array_lease::Work;
use crate::writer::cuts::{Cuts, Cutting};
use crate::writer::{ArrayWriterBuilder, WriterError, WriterReport};

impl<TStorage> MultiscaleBuilder<TStorage>
where
    TStorage: ?Sized + ReadableWritableStorageTraits + 'static,
{
    /// Writes the levels below level 0 from the stored slices of level 0. Level 0 stays as it is. Returns a
    /// report for each level from level 1 on.
    ///
    /// Complete shards of a level are kept, except the last ones: after a kill, or when level 0 has grown,
    /// another call goes on behind them. Levels that were written in parts are made again. `cancel` ends the
    /// call early; complete shards stay.
    ///
    /// If the values of the store are files, the description of the image notes the files of level 0 from
    /// which the levels were made, with their sizes and times. If some of these files have changed, or were
    /// copied, the levels are made again from the first such file on. In other stores, give a
    /// [start](Self::with_start) of level 0 to make the levels again.
    ///
    /// # Errors
    /// [`WriterError::Cancelled`] after `cancel`, and the errors of [`build`](Self::build).
    pub fn write_lower_levels(&self, cancel: &Cancel) -> Result<Vec<WriterReport>, WriterError> {
        let mut plan = self.plan_alone(1)?;
        let (stored, end) = (plan.whole_lengths(), plan.length(0));
        // The files are looked at before they are read. So the next call notices a change that happens
        // meanwhile.
        let source = self.source(&plan);
        let made_from = source.as_ref().map(|source| source.look(end)).transpose();
        let made_from = made_from.map_err(|error| self.cannot_look(error))?;
        let first = match (self.first_slice(&plan)?, &source) {
            (None, Some(source)) => self.first_changed(&plan, source)?,
            (first, _) => first,
        };
        // The last stored slice of a level may have been made of a window whose second slice had not come.
        let whole = levels::whole_windows(&plan.levels, first.unwrap_or(end));
        let whole = std::iter::zip(whole, stored).map(|(whole, stored)| match first {
            Some(_) => whole.min(stored),
            None => whole.min(stored.saturating_sub(1)),
        });
        let kept: Vec<u64> = whole.collect();
        let starts = levels::starts(&plan.levels, &kept, end);
        for (level, start) in starts.into_iter().enumerate().skip(1) {
            plan.set_length(level, start)?;
        }
        let _reservation = self.reserve(&mut plan, 1)?;
        self.erase_leftovers(&plan)?;
        let cuts = Arc::new(Cuts::default());
        let mut lower = self.cascade(&plan, &|level| Cutting {
            cuts: cuts.clone(),
            kept: 0,
            end: plan.length(level),
        })?;
        self.describe_levels(&plan, &cuts, 0)?;
        feed(&plan, &mut lower, cancel)?;
        let reports = finish(&mut lower, cancel)?;
        if let Some(made_from) = made_from {
            self.noting(&plan)(&made_from);
        }
        Ok(reports)
    }

    /// Returns the first slice of level 0 that has changed since the levels were made; `None` if no slice has
    /// changed, or if the description does not tell.
    fn first_changed(
        &self,
        plan: &Plan<TStorage>,
        source: &Source,
    ) -> Result<Option<u64>, WriterError> {
        let Some(before) = &plan.described.made_from else {
            return Ok(None);
        };
        let unchanged = source.unchanged(before);
        let unchanged = unchanged.map_err(|error| self.cannot_look(error))?;
        let first = unchanged.map(|unchanged| unchanged.min(plan.length(0)));
        if let Some(first) = first {
            tracing::info!(path = %self.array.path(), first, "level 0 has changed, or was copied, since its levels were made: they are made again from this slice on");
        }
        Ok(first)
    }

    fn cannot_look(&self, source: StorageError) -> WriterError {
        WriterError::Array(Error::Storage {
            doing: "look whether shards have changed since the levels were made, of",
            key: meta_key_v3(self.array.path()),
            source,
        })
    }

    /// Writes a part of the levels below level 0, while other processes write the other parts. The part
    /// consists of the blocks whose number *k* fulfils *k* mod `parts` = `part`. A block is the fewest slices
    /// of level 0 that make whole shards of all levels. Returns how many blocks it wrote. After a kill, call
    /// it again for the same part.
    ///
    /// All levels have their final shapes from the beginning, and the description of the image says that
    /// they are written in parts. Where a part is not written yet, a reader sees the fill value, or older
    /// elements. A
    /// [start](Self::with_start) is not considered. Level 0 must not grow until all parts are written.
    ///
    /// # Errors
    /// [`WriterError::Pyramid`] if `part` is not less than `parts`. The other errors are those of
    /// [`write_lower_levels`](Self::write_lower_levels).
    pub fn write_part_of_lower_levels(
        &self,
        part: u64,
        parts: NonZeroU64,
        cancel: &Cancel,
    ) -> Result<u64, WriterError> {
        let parts = parts.get();
        if part >= parts {
            return Err(self.refused(format!(
                "part {part} of {parts} does not exist: parts count from 0 to {}",
                parts - 1
            )));
        }
        let mut plan = self.plan_for(Some(part))?;
        // The leases are taken for the whole call, because no writer has them between two blocks.
        plan.leases = self.leases(&plan, 1, Work::Blocks { part, of: parts })?;
        self.check_settings(&plan, "erase them first")?;
        let _reservation = self.reserve(&mut plan, 1)?;
        self.erase_leftovers(&plan)?;
        let too_long =
            || self.refused("its blocks have more slices than there are numbers".to_owned());
        let block = levels::block(&plan.levels).ok_or_else(too_long)?;
        let slices = plan.length(0);
        let lengths = levels::lengths(&plan.levels, slices);
        // The description says that slices may be missing before a level has slices that are not written.
        for level in 1..lengths.len() {
            self.store_array(&plan, level, &ArrayWriterBuilder::create)?;
        }
        self.describe(&plan)?;
        for (level, length) in lengths.into_iter().enumerate().skip(1) {
            plan.set_length(level, length)?;
            self.store_array(&plan, level, &ArrayWriterBuilder::store_length)?;
        }
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
            finish(&mut lower, cancel)?;
            written += 1;
        }
        Ok(written)
    }

    /// Stores the metadata of a level by calling `store`, while other processes do the same.
    fn store_array(
        &self,
        plan: &Plan<TStorage>,
        level: usize,
        store: &dyn Fn(&ArrayWriterBuilder<TStorage>) -> Result<(), WriterError>,
    ) -> Result<(), WriterError> {
        let writer = self.writer(plan, level);
        at_level(level - 1, patiently(|| store(&writer)))
    }
}

/// Ends all windows and all writers. Returns [`WriterError::Cancelled`] if `cancel` comes before everything
/// is stored.
fn finish(lower: &mut Cascade, cancel: &Cancel) -> Result<Vec<WriterReport>, WriterError> {
    /// The time between two looks at `cancel`.
    const TURN: Duration = Duration::from_millis(1);
    lower.end_windows()?;
    lower.end()?;
    while lower.is_busy() {
        if cancel.is_cancelled() {
            return Err(WriterError::Cancelled);
        }
        std::thread::sleep(TURN);
    }
    lower.finish()
}

//! Ends a stream: stores everything, or gives up the rest.

use std::sync::Arc;

use super::error::WriterError;
use super::report::WriterReport;
use super::shared::{Item, Shared};
use super::storing;
use super::stream::Stream;

impl Stream {
    /// Lets the stored shards and metadata outlast a power failure, where the store promises that.
    pub(crate) fn sync_names(&self) -> Result<(), WriterError> {
        let setup = &self.shared.setup;
        let synced = storing::caught(|| setup.sink.sync_names());
        synced.map_err(|source| WriterError::Store {
            doing: "sync the directories of the shards and of",
            key: zarrs::node::meta_key_v3(setup.array.path()),
            finished_slices: self.progress().finished_slices,
            source: Arc::new(source),
        })
    }

    /// Returns whether some work of the stream is not done yet, and no error prevents it.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.shared.lock();
        Shared::error(&state).is_none() && !(state.ended && state.is_idle())
    }

    /// Stores everything that was appended: see [`ArrayWriter::finish`].
    pub(crate) fn finish(&mut self) -> Result<WriterReport, WriterError> {
        self.check_process()?;
        if let Some(report) = &self.report {
            return Ok(report.clone());
        }
        self.check_whole_slices()?;
        if let Some(reason) = self.shared.lock().broken.clone() {
            return Err(self.broken(&reason));
        }
        if self.only_read_back() {
            return self.leave_stored();
        }
        self.end()?;
        self.shared.try_again();
        self.stored()?;
        self.sync_names()?;
        self.shared.close();
        (self.lease, self.reservation) = (None, None);
        let report = self.new_report();
        tracing::info!(%report, path = %self.shared.setup.array.path(), "finished");
        self.report = Some(report.clone());
        Ok(report)
    }

    pub(crate) fn new_report(&self) -> WriterReport {
        let progress = self.progress();
        WriterReport {
            engine: self.shared.setup.engine,
            first_slice: self.shared.setup.first(),
            finished_slices: progress.finished_slices,
            shards: progress.shards_stored,
            shards_empty: progress.shards_empty,
            raw_bytes: progress.appended_bytes,
            stored_bytes: progress.stored_bytes,
            elapsed: self
                .first_append
                .map_or_else(Default::default, |first| first.elapsed()),
            waiting: progress.waiting,
            encoding: progress.encoding,
            storing: progress.storing,
        }
    }

    /// Checks that the last slice is complete.
    pub(crate) fn check_whole_slices(&self) -> Result<(), WriterError> {
        if self.partial_slice() == 0 {
            return Ok(());
        }
        Err(WriterError::IncompleteSlice {
            slice: self.end_slice(),
            got: self.partial_slice(),
            expected: self.job.grid.slice_bytes(),
        })
    }

    /// Tells the threads that no more slices come, if they have not been told.
    pub(crate) fn end(&mut self) -> Result<(), WriterError> {
        if self.shared.lock().end.is_some() {
            return Ok(());
        }
        let short = if self.filled == 0 {
            None
        } else {
            // The rest of the last epoch is the fill value.
            let epochs = self.filled.div_ceil(self.job.grid.epoch_bytes());
            let missing = epochs * self.job.grid.epoch_bytes() - self.filled;
            self.pad(missing)?;
            let grid = self.job.grid.batch(epochs);
            let grid = grid.map_err(|error| self.broken(&error.to_string()))?;
            Some((grid, epochs))
        };
        let end = self.end_slice();
        self.shared.change(|state| state.end = Some(end));
        if let Some((grid, epochs)) = short {
            self.submit(Arc::new(grid), epochs);
        }
        self.shared
            .change(|state| state.batches.push_back(Item::End));
        Ok(())
    }

    /// Appends `missing` bytes of the fill value.
    pub(crate) fn pad(&mut self, missing: usize) -> Result<(), WriterError> {
        /// The approximate number of bytes that are appended at once.
        const PIECE: usize = 1 << 20;
        let fill = &self.job.fill_value;
        let pattern = fill.repeat((PIECE / fill.len()).max(1).min(missing / fill.len()));
        let mut at = self.filled;
        let end = at + missing;
        while at < end {
            let Some(input) = &mut self.input else { break };
            let len = pattern.len().min(end - at);
            let written = input.write(at, &pattern[..len]);
            written.map_err(|error| self.broken(&error.to_string()))?;
            at += len;
        }
        Ok(())
    }

    /// Returns whether the stream has slices that were read back, and no other.
    fn only_read_back(&self) -> bool {
        self.shared.setup.read_back > 0 && self.progress().appended_bytes == 0
    }

    /// Ends a stream that has only slices that are stored. Their shards stay as they are.
    fn leave_stored(&mut self) -> Result<WriterReport, WriterError> {
        self.shared.try_again();
        self.stored()?;
        let end = self.end_slice();
        // No later call waits for the encoder, which gets no end.
        self.shared
            .change(|state| (state.end, state.ended) = (Some(end), true));
        let report = self.leave()?;
        tracing::info!(%report, path = %self.shared.setup.array.path(), "finished");
        Ok(report)
    }

    /// Ends the stream without storing anything more, and returns a report.
    pub(crate) fn leave(&mut self) -> Result<WriterReport, WriterError> {
        self.give_up()?;
        (self.lease, self.reservation) = (None, None);
        let report = self.new_report();
        self.report = Some(report.clone());
        Ok(report)
    }

    /// Ends the stream without storing more, and erases temporaries. Returns the first slice that is not
    /// stored.
    pub(crate) fn give_up(&mut self) -> Result<u64, WriterError> {
        self.input = None;
        let dropped = self.shared.change(|state| {
            state.aborted = true;
            state.ready.clear();
            let work: Vec<_> = state
                .shards
                .values_mut()
                .map(|storing| std::mem::take(&mut storing.work))
                .collect();
            (std::mem::take(&mut state.batches), work)
        });
        // The items are dropped without the lock: their buffers then go back to their pools, which wakes
        // waiting threads.
        drop(dropped);
        self.shared.signal.give_up();
        self.shared.close();
        let begun: Vec<_> = self.shared.change(|state| {
            std::mem::take(&mut state.shards)
                .into_values()
                .filter(|storing| storing.begun)
                .map(|storing| storing.key)
                .collect()
        });
        let (finished_slices, uncovered) = {
            let state = self.shared.lock();
            (
                state.progress.finished_slices,
                self.shared.must_grow(&state),
            )
        };
        // Readers may rely on every stored shard, so the metadata have to cover all stored slices.
        let setup = &self.shared.setup;
        if uncovered && let Err(error) = storing::caught(|| setup.cover(finished_slices)) {
            tracing::warn!(finished_slices, %error, "metadata that do not cover all that is stored");
        }
        let mut result = Ok(finished_slices);
        for key in begun {
            if let Err(source) = storing::caught(|| setup.sink.discard(&key)) {
                // After an error, the other temporaries are erased nevertheless.
                result = result.and(Err(WriterError::Store {
                    doing: "erase the temporary of",
                    key,
                    finished_slices,
                    source: Arc::new(source),
                }));
            }
        }
        result
    }

    /// Logs which appended slices were not stored, if there are any.
    pub(crate) fn tell_lost(&self) {
        let (end, finished) = (self.end_slice(), self.progress().finished_slices);
        if end > finished || self.partial_slice() > 0 {
            tracing::warn!(
                path = %self.shared.setup.array.path(),
                from = finished,
                to = end,
                partial = self.partial_slice(),
                "a writer ended without `finish`: slices {finished} to {end} are lost"
            );
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            // The parent process goes on with the stream, also with its temporaries and buffers.
            let shared = (self.shared.clone(), self.engine.clone());
            std::mem::forget((shared, self.input.take()));
            return;
        }
        if self.shared.is_closed() {
            return;
        }
        let result = self.give_up();
        self.tell_lost();
        if let Err(error) = result {
            tracing::warn!(%error, "dropping a writer");
        }
    }
}

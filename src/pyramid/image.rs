//! Keeps an image between two calls of the application: the streams of all its levels.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cascade::{self, Cascade, at_level};
use super::made_from::{Note, Source};
use crate::writer::appending::Appending;
use crate::writer::cuts::Cuts;
use crate::writer::pause;
use crate::writer::retry::Attempt;
use crate::writer::stream::Stream;
use crate::writer::{DeviceEvent, DeviceSlice, WriterError, WriterReport};
use zarrs_cuda_engine::process::account::Reservation;

/// The state of a [`MultiscaleWriter`](super::MultiscaleWriter) between two calls.
pub struct Image {
    top: Stream,
    lower: Cascade,
    /// The appended part of an incomplete slice of level 0.
    begun: Vec<u8>,
    /// Whether the windows whose second slice did not come were ended.
    is_ending: bool,
    /// The memory of all levels, which is reserved until all of them have finished.
    reservation: Option<Reservation>,
    /// The cuts that the first shard makes, if the image is written from a slice within level 0.
    within: Option<Arc<Cuts>>,
    /// The files of level 0, and the function that notes in the description that the levels were made from
    /// them.
    note: Option<(Source, Note)>,
    reports: Option<Vec<WriterReport>>,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("top", &self.top)
            .field("lower", &self.lower)
            .field("reports", &self.reports)
            .finish_non_exhaustive()
    }
}

impl Image {
    /// Makes an image of `top` and the levels below it, whose smallest buffers are reserved. If the image is
    /// written from a slice within level 0, `within` are the cuts that the first shard makes. If level 0
    /// consists of files, `note` notes them at the end.
    pub(super) fn new(
        top: Stream,
        mut lower: Cascade,
        reservation: Reservation,
        within: Option<Arc<Cuts>>,
        note: Option<(Source, Note)>,
    ) -> Self {
        // Only level 0 reports slow shards, because the shards of all levels fill at the same pace.
        (lower.levels.iter_mut()).for_each(|lower| lower.writer.filling.be_quiet());
        Self {
            top,
            lower,
            begun: Vec::new(),
            is_ending: false,
            reservation: Some(reservation),
            within,
            note,
            reports: None,
        }
    }

    /// Counts a refused append if `left` bytes were not appended. Returns `left`.
    fn refuse(&self, left: usize) -> usize {
        if left > 0 {
            self.top.shared.lock().progress.refusals += 1;
        }
        left
    }

    /// Appends `bytes` to batches of which the levels below are made. Returns how many bytes were not
    /// appended.
    fn put_batches(&mut self, bytes: &[u8], wait: bool) -> Result<usize, WriterError> {
        let mut rest = bytes;
        while self.submit_full(wait)? && !rest.is_empty() {
            let before = rest.len();
            rest = self.top.take(rest, wait)?;
            if rest.len() == before {
                break;
            }
        }
        Ok(self.refuse(rest.len()))
    }

    /// Submits the batch of level 0 if it is full. Returns whether the batch has room now.
    fn submit_full(&mut self, wait: bool) -> Result<bool, WriterError> {
        cascade::submit_full(0, &mut self.top, &mut self.lower.levels, wait)
    }

    /// Appends a slice batch by batch. Sets `last` to an event that happens when all appended elements have
    /// been read.
    ///
    /// # Safety
    /// The preconditions of [`append_device`](Self::append_device).
    #[allow(unsafe_code)]
    unsafe fn append_parts(
        &mut self,
        slice: &DeviceSlice,
        last: &mut Option<DeviceEvent>,
    ) -> Result<(), WriterError> {
        let mut at = 0;
        while at < slice.len {
            self.submit_full(true)?;
            let len = (slice.len - at).min(self.top.batch_bytes - self.top.filled);
            let part = DeviceSlice {
                pointer: slice.pointer.saturating_add(at as u64),
                len,
                ..*slice
            };
            // SAFETY: the caller promises for the whole slice what this part of it needs.
            *last = Some(unsafe { self.top.append_device(&part) }?);
            at += len;
        }
        self.submit_full(true).map(|_| ())
    }

    /// Appends the beginning of `rest`, and leaves the bytes in it that were not appended. Sets `first` to
    /// the last appended slice if it begins a window of two and was not passed on.
    fn put_slices<'a>(
        &mut self,
        rest: &mut &'a [u8],
        first: &mut Option<&'a [u8]>,
        wait: bool,
    ) -> Result<(), WriterError> {
        let slice = self.top.job.grid.slice_bytes();
        while !rest.is_empty() {
            let at = self.top.partial_slice();
            let (now, behind) = rest.split_at(rest.len().min(slice - at));
            if !self.lower.settle(wait)? {
                return Ok(());
            }
            let is_whole = now.len() == slice;
            let waits = behind.len() >= slice && first.is_none() && self.lower.begins_window();
            let taken = if is_whole && !waits {
                (self.lower).add_taken_by(&mut self.top, *first, now, wait)?
            } else {
                self.top.take_slice(now, wait, &|_| ())?
            };
            if !taken {
                return Ok(());
            }
            *rest = behind;
            let before = first.take();
            if !is_whole {
                self.begin_slice(at, now, before)?;
            } else if waits {
                *first = Some(now);
            }
        }
        Ok(())
    }

    /// Adds a part of a slice of level 0, from byte `at` of the slice on. `before` is the slice before it, if
    /// that was not passed on yet.
    fn begin_slice(
        &mut self,
        at: usize,
        part: &[u8],
        before: Option<&[u8]>,
    ) -> Result<(), WriterError> {
        if let Some(before) = before {
            self.lower.add(0, before)?;
        }
        let slice = self.top.job.grid.slice_bytes();
        self.begun.truncate(at);
        self.begun.reserve_exact(slice - at);
        self.begun.extend_from_slice(part);
        if self.begun.len() == slice {
            self.lower.add(0, &self.begun)?;
        }
        Ok(())
    }

    /// Lets the writers of all levels try the failed steps again.
    fn try_again(&self) -> Result<(), WriterError> {
        self.top.check_process()?;
        self.streams()
            .into_iter()
            .for_each(|writer| writer.shared.try_again());
        Ok(())
    }

    /// Stores everything on all levels: see [`MultiscaleWriter::finish`](super::MultiscaleWriter::finish).
    pub(super) fn finish(&mut self) -> Result<Vec<WriterReport>, WriterError> {
        if let Some(reports) = &self.reports {
            return Ok(reports.clone());
        }
        self.try_again()?;
        self.top.check_whole_slices()?;
        self.is_ending = true;
        let is_within = self.within.as_ref().is_some_and(|cuts| cuts.are_due());
        if is_within && self.top.progress().appended_bytes == 0 {
            let mut reports = vec![self.top.leave()?];
            reports.extend(self.lower.leave()?);
            self.reservation = None;
            self.reports = Some(reports.clone());
            return Ok(reports);
        }
        if self.top.holds {
            cascade::end_batches(0, &mut self.top, &mut self.lower.levels)?;
        } else {
            self.lower.end_windows()?;
        }
        cascade::end(0, &mut self.top, &mut self.lower.levels)?;
        // The lease is kept until the files of level 0 are noted, so that no other writer replaces them
        // before.
        let lease = self.top.lease.take();
        let finished = self.finish_levels();
        if let (Ok(reports), Some((source, note))) = (&finished, &self.note) {
            match source.look(reports[0].finished_slices) {
                Ok(made_from) => note(&made_from),
                Err(error) => {
                    tracing::warn!(%error, "cannot note what the levels of an image were made from");
                }
            }
        }
        self.top.lease = lease.filter(|_| finished.is_err());
        self.reports = finished.as_ref().ok().cloned();
        finished
    }

    fn finish_levels(&mut self) -> Result<Vec<WriterReport>, WriterError> {
        let mut reports = vec![self.top.finish()?];
        reports.extend(self.lower.finish()?);
        self.reservation = None;
        Ok(reports)
    }

    /// Submits complete shards of all levels that have waited long enough, without waiting. Returns whether
    /// it did so.
    fn submit_due(&mut self, now: Instant) -> Result<bool, WriterError> {
        if self
            .streams()
            .into_iter()
            .any(|writer| writer.filling.is_due(now))
        {
            return cascade::submit_complete(0, &mut self.top, &mut self.lower.levels, false);
        }
        Ok(true)
    }
}

impl Appending for Image {
    fn top(&self) -> &Stream {
        &self.top
    }

    fn top_mut(&mut self) -> &mut Stream {
        &mut self.top
    }

    fn streams(&self) -> Vec<&Stream> {
        let lower = self.lower.levels.iter().map(|lower| &lower.writer);
        std::iter::once(&self.top).chain(lower).collect()
    }

    fn put(&mut self, bytes: &[u8], wait: bool) -> Result<usize, WriterError> {
        if self.is_ending {
            let end = self.top.end_slice();
            return Err(WriterError::Finished { end });
        }
        if self.top.holds {
            return self.put_batches(bytes, wait);
        }
        let mut rest = bytes;
        // The first slice of a window whose second slice is also in `bytes`.
        let mut first = None;
        let result = self.put_slices(&mut rest, &mut first, wait);
        if let Some(first) = first {
            // The writer has not taken the second slice of the window.
            self.lower.add(0, first)?;
        }
        result?;
        self.lower.settle(wait)?;
        Ok(self.refuse(rest.len()))
    }

    #[allow(unsafe_code)]
    unsafe fn append_device(&mut self, slice: &DeviceSlice) -> Result<DeviceEvent, WriterError> {
        if self.is_ending {
            let end = self.top.end_slice();
            return Err(WriterError::Finished { end });
        }
        // All copies are in one stream of the device, so the last copy ends after all others.
        let mut last = None;
        // SAFETY: the preconditions are those of this function.
        let appended = unsafe { self.append_parts(slice, &mut last) };
        let last = last.unwrap_or_else(DeviceEvent::of_nothing);
        if let Err(error) = appended {
            // The device has read all appended elements when the caller gets the error.
            last.wait()?;
            return Err(error);
        }
        Ok(last)
    }

    fn flush(&mut self) -> Result<(), WriterError> {
        if self.reports.is_some() {
            return Ok(());
        }
        self.try_again()?;
        cascade::flush(0, &mut self.top, &mut self.lower.levels)
    }

    fn give_up(&mut self) -> Result<u64, WriterError> {
        let mut result = self.top.give_up();
        for (level, lower) in self.lower.levels.iter_mut().enumerate() {
            let given_up = at_level(level, lower.writer.give_up());
            // After an error, the other levels give up nevertheless.
            result = result.and_then(|first| given_up.map(|_| first));
        }
        result
    }

    fn look(&mut self) -> Option<Duration> {
        if self.streams().into_iter().any(Stream::is_over) {
            return None;
        }
        let now = Instant::now();
        let (mut has_failed, mut is_well) = (false, true);
        for writer in self.streams() {
            let of_level = writer.shared.has_failed();
            has_failed |= of_level.0;
            is_well &= of_level.1;
        }
        match self.top.retry.look(now, has_failed, is_well) {
            Attempt::NotNeeded => {}
            Attempt::Now => self
                .streams()
                .into_iter()
                .for_each(|writer| writer.shared.try_again()),
            Attempt::Later(left) => return Some(left),
        }
        match self.submit_due(now) {
            Ok(true) => {}
            Ok(false) => return Some(pause::SOON),
            Err(error) => {
                tracing::debug!(%error, "complete shards of levels cannot be stored in a pause");
                return Some(self.top.filling.flush_after());
            }
        }
        let lower = self.lower.levels.iter_mut().map(|lower| &mut lower.writer);
        let levels = std::iter::once(&mut self.top).chain(lower);
        levels.map(|level| level.attend(now)).min()
    }
}

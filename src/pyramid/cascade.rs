//! Makes the levels below level 0: each slice of a level becomes a part of a slice of the level below.
//!
//! ```text
//! a slice of the level above
//!     first of a window of two  ──► kept
//!     else, with the kept one   ──► made: a slice of this level ──► its writer
//!                                                               └─► the level below, the same again
//! ```
//!
//! On a device, whole batches are reduced: before a batch of the level above is encoded, the device makes
//! slices of the level below from it.
//!
//! The writer of a level may be full, or its store may have failed. A slice of the level is then owed to its
//! writer, and the levels above take no slice until the writer has it. So an append that fails, or that does
//! not wait, loses nothing, and can go on later.

use std::num::NonZeroUsize;

use crate::writer::stream::Stream;
use crate::writer::{WriterError, WriterReport};
use zarrs_cuda_engine::contract::stream::{OnRead, Windows};
use zarrs_cuda_engine::process::along::Along;
use zarrs_cuda_engine::reduce::Reducer;

/// A level below level 0: its writer, and the slices that are about to become slices of it.
#[derive(Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each says of another buffer whether it holds something"
)]
pub(super) struct Lower {
    pub(super) writer: Stream,
    reducer: Reducer,
    /// The number of slices of the level above that make one slice of this level: 1 or 2.
    window: usize,
    threads: NonZeroUsize,
    /// The first slice of a window of two, whose second slice has not come, if `is_kept`.
    kept: Vec<u8>,
    is_kept: bool,
    /// The last slice of this level that was made. If `is_owed`, the writer of the level does not have it
    /// yet.
    made: Vec<u8>,
    is_owed: bool,
    /// Whether a device makes the slices of this level from the batches of the level above.
    is_reduced_there: bool,
    /// The number of slices of the level above's open batch that were passed on to this level.
    passed: usize,
    /// Whether the device keeps the first slice of a window of two.
    is_kept_there: bool,
    /// The number of slices that the host passes on next, because the device has failed on them.
    by_host: usize,
}

impl Lower {
    pub(super) fn new(
        writer: Stream,
        reducer: Reducer,
        window: usize,
        threads: NonZeroUsize,
    ) -> Self {
        Self {
            writer,
            reducer,
            window,
            threads,
            kept: Vec::new(),
            is_kept: false,
            made: Vec::new(),
            is_owed: false,
            is_reduced_there: false,
            passed: 0,
            is_kept_there: false,
            by_host: 0,
        }
    }

    /// Returns the bytes of host memory that a level with this `reducer` takes besides the buffers of its
    /// writer.
    pub(super) fn bytes(reducer: &Reducer, window: usize) -> usize {
        reducer.reduced_bytes() + (window - 1) * reducer.bytes()
    }

    /// Adds a slice of the level above. This level must not owe a slice.
    fn add(&mut self, slice: &[u8]) -> Result<(), WriterError> {
        self.add_taken(None, slice, &mut |_| Ok(true)).map(|_| ())
    }

    /// Adds a slice of the level above, and copies it in the same pass to that level's writer by `take`. The
    /// first slice of the window is `before`, or else the kept slice. This level must not owe a slice.
    /// Returns false, and adds nothing, if `take` returns false.
    fn add_taken(
        &mut self,
        before: Option<&[u8]>,
        slice: &[u8],
        take: &mut dyn FnMut(&OnRead<'_>) -> Result<bool, WriterError>,
    ) -> Result<bool, WriterError> {
        let first = before.or_else(|| self.is_kept.then_some(&self.kept[..]));
        let window: Vec<&[u8]> = first.into_iter().chain([slice]).collect();
        let is_whole = window.len() == self.window;
        let work = if is_whole {
            self.made.resize(self.reducer.reduced_bytes(), 0);
            self.reducer.along(&window, &mut self.made)
        } else {
            self.kept.resize(slice.len(), 0);
            Ok(Along::copying(slice, &mut self.kept))
        };
        let work = work.map_err(|error| self.writer.broken(&error.to_string()))?;
        if !take(&|bytes| work.read(bytes))? {
            return Ok(false);
        }
        work.finish(self.threads);
        (self.is_kept, self.is_owed) = (!is_whole, is_whole);
        Ok(true)
    }

    /// Lets the device make slices of `windows` windows, from its kept slice and the next `slices` slices of
    /// the batch of `upper`. If the device fails, the host passes these slices on later.
    fn reduce_there(
        &mut self,
        upper: &mut Stream,
        windows: usize,
        slices: usize,
    ) -> Result<(), WriterError> {
        let writer = &mut self.writer;
        let from = self.passed..self.passed + slices;
        let above = upper.input.as_deref_mut().filter(|_| slices > 0);
        let Some(input) = writer.input.as_deref_mut() else {
            return Ok(());
        };
        let kept = self.is_kept_there;
        let of = Windows {
            kept,
            above: above.map(|above| (above, from)),
        };
        let at = writer.filled;
        let Err(error) = writer.engine.reduce(of, input, at) else {
            self.is_kept_there = false;
            self.passed += slices;
            writer.advance(windows * writer.job.grid.slice_bytes());
            return Ok(());
        };
        tracing::warn!(%error, "the host reduces slices for a device");
        if kept {
            self.kept.resize(self.reducer.bytes(), 0);
            let taken = writer.engine.take_kept(&mut self.kept);
            taken.map_err(|error| WriterError::Device {
                source: Box::new(error),
            })?;
            (self.is_kept_there, self.is_kept) = (false, true);
        }
        self.by_host = slices;
        Ok(())
    }

    /// Makes a slice of a window whose second slice will not come.
    fn end_window(&mut self) -> Result<(), WriterError> {
        if !self.is_kept {
            return Ok(());
        }
        self.made.resize(self.reducer.reduced_bytes(), 0);
        let reduced = (self.reducer).reduce(&[&self.kept], &mut self.made, self.threads);
        reduced.map_err(|error| self.writer.broken(&error.to_string()))?;
        (self.is_kept, self.is_owed) = (false, true);
        Ok(())
    }
}

/// The levels below level 0, from the top down.
#[derive(Debug, Default)]
pub(super) struct Cascade {
    pub(super) levels: Vec<Lower>,
}

impl Cascade {
    /// Adds a slice of the level above `level`. Neither `level` nor a level below it may owe a slice.
    pub(super) fn add(&mut self, level: usize, slice: &[u8]) -> Result<(), WriterError> {
        match self.levels.get_mut(level) {
            Some(lower) => at_level(level, lower.add(slice)),
            None => Ok(()),
        }
    }

    /// Adds a slice of level 0, and appends it to `top`, the writer of level 0. The first slice of the window
    /// is `before`, or else the kept slice. Returns whether `top` has taken the slice: without `wait`, it may
    /// be full.
    pub(super) fn add_taken_by(
        &mut self,
        top: &mut Stream,
        before: Option<&[u8]>,
        slice: &[u8],
        wait: bool,
    ) -> Result<bool, WriterError> {
        let mut take = |read: &OnRead<'_>| top.take_slice(slice, wait, read);
        match self.levels.first_mut() {
            Some(lower) => lower.add_taken(before, slice, &mut take),
            None => take(&|_| ()),
        }
    }

    /// Returns whether the next slice of level 0 begins a window of level 1 that has two slices.
    pub(super) fn begins_window(&self) -> bool {
        let first = self.levels.first();
        first.is_some_and(|lower| lower.window == 2 && !lower.is_kept)
    }

    /// Hands all owed slices over to their writers. Returns whether no slice is owed any longer: without
    /// `wait`, a writer may be full.
    pub(super) fn settle(&mut self, wait: bool) -> Result<bool, WriterError> {
        settle(0, &mut self.levels, wait)
    }

    /// Gives the last batches of all levels to the threads that encode. Each level must have all its slices.
    pub(super) fn end(&mut self) -> Result<(), WriterError> {
        match self.levels.split_first_mut() {
            Some((first, below)) => end(1, &mut first.writer, below),
            None => Ok(()),
        }
    }

    /// Returns the bytes that the smallest buffers of all levels take.
    pub(super) fn reserved(&self) -> usize {
        self.levels.iter().map(|lower| lower.writer.reserved).sum()
    }

    /// Returns whether some work of a level that has ended is not done yet.
    pub(super) fn is_busy(&self) -> bool {
        self.levels.iter().any(|lower| lower.writer.is_busy())
    }

    /// Stores all slices of all levels, and returns a report for each level.
    pub(super) fn finish(&mut self) -> Result<Vec<WriterReport>, WriterError> {
        let levels = self.levels.iter_mut().enumerate();
        let finished = levels.map(|(level, lower)| at_level(level, lower.writer.finish()));
        finished.collect()
    }

    /// Ends all levels without storing anything more, and returns a report for each level.
    pub(super) fn leave(&mut self) -> Result<Vec<WriterReport>, WriterError> {
        let levels = self.levels.iter_mut().enumerate();
        let left = levels.map(|(level, lower)| at_level(level, lower.writer.leave()));
        left.collect()
    }

    /// Ends all windows whose second slice will not come, from the top down.
    pub(super) fn end_windows(&mut self) -> Result<(), WriterError> {
        end_windows(0, &mut self.levels)
    }
}

/// Hands over the owed slices of `levels`, from the lowest level up. `number` is the index of the first of
/// `levels`. Returns whether no slice is owed any longer.
pub(super) fn settle(number: usize, levels: &mut [Lower], wait: bool) -> Result<bool, WriterError> {
    let Some((_, below)) = levels.split_first_mut() else {
        return Ok(true);
    };
    Ok(settle(number + 1, below, wait)? && hand_over(number, levels, wait)?)
}

/// Hands over the owed slice of the first of `levels`, and the slices that lower levels make of it. Returns
/// whether no slice is owed any longer.
pub(super) fn hand_over(
    number: usize,
    levels: &mut [Lower],
    wait: bool,
) -> Result<bool, WriterError> {
    let Some((lower, below)) = levels.split_first_mut() else {
        return Ok(true);
    };
    if !lower.is_owed {
        return Ok(true);
    }
    if lower.writer.holds && !submit_full(number + 1, &mut lower.writer, below, wait)? {
        return Ok(false);
    }
    let holds = lower.writer.holds;
    let (writer, made) = (&mut lower.writer, &lower.made);
    let mut take = |read: &OnRead<'_>| writer.take_slice(made, wait, read);
    let taken = match below.first_mut() {
        Some(next) if !holds => next.add_taken(None, made, &mut take),
        // The level below, if there is one, gets this slice later, with the batch.
        _ => take(&|_| ()),
    };
    if !at_level(number, taken)? {
        return Ok(false);
    }
    lower.is_owed = false;
    if holds {
        return Ok(true);
    }
    hand_over(number + 1, below, wait)
}

/// Ends all windows of `levels` whose second slice will not come, from the top down.
pub(super) fn end_windows(number: usize, levels: &mut [Lower]) -> Result<(), WriterError> {
    settle(number, levels, true)?;
    for first in 0..levels.len() {
        at_level(number + first, levels[first].end_window())?;
        hand_over(number + first, &mut levels[first..], true)?;
    }
    Ok(())
}

/// Lets the levels below `top` get their slices from whole batches, as far as their engines run on one
/// device. All slices in the open batches of `top` and `levels` must have been passed on.
pub(super) fn hold(top: &mut Stream, levels: &mut [Lower]) {
    let mut upper = top;
    for lower in levels {
        if upper.engine.name() != ON_DEVICES {
            return;
        }
        upper.holds = true;
        lower.passed = upper.whole_slices();
        lower.is_reduced_there = lower.writer.engine.can_reduce_from(&*upper.engine);
        if !lower.is_reduced_there {
            return;
        }
        upper = &mut lower.writer;
    }
}

/// The name of the engine whose batches hold slices on a device.
const ON_DEVICES: &str = "cuda";

/// Submits the batch of `upper` if it is full, after the levels `below` have got all its slices. Returns
/// whether the batch has room now: without `wait`, a lower level may be full.
pub(super) fn submit_full(
    number: usize,
    upper: &mut Stream,
    below: &mut [Lower],
    wait: bool,
) -> Result<bool, WriterError> {
    if !upper.is_full() {
        return Ok(true);
    }
    if !pass_on(number, upper, below, wait)? {
        return Ok(false);
    }
    if !keep_rest(number, upper, below, wait)? {
        return Ok(false);
    }
    upper.submit_full();
    if let Some(lower) = below.first_mut() {
        lower.passed = 0;
    }
    Ok(true)
}

/// Passes the slices of the batch of `upper` on, in whole windows. Returns whether it did so: without `wait`,
/// a level may be full.
fn pass_on(
    number: usize,
    upper: &mut Stream,
    below: &mut [Lower],
    wait: bool,
) -> Result<bool, WriterError> {
    while let Some((lower, rest)) = below.split_first_mut() {
        let ready = upper.whole_slices() - lower.passed;
        if ready == 0 {
            return Ok(true);
        }
        if !lower.is_reduced_there || lower.is_kept || lower.by_host > 0 {
            if !pass_by_host(number, upper, below, wait)? {
                return Ok(false);
            }
            continue;
        }
        let kept = usize::from(lower.is_kept_there);
        let windows = (ready + kept) / lower.window;
        if windows == 0 {
            return Ok(true);
        }
        let Some(room) = room(number, lower, rest, wait)? else {
            return Ok(false);
        };
        let windows = windows.min(room);
        at_level(
            number,
            lower.reduce_there(upper, windows, windows * lower.window - kept),
        )?;
    }
    Ok(true)
}

/// Reads a slice of the batch of `upper`, and lets the host pass it on. Returns whether no slice is owed any
/// longer.
fn pass_by_host(
    number: usize,
    upper: &mut Stream,
    below: &mut [Lower],
    wait: bool,
) -> Result<bool, WriterError> {
    if !settle(number, below, wait)? {
        return Ok(false);
    }
    let Some(lower) = below.first_mut() else {
        return Ok(true);
    };
    let mut bytes = vec![0; upper.job.grid.slice_bytes()];
    if let Some(input) = &mut upper.input {
        let read = input.read(lower.passed * bytes.len(), &mut bytes);
        read.map_err(|error| WriterError::Device {
            source: Box::new(error),
        })?;
    }
    at_level(number, lower.add(&bytes))?;
    lower.passed += 1;
    lower.by_host = lower.by_host.saturating_sub(1);
    hand_over(number, below, wait)
}

/// Returns for how many slices the batch of `lower` has room. A full batch is submitted first. Returns `None`
/// if there is no buffer for another batch, and the caller does not `wait`.
fn room(
    number: usize,
    lower: &mut Lower,
    below: &mut [Lower],
    wait: bool,
) -> Result<Option<usize>, WriterError> {
    let writer = &mut lower.writer;
    if writer.holds && !submit_full(number + 1, writer, below, wait)? {
        return Ok(None);
    }
    at_level(number, writer.check())?;
    if writer.input.is_none() {
        writer.input = at_level(number, writer.next_input(wait))?;
    }
    let room = (writer.batch_bytes - writer.filled) / writer.job.grid.slice_bytes();
    Ok(writer.input.is_some().then_some(room))
}

/// Keeps the last slice of the batch of `upper` if it begins a window of two. Returns whether it did so:
/// without `wait`, a level may be full, if the host has to pass the slice on.
fn keep_rest(
    number: usize,
    upper: &mut Stream,
    below: &mut [Lower],
    wait: bool,
) -> Result<bool, WriterError> {
    let Some(lower) = below.first_mut() else {
        return Ok(true);
    };
    if upper.whole_slices() == lower.passed {
        return Ok(true);
    }
    let Some(input) = &mut upper.input else {
        return Ok(true);
    };
    match lower.writer.engine.keep(&mut **input, lower.passed) {
        Ok(()) => {
            lower.is_kept_there = true;
            lower.passed += 1;
            Ok(true)
        }
        Err(error) => {
            tracing::warn!(%error, level = number + 1, "the host keeps a slice for the next window");
            pass_by_host(number, upper, below, wait)
        }
    }
}

/// Passes all slices of `upper` on, and ends all windows whose second slice will not come.
pub(super) fn end_batches(
    number: usize,
    upper: &mut Stream,
    below: &mut [Lower],
) -> Result<(), WriterError> {
    loop {
        pass_on(number, upper, below, true)?;
        let Some((lower, rest)) = below.split_first_mut() else {
            return Ok(());
        };
        if !lower.is_reduced_there {
            return end_windows(number, below);
        }
        let ready = upper.whole_slices() - lower.passed;
        if lower.is_kept {
            settle(number, below, true)?;
            at_level(number, below[0].end_window())?;
            hand_over(number, below, true)?;
        } else if lower.is_kept_there || ready > 0 {
            room(number, lower, rest, true)?;
            at_level(number, lower.reduce_there(upper, 1, ready))?;
        } else {
            settle(number, below, true)?;
            let Some((lower, rest)) = below.split_first_mut() else {
                return Ok(());
            };
            return if lower.writer.holds {
                end_batches(number + 1, &mut lower.writer, rest)
            } else {
                Ok(())
            };
        }
    }
}

/// Gives the last batches of `upper` and of the levels `below` to the threads that encode, which work on them
/// at the same time. Each level must have all its slices.
pub(super) fn end(
    number: usize,
    upper: &mut Stream,
    below: &mut [Lower],
) -> Result<(), WriterError> {
    of_level(number, upper.end())?;
    let Some((lower, rest)) = below.split_first_mut() else {
        return Ok(());
    };
    // The last batch was submitted, so none of its slices can be passed on.
    lower.passed = 0;
    end(number + 1, &mut lower.writer, rest)
}

/// Stores all complete shards of `upper` and of the levels `below`, and waits until they are stored.
pub(super) fn flush(
    number: usize,
    upper: &mut Stream,
    below: &mut [Lower],
) -> Result<(), WriterError> {
    submit_complete(number, upper, below, true)?;
    of_level(number, upper.stored())?;
    let mut levels = below.iter().enumerate();
    levels.try_for_each(|(level, lower)| at_level(number + level, lower.writer.stored()))
}

/// Submits all complete shards of `upper` and then of the levels `below`. Returns whether it did so: without
/// `wait`, a level may be full, or have no buffer for its incomplete shards.
pub(super) fn submit_complete(
    number: usize,
    upper: &mut Stream,
    below: &mut [Lower],
    wait: bool,
) -> Result<bool, WriterError> {
    // If the call waits, a level that has ended or failed is still flushed, because its threads may have
    // batches.
    if !wait {
        of_level(number, upper.check())?;
    }
    if upper.holds {
        if !submit_full(number, upper, below, wait)? || !pass_on(number, upper, below, wait)? {
            return Ok(false);
        }
        if !keep_rest(number, upper, below, wait)? {
            return Ok(false);
        }
    }
    if !settle(number, below, wait)? {
        return Ok(false);
    }
    let submitted = upper.submit_complete_shards(wait);
    let Some((lower, rest)) = below.split_first_mut() else {
        return of_level(number, submitted);
    };
    if upper.holds {
        // All slices of the batch, also those that moved to the next batch, were passed on.
        lower.passed = upper.whole_slices();
    }
    Ok(of_level(number, submitted)? && submit_complete(number + 1, &mut lower.writer, rest, wait)?)
}

/// Returns `result` of the level with this number. An error of a level below level 0 gets the number.
pub(super) fn of_level<T>(number: usize, result: Result<T, WriterError>) -> Result<T, WriterError> {
    match number.checked_sub(1) {
        Some(lower) => at_level(lower, result),
        None => result,
    }
}

/// Returns `result`, where an error gets the number of its level: `lower` is 0 for level 1.
pub(super) fn at_level<T>(lower: usize, result: Result<T, WriterError>) -> Result<T, WriterError> {
    result.map_err(|source| WriterError::Level {
        level: lower + 1,
        source: Box::new(source),
    })
}

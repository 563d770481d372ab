//! The levels below level 0: each slice of a level becomes a part of a slice of the level below.
//!
//! ```text
//! a slice of the level above
//!     first of a window of two  ──► kept
//!     else, with the kept one   ──► made: a slice of this level ──► its writer
//!                                                               └─► the level below, the same again
//! ```
//!
//! A writer may be full, or its store may have failed. A slice that was made is then owed to it, and the
//! levels above take nothing until it was handed over. So an append that fails, or that does not wait,
//! loses nothing, and can go on later.

use std::num::NonZeroUsize;

use super::super::{ArrayWriter, WriterError};
use crate::engine::pieces;
use crate::engine::reduce::Reducer;

/// A level below level 0.
#[derive(Debug)]
pub(super) struct Lower {
    pub(super) writer: ArrayWriter,
    reducer: Reducer,
    /// Slices of the level above that make one: 1 or 2.
    window: usize,
    threads: NonZeroUsize,
    /// The first slice of a window of two, if `is_kept`.
    kept: Vec<u8>,
    is_kept: bool,
    /// A slice of this level, which its writer does not have yet if it `is_owed`.
    made: Vec<u8>,
    is_owed: bool,
}

impl Lower {
    pub(super) fn new(
        writer: ArrayWriter,
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
        }
    }

    /// The bytes that a level of `reducer` keeps besides its writer's.
    pub(super) fn bytes(reducer: &Reducer, window: usize) -> usize {
        reducer.reduced_bytes() + (window - 1) * reducer.bytes()
    }

    /// Whether the next slice of the level above completes a window of two.
    pub(super) fn keeps_one(&self) -> bool {
        self.is_kept
    }

    /// Adds a slice of the level above. Nothing is owed.
    fn add(&mut self, slice: &[u8]) -> Result<(), WriterError> {
        if self.window == 2 && !self.is_kept {
            return self.keep(slice);
        }
        let kept = self.is_kept.then(|| std::mem::take(&mut self.kept));
        let made = match &kept {
            Some(kept) => self.make(&[kept, slice]),
            None => self.make(&[slice]),
        };
        self.kept = kept.unwrap_or_default();
        self.is_kept = false;
        made
    }

    fn keep(&mut self, slice: &[u8]) -> Result<(), WriterError> {
        self.kept.resize(slice.len(), 0);
        let copied = pieces::copy(vec![(&mut self.kept, slice)], self.threads);
        copied.map_err(|error| self.writer.broken(&error.to_string()))?;
        self.is_kept = true;
        Ok(())
    }

    /// Makes a slice of a whole window.
    fn make(&mut self, window: &[&[u8]]) -> Result<(), WriterError> {
        self.made.resize(self.reducer.reduced_bytes(), 0);
        let reduced = self.reducer.reduce(window, &mut self.made, self.threads);
        reduced.map_err(|error| self.writer.broken(&error.to_string()))?;
        self.is_owed = true;
        Ok(())
    }

    /// Makes a slice of a window whose second slice never comes.
    fn end_window(&mut self) -> Result<(), WriterError> {
        if !self.is_kept {
            return Ok(());
        }
        let kept = std::mem::take(&mut self.kept);
        self.is_kept = false;
        self.make(&[&kept])
    }
}

/// The levels below level 0, from the top down.
#[derive(Debug, Default)]
pub(super) struct Cascade {
    pub(super) levels: Vec<Lower>,
}

impl Cascade {
    /// Adds a slice to the level above the one at `level`. Nothing is owed there, or below.
    pub(super) fn add(&mut self, level: usize, slice: &[u8]) -> Result<(), WriterError> {
        match self.levels.get_mut(level) {
            Some(lower) => at_level(level, lower.add(slice)),
            None => Ok(()),
        }
    }

    /// Adds two slices, which are a window, to level 0.
    pub(super) fn add_window(&mut self, slices: [&[u8]; 2]) -> Result<(), WriterError> {
        match self.levels.first_mut() {
            Some(lower) => at_level(0, lower.make(&slices)),
            None => Ok(()),
        }
    }

    /// Whether a window of level 1 begins with the next slice of level 0, and has two slices.
    pub(super) fn begins_window(&self) -> bool {
        let first = self.levels.first();
        first.is_some_and(|lower| lower.window == 2 && !lower.keeps_one())
    }

    /// Hands over what is owed. Returns whether nothing is owed any more: without `wait` a writer may
    /// be full.
    pub(super) fn settle(&mut self, wait: bool) -> Result<bool, WriterError> {
        for level in (0..self.levels.len()).rev() {
            if !self.hand_over(level, wait)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Hands over what is owed at `level`, and then what follows from it below.
    fn hand_over(&mut self, level: usize, wait: bool) -> Result<bool, WriterError> {
        let Some([lower, below @ ..]) = self.levels.get_mut(level..) else {
            return Ok(true);
        };
        if !lower.is_owed {
            return Ok(true);
        }
        if !at_level(level, lower.writer.take_slice(&lower.made, wait))? {
            return Ok(false);
        }
        lower.is_owed = false;
        if let Some(next) = below.first_mut() {
            at_level(level + 1, next.add(&lower.made))?;
        }
        self.hand_over(level + 1, wait)
    }

    /// Ends all windows whose second slice never comes, from the top down.
    pub(super) fn end_windows(&mut self) -> Result<(), WriterError> {
        self.settle(true)?;
        for level in 0..self.levels.len() {
            at_level(level, self.levels[level].end_window())?;
            self.hand_over(level, true)?;
        }
        Ok(())
    }
}

/// `result` with the number of the level of the pyramid, if it is an error.
pub(super) fn at_level<T>(lower: usize, result: Result<T, WriterError>) -> Result<T, WriterError> {
    result.map_err(|source| WriterError::Level {
        level: lower + 1,
        source: Box::new(source),
    })
}

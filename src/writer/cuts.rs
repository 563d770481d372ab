//! Cuts that wait for the first shard: an image that is written from a start within it stays as it is until
//! a shard is about to be replaced.
//!
//! All levels are cut before the first of those shards, the lowest level first. So a process that dies between
//! two cuts leaves levels that are shorter than the level above, and these are made again. In the other
//! order, a level would keep slices that were made of replaced ones.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zarrs_storage::StorageError;

use super::sink::Length;

/// The arrays of an image that are longer than they will be, from level 0 on.
#[derive(Debug, Default)]
pub(crate) struct Cuts(Mutex<Vec<Cut>>);

/// An array that is to have at most so many slices.
#[derive(Debug)]
struct Cut {
    length: Arc<dyn Length>,
    slices: u64,
}

impl Cuts {
    fn due(&self) -> MutexGuard<'_, Vec<Cut>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the array of the next level, which is to have at most so many `slices`.
    pub(crate) fn add(&self, length: Arc<dyn Length>, slices: u64) {
        self.due().push(Cut { length, slices });
    }

    /// Returns whether an array is longer than it will be.
    pub(crate) fn are_due(&self) -> bool {
        !self.due().is_empty()
    }

    /// Cuts the arrays that are not cut yet, but for the first ones, as many as `left`. After an error the
    /// others are cut by the next call.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn make(&self, left: usize) -> Result<(), StorageError> {
        let mut due = self.due();
        while let Some(cut) = due.get(left..).and_then(<[_]>::last) {
            cut.length.cut(cut.slices)?;
            due.pop();
        }
        Ok(())
    }
}

/// The cuts of an image, as one of its levels has to make them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cutting {
    pub(crate) cuts: Arc<Cuts>,
    /// Shards that end at this slice or before are made of slices that stay: no cut comes before them.
    pub(crate) kept: u64,
}

impl Cutting {
    /// Makes the cuts before a shard is replaced that ends at slice `end`, if it needs them.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn before(&self, end: u64) -> Result<(), StorageError> {
        if end > self.kept {
            self.cuts.make(0)
        } else {
            Ok(())
        }
    }
}
